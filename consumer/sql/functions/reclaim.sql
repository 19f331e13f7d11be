-- reclaim: runs whose lease or deadline is over go back to PENDING, or to FAILED at their attempt limit, whichever
-- agents the caller has. Returns how many. Skips what another session holds: it is just being settled.
CREATE FUNCTION rowcall.reclaim(p_limit integer) RETURNS integer LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_mergejoin = off
    SET jit = off
AS $$
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
