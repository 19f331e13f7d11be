"""What a start says while it works: one line a step, and a bar for a download.

Passed down from `debezium.cli` or a caller of `debezium.stack`. On a terminal downloads are rich progress bars;
anywhere else (a pipe, CI) they are one plain line at the beginning and one at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[int], None]


class Reporter:
    """Writes to standard error; `quiet` writes nothing."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, quiet=quiet, highlight=False)

    def line(self, text: str) -> None:
        """One finished step."""
        self._console.print(text, markup=False)

    @contextmanager
    def bar(self, title: str, total: int, in_bytes: bool = False) -> Iterator[Advance]:
        """A bar for a download; yields the function that moves it on."""
        if not self._console.is_terminal or self._quiet:
            began = time.monotonic()
            size = f"{total / 1e6:,.0f} MB" if in_bytes else f"{total} files"
            self.line(f"fetching {title} ({size})")
            yield lambda amount: None
            self.line(f"fetched {title} in {time.monotonic() - began:.1f} s")
            return
        amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(f"fetching {title}", total=total)
            yield lambda amount: progress.advance(task, amount)
