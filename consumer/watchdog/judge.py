"""From a row of the database to an observation: when each thing is due, and from when on which fault holds.

Before it, a query of `observe`; after it, `decide`. Pure. Promises: every moment comes from times that the database
wrote; a beat that lies in the future is refused; what waits for a person, and what ended as it should, is no fault.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from consumer.watchdog.observation import Expected, Fault, Observation, Rules

Row = Mapping[str, Any]


def process(row: Row, rules: Rules, now: dt.datetime) -> Observation:
    """One instance of a process by its beats."""
    subject, at = f"process:{row['subject']}@{row['instance']}", row["at"]
    name = f"{row['subject']} ({row['instance']})"
    if row["state"] == "STOPPED":
        return Observation(subject, at, note="it stopped as it should")
    if at > now + _seconds(rules.future):
        refused = f"the last beat of {name} lies in the future, at {_time(at)}, and is refused; compare the clocks"
        return Observation(subject, None, faults=(Fault("overdue", now, refused),))
    interval = _seconds(row["interval"] or 0)
    due = at + interval
    if row["replaced"]:
        return Observation(subject, at, due, note="another process of its role has taken its place")
    late, overdue = due + _seconds(rules.tolerance), at + interval * rules.misses + _seconds(rules.tolerance)
    silent = f"no beat of {name} since {_time(at)}; see whether the process lives, or `rowcall watchdog forget` it"
    hung = (
        f"{name} beats, but its loop has not turned since {_time(row['progress_at'])}: it hangs, or waits for "
        "something that is away; see its log and /readyz"
    )
    faults = [Fault("late", late, silent), Fault("overdue", overdue, silent)]
    if at > row["progress_at"]:
        # A beat without progress has come; before one, a long interval between beats would look the same.
        faults.append(Fault("stuck", row["progress_at"] + _seconds(rules.stuck), hung, row["run_id"]))
    return Observation(subject, at, due, tuple(faults), note=f"it beats again, at {_time(at)}")


def schedule(row: Row, rules: Rules) -> Observation:
    """A schedule by the first slot that nobody has dealt with, and by what became of the last one."""
    subject, last = f"schedule:{row['name']}", row["decided_at"]
    if row["state"] == "PAUSED":
        return Observation(subject, last, paused=True, note=row["state_reason"] or "paused by a person")
    faults = []
    if due := row["next_slot"]:
        what = "has never fired" if row["slot"] is None else f"fired last for {_time(row['slot'])}"
        faults.append(
            Fault(
                "overdue",
                due + _seconds(rules.start_grace),
                f"the slot {_time(due)} of schedule {row['name']} has not fired (it {what}); "
                "see that `rowcall schedule run` runs",
            )
        )
    if row["outcome"] == "refused":
        refused = f"the slot {_time(row['slot'])} of schedule {row['name']} was refused: {row['detail'] or 'no reason'}"
        faults.append(Fault("failed", last, refused, row["job_id"]))
    return Observation(subject, last, due, tuple(faults), heard=row["slot"] is not None,
                       note=f"slot {_time(row['slot'])}: {row['outcome']}" if row["slot"] else "")  # fmt: skip


def expected(item: Expected, rules: Rules, due: dt.datetime | None) -> Observation:
    """Something declared that the database does not know.

    `due` is as it was first seen, so that a restart of the watchdog moves nothing.
    """
    due = min(due, item.first) if due is not None else item.first
    message = f"{item.subject} is declared and was due at {_time(due)}, but the database does not know it: {item.what}"
    return Observation(
        item.subject, None, due, (Fault("overdue", due + _seconds(rules.start_grace), message),), heard=False
    )


def agent(row: Row, rules: Rules) -> Observation | None:
    """An agent of which a successful run is expected now and then; None for others."""
    if row["expect_every"] is None:
        return None
    name, last = row["name"], row["success_at"]
    subject = f"agent:{name}"
    if row["state"] == "PAUSED":
        return Observation(subject, last, paused=True, note=row["state_reason"] or "the agent is paused")
    every = _seconds(row["expect_every"])
    due = (last or row["activated_at"]) + every
    if row["in_review"]:
        return Observation(subject, last, due, heard=last is not None, note="a run of it waits for a person")
    late = due + _seconds(rules.start_grace if row["start_grace"] is None else row["start_grace"])
    if (claimed := row["claimed_at"]) is not None:
        # It has begun: from here on the run's own grace counts, and `run:` tells of it.
        late = max(late, claimed + _seconds(rules.run_grace if row["run_grace"] is None else row["run_grace"]))
    overdue = late + every * (row["misses"] - 1)
    seen = "never had a successful run" if last is None else f"had its last successful run at {_time(last)}"
    message = f"agent {name} {seen}, and one was due at {_time(due)}; see `rowcall jobs list --agent {name}`"
    faults = (Fault("late", late, message), Fault("overdue", overdue, message))
    return Observation(subject, last, due, faults, heard=last is not None, note=f"run {row['success_id']} succeeded")


def result(row: Row, rules: Rules) -> Observation | None:
    """How the last runs of an agent ended; None where none has ended."""
    if row["success_id"] is None and row["failure_id"] is None:
        return None
    faults: tuple[Fault, ...] = ()
    if row["failure_id"] is not None and max(row["failures"], row["recent_failures"]) >= row["misses"]:
        message = (
            f"run {row['failure_id']} of agent {row['name']} failed ({row['error_code']}); "
            f"see `rowcall jobs show {row['failure_id']}`"
        )
        faults = (Fault("failed", row["failure_at"], message, row["failure_id"]),)
    last = max(moment for moment in (row["success_at"], row["failure_at"]) if moment is not None)
    return Observation(f"result:{row['name']}", last, faults=faults, note=f"run {row['success_id']} succeeded")


def output(row: Row, rules: Rules) -> Observation:
    """Whether an agent's successful runs left something behind."""
    candidates = []
    if row["empty_id"] is not None:
        candidates.append((row["first_at"], row["empty_id"]))
    if row["empty"]:
        candidates.append((row["success_at"], row["success_id"]))
    faults = tuple(
        Fault(
            "no_output",
            at + _seconds(rules.output),
            f"run {run} of agent {row['name']} succeeded and wrote no row and sent no record; see `rowcall jobs show "
            f'{run}`, or give the agent empty_output="allow"',
            run,
        )
        for at, run in candidates
    )
    return Observation(f"output:{row['name']}", row["success_at"], faults=faults,
                       note=f"run {row['success_id']} left something behind")  # fmt: skip


def run(row: Row, rules: Rules) -> Observation:
    """An agent's runs under way, by the one that takes longest."""
    faults = []
    if row["run_grace"] is not None and row["claimed_at"] is not None:
        message = (
            f"run {row['run_id']} of agent {row['name']} goes on since {_time(row['claimed_at'])}, longer than its "
            f"run_grace of {row['run_grace']:g} s; see `rowcall jobs show {row['run_id']}`"
        )
        faults.append(Fault("late", row["claimed_at"] + _seconds(row["run_grace"]), message, row["run_id"]))
    lost = (
        f"run {row['lost_id']} of agent {row['name']} is RUNNING, but its lease or deadline ended at "
        f"{_time(row['lost_at'])} and no worker took it over; see that `rowcall worker` or `rowcall execute` runs"
    )
    faults.append(Fault("overdue", row["lost_at"] + _seconds(rules.run_grace), lost, row["lost_id"]))
    return Observation(f"run:{row['name']}", row["claimed_at"], row["lost_at"], tuple(faults))


def queue(row: Row, rules: Rules) -> Observation:
    """An agent's runs that could be claimed, by the one that waits longest."""
    message = (
        f"run {row['run_id']} of agent {row['name']} waits since {_time(row['since'])} and nobody claims it; see "
        "whether a worker has the agent's code and `rowcall limits` lets it run"
    )
    late = Fault("overdue", row["since"] + _seconds(rules.wait), message, row["run_id"])
    return Observation(f"queue:{row['name']}", None, late.at, (late,))


def fleet(waiting: Sequence[Row], executors: Row | None, rules: Rules) -> Observation | None:
    """The workers as a whole: somebody must live who could run what waits. None where neither ever was."""
    heard = None if executors is None else executors["at"]
    if not waiting:
        return None if heard is None else Observation("fleet:executor", heard, note="nothing waits")
    oldest = min(waiting, key=lambda row: row["since"])
    due = oldest["since"] if executors is None else max(oldest["since"], executors["silent_at"])
    gone = "no worker ever ran" if heard is None else f"no worker beats any more (the last at {_time(heard)})"
    message = (
        f"runs of {', '.join(sorted(row['name'] for row in waiting))} wait and {gone}; "
        "start `rowcall worker` or `rowcall execute`"
    )
    fault = Fault("overdue", due + _seconds(rules.start_grace), message, oldest["run_id"])
    return Observation("fleet:executor", heard, due, (fault,), note="a worker beats")


def _seconds(value: float) -> dt.timedelta:
    return dt.timedelta(seconds=value)


def _time(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
