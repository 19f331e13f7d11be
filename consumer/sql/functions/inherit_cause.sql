-- inherit_cause: a queued job that a run caused stands one deeper than that run, in its chain and under its root. Where
-- that breaks a rule of causation the job is parked; see consumer.intake.causation for the same rules on events.
CREATE FUNCTION rowcall.inherit_cause(p_job bigint, p_parent bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_root text;
    v_depth integer;
    v_chain text[];
    v_agent text;
    v_entry text;
    v_max_depth integer;
    v_root_runs integer;
    v_why text;
BEGIN
    SELECT coalesce(root_event, event_id, 'job:' || id), depth + 1, chain || rowcall.chain_entry(job_type, key_hash)
    FROM rowcall.agent_jobs WHERE id = p_parent INTO v_root, v_depth, v_chain;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT max_depth, root_runs FROM rowcall.causation_limits INTO v_max_depth, v_root_runs;
    UPDATE rowcall.agent_jobs SET root_event = v_root, depth = v_depth, chain = v_chain WHERE id = p_job
    RETURNING job_type, rowcall.chain_entry(job_type, key_hash) INTO v_agent, v_entry;
    IF v_entry = ANY (v_chain) THEN
        v_why := format('agent %s already stands for this key in the chain that led here', v_agent);
    ELSIF v_depth > v_max_depth THEN
        v_why := format('%s runs deep, ROWCALL_MAX_DEPTH is %s', v_depth, v_max_depth);
    ELSIF v_root_runs < (SELECT count(*) FROM (
            SELECT FROM rowcall.agent_jobs j WHERE j.root_event = v_root AND j.depth > 0
            AND j.created_at > rowcall.now() - interval '1 minute' LIMIT v_root_runs + 1) AS recent) THEN
        v_why := format('more than %s runs of one root within a minute (ROWCALL_ROOT_RUNS_PER_MINUTE)', v_root_runs);
    ELSE
        RETURN;
    END IF;
    UPDATE rowcall.agent_jobs SET status = 'PARKED', reason = 'causation_loop', error_code = 'causation_loop',
        last_error = v_why, updated_at = rowcall.now()
    WHERE id = p_job AND status = 'PENDING';
    INSERT INTO rowcall.causation_alerts (job_id) VALUES (p_job);
    RAISE WARNING 'job % is parked: causation_loop: %', p_job, v_why;
END $$;
