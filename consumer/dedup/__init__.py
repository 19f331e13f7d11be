"""Admission: from decoded messages to jobs, each event once for each agent, in one transaction with the positions.

`admission` holds the transaction, `batch` what it is given, `calendar` the days that event IDs are kept by. Before this
stage: intake decodes messages and asks the agents' triggers. After it: the executor claims the jobs.
"""

from consumer.dedup.admission import Admitted, RosterChanged, admit, open_session, redrive
from consumer.dedup.batch import Batch, NewJob
from consumer.dedup.calendar import Calendar, prune

__all__ = ["Admitted", "Batch", "Calendar", "NewJob", "RosterChanged", "admit", "open_session", "prune", "redrive"]
