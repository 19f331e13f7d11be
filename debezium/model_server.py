"""The process of the tiny model: `python -m debezium.model_server WEIGHTS PORT NAME [HOST]`.

Started by `debezium.model`. Serves until it is told to end; writes nothing.
"""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

from debezium.ports import HOST

# A slot is one request at a time; each gets its share of the context, the most this model was trained for.
SLOTS = 4
CONTEXT_PER_SLOT = 2048


def serve(weights: Path, port: int, name: str, host: str = HOST) -> None:
    """Load the weights and answer requests until SIGTERM or SIGINT."""
    stops = {signal.SIGTERM, signal.SIGINT}
    # Blocked before the server makes its threads, so the signal comes to this thread and not to one of them.
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    # The package ships no types; imported by name it is what it is to the type checker: unknown.
    xllamacpp = importlib.import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(weights)
    parameters.model_alias = {name}
    parameters.hostnames = [host]
    parameters.port = port
    parameters.n_parallel = SLOTS
    parameters.n_ctx = SLOTS * CONTEXT_PER_SLOT
    parameters.kv_unified = False
    server = xllamacpp.Server(parameters)
    print(f"serving {name} at {server.listening_address}", flush=True)
    signal.sigwait(stops)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5])
