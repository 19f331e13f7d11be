"""Stage: effects. What a run does outside the database; before and after each are steps of the same run.

Writes the ledger `rowcall.effects`: PLANNED before the request is made, SENT when its first byte is about to leave,
then CONFIRMED, FAILED (known not to have happened) or UNKNOWN. Promises: only the owner of the run plans, sends and
settles; what is confirmed is never sent again; what may have happened is sent again only where its agent says that this
does no harm, and otherwise waits for the agent's reconcile function or for a person.
"""

from consumer.effects.answers import EFFECT_BODY, Kept, Meaning, kept, meaning
from consumer.effects.answers import read as read_answer
from consumer.effects.answers import stored as stored_answer
from consumer.effects.ledger import Entry, Settled, acted, effect_id, held, plan, send, settle
from consumer.effects.request import Departure, Request, departure, read

__all__ = [
    "EFFECT_BODY",
    "Departure",
    "Entry",
    "Kept",
    "Meaning",
    "Request",
    "Settled",
    "acted",
    "departure",
    "effect_id",
    "held",
    "kept",
    "meaning",
    "plan",
    "read",
    "read_answer",
    "send",
    "settle",
    "stored_answer",
]
