-- The records of the product: what is to run, what ran, what it called, what it sent, what was seen.
-- Rules live here as constraints, so that no client, ours or another, can break them.

-- The one clock of leases, retries and horizons. Tests replace this function; nothing else may call now().
CREATE FUNCTION rowcall.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
RETURN statement_timestamp();

-- 64 random bits: a job without a key gets a lane of its own.
CREATE FUNCTION rowcall.own_lane() RETURNS bigint LANGUAGE sql VOLATILE
RETURN ('x' || right(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;

-- The lane of a key that is no row's: the first 64 bits of its SHA-256.
CREATE FUNCTION rowcall.key_lane(key text) RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN ('x' || encode(substr(sha256(convert_to(key, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint;

-- Every legal move of a job, once. The trigger below and settle() both ask here.
CREATE FUNCTION rowcall.may_move(old_status text, new_status text) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN CASE old_status
    WHEN 'PENDING' THEN new_status IN ('RUNNING', 'CANCELLED', 'PARKED')
    WHEN 'RUNNING' THEN new_status IN ('SUCCEEDED', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED',
                                       'FAILED', 'CANCELLED', 'PENDING')
    WHEN 'WAITING_RETRY' THEN new_status IN ('PENDING', 'RUNNING', 'CANCELLED', 'FAILED')
    WHEN 'WAITING_EVENT' THEN new_status IN ('PENDING', 'RUNNING', 'CANCELLED', 'FAILED')
    WHEN 'PARKED' THEN new_status IN ('PENDING', 'RUNNING', 'CANCELLED', 'FAILED')
    WHEN 'WAITING_REVIEW' THEN new_status IN ('PENDING', 'REJECTED', 'CANCELLED')
    WHEN 'FAILED' THEN new_status = 'PENDING'
    WHEN 'CANCELLED' THEN new_status = 'PENDING'
    ELSE false
END;

-- Definitions: which agents are active, and since when.
CREATE TABLE rowcall.agents (
    name text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 100),
    version integer NOT NULL CHECK (version > 0),
    topics text[] NOT NULL DEFAULT '{}',
    state text NOT NULL DEFAULT 'ACTIVE' CHECK (state IN ('ACTIVE', 'PAUSED', 'RETIRED')),
    state_reason text,
    paused_until timestamptz,
    generation bigint NOT NULL DEFAULT 1,
    activated_at timestamptz NOT NULL DEFAULT rowcall.now(),
    updated_at timestamptz NOT NULL DEFAULT rowcall.now()
);

-- Where an agent starts in each partition that existed when it was activated. Later partitions start at 0.
CREATE TABLE rowcall.agent_starts (
    agent text NOT NULL REFERENCES rowcall.agents ON DELETE CASCADE,
    cluster_id text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    topic text NOT NULL,
    start_offset bigint NOT NULL CHECK (start_offset >= 0),
    PRIMARY KEY (agent, cluster_id, topic_id, partition)
);

-- How far intake has read, written in the transaction that admits what was read.
CREATE TABLE rowcall.positions (
    cluster_id text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    topic text NOT NULL,
    next_offset bigint NOT NULL CHECK (next_offset >= 0),
    updated_at timestamptz NOT NULL DEFAULT rowcall.now(),
    PRIMARY KEY (cluster_id, topic_id, partition)
);

-- Runs. The first thirteen columns are the public contract; a plain INSERT of job_type alone makes a runnable job.
CREATE TABLE rowcall.agent_jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_type text NOT NULL CHECK (length(job_type) BETWEEN 1 AND 100),
    status text NOT NULL DEFAULT 'PENDING' CHECK (status IN (
        'PENDING', 'RUNNING', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED',
        'SUCCEEDED', 'FAILED', 'REJECTED', 'CANCELLED')),
    payload json NOT NULL DEFAULT '{}',
    result json,
    attempt_count integer NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    max_attempts integer NOT NULL DEFAULT 5 CHECK (max_attempts > 0),
    run_after timestamptz NOT NULL DEFAULT rowcall.now(),
    locked_until timestamptz,
    last_error text,
    created_at timestamptz NOT NULL DEFAULT rowcall.now(),
    updated_at timestamptz NOT NULL DEFAULT rowcall.now(),
    dedupe_key text,

    input_kind text NOT NULL DEFAULT 'payload' CHECK (input_kind IN ('change', 'event', 'payload')),
    tenant text NOT NULL DEFAULT 'default',
    key_hash bigint NOT NULL DEFAULT rowcall.own_lane(),
    key_text text,
    lane_seq bigint,
    priority smallint NOT NULL DEFAULT 0,
    lease_epoch bigint NOT NULL DEFAULT 0,
    owner uuid,
    deadline timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    agent_version integer,
    steps_done integer NOT NULL DEFAULT 0,
    error_code text,
    reason text,
    event_id text,
    delivery integer NOT NULL DEFAULT 1 CHECK (delivery > 0),
    occurred_at timestamptz,
    source_topic text,
    source_partition integer,
    source_offset bigint,
    root_event text,
    parent_job bigint,
    depth integer NOT NULL DEFAULT 0 CHECK (depth >= 0),
    chain text[] NOT NULL DEFAULT '{}',
    traceparent text,
    approved_answer json,
    approved_by text,
    result_system bigint,
    result_txid bigint,

    CONSTRAINT running_is_leased CHECK ((status = 'RUNNING') = (owner IS NOT NULL)
        AND (status <> 'RUNNING' OR (locked_until IS NOT NULL AND deadline IS NOT NULL AND lease_epoch > 0))),
    CONSTRAINT ended_has_an_end CHECK (
        (status IN ('SUCCEEDED', 'FAILED', 'REJECTED', 'CANCELLED')) = (finished_at IS NOT NULL)),
    CONSTRAINT failed_has_an_error CHECK (status <> 'FAILED' OR (last_error IS NOT NULL AND error_code IS NOT NULL)),
    CONSTRAINT parked_has_a_reason CHECK (status <> 'PARKED' OR reason IS NOT NULL),
    -- what a worker cannot load it cannot run: no times beyond those of its language
    CONSTRAINT times_can_be_read CHECK (
        (run_after IN ('-infinity', 'infinity') OR run_after BETWEEN '0002-01-01Z' AND '9998-12-31Z')
        AND created_at BETWEEN '0002-01-01Z' AND '9998-12-31Z'
        AND (occurred_at IS NULL OR occurred_at BETWEEN '0002-01-01Z' AND '9998-12-31Z'))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

-- One run an event, agent and delivery, whatever else goes wrong.
CREATE UNIQUE INDEX jobs_event ON rowcall.agent_jobs (job_type, event_id, delivery) WHERE event_id IS NOT NULL;
-- One live or succeeded run a business key; failed, rejected and cancelled ones free it.
CREATE UNIQUE INDEX jobs_dedupe ON rowcall.agent_jobs (tenant, job_type, dedupe_key)
    WHERE dedupe_key IS NOT NULL AND status NOT IN ('FAILED', 'REJECTED', 'CANCELLED');
-- Backstop of the lanes: two runs of one key are never under way together.
CREATE UNIQUE INDEX jobs_one_holder ON rowcall.agent_jobs (job_type, key_hash)
    WHERE status IN ('RUNNING', 'WAITING_REVIEW');
-- The order inside a lane.
CREATE INDEX jobs_lane ON rowcall.agent_jobs (job_type, key_hash, lane_seq, id)
    WHERE lane_seq IS NOT NULL
    AND status IN ('PENDING', 'RUNNING', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED');
-- Jobs that wait for their promotion into a lane.
CREATE INDEX jobs_inbox ON rowcall.agent_jobs (run_after, id) WHERE lane_seq IS NULL AND status = 'PENDING';
-- Runs under way; keyed by id alone so that a beat touches no index.
CREATE INDEX jobs_running ON rowcall.agent_jobs (id) WHERE status = 'RUNNING';
-- The run whose transaction wrote a captured row change.
CREATE INDEX jobs_result_txid ON rowcall.agent_jobs (result_txid) WHERE result_txid IS NOT NULL;
-- What people list: the ones that need them.
CREATE INDEX jobs_attention ON rowcall.agent_jobs (status, id)
    WHERE status IN ('FAILED', 'WAITING_REVIEW', 'PARKED', 'WAITING_RETRY');

CREATE FUNCTION rowcall.refuse_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job % cannot go from % to %', NEW.id, OLD.status, NEW.status
        USING ERRCODE = 'check_violation', CONSTRAINT = 'legal_move';
END $$;
CREATE TRIGGER legal_move BEFORE UPDATE OF status ON rowcall.agent_jobs FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status AND NOT rowcall.may_move(OLD.status, NEW.status))
    EXECUTE FUNCTION rowcall.refuse_move();

CREATE FUNCTION rowcall.refuse_birth() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a job is born PENDING (or PARKED), outside the lanes, never leased, tried or approved'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'legal_birth';
END $$;
-- AFTER, not BEFORE: a BEFORE trigger would take COPY's multi-row insert away from intake.
CREATE TRIGGER legal_birth AFTER INSERT ON rowcall.agent_jobs FOR EACH ROW
    WHEN (NEW.status NOT IN ('PENDING', 'PARKED') OR NEW.lane_seq IS NOT NULL OR NEW.lease_epoch <> 0
          OR NEW.attempt_count <> 0 OR NEW.approved_answer IS NOT NULL OR NEW.result IS NOT NULL)
    EXECUTE FUNCTION rowcall.refuse_birth();

-- A hint that work has come, once a statement; workers also look by themselves.
CREATE FUNCTION rowcall.hint_work() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('rowcall_work', '');
    RETURN NULL;
END $$;
CREATE TRIGGER hint_work AFTER INSERT ON rowcall.agent_jobs FOR EACH STATEMENT EXECUTE FUNCTION rowcall.hint_work();

-- Heads of the lanes. A row exists while its lane holds a job; ready_at is NULL while the head cannot be claimed.
CREATE TABLE rowcall.lanes (
    agent text NOT NULL,
    key_hash bigint NOT NULL,
    head bigint NOT NULL,
    ready_at timestamptz,
    PRIMARY KEY (agent, key_hash)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX lanes_ready ON rowcall.lanes (agent, ready_at, head) WHERE ready_at IS NOT NULL;
CREATE SEQUENCE rowcall.lane_order;

-- Step state. `superseded` counts how often the step was thrown away for another attempt; 0 is the one in force.
-- No foreign key: a row is written only for a job that the same statement has fenced.
CREATE TABLE rowcall.job_steps (
    job_id bigint NOT NULL,
    name text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    superseded integer NOT NULL DEFAULT 0,
    kind text NOT NULL CHECK (kind IN ('FETCH_INPUT', 'CALL_MODEL', 'WRITE_RESULT', 'AGENT_STEP')),
    number integer NOT NULL,
    output json,
    agent_version integer NOT NULL,
    lease_epoch bigint NOT NULL,
    started_at timestamptz,
    finished_at timestamptz NOT NULL DEFAULT rowcall.now(),
    PRIMARY KEY (job_id, name, superseded)
);

-- External calls: the row is written before the request leaves and completed after the answer.
CREATE TABLE rowcall.external_calls (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    step text NOT NULL,
    attempt integer NOT NULL,
    kind text NOT NULL CHECK (kind IN ('model', 'http')),
    endpoint text NOT NULL,
    model text,
    idempotency_key text NOT NULL,
    input_sha256 bytea NOT NULL CHECK (octet_length(input_sha256) = 32),
    state text NOT NULL DEFAULT 'sent' CHECK (state IN ('sent', 'done')),
    sent_at timestamptz NOT NULL DEFAULT rowcall.now(),
    finished_at timestamptz,
    duration_ms integer,
    status_code integer,
    error_code text,
    error text,
    prompt_tokens bigint,
    completion_tokens bigint,
    answered_model text,
    finish_reason text,
    response_sha256 bytea,
    response text,
    validated boolean,
    validation_error text,
    late boolean NOT NULL DEFAULT false,
    CONSTRAINT done_has_an_end CHECK ((state = 'done') = (finished_at IS NOT NULL))
);
CREATE INDEX external_calls_job ON rowcall.external_calls (job_id, id);

-- What leaves: read by Debezium's Outbox Event Router, so every column name is the connector's contract.
CREATE TABLE rowcall.outbox (
    id uuid PRIMARY KEY,
    topic text NOT NULL,
    key text,
    payload bytea NOT NULL,
    event_type text NOT NULL DEFAULT '',
    content_type text NOT NULL,
    traceparent text,
    occurred_at text NOT NULL,
    cause text,
    job_id bigint,
    created_at timestamptz NOT NULL DEFAULT rowcall.now()
);
CREATE INDEX outbox_created ON rowcall.outbox (created_at);

-- Processed events, by the day that the ID itself fixes, so that old days go by dropping a partition.
CREATE TABLE rowcall.processed_events (
    day date NOT NULL,
    agent text NOT NULL,
    event_id text NOT NULL,
    delivery integer NOT NULL DEFAULT 1,
    seen_at timestamptz NOT NULL DEFAULT rowcall.now(),
    PRIMARY KEY (day, agent, event_id, delivery)
) PARTITION BY RANGE (day);
-- Those whose ID fixes no day, or a day too far ahead to have a partition.
CREATE TABLE rowcall.processed_events_undated (
    agent text NOT NULL,
    event_id text NOT NULL,
    delivery integer NOT NULL DEFAULT 1,
    seen_at timestamptz NOT NULL DEFAULT rowcall.now(),
    PRIMARY KEY (agent, event_id, delivery)
);

-- Events that met a taken dedupe_key, kept beside the job that took them in.
CREATE TABLE rowcall.coalesced_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    event_id text,
    payload json NOT NULL,
    coalesced_at timestamptz NOT NULL DEFAULT rowcall.now()
);
CREATE INDEX coalesced_events_job ON rowcall.coalesced_events (job_id);

-- What could not be handled, whole, so that it can be handled later.
CREATE TABLE rowcall.dead_letters (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state text NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'REDRIVEN', 'DISCARDED')),
    agent text,
    event_id text,
    cluster_id text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    message_at timestamptz,
    message_key bytea,
    message_value bytea,
    headers json NOT NULL DEFAULT '[]',
    schema_id bigint,
    error_code text NOT NULL,
    error text NOT NULL,
    app_version text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT rowcall.now(),
    closed_at timestamptz,
    closed_by text
);
CREATE INDEX dead_letters_open ON rowcall.dead_letters (id) WHERE state = 'OPEN';

-- Answers that wait for a person.
CREATE TABLE rowcall.reviews (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    state text NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'APPROVED', 'REJECTED', 'CLOSED')),
    code text NOT NULL,
    reasons text[] NOT NULL,
    raw_answer text,
    proposed_answer json,
    opened_at timestamptz NOT NULL DEFAULT rowcall.now(),
    decided_at timestamptz,
    decided_by text,
    decision_reason text,
    CONSTRAINT decided_by_somebody CHECK ((state = 'OPEN') = (decided_at IS NULL)
        AND (state = 'OPEN' OR decided_by IS NOT NULL))
);
CREATE UNIQUE INDEX reviews_one_open ON rowcall.reviews (job_id) WHERE state = 'OPEN';

-- What people did, append-only.
CREATE TABLE rowcall.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT rowcall.now(),
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    detail json NOT NULL DEFAULT '{}'
);
CREATE FUNCTION rowcall.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rowcall.% is append-only', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON rowcall.audit
    FOR EACH STATEMENT EXECUTE FUNCTION rowcall.refuse_change();

-- Written by the connectors' heartbeat queries, so that an idle captured database lets its slot advance.
CREATE TABLE rowcall.connector_heartbeats (
    connector text PRIMARY KEY,
    beat_at timestamptz NOT NULL
);
