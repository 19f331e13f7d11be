-- claim: lease the heads of ready lanes to p_owner, up to p_limit, one agent after the other in random order, so that no
-- agent's backlog is read for another's work. Locks lane and job together and skips what is locked: it never waits.
-- p_versions and p_deadlines belong to p_agents: the version of the agent's code that claims, NULL where it has none, and
-- a hard deadline of the agent's own. First come runs that are parked for this very version, then at most p_suspects of
-- those that were lost with their worker again and again, then all others: a backlog must not starve the first two.
CREATE FUNCTION rowcall.claim(
    p_agents text[], p_limit integer, p_owner uuid, p_lease double precision, p_deadline double precision,
    p_versions integer[] DEFAULT NULL, p_deadlines double precision[] DEFAULT NULL, p_suspects integer DEFAULT 1
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
    v_version integer;
    v_deadline double precision;
    v_left integer := p_limit;
    v_suspects integer := p_suspects;
    v_ids bigint[];
    v_count integer;
BEGIN
    FOR v_agent, v_version, v_deadline IN
        SELECT g.name, c.version, coalesce(c.deadline, p_deadline)
        FROM unnest(p_agents, p_versions, p_deadlines) AS c (name, version, deadline)
        JOIN rowcall.agents g ON g.name = c.name
        WHERE g.state = 'ACTIVE' OR (g.state = 'PAUSED' AND g.paused_until <= rowcall.now()) ORDER BY random()
    LOOP
        EXIT WHEN v_left <= 0;
        v_ids := ARRAY(
            SELECT j.id FROM rowcall.lanes l JOIN rowcall.agent_jobs j ON j.id = l.head
            WHERE l.agent = v_agent AND l.parked_version = v_version
            AND j.status = 'PARKED' AND j.reason = 'version' AND j.agent_version = v_version
            ORDER BY l.head LIMIT v_left FOR UPDATE OF l, j SKIP LOCKED);
        IF v_suspects > 0 THEN
            v_count := cardinality(v_ids);
            v_ids := v_ids || ARRAY(
                SELECT j.id FROM rowcall.lanes l JOIN rowcall.agent_jobs j ON j.id = l.head
                WHERE l.agent = v_agent AND l.suspect_at <= rowcall.now() AND j.status IN ('PENDING', 'WAITING_RETRY')
                ORDER BY l.suspect_at, l.head LIMIT least(v_suspects, v_left - v_count)
                FOR UPDATE OF l, j SKIP LOCKED);
            v_suspects := v_suspects - (cardinality(v_ids) - v_count);
        END IF;
        v_ids := v_ids || ARRAY(
            SELECT j.id FROM rowcall.lanes l JOIN rowcall.agent_jobs j ON j.id = l.head
            WHERE l.agent = v_agent AND l.ready_at <= rowcall.now() AND j.status IN ('PENDING', 'WAITING_RETRY')
            ORDER BY l.ready_at, l.head LIMIT v_left - cardinality(v_ids) FOR UPDATE OF l, j SKIP LOCKED);
        CONTINUE WHEN cardinality(v_ids) = 0;
        v_left := v_left - cardinality(v_ids);
        RETURN QUERY
        WITH claimed AS (
            UPDATE rowcall.agent_jobs j SET
                status = 'RUNNING', owner = p_owner, lease_epoch = j.lease_epoch + 1,
                attempt_count = j.attempt_count + 1,
                deadline = rowcall.now() + make_interval(secs => v_deadline),
                locked_until = rowcall.now() + make_interval(secs => least(p_lease, v_deadline)),
                started_at = coalesce(j.started_at, rowcall.now()), reason = NULL, updated_at = rowcall.now()
            WHERE j.id = ANY (v_ids)
            RETURNING j.*
        ), held AS (
            UPDATE rowcall.lanes l SET ready_at = NULL, suspect_at = NULL, parked_version = NULL FROM claimed c
            WHERE l.agent = c.job_type AND l.key_hash = c.key_hash
        )
        SELECT * FROM claimed;
    END LOOP;
END $$;
