-- name: now
-- The clock detectors look at, in seconds since 1970.
SELECT extract(epoch FROM rowcall.now())::double precision AS now;

-- name: own
-- Take a source for this session; false while another process has it.
SELECT pg_try_advisory_lock(hashtext('rowcall.drift'), hashtext(%s)) AS owned;

-- name: positions
-- Where to go on reading.
SELECT topic_id, partition, next_offset FROM rowcall.drift_positions WHERE source = %s AND cluster_id = %s;

-- name: advance
-- Moves positions, in the transaction of the states that were computed from what was read.
INSERT INTO rowcall.drift_positions (source, cluster_id, topic_id, partition, next_offset)
SELECT v.source, %(cluster)s, v.topic_id, v.partition, v.next_offset
FROM unnest(%(sources)s::text[], %(topic_ids)s::text[], %(partitions)s::integer[], %(offsets)s::bigint[])
    AS v (source, topic_id, partition, next_offset)
ON CONFLICT (source, cluster_id, topic_id, partition) DO UPDATE
    SET next_offset = excluded.next_offset, updated_at = rowcall.now();

-- name: polled
-- When a query was last run, in seconds since 1970.
SELECT extract(epoch FROM polled_at)::double precision AS at FROM rowcall.drift_polls WHERE source = %s;

-- name: poll
-- A query has been run.
INSERT INTO rowcall.drift_polls (source, polled_at) VALUES (%(source)s, to_timestamp(%(at)s))
ON CONFLICT (source) DO UPDATE SET polled_at = excluded.polled_at;

-- name: seen
-- The digests of the last batches of a source, the latest first.
SELECT digests FROM rowcall.drift_seen WHERE source = %s ORDER BY id DESC LIMIT 2000;

-- name: note_seen
-- The digests of one batch.
INSERT INTO rowcall.drift_seen (source, digests, count) VALUES (%s, %s, %s);

-- name: prune_seen
-- Batches beyond the last 100,000 IDs of a source.
DELETE FROM rowcall.drift_seen WHERE id IN (SELECT id FROM (
    SELECT id, sum(count) OVER (ORDER BY id DESC) AS total FROM rowcall.drift_seen WHERE source = %s) AS s
    WHERE total > 100000);

-- name: load
-- States of segments.
SELECT s.monitor, s.segment, s.state::text AS state FROM rowcall.drift_state s
JOIN unnest(%s::text[], %s::text[]) AS v (monitor, segment) ON s.monitor = v.monitor AND s.segment = v.segment;

-- name: known
-- How many segments each monitor has.
SELECT monitor, count(*) AS segments FROM rowcall.drift_state WHERE monitor = ANY (%s) GROUP BY monitor;

-- name: save
-- Writes states, in key order.
INSERT INTO rowcall.drift_state AS s (monitor, segment, status, episode, samples, due_at, state)
SELECT v.monitor, v.segment, v.status, v.episode, v.samples, to_timestamp(v.due), v.state::json
FROM unnest(%(monitors)b::text[], %(segments)b::text[], %(statuses)b::text[], %(episodes)s::bigint[],
            %(samples)s::bigint[], %(dues)s::double precision[], %(states)b::text[])
    AS v (monitor, segment, status, episode, samples, due, state)
ON CONFLICT (monitor, segment) DO UPDATE SET status = excluded.status, episode = excluded.episode,
    samples = excluded.samples, due_at = excluded.due_at, state = excluded.state, updated_at = rowcall.now();

-- name: due
-- Segments whose time has come.
SELECT monitor, segment FROM rowcall.drift_state WHERE due_at <= rowcall.now() AND monitor = ANY (%s)
ORDER BY due_at LIMIT 5000;

-- name: write_event
-- An event that is to be sent; the same one is written once.
INSERT INTO rowcall.drift_events (id, topic, schema, key, payload, occurred_at, event_type)
VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO NOTHING;

-- name: unsent
-- Events that nobody has confirmed, in the order they were decided.
SELECT number, id, topic, schema, key, payload, occurred_at, event_type FROM rowcall.drift_events
WHERE sent_at IS NULL ORDER BY number LIMIT 500;

-- name: sent
-- The brokers have them.
UPDATE rowcall.drift_events SET sent_at = rowcall.now() WHERE number = ANY (%s);

-- name: list
-- Segments by monitor and status.
SELECT monitor, status, count(*) AS segments, sum(samples)::bigint AS samples, max(episode) AS episodes,
    max(updated_at) AS updated_at FROM rowcall.drift_state GROUP BY monitor, status ORDER BY monitor, status;

-- name: show
-- The segments of one monitor, those that are not ok first.
SELECT segment, status, episode, samples, due_at, updated_at, state::text AS state FROM rowcall.drift_state
WHERE monitor = %s ORDER BY (status IN ('ok', 'warming')), updated_at DESC LIMIT %s;

-- name: events
-- The last events of a monitor.
SELECT occurred_at, topic, event_type, payload, sent_at FROM rowcall.drift_events
WHERE key = %s OR starts_with(key, %s || ':') ORDER BY number DESC LIMIT %s;

-- name: watch_backlog
-- Jobs that wait, by agent.
SELECT 'agent:' || job_type AS queue, count(*)::double precision AS value FROM rowcall.agent_jobs
WHERE status IN ('PENDING', 'WAITING_RETRY') GROUP BY job_type
UNION ALL SELECT 'agent:' || name, 0 FROM rowcall.agents a WHERE NOT EXISTS (SELECT 1 FROM rowcall.agent_jobs j
    WHERE j.job_type = a.name AND j.status IN ('PENDING', 'WAITING_RETRY'));

-- name: watch_lag
-- How far intake has read each topic.
SELECT topic, partition, next_offset FROM rowcall.positions WHERE cluster_id = %(cluster)s;

-- name: watch_validation
-- Model calls whose answer was validated, 1 where it failed.
SELECT j.job_type AS agent, CASE WHEN c.validated THEN 0 ELSE 1 END AS value
FROM rowcall.external_calls c JOIN rowcall.agent_jobs j ON j.id = c.job_id
WHERE c.kind = 'model' AND c.validated IS NOT NULL AND c.finished_at > to_timestamp(%(since)s)
    AND c.finished_at <= to_timestamp(%(until)s) ORDER BY c.finished_at, c.id;

-- name: watch_risk
-- The risk level of each result.
SELECT job_type AS agent, coalesce(result ->> 'risk_level', result ->> 'risk') AS value FROM rowcall.agent_jobs
WHERE status IN ('SUCCEEDED', 'WAITING_REVIEW') AND result IS NOT NULL AND updated_at > to_timestamp(%(since)s)
    AND updated_at <= to_timestamp(%(until)s) ORDER BY updated_at, id;

-- name: watch_tokens
-- Tokens of each model call.
SELECT j.job_type AS agent, coalesce(c.prompt_tokens, 0) + coalesce(c.completion_tokens, 0) AS value
FROM rowcall.external_calls c JOIN rowcall.agent_jobs j ON j.id = c.job_id
WHERE c.kind = 'model' AND c.prompt_tokens IS NOT NULL AND c.finished_at > to_timestamp(%(since)s)
    AND c.finished_at <= to_timestamp(%(until)s) ORDER BY c.finished_at, c.id;

-- name: watch_latency
-- Milliseconds of each model call.
SELECT j.job_type AS agent, c.duration_ms AS value
FROM rowcall.external_calls c JOIN rowcall.agent_jobs j ON j.id = c.job_id
WHERE c.kind = 'model' AND c.duration_ms IS NOT NULL AND c.finished_at > to_timestamp(%(since)s)
    AND c.finished_at <= to_timestamp(%(until)s) ORDER BY c.finished_at, c.id;
