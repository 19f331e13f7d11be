"""Admission: from decoded messages to jobs, each event once for each agent, in one transaction with the positions.

`admission` holds the transaction, `batch` what it is given, `calendar` the days that event IDs are kept by, `special`
and `coalescing` what is done with jobs that a run caused or that take in later changes. Before this stage: intake
decodes messages and asks the agents' triggers. After it: the executor claims the jobs.
"""

from consumer.dedup.admission import RosterChanged, admit, open_session, redrive
from consumer.dedup.batch import Batch, Merge, NewJob, Special, Specials
from consumer.dedup.calendar import Calendar, prune
from consumer.dedup.special import CAUSATION_LOOP, Admitted, Parked, keep_limits

__all__ = [
    "CAUSATION_LOOP",
    "Admitted",
    "Batch",
    "Calendar",
    "Merge",
    "NewJob",
    "Parked",
    "RosterChanged",
    "Special",
    "Specials",
    "admit",
    "keep_limits",
    "open_session",
    "prune",
    "redrive",
]
