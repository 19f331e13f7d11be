"""slots_fired_over_due: slots that fired exactly once over slots that were due.

Three scheduler processes share 200 schedules in four time zones while the database's clock runs through both changes of
summer time; one of them is killed at random every few steps and started again. A slot that fired twice would be two
runs, one that was lost none.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import signal
import time
from itertools import takewhile
from pathlib import Path
from typing import Final

from benchmarks.figures import Measured, NotMeasured
from benchmarks.services import Child, Services, python, running, until
from consumer import db
from consumer.agents.schedule import Schedule
from producers.schedules.definitions import synchronise

ZONES: Final = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC")
CRONS: Final = ("30 2 * * *", "*/30 * * * *", "0 1-3 * * *", "15 2 * * 0", "5,35 * * * *")
SPANS: Final = ((3, 8), (3, 28), (4, 4), (10, 3), (10, 24), (10, 31))
HOURS: Final = 12
CLOCK: Final = """
CREATE TABLE public.bench_clock (at timestamptz NOT NULL);
INSERT INTO public.bench_clock VALUES (statement_timestamp());
CREATE OR REPLACE FUNCTION rowcall.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
    AS 'SELECT at FROM public.bench_clock';
"""


def measure(services: Services) -> Measured:
    """All spans one after the other, in one database."""
    spans = SPANS[:1] if services.quick else SPANS
    made = [
        Schedule(name=f"s{number}", cron=CRONS[number % 5], timezone=ZONES[number % 4], agent="a", overlap="allow",
                 catch_up="all", catch_up_limit=1000)
        for number in range(200)
    ]  # fmt: skip
    killed, due = 0, 0
    log = Path(services.directory) / "schedulers.log"
    with services.database() as url, contextlib.closing(db.connect(url, name="bench")) as session:
        session.execute(CLOCK.encode())
        for month, day in spans:
            start = dt.datetime(2026, month, day, 20, tzinfo=dt.UTC)
            killed += _span(session, url, log, made, start)
            due += sum(
                len(list(takewhile((start + dt.timedelta(hours=HOURS)).__ge__, item.after(start)))) for item in made
            )
            _settled(session, due)
        row = session.execute(
            "SELECT count(*) AS slots, (SELECT count(*) FROM rowcall.agent_jobs) AS runs,"
            " (SELECT count(DISTINCT event_id) FROM rowcall.agent_jobs) AS events"
            " FROM rowcall.schedule_slots WHERE outcome = 'queued'"
        ).fetchone()
    if row is None or not row["slots"] == row["runs"] == row["events"]:
        raise NotMeasured(f"slots and runs do not match: {row}")
    return Measured({"slots_fired_over_due": row["runs"] / due}, {"due": due, "killed": killed, "schedules": len(made)})


def _span(session: db.SyncSession, url: str, log: Path, made: list[Schedule], start: dt.datetime) -> int:
    """Run the clock through one span; how many schedulers were killed."""
    session.execute("UPDATE public.bench_clock SET at = %s", (start,))
    synchronise(session, {"code": made})
    for item in made:
        session.execute(
            "UPDATE rowcall.schedules SET next_slot = %s WHERE name = %s", (next(item.after(start)), item.name)
        )
    chance = random.Random(start.toordinal())
    killed = 0
    children = [_scheduler(url, log) for _ in range(3)]
    with running(children):
        for step in range(HOURS * 4):
            session.execute("UPDATE public.bench_clock SET at = at + interval '15 minutes'")
            time.sleep(0.1)
            if step % 6 == 5:
                victim = chance.randrange(3)
                children[victim].signal(signal.SIGKILL)
                children[victim].wait()
                children[victim] = _scheduler(url, log)
                killed += 1
        until(lambda: _left(session) == 0, "all slots are dealt with", seconds=120)
    return killed


def _left(session: db.SyncSession) -> int:
    row = session.execute("SELECT count(*) AS n FROM rowcall.schedules WHERE next_slot <= rowcall.now()").fetchone()
    return 0 if row is None else int(row["n"])


def _settled(session: db.SyncSession, due: int) -> None:
    row = session.execute("SELECT count(*) AS n FROM rowcall.schedule_slots").fetchone()
    if row is None or row["n"] != due:
        raise NotMeasured(f"{due} slots were due and {row} were dealt with")


def _scheduler(url: str, log: Path) -> Child:
    return Child(python("benchmarks.scheduler", url), {}, log)
