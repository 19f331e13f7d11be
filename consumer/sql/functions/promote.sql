-- promote: give up to p_limit committed jobs that are due, or hold their key, their place in their lanes; how many, or -1 when another session is
-- at it. One promoter at a time: the order of promotion is the order of a lane. INSERT never touches a lane, so a
-- user's open transaction holds up nobody.
CREATE FUNCTION rowcall.promote(p_limit integer) RETURNS integer LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
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
    -- The commit need not wait for the disk: a promotion that a crash undoes is made again, and whatever follows it (a
    -- claim above all) is written behind it and waits for both.
    PERFORM set_config('synchronous_commit', 'off', true);
    v_seq := nextval('rowcall.lane_order');
    WITH due AS MATERIALIZED (
        SELECT id FROM rowcall.agent_jobs
        WHERE lane_seq IS NULL AND status = 'PENDING'
        AND CASE WHEN holds_key THEN created_at ELSE run_after END <= rowcall.now()
        ORDER BY CASE WHEN holds_key THEN created_at ELSE run_after END, id LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), placed AS (
        UPDATE rowcall.agent_jobs j SET lane_seq = v_seq FROM due WHERE j.id = due.id
        RETURNING j.job_type, j.key_hash, j.id, j.run_after, j.source_topic,
            rowcall.lane_priority(j.approved_answer IS NOT NULL, j.priority) AS priority
    ), laned AS (
        -- DO UPDATE, not DO NOTHING: it waits for a settle() that is just deleting this lane.
        INSERT INTO rowcall.lanes AS l (agent, key_hash, head, ready_at, priority)
        SELECT job_type, key_hash, min(id), (array_agg(run_after ORDER BY id))[1], (array_agg(priority ORDER BY id))[1]
        FROM placed GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (agent, key_hash) DO UPDATE SET head = l.head
        RETURNING l.head
    ), counted AS (
        -- The storm breaker counts here, where one session at a time is at work anyway.
        INSERT INTO rowcall.storm_counts AS c (agent, topic, minute, jobs)
        SELECT p.job_type, p.source_topic, date_trunc('minute', rowcall.now()), count(*)
        FROM placed p JOIN rowcall.agent_limits a ON a.agent = p.job_type
        WHERE a.storm IS NOT NULL AND p.source_topic IS NOT NULL GROUP BY 1, 2
        ON CONFLICT (agent, topic) DO UPDATE SET minute = excluded.minute,
            jobs = excluded.jobs + CASE WHEN c.minute = excluded.minute THEN c.jobs ELSE 0 END
        RETURNING c.agent, c.topic, c.jobs
    ), tripped AS (
        INSERT INTO rowcall.holds AS h (reason, agent, topic, until, lanes_per_second, released_to, detail)
        SELECT 'storm', c.agent, c.topic, rowcall.now() + interval '1 minute', a.storm / 120.0, '-infinity',
            format('%s runs in a minute, the limit is %s', c.jobs, a.storm)
        FROM counted c JOIN rowcall.agent_limits a ON a.agent = c.agent WHERE c.jobs > a.storm
        ON CONFLICT (agent, topic) WHERE reason = 'storm'
            DO UPDATE SET until = greatest(h.until, excluded.until), lanes_per_second = excluded.lanes_per_second
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
