"""An agent whose effects are what its payload says, for the ledger's tests."""

from __future__ import annotations

from typing import Any

from consumer.agents.door import (
    Agent,
    Context,
    Effect,
    Resolution,
    Tier,
    did_not_happen,
    happened,
    secret,
    unknown,
)
from consumer.errors import EffectUnknown, HttpRefused
from consumer.records import Event
from tests.agents.doing import DONE, Note

sender = Agent(name="sender", version=1, answer=Note, max_attempts=20)
careful = Agent(name="careful", version=1, answer=Note)
early = Agent(name="early", version=1, answer=Note)
declared = Agent(name="declared", version=1, answer=Note, effects_before_answer=True)

ALL = [sender, careful, early, declared]


@sender.run
async def think(ctx: Context, event: Event) -> Note:
    """Reads where the payload says so; the answer is fixed."""
    if url := event.data.get("read"):
        answer = await ctx.http("read", "GET", url, **event.data.get("options", {}))
        return Note(title=answer.text[:200], score=answer.status)
    return Note(title="sent", score=1)


@sender.act
@careful.act
async def send(ctx: Context, event: Event, answer: Note) -> None:
    """One effect, and a step behind it."""
    data = event.data
    if "url" not in data:
        return
    DONE.append(("act", ctx.run_id))
    options: dict[str, Any] = dict(data.get("options", {}))
    if data.get("mode") == "idempotent":
        options["idempotent"] = True
    if data.get("mode") == "reconcile":
        options["reconcile"] = reconciling(data)
    if data.get("secret"):
        options["headers"] = {"Authorization": secret(data["secret"], "Bearer {}")}
    text = answer.title if data.get("answer") else ""
    try:
        given = await ctx.http(
            "send", "POST", data["url"], key=data["n"], json={"n": data["n"], "text": text}, **options
        )
    except (EffectUnknown, HttpRefused):
        if not data.get("swallow"):
            raise
        return
    await ctx.step("after", keep, given.json() if not given.truncated else "cut")
    if data.get("fail") and ctx.attempt <= data["fail"]:
        raise RuntimeError("after the effect")


async def keep(value: Any) -> Any:
    """What the effect gave."""
    DONE.append(("kept", 0))
    return value


def reconciling(data: Any) -> Any:
    """A reconcile function that asks the receiver, or says what the payload says."""

    async def reconcile(effect: Effect) -> Resolution:
        if data.get("says") == "unknown":
            return unknown()
        found = await effect.get(f"{data['base']}/acts/{effect.key}")
        return happened(found) if found.status == 200 else did_not_happen()

    return reconcile


@careful.run
async def propose(ctx: Context, event: Event) -> Note:
    """An answer that a person has to see."""
    return Note(title=event.data.get("title", "sent"), score=1)


@careful.tier
def tier(event: Event, answer: Note) -> Tier:
    """As the payload says."""
    return Tier(event.data.get("tier", "high"))


@early.run
@declared.run
async def hasty(ctx: Context, event: Event) -> Note:
    """Has its effect before there is an answer."""
    await ctx.http("send", "POST", event.data["url"], json={"n": event.data["n"]})
    return Note(title="sent", score=1)
