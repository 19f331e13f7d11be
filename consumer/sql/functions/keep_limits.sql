-- keep_limits: what is due of the limits now and then, by one session at a time: reservations of dead runs go back, holds
-- that are over let their lanes go (a storm's at its own pace, oldest first), and runs parked for a budget that is no
-- longer spent go back to PENDING at their place in their lanes. Returns each hold once when it began and once when it
-- ended, for the alert; both stand in the audit. What calls of ended runs have spent goes after 100 days: budgets keep
-- their sums beside it, and only a run and its root add it up.
CREATE FUNCTION rowcall.keep_limits(p_limit integer)
RETURNS TABLE (event text, reason text, agent text, tenant text, topic text, detail text) LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_mergejoin = off
    SET enable_hashjoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_hold rowcall.holds;
    v_count bigint;
    v_lanes bigint;
    v_ids bigint[];
    v_nothing text[];
BEGIN
    IF (SELECT at FROM rowcall.spend ORDER BY id LIMIT 1) < rowcall.now() - interval '100 days' THEN
        DELETE FROM rowcall.spend WHERE id IN (
            SELECT s.id FROM (SELECT id, state, at, job_id FROM rowcall.spend ORDER BY id LIMIT p_limit) s
            WHERE s.state <> 'RESERVED' AND s.at < rowcall.now() - interval '100 days' AND NOT EXISTS (
                SELECT FROM rowcall.agent_jobs j WHERE j.id = s.job_id
                AND j.status NOT IN ('SUCCEEDED', 'FAILED', 'REJECTED', 'CANCELLED')));
    END IF;
    IF NOT EXISTS (SELECT FROM rowcall.holds) AND NOT EXISTS (SELECT FROM rowcall.spend WHERE state = 'RESERVED')
        AND NOT EXISTS (SELECT FROM rowcall.agent_jobs WHERE status = 'PARKED' AND reason = 'budget')
        OR NOT pg_try_advisory_xact_lock(hashtext('rowcall.keep_limits'))
    THEN
        RETURN;
    END IF;
    PERFORM rowcall.free_reservations(p_limit);
    RETURN QUERY
    WITH told AS (UPDATE rowcall.holds SET told = true WHERE NOT told RETURNING *), audited AS (
        INSERT INTO rowcall.audit (actor, action, subject, detail)
        SELECT 'rowcall', 'hold', coalesce('agent ' || t.agent, 'tenant ' || t.tenant, 'all agents'),
            json_build_object('reason', t.reason, 'tenant', t.tenant, 'topic', t.topic, 'detail', t.detail,
                              'until', t.until)
        FROM told t
    )
    SELECT 'began', t.reason, t.agent, t.tenant, t.topic, t.detail FROM told t;
    FOR v_hold IN SELECT * FROM rowcall.holds WHERE until <= rowcall.now() ORDER BY id LOOP
        v_count := CASE WHEN v_hold.lanes_per_second IS NULL THEN p_limit ELSE least(p_limit, floor(
            v_hold.lanes_per_second * extract(epoch FROM rowcall.now() - coalesce(v_hold.released_at, v_hold.until)))) END;
        CONTINUE WHEN v_count < 1 AND EXISTS (SELECT FROM rowcall.lanes WHERE hold = v_hold.id);
        WITH due AS MATERIALIZED (
            SELECT l.agent, l.key_hash, l.ready_at FROM rowcall.lanes l WHERE l.hold = v_hold.id
            ORDER BY l.ready_at, l.head LIMIT v_count FOR UPDATE OF l SKIP LOCKED
        ), released AS (
            UPDATE rowcall.lanes l SET hold = NULL FROM due d WHERE l.agent = d.agent AND l.key_hash = d.key_hash
            RETURNING 1
        ), noted AS (
            UPDATE rowcall.holds SET released_at = rowcall.now(),
                released_to = greatest(released_to, (SELECT max(ready_at) FROM due))
            WHERE id = v_hold.id
        )
        SELECT count(*) FROM released INTO v_lanes;
        CONTINUE WHEN EXISTS (SELECT FROM rowcall.lanes WHERE hold = v_hold.id);
        DELETE FROM rowcall.holds WHERE id = v_hold.id;
        INSERT INTO rowcall.audit (actor, action, subject, detail) VALUES ('rowcall', 'release',
            coalesce('agent ' || v_hold.agent, 'tenant ' || v_hold.tenant, 'all agents'), json_build_object(
                'reason', v_hold.reason, 'tenant', v_hold.tenant, 'topic', v_hold.topic, 'detail', v_hold.detail));
        RETURN QUERY SELECT 'ended', v_hold.reason, v_hold.agent, v_hold.tenant, v_hold.topic, v_hold.detail;
    END LOOP;
    -- Held, and what somebody else holds is left to the next keeping: a run that a person has just cancelled may also
    -- become PENDING, and settle() would not know that nobody wants it to.
    SELECT array_agg(id) FROM (
        SELECT j.id FROM rowcall.agent_jobs j WHERE j.status = 'PARKED' AND j.reason = 'budget' AND NOT EXISTS (
            SELECT FROM rowcall.holds h WHERE h.reason = 'budget' AND h.until > rowcall.now()
            AND (h.agent IS NULL OR h.agent = j.job_type) AND (h.tenant IS NULL OR h.tenant = j.tenant))
        ORDER BY j.id LIMIT p_limit FOR UPDATE OF j SKIP LOCKED) parked INTO v_ids;
    IF v_ids IS NOT NULL THEN
        v_nothing := array_fill(NULL::text, ARRAY[cardinality(v_ids)]);
        PERFORM rowcall.settle(v_ids, v_nothing::bigint[], array_fill('PENDING'::text, ARRAY[cardinality(v_ids)]),
            v_nothing, v_nothing, v_nothing, v_nothing, v_nothing::double precision[],
            array_fill(0, ARRAY[cardinality(v_ids)]));
        PERFORM pg_notify('rowcall_work', '');
    END IF;
END $$;
