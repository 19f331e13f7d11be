"""Schedules: cron slots that queue runs, each once, however many schedulers there are.

Read `definitions` (from code and TOML into the database), `slots` (which slots are due and which are caught up), `fire`
(one slot and its run in one transaction), `process` (the loop) and `control` (what people do). Nothing here calls a
model or runs an agent.
"""
