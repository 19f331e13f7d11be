"""From a row of the database to an observation: when each thing is due, and from when on which fault holds.

Before it, a query of `observe`; after it, `decide`. Pure. Promises: every moment comes from times that the database
wrote; a beat that lies in the future is refused; what waits for a person, and what ended as it should, is no fault.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from consumer.watchdog.observation import Expected, Fault, Observation, Rules
from consumer.watchdog.observation import moment as _time

Row = Mapping[str, Any]
_NEVER: Final = dt.datetime(9000, 1, 1, tzinfo=dt.UTC)


def process(row: Row, rules: Rules, now: dt.datetime) -> Observation:
    """One instance of a process by its beats."""
    subject, at = f"process:{row['subject']}@{row['instance']}", row["at"]
    name = f"{row['subject']} ({row['instance']})"
    if row["state"] == "STOPPED":
        return Observation(subject, at, note="it stopped as it should")
    # By the clock of the same look: the round may have begun long before it.
    if at > _later(row["now"], rules.future):
        refused = f"the last beat of {name} lies in the future, at {_time(at)}, and is refused; compare the clocks"
        return Observation(subject, None, faults=(Fault("overdue", now, refused),))
    interval = row["interval"] or 0
    due = _later(at, interval)
    late, overdue = _later(due, rules.tolerance), silent_from(row, rules)
    silent = f"no beat of {name} since {_time(at)}; see whether the process lives, or `rowcall watchdog forget` it"
    hung = (
        f"{name} beats, but its loop has not turned since {_time(row['progress_at'])}: it hangs, or waits for "
        "something that is away; see its log and /readyz"
    )
    faults = [Fault("late", late, silent), Fault("overdue", overdue, silent)]
    if at > row["progress_at"]:
        # A beat without progress has come; before one, a long interval between beats would look the same.
        faults.append(Fault("stuck", _later(row["progress_at"], rules.stuck), hung, row["run_id"]))
    return Observation(subject, at, due, tuple(faults), note=f"it beats again, at {_time(at)}")


def processes(rows: Sequence[Row], rules: Rules, now: dt.datetime) -> list[Observation]:
    """All processes; of those that fell silent as many are well as have begun after them."""
    gone = replaced(rows, rules)
    return [
        Observation(f"process:{row['subject']}@{row['instance']}", row["at"],
                    note="another process of its role has taken its place")
        if (row["subject"], row["instance"]) in gone else process(row, rules, now)
        for row in rows
    ]  # fmt: skip


def replaced(rows: Sequence[Row], rules: Rules) -> set[tuple[str, str]]:
    """Role and instance of each dead process that another has replaced: a start makes up for one death before it.

    Which of several is arbitrary, how many is not. It is the latest: one that died long ago was replaced then or is
    missed by nobody, and it is also dropped first.
    """
    dead: dict[str, list[str]] = defaultdict(list)
    found = set()
    moments = [(row["started_at"], 0, row) for row in rows]
    moments += [
        (row["at"], 1, row) for row in rows if row["state"] == "RUNNING" and silent_from(row, rules) <= row["now"]
    ]
    for _, is_death, row in sorted(moments, key=lambda item: item[:2]):
        waiting = dead[row["subject"]]
        if is_death:
            waiting.append(row["instance"])
        elif waiting:
            found.add((row["subject"], waiting.pop()))
    return found


def silent_from(row: Row, rules: Rules) -> dt.datetime:
    """The moment from which a process that does not beat again counts as dead."""
    return _later(row["at"], (row["interval"] or 0) * rules.misses + rules.tolerance)


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
                _later(due, rules.start_grace),
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
        item.subject, None, due, (Fault("overdue", _later(due, rules.start_grace), message),), heard=False
    )


def agent(row: Row, rules: Rules, resumed: dt.datetime | None = None) -> Observation | None:
    """An agent of which a successful run is expected now and then; None for others.

    `resumed` is when a person last ended a pause of it: from then on it has its whole time again.
    """
    if row["expect_every"] is None:
        return None
    name, last, every = row["name"], row["success_at"], row["expect_every"]
    subject = f"agent:{name}"
    if row["state"] == "PAUSED" and row["paused_until"] is None:
        return Observation(subject, last, paused=True, note=row["state_reason"] or "the agent is paused")
    due = _later(max(filter(None, (last or row["activated_at"], resumed, row["review_since"]))), every)
    late = _later(due, rules.start_grace if row["start_grace"] is None else row["start_grace"])
    overdue = _later(late, every * (row["misses"] - 1))
    claimed = row["claimed_at"]
    if claimed is not None and claimed <= overdue:
        # It has begun in time: from here on the run's own grace counts, and `run:` tells of it. One that begins later
        # ends no fault before it succeeds: each of its tries would be a recovery, and each failure a new fault.
        ended = _later(claimed, rules.run_grace if row["run_grace"] is None else row["run_grace"])
        late = max(late, ended)
        overdue = max(overdue, _later(late, every * (row["misses"] - 1)))
    seen = "never had a successful run" if last is None else f"had its last successful run at {_time(last)}"
    held = f"; it is paused: {row['state_reason']}" if row["state"] == "PAUSED" else ""
    held += f"; a run of it waits for a person since {_time(row['review_since'])}" if row["review_since"] else ""
    message = f"agent {name} {seen}, and one was due at {_time(due)}{held}; see `rowcall jobs list --agent {name}`"
    faults = (Fault("late", late, message), Fault("overdue", overdue, message))
    note = "a run of it waits for a person" if row["review_since"] else f"run {row['success_id']} succeeded"
    return Observation(subject, last, due, faults, heard=last is not None, note=note)


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
            _later(at, rules.output),
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
        faults.append(Fault("late", _later(row["claimed_at"], row["run_grace"]), message, row["run_id"]))
    lost = (
        f"run {row['lost_id']} of agent {row['name']} is RUNNING, but its lease or deadline ended at "
        f"{_time(row['lost_at'])} and no worker took it over; see that `rowcall worker` or `rowcall execute` runs"
    )
    faults.append(Fault("overdue", _later(row["lost_at"], rules.run_grace), lost, row["lost_id"]))
    return Observation(f"run:{row['name']}", row["claimed_at"], row["lost_at"], tuple(faults))


def queue(row: Row, rules: Rules) -> Observation:
    """An agent's runs that could be claimed, by the one that waits longest."""
    advice = (
        "there is no agent of this name: correct job_type where the run was inserted, or activate the agent"
        if row["unknown"]
        else "see whether a worker has the agent's code and `rowcall limits` lets it run"
    )
    message = (
        f"run {row['run_id']} of agent {row['name']} waits since {_time(row['since'])} and nobody claims it; {advice}"
    )
    late = Fault("overdue", _later(row["since"], rules.wait), message, row["run_id"])
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
    fault = Fault("overdue", _later(due, rules.start_grace), message, oldest["run_id"])
    return Observation("fleet:executor", heard, due, (fault,), note="a worker beats")


def _later(at: dt.datetime, seconds: float) -> dt.datetime:
    """So many seconds later, or never: the calendar has an end."""
    try:
        return min(at + dt.timedelta(seconds=seconds), _NEVER)
    except OverflowError:
        return _NEVER
