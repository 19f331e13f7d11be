-- name: limits
-- What is in force for each agent, what of it is an operator's word, and how much is in use.
SELECT a.agent, a.state, a.concurrency,
    (SELECT count(*) FROM rowcall.agent_jobs j
     WHERE j.job_type = a.agent AND j.status = 'RUNNING' AND j.slot IS NOT NULL) AS slots_taken,
    a.rate_runs, a.rate_seconds, a.priority, a.storm,
    concat_ws(', ', CASE WHEN l.concurrency IS NOT NULL THEN 'concurrency' END, CASE WHEN l.rate_runs IS NOT NULL THEN 'rate' END,
        CASE WHEN l.priority IS NOT NULL THEN 'priority' END, CASE WHEN l.storm IS NOT NULL THEN 'storm' END) AS set_here,
    l.updated_by, l.updated_at
FROM rowcall.agent_limits a LEFT JOIN rowcall.limits l ON l.agent = a.agent
WHERE %(agent)s::text IS NULL OR a.agent = %(agent)s ORDER BY a.agent;

-- name: default_limits
-- The operator's word for all agents that say nothing themselves.
SELECT agent, concurrency, rate_runs, rate_seconds, priority, storm, updated_by, updated_at
FROM rowcall.limits WHERE agent = '*';

-- name: set_limits
-- Writes what is given and leaves the rest as it is; rate_seconds comes with rate_runs.
INSERT INTO rowcall.limits AS l (agent, concurrency, rate_runs, rate_seconds, priority, storm, updated_by)
VALUES (%(agent)s, %(concurrency)s, %(rate_runs)s, %(rate_seconds)s, %(priority)s, %(storm)s, %(actor)s)
ON CONFLICT (agent) DO UPDATE SET concurrency = coalesce(excluded.concurrency, l.concurrency),
    rate_runs = coalesce(excluded.rate_runs, l.rate_runs), rate_seconds = coalesce(excluded.rate_seconds, l.rate_seconds),
    priority = coalesce(excluded.priority, l.priority), storm = coalesce(excluded.storm, l.storm),
    updated_by = excluded.updated_by, updated_at = rowcall.now();

-- name: clear_limits
-- Forgets the operator's word, so that the code's counts again.
DELETE FROM rowcall.limits WHERE agent = %s RETURNING agent;

-- name: knows_agent
-- Whether the database knows an agent of this name.
SELECT name FROM rowcall.agents WHERE name = %s;

-- name: holds
-- Claims that are held now, and how many lanes each hold has put aside.
SELECT h.id, h.reason, h.agent, h.tenant, h.topic, h.since, h.until, h.lanes_per_second, h.detail,
    (SELECT count(*) FROM rowcall.lanes l WHERE l.hold = h.id) AS lanes_held
FROM rowcall.holds h WHERE %(reason)s::text IS NULL OR h.reason = %(reason)s ORDER BY h.id;

-- name: end_storm
-- Lets the lanes of a storm go as fast as claims take them; the executor's next keeping does it.
UPDATE rowcall.holds SET until = least(until, rowcall.now()), lanes_per_second = NULL
WHERE reason = 'storm' AND agent = %(agent)s AND (%(topic)s::text IS NULL OR topic = %(topic)s) RETURNING topic;

-- name: budgets
-- Budgets with what is used and reserved of their present window.
SELECT b.id, b.agent, b.tenant, b.period, b.tokens, coalesce(u.tokens, 0) AS tokens_used,
    coalesce(u.tokens_reserved, 0) AS tokens_reserved, b.money, coalesce(u.money, 0) AS money_used,
    coalesce(u.money_reserved, 0) AS money_reserved, rowcall.period_end(b.period) AS window_ends,
    EXISTS (SELECT FROM rowcall.holds h WHERE h.budget_id = b.id AND h.until > rowcall.now()) AS spent,
    (SELECT count(*) FROM rowcall.agent_jobs j WHERE j.status = 'PARKED' AND j.reason = 'budget'
     AND (b.agent IS NULL OR b.agent = j.job_type) AND (b.tenant IS NULL OR b.tenant = j.tenant)) AS parked,
    b.updated_by, b.updated_at
FROM rowcall.budgets b LEFT JOIN rowcall.budget_usage u
    ON u.budget_id = b.id AND u.starts_at = rowcall.period_start(b.period)
WHERE %(id)s::bigint IS NULL OR b.id = %(id)s ORDER BY b.id;

-- name: windows_of
-- What a budget's windows have used, newest first.
SELECT CASE WHEN isfinite(starts_at) THEN starts_at END AS window_began, tokens, money
FROM rowcall.budget_usage WHERE budget_id = %s ORDER BY starts_at DESC LIMIT 30;

-- name: set_budget
-- Makes a budget or changes its amounts; what is not given stays. Its use counts from when it was made.
INSERT INTO rowcall.budgets AS b (agent, tenant, period, tokens, money, updated_by)
VALUES (%(agent)s, %(tenant)s, %(period)s, %(tokens)s, %(money)s, %(actor)s)
ON CONFLICT ON CONSTRAINT budgets_scope DO UPDATE SET tokens = coalesce(excluded.tokens, b.tokens),
    money = coalesce(excluded.money, b.money), updated_by = excluded.updated_by, updated_at = rowcall.now()
RETURNING id;

-- name: end_budget_hold
-- A budget was changed: whether it is still spent is for the next call to say.
UPDATE rowcall.holds SET until = least(until, rowcall.now()) WHERE budget_id = %s;

-- name: remove_budget
-- Ends a budget, with its hold and its use.
DELETE FROM rowcall.budgets WHERE id = %s RETURNING agent, tenant, period;
