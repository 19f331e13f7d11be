-- name: transactions
-- State here and writing run of each 32-bit transaction ID; the many that are visible and no run's are left out.
SELECT txid, state, job_id, agent FROM rowcall.transactions(%(txids)s::bigint[])
WHERE state <> 'visible' OR job_id IS NOT NULL;

-- name: causes
-- What the runs that wrote captured rows were caused by themselves, and when they wrote, in ms since 1970.
SELECT id, job_type, coalesce(root_event, event_id, 'job:' || id) AS root, depth, chain, key_hash AS lane,
    floor(extract(epoch FROM finished_at) * 1000)::bigint AS finished_ms
FROM rowcall.agent_jobs WHERE id = ANY (%(ids)s::bigint[]);

-- name: backlog
-- Jobs that wait for agents that can run, counted to about the limit: jobs of paused, retired and unknown agents may lie
-- for ever and must not hold up the others. Outside the lanes few wait for long, and no more than twice the limit are
-- looked at. Inside, an index alone gives an agent's live jobs; those that wait for a person or a retry are taken off
-- again (the few that run stay in).
WITH running AS MATERIALIZED (
    SELECT name FROM rowcall.agents
    WHERE state = 'ACTIVE' OR (state = 'PAUSED' AND paused_until <= rowcall.now())
), idle AS MATERIALIZED (
    SELECT count(*) AS jobs FROM (
        SELECT FROM rowcall.agent_jobs j JOIN running ON j.job_type = name
        WHERE j.lane_seq IS NOT NULL AND j.status IN ('WAITING_RETRY', 'WAITING_REVIEW', 'PARKED')
        LIMIT %(limit)s) AS resting
)
SELECT (SELECT count(*) FROM (SELECT job_type FROM rowcall.agent_jobs WHERE lane_seq IS NULL AND status = 'PENDING'
                              LIMIT 2 * %(limit)s) AS outside
        JOIN running ON job_type = name)
    + (SELECT count(*) FROM (
        SELECT FROM running CROSS JOIN LATERAL (
            SELECT FROM rowcall.agent_jobs j WHERE j.job_type = name AND j.lane_seq IS NOT NULL
            AND j.status IN ('PENDING', 'RUNNING', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED')
            LIMIT %(limit)s + (SELECT jobs FROM idle)) AS live
        LIMIT %(limit)s + (SELECT jobs FROM idle)) AS inside)
    - (SELECT jobs FROM idle) AS waiting;

-- name: any_alerts
-- Whether anything was parked inside the database and not alerted of yet.
SELECT EXISTS (SELECT FROM rowcall.causation_alerts) AS found;

-- name: take_alerts
-- What was parked inside the database and not alerted of yet; other intakes' share is left to them.
WITH taken AS (
    DELETE FROM rowcall.causation_alerts WHERE job_id IN (
        SELECT job_id FROM rowcall.causation_alerts ORDER BY job_id LIMIT 1000 FOR UPDATE SKIP LOCKED)
    RETURNING job_id
)
SELECT j.id, j.job_type AS agent, j.root_event AS root, j.last_error AS why
FROM taken JOIN rowcall.agent_jobs j ON j.id = taken.job_id ORDER BY j.id;

-- name: bound_statement
-- For house-keeping beside the loop: give up rather than hold it up.
SELECT set_config('statement_timeout', %(timeout)s, false);
