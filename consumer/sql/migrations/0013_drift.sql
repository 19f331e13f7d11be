-- How far detectors have read, apart from intake's positions.
CREATE TABLE rowcall.drift_positions (
    source text NOT NULL,
    cluster_id text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL CHECK (next_offset >= 0),
    updated_at timestamptz NOT NULL DEFAULT rowcall.now(),
    PRIMARY KEY (source, cluster_id, topic_id, partition)
);

-- When a query was last run.
CREATE TABLE rowcall.drift_polls (
    source text PRIMARY KEY,
    polled_at timestamptz NOT NULL
);

-- Digests of the event IDs a source gave, one row a batch: a message sent again under another offset is noticed.
CREATE TABLE rowcall.drift_seen (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source text NOT NULL,
    digests bytea NOT NULL,
    count integer NOT NULL
);
CREATE INDEX drift_seen_source ON rowcall.drift_seen (source, id);

-- One detector a segment. `state` is all it knows, as JSON; written in the transaction that moves the position.
CREATE TABLE rowcall.drift_state (
    monitor text NOT NULL,
    segment text NOT NULL,
    status text NOT NULL,
    episode bigint NOT NULL,
    samples bigint NOT NULL,
    due_at timestamptz,
    state json NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT rowcall.now(),
    PRIMARY KEY (monitor, segment)
) WITH (fillfactor = 70);
CREATE INDEX drift_state_due ON rowcall.drift_state (due_at) WHERE due_at IS NOT NULL;

-- Events, written with the state that decided them and sent afterwards; sent again under the same ID after a crash.
CREATE TABLE rowcall.drift_events (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL UNIQUE,
    topic text NOT NULL,
    schema text NOT NULL,
    key text NOT NULL,
    payload text NOT NULL,
    event_type text NOT NULL,
    occurred_at timestamptz NOT NULL,
    sent_at timestamptz
);
CREATE INDEX drift_events_unsent ON rowcall.drift_events (number) WHERE sent_at IS NULL;
