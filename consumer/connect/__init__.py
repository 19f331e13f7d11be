"""Connectors as Debezium JSON files, and what Kafka Connect runs of them: load, check, apply, compare, restart, delete.

Used by `rowcall connectors`, the demo and doctor. `config` and `advice` are pure; `client` speaks Connect's REST API;
`reconcile` brings the two together. Values of secrets leave this package only towards Connect.
"""

from consumer.connect.advice import Advice, lint
from consumer.connect.client import FAILED, ConnectClient, ConnectorStatus, Problem, TaskStatus
from consumer.connect.config import (
    ConnectorFile,
    Difference,
    Mask,
    beat_seconds,
    clashes,
    connector_names,
    covers,
    database_variables,
    differences,
    folder,
    load,
    removed_tables,
    tables_of,
)
from consumer.connect.reconcile import UNCHANGED, Applied, apply, check, diff, refuse_removals

__all__ = [
    "FAILED",
    "UNCHANGED",
    "Advice",
    "Applied",
    "ConnectClient",
    "ConnectorFile",
    "ConnectorStatus",
    "Difference",
    "Mask",
    "Problem",
    "TaskStatus",
    "apply",
    "beat_seconds",
    "check",
    "clashes",
    "connector_names",
    "covers",
    "database_variables",
    "diff",
    "differences",
    "folder",
    "lint",
    "load",
    "refuse_removals",
    "removed_tables",
    "tables_of",
]
