"""The watchdog without a database: its channels against real servers and programs on this machine."""
