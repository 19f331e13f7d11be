"""Sessions that agents use forget what was left in them, and work all the same however often a statement comes."""

from __future__ import annotations

from consumer import db


async def test_a_statement_sent_often_works_on_sessions_that_forget(database: str) -> None:
    pool = await db.open_pool(database, name="agents", size=1, idle_seconds=5, for_agents=True)
    try:
        for number in range(20):
            async with pool.connection() as session:
                row = await (await session.execute("SELECT %s::int AS n", (number,))).fetchone()
                assert row == {"n": number}
                await session.execute("SET search_path = nowhere")
            async with pool.connection() as session:
                path = await (await session.execute("SHOW search_path")).fetchone()
                assert path == {"search_path": '"$user", public'}
    finally:
        await pool.close()
