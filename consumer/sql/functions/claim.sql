-- claim: lease the heads of ready lanes to p_owner, up to p_limit, one agent after the other: higher priorities of
-- agents first, and inside an agent higher priorities of lanes; equal agents in random order, so that no agent's backlog
-- is read for another's work. One claim in five goes by age alone, so that nobody starves. Locks lane and job together
-- and skips what is locked: it never waits. Limits of an agent cost something where it has any, and only there.
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
    v_agent record;
    v_level smallint;
    v_levels smallint[];
    v_slots integer[];
    v_left integer := p_limit;
    v_room integer;
    v_count integer;
    v_taken integer;
    v_by_age boolean := random() < 0.2;
BEGIN
    FOR v_agent IN
        SELECT a.agent AS name, a.concurrency, a.rate_runs, a.rate_seconds, EXISTS (
            SELECT FROM rowcall.holds h WHERE (h.agent IS NULL OR h.agent = a.agent)
            AND (h.tenant IS NOT NULL OR h.topic IS NOT NULL)) AS has_holds
        FROM rowcall.agent_limits a WHERE a.agent = ANY (p_agents)
        AND (a.state = 'ACTIVE' OR (a.state = 'PAUSED' AND a.paused_until <= rowcall.now()))
        AND NOT EXISTS (SELECT FROM rowcall.holds h WHERE (h.agent IS NULL OR h.agent = a.agent)
            AND h.tenant IS NULL AND h.topic IS NULL AND h.until > rowcall.now())
        ORDER BY CASE WHEN v_by_age THEN 0 ELSE a.priority END DESC, random()
    LOOP
        EXIT WHEN v_left <= 0;
        v_levels := rowcall.ready_levels(v_agent.name, v_by_age);
        CONTINUE WHEN v_levels = '{}';
        v_room := v_left;
        v_slots := NULL;
        v_taken := 0;
        IF v_agent.rate_runs IS NOT NULL THEN
            v_room := least(v_room, rowcall.permits(v_agent.name, v_agent.rate_runs, v_agent.rate_seconds));
            CONTINUE WHEN v_room <= 0;
        END IF;
        IF v_agent.concurrency IS NOT NULL THEN
            v_slots := rowcall.free_slots(v_agent.name, v_agent.concurrency, v_room);
            v_room := cardinality(v_slots);
        END IF;
        FOREACH v_level IN ARRAY v_levels LOOP
            EXIT WHEN v_room <= 0;
            CONTINUE WHEN v_agent.has_holds AND NOT rowcall.hold_lanes(v_agent.name, v_level);
            RETURN QUERY
            WITH picked AS MATERIALIZED (
                SELECT j.id FROM rowcall.lanes l JOIN rowcall.agent_jobs j ON j.id = l.head
                WHERE l.agent = v_agent.name AND l.priority = v_level AND l.hold IS NULL
                AND l.ready_at <= rowcall.now() AND j.status IN ('PENDING', 'WAITING_RETRY')
                ORDER BY l.ready_at, l.head LIMIT v_room FOR UPDATE OF l, j SKIP LOCKED
            ), placed AS (
                SELECT id, v_slots[v_taken + row_number() OVER ()] AS slot FROM picked
            ), claimed AS (
                UPDATE rowcall.agent_jobs j SET
                    status = 'RUNNING', owner = p_owner, lease_epoch = j.lease_epoch + 1,
                    attempt_count = j.attempt_count + 1, slot = p.slot,
                    deadline = rowcall.now() + make_interval(secs => p_deadline),
                    locked_until = rowcall.now() + make_interval(secs => least(p_lease, p_deadline)),
                    started_at = coalesce(j.started_at, rowcall.now()), reason = NULL, updated_at = rowcall.now()
                FROM placed p WHERE j.id = p.id
                RETURNING j.*
            ), held AS (
                UPDATE rowcall.lanes l SET ready_at = NULL FROM claimed c
                WHERE l.agent = c.job_type AND l.key_hash = c.key_hash
            )
            SELECT * FROM claimed;
            GET DIAGNOSTICS v_count = ROW_COUNT;
            v_room := v_room - v_count;
            v_taken := v_taken + v_count;
        END LOOP;
        v_left := v_left - v_taken;
        IF v_agent.rate_runs IS NOT NULL AND v_taken > 0 THEN
            UPDATE rowcall.buckets SET permits = permits - v_taken WHERE name = 'agent:' || v_agent.name;
        END IF;
    END LOOP;
END $$;
