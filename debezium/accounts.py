"""The operating system user Postgres runs as when root starts the stack.

Postgres refuses to run as root, so root's stacks share one user without a password or a shell, made at the first
start. It owns database files only; each stack has its own folder, so nothing of one stack is shared with another.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass

from debezium.errors import StackError

POSTGRES_USER = "pgserver"


@dataclass(frozen=True)
class Account:
    """A user other than the one we are."""

    name: str
    uid: int
    gid: int


def postgres_account() -> Account | None:
    """The user Postgres must run as, made if missing; None when we are not root and Postgres runs as ourselves.

    Raises:
        StackError: the user does not exist and cannot be made.
    """
    if os.geteuid() != 0:
        return None
    found = _look_up()
    if found is None:
        problem = _create()
        # Two launchers may get here at once: the one that came second fails to create what now exists.
        found = _look_up()
        if found is None:
            raise StackError(f"Postgres does not run as root and the user {POSTGRES_USER!r} cannot be made: {problem}")
    return found


def _look_up() -> Account | None:
    try:
        entry = pwd.getpwnam(POSTGRES_USER)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _create() -> str:
    useradd = shutil.which("useradd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if useradd is None:
        return "there is no useradd; run the stack as a plain user"
    command = [useradd, "--system", "--user-group", "--no-create-home", "--shell", "/bin/false", POSTGRES_USER]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()
