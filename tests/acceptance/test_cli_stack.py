"""The commands against the whole stack: connectors applied and inspected, agents activated, a worker ready, doctor."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import debezium
from consumer.connect import ConnectClient
from debezium.stack import StackInfo
from tests.acceptance.test_cli import environment, eventually, process, run
from tests.acceptance.test_connectors import drop_slots

__all__ = ["environment"]

AGENTS = """
from pydantic import BaseModel
from consumer.agents.door import Agent

class Answer(BaseModel):
    n: int

reader = Agent(name="reader", version=1, answer=Answer, topics=["MARK.public.parcels"])
AGENTS = [reader]

@reader.run
async def count(ctx, change):
    return Answer(n=change.after["id"])
"""


@pytest.fixture
def placed(
    environment: dict[str, str],
    stack: StackInfo,
    database: str,
    tmp_path: Path,
) -> Iterator[dict[str, str]]:
    """An environment of the real stack with connectors, topics, group and agent that nobody else uses."""
    mark = f"c{uuid.uuid4().hex[:8]}"
    folder = tmp_path / "connectors"
    folder.mkdir()
    for source in (Path(debezium.__file__).parent / "connectors").glob("*.json"):
        config = json.loads(source.read_text())
        name = f"{source.stem}_{mark}"
        config |= {"slot.name": name, "publication.name": name, "topic.prefix": f"{source.stem}{mark}"}
        if source.stem == "rows":
            config["table.include.list"] = "public.parcels"
        (folder / f"{name}.json").write_text(json.dumps(config))
    (tmp_path / "stack_agents.py").write_text(AGENTS.replace("MARK", f"rows{mark}"))
    own = {"ROWCALL_AGENTS": "stack_agents", "KAFKA_GROUP": mark, "MARK": mark, "ROWCALL_OWN_SOURCES": f"rows{mark}"}
    own["ROWCALL_OUTBOX_SLOT"] = f"outbox_{mark}"
    with psycopg.connect(database, autocommit=True) as session:
        session.execute("CREATE TABLE public.parcels (id bigint PRIMARY KEY, weight int DEFAULT 7)")
        yield environment | stack.environment() | {"DATABASE_URL": database} | own
        with ConnectClient(stack.connect_url) as client:
            for name in client.names():
                if name.endswith(mark):
                    client.delete(name)
        drop_slots(session)


def test_from_connectors_to_a_ready_worker_and_back(placed: dict[str, str], tmp_path: Path) -> None:
    mark, folder = placed["MARK"], ["--directory", str(tmp_path / "connectors")]
    assert run(placed, "connectors", "diff", *folder).returncode == 1
    applied = run(placed, "connectors", "apply", *folder, "--restart-failed")
    made = [f"outbox_{mark}: created", f"rows_{mark}: created", "every connector reads its slot"]
    assert applied.stdout.splitlines() == [f"connector files of {folder[1]}", *made], applied.stderr
    check_refusals(placed, mark, tmp_path / "connectors")
    assert run(placed, "connectors", "diff", *folder).returncode == 0
    eventually(lambda: run(placed, "connectors", "status", f"rows_{mark}").returncode == 0)
    status = json.loads(run(placed, "connectors", "status", f"outbox_{mark}", "--json").stdout)
    assert [item["name"] for item in status] == [f"outbox_{mark}"]
    assert "reader 1: activated" in run(placed, "agents", "activate").stdout
    assert "reader 1: unchanged" in run(placed, "agents", "activate", "reader").stdout
    assert run(placed, "agents", "activate", "writer").returncode == 1

    with process(placed, "worker") as worker:
        eventually(lambda: worker.get("/readyz")[0] == 200)
        with psycopg.connect(placed["DATABASE_URL"], autocommit=True) as session:
            session.execute("INSERT INTO public.parcels VALUES (42)")
        rows = eventually(lambda: json.loads(run(placed, "jobs", "list", "--status", "SUCCEEDED", "--json").stdout), 60)
        assert rows[0]["agent"] == "reader"
        check_doctor(placed, mark)
        worker.signal(signal.SIGTERM)
        assert worker.exit_code(40) == 0

    gone = run(placed, "connectors", "delete", f"rows_{mark}", "--yes")
    assert gone.returncode == 0
    assert run(placed, "connectors", "status", f"rows_{mark}").returncode == 1


def check_refusals(placed: dict[str, str], mark: str, folder: Path) -> None:
    """Neither a table that is not there, nor one that would be captured no more; the folder may come by its setting."""
    own = placed | {"ROWCALL_CONNECTORS": str(folder)}
    file = folder / f"rows_{mark}.json"
    good = file.read_text()
    file.write_text(good.replace("public.parcels", "public.letters"))
    missing = run(own, "connectors", "apply")
    assert missing.returncode == 1
    assert f"rows_{mark}: table public.letters does not exist in database" in missing.stderr
    with psycopg.connect(placed["DATABASE_URL"], autocommit=True) as session:
        session.execute("CREATE TABLE public.letters (id bigint PRIMARY KEY)")
    removing = run(own, "connectors", "apply")
    assert removing.returncode == 1
    assert "public.parcels" in removing.stderr and "--force" in removing.stderr
    forced = run(own, "connectors", "apply", "--force", "--wait", "40")
    assert forced.returncode == 0, forced.stderr
    file.write_text(good)
    back = run(own, "connectors", "apply", "--force", "--wait", "40")
    assert back.returncode == 0, back.stderr
    (folder / f"absent_{mark}.json").write_text(good)
    assert f"absent_{mark}" in run(own, "connectors", "status").stdout
    (folder / f"absent_{mark}.json").unlink()


def check_doctor(placed: dict[str, str], mark: str) -> None:
    """All is well but the model, which is out of reach, and a table whose old values are not logged."""
    findings = json.loads(run(placed, "doctor", "--json").stdout)
    said = {(row["level"], row["area"], row["what"]) for row in findings}
    failed = {area for level, area, what in said if level == "fail" and (area != "connect" or mark in what)}
    assert failed == {"model"}
    assert ("ok", "database", f"slot rows_{mark}") in said
    assert ("ok", "database", f"slot outbox_{mark}") in said
    assert ("ok", "connect", f"connector rows_{mark} runs") in said
    assert ("ok", "kafka", f"topic rows{mark}.public.parcels") in said
    assert ("ok", "registry", "answers") in said
    assert ("warn", "database", "public.parcels has no REPLICA IDENTITY FULL") in said
    assert not [what for _, area, what in said if area == "kafka" and "horizon" in what]
