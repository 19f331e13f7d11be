"""Before an agent's `act`: the row it answered about must still be the one it read, for what `act` does stays done.

Comes after validation and approval. Reads the row under the run's fence and writes nothing. It may still change while
`act` is under way: that, the outcome's own look at the row finds out.
"""

from __future__ import annotations

from consumer import db, effects
from consumer.agents.door import Agent, Input
from consumer.errors import StaleRow
from consumer.executor.outside import Outside
from consumer.outcome.transaction import refuse_changed
from consumer.records import Change, ReadRow
from consumer.records.jobs import ClaimedJob


async def changed_row(outside: Outside, job: ClaimedJob, agent: Agent, message: Input) -> StaleRow | None:
    """Why `act` must not begin; None where it may, or where it has had an effect already and goes on.

    Raises:
        LeaseLost: another owner has the run. Outage: the row cannot be read now.
    """
    if not agent.acts or agent.on_stale == "write":
        return None
    if not isinstance(message, Change) or not message.key or not isinstance(message.after, ReadRow):
        return None
    change, key = message, message.key

    async def look(session: db.Session, left: float) -> StaleRow | None:
        if await effects.acted(session, job):
            return None
        current = await db.read_row(session, change.origin.schema, change.origin.table, key)
        try:
            refuse_changed(change, current)
        except StaleRow as error:
            return error
        return None

    return await outside.written(job, look)
