-- settle: the one way in which runs end, wait, are released, retried or cancelled. One element an array position:
-- p_epochs NULL is a person's move on whatever state the job is in; otherwise the job must be RUNNING in that epoch.
-- p_delays in seconds from now. Returns the ids that moved; an id not returned has lost its lease, or may not move so.
-- Its plans and those of refresh_lanes are by key whatever the arrays hold: planned anew, a call for one run took three
-- times as long.
CREATE FUNCTION rowcall.settle(
    p_ids bigint[], p_epochs bigint[], p_statuses text[], p_results text[], p_codes text[], p_errors text[],
    p_reasons text[], p_delays double precision[], p_attempts integer[]
) RETURNS SETOF bigint LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_mergejoin = off
    SET enable_hashjoin = off
    SET jit = off
AS $$
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
        -- A run that fails holds its lane where its agent says so, until a person has looked at it. One that ends while
        -- an effect of it may have happened goes to a person, who finds out.
        SELECT a.*, j.agent_version AS version, a.status = 'FAILED' AND a.epoch IS NOT NULL AND coalesce((
                SELECT g.options ->> 'on_failure' = 'park' FROM rowcall.agents g WHERE g.name = j.job_type), false)
            AS kept, a.status IN ('FAILED', 'CANCELLED') AND a.epoch IS NOT NULL AND EXISTS (
                SELECT FROM rowcall.effects e
                WHERE e.job_id = j.id AND e.state IN ('SENT', 'UNKNOWN') AND NOT e.idempotent)
            AS unsure
        FROM rowcall.agent_jobs j JOIN asked a ON j.id = a.id
            AND (a.epoch IS NULL OR (j.lease_epoch = a.epoch AND j.status = 'RUNNING'))
            AND rowcall.may_move(j.status, a.status)
        ORDER BY j.id FOR UPDATE OF j
    ), asked_of_a_person AS (
        INSERT INTO rowcall.reviews (job_id, code, reasons, agent_version)
        SELECT a.id, 'effect_unknown', ARRAY[format('an effect of this run may have happened, and nobody here knows. '
            'See `rowcall effects list --job %s`, find out, then `rowcall effects resolve`. The run ended with %s: %s',
            a.id, a.code, a.error)], a.version
        FROM fenced a WHERE a.unsure
        ON CONFLICT (job_id) WHERE state = 'OPEN' DO NOTHING
    ), moved AS (
        UPDATE rowcall.agent_jobs j SET
            status = CASE WHEN a.unsure THEN 'WAITING_REVIEW' WHEN a.kept THEN 'PARKED' ELSE a.status END,
            result = coalesce(a.result::json, j.result),
            error_code = CASE WHEN a.status = 'SUCCEEDED' THEN NULL WHEN a.unsure THEN 'effect_unknown'
                              ELSE coalesce(a.code, j.error_code) END,
            last_error = CASE WHEN a.status = 'SUCCEEDED' THEN NULL ELSE coalesce(a.error, j.last_error) END,
            reason = CASE WHEN a.unsure THEN NULL WHEN a.kept THEN 'failed' ELSE a.reason END,
            -- a run that had left its lane queues behind what its key has now
            lane_seq = CASE WHEN j.status IN ('FAILED', 'CANCELLED') THEN NULL ELSE j.lane_seq END,
            run_after = CASE WHEN a.delay IS NULL THEN j.run_after
                             ELSE rowcall.now() + make_interval(secs => a.delay) END,
            holds_key = j.holds_key AND j.status NOT IN ('FAILED', 'CANCELLED'),
            attempt_count = greatest(0, j.attempt_count + coalesce(a.attempts, 0)),
            -- whoever came to an end of an attempt is not what kills its workers; a person's retry begins anew
            losses = CASE WHEN a.epoch IS NOT NULL AND a.status IN ('PENDING', 'FAILED') THEN j.losses ELSE 0 END,
            -- waiting for a turn at the model is nothing that the run asked for
            postponed = CASE WHEN a.epoch IS NULL THEN 0
                             WHEN a.status = 'WAITING_RETRY' AND a.attempts < 0
                                 AND a.code IS DISTINCT FROM 'rate_limited' THEN j.postponed + 1
                             ELSE j.postponed END,
            owner = NULL, locked_until = NULL, deadline = NULL,
            finished_at = CASE WHEN NOT a.kept AND NOT a.unsure
                               AND a.status IN ('SUCCEEDED', 'FAILED', 'REJECTED', 'CANCELLED') THEN rowcall.now() END,
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
