-- name: fence
-- First statement of an outcome transaction: locks the run, tells whether it is still ours, and binds the transaction
-- to it, so that every row the transaction writes can be traced back from the log. The server ends the transaction at
-- the run's deadline: a statement that hangs is beyond our own timers.
WITH fenced AS (
    UPDATE rowcall.agent_jobs SET result_txid = pg_current_xact_id()::text::bigint, result_system = %(system)s
    WHERE id = %(id)s AND lease_epoch = %(epoch)s AND status = 'RUNNING' RETURNING id, deadline
)
SELECT id, set_config('transaction_timeout',
    greatest(1000, extract(epoch FROM deadline - rowcall.now()) * 1000)::bigint || 'ms', true) FROM fenced;

-- name: finish
-- Last statement of an outcome transaction: the checkpoint of the outcome itself (how many rows the agent's SQL touched
-- and how many records it sent), and the run's move by the one function that moves runs. Returns the run, or nothing
-- where it may not move so: then all of it must be rolled back.
WITH kept AS (
    INSERT INTO rowcall.job_steps (job_id, name, kind, number, output, agent_version, lease_epoch, started_at)
    VALUES (%(id)s, 'write_result', 'WRITE_RESULT', %(number)s, %(output)s::json, %(version)s, %(epoch)s, %(started)s)
    ON CONFLICT (job_id, name, superseded) DO NOTHING
)
SELECT rowcall.settle(ARRAY[%(id)s::bigint], ARRAY[%(epoch)s::bigint], ARRAY['SUCCEEDED'], ARRAY[%(result)s::text],
    ARRAY[NULL::text], ARRAY[NULL::text], ARRAY[NULL::text], ARRAY[NULL::double precision], ARRAY[0]) AS id;

-- name: refresh_input
-- A run whose row has changed starts again on the row as it stands: what a person approved was about the old one.
UPDATE rowcall.agent_jobs SET payload = %(payload)s::json, steps_done = 0, agent_version = NULL,
    approved_answer = NULL, approved_by = NULL
WHERE id = %(id)s;

-- name: system_identifier
SELECT system_identifier FROM pg_control_system();
