-- promote: give up to p_limit committed jobs that are due, or hold their key, their place in their lanes; how many, or -1 when another session is
-- at it. One promoter at a time: the order of promotion is the order of a lane. INSERT never touches a lane, so a
-- user's open transaction holds up nobody.
CREATE FUNCTION rowcall.promote(p_limit integer) RETURNS integer LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_mergejoin = off
    SET jit = off
AS $$
DECLARE
    v_seq bigint;
    v_count integer;
    v_met bigint[];
BEGIN
    IF NOT EXISTS (SELECT FROM rowcall.agent_jobs
                   WHERE lane_seq IS NULL AND status = 'PENDING'
                   AND CASE WHEN holds_key THEN created_at ELSE run_after END <= rowcall.now()) THEN
        RETURN 0;
    END IF;
    IF NOT pg_try_advisory_xact_lock(hashtext('rowcall.promote')) THEN
        RETURN -1;
    END IF;
    v_seq := nextval('rowcall.lane_order');
    WITH due AS MATERIALIZED (
        SELECT id FROM rowcall.agent_jobs
        WHERE lane_seq IS NULL AND status = 'PENDING'
        AND CASE WHEN holds_key THEN created_at ELSE run_after END <= rowcall.now()
        ORDER BY CASE WHEN holds_key THEN created_at ELSE run_after END, id LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), placed AS (
        UPDATE rowcall.agent_jobs j SET lane_seq = v_seq FROM due WHERE j.id = due.id
        RETURNING j.job_type, j.key_hash, j.id, j.run_after
    ), laned AS (
        -- DO UPDATE, not DO NOTHING: it waits for a settle() that is just deleting this lane.
        INSERT INTO rowcall.lanes AS l (agent, key_hash, head, ready_at)
        SELECT job_type, key_hash, min(id), (array_agg(run_after ORDER BY id))[1] FROM placed GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (agent, key_hash) DO UPDATE SET head = l.head
        RETURNING l.head
    )
    SELECT (SELECT count(*) FROM placed), (
        SELECT array_agg(head) FROM (SELECT head FROM laned EXCEPT SELECT id FROM placed) met)
    INTO v_count, v_met;
    -- The newer jobs may take the place of reviews they now stand behind. Their lanes are held here already.
    IF v_met IS NOT NULL AND EXISTS (SELECT FROM rowcall.reviews WHERE state = 'OPEN') THEN
        PERFORM rowcall.supersede_reviews(v_met);
    END IF;
    RETURN v_count;
END $$;
