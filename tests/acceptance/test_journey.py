"""The journey of one event on the real stack: from a committed row to a written row, a record, and the next agent."""

from __future__ import annotations

import io
import json
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

import fastavro
import pytest

from consumer.agents.order_triage import TRIAGED_TOPIC
from consumer.kafka import Record
from consumer.records.chain import entry
from tests.fixtures.process import Process, eventually
from tests.fixtures.world import World

DAY = 86_400
NULLABLE = """small whole long amount free ratio single flag name code text mark at local day hour tags
numbers doc plain raw note"""
SEEN_AS_NONE = sorted(NULLABLE.split())


@pytest.fixture(scope="module")
def world(bare_world: World) -> World:
    """The outbox connector comes last: after rows have flowed, and after rows stood in the outbox."""
    for number in range(3):
        bare_world.do(
            "INSERT INTO rowcall.outbox (id, topic, key, payload, content_type, occurred_at)"
            " VALUES (%s, %s, %s, %s, 'application/json', '2026-01-01T00:00:00+00:00')",
            uuid.uuid4(), f"{bare_world.mark}.early", str(number), b'{"n": 1}',
        )  # fmt: skip
    bare_world.command("agents", "activate")
    bare_world.apply("rows")
    bare_world.add("plain", [900])
    eventually("the first row", lambda: bare_world.arrived(bare_world.things))
    bare_world.apply("outbox")
    return bare_world


@pytest.fixture(scope="module")
def worker(world: World) -> Process:
    """One worker for all tests here."""
    return world.worker()


def triaged(world: World) -> list[tuple[Record, Any]]:
    """Our records on the topic that everybody's order-triage shares."""
    found = []
    for record in world.records(TRIAGED_TOPIC):
        assert record.value is not None and record.value[0] == 0
        schema = world.registry.schema(int.from_bytes(record.value[1:5], "big"))
        data: Any = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), schema, None)
        if data["currency"] == world.mark:
            found.append((record, data))
    return found


def test_a_committed_row_comes_out_as_a_written_row_and_one_record_and_wakes_the_next_agent(
    world: World, worker: Process
) -> None:
    world.add("write", [1])
    world.has("writer", [1])
    (row,) = world.rows("SELECT note, touched FROM public.things WHERE id = 1")
    assert row == {"note": "fine", "touched": 1}
    (run,) = world.jobs("writer")
    world.has("chained", [1])
    ((record, data),) = triaged(world)
    assert (data["order_id"], data["title"], record.key) == (1, "fine", b"1")
    headers = {name: (value or b"").decode() for name, value in record.headers or []}
    assert headers.keys() >= {"id", "cause", "occurred_at"}
    (sent,) = world.rows("SELECT id, occurred_at FROM rowcall.outbox WHERE job_id = %s", run["id"])
    assert (headers["id"], headers["occurred_at"]) == (str(sent["id"]), sent["occurred_at"])
    chain = [entry("writer", run["key_hash"])]
    cause = {"root": run["event_id"], "job": run["id"], "depth": 1, "chain": chain}
    assert json.loads(headers["cause"]) == cause
    (next_run,) = world.jobs("chained")
    caused = {name: next_run[name] for name in ("root_event", "parent_job", "depth", "chain")}
    assert caused == {"root_event": run["event_id"], "parent_job": run["id"], "depth": 1, "chain": chain}
    assert world.asked() == {f"rowcall-{run['id']}-1-ask": 1}


def test_an_agents_own_write_does_not_wake_it_and_belongs_to_its_run_in_savepoints_and_triggers_too(
    world: World, worker: Process
) -> None:
    world.add("write", [2])
    world.has("writer", [2])
    (run,) = [job for job in world.jobs("writer") if job["key_text"] == "2"]

    def seen() -> list[dict[str, Any]]:
        return [job for job in world.jobs("observer") if job["key_text"] == "2"]

    # The note, the touch inside the savepoint, and the trigger's row of another table.
    eventually("three changes wake the observer", lambda: len(seen()) == 3)
    assert Counter(job["source_topic"] for job in seen()) == {world.things: 2, f"{world.mark}.public.echoes": 1}
    assert {(job["parent_job"], job["root_event"], tuple(job["chain"])) for job in seen()} == {
        (run["id"], run["event_id"], (entry("writer", run["key_hash"]),))
    }
    written = [change for _, change in world.changes(world.things) if change.row["id"] == 2 and change.before]
    written += [change for _, change in world.changes(f"{world.mark}.public.echoes") if change.row["id"] == 2]
    assert [change.origin.txid for change in written] == [run["result_txid"] % 2**32] * 3
    assert [job["key_text"] for job in world.jobs("writer", None)].count("2") == 1
    lines = [line for line in worker.get("/metrics").splitlines() if 'agent="writer"' in line and "own_write" in line]
    assert float(lines[0].rpartition(" ")[2]) >= 3


def test_the_outbox_connector_applied_after_the_row_connector_leaves_rows_flowing_and_sends_older_rows_once(
    world: World, worker: Process
) -> None:
    world.add("plain", [901])
    eventually("rows flow", lambda: 901 in [change.row["id"] for _, change in world.changes(world.things)])
    early = f"{world.mark}.early"
    eventually("the older outbox rows", lambda: len(world.records(early)) >= 3)
    # What comes later on the same topic comes after whatever was sent twice.
    world.do(
        "INSERT INTO rowcall.outbox (id, topic, key, payload, content_type, occurred_at)"
        " VALUES (%s, %s, '3', '{}', 'application/json', '2026-01-01T00:00:00+00:00')",
        uuid.uuid4(), early,
    )  # fmt: skip
    eventually("the later outbox row", lambda: b"3" in [record.key for record in world.records(early)])
    assert sorted(record.key or b"" for record in world.records(early)) == [b"0", b"1", b"2", b"3"]
    stored = {str(row["id"]) for row in world.rows("SELECT id FROM rowcall.outbox WHERE topic = %s", early)}
    assert {dict(record.headers or [])["id"] for record in world.records(early)} == {name.encode() for name in stored}


def test_null_in_a_column_with_a_default_is_none_at_the_agent_in_every_type(world: World, worker: Process) -> None:
    columns = [name for name in SEEN_AS_NONE if name != "note"]
    world.do(f"INSERT INTO public.things (id, kind, {', '.join(columns)}) VALUES (10, 'null'{', NULL' * len(columns)})")
    world.add("null", [11])
    world.has("nuller", [10, 11])
    seen = {int(job["key_text"]): json.loads(job["result_text"])["nulls"] for job in world.jobs("nuller")}
    assert seen == {10: SEEN_AS_NONE, 11: ["note"]}


def test_poison_first_middle_last_and_alone_becomes_rows_and_the_good_ones_run(world: World, worker: Process) -> None:
    food, before = f"{world.mark}.food", len(world.dead_letters())
    framed = b"\x00" + world.registry.register(f"{food}-known", record_schema("Known")).to_bytes(4, "big")
    unknown = world.registry.register(f"{food}-last", record_schema(f"Last{world.mark}")) + 1
    later = b"\x00" + unknown.to_bytes(4, "big") + b"\x54"
    sent: list[tuple[bytes, str | None]] = [
        (b"\xff\xfenot Avro", "not_framed"),
        (b'{"id": 20}', None),
        (framed, "undecodable"),
        (b'{"id": 21}', None),
        (later, "unknown_schema"),
    ]
    for number, (value, _) in enumerate(sent):
        world.send(food, value, f"k{number}".encode(), headers={"id": f"{food}-{number}", "odd": b"\xff\x00"})
    world.flush()
    eater_has(world, food, [1, 3])
    world.send(food, b"", b"tombstone", headers={"id": f"{food}-5"})
    world.send(food, b'{"id": 22}', b"k6")
    world.flush()
    eventually("the lone one", lambda: len(world.dead_letters()) == before + 4)
    letters = world.dead_letters()[before:]
    wanted = [(number, code) for number, (_, code) in enumerate(sent) if code] + [(6, "missing_event_id")]
    assert [(letter["offset"], letter["error_code"]) for letter in letters] == wanted
    assert {(letter["topic"], letter["partition"], letter["state"]) for letter in letters} == {(food, 0, "OPEN")}
    raw = [value for value, code in sent if code] + [b'{"id": 22}']
    assert [bytes(letter["message_value"]) for letter in letters] == raw
    assert [bytes(letter["message_key"]) for letter in letters] == [b"k0", b"k2", b"k4", b"k6"]

    listed = json.loads(world.command("dead-letters", "list", "--json"))
    assert {letter["id"] for letter in letters} <= {row["id"] for row in listed}
    shown = json.loads(world.command("dead-letters", "show", str(letters[0]["id"]), "--json"))
    assert shown["message_value"] == sent[0][0].hex()
    assert (shown["topic"], shown["offset"], shown["error_code"]) == (food, 0, "not_framed")
    assert ["odd", {"hex": "ff00"}] in shown["headers"]

    # The cause is mended: the schema is registered now.
    assert world.registry.register(f"{food}-more", record_schema(f"More{world.mark}")) == unknown
    assert "queued for eater" in world.command("dead-letters", "redrive", str(letters[2]["id"]))
    eater_has(world, food, [1, 3, 4])
    (job,) = [job for job in world.jobs("eater") if job["key_text"] == "k4"]
    assert json.loads(job["result_text"])["id"] == 42


def eater_has(world: World, food: str, numbers: list[int]) -> None:
    """Wait for the runs of these messages, and no others."""
    wanted = sorted(f"k{number}" for number in numbers)
    eventually(f"{wanted} run", lambda: sorted(job["key_text"] for job in world.jobs("eater")) == wanted)


def record_schema(name: str) -> Mapping[str, Any]:
    """A schema with one field; the registry counts its IDs up with each new one."""
    return {"type": "record", "name": name, "fields": [{"name": "id", "type": "long"}]}


def test_a_trigger_that_raised_is_redriven_once_it_is_mended(world: World, worker: Process) -> None:
    before = len(world.dead_letters())
    (world.folder / "sulk").touch()
    world.add("sulk", [30])
    eventually("the dead letter", lambda: len(world.dead_letters()) == before + 1)
    letter = world.dead_letters()[-1]
    assert (letter["agent"], letter["error_code"]) == ("sulky", "when_failed")
    assert "no such mood" in letter["error"]
    (world.folder / "sulk").unlink()
    world.command("dead-letters", "redrive", str(letter["id"]))
    world.has("sulky", [30])
    (closed,) = world.rows("SELECT state, closed_by FROM rowcall.dead_letters WHERE id = %s", letter["id"])
    assert closed == {"state": "REDRIVEN", "closed_by": "ada"}


def test_an_event_of_an_older_day_sent_again_runs_once_and_one_beyond_the_horizon_waits_for_a_person(
    world: World, worker: Process
) -> None:
    world.add("bulk", [40])
    world.has("every", [40])
    (found,) = [record for record, change in world.changes(world.things) if change.row["id"] == 40]
    old, ancient = world.altered(found, 41, seconds=3 * DAY), world.altered(found, 42, seconds=20 * DAY)
    for _ in range(2):
        for value in (found.value, old, ancient):
            world.send(world.things, value, found.key, partition=found.partition)
        world.flush()
        # The key is the same for all; what the row says tells them apart.
        eventually("the old event has its run", lambda: results(world).get(41))
        eventually("the ancient one is parked", lambda: world.jobs("every", "PARKED"))
    world.add("bulk", [43])
    world.has("every", [43])
    assert results(world) == {40: 1, 41: 1, 43: 1}
    (parked,) = world.jobs("every", "PARKED")
    assert parked["reason"] == "older_than_horizon"
    listed = json.loads(world.command("jobs", "list", "--status", "PARKED", "--json"))
    assert [(row["id"], row["reason"]) for row in listed] == [(parked["id"], "older_than_horizon")]
    world.command("jobs", "retry", str(parked["id"]))
    eventually("the released one runs", lambda: results(world) == {40: 1, 41: 1, 42: 1, 43: 1})


def results(world: World) -> Counter[int]:
    """Runs of `every` by the row they saw."""
    return Counter(json.loads(job["result_text"])["id"] for job in world.jobs("every"))
