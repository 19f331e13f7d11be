-- claim: lease the heads of ready lanes to p_owner, up to p_limit, one agent after the other in random order, so that no
-- agent's backlog is read for another's work. Locks lane and job together and skips what is locked: it never waits.
CREATE FUNCTION rowcall.claim(
    p_agents text[], p_limit integer, p_owner uuid, p_lease double precision, p_deadline double precision
) RETURNS SETOF rowcall.agent_jobs LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_mergejoin = off
    SET jit = off
    SET enable_hashjoin = off
    SET enable_sort = off
AS $$
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
