"""Where the local stack keeps its files, and whether another user can enter a folder.

Used by every module that reads or writes a path. Downloads live in one cache for the user; each stack has a directory
of its own, so several run side by side. Started by root, Postgres runs as another user (`debezium.accounts`), so the
cache and the databases of root's stacks lie where that user can go.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from debezium.accounts import Account


def cache_directory() -> Path:
    """The cache: `$ROWCALL_CACHE`, else `/var/cache/rowcall` for root, else `rowcall` in the user's cache folder."""
    named = os.environ.get("ROWCALL_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/rowcall")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "rowcall"


def stack_directory() -> Path:
    """The stack a command means when it names none: `$ROWCALL_STACK_DIR`, else `build/stack` here."""
    return Path(os.environ.get("ROWCALL_STACK_DIR") or Path.cwd() / "build" / "stack").absolute()


def reachable(path: Path, account: Account | None) -> bool:
    """Whether `account` (None: we ourselves) may enter every existing folder of `path`."""
    return account is None or all(_enters(folder, account) for folder in [path, *path.parents] if folder.exists())


def _enters(folder: Path, account: Account) -> bool:
    found = folder.stat()
    if found.st_uid == account.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


@dataclass(frozen=True)
class StackPaths:
    """The files of one stack."""

    directory: Path
    postgres_parent: Path

    @classmethod
    def of(cls, directory: Path, account: Account | None) -> StackPaths:
        """The paths of the stack in `directory`.

        The database files move under the cache, in a folder named by a hash of the directory, when Postgres' own
        user could not enter the directory (a closed home, a test's temporary folder).
        """
        absolute = directory.expanduser().absolute()
        if reachable(absolute, account):
            return cls(absolute, absolute / "postgres")
        key = hashlib.sha256(str(absolute).encode()).hexdigest()[:16]
        return cls(absolute, cache_directory() / "stacks" / key / "postgres")

    @property
    def owned(self) -> tuple[Path, ...]:
        """The folders that are this stack's alone, for the day it is removed."""
        if self.postgres_parent.is_relative_to(self.directory):
            return (self.directory,)
        return (self.postgres_parent.parent, self.directory)

    @property
    def postgres_data(self) -> Path:
        """The cluster's data directory."""
        return self.postgres_parent / "data"

    @property
    def password_file(self) -> Path:
        """The password of the database user `postgres`, mode 0600."""
        return self.directory / "postgres.password"

    @property
    def state_file(self) -> Path:
        """What runs: process ids, ports, logs."""
        return self.directory / "state.json"

    @property
    def lock_file(self) -> Path:
        """Held while a command starts or stops services of this stack."""
        return self.directory / "launcher.lock"

    def log(self, service: str) -> Path:
        """The log a service writes to."""
        return self.directory / "logs" / f"{service}.log"

    def service(self, service: str) -> Path:
        """The folder of a service other than Postgres."""
        return self.directory / service
