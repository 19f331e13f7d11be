"""Starting, recognising and ending the processes of a stack.

Used by `debezium.launch` (start), `debezium.stack` (stop, kill) and `debezium.watchdog` (sweep). A process is known
by its id and its start time, so an id the system has given to another program is never signalled. Every process a
stack starts carries the stack's directory in its environment, by which strays are found even if the state file was
never written.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from debezium.accounts import Account

MARK = "ROWCALL_STACK"
# Clock ticks and rounding: the two readings of one process's start time differ by less than this.
START_TOLERANCE_S = 0.05


@dataclass(frozen=True)
class Launch:
    """How a service's process is started."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    account: Account | None = None


@dataclass(frozen=True)
class Identity:
    """One process, distinguished from a later one with the same id."""

    pid: int
    started: float

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) > START_TOLERANCE_S:
                return False
            return process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def send(self, number: int) -> bool:
        """Signal the process; False when it is gone."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; whether it ended in time."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        _reap(self)
        return True


def start(launch: Launch, stack: Path, log: Path) -> Identity:
    """Start a process in a session of its own, its output appended to `log`.

    A session of its own keeps a terminal's Ctrl-C from the service: it is stopped in order, by the launcher.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**_inherited(), **launch.environment, MARK: str(stack)}
    user, group, extra_groups = None, None, None
    if launch.account is not None:
        user, group, extra_groups = launch.account.uid, launch.account.gid, [launch.account.gid]
    with log.open("ab") as output:
        process = subprocess.Popen(
            launch.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=launch.directory,
            env=environment,
            start_new_session=True,
            user=user,
            group=group,
            extra_groups=extra_groups,
        )
    started = psutil.Process(process.pid).create_time()
    # The process outlives this object on purpose; `Identity.wait` collects its exit status.
    process.returncode = 0
    return Identity(process.pid, started)


def end(identity: Identity, steps: Sequence[tuple[int, float]]) -> None:
    """Send each signal in turn and wait its seconds; the last resort is SIGKILL."""
    for number, seconds in [*steps, (signal.SIGKILL, 10.0)]:
        if not identity.send(number):
            _reap(identity)
            return
        if identity.wait(seconds):
            return


def marked(stack: Path) -> list[Identity]:
    """Every process that carries the mark of the stack, this one excepted."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == str(stack):
                found.append(Identity(process.pid, process.create_time()))
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            # It ended meanwhile, or belongs to another user and so is none of ours.
            continue
    return found


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log; empty when there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 64_000))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


def import_path() -> dict[str, str]:
    """The variable that lets a Python process of ours import this package from any folder, installed or not."""
    given = os.environ.get("PYTHONPATH")
    ours = str(Path(__file__).parents[1])
    return {"PYTHONPATH": f"{ours}{os.pathsep}{given}" if given else ours}


def _inherited() -> dict[str, str]:
    # A service gets what a program needs to run, not the launcher's secrets or its database variables.
    names = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH")
    return {name: os.environ[name] for name in names if name in os.environ}


def _reap(identity: Identity) -> None:
    """Collect the exit status of a child of ours, so it is no zombie; leaves other processes alone."""
    try:
        process = psutil.Process(identity.pid)
        if process.ppid() == os.getpid() and abs(process.create_time() - identity.started) <= START_TOLERANCE_S:
            os.waitpid(identity.pid, os.WNOHANG)
    except (psutil.NoSuchProcess, ChildProcessError):
        return  # already collected
