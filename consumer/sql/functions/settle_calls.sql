-- settle_calls: put what calls really used in the place of what was reserved for them; NULL tokens are not known, and the
-- reservation stands as their use. Not fenced: a call that was paid is counted, whoever has the run by now. A reservation
-- that was freed is counted too, a settled one never again. Locks spend by id, then usage by budget.
CREATE FUNCTION rowcall.settle_calls(p_ids bigint[], p_tokens bigint[], p_money bigint[]) RETURNS integer
LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_mergejoin = off
AS $$
DECLARE
    v_count integer;
BEGIN
    PERFORM FROM rowcall.spend s WHERE s.id = ANY (p_ids) ORDER BY s.id FOR UPDATE;
    PERFORM FROM rowcall.budget_usage u WHERE (u.budget_id, u.starts_at) IN (
        SELECT c.id, c.starts FROM rowcall.spend s, unnest(s.budget_ids, s.starts) AS c (id, starts)
        WHERE s.id = ANY (p_ids))
    ORDER BY u.budget_id, u.starts_at FOR UPDATE;
    WITH used AS MATERIALIZED (
        SELECT s.id, s.state, s.tokens AS reserved, s.money AS reserved_money, coalesce(a.tokens, s.tokens) AS tokens,
            coalesce(a.money, s.money) AS money, s.budget_ids, s.starts
        FROM unnest(p_ids, p_tokens, p_money) AS a (id, tokens, money) JOIN rowcall.spend s ON s.id = a.id
        WHERE s.state <> 'SETTLED'
    ), settled AS (
        UPDATE rowcall.spend s SET state = 'SETTLED', tokens = u.tokens, money = u.money FROM used u WHERE s.id = u.id
        RETURNING 1
    ), sums AS (
        SELECT c.id, c.starts, sum(u.tokens) AS tokens, sum(u.money) AS money,
            coalesce(sum(u.reserved) FILTER (WHERE u.state = 'RESERVED'), 0) AS reserved,
            coalesce(sum(u.reserved_money) FILTER (WHERE u.state = 'RESERVED'), 0) AS reserved_money
        FROM used u, unnest(u.budget_ids, u.starts) AS c (id, starts) GROUP BY 1, 2
    ), charged AS (
        UPDATE rowcall.budget_usage u SET tokens = u.tokens + s.tokens, money = u.money + s.money,
            tokens_reserved = u.tokens_reserved - s.reserved, money_reserved = u.money_reserved - s.reserved_money
        FROM sums s WHERE u.budget_id = s.id AND u.starts_at = s.starts
    )
    SELECT count(*) FROM settled INTO v_count;
    RETURN v_count;
END $$;
