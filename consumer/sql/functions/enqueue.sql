-- enqueue: queue a run, for operators and for triggers in the database. Returns the job's id; with a dedupe_key that
-- is taken, the id of the job that holds it, which takes the payload in as a coalesced event. An agent that is retired
-- is refused; one that is not known yet is not, for it may be activated later (`rowcall doctor` shows what waits so).
-- A job whose time has not come holds up later ones of its key only with hold_key.
CREATE FUNCTION rowcall.enqueue(
    agent text, payload json DEFAULT '{}', dedupe_key text DEFAULT NULL, key text DEFAULT NULL,
    run_after timestamptz DEFAULT NULL, max_attempts integer DEFAULT 5, tenant text DEFAULT 'default',
    priority integer DEFAULT 0, hold_key boolean DEFAULT false
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_id bigint;
BEGIN
    IF EXISTS (SELECT FROM rowcall.agents a WHERE a.name = enqueue.agent AND a.state = 'RETIRED') THEN
        RAISE EXCEPTION 'agent % is retired and runs no more', quote_literal(enqueue.agent)
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Drop the trigger or call that queues it, or bring it back: rowcall agents activate ' || enqueue.agent;
    END IF;
    FOR i IN 1..3 LOOP
        INSERT INTO rowcall.agent_jobs AS j
            (job_type, payload, dedupe_key, key_text, key_hash, run_after, max_attempts, tenant, priority, holds_key)
        VALUES (enqueue.agent, enqueue.payload, enqueue.dedupe_key, enqueue.key,
                CASE WHEN enqueue.key IS NULL THEN rowcall.own_lane() ELSE rowcall.key_lane(enqueue.key) END,
                coalesce(enqueue.run_after, rowcall.now()), enqueue.max_attempts, enqueue.tenant, enqueue.priority,
                enqueue.hold_key)
        ON CONFLICT (tenant, job_type, dedupe_key)
            WHERE dedupe_key IS NOT NULL AND status NOT IN ('FAILED', 'REJECTED', 'CANCELLED') DO NOTHING
        RETURNING j.id INTO v_id;
        IF v_id IS NOT NULL THEN
            RETURN v_id;
        END IF;
        -- The holder's row is only read: a caller's open transaction must not hold up the run.
        SELECT j.id FROM rowcall.agent_jobs j
        WHERE j.tenant = enqueue.tenant AND j.job_type = enqueue.agent AND j.dedupe_key = enqueue.dedupe_key
        AND j.status NOT IN ('FAILED', 'REJECTED', 'CANCELLED') INTO v_id;
        IF v_id IS NOT NULL THEN
            INSERT INTO rowcall.coalesced_events (job_id, payload) VALUES (v_id, enqueue.payload);
            RETURN v_id;
        END IF;
        -- The holder ended in between and freed the key: insert again.
    END LOOP;
    RAISE EXCEPTION 'dedupe_key % of agent % keeps changing hands; try again', enqueue.dedupe_key, enqueue.agent;
END $$;
