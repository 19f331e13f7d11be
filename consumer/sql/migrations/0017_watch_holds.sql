-- What the watchdog looks for in each round, found without a scan: runs that are parked, by why, and messages that nobody
-- has dealt with, by topic.
CREATE INDEX jobs_parked ON rowcall.agent_jobs (reason, id) WHERE status = 'PARKED';
CREATE INDEX dead_letters_topic ON rowcall.dead_letters (topic, id) WHERE state = 'OPEN';
