-- name: known_agents
-- The agents the database knows, and those among them that have ended.
SELECT name, state = 'RETIRED' AS retired FROM rowcall.agents;

-- name: enqueue
-- Queues a run, or coalesces it into the one that holds its dedupe_key; see sql/functions.
SELECT rowcall.enqueue(agent => %(agent)s, payload => %(payload)s::json, dedupe_key => %(dedupe_key)s, key => %(key)s,
    run_after => %(run_after)s, max_attempts => %(max_attempts)s, tenant => %(tenant)s, priority => %(priority)s,
    hold_key => %(hold_key)s) AS id;

-- name: hold_agent
-- Whether an agent has ended, held so that it cannot end before this transaction does. Lock order: after the run.
SELECT state = 'RETIRED' AS retired FROM rowcall.agents WHERE name = %s FOR SHARE;

-- name: queued
-- What came of it, asked in the same transaction: a job just born has taken nothing in yet.
SELECT id, status, run_after, EXISTS (SELECT FROM rowcall.coalesced_events c WHERE c.job_id = j.id) AS coalesced
FROM rowcall.agent_jobs j WHERE id = %s;
