-- What a run carries for its engine. `losses`: how often its worker was lost with it since it last got anywhere, which
-- is no attempt of its own. `postponed`: how often it asked for a later time. `holds_key`: a job whose time has not come
-- takes its place in its lane all the same, and later jobs of its key wait behind it.
ALTER TABLE rowcall.agent_jobs
    ADD COLUMN losses integer NOT NULL DEFAULT 0 CHECK (losses >= 0),
    ADD COLUMN postponed integer NOT NULL DEFAULT 0 CHECK (postponed >= 0),
    ADD COLUMN holds_key boolean NOT NULL DEFAULT false;

-- reclaim() reads this number for the runs of every agent: one that is none would stop it for all.
ALTER TABLE rowcall.agents ADD CONSTRAINT losses_are_counted
    CHECK (NOT options ? 'max_losses' OR options ->> 'max_losses' ~ '^[1-9][0-9]{0,6}$');

-- Heads that not every claim may take. `suspect_at`: the head has been lost with its worker more than once; a worker
-- takes one such run at a time. `parked_version`: the head was begun by this version of its agent, and only a worker of
-- that version takes it. Where either is set, ready_at is NULL.
ALTER TABLE rowcall.lanes
    ADD COLUMN suspect_at timestamptz,
    ADD COLUMN parked_version integer;
CREATE INDEX lanes_suspect ON rowcall.lanes (agent, suspect_at, head) WHERE suspect_at IS NOT NULL;
CREATE INDEX lanes_parked ON rowcall.lanes (agent, parked_version, head) WHERE parked_version IS NOT NULL;

-- Jobs that wait for their promotion: at their time, or at once where they hold their key.
DROP INDEX rowcall.jobs_inbox;
CREATE INDEX jobs_inbox ON rowcall.agent_jobs ((CASE WHEN holds_key THEN created_at ELSE run_after END), id)
    WHERE lane_seq IS NULL AND status = 'PENDING';
