"""What people do to limits and budgets. An operator's limit wins over the one in an agent's code, and is kept when the
agent is activated anew; every change stands in the audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from consumer import db
from consumer.errors import OperatorError
from consumer.operate.act import Act, Row, audit, in_transaction, send

_SQL: Final = db.queries("operate_limits")
ALL_AGENTS: Final = "*"
_BUSY: Final = "limits are being changed"


@dataclass(frozen=True, slots=True)
class LimitsWanted:
    """Limits to set; None leaves one as it is, 0 is no limit. `rate_runs` in `rate_seconds`."""

    concurrency: int | None = None
    rate_runs: int | None = None
    rate_seconds: float | None = None
    priority: int | None = None
    storm: int | None = None


@dataclass(frozen=True, slots=True)
class BudgetWanted:
    """A budget: its scope (None is any), its period, and what it allows. Money in millionths."""

    agent: str | None
    tenant: str | None
    period: str
    tokens: int | None
    money: int | None


def list_limits(session: db.SyncSession, agent: str | None = None) -> list[Row]:
    """Each agent with the limits in force; columns of the query `limits`."""
    return _rows(session, "limits", {"agent": agent})


def default_limits(session: db.SyncSession) -> Row | None:
    """The operator's word for all agents, if there is one."""
    return next(iter(_rows(session, "default_limits", None)), None)


def set_limits(session: db.SyncSession, agent: str, wanted: LimitsWanted, act: Act) -> None:
    """Set limits of an agent, or of all agents (`*`) that say nothing themselves.

    Raises:
        OperatorError: the database knows no such agent.
    """
    values = {name: getattr(wanted, name) for name in LimitsWanted.__dataclass_fields__}

    def work() -> None:
        _check_agent(session, agent)
        _rows(session, "set_limits", {"agent": agent, "actor": act.name, **values})
        send(session, "hint")
        given = {name: value for name, value in values.items() if value is not None}
        audit(session, act, "set limits", _subject(agent), **given)

    in_transaction(session, work, busy=_BUSY)


def clear_limits(session: db.SyncSession, agent: str, act: Act) -> None:
    """Forget what operators set for an agent, so that its code counts again.

    Raises:
        OperatorError: nothing was set.
    """

    def work() -> None:
        if not _rows(session, "clear_limits", (agent,)):
            raise OperatorError(f"no limits are set for {agent}; `rowcall limits list` shows what is in force")
        send(session, "hint")
        audit(session, act, "clear limits", _subject(agent))

    in_transaction(session, work, busy=_BUSY)


def holds(session: db.SyncSession, reason: str | None = None) -> list[Row]:
    """Claims that are held now, for `budget` or `storm`; columns of the query `holds`."""
    return _rows(session, "holds", {"reason": reason})


def end_storm(session: db.SyncSession, agent: str, topic: str | None, act: Act) -> list[str]:
    """Let the runs that a storm held go at once; the topics it was held for.

    Raises:
        OperatorError: there is no such storm.
    """

    def work() -> list[str]:
        topics = [row["topic"] for row in _rows(session, "end_storm", {"agent": agent, "topic": topic})]
        if not topics:
            raise OperatorError(f"no storm of agent {agent} is held; `rowcall limits storms` lists them")
        send(session, "hint")
        audit(session, act, "end storm", _subject(agent), topics=topics)
        return topics

    return in_transaction(session, work, busy=_BUSY)


def list_budgets(session: db.SyncSession, budget_id: int | None = None) -> list[Row]:
    """Budgets with the use of their present window; columns of the query `budgets`."""
    return _rows(session, "budgets", {"id": budget_id})


def budget_windows(session: db.SyncSession, budget_id: int) -> list[Row]:
    """What the last 30 windows of a budget used."""
    return _rows(session, "windows_of", (budget_id,))


def set_budget(session: db.SyncSession, wanted: BudgetWanted, act: Act) -> int:
    """Make a budget or change its amounts; its ID. Runs that were parked for it go on if it allows them.

    Raises:
        OperatorError: the database knows no such agent, or no amount is given.
    """
    if wanted.tokens is None and wanted.money is None:
        raise OperatorError("say what the budget allows: --tokens, --money or both")

    def work() -> int:
        if wanted.agent is not None:
            _check_agent(session, wanted.agent)
        values = {name: getattr(wanted, name) for name in BudgetWanted.__dataclass_fields__}
        (row,) = _rows(session, "set_budget", {**values, "actor": act.name})
        _rows(session, "end_budget_hold", (row["id"],))
        send(session, "hint")
        audit(session, act, "set budget", f"budget {row['id']}", **values)
        return int(row["id"])

    return in_transaction(session, work, busy=_BUSY)


def remove_budget(session: db.SyncSession, budget_id: int, act: Act) -> None:
    """End a budget; runs that were parked for it go on.

    Raises:
        OperatorError: there is none of this ID.
    """

    def work() -> None:
        found = _rows(session, "remove_budget", (budget_id,))
        if not found:
            raise OperatorError(f"there is no budget {budget_id}; `rowcall budgets list` lists them")
        send(session, "hint")
        audit(session, act, "remove budget", f"budget {budget_id}", **found[0])

    in_transaction(session, work, busy=_BUSY)


def _check_agent(session: db.SyncSession, agent: str) -> None:
    if agent == ALL_AGENTS or _rows(session, "knows_agent", (agent,)):
        return
    known = ", ".join(row["agent"] for row in list_limits(session)) or "none"
    raise OperatorError(f"the database knows no agent {agent!r}; it knows: {known}")


def _subject(agent: str) -> str:
    return "all agents" if agent == ALL_AGENTS else f"agent {agent}"


def _rows(session: db.SyncSession, query: str, parameters: Mapping[str, Any] | tuple[Any, ...] | None) -> list[Row]:
    with db.translated():
        cursor = session.execute(_SQL[query], parameters)
        return list(cursor) if cursor.description else []
