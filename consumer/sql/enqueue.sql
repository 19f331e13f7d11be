-- name: known_agents
-- The agents the database knows, and those among them that have ended.
SELECT name, state = 'RETIRED' AS retired FROM rowcall.agents;

-- name: enqueue
-- Queues a run, or coalesces it into the one that holds its dedupe_key; see 0002_moves.sql.
SELECT rowcall.enqueue(agent => %(agent)s, payload => %(payload)s::json, dedupe_key => %(dedupe_key)s, key => %(key)s,
    run_after => %(run_after)s, max_attempts => %(max_attempts)s, tenant => %(tenant)s) AS id;

-- name: queued
-- What came of it, asked in the same transaction: a job just born has taken nothing in yet.
SELECT id, status, merged_count > 0 AS coalesced, run_after FROM rowcall.agent_jobs WHERE id = %s;
