-- free_reservations: give back what was reserved for calls of runs that are no longer under way in the epoch that made
-- them: their worker died, or was stopped in the middle of the call. How many. Locks as settle_calls does.
CREATE FUNCTION rowcall.free_reservations(p_limit integer) RETURNS integer LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_mergejoin = off
AS $$
DECLARE
    v_ids bigint[];
BEGIN
    v_ids := ARRAY(
        SELECT s.id FROM rowcall.spend s WHERE s.state = 'RESERVED' AND NOT EXISTS (
            SELECT FROM rowcall.agent_jobs j
            WHERE j.id = s.job_id AND j.lease_epoch = s.lease_epoch AND j.status = 'RUNNING')
        ORDER BY s.id LIMIT p_limit FOR UPDATE OF s SKIP LOCKED);
    IF v_ids = '{}' THEN
        RETURN 0;
    END IF;
    PERFORM FROM rowcall.budget_usage u WHERE (u.budget_id, u.starts_at) IN (
        SELECT c.id, c.starts FROM rowcall.spend s, unnest(s.budget_ids, s.starts) AS c (id, starts)
        WHERE s.id = ANY (v_ids))
    ORDER BY u.budget_id, u.starts_at FOR UPDATE;
    WITH freed AS (
        UPDATE rowcall.spend SET state = 'FREED' WHERE id = ANY (v_ids) AND state = 'RESERVED'
        RETURNING tokens, money, budget_ids, starts
    ), sums AS (
        SELECT c.id, c.starts, sum(f.tokens) AS tokens, sum(f.money) AS money
        FROM freed f, unnest(f.budget_ids, f.starts) AS c (id, starts) GROUP BY 1, 2
    )
    UPDATE rowcall.budget_usage u
    SET tokens_reserved = u.tokens_reserved - s.tokens, money_reserved = u.money_reserved - s.money
    FROM sums s WHERE u.budget_id = s.id AND u.starts_at = s.starts;
    RETURN cardinality(v_ids);
END $$;
