-- hold_lanes: put those lanes of an agent and priority aside whose head a hold of a tenant or topic covers, 2,000 at a
-- time, until one of the first 2,000 is free. False where all that were looked at had to be put aside: the rest is for
-- the next claim. Each lane is touched once a hold, however long it lasts.
CREATE FUNCTION rowcall.hold_lanes(p_agent text, p_level smallint) RETURNS boolean LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_mergejoin = off
    SET enable_hashjoin = off
    SET enable_sort = off
AS $$
DECLARE
    v_seen integer;
    v_held integer;
BEGIN
    FOR i IN 1..5 LOOP
        WITH front AS MATERIALIZED (
            SELECT l.agent, l.key_hash, (
                SELECT h.id FROM rowcall.holds h
                WHERE (h.agent IS NULL OR h.agent = j.job_type) AND (h.tenant IS NULL OR h.tenant = j.tenant)
                AND (h.topic IS NULL OR h.topic = j.source_topic)
                AND (h.reason = 'storm' OR h.until > rowcall.now()) AND l.ready_at > h.released_to LIMIT 1) AS hold
            FROM rowcall.lanes l JOIN rowcall.agent_jobs j ON j.id = l.head
            WHERE l.agent = p_agent AND l.priority = p_level AND l.hold IS NULL AND l.ready_at <= rowcall.now()
            ORDER BY l.ready_at, l.head LIMIT 2000 FOR UPDATE OF l SKIP LOCKED
        ), held AS (
            UPDATE rowcall.lanes l SET hold = f.hold FROM front f
            WHERE f.hold IS NOT NULL AND l.agent = f.agent AND l.key_hash = f.key_hash
            RETURNING 1
        )
        SELECT (SELECT count(*) FROM front), (SELECT count(*) FROM held) INTO v_seen, v_held;
        EXIT WHEN v_held < v_seen OR v_seen < 2000;
    END LOOP;
    RETURN v_held < v_seen;
END $$;
