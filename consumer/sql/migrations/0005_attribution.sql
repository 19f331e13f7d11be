-- Whether it is unknown if a run wrote the captured row, and which: its transaction is not in this database, as after a
-- restore. Such a change wakes its agents all the same; nothing about its cause can be said.
ALTER TABLE rowcall.agent_jobs ADD COLUMN not_attributable boolean NOT NULL DEFAULT false;
