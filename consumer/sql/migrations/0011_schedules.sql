-- Schedules as the schedulers fire them. `definition` is the declaration, from which the rest is computed.
CREATE TABLE rowcall.schedules (
    name text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 100),
    source text NOT NULL,
    definition jsonb NOT NULL,
    state text NOT NULL DEFAULT 'ACTIVE' CHECK (state IN ('ACTIVE', 'PAUSED', 'RETIRED')),
    state_reason text,
    -- the first slot not yet dealt with; NULL when the expression has no further one
    next_slot timestamptz,
    created_at timestamptz NOT NULL DEFAULT rowcall.now(),
    updated_at timestamptz NOT NULL DEFAULT rowcall.now()
);
CREATE INDEX schedules_due ON rowcall.schedules (next_slot) WHERE state = 'ACTIVE';

-- Each slot once, whoever computes it: the row is written in the transaction that queues its run.
CREATE TABLE rowcall.schedule_slots (
    schedule text NOT NULL,
    slot timestamptz NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('queued', 'sent', 'coalesced', 'skipped', 'missed', 'refused')),
    job_id bigint,
    detail text,
    backfill boolean NOT NULL DEFAULT false,
    decided_at timestamptz NOT NULL DEFAULT rowcall.now(),
    PRIMARY KEY (schedule, slot)
);
CREATE INDEX schedule_slots_job ON rowcall.schedule_slots (job_id) WHERE job_id IS NOT NULL;
