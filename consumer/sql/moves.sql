-- name: settle
-- The one way in which runs end or wait; see sql/functions. Returns the ids that moved. Long arrays travel in binary form
-- (b): quoting each answer for the text form of an array costs more than anything else that is done for a run.
SELECT rowcall.settle(%(ids)b::bigint[], %(epochs)b::bigint[], %(statuses)b::text[], %(results)b::text[], %(codes)s,
    %(errors)s, %(reasons)s, %(delays)s, %(attempts)s) AS id;

-- name: write_steps
-- The same for outcomes without SQL of the agent's, of the runs that moved.
INSERT INTO rowcall.job_steps (job_id, name, kind, number, output, agent_version, lease_epoch)
SELECT a.id, 'write_result', 'WRITE_RESULT', a.number, NULL, a.version, a.epoch
FROM unnest(%(ids)b::bigint[], %(numbers)b::integer[], %(versions)b::integer[], %(epochs)b::bigint[])
    AS a (id, number, version, epoch)
ON CONFLICT (job_id, name, superseded) DO NOTHING;

-- name: seconds_until
-- How long it is till a time, by the one clock of delays.
SELECT extract(epoch FROM %s::timestamptz - rowcall.now()) AS seconds;
