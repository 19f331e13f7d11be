"""The live table of the demo: one line an order; plain lines where there is no terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

SHORT_DIGITS = 8
_COLUMNS = ("order", "event", "run", "state", "model answer", "calls", "ms from commit")


class Watch:
    """Shows rows of the query `runs`; prints each run's end or wait for a person where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._shown: dict[int, str] = {}

    def __enter__(self) -> Watch:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line of narration above the table."""
        self._console.print(f"[bold]›[/bold] {text}", soft_wrap=True, highlight=False)

    def show(self, rows: list[dict[str, Any]]) -> None:
        """Show the runs as they stand."""
        if self._live is not None:
            table = Table(*_COLUMNS, title="orders → order-triage")
            for row in rows:
                table.add_row(*_cells(row))
            self._live.update(table, refresh=True)
            return
        for row in rows:
            state = f"{row['status']}/{row['attempts']}"
            if row["status"] in ("SUCCEEDED", "FAILED", "WAITING_REVIEW") and self._shown.get(row["order"]) != state:
                self._shown[row["order"]] = state
                self._console.print(_line(row), soft_wrap=True, highlight=False, markup=False)


def _cells(row: dict[str, Any]) -> list[str]:
    attempts = f" (attempt {row['attempts']})" if (row["attempts"] or 0) > 1 else ""
    return [
        str(row["order"]),
        _short(row["event_id"]),
        str(row["job"] or ""),
        (row["status"] or "") + attempts,
        row["title"] or (row["last_error"] or "")[:60],
        str(row["calls"] or ""),
        "" if row["milliseconds"] is None else str(row["milliseconds"]),
    ]


def _line(row: dict[str, Any]) -> str:
    order, event, run, state, answer, calls, milliseconds = _cells(row)
    told = [f"order {order}", f"event {event}", f"run {run}", state, f"answer: {answer}" if answer else ""]
    told += [f"model calls: {calls}" if calls else "", f"{milliseconds} ms from commit" if milliseconds else ""]
    return "  " + "  ".join(filter(None, told))


def _short(event_id: str | None) -> str:
    """The first digits behind the mark of the kind (`rc1:`): enough to tell the demo's events apart."""
    return "on its way" if event_id is None else event_id.rpartition(":")[2][:SHORT_DIGITS]
