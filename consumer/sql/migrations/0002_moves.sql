-- The functions through which runs move. Lock order everywhere: jobs by id, then lanes by (agent, key_hash).

-- promote: give up to p_limit committed, due jobs their place in their lanes; how many, or -1 when another session is
-- at it. One promoter at a time: the order of promotion is the order of a lane. INSERT never touches a lane, so a
-- user's open transaction holds up nobody.
CREATE FUNCTION rowcall.promote(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_seq bigint;
    v_count integer;
BEGIN
    IF NOT EXISTS (SELECT FROM rowcall.agent_jobs
                   WHERE lane_seq IS NULL AND status = 'PENDING' AND run_after <= rowcall.now()) THEN
        RETURN 0;
    END IF;
    IF NOT pg_try_advisory_xact_lock(hashtext('rowcall.promote')) THEN
        RETURN -1;
    END IF;
    v_seq := nextval('rowcall.lane_order');
    WITH due AS MATERIALIZED (
        SELECT id FROM rowcall.agent_jobs
        WHERE lane_seq IS NULL AND status = 'PENDING' AND run_after <= rowcall.now()
        ORDER BY run_after, id LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), placed AS (
        UPDATE rowcall.agent_jobs j SET lane_seq = v_seq FROM due WHERE j.id = due.id
        RETURNING j.job_type, j.key_hash, j.id, j.run_after
    ), laned AS (
        -- DO UPDATE, not DO NOTHING: it waits for a settle() that is just deleting this lane.
        INSERT INTO rowcall.lanes AS l (agent, key_hash, head, ready_at)
        SELECT job_type, key_hash, min(id), min(run_after) FROM placed GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (agent, key_hash) DO UPDATE SET head = l.head
        RETURNING 1
    )
    SELECT count(*) FROM placed INTO v_count;
    RETURN v_count;
END $$;

-- claim: lease the heads of ready lanes to p_owner, up to p_limit, one agent after the other in random order, so that no
-- agent's backlog is read for another's work. Locks lane and job together and skips what is locked: it never waits.
CREATE FUNCTION rowcall.claim(
    p_agents text[], p_limit integer, p_owner uuid, p_lease double precision, p_deadline double precision
) RETURNS SETOF rowcall.agent_jobs LANGUAGE plpgsql AS $$
DECLARE
    v_agent text;
    v_left integer := p_limit;
    v_count integer;
BEGIN
    FOR v_agent IN
        SELECT name FROM rowcall.agents WHERE name = ANY (p_agents)
        AND (state = 'ACTIVE' OR (state = 'PAUSED' AND paused_until <= rowcall.now())) ORDER BY random()
    LOOP
        EXIT WHEN v_left <= 0;
        RETURN QUERY
        WITH picked AS MATERIALIZED (
            SELECT j.id FROM rowcall.lanes l JOIN rowcall.agent_jobs j ON j.id = l.head
            WHERE l.agent = v_agent AND l.ready_at <= rowcall.now() AND j.status IN ('PENDING', 'WAITING_RETRY')
            ORDER BY l.ready_at, l.head LIMIT v_left FOR UPDATE OF l, j SKIP LOCKED
        ), claimed AS (
            UPDATE rowcall.agent_jobs j SET
                status = 'RUNNING', owner = p_owner, lease_epoch = j.lease_epoch + 1,
                attempt_count = j.attempt_count + 1,
                deadline = rowcall.now() + make_interval(secs => p_deadline),
                locked_until = rowcall.now() + make_interval(secs => least(p_lease, p_deadline)),
                started_at = coalesce(j.started_at, rowcall.now()), reason = NULL, updated_at = rowcall.now()
            FROM picked p WHERE j.id = p.id
            RETURNING j.*
        ), held AS (
            UPDATE rowcall.lanes l SET ready_at = NULL FROM claimed c
            WHERE l.agent = c.job_type AND l.key_hash = c.key_hash
        )
        SELECT * FROM claimed;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_left := v_left - v_count;
    END LOOP;
END $$;

-- settle: the one way in which runs end, wait, are released, retried or cancelled. One element an array position:
-- p_epochs NULL is a person's move on whatever state the job is in; otherwise the job must be RUNNING in that epoch.
-- p_delays in seconds from now. Returns the ids that moved; an id not returned has lost its lease, or may not move so.
CREATE FUNCTION rowcall.settle(
    p_ids bigint[], p_epochs bigint[], p_statuses text[], p_results text[], p_codes text[], p_errors text[],
    p_reasons text[], p_delays double precision[], p_attempts integer[]
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    v_moved bigint[];
    v_agents text[];
    v_keys bigint[];
BEGIN
    WITH asked AS MATERIALIZED (
        SELECT * FROM unnest(p_ids, p_epochs, p_statuses, p_results, p_codes, p_errors, p_reasons, p_delays, p_attempts)
            AS a (id, epoch, status, result, code, error, reason, delay, attempts)
    ), fenced AS MATERIALIZED (
        -- All that is asked for the very epoch: a group may hold an old epoch of the same run beside the present one.
        SELECT a.* FROM rowcall.agent_jobs j JOIN asked a ON j.id = a.id
            AND (a.epoch IS NULL OR (j.lease_epoch = a.epoch AND j.status = 'RUNNING'))
            AND rowcall.may_move(j.status, a.status)
        ORDER BY j.id FOR UPDATE OF j
    ), moved AS (
        UPDATE rowcall.agent_jobs j SET
            status = a.status,
            result = coalesce(a.result::json, j.result),
            error_code = CASE WHEN a.status = 'SUCCEEDED' THEN NULL ELSE coalesce(a.code, j.error_code) END,
            last_error = CASE WHEN a.status = 'SUCCEEDED' THEN NULL ELSE coalesce(a.error, j.last_error) END,
            reason = a.reason,
            -- a run that had left its lane queues behind what its key has now
            lane_seq = CASE WHEN j.status IN ('FAILED', 'CANCELLED') THEN NULL ELSE j.lane_seq END,
            run_after = CASE WHEN a.delay IS NULL THEN j.run_after
                             ELSE rowcall.now() + make_interval(secs => a.delay) END,
            attempt_count = greatest(0, j.attempt_count + coalesce(a.attempts, 0)),
            owner = NULL, locked_until = NULL, deadline = NULL,
            finished_at = CASE WHEN a.status IN ('SUCCEEDED', 'FAILED', 'REJECTED', 'CANCELLED')
                               THEN rowcall.now() END,
            updated_at = rowcall.now()
        FROM fenced a WHERE j.id = a.id
        RETURNING j.id, j.job_type, j.key_hash, j.lane_seq
    )
    -- Only lanes that hold a job of ours are sure to exist and so to be locked in order; a lane that another session is
    -- just making for the same key is none of our business.
    SELECT coalesce(array_agg(id), '{}'), array_agg(job_type) FILTER (WHERE lane_seq IS NOT NULL),
        array_agg(key_hash) FILTER (WHERE lane_seq IS NOT NULL)
    FROM moved INTO v_moved, v_agents, v_keys;
    PERFORM rowcall.refresh_lanes(v_agents, v_keys);
    RETURN QUERY SELECT unnest(v_moved);
END $$;

-- refresh_lanes: give these lanes their next head, or delete them. Its statements are apart on purpose: the heads are
-- looked up with a snapshot taken after the lanes are locked, or a promotion in between is lost.
CREATE FUNCTION rowcall.refresh_lanes(p_agents text[], p_keys bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM rowcall.lanes l JOIN (SELECT DISTINCT * FROM unnest(p_agents, p_keys) AS u (agent, key_hash)) x
        ON l.agent = x.agent AND l.key_hash = x.key_hash
    ORDER BY l.agent, l.key_hash FOR UPDATE OF l;
    WITH heads AS MATERIALIZED (
        SELECT t.agent, t.key_hash, j.id, j.status, j.run_after
        FROM (SELECT DISTINCT * FROM unnest(p_agents, p_keys) AS u (agent, key_hash)) t LEFT JOIN LATERAL (
            SELECT id, status, run_after FROM rowcall.agent_jobs j
            WHERE j.job_type = t.agent AND j.key_hash = t.key_hash AND j.lane_seq IS NOT NULL
            AND j.status IN ('PENDING', 'RUNNING', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED')
            ORDER BY lane_seq, id LIMIT 1
        ) j ON true
    ), emptied AS (
        DELETE FROM rowcall.lanes l USING heads h
        WHERE l.agent = h.agent AND l.key_hash = h.key_hash AND h.id IS NULL
    )
    UPDATE rowcall.lanes l SET head = h.id,
        ready_at = CASE WHEN h.status IN ('PENDING', 'WAITING_RETRY') THEN h.run_after END
    FROM heads h WHERE l.agent = h.agent AND l.key_hash = h.key_hash AND h.id IS NOT NULL;
END $$;

-- mend_lanes: put right what statements by hand have broken: a lane whose head is gone, ended or ready at another
-- time, a job in a lane that does not exist. Our own transactions change jobs and lanes together, so one snapshot shows
-- no such pair that they made. Returns how many lanes were mended; one session at a time.
CREATE FUNCTION rowcall.mend_lanes(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_agents text[];
    v_keys bigint[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('rowcall.mend_lanes')) THEN
        RETURN 0;
    END IF;
    SELECT array_agg(agent), array_agg(key_hash) FROM (
        SELECT l.agent, l.key_hash FROM rowcall.lanes l LEFT JOIN rowcall.agent_jobs j
            ON j.id = l.head AND j.lane_seq IS NOT NULL AND j.job_type = l.agent AND j.key_hash = l.key_hash
        WHERE j.id IS NULL
        OR j.status NOT IN ('PENDING', 'RUNNING', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED')
        OR l.ready_at IS DISTINCT FROM CASE WHEN j.status IN ('PENDING', 'WAITING_RETRY') THEN j.run_after END
        UNION
        SELECT j.job_type, j.key_hash FROM rowcall.agent_jobs j
        WHERE j.lane_seq IS NOT NULL
        AND j.status IN ('PENDING', 'RUNNING', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED')
        AND NOT EXISTS (SELECT FROM rowcall.lanes l WHERE l.agent = j.job_type AND l.key_hash = j.key_hash)
        LIMIT p_limit
    ) broken INTO v_agents, v_keys;
    IF v_agents IS NULL THEN
        RETURN 0;
    END IF;
    INSERT INTO rowcall.lanes (agent, key_hash, head)
    SELECT DISTINCT u.agent, u.key_hash, 0 FROM unnest(v_agents, v_keys) AS u (agent, key_hash) ORDER BY 1, 2
    ON CONFLICT (agent, key_hash) DO NOTHING;
    PERFORM rowcall.refresh_lanes(v_agents, v_keys);
    RETURN cardinality(v_agents);
END $$;

-- reclaim: runs whose lease or deadline is over go back to PENDING, or to FAILED at their attempt limit, whichever
-- agents the caller has. Returns how many. Skips what another session holds: it is just being settled.
CREATE FUNCTION rowcall.reclaim(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[];
    v_epochs bigint[];
    v_statuses text[];
    v_codes text[];
    v_errors text[];
    v_delays double precision[];
    v_nothing text[];
BEGIN
    SELECT array_agg(id), array_agg(lease_epoch),
           array_agg(CASE WHEN attempt_count >= max_attempts THEN 'FAILED' ELSE 'PENDING' END),
           array_agg(code),
           array_agg(format('attempt %s of %s: %s; worker %s', attempt_count, max_attempts,
               CASE code WHEN 'deadline_exceeded' THEN 'the run passed its hard deadline'
                         ELSE 'the worker stopped renewing its lease' END, owner)),
           -- Whoever was in flight with a run that kills its worker must not meet it again and again.
           array_agg(CASE WHEN attempt_count > 1 THEN random() * power(2, least(attempt_count, 8)) END)
    FROM (
        SELECT id, lease_epoch, attempt_count, max_attempts, owner,
               CASE WHEN deadline <= rowcall.now() THEN 'deadline_exceeded' ELSE 'lease_expired' END AS code
        FROM rowcall.agent_jobs WHERE status = 'RUNNING' AND locked_until <= rowcall.now()
        ORDER BY id LIMIT p_limit FOR UPDATE SKIP LOCKED
    ) expired INTO v_ids, v_epochs, v_statuses, v_codes, v_errors, v_delays;
    IF v_ids IS NULL THEN
        RETURN 0;
    END IF;
    v_nothing := array_fill(NULL::text, ARRAY[cardinality(v_ids)]);
    RETURN (SELECT count(*) FROM rowcall.settle(v_ids, v_epochs, v_statuses, v_nothing, v_codes, v_errors, v_nothing,
        v_delays, array_fill(0, ARRAY[cardinality(v_ids)])));
END $$;

-- enqueue: queue a run, for operators and for triggers in the database. Returns the job's id; with a dedupe_key that
-- is taken, the id of the job that holds it, which takes the payload in as a coalesced event.
CREATE FUNCTION rowcall.enqueue(
    agent text, payload json DEFAULT '{}', dedupe_key text DEFAULT NULL, key text DEFAULT NULL,
    run_after timestamptz DEFAULT NULL, max_attempts integer DEFAULT 5, tenant text DEFAULT 'default'
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_id bigint;
BEGIN
    FOR i IN 1..3 LOOP
        INSERT INTO rowcall.agent_jobs AS j
            (job_type, payload, dedupe_key, key_text, key_hash, run_after, max_attempts, tenant)
        VALUES (enqueue.agent, enqueue.payload, enqueue.dedupe_key, enqueue.key,
                CASE WHEN enqueue.key IS NULL THEN rowcall.own_lane() ELSE rowcall.key_lane(enqueue.key) END,
                coalesce(enqueue.run_after, rowcall.now()), enqueue.max_attempts, enqueue.tenant)
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

-- transactions: for each 32-bit transaction ID from the log, its state here and the run whose outcome wrote it.
-- A txid is extended by the epoch of the current snapshot, one lower where it would lie far ahead. 'pending' is not
-- visible yet (decoding may be ahead of visibility); 'lost' was aborted here, so the log is of another timeline.
CREATE FUNCTION rowcall.transactions(p_txids bigint[])
RETURNS TABLE (txid bigint, full_txid bigint, state text, job_id bigint, agent text) LANGUAGE sql STABLE AS $$
    WITH bounds AS MATERIALIZED (
        SELECT pg_snapshot_xmax(s)::text::bigint AS xmax, s AS snapshot FROM pg_current_snapshot() AS s
    ), extended AS MATERIALIZED (
        SELECT t.txid, CASE WHEN candidate > xmax + 2147483648 THEN candidate - 4294967296 ELSE candidate END AS full_txid
        FROM bounds, unnest(p_txids) AS t (txid), LATERAL (SELECT ((xmax >> 32) << 32) | t.txid AS candidate) c
    )
    SELECT e.txid, e.full_txid, CASE
            WHEN e.full_txid < 0 OR e.full_txid >= b.xmax THEN 'pending'
            WHEN NOT pg_visible_in_snapshot(e.full_txid::text::xid8, b.snapshot) THEN 'pending'
            WHEN pg_xact_status(e.full_txid::text::xid8) = 'aborted' THEN 'lost'
            ELSE 'visible' END,
        r.id, r.job_type
    FROM bounds b, extended e LEFT JOIN rowcall.agent_jobs r ON r.result_txid = e.full_txid
$$;

-- Every lookup of these functions goes by an index for a few hundred rows at most. Statistics of a queue are always
-- stale, and a plan made from them once read 100,000 rows to claim 256: forbid the plans that can. Joins of arrays
-- keep their hashes.
DO $$
DECLARE
    v_function regprocedure;
    v_setting text;
BEGIN
    FOR v_function IN SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'rowcall'::regnamespace
        AND p.proname IN ('promote', 'claim', 'settle', 'refresh_lanes', 'reclaim') LOOP
        FOREACH v_setting IN ARRAY ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_mergejoin', 'jit'] LOOP
            EXECUTE format('ALTER FUNCTION %s SET %s = off', v_function, v_setting);
        END LOOP;
    END LOOP;
    ALTER FUNCTION rowcall.claim SET enable_hashjoin = off;
    ALTER FUNCTION rowcall.claim SET enable_sort = off;
END $$;
