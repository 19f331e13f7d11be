-- claim: lease the heads of ready lanes to p_owner, up to p_limit, one agent after the other: higher priorities of
-- agents first, and inside an agent higher priorities of lanes; equal agents in random order, so that no agent's backlog
-- is read for another's work. One claim in five goes by age alone, so that nobody starves. Locks lane and job together
-- and skips what is locked: it never waits. Limits of an agent cost something where it has any, and only there.
-- p_versions and p_deadlines belong to p_agents: the version of the agent's code that claims, NULL where it has none, and
-- a hard deadline of the agent's own. First come runs that are parked for this very version, then at most p_suspects of
-- those that were lost with their worker again and again, then all others: a backlog must not starve the first two.
-- No hold stops a run whose answer a person has approved: it only writes.
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
    v_agent record;
    v_level smallint;
    v_levels smallint[];
    v_slots integer[];
    v_left integer := p_limit;
    v_suspects integer := p_suspects;
    v_room integer;
    v_ids bigint[];
    v_count integer;
    v_by_age boolean := random() < 0.2;
    v_approved CONSTANT smallint := rowcall.lane_priority(true, 0);
BEGIN
    FOR v_agent IN
        SELECT a.agent AS name, c.version, coalesce(c.deadline, p_deadline) AS deadline,
            a.concurrency, a.rate_runs, a.rate_seconds, EXISTS (
            SELECT FROM rowcall.holds h WHERE (h.agent IS NULL OR h.agent = a.agent)
            AND (h.tenant IS NOT NULL OR h.topic IS NOT NULL)) AS has_holds,
            EXISTS (SELECT FROM rowcall.holds h WHERE (h.agent IS NULL OR h.agent = a.agent)
            AND h.tenant IS NULL AND h.topic IS NULL AND h.until > rowcall.now()) AS stopped
        FROM unnest(p_agents, p_versions, p_deadlines) AS c (name, version, deadline)
        JOIN rowcall.agent_limits a ON a.agent = c.name
        WHERE (a.state = 'ACTIVE' OR (a.state = 'PAUSED' AND a.paused_until <= rowcall.now()))
        ORDER BY CASE WHEN v_by_age THEN 0 ELSE a.priority END DESC, random()
    LOOP
        EXIT WHEN v_left <= 0;
        v_levels := rowcall.ready_levels(v_agent.name, v_by_age);
        IF v_agent.stopped THEN
            v_levels := ARRAY(SELECT level FROM unnest(v_levels) AS level WHERE level = v_approved);
        END IF;
        CONTINUE WHEN v_levels = '{}'
            AND NOT EXISTS (SELECT FROM rowcall.lanes WHERE agent = v_agent.name AND parked_version = v_agent.version)
            AND NOT EXISTS (SELECT FROM rowcall.lanes WHERE agent = v_agent.name AND suspect_at <= rowcall.now());
        v_room := v_left;
        v_slots := NULL;
        IF v_agent.rate_runs IS NOT NULL THEN
            v_room := least(v_room, rowcall.permits(v_agent.name, v_agent.rate_runs, v_agent.rate_seconds));
            CONTINUE WHEN v_room <= 0;
        END IF;
        IF v_agent.concurrency IS NOT NULL THEN
            v_slots := rowcall.free_slots(v_agent.name, v_agent.concurrency, v_room);
            v_room := cardinality(v_slots);
            CONTINUE WHEN v_room <= 0;
        END IF;
        v_ids := ARRAY(
            SELECT j.id FROM rowcall.lanes l JOIN rowcall.agent_jobs j ON j.id = l.head
            WHERE l.agent = v_agent.name AND l.parked_version = v_agent.version
            AND j.status = 'PARKED' AND j.reason = 'version' AND j.agent_version = v_agent.version
            AND (j.approved_answer IS NOT NULL OR NOT (v_agent.stopped OR (v_agent.has_holds
                AND rowcall.is_held(j.job_type, j.tenant, j.source_topic, j.run_after))))
            ORDER BY l.head LIMIT v_room FOR UPDATE OF l, j SKIP LOCKED);
        IF v_suspects > 0 THEN
            v_count := cardinality(v_ids);
            v_ids := v_ids || ARRAY(
                SELECT j.id FROM rowcall.lanes l JOIN rowcall.agent_jobs j ON j.id = l.head
                WHERE l.agent = v_agent.name AND l.suspect_at <= rowcall.now()
                AND j.status IN ('PENDING', 'WAITING_RETRY')
                AND (j.approved_answer IS NOT NULL OR NOT (v_agent.stopped OR (v_agent.has_holds
                    AND rowcall.is_held(j.job_type, j.tenant, j.source_topic, l.suspect_at))))
                ORDER BY l.suspect_at, l.head LIMIT least(v_suspects, v_room - v_count)
                FOR UPDATE OF l, j SKIP LOCKED);
            v_suspects := v_suspects - (cardinality(v_ids) - v_count);
        END IF;
        FOREACH v_level IN ARRAY v_levels LOOP
            EXIT WHEN cardinality(v_ids) >= v_room;
            CONTINUE WHEN v_agent.has_holds AND v_level < v_approved AND NOT rowcall.hold_lanes(v_agent.name, v_level);
            v_ids := v_ids || ARRAY(
                SELECT j.id FROM rowcall.lanes l JOIN rowcall.agent_jobs j ON j.id = l.head
                WHERE l.agent = v_agent.name AND l.priority = v_level AND l.hold IS NULL
                AND l.ready_at <= rowcall.now() AND j.status IN ('PENDING', 'WAITING_RETRY')
                ORDER BY l.ready_at, l.head LIMIT v_room - cardinality(v_ids) FOR UPDATE OF l, j SKIP LOCKED);
        END LOOP;
        CONTINUE WHEN cardinality(v_ids) = 0;
        v_left := v_left - cardinality(v_ids);
        IF v_agent.rate_runs IS NOT NULL THEN
            UPDATE rowcall.buckets SET permits = permits - cardinality(v_ids) WHERE name = 'agent:' || v_agent.name;
        END IF;
        RETURN QUERY
        WITH claimed AS (
            UPDATE rowcall.agent_jobs j SET
                status = 'RUNNING', owner = p_owner, lease_epoch = j.lease_epoch + 1,
                attempt_count = j.attempt_count + 1, slot = v_slots[p.number],
                deadline = rowcall.now() + make_interval(secs => v_agent.deadline),
                locked_until = rowcall.now() + make_interval(secs => least(p_lease, v_agent.deadline)),
                started_at = coalesce(j.started_at, rowcall.now()), claimed_at = rowcall.now(), reason = NULL,
                updated_at = rowcall.now()
            FROM unnest(v_ids) WITH ORDINALITY AS p (id, number) WHERE j.id = p.id
            RETURNING j.*
        ), held AS (
            UPDATE rowcall.lanes l SET ready_at = NULL, suspect_at = NULL, parked_version = NULL FROM claimed c
            WHERE l.agent = c.job_type AND l.key_hash = c.key_hash
        )
        SELECT * FROM claimed;
    END LOOP;
END $$;
