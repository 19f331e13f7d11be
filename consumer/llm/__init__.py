"""The model as a bounded, replaceable part: request, answer, validation, retry, and the check of an endpoint.

Read `client` first, then `request`, `response`, `answer`; `codes` is the table of what can go wrong.
"""

from consumer.llm.calls import Answer, CallFinished, CallStarted, OnDone, OnSend
from consumer.llm.client import ModelClient
from consumer.llm.codes import CODES, Code, decision_of
from consumer.llm.request import ModelRequest

__all__ = [
    "CODES",
    "Answer",
    "CallFinished",
    "CallStarted",
    "Code",
    "ModelClient",
    "ModelRequest",
    "OnDone",
    "OnSend",
    "decision_of",
]
