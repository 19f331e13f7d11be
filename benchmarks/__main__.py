"""`python -m benchmarks [name…] [--quick]`: runs benchmarks and writes build/bench.json.

Exit codes: 0 when everything asked for was measured, 1 when a benchmark could not be measured (named, with its
reason; the others are written), 2 for a name that is none. A target that is missed is printed and is no failure here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Final

from benchmarks import machine
from benchmarks.figures import TARGETS, Measured, NotMeasured, document, missed
from benchmarks.services import Services

# In this order: what needs Postgres alone comes first, while nothing else runs.
BENCHMARKS: Final = (
    "intake",
    "executor",
    "restate",
    "noop",
    "single",
    "backlog",
    "schedules",
    "faststream",
    "latency",
    "idle",
    "memory",
    "webhooks",
    "drift",
    "overdue",
)
OUTPUT: Final = Path(__file__).parents[1] / "build" / "bench.json"


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="short rounds, to try the harness; no figures to keep")
    options = parser.parse_args(arguments)
    names = options.names or list(BENCHMARKS)
    if unknown := sorted(set(names) - set(BENCHMARKS)):
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    context = {"quick": options.quick, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **machine.describe()}
    began = time.monotonic()
    services = Services(quick=options.quick)
    try:
        measured, failures, seconds = _run(names, services)
    finally:
        services.close()
    context |= {
        "postgres": services.durability,
        "seconds": {**seconds, "total": round(time.monotonic() - began, 1)},
        "load_after": [round(value, 2) for value in os.getloadavg()],
        "failures": failures,
    }
    result = document(measured, context)
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(result, indent=2) + "\n")
    _report(result, failures)
    return 1 if failures else 0


def _run(names: list[str], services: Services) -> tuple[dict[str, Measured], dict[str, str], dict[str, float]]:
    measured: dict[str, Measured] = {}
    failures: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for name in (name for name in BENCHMARKS if name in names):
        print(f"{name} …", flush=True)
        began = time.monotonic()
        try:
            measured[name] = importlib.import_module(f"benchmarks.{name}").measure(services)
        except NotMeasured as error:
            failures[name] = str(error)
        except Exception as error:  # noqa: BLE001 - one benchmark that breaks must not cost the others' figures
            traceback.print_exc()
            failures[name] = f"{type(error).__name__}: {error}"
        seconds[name] = round(time.monotonic() - began, 1)
        figures = measured[name].figures if name in measured else {}
        shown = ", ".join(f"{key} {value:.4g}" for key, value in figures.items()) or f"not measured: {failures[name]}"
        print(f"{name}: {shown} ({seconds[name]} s)", flush=True)
    return measured, failures, seconds


def _report(result: dict[str, object], failures: dict[str, str]) -> None:
    figures = {key: float(value) for key, value in result.items() if isinstance(value, int | float)}
    print(f"\n{'figure':34}{'value':>12}  target")
    for key, value in figures.items():
        print(f"{key:34}{value:>12g}  {TARGETS.get(key, '')}")
    for line in missed(figures):
        print(f"missed: {line}")
    for name, reason in failures.items():
        print(f"NOT MEASURED {name}: {reason}", file=sys.stderr)
    print(f"written to {OUTPUT.relative_to(OUTPUT.parents[1])}")


if __name__ == "__main__":
    sys.exit(main())
