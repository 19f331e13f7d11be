"""LOOP 1: from Kafka to jobs. In the order of an event's journey:

`roster` which agents count, `assignment` where each partition is read from, `routing` decodes a batch and asks the
agents' triggers, `own_writes` finds the runs that wrote the rows, `jobs` builds the rows of the new jobs, `pipeline`
admits them (consumer.dedup), `loop` turns it all; `backpressure` stops it while too much waits, `unread` notices what
nobody reads, `redrive` sends a dead letter through the same path again.
"""

from consumer.intake.loop import Intake
from consumer.intake.pipeline import Pipeline
from consumer.intake.redrive import redrive
from consumer.intake.roster import View, view

__all__ = ["Intake", "Pipeline", "View", "redrive", "view"]
