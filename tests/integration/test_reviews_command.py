"""`rowcall reviews` as a person types it, on answers that really wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable

import pytest

from tests.agents.harness import Records, records
from tests.integration.reviewing import held, model, put, review, working
from tests.scripted_model import Endpoint

__all__ = ["model"]

Rowcall = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
async def view(database: str) -> AsyncIterator[Records]:
    async with records(database) as found:
        yield found


@pytest.fixture
def rowcall(database: str) -> Rowcall:
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "DATABASE_URL": database, "ROWCALL_AGENTS": "tests.agents", "USER": "ada",
    }  # fmt: skip

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "consumer.cli", "reviews", *arguments]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run


async def test_a_person_looks_edits_and_approves(
    view: Records, model: Endpoint, database: str, rowcall: Rowcall
) -> None:
    job_id, number = await held(view, database, model, note="old")
    shown = rowcall("show", str(number)).stdout
    digest = (await review(view, number))["digest"]
    assert digest in shown and '"old"' in shown and '"first"' in shown and "ask" in shown
    as_json = json.loads(rowcall("show", str(number), "--json").stdout)
    assert as_json["changes"] == [{"column": "note", "now": "old", "then": "first"}]
    await view.execute("UPDATE public.items SET amount = 9")
    assert "The row has changed since (amount)" in rowcall("show", str(number)).stdout
    await view.execute("UPDATE public.items SET amount = 5")
    unquoted = rowcall("approve", str(number), "--set", "title=mine")
    assert unquoted.returncode == 2 and "needs its quotes" in unquoted.stderr
    other = rowcall("approve", str(number), "--digest", "0" * 64)
    assert other.returncode == 1 and digest in other.stderr
    wrong = rowcall("approve", str(number), "--set", "score=11")
    assert wrong.returncode == 1 and "above 10" in wrong.stderr
    done = rowcall("approve", str(number), "--set", 'title="mine"', "--set", "remark=null", "--digest", digest)
    assert done.stdout == f"review {number} approved as edited: job {job_id} goes on\n"
    late = rowcall("reject", str(number), "--reason", "too late")
    assert late.returncode == 1 and "APPROVED by ada" in late.stderr
    async with working(database, model):
        await view.wait(job_id)
    assert (await view.one("SELECT note FROM public.items"))["note"] == "mine"


async def test_a_rejection_and_another_attempt_need_their_reasons(
    view: Records, model: Endpoint, database: str, rowcall: Rowcall
) -> None:
    _, number = await held(view, database, model)
    for command in ("reject", "again"):
        assert rowcall(command, str(number)).returncode == 2
    assert "another attempt" in rowcall("again", str(number), "--reason", "be kinder").stdout
    assert (await review(view, number))["state"] == "AGAIN"


async def test_alike_answers_are_approved_when_the_person_has_seen_how_many(
    view: Records, model: Endpoint, database: str, rowcall: Rowcall
) -> None:
    jobs = [await view.add_change("reviewed", await put(view, {"id": n})) for n in (1, 2)]
    async with working(database, model):
        for job_id in jobs:
            await view.wait(job_id, "WAITING_REVIEW")
    first = str((await view.one("SELECT min(id) AS id FROM rowcall.reviews"))["id"])
    unasked = rowcall("approve", "--like", first)
    assert unasked.returncode == 1 and "2 open reviews of reviewed" in unasked.stdout
    assert {(await view.job(job_id))["status"] for job_id in jobs} == {"WAITING_REVIEW"}
    assert "2 approved as group" in rowcall("approve", "--like", first, "--yes").stdout
    assert {(await view.job(job_id))["status"] for job_id in jobs} == {"PENDING"}


async def test_a_bypass_is_granted_listed_and_ended(view: Records, rowcall: Rowcall) -> None:
    assert rowcall("bypass", "reviewed", "--for", "2h").returncode == 1
    assert rowcall("bypass", "reviewed", "--for", "soon", "--reason", "x").returncode == 2
    high = rowcall("bypass", "reviewed", "--tier", "high", "--for", "1h", "--reason", "x")
    assert high.returncode == 1 and "no effect before its approval" in high.stderr
    granted = rowcall("bypass", "reviewed", "--for", "1h30m", "--reason", "sale day")
    assert granted.returncode == 0, granted.stderr
    (row,) = json.loads(rowcall("bypasses", "--json").stdout)
    assert (row["agent"], row["active"], row["reason"], row["granted_by"]) == ("reviewed", True, "sale day", "ada")
    assert rowcall("bypass", "--end", str(row["id"])).stdout == f"bypass {row['id']} ended\n"
    assert "sale day" in rowcall("bypasses", "--agent", "reviewed").stdout
