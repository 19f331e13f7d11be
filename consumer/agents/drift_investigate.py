"""Looks into each drift warning and writes a diagnostic report, which a person reads before it counts.

Woken by drift.warning. Gathers evidence in steps (earlier episodes, what ran since the drift began, how the column
stands now), asks the model for a report, and holds it in a review: the tier is MEDIUM whatever the answer. Accepted
reports stand in public.drift_reports.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from consumer.agents.door import Agent, Context, Reader, StepKind, Tier, Transaction
from consumer.records import Event

TOPIC: Final = "drift.warning"
# Runs shown to the model: those that may have changed the data, the latest first.
RUN_LIMIT: Final = 20

_Line = Annotated[str, StringConstraints(min_length=3, max_length=160)]
_Text = Annotated[str, StringConstraints(min_length=10, max_length=1000)]

PROMPT: Final = """\
A monitor of a data stream warns of a moderate drift. Write a diagnostic report for the people who own the data.
what_changed: how the values differ from the baseline, with the numbers given. likely_causes: up to four, likeliest \
first; name a run or a deployment only if it stands in the evidence. checks: up to five things to look at next. \
confidence: high only when the evidence shows the cause.
Example: {"title": "Amounts have doubled since noon", "what_changed": "The mean of amount went from 100 to 210 within \
40 rows.", "likely_causes": ["A new price list"], "checks": ["Compare prices of today and yesterday"], \
"confidence": "low"}"""


class DiagnosticReport(BaseModel):
    """The report."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: _Line
    what_changed: _Text
    likely_causes: list[_Line] = Field(min_length=1, max_length=4)
    checks: list[_Line] = Field(min_length=1, max_length=5)
    confidence: Literal["low", "medium", "high"]


agent = Agent(
    name="drift-investigate",
    version=1,
    topics=[TOPIC],
    answer=DiagnosticReport,
    description="Writes a diagnostic report on each drift warning and queues it for review.",
)


@agent.when
def drift_began(event: Event) -> bool:
    """A recovery needs no report."""
    return bool(event.data["turn"] == "raised")


@agent.run
async def investigate(ctx: Context, event: Event) -> DiagnosticReport:
    """Evidence in steps of their own, then the model."""
    drift = event.data
    earlier = await ctx.step(
        "earlier_reports", earlier_reports, ctx.sql, drift["monitor"], drift["segment"], kind=StepKind.FETCH_INPUT
    )
    runs = await ctx.step("recent_runs", recent_runs, ctx.sql, drift["began_at"], kind=StepKind.FETCH_INPUT)
    shown = {"drift": brief(drift), "earlier_reports": earlier, "runs_since_it_began": runs}
    report: DiagnosticReport = await ctx.ask("report", prompt=PROMPT, input=shown)
    return report


async def earlier_reports(sql: Reader, monitor: str, segment: str | None) -> list[dict[str, Any]]:
    """Accepted reports on the same stream, the latest first."""
    return await sql.rows(
        "SELECT title, likely_causes, written_at FROM public.drift_reports WHERE monitor = %s "
        "AND segment IS NOT DISTINCT FROM %s::text ORDER BY written_at DESC LIMIT 3",
        monitor,
        segment,
    )


async def recent_runs(sql: Reader, began_at: dt.datetime) -> list[dict[str, Any]]:
    """What agents did shortly before the drift began and since: agent, version, outcome, how often."""
    return await sql.rows(
        "SELECT job_type AS agent, agent_version, status, count(*) AS runs, max(finished_at) AS last "
        "FROM rowcall.agent_jobs WHERE finished_at > %s::timestamptz - interval '1 hour' "
        "GROUP BY 1, 2, 3 ORDER BY last DESC LIMIT %s",
        began_at,
        RUN_LIMIT,
    )


def brief(drift: Mapping[str, Any]) -> dict[str, Any]:
    """The event as far as a report needs it."""
    names = ("monitor", "detector", "source", "column", "segment", "baseline", "observed", "samples", "began_at",
             "message", "evidence")  # fmt: skip
    return {name: drift[name] for name in names}


@agent.tier
def tier(event: Event, answer: DiagnosticReport) -> Tier:
    """A report is read by a person first."""
    return Tier.MEDIUM


@agent.write
async def write(tx: Transaction, event: Event, answer: DiagnosticReport) -> None:
    """One report an episode."""
    drift = event.data
    await tx.execute(
        "INSERT INTO public.drift_reports (episode, monitor, segment, title, what_changed, likely_causes, checks, "
        "confidence) VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (episode) DO UPDATE SET "
        "title = excluded.title, what_changed = excluded.what_changed, likely_causes = excluded.likely_causes, "
        "checks = excluded.checks, confidence = excluded.confidence, written_at = now()",
        drift["episode"],
        drift["monitor"],
        drift["segment"],
        answer.title,
        answer.what_changed,
        answer.likely_causes,
        answer.checks,
        answer.confidence,
    )
