"""A database with one limited agent, and what tests of limits do to it."""

from __future__ import annotations

import json
from typing import Any

import psycopg
from psycopg.rows import DictRow, dict_row

from consumer import db
from tests.integration.acting import claiming

CLAIM, MOVES, LIMITS = db.queries("claim"), db.queries("moves"), db.queries("limits")


class Fleet:
    """One connection of a worker or an operator."""

    def __init__(self, url: str, *, autocommit: bool = True) -> None:
        self.session: psycopg.Connection[DictRow] = psycopg.connect(url, autocommit=autocommit, row_factory=dict_row)
        self.session.execute("SET lock_timeout = '5s'")
        if not autocommit:
            self.session.commit()

    def close(self) -> None:
        """Disconnect, as a worker that dies does."""
        self.session.close()

    def rows(self, query: str | bytes, *parameters: Any) -> list[DictRow]:
        """Rows of a statement."""
        given = parameters[0] if len(parameters) == 1 and isinstance(parameters[0], dict) else parameters or None
        cursor = self.session.execute(query if isinstance(query, bytes) else query.encode(), given)
        return cursor.fetchall() if cursor.description else []

    def one(self, query: str, *parameters: Any) -> Any:
        """The only value of a query."""
        (row,) = self.rows(query, *parameters)
        (value,) = row.values()
        return value

    def agent(self, name: str = "a", **options: Any) -> None:
        """An active agent whose code has these options."""
        self.rows(
            "INSERT INTO rowcall.agents (name, version, options) VALUES (%s, 1, %s::jsonb) "
            "ON CONFLICT (name) DO UPDATE SET options = excluded.options",
            name, json.dumps(options),
        )  # fmt: skip

    def add(self, count: int = 1, agent: str = "a", **columns: Any) -> list[int]:
        """Queue jobs, each in a lane of its own unless `key_hash` says otherwise; their IDs."""
        names = ["job_type", *columns]
        query = (
            f"INSERT INTO rowcall.agent_jobs ({', '.join(names)}) SELECT {', '.join(['%s'] * len(names))} "
            "FROM generate_series(1, %s) RETURNING id"
        )
        return [row["id"] for row in self.rows(query, agent, *columns.values(), count)]

    def promote(self, limit: int = 2000) -> int:
        """Place jobs into lanes."""
        return int(self.rows(CLAIM["promote"], limit)[0]["placed"])

    def claim(self, limit: int = 100, *agents: str, lease: float = 30.0) -> list[DictRow]:
        """Claim runs."""
        names = list(agents or ("a",))
        versions, deadlines = [1] * len(names), [None] * len(names)
        given = claiming(limit, lease=lease, agents=names, versions=versions, deadlines=deadlines)
        return self.rows(CLAIM["claim"], given)

    def move(self, runs: list[DictRow], status: str = "SUCCEEDED", *, reason: str | None = None) -> set[int]:
        """Settle claimed runs."""
        count = len(runs)
        failed = None if status == "SUCCEEDED" else "test"
        moved = self.rows(
            MOVES["settle"],
            {
                "ids": [run["id"] for run in runs], "epochs": [run["lease_epoch"] for run in runs],
                "statuses": [status] * count, "results": [None] * count, "codes": [failed] * count,
                "errors": [failed] * count, "reasons": [reason] * count, "delays": [None] * count,
                "attempts": [0] * count,
            },
        )  # fmt: skip
        return {row["id"] for row in moved}

    def reclaim(self) -> int:
        """Take runs from dead owners."""
        return int(self.rows(CLAIM["reclaim"], 500)[0]["reclaimed"])

    def admit(self, runs: list[DictRow], tokens: int = 100, money: int = 0, **rates: Any) -> list[DictRow]:
        """Ask for one call of each run."""
        values = {"endpoint": "e", "calls": None, "calls_seconds": None, "rate": None, "rate_seconds": None, **rates}
        return self.rows(
            LIMITS["admit_calls"],
            {
                "ids": [run["id"] for run in runs], "epochs": [run["lease_epoch"] for run in runs],
                "tokens": [tokens] * len(runs), "money": [money] * len(runs), **values,
            },
        )  # fmt: skip

    def settle_calls(self, reservations: list[int], tokens: int | None, money: int | None = 0) -> None:
        """Say what reserved calls used."""
        count = len(reservations)
        self.rows(LIMITS["settle_calls"], {"ids": reservations, "tokens": [tokens] * count, "money": [money] * count})

    def keep(self) -> list[DictRow]:
        """Do what is due of the limits."""
        return self.rows(LIMITS["keep_limits"], 2000)

    def budget(self, tokens: int | None = None, period: str = "day", **scope: Any) -> int:
        """Make a budget or change it; its ID."""
        operate = db.queries("operate_limits")
        values = {"agent": None, "tenant": None, "money": None, "actor": "test", **scope}
        budget_id = int(self.rows(operate["set_budget"], {**values, "period": period, "tokens": tokens})[0]["id"])
        self.rows(operate["end_budget_hold"], budget_id)
        return budget_id
