"""`python -m consumer.cli`, the same as `rowcall`."""

from consumer.cli import main

main()
