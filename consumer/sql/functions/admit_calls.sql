-- admit_calls: what may leave for the model now, one element an array position, in order. p_tokens and p_money are what
-- each call may use at most. Verdicts: go (with the reservation to settle, if anything counts it); wait (seconds: the
-- endpoint is paused, its rate is used up, or calls under way hold what is left of a budget); spent (a budget: its hold
-- is made here, once); too_large (more than a whole budget); run_cap and root_cap (of the agent's options); lost (the
-- lease). Locks in the order bucket, roots, usage rows by budget; settle_calls never waits for a bucket or a root.
CREATE FUNCTION rowcall.admit_calls(
    p_ids bigint[], p_epochs bigint[], p_tokens bigint[], p_money bigint[], p_endpoint text,
    p_calls double precision, p_calls_seconds double precision, p_rate double precision, p_rate_seconds double precision
) RETURNS TABLE (job_id bigint, epoch bigint, verdict text, seconds double precision, reservation bigint, detail text)
LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_item record;
    v_budget record;
    v_calls double precision;
    v_rate double precision;
    v_pause double precision := 0;
    v_waiting integer := 0;
    v_tokens_ahead double precision := 0;
    v_ids bigint[];
    v_starts timestamptz[];
    v_spent record;
BEGIN
    IF p_calls IS NULL AND p_rate IS NULL AND NOT EXISTS (SELECT FROM rowcall.budgets)
        AND NOT EXISTS (SELECT FROM rowcall.buckets WHERE name = 'calls:' || p_endpoint AND paused_until > rowcall.now())
        AND NOT EXISTS (SELECT FROM rowcall.agents
            WHERE options ?| ARRAY['run_tokens', 'run_money', 'root_tokens', 'root_money'])
    THEN
        RETURN QUERY SELECT u.id, u.epoch, 'go', 0::double precision, NULL::bigint, NULL::text
            FROM unnest(p_ids, p_epochs) AS u (id, epoch);
        RETURN;
    END IF;
    IF p_calls IS NOT NULL OR p_rate IS NOT NULL THEN
        INSERT INTO rowcall.buckets (name, permits) VALUES ('calls:' || p_endpoint, coalesce(greatest(1, p_calls / 10), 0)),
            ('tokens:' || p_endpoint, coalesce(p_rate / 10, 0)) ON CONFLICT DO NOTHING;
        PERFORM FROM rowcall.buckets WHERE name IN ('calls:' || p_endpoint, 'tokens:' || p_endpoint) ORDER BY name
            FOR UPDATE;
        SELECT CASE WHEN p_calls IS NOT NULL THEN least(greatest(1, p_calls / 10),
            permits + p_calls / p_calls_seconds * extract(epoch FROM rowcall.now() - filled_at)) END
        FROM rowcall.buckets WHERE name = 'calls:' || p_endpoint INTO v_calls;
        SELECT CASE WHEN p_rate IS NOT NULL THEN least(p_rate / 10,
            permits + p_rate / p_rate_seconds * extract(epoch FROM rowcall.now() - filled_at)) END
        FROM rowcall.buckets WHERE name = 'tokens:' || p_endpoint INTO v_rate;
    END IF;
    SELECT greatest(0, extract(epoch FROM b.paused_until - rowcall.now())) FROM rowcall.buckets b
        WHERE b.name = 'calls:' || p_endpoint AND b.paused_until > rowcall.now() INTO v_pause;
    v_pause := coalesce(v_pause, 0);
    PERFORM pg_advisory_xact_lock(hashtextextended('rowcall.root ' || root_event, 0)) FROM (
        SELECT DISTINCT j.root_event FROM rowcall.agent_jobs j JOIN rowcall.agents a ON a.name = j.job_type
        WHERE j.id = ANY (p_ids) AND j.root_event IS NOT NULL AND a.options ?| ARRAY['root_tokens', 'root_money']
        ORDER BY 1) roots;
    INSERT INTO rowcall.budget_usage (budget_id, starts_at)
    SELECT DISTINCT b.id, rowcall.period_start(b.period) FROM rowcall.budgets b JOIN rowcall.agent_jobs j
        ON j.id = ANY (p_ids) AND (b.agent IS NULL OR b.agent = j.job_type) AND (b.tenant IS NULL OR b.tenant = j.tenant)
    WHERE NOT EXISTS (SELECT FROM rowcall.budget_usage u
        WHERE u.budget_id = b.id AND u.starts_at = rowcall.period_start(b.period))
    ORDER BY 1 ON CONFLICT DO NOTHING;
    PERFORM FROM rowcall.budget_usage u JOIN rowcall.budgets b ON b.id = u.budget_id
    WHERE u.starts_at = rowcall.period_start(b.period) AND EXISTS (
        SELECT FROM rowcall.agent_jobs j WHERE j.id = ANY (p_ids)
        AND (b.agent IS NULL OR b.agent = j.job_type) AND (b.tenant IS NULL OR b.tenant = j.tenant))
    ORDER BY u.budget_id FOR UPDATE OF u;
    FOR v_item IN
        SELECT u.*, j.job_type, j.tenant, j.root_event, j.status = 'RUNNING' AND j.lease_epoch = u.epoch AS mine,
            (a.options ->> 'run_tokens')::bigint AS run_tokens, (a.options ->> 'run_money')::bigint AS run_money,
            (a.options ->> 'root_tokens')::bigint AS root_tokens, (a.options ->> 'root_money')::bigint AS root_money
        FROM unnest(p_ids, p_epochs, p_tokens, p_money) WITH ORDINALITY AS u (id, epoch, tokens, money, n)
        JOIN rowcall.agent_jobs j ON j.id = u.id LEFT JOIN rowcall.agents a ON a.name = j.job_type ORDER BY u.n
    LOOP
        job_id := v_item.id;
        epoch := v_item.epoch;
        verdict := CASE WHEN v_item.mine THEN 'go' ELSE 'lost' END;
        seconds := 0;
        reservation := NULL;
        detail := NULL;
        v_ids := '{}';
        v_starts := '{}';
        IF verdict = 'go' AND (v_item.run_tokens IS NOT NULL OR v_item.run_money IS NOT NULL) THEN
            SELECT coalesce(sum(s.tokens), 0) AS tokens, coalesce(sum(s.money), 0) AS money FROM rowcall.spend s
            WHERE s.job_id = v_item.id AND s.state <> 'FREED' INTO v_spent;
            IF v_spent.tokens + v_item.tokens > v_item.run_tokens OR v_spent.money + v_item.money > v_item.run_money THEN
                verdict := 'run_cap';
                detail := format('the run has used %s tokens and %s millionths', v_spent.tokens, v_spent.money);
            END IF;
        END IF;
        IF verdict = 'go' AND v_item.root_event IS NOT NULL
            AND (v_item.root_tokens IS NOT NULL OR v_item.root_money IS NOT NULL)
        THEN
            SELECT coalesce(sum(s.tokens), 0) AS tokens, coalesce(sum(s.money), 0) AS money FROM rowcall.spend s
            WHERE s.root_event = v_item.root_event AND s.state <> 'FREED' INTO v_spent;
            IF v_spent.tokens + v_item.tokens > v_item.root_tokens
                OR v_spent.money + v_item.money > v_item.root_money
            THEN
                verdict := 'root_cap';
                detail := format('runs of root event %s have used %s tokens and %s millionths', v_item.root_event,
                    v_spent.tokens, v_spent.money);
            END IF;
        END IF;
        FOR v_budget IN
            SELECT b.id, b.agent, b.tenant, b.period, b.tokens AS tokens_limit, b.money AS money_limit, u.*
            FROM rowcall.budgets b JOIN rowcall.budget_usage u
                ON u.budget_id = b.id AND u.starts_at = rowcall.period_start(b.period)
            WHERE (b.agent IS NULL OR b.agent = v_item.job_type) AND (b.tenant IS NULL OR b.tenant = v_item.tenant)
            ORDER BY b.id
        LOOP
            EXIT WHEN verdict NOT IN ('go', 'wait');
            v_ids := v_ids || v_budget.id;
            v_starts := v_starts || v_budget.starts_at;
            IF v_item.tokens > v_budget.tokens_limit OR v_item.money > v_budget.money_limit THEN
                verdict := 'too_large';
                detail := format('budget %s allows %s tokens, %s millionths; this call may use %s, %s', v_budget.id,
                    v_budget.tokens_limit, v_budget.money_limit, v_item.tokens, v_item.money);
            ELSIF v_budget.tokens + v_item.tokens > v_budget.tokens_limit
                OR v_budget.money + v_item.money > v_budget.money_limit
            THEN
                verdict := 'spent';
                detail := format('budget %s (%s, %s, %s): %s of %s tokens, %s of %s millionths used', v_budget.id,
                    coalesce(v_budget.agent, 'any agent'), coalesce(v_budget.tenant, 'any tenant'), v_budget.period,
                    v_budget.tokens, coalesce(v_budget.tokens_limit::text, 'any'), v_budget.money,
                    coalesce(v_budget.money_limit::text, 'any'));
                INSERT INTO rowcall.holds AS h (reason, agent, tenant, budget_id, until, detail)
                VALUES ('budget', v_budget.agent, v_budget.tenant, v_budget.id, rowcall.period_end(v_budget.period), detail)
                ON CONFLICT (budget_id) DO UPDATE SET until = excluded.until, detail = excluded.detail,
                    told = h.told AND h.until > rowcall.now();
            ELSIF v_budget.tokens + v_budget.tokens_reserved + v_item.tokens > v_budget.tokens_limit
                OR v_budget.money + v_budget.money_reserved + v_item.money > v_budget.money_limit
            THEN
                verdict := 'wait';
                seconds := 0.5;
                detail := format('calls under way hold what is left of budget %s', v_budget.id);
            END IF;
        END LOOP;
        IF verdict = 'go' AND v_pause > 0 THEN
            verdict := 'wait';
            -- apart, or all that waited would meet the endpoint at once
            seconds := v_pause + random() * least(5.0, v_pause);
            detail := 'the endpoint has asked for a pause';
        ELSIF verdict = 'go' AND (v_calls < 1 OR v_rate < least(v_item.tokens, p_rate / 10)) THEN
            verdict := 'wait';
            v_waiting := v_waiting + 1;
            v_tokens_ahead := v_tokens_ahead + v_item.tokens;
            seconds := greatest(coalesce((v_waiting - v_calls) * p_calls_seconds / p_calls, 0),
                coalesce((v_tokens_ahead - v_rate) * p_rate_seconds / p_rate, 0), 0.01);
            detail := 'the rate of the endpoint is used up';
        END IF;
        IF verdict = 'go' THEN
            v_calls := v_calls - 1;
            v_rate := v_rate - v_item.tokens;
            IF v_ids <> '{}' OR v_item.run_tokens IS NOT NULL OR v_item.run_money IS NOT NULL
                OR v_item.root_tokens IS NOT NULL OR v_item.root_money IS NOT NULL
            THEN
                INSERT INTO rowcall.spend
                    (job_id, lease_epoch, agent, tenant, root_event, tokens, money, budget_ids, starts)
                VALUES (v_item.id, v_item.epoch, v_item.job_type, v_item.tenant, v_item.root_event, v_item.tokens,
                    v_item.money, v_ids, v_starts)
                RETURNING id INTO reservation;
                UPDATE rowcall.budget_usage u SET tokens_reserved = u.tokens_reserved + v_item.tokens,
                    money_reserved = u.money_reserved + v_item.money
                FROM unnest(v_ids, v_starts) AS c (id, starts) WHERE u.budget_id = c.id AND u.starts_at = c.starts;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    UPDATE rowcall.buckets SET permits = v_calls, filled_at = rowcall.now()
    WHERE name = 'calls:' || p_endpoint AND v_calls IS NOT NULL;
    UPDATE rowcall.buckets SET permits = v_rate, filled_at = rowcall.now()
    WHERE name = 'tokens:' || p_endpoint AND v_rate IS NOT NULL;
END $$;
