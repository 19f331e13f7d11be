"""The watchdog: a process of its own that finds silence, decides what it means, and tells somebody."""
