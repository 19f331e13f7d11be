"""Stage: outcome. Before it, an answer was validated; after it, Debezium carries the outbox away.

`write` is the transaction that commits the agent's SQL, the result, the outbox rows and the run's state together;
`transaction` is what the agent sees of it. Promises: all of it or nothing, and nothing at all for an owner that lost
its lease. Runs whose agent writes nothing end through `moves`, many in one statement.
"""

from consumer.outcome.transaction import Emission
from consumer.outcome.write import Outcome, Sender, refresh_input, system_identifier, write

__all__ = ["Emission", "Outcome", "Sender", "refresh_input", "system_identifier", "write"]
