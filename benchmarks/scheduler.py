"""A scheduler of the benchmark: the product's own loop on a database whose clock the benchmark moves."""

from __future__ import annotations

import sys
import time

from consumer import db
from producers.schedules.fire import fire_due


def main() -> None:
    """Fire until killed."""
    with db.connect(sys.argv[1], name="scheduler") as session:
        while True:
            if fire_due(session) is None:
                time.sleep(0.02)


if __name__ == "__main__":
    main()
