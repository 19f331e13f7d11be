-- Limits: concurrency, priority, rate, budgets and the storm breaker. What an agent's code says stands in
-- agents.options; what an operator says stands here and wins.

-- A run holds its slot by being RUNNING with it, so that whatever ends, releases or reclaims the run frees the slot.
ALTER TABLE rowcall.agent_jobs ADD COLUMN slot integer CHECK (slot > 0);
CREATE UNIQUE INDEX jobs_slot ON rowcall.agent_jobs (job_type, slot) WHERE status = 'RUNNING' AND slot IS NOT NULL;

ALTER TABLE rowcall.agent_jobs ADD CONSTRAINT priority_has_a_range CHECK (priority BETWEEN -100 AND 100);

-- An operator's limits of one agent, or of all that say nothing themselves ('*'). NULL leaves it to the agent's code,
-- 0 is no limit.
CREATE TABLE rowcall.limits (
    agent text PRIMARY KEY,
    concurrency integer CHECK (concurrency >= 0),
    rate_runs integer CHECK (rate_runs >= 0),
    rate_seconds double precision CHECK (rate_seconds > 0),
    storm integer CHECK (storm >= 0),
    priority smallint CHECK (priority BETWEEN -100 AND 100),
    updated_at timestamptz NOT NULL DEFAULT rowcall.now(),
    updated_by text NOT NULL,
    CONSTRAINT rate_is_whole CHECK ((rate_runs IS NULL) = (rate_seconds IS NULL))
);
-- What is in force: the operator's word, else the code's, else the operator's word for all agents.
CREATE VIEW rowcall.agent_limits AS
SELECT a.name AS agent, a.state, a.paused_until,
    nullif(coalesce(l.concurrency, (a.options ->> 'concurrency')::integer, d.concurrency), 0) AS concurrency,
    nullif(coalesce(l.rate_runs, (a.options ->> 'rate_runs')::integer, d.rate_runs), 0) AS rate_runs,
    coalesce(l.rate_seconds, (a.options ->> 'rate_seconds')::double precision, d.rate_seconds) AS rate_seconds,
    nullif(coalesce(l.storm, (a.options ->> 'storm')::integer, d.storm), 0) AS storm,
    coalesce(l.priority, (a.options ->> 'priority')::smallint, d.priority, 0) AS priority
FROM rowcall.agents a
LEFT JOIN rowcall.limits l ON l.agent = a.name LEFT JOIN rowcall.limits d ON d.agent = '*';

-- Token buckets: of an agent's rate, of a model endpoint's calls and tokens. Times are the database's.
CREATE TABLE rowcall.buckets (
    name text PRIMARY KEY,
    permits double precision NOT NULL,
    filled_at timestamptz NOT NULL DEFAULT rowcall.now(),
    paused_until timestamptz
) WITH (fillfactor = 50);

-- What may be spent in a window; NULL for an agent or tenant is any. Money in millionths.
CREATE TABLE rowcall.budgets (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent text,
    tenant text,
    period text NOT NULL CHECK (period IN ('hour', 'day', 'week', 'month', 'total')),
    tokens bigint CHECK (tokens >= 0),
    money bigint CHECK (money >= 0),
    updated_at timestamptz NOT NULL DEFAULT rowcall.now(),
    updated_by text NOT NULL,
    CONSTRAINT limits_something CHECK (tokens IS NOT NULL OR money IS NOT NULL),
    CONSTRAINT budgets_scope UNIQUE NULLS NOT DISTINCT (agent, tenant, period)
);
CREATE TABLE rowcall.budget_usage (
    budget_id bigint NOT NULL REFERENCES rowcall.budgets ON DELETE CASCADE,
    starts_at timestamptz NOT NULL,
    tokens bigint NOT NULL DEFAULT 0,
    money bigint NOT NULL DEFAULT 0,
    tokens_reserved bigint NOT NULL DEFAULT 0 CHECK (tokens_reserved >= 0),
    money_reserved bigint NOT NULL DEFAULT 0 CHECK (money_reserved >= 0),
    PRIMARY KEY (budget_id, starts_at)
) WITH (fillfactor = 50);
-- Each model call that a budget or a cap counts: reserved before it leaves, settled with what it used, freed when its
-- run died. A freed call that answers late is settled all the same.
CREATE TABLE rowcall.spend (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    agent text NOT NULL,
    tenant text NOT NULL,
    root_event text,
    state text NOT NULL DEFAULT 'RESERVED' CHECK (state IN ('RESERVED', 'SETTLED', 'FREED')),
    tokens bigint NOT NULL CHECK (tokens >= 0),
    money bigint NOT NULL CHECK (money >= 0),
    budget_ids bigint[] NOT NULL,
    starts timestamptz[] NOT NULL,
    at timestamptz NOT NULL DEFAULT rowcall.now()
);
CREATE INDEX spend_job ON rowcall.spend (job_id);
CREATE INDEX spend_root ON rowcall.spend (root_event) WHERE root_event IS NOT NULL;
CREATE INDEX spend_reserved ON rowcall.spend (id) WHERE state = 'RESERVED';

-- Jobs promoted of one agent and source topic in the clock minute; kept for agents with a storm limit alone.
CREATE TABLE rowcall.storm_counts (
    agent text NOT NULL,
    topic text NOT NULL,
    minute timestamptz NOT NULL,
    jobs bigint NOT NULL,
    PRIMARY KEY (agent, topic)
);

-- What claims must leave alone until `until`: a whole agent, or those of its lanes whose head is of a tenant or topic.
-- A storm's lanes are let go one after the other: those that were ready up to `released_to` have gone.
CREATE TABLE rowcall.holds (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reason text NOT NULL CHECK (reason IN ('budget', 'storm')),
    agent text,
    tenant text,
    topic text,
    budget_id bigint UNIQUE REFERENCES rowcall.budgets ON DELETE CASCADE,
    since timestamptz NOT NULL DEFAULT rowcall.now(),
    until timestamptz NOT NULL,
    lanes_per_second double precision CHECK (lanes_per_second > 0),
    released_at timestamptz,
    released_to timestamptz NOT NULL DEFAULT '-infinity',
    told boolean NOT NULL DEFAULT false,
    detail text NOT NULL,
    CONSTRAINT budget_or_storm CHECK ((reason = 'budget') = (budget_id IS NOT NULL)
        AND (reason = 'storm') = (topic IS NOT NULL AND agent IS NOT NULL))
);
CREATE UNIQUE INDEX holds_storm ON rowcall.holds (agent, topic) WHERE reason = 'storm';

-- A lane has its head's priority. A held lane is out of the index of ready ones, and back in it when its hold goes.
ALTER TABLE rowcall.lanes ADD COLUMN priority smallint NOT NULL DEFAULT 0;
ALTER TABLE rowcall.lanes ADD COLUMN hold bigint REFERENCES rowcall.holds ON DELETE SET NULL;
DROP INDEX rowcall.lanes_ready;
CREATE INDEX lanes_ready ON rowcall.lanes (agent, priority DESC, ready_at, head)
    WHERE ready_at IS NOT NULL AND hold IS NULL;
CREATE INDEX lanes_held ON rowcall.lanes (hold, ready_at, head) WHERE hold IS NOT NULL;
CREATE INDEX jobs_parked_budget ON rowcall.agent_jobs (id) WHERE status = 'PARKED' AND reason = 'budget';
