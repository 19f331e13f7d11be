"""`rowcall budgets`: what agents and tenants may spend on the model, and what they have spent."""

from __future__ import annotations

from typing import Any

import click

from consumer.cli.opening import by_option, reason_option, session
from consumer.cli.output import as_json, print_fields, print_json, print_table
from consumer.errors import OperatorError
from consumer.operate import Act
from consumer.operate import limits as operated
from consumer.records.money import money_text, read_money

_MONEY = ("money", "money_used", "money_reserved")
_COLUMNS = (
    "id", "agent", "tenant", "period", "tokens", "tokens_used", "money", "money_used", "spent", "parked", "window_ends",
)  # fmt: skip


@click.group()
def budgets() -> None:
    """Tokens and money that model calls may use in a window.

    Example: rowcall budgets list
    """


@budgets.command("list")
@as_json
def list_(json_output: bool) -> None:
    """Every budget and what its present window has used; an empty agent or tenant is any.

    Example: rowcall budgets list
    """
    with session() as opened:
        rows = [_shown(row) for row in operated.list_budgets(opened)]
    if json_output:
        print_json(rows)
        return
    print_table(rows, _COLUMNS, empty="no budgets; `rowcall budgets set --window day --tokens 1000000` makes one")


@budgets.command()
@click.argument("budget_id", type=int, metavar="ID")
@as_json
def show(budget_id: int, json_output: bool) -> None:
    """One budget, and what its last windows have used.

    Example: rowcall budgets show 1
    """
    with session() as opened:
        found = operated.list_budgets(opened, budget_id)
        windows = [_shown(row) for row in operated.budget_windows(opened, budget_id)]
    if not found:
        raise OperatorError(f"there is no budget {budget_id}; `rowcall budgets list` lists them")
    if json_output:
        print_json({**_shown(found[0]), "windows": windows})
        return
    print_fields(_shown(found[0]), title=f"budget {budget_id}")
    print_table(windows, ("window_began", "tokens", "money"), empty="nothing is used yet")


@budgets.command("set")
@click.option("--agent", help="Only this agent.  [default: all together]")
@click.option("--tenant", help="Only this tenant.  [default: all together]")
@click.option(
    "--window", required=True, type=click.Choice(["hour", "day", "week", "month", "total"]),
    help="When it begins anew, in UTC; a total never does.",
)  # fmt: skip
@click.option("--tokens", type=click.IntRange(0, 10**15), help="Prompt and completion tokens together.")
@click.option("--money", help="In the currency of MODEL_PRICE_INPUT, such as 5.00.")
@by_option
@reason_option
def set_(
    agent: str | None,
    tenant: str | None,
    window: str,
    tokens: int | None,
    money: str | None,
    by: str,
    reason: str | None,
) -> None:
    """Make a budget, or change the amounts of the one with this agent, tenant and window.

    Example: rowcall budgets set --agent order-triage --window day --tokens 1000000 --money 5.00
    """
    try:
        amount = None if money is None else read_money(money)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--money") from error
    with session() as opened:
        wanted = operated.BudgetWanted(agent, tenant, window, tokens, amount)
        budget_id = operated.set_budget(opened, wanted, Act(by, reason))
    click.echo(f"budget {budget_id} set")


@budgets.command()
@click.argument("budget_id", type=int, metavar="ID")
@by_option
@reason_option
def remove(budget_id: int, by: str, reason: str | None) -> None:
    """End a budget; runs that were parked for it go on.

    Example: rowcall budgets remove 1
    """
    with session() as opened:
        operated.remove_budget(opened, budget_id, Act(by, reason))
    click.echo(f"budget {budget_id} removed")


def _shown(row: Any) -> dict[str, Any]:
    return {name: money_text(value) if name in _MONEY and value is not None else value for name, value in row.items()}
