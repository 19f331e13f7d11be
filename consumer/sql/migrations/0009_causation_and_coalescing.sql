-- What one event sets off is counted and bounded, also where a run queues another inside the database; and changes of
-- one key that come close together become one run.

-- Jobs that take in later changes of their key: how many they took in, until when at the latest, and the time of the
-- newest of them.
ALTER TABLE rowcall.agent_jobs
    ADD COLUMN merged integer NOT NULL DEFAULT 0,
    ADD COLUMN window_until timestamptz,
    ADD COLUMN latest_at timestamptz;
CREATE INDEX jobs_coalescing ON rowcall.agent_jobs (job_type, key_hash, id)
    WHERE window_until IS NOT NULL AND status = 'PENDING';
-- What one root event has set off, newest last. Jobs that no run caused are not in it.
CREATE INDEX jobs_root ON rowcall.agent_jobs (root_event, created_at) WHERE depth > 0;

-- ROWCALL_MAX_DEPTH and ROWCALL_ROOT_RUNS_PER_MINUTE, written by intake, for what is decided in the database.
CREATE TABLE rowcall.causation_limits (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    max_depth integer NOT NULL CHECK (max_depth > 0),
    root_runs integer NOT NULL CHECK (root_runs > 0)
);
INSERT INTO rowcall.causation_limits (max_depth, root_runs) VALUES (8, 120);

-- Jobs that were parked inside the database; the next intake that looks alerts of them.
CREATE TABLE rowcall.causation_alerts (job_id bigint PRIMARY KEY);

-- The run whose outcome transaction this is, if it is one. Here and not in sql/functions, because a column's default
-- depends on it. The plan is forced: one made while the table was small would scan it when it is not.
CREATE FUNCTION rowcall.writing_run() RETURNS bigint LANGUAGE plpgsql STABLE
    SET enable_seqscan = off
    SET enable_bitmapscan = off
AS $$
DECLARE
    v_txid xid8 := pg_current_xact_id_if_assigned();
BEGIN
    IF v_txid IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT id FROM rowcall.agent_jobs WHERE result_txid = v_txid::text::bigint LIMIT 1);
END $$;
-- Whoever inserts a job inside an outcome transaction (the agent's SQL, a trigger, rowcall.enqueue) has it caused by
-- that run. Intake's COPY names this column, so the default costs it nothing.
ALTER TABLE rowcall.agent_jobs ALTER COLUMN parent_job SET DEFAULT rowcall.writing_run();

CREATE FUNCTION rowcall.pass_cause_on() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM rowcall.inherit_cause(NEW.id, NEW.parent_job);
    RETURN NULL;
END $$;
CREATE TRIGGER pass_cause_on AFTER INSERT ON rowcall.agent_jobs FOR EACH ROW
    WHEN (NEW.parent_job IS NOT NULL AND NEW.input_kind = 'payload') EXECUTE FUNCTION rowcall.pass_cause_on();
