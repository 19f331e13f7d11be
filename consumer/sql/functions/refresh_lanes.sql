-- refresh_lanes: give these lanes their next head, or delete them. Its statements are apart on purpose: the heads are
-- looked up with a snapshot taken after the lanes are locked, or a promotion in between is lost.
CREATE FUNCTION rowcall.refresh_lanes(p_agents text[], p_keys bigint[]) RETURNS void LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_mergejoin = off
    SET enable_hashjoin = off
    SET jit = off
AS $$
BEGIN
    PERFORM FROM rowcall.lanes l JOIN (SELECT DISTINCT * FROM unnest(p_agents, p_keys) AS u (agent, key_hash)) x
        ON l.agent = x.agent AND l.key_hash = x.key_hash
    ORDER BY l.agent, l.key_hash FOR UPDATE OF l;
    WITH heads AS MATERIALIZED (
        SELECT t.agent, t.key_hash, j.id, j.status, j.run_after, j.losses, j.reason, j.agent_version,
            rowcall.lane_priority(j.approved_answer IS NOT NULL, j.priority) AS priority
        FROM (SELECT DISTINCT * FROM unnest(p_agents, p_keys) AS u (agent, key_hash)) t LEFT JOIN LATERAL (
            SELECT id, status, run_after, priority, losses, reason, agent_version, approved_answer
            FROM rowcall.agent_jobs j
            WHERE j.job_type = t.agent AND j.key_hash = t.key_hash AND j.lane_seq IS NOT NULL
            AND j.status IN ('PENDING', 'RUNNING', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED')
            ORDER BY lane_seq, id LIMIT 1
        ) j ON true
    ), emptied AS (
        DELETE FROM rowcall.lanes l USING heads h
        WHERE l.agent = h.agent AND l.key_hash = h.key_hash AND h.id IS NULL
    )
    UPDATE rowcall.lanes l SET head = h.id, priority = h.priority, hold = NULL,
        ready_at = CASE WHEN h.status IN ('PENDING', 'WAITING_RETRY') AND h.losses < 2 THEN h.run_after END,
        suspect_at = CASE WHEN h.status IN ('PENDING', 'WAITING_RETRY') AND h.losses >= 2 THEN h.run_after END,
        parked_version = CASE WHEN h.status = 'PARKED' AND h.reason = 'version' THEN h.agent_version END
    FROM heads h WHERE l.agent = h.agent AND l.key_hash = h.key_hash AND h.id IS NOT NULL;
END $$;
