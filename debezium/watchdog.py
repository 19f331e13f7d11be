"""Stops a stack whose launcher died: `python -m debezium.watchdog DIRECTORY`, reading a pipe from the launcher.

Begun by `debezium.guard` before the first service of a start. The launcher holds the pipe's other end for as long as
the stack is attached to it. When the launcher ends, in whatever way (SIGKILL included), the pipe closes and the stack
is stopped in order. A detached stack releases its watchdog once everything is ready.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

from debezium import stack
from debezium.guard import RELEASE

CHECK_S = 1.0


def watch(directory: Path, launcher: int) -> None:
    """Wait for the launcher's word or its end; stop the stack unless it was released."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        readable, _, _ = select.select([0], [], [], CHECK_S)
        if readable:
            if os.read(0, 1) == RELEASE:
                return
            break
        # A child that the launcher forked would hold the pipe open beyond the launcher's end.
        if os.getppid() != launcher:
            break
    stack.stop(directory)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), int(sys.argv[2]))
