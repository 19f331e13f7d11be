"""A connector task that fails for good runs again without a person, and one worker of several sees to it."""

from __future__ import annotations

import json
from pathlib import Path

from consumer.connect import apply
from tests.fixtures.process import Process, eventually
from tests.fixtures.world import World


def test_a_task_that_failed_for_good_recovers_by_itself_and_one_worker_restarts_it(
    bare_world: World, tmp_path: Path
) -> None:
    world, name = bare_world, f"kept_{bare_world.mark}"
    file = world.file("rows", name)
    config = {**file.config, "publication.autocreate.mode": "disabled"}
    del config["heartbeat.action.query"]
    folder = tmp_path / "connectors"
    folder.mkdir()
    (folder / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
    apply(world.client, [type(file)(name, file.path, config, file.mask)])
    world.connectors[name] = file
    eventually("the task fails", lambda: (status := world.client.status(name)) is not None and status.failed)

    workers = [world.worker("intake", ROWCALL_CONNECTORS=str(folder)) for _ in range(2)]
    eventually("restarts while the cause stands", lambda: sum(restarts(workers)) >= 2)
    assert min(restarts(workers)) == 0, "one worker at a time restarts"
    acting = next(worker for worker in workers if worker.records("connector_restarted"))
    assert "ublication" in acting.says("connector_restarted")["message"]
    # What the configuration lacks is said once by each of them, however often they look.
    for worker in workers:
        worker.says("connector_advice")
        (advice,) = worker.records("connector_advice")
        assert (advice["connector"], "heartbeat.action.query" in advice["message"]) == (name, True)
    assert f'rowcall_connector_restarts_total{{connector="{name}"}}' in acting.get("/metrics")

    world.do(f"CREATE PUBLICATION {name} FOR TABLE public.things, public.echoes")
    eventually("it runs", lambda: (status := world.client.status(name)) is not None and status.healthy)
    assert [worker.stop() for worker in workers] == [0, 0]


def restarts(workers: list[Process]) -> list[int]:
    """How often each of them had the connector restarted."""
    return [len(worker.records("connector_restarted")) for worker in workers]
