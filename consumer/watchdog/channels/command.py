"""The channel `command`: an operator's program, run once for each alert.

It gets the alert as JSON on stdin and as ROWCALL_ALERT_* in its environment, which holds nothing else of ours: no
secret of the watchdog reaches it. No shell is between. Exit 0 is delivered; 75 (EX_TEMPFAIL), a signal and the end of
its time are an outage; any other code needs an operator. When its time is over, its whole process group is killed.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final

import orjson

from consumer.errors import ConfigurationError, Outage
from consumer.telemetry import redact
from consumer.watchdog.alert import Alert
from consumer.watchdog.channels.wording import document, lines

_DEPENDENCY: Final = "command"
_TRY_LATER: Final = os.EX_TEMPFAIL
_KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SAID_CHARACTERS: Final = 500
_SAID_BYTES: Final = 4 * _SAID_CHARACTERS
_LOOK_MS: Final = 50
_NO_PROGRAM: Final = errno.ENOEXEC


class Command:
    """Runs one command."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        seconds: float = 30.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`arguments` with the program first; `environment` is added to the minimal one, `seconds` the time limit."""
        self.name = name
        self._arguments = list(arguments)
        self._seconds = seconds
        self._environment = {"PATH": _PATH} | {key: os.environ[key] for key in _KEPT if key in os.environ}
        self._environment |= environment or {}

    def send(self, alert: Alert) -> None:
        """Run it to its end; see `Channel.send`."""
        told = document(alert)
        variables = {f"ROWCALL_ALERT_{key.upper()}": "" if value is None else str(value) for key, value in told.items()}
        # A file and no pipe: a program that does not read its input can neither block us nor break off.
        with tempfile.TemporaryFile() as given:
            given.write(orjson.dumps(told))
            given.seek(0)
            process = self._start(given, variables)
        assert process.stderr is not None
        with process.stderr:
            code, said = _run(process, time.monotonic() + self._seconds)
        if code is None:
            raise Outage(
                f"channel {self.name}: {self._arguments[0]} ran longer than {self._seconds:g} s and was killed with "
                "all it had started; make it quicker, or raise timeout_seconds",
                dependency=_DEPENDENCY,
                code="timeout",
            )
        if code:
            raise self._failed(code, said)

    def _start(self, given: IO[bytes], variables: dict[str, str]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self._arguments,
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self._environment | variables,
                cwd="/",
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            said = f"{self._arguments[0]} cannot be run: {error.strerror}; correct command"
            raise ConfigurationError(f"channel {self.name}: {said}") from error
        except OSError as error:
            if error.errno == _NO_PROGRAM:
                said = f"{self._arguments[0]} is no program: its first line must name an interpreter, as #!/bin/sh"
                raise ConfigurationError(f"channel {self.name}: {said}") from error
            said = f"{self._arguments[0]} cannot be started now: {error.strerror}"
            raise Outage(f"channel {self.name}: {said}", dependency=_DEPENDENCY) from error

    def _failed(self, code: int, said: str) -> ConfigurationError | Outage:
        words = f"; it said: {said}" if said else ""
        if code < 0:
            text = f"channel {self.name}: {self._arguments[0]} was ended by signal {-code}{words}"
            return Outage(text, dependency=_DEPENDENCY, code=f"signal_{-code}")
        if code == _TRY_LATER:
            text = f"channel {self.name}: {self._arguments[0]} asks to be tried later (exit {code}){words}"
            return Outage(text, dependency=_DEPENDENCY, code="exit_75")
        return ConfigurationError(
            f"channel {self.name}: {self._arguments[0]} ended with exit code {code}{words}. Mend it; where trying "
            f"again can help it should exit {_TRY_LATER}"
        )


def _run(process: subprocess.Popen[bytes], until: float) -> tuple[int | None, str]:
    """Exit code, None where time ran out first; and the end of what it said on stderr."""
    assert process.stderr is not None
    descriptor, kept = process.stderr.fileno(), b""
    look = select.poll()
    look.register(descriptor, select.POLLIN)
    while (code := process.poll()) is None and time.monotonic() < until:
        if look.poll(_LOOK_MS):
            read = os.read(descriptor, 65536)
            kept = (kept + read)[-_SAID_BYTES:]
            if not read:
                # It has closed stderr and goes on.
                look.unregister(descriptor)
    if code is None:
        try:
            # The leader is not reaped, so the group's number cannot be another's.
            os.killpg(process.pid, signal.SIGKILL)
        except PermissionError:
            # It runs as another user, who alone can end it; no alert waits for that.
            return None, ""
        process.wait()
        return None, ""
    while time.monotonic() < until and look.poll(0) and (read := os.read(descriptor, 65536)):
        kept = (kept + read)[-_SAID_BYTES:]
    return code, redact(lines(kept.decode("utf-8", "replace").strip())[-_SAID_CHARACTERS:])
