"""`rowcall worker` processes, started again when they end, as a service manager with `Restart=always` would."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.services import Child, rowcall
from debezium import processes

RESTART_SECONDS: Final = 5.0
"""Pause before a process is started again, as in deploy/rowcall-worker.service."""


class Workers:
    """Keeps `count` workers alive.

    `ends` counts how processes ended by exit code, negative for a signal; those we killed are among them.
    """

    def __init__(self, count: int, environment: Mapping[str, str], logs: Path) -> None:
        self._environment = dict(environment)
        self._logs = logs
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._frozen: set[int] = set()
        self.ends: Counter[int] = Counter()
        self._children = [self._begin(number) for number in range(count)]
        self._keeper = threading.Thread(target=self._keep, name="workers", daemon=True)

    def start(self) -> None:
        """Start watching over them."""
        self._keeper.start()

    def kill(self) -> int:
        """SIGKILL one that is not frozen, each in turn; its process ID."""
        child = self._next()
        child.process.kill()
        return child.pid

    def freeze(self) -> int:
        """SIGSTOP one, each in turn; its process ID."""
        child = self._next()
        with self._lock:
            self._frozen.add(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        return child.pid

    def thaw(self, pid: int) -> None:
        """SIGCONT it."""
        with self._lock:
            self._frozen.discard(pid)
        os.kill(pid, signal.SIGCONT)

    def last_words(self) -> str:
        """The end of one worker's log."""
        return processes.tail(self._logs / "worker-0.log", 5)

    def close(self) -> None:
        """End them all in order."""
        self._stop.set()
        if self._keeper.is_alive():
            self._keeper.join(10)
        for child in self._children:
            child.signal(signal.SIGCONT)
            child.signal(signal.SIGTERM)
        for child in self._children:
            child.wait(40)

    def _next(self) -> Child:
        """The one that has run longest, so that faults go round."""
        with self._lock:
            child = next(one for one in self._children if one.process.poll() is None and one.pid not in self._frozen)
            self._children.remove(child)
            self._children.append(child)
            return child

    def _begin(self, number: int) -> Child:
        return Child(rowcall("worker"), self._environment, self._logs / f"worker-{number}.log")

    def _keep(self) -> None:
        while not self._stop.wait(0.1):
            with self._lock:
                ended = [child for child in self._children if child.process.poll() is not None]
            for child in ended:
                self.ends[child.process.returncode] += 1
                child.wait()
                if self._stop.wait(RESTART_SECONDS):
                    return
                again = Child(child.argv, self._environment, child.log)
                with self._lock:
                    self._children[self._children.index(child)] = again
