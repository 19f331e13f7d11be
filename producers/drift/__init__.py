"""Drift: monitors that watch topics and queries, and say on two levels when what they see is not what it was.

Read `monitors` (the TOML file), `values` (from a row to one clean value), `detectors` with `adwin` and `baseline`
(statistics alone), `episodes` (from levels to events), `engine` (many segments in bounded memory), `store` (what stands
in the database), `process` (the loop) and `check` (the same over history, without side effects).
"""
