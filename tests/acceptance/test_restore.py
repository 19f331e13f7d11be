"""Postgres put back to an earlier moment, as from a backup: what it forgot is read again, and nothing is lost.

The backup is a cold copy of the server's files, so transaction IDs go back as they do in real life. Every database of
the shared server goes back; nobody else works meanwhile.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

from debezium import accounts
from debezium import stack as local_stack
from debezium.paths import StackPaths
from debezium.stack import StackInfo
from tests.fixtures.world import World


def copied(source: Path, target: Path) -> None:
    """Copy the server's files with their owner."""
    shutil.copytree(source, target)
    owner = source.stat()
    for path in [target, *target.rglob("*")]:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def test_a_database_restored_to_an_earlier_moment_reads_again_what_it_forgot_and_loses_nothing(
    world: World, disturbed: StackInfo
) -> None:
    worker = world.worker()
    before, forgotten = range(20), range(100, 140)
    world.add("bulk", before)
    world.has("every", before)
    (known,) = world.rows("SELECT sum(next_offset) AS n FROM rowcall.positions")
    assert worker.stop() == 0
    for name in list(world.connectors):
        world.remove(name)

    data = StackPaths.of(disturbed.directory, accounts.postgres_account()).postgres_data
    backup = data.with_name("backup")
    local_stack.stop_service(disturbed.directory, "postgres")
    copied(data, backup)
    local_stack.restart(disturbed.directory, "postgres")

    # The timeline that will be lost: rows, their runs, and many more transactions than a restored server has had.
    world.look.close()
    world.apply("rows", f"lost_{world.mark}")
    for number in forgotten:
        world.add("bulk", [number])
    worker = world.worker()
    world.has("every", forgotten)
    assert worker.stop() == 0
    world.remove(f"lost_{world.mark}")
    lost = {change.row["id"]: change.origin.txid for _, change in world.changes(world.things)}

    world.look.close()
    local_stack.stop_service(disturbed.directory, "postgres")
    shutil.rmtree(data)
    backup.rename(data)
    local_stack.restart(disturbed.directory, "postgres")
    assert world.keys("every", None) == list(before)
    assert world.rows("SELECT sum(next_offset) AS n FROM rowcall.positions") == [known]
    (current,) = world.rows("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xmax")
    assert any((txid or 0) >= current["xmax"] for row, txid in lost.items() if row in forgotten)

    # A new slot begins at the restored server's end; the connector's old offsets lie ahead of it.
    world.apply("rows", f"again_{world.mark}")
    worker = world.worker()
    world.has("every", [*before, *forgotten])
    after = range(200, 220)
    world.add("bulk", after)
    world.has("every", after)
    assert Counter(world.keys("every", None)) == Counter([*before, *forgotten, *after])
    assert worker.records("source_ahead_of_database")
    parents = {job["parent_job"] for job in world.jobs("every") if int(job["key_text"]) in forgotten}
    assert parents == {None}
    assert world.dead_letters() == []
