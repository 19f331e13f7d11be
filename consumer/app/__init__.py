"""One process: from settings to running loops and back. The commands come before it; intake and executor after it.

`process` puts the parts together and decides how the process ends, `single` does so for a process of one loop, `stop`
turns signals into a drain, `watch` notices an event loop or a database that does not answer, `keeper` restarts
connectors that have failed.
"""

from consumer.app.process import Roles, run
from consumer.app.single import run_loop

__all__ = ["Roles", "run", "run_loop"]
