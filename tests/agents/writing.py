"""Agents whose outcome writes: `writer` runs the statements its payload names, the others update the changed row."""

from __future__ import annotations

from typing import Any, Final

from consumer.agents.door import Agent, Context, Transaction
from consumer.errors import RowcallError
from consumer.records import Change, Event
from tests.agents.doing import Note

TABLES: Final = """
CREATE TABLE IF NOT EXISTS public.effects (n bigint NOT NULL, text text, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE IF NOT EXISTS public.items (id bigint PRIMARY KEY, status text, amount numeric, note text);
CREATE OR REPLACE PROCEDURE public.committing() LANGUAGE plpgsql AS 'BEGIN COMMIT; END';
CREATE OR REPLACE FUNCTION public.no_item() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN RAISE EXCEPTION ''items of status refused are refused''; END';
CREATE OR REPLACE TRIGGER no_item BEFORE INSERT OR UPDATE ON public.items FOR EACH ROW WHEN (NEW.status = 'refused')
    EXECUTE FUNCTION public.no_item();
"""

writer = Agent(name="writer", version=1, answer=Note)


@writer.run
async def think(ctx: Context, event: Event) -> Note:
    """Asks the model where the payload says so."""
    if event.data.get("ask"):
        answer: Note = await ctx.ask("ask", prompt="Say something.", input=event.data)
        return answer
    return Note(title=event.data.get("title", "written"), score=1)


@writer.write
async def write(tx: Transaction, event: Event, answer: Note) -> None:
    """One effect, the statements of the payload, one record."""
    data = event.data
    await tx.execute("INSERT INTO public.effects (n, text) VALUES (%s, %s)", data["n"], answer.title)
    for statement in data.get("statements", ()):
        try:
            await tx.execute(statement)
        except RowcallError:
            if not data.get("swallow"):
                raise
    if text := data.get("raise"):
        raise LookupError(text)
    tx.emit("test.effects", key=data["n"], record={"n": data["n"]})


def _updater(on_stale: Any) -> Agent:
    agent = Agent(name=f"updater-{on_stale}", version=1, answer=Note, on_stale=on_stale)

    @agent.when
    def when(change: Change) -> bool:
        return bool(change.row["status"] != "closed")

    @agent.run
    async def run(ctx: Context, change: Change) -> Note:
        amount = await ctx.step("amount", str, change.row["amount"])
        return Note(title=f"saw {amount}", score=ctx.attempt)

    @agent.write
    async def write(tx: Transaction, change: Change, answer: Note) -> None:
        await tx.update(change, {"note": answer.title})
        await tx.execute("INSERT INTO public.effects (n, text) VALUES (%s, %s)", change.row["id"], answer.title)

    return agent


rerunning = _updater("rerun")
reviewing = _updater("review")
overwriting = _updater("write")

ALL: Final[list[Agent]] = [writer, rerunning, reviewing, overwriting]
