"""What people do to runs, reviews and agents; used by the commands and the console, never by the loops.

Each act is one transaction that also writes its audit row: who, what, to which run. Promises: no move that the state
machine forbids, the first decision wins, and an `OperatorError` that says the state and what can be done instead.
`runs` lists, shows, retries and cancels; `roots` does it for all that one event has set off; `reviews` shows what
waits, `deciding` decides, `bypasses` lets a tier through for a while; `effects` resolves; `agents` pauses, resumes and
retires.
"""

from consumer.operate.act import Act
from consumer.operate.agents import Retired, list_agents, pause, require_agent, resume, retire
from consumer.operate.bypasses import Bypass, bypass, end_bypass, list_bypasses
from consumer.operate.deciding import Alike, Decided, GroupDecided, again, alike, approve, approve_alike, reject
from consumer.operate.effects import EffectReport, Resolved, list_effects, resolve_effect, show_effect
from consumer.operate.reviews import ReviewReport, list_reviews, show_review
from consumer.operate.roots import RootMoved, cancel_root, retry_root
from consumer.operate.runs import Moved, RunReport, cancel, list_jobs, retry, show

__all__ = [
    "Act",
    "Alike",
    "Bypass",
    "Decided",
    "EffectReport",
    "GroupDecided",
    "Moved",
    "Resolved",
    "Retired",
    "ReviewReport",
    "RootMoved",
    "RunReport",
    "again",
    "alike",
    "approve",
    "approve_alike",
    "bypass",
    "cancel",
    "cancel_root",
    "end_bypass",
    "list_agents",
    "list_bypasses",
    "list_effects",
    "list_jobs",
    "list_reviews",
    "pause",
    "reject",
    "require_agent",
    "resolve_effect",
    "resume",
    "retire",
    "retry",
    "retry_root",
    "show",
    "show_effect",
    "show_review",
]
