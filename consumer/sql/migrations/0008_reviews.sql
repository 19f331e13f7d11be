-- Reviews that a person can trust: what the request was about, as digests; what becomes of it; and by when.

-- Times in which the medium tier of one agent is let through. Never the high tier, never longer than a shift.
CREATE TABLE rowcall.bypasses (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent text NOT NULL,
    tier text NOT NULL CHECK (tier = 'medium'),
    since timestamptz NOT NULL DEFAULT rowcall.now(),
    until timestamptz NOT NULL,
    reason text NOT NULL CHECK (reason <> ''),
    granted_by text NOT NULL,
    ended_at timestamptz,
    ended_by text,
    CONSTRAINT time_boxed CHECK (until > since AND until <= since + interval '8 hours'),
    CONSTRAINT ended_by_somebody CHECK ((ended_at IS NULL) = (ended_by IS NULL))
);
CREATE INDEX bypasses_agent ON rowcall.bypasses (agent, until) WHERE ended_at IS NULL;

ALTER TABLE rowcall.reviews
    ADD COLUMN tier text CHECK (tier IN ('low', 'medium', 'high')),
    ADD COLUMN agent_version integer,
    -- SHA-256 of agent, version, answer, event and key: what a decision is bound to.
    ADD COLUMN digest text,
    -- The same for all requests that make the same choices; see `likeness`.
    ADD COLUMN shape text,
    -- The columns of the row that the run looked at, with their values in the codec's form.
    ADD COLUMN seen json,
    ADD COLUMN seen_digest text,
    -- What the agent would write, column by column: how it stands, how it would stand. NULL where the agent cannot tell.
    ADD COLUMN changes json,
    -- Names and epochs of the checkpoints, IDs of the calls behind the answer.
    ADD COLUMN evidence json,
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN escalates_at timestamptz,
    ADD COLUMN escalated_at timestamptz,
    -- Of the answer that was approved; another one than `digest` where the person edited it.
    ADD COLUMN decided_digest text,
    ADD COLUMN edited boolean NOT NULL DEFAULT false,
    ADD COLUMN decision_group text,
    ADD COLUMN bypass_id bigint REFERENCES rowcall.bypasses,
    -- The job of the newer change that took this one's place.
    ADD COLUMN superseded_by bigint,
    -- Columns that had another value when the answer was to be written: as it was seen, as it stood.
    ADD COLUMN stale_changes json,
    DROP CONSTRAINT reviews_state_check,
    -- AGAIN: another attempt was asked for. STALE: approved, and the row had changed before it was written.
    ADD CONSTRAINT reviews_state_check CHECK (state IN (
        'OPEN', 'APPROVED', 'REJECTED', 'CLOSED', 'AGAIN', 'STALE', 'SUPERSEDED', 'EXPIRED')),
    ADD CONSTRAINT superseded_by_something CHECK ((state = 'SUPERSEDED') = (superseded_by IS NOT NULL));

CREATE INDEX reviews_job ON rowcall.reviews (job_id, id);
CREATE INDEX reviews_expiry ON rowcall.reviews (expires_at) WHERE state = 'OPEN';
CREATE INDEX reviews_shape ON rowcall.reviews (shape) WHERE state = 'OPEN';
CREATE INDEX reviews_decided ON rowcall.reviews (decided_at) WHERE decided_at IS NOT NULL;

-- How often a person has asked for another attempt: part of the model call's identity, and a hint that notes exist.
ALTER TABLE rowcall.agent_jobs ADD COLUMN asked_again integer NOT NULL DEFAULT 0;

-- What the database did to reviews by itself, for whoever raises alarms: rows are only added.
CREATE TABLE rowcall.review_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT rowcall.now(),
    kind text NOT NULL CHECK (kind IN ('escalated', 'expired', 'superseded', 'stale')),
    review_id bigint NOT NULL,
    job_id bigint NOT NULL
);
CREATE INDEX reviews_bypass ON rowcall.reviews (bypass_id) WHERE bypass_id IS NOT NULL;
