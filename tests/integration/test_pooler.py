"""A connection pooler in front of Postgres is told apart and refused with what to do; with a real PgBouncer."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from consumer import db, settings
from consumer.app import process
from consumer.doctor import postgres
from consumer.errors import ConfigurationError, Outage
from debezium import ports

PROGRAM = shutil.which("pgbouncer")
# Where CI runs, `.ci/run` has installed it, and a missing one fails.
with_program = pytest.mark.skipif(
    PROGRAM is None and "CI" not in os.environ, reason="needs the program pgbouncer (a package of most systems)"
)


@pytest.fixture
def pooled(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a pooler in transaction mode, with the settings of the test's parameter."""
    parts, port = urlsplit(database), ports.choose()
    (tmp_path / "users.txt").write_text(f'"{parts.username}" "{parts.password or ""}"\n')
    (tmp_path / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={parts.hostname} port={parts.port} user={parts.username} "
        f"password={parts.password or ''}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"auth_file = {tmp_path}/users.txt\npool_mode = transaction\n{request.param}\n"
    )
    assert PROGRAM is not None
    # As root it must become somebody else, who must be able to read its files.
    user = ["-u", "nobody"] if os.getuid() == 0 else []
    for path in (tmp_path, tmp_path.parent, tmp_path.parent.parent, *tmp_path.iterdir()):
        path.chmod(0o755)
    running = subprocess.Popen([PROGRAM, *user, str(tmp_path / "pgbouncer.ini")], stderr=subprocess.DEVNULL)
    url = urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}"))
    yield url
    running.terminate()
    running.wait(10)


def refused(url: str) -> str:
    """What a session is refused with, once the pooler is there."""
    until = time.monotonic() + 10
    while True:
        try:
            process.check_schema(settings.load({"DATABASE_URL": url}))
        except Outage:
            assert time.monotonic() < until
            time.sleep(0.05)
        except ConfigurationError as error:
            return str(error)
        else:
            raise AssertionError("a pooler was taken for Postgres")


@with_program
@pytest.mark.parametrize(
    ("pooled", "why"),
    [
        ("", "unsupported startup parameter"),
        ("ignore_startup_parameters = options", "start options were ignored"),
        ("ignore_startup_parameters = options\nserver_reset_query =", "start options were ignored"),
    ],
    indirect=["pooled"],
    ids=["as it is", "told to ignore", "and not to reset"],
)
def test_a_pooler_in_transaction_mode_is_refused_with_what_to_do(pooled: str, why: str) -> None:
    said = refused(pooled)
    assert why in said and "lead to Postgres itself" in said
    (finding,) = postgres.examine(settings.load({"DATABASE_URL": pooled}), [], {})
    assert finding.level == "fail" and "Postgres itself" in f"{finding}"


@with_program
@pytest.mark.parametrize("pooled", ["ignore_startup_parameters = options"], indirect=True)
def test_a_pooler_that_lets_our_options_pass_is_known_by_its_shared_session(pooled: str, database: str) -> None:
    # Its server speaks as our options want, so that only the sharing tells.
    with db.connect(database, name="test") as session:
        session.execute(f"ALTER DATABASE {urlsplit(database).path[1:]} SET DateStyle = 'ISO, YMD'".encode())
    assert "one session of it serves two of ours" in refused(pooled)


def test_postgres_itself_is_no_pooler(database: str) -> None:
    assert process.check_schema(settings.load({"DATABASE_URL": database}))
