"""Plans a remediation of each critical drift and carries out what its tier allows.

Woken by drift.critical, one run at a time for a monitor's segment, since the message key orders them. Notifying the
owners runs by itself, putting the segment into quarantine waits for a review, pausing an agent needs approval before
anything happens. Whatever is done is a row in public.drift_actions and, with the same commit, a JSON record on topic
drift.notices: owners are notified by what reads that topic, a system of theirs or another agent; this one calls nobody.
Attempts are bounded: three in a row on one segment without a recovery, each after a longer pause, and then `gave_up` is
written and told, once. A recovery ends the count. A further attempt is made when the monitor tells a critical drift
again: of another episode, or of the same one where the monitor has `remind`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

from consumer.agents.door import Agent, Context, Reader, StepKind, Tier, Transaction
from consumer.errors import Cancel, GiveUp, RetryLater
from consumer.records import Event

TOPIC: Final = "drift.critical"
NOTICES: Final = "drift.notices"
"""What was done about a critical drift, for those whom it concerns."""

ATTEMPTS: Final = 3
"""Remediations of one segment without a recovery in between."""

FIRST_PAUSE: Final = dt.timedelta(minutes=5)
"""Between the first remediation of a segment and the next; doubles with each."""

Action = Literal["notify_owner", "quarantine_segment", "pause_agent", "gave_up", "recovered"]
POLICY: Final[Mapping[Action, Tier]] = {
    "notify_owner": Tier.LOW,
    "quarantine_segment": Tier.MEDIUM,
    "pause_agent": Tier.HIGH,
    "gave_up": Tier.LOW,
    "recovered": Tier.LOW,
}
_Reason = Annotated[str, StringConstraints(min_length=10, max_length=400)]

PROMPT: Final = """\
A monitor of a data stream reports a severe drift. Choose one action.
notify_owner: when people must decide. quarantine_segment: when the segment's values must not be used until someone \
has looked; target is then the segment. pause_agent: only when an agent listed under writers causes it; target is then \
its name. Leave target empty for notify_owner. reason: one or two sentences with the numbers.
Example: {"action": "notify_owner", "target": "", "reason": "The mean of amount went from 100 to 480 in 12 rows."}"""


class Plan(BaseModel):
    """What the model may choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: Literal["notify_owner", "quarantine_segment", "pause_agent"]
    target: Annotated[str, StringConstraints(max_length=200)]
    reason: _Reason


class Remediation(BaseModel):
    """What is to be done about one critical drift."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: Action
    target: Annotated[str, StringConstraints(max_length=200)]
    reason: _Reason
    writers: tuple[str, ...] = ()
    """The agents that had written rows of late when the plan was made: those that may be paused."""


agent = Agent(
    name="drift-remediate",
    version=2,
    topics=[TOPIC],
    answer=Remediation,
    description="Plans a remediation of each critical drift; acts only as far as its tier allows.",
)


@agent.run
async def remediate(ctx: Context, event: Event) -> Remediation:
    """Count what was tried, wait if it was just tried, then ask."""
    drift = event.data
    if drift["turn"] == "recovered":
        return Remediation(action="recovered", target="", reason=f"The monitor reports: {drift['message'][:350]}")
    # Not a step: a run that waited must see what is there now.
    tried = await earlier_actions(ctx.sql, drift["monitor"], drift["segment"])
    if any(row["action"] == "gave_up" for row in tried):
        raise Cancel("given up on this segment already, as public.drift_actions says; a recovery ends that")
    if len(tried) >= ATTEMPTS:
        names = ", ".join(row["action"] for row in tried)
        return Remediation(action="gave_up", target="", reason=f"{len(tried)} actions did not help: {names}")
    if (wait := pause(tried)) > dt.timedelta(0):
        raise RetryLater("an earlier action needs time to show", delay_seconds=wait.total_seconds())
    writers = await ctx.step("writers", recent_writers, ctx.sql, kind=StepKind.FETCH_INPUT)
    shown = {"drift": {**drift, "evidence": drift["evidence"][:4000]}, "tried": tried, "writers": writers}
    plan: Plan = await ctx.ask("plan", prompt=PROMPT, input=shown, answer=Plan)
    able = tuple(row["agent"] for row in writers)
    return Remediation(action=plan.action, target=plan.target, reason=plan.reason, writers=able)


async def earlier_actions(sql: Reader, monitor: str, segment: str | None) -> list[dict[str, Any]]:
    """Remediations of this segment since its last recovery, the latest first, with their age in seconds."""
    return await sql.rows(
        "SELECT action, target, reason, extract(epoch FROM now() - taken_at)::float8 AS age "
        "FROM public.drift_actions a WHERE monitor = %s AND segment IS NOT DISTINCT FROM %s::text "
        "AND action <> 'recovered' "
        "AND taken_at > coalesce((SELECT max(taken_at) FROM public.drift_actions r WHERE r.monitor = a.monitor "
        "AND r.segment IS NOT DISTINCT FROM a.segment AND r.action = 'recovered'), '-infinity') "
        "ORDER BY taken_at DESC LIMIT 10",
        monitor,
        segment,
    )


async def recent_writers(sql: Reader) -> list[dict[str, Any]]:
    """Active agents that have written rows within the last hour, the busiest first."""
    return await sql.rows(
        "SELECT j.job_type AS agent, count(*) AS runs FROM rowcall.agent_jobs j JOIN rowcall.agents a "
        "ON a.name = j.job_type AND a.state = 'ACTIVE' WHERE j.result_txid IS NOT NULL "
        "AND j.finished_at > now() - interval '1 hour' GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 10"
    )


def pause(tried: list[dict[str, Any]]) -> dt.timedelta:
    """How long to leave the last action to its work: 5 minutes after the first, 10 after the second."""
    if not tried:
        return dt.timedelta(0)
    needed: dt.timedelta = FIRST_PAUSE * 2 ** (len(tried) - 1)
    return needed - dt.timedelta(seconds=tried[0]["age"])


@agent.rule
def target_fits_the_action(event: Event, answer: Remediation) -> None:
    """A quarantine is of the segment that drifted; a pause is of an agent that has written of late, not of this one."""
    segment = event.data["segment"]
    if answer.action == "quarantine_segment" and (segment is None or answer.target != segment):
        raise ValueError(f"target of quarantine_segment must be the segment {segment!r}; without one use notify_owner")
    able = [name for name in answer.writers if name != agent.name]
    if answer.action == "pause_agent" and answer.target not in able:
        raise ValueError(f"target of pause_agent must be an agent under writers: {', '.join(able) or 'there is none'}")


@agent.tier
def tier(event: Event, answer: Remediation) -> Tier:
    """As the policy says."""
    return POLICY[answer.action]


@agent.write
async def write(tx: Transaction, event: Event, answer: Remediation) -> None:
    """Do it, and say so: whatever was done stands in public.drift_actions and is told on drift.notices.

    Raises:
        GiveUp: the agent that was to be paused is not active any more; nothing is written.
    """
    drift = event.data
    if answer.action == "quarantine_segment":
        await tx.execute(
            "INSERT INTO public.quarantined_segments (monitor, segment, reason) VALUES (%s, %s, %s) "
            "ON CONFLICT (monitor, segment) DO UPDATE SET reason = excluded.reason",
            drift["monitor"],
            answer.target,
            answer.reason,
        )
    if answer.action == "recovered":
        await tx.execute(
            "DELETE FROM public.quarantined_segments WHERE monitor = %s AND segment = %s",
            drift["monitor"],
            drift["segment"],
        )
    if answer.action == "pause_agent":
        paused = await tx.execute(
            "UPDATE rowcall.agents SET state = 'PAUSED', state_reason = %s, paused_until = NULL, updated_at = now() "
            "WHERE name = %s AND state = 'ACTIVE'",
            f"drift of {drift['monitor']}: {answer.reason}",
            answer.target,
        )
        if not paused:
            raise GiveUp(f"the agent {answer.target} is not active any more; nothing was paused")
    await tx.execute(
        "INSERT INTO public.drift_actions (event_id, episode, monitor, segment, action, target, reason) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (event_id) DO NOTHING",
        event.id,
        drift["episode"],
        drift["monitor"],
        drift["segment"],
        answer.action,
        answer.target,
        answer.reason,
    )
    segment = drift["segment"]
    tx.emit(
        NOTICES,
        key=drift["monitor"] if segment is None else f"{drift['monitor']}:{segment}",
        record={
            **answer.model_dump(include={"action", "target", "reason"}),
            **{name: drift[name] for name in ("monitor", "segment", "source", "episode", "message")},
        },
        event_type=answer.action,
    )
