-- Monitors that processes have in their files. One that is in none of them any more is retired; what it left is pruned
-- later.
CREATE TABLE rowcall.drift_monitors (
    name text PRIMARY KEY,
    source text NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT rowcall.now(),
    retired_at timestamptz,
    -- Why its query was last refused; NULL since it was last answered.
    error text,
    failed_at timestamptz,
    CONSTRAINT failed_with_an_error CHECK ((error IS NULL) = (failed_at IS NULL))
);

-- A person has taken what is now for the new normal: segments learn their baseline anew. The process that watches the
-- monitor carries it out, in key order and in parts, with the states it changes.
CREATE TABLE rowcall.drift_resets (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    monitor text NOT NULL,
    -- NULL for all segments.
    segment text,
    actor text NOT NULL,
    reason text,
    asked_at timestamptz NOT NULL DEFAULT rowcall.now(),
    -- The last segment that has been reset so far.
    reached text NOT NULL DEFAULT '',
    segments bigint NOT NULL DEFAULT 0,
    done_at timestamptz
);
CREATE INDEX drift_resets_open ON rowcall.drift_resets (id) WHERE done_at IS NULL;

CREATE INDEX drift_events_sent ON rowcall.drift_events (sent_at) WHERE sent_at IS NOT NULL;
