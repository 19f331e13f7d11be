-- name: transactions
-- State here and writing run of each 32-bit transaction ID.
SELECT txid, state, job_id, agent FROM rowcall.transactions(%(txids)s::bigint[]);

-- name: causes
-- What the runs that wrote captured rows were caused by themselves, and when they wrote, in ms since 1970.
SELECT id, job_type, coalesce(root_event, event_id, 'job:' || id) AS root, depth, chain,
    floor(extract(epoch FROM finished_at) * 1000)::bigint AS finished_ms
FROM rowcall.agent_jobs WHERE id = ANY (%(ids)s::bigint[]);

-- name: backlog
-- Jobs that wait, counted no further than the limit: those outside the lanes, and those inside (the few that run or
-- wait for a person with them). Both from indexes alone.
SELECT (SELECT count(*) FROM (SELECT FROM rowcall.agent_jobs WHERE lane_seq IS NULL AND status = 'PENDING'
                              LIMIT %(limit)s) AS outside)
    + (SELECT count(*) FROM (SELECT FROM rowcall.agent_jobs WHERE lane_seq IS NOT NULL
        AND status IN ('PENDING', 'RUNNING', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED')
        LIMIT %(limit)s) AS inside) AS waiting;

-- name: bound_statement
-- For house-keeping beside the loop: give up rather than hold it up.
SELECT set_config('statement_timeout', %(timeout)s, false);
