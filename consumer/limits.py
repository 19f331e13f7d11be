"""Stage: limits. Before it, a run wants to ask the model; after it, the call leaves, or waits, or the run is parked.

Reserves tokens and money before each call and settles them after; takes the shared permits of the endpoint; keeps the
holds of spent budgets and storms. Slots, priorities and agents' rates are given in the claim itself. Promises: no wait
holds a transaction; settled use never exceeds a budget by more than calls used above what was reserved for them; what a
dead run had reserved comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Final, Literal

from consumer import db
from consumer.records.money import cost
from consumer.records.rates import Rate, read_rate
from consumer.settings import Settings

_SQL: Final = db.queries("limits")
# Bound of one keeping: lanes let go, reservations freed, runs taken out of the park.
KEEP_LIMIT: Final = 2000
# Bytes of a request that make at most one token. Four is usual for English; with three, few calls use more than is
# reserved for them.
_BYTES_A_TOKEN: Final = 3

Verdict = Literal["go", "wait", "spent", "too_large", "run_cap", "root_cap", "lost"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model endpoint as limits see it: its shared rates, and its prices a million tokens."""

    name: str
    calls: Rate | None
    tokens: Rate | None
    price_input: Decimal
    price_output: Decimal

    @classmethod
    def of(cls, settings: Settings) -> Endpoint:
        """The endpoint of the settings; rates are shared by all workers whose endpoint and model are the same."""
        return cls(
            f"{settings.model_base_url} {settings.model_name}",
            read_rate(settings.model_rate) if settings.model_rate else None,
            read_rate(settings.model_token_rate) if settings.model_token_rate else None,
            settings.model_price_input,
            settings.model_price_output,
        )

    def money(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Millionths that a call with these tokens costs, rounded up."""
        exact = cost(prompt_tokens, self.price_input) + cost(completion_tokens, self.price_output)
        return int(exact.to_integral_value(ROUND_CEILING))


@dataclass(frozen=True, slots=True)
class CallWanted:
    """A call that a run under a lease wants to make: the most tokens and millionths that it may use."""

    job_id: int
    epoch: int
    tokens: int
    money: int


@dataclass(frozen=True, slots=True)
class Admission:
    """What becomes of it; see `sql/functions/admit_calls.sql`. `seconds` until it is worth asking again."""

    verdict: Verdict
    seconds: float
    reservation: int | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class CallUsed:
    """What a reserved call has used; None where nobody knows, and what was reserved counts."""

    reservation: int
    tokens: int | None
    money: int | None


@dataclass(frozen=True, slots=True)
class Hold:
    """Claims that were held or let go; `event` is began or ended, None in agent and tenant is any."""

    event: str
    reason: str
    agent: str | None
    tenant: str | None
    topic: str | None
    detail: str


def wanted(job_id: int, epoch: int, endpoint: Endpoint, *, input_bytes: int, max_tokens: int) -> CallWanted:
    """The reservation of a request of this size."""
    prompt = -(-input_bytes // _BYTES_A_TOKEN)
    return CallWanted(job_id, epoch, prompt + max_tokens, endpoint.money(prompt, max_tokens))


async def admit_calls(session: db.Session, calls: Sequence[CallWanted], endpoint: Endpoint) -> list[Admission]:
    """What may leave now, in one statement for all of them, in their order."""
    with db.translated():
        cursor = await session.execute(
            _SQL["admit_calls"],
            {
                "ids": [call.job_id for call in calls],
                "epochs": [call.epoch for call in calls],
                "tokens": [call.tokens for call in calls],
                "money": [call.money for call in calls],
                "endpoint": endpoint.name,
                "calls": None if endpoint.calls is None else endpoint.calls.count,
                "calls_seconds": None if endpoint.calls is None else endpoint.calls.seconds,
                "rate": None if endpoint.tokens is None else endpoint.tokens.count,
                "rate_seconds": None if endpoint.tokens is None else endpoint.tokens.seconds,
            },
        )
        rows = await cursor.fetchall()
    given: dict[tuple[int, int], list[Admission]] = {}
    for row in rows:
        admission = Admission(row["verdict"], row["seconds"], row["reservation"], row["detail"])
        given.setdefault((row["job_id"], row["epoch"]), []).append(admission)
    gone = Admission("lost", 0.0, None, None)
    # One run may have several calls in a group; a run that is no more has no row.
    return [found.pop(0) if (found := given.get((call.job_id, call.epoch))) else gone for call in calls]


async def settle_calls(session: db.Session, calls: Sequence[CallUsed]) -> list[None]:
    """Put what calls used in the place of what was reserved for them."""
    parameters = {
        "ids": [call.reservation for call in calls],
        "tokens": [call.tokens for call in calls],
        "money": [call.money for call in calls],
    }
    with db.translated():
        await session.execute(_SQL["settle_calls"], parameters)
    return [None] * len(calls)


async def pause_endpoint(session: db.Session, endpoint: Endpoint, seconds: float) -> None:
    """Let no worker call the endpoint for this long."""
    with db.translated():
        await session.execute(_SQL["pause_endpoint"], {"endpoint": endpoint.name, "seconds": seconds})


async def keep(session: db.Session) -> list[Hold]:
    """Do what is due; the holds that began or ended since, each told to one caller only."""
    with db.translated():
        rows = await (await session.execute(_SQL["keep_limits"], (KEEP_LIMIT,))).fetchall()
    return [Hold(**row) for row in rows]


async def next_permit(session: db.Session, agents: Sequence[str]) -> float | None:
    """Seconds until an agent whose rate holds its waiting work back may start a run; None where none is."""
    with db.translated():
        row = await (await session.execute(_SQL["next_permit"], (list(agents),))).fetchone()
    return None if row is None or row["seconds"] is None else float(row["seconds"])
