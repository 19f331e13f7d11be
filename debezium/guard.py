"""The launcher's end of the pipe to its watchdog (`debezium.watchdog`).

`debezium.stack` makes a guard before the first service of a start. While the guard exists and is not released, the
end of this process, however it comes, makes the watchdog stop the stack.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from debezium.processes import import_path

RELEASE = b"r"


class Guard:
    """The launcher's end of the pipe."""

    def __init__(self, directory: Path) -> None:
        log = directory / "logs" / "watchdog.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "debezium.watchdog", str(directory), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | import_path(),
            )

    def release(self) -> None:
        """Let the stack live on without the launcher."""
        self._process.communicate(RELEASE)
