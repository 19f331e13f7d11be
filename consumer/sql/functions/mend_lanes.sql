-- mend_lanes: put right what statements by hand have broken: a lane whose head is gone, ended or ready at another
-- time, a job in a lane that does not exist. Our own transactions change jobs and lanes together, so one snapshot shows
-- no such pair that they made. Returns how many lanes were mended; one session at a time.
CREATE FUNCTION rowcall.mend_lanes(p_limit integer) RETURNS integer LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_mergejoin = off
    SET enable_hashjoin = off
    SET jit = off
AS $$
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
        OR coalesce(l.ready_at, l.suspect_at) IS DISTINCT FROM
            CASE WHEN j.status IN ('PENDING', 'WAITING_RETRY') THEN j.run_after END
        OR (l.suspect_at IS NOT NULL AND j.losses < 2) OR (l.ready_at IS NOT NULL AND j.losses >= 2)
        OR l.priority <> rowcall.lane_priority(j.approved_answer IS NOT NULL, j.priority)
        OR l.parked_version IS DISTINCT FROM
            CASE WHEN j.status = 'PARKED' AND j.reason = 'version' THEN j.agent_version END
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
