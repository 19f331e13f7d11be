"""Agents whose answers people decide about: `reviewed` and its variants look at a changed item and ask the model."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from consumer.agents.door import Agent, Context, StepKind, Tier, Transaction
from consumer.records import Change, Event
from tests.agents.doing import DONE


class Verdict(BaseModel):
    """What the model says about an item; the tier stands in it."""

    model_config = ConfigDict(extra="forbid")

    action: Literal["keep", "drop"]
    tier: Literal["low", "medium", "high"]
    title: str
    score: int
    remark: str | None = "none"


def _reviewed(name: str, *, by_sql: bool = False, **options: Any) -> Agent:
    agent = Agent(name=name, version=1, answer=Verdict, **options)

    @agent.run
    async def run(ctx: Context, change: Change) -> Verdict:
        fetched = await ctx.step("fetch", fetch, ctx.run_id, kind=StepKind.FETCH_INPUT)
        given = {"amount": change.row["amount"], "status": change.row["status"], "fetched": fetched}
        answer: Verdict = await ctx.ask("ask", prompt="Judge the item.", input=given)
        await ctx.step("after", str.upper, answer.title)
        return answer

    @agent.rule
    def limit(change: Change, answer: Verdict) -> None:
        if answer.score > 10:
            raise ValueError(f"score {answer.score} is above 10")

    @agent.tier
    def tier(change: Change, answer: Verdict) -> Tier:
        return Tier(answer.tier)

    @agent.preview
    def preview(change: Change, answer: Verdict) -> dict[str, Any]:
        return {"note": answer.title}

    @agent.write
    async def write(tx: Transaction, change: Change, answer: Verdict) -> None:
        if by_sql:
            await tx.execute("UPDATE public.items SET note = %s WHERE id = %s", answer.title, change.row["id"])
        elif change.after is not None:
            await tx.update(change, {"note": answer.title})
        await tx.execute("INSERT INTO public.effects (n, text) VALUES (%s, %s)", change.row["id"], answer.remark)
        tx.emit("test.effects", key=change.row["id"], record={"title": answer.title})

    return agent


async def fetch(run_id: int) -> str:
    """A step before the question, which must not be repeated."""
    DONE.append(("fetch", run_id))
    return "fetched"


reviewed = _reviewed("reviewed")
by_sql = _reviewed("reviewed-sql", by_sql=True)
asking_again = _reviewed("reviewed-stale", on_stale="review")
overwriting = _reviewed("reviewed-write", on_stale="write")
patient = _reviewed("reviewed-wait", on_newer="wait")
hasty = _reviewed(
    "reviewed-hasty", review_expires=dt.timedelta(hours=1), review_escalates=dt.timedelta(minutes=10)
)  # fmt: skip
own = _reviewed("reviewed-own", on_own_write="run")

silent = Agent(name="silent", version=1, answer=Verdict)


@silent.run
async def think(ctx: Context, message: Change | Event) -> Verdict:
    """Has no write: what is held back is the result itself."""
    return Verdict(action="keep", tier="medium", title="quiet", score=1)


@silent.tier
def medium(message: Change | Event, answer: Verdict) -> Tier:
    """Always for a person."""
    return Tier.MEDIUM


ALL: Final[list[Agent]] = [reviewed, by_sql, asking_again, overwriting, patient, hasty, own, silent]
