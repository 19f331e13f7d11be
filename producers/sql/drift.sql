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
-- Segments by monitor and status; a monitor that sees nothing says why.
WITH states AS (
    SELECT monitor, status, count(*) AS segments, sum(samples)::bigint AS samples, max(episode) AS episodes,
        max(updated_at) AS updated_at FROM rowcall.drift_state GROUP BY monitor, status
)
SELECT coalesce(s.monitor, m.name) AS monitor,
    CASE WHEN m.retired_at IS NOT NULL THEN 'retired' WHEN m.error IS NOT NULL AND NOT starts_with(m.source, 'topic:') THEN 'refused'
        ELSE coalesce(s.status, 'waiting') END AS state,
    s.status, coalesce(s.segments, 0) AS segments, coalesce(s.samples, 0) AS samples, coalesce(s.episodes, 0) AS episodes,
    s.updated_at, m.error, m.failed_at
FROM states s FULL JOIN rowcall.drift_monitors m ON m.name = s.monitor ORDER BY 1, 2, s.status;

-- name: show
-- The segments of one monitor, those that are not ok first.
SELECT segment, status, episode, samples, due_at, updated_at, state::text AS state FROM rowcall.drift_state
WHERE monitor = %s ORDER BY (status IN ('ok', 'warming')), updated_at DESC LIMIT %s;

-- name: declare
-- The monitors of this process, and those of which only a state is left from before they were noted.
INSERT INTO rowcall.drift_monitors (name, source)
SELECT * FROM unnest(%(names)s::text[], %(sources)s::text[])
UNION ALL SELECT DISTINCT monitor, '' FROM rowcall.drift_state s
    WHERE monitor <> ALL (%(names)s) AND NOT EXISTS (SELECT FROM rowcall.drift_monitors m WHERE m.name = s.monitor)
ON CONFLICT (name) DO UPDATE SET source = excluded.source, seen_at = rowcall.now(), retired_at = NULL;

-- name: retire
-- Monitors that no process has had in its file for ten minutes, while this one has its own.
UPDATE rowcall.drift_monitors SET retired_at = rowcall.now()
WHERE retired_at IS NULL AND seen_at < rowcall.now() - interval '10 minutes' RETURNING name;

-- name: refused
-- A query was refused, or a monitor of a topic sees nothing.
UPDATE rowcall.drift_monitors SET error = %(error)s, failed_at = rowcall.now() WHERE name = %(monitor)s;

-- name: answered
-- It was answered, or sees something, again.
UPDATE rowcall.drift_monitors SET error = NULL, failed_at = NULL WHERE name = %(monitor)s AND error IS NOT NULL;

-- name: ask_reset
-- A person wants new baselines.
INSERT INTO rowcall.drift_resets (monitor, segment, actor, reason) VALUES (%s, %s, %s, %s) RETURNING id;

-- name: audit
-- Who, and why.
INSERT INTO rowcall.audit (actor, action, subject, detail) VALUES (%s, 'reset drift', %s, %s::json);

-- name: is_known
-- Whether a monitor, or one segment of it, has a state.
SELECT EXISTS (SELECT FROM rowcall.drift_state WHERE monitor = %(monitor)s
    AND (%(segment)s::text IS NULL OR segment = %(segment)s)) AS known;

-- name: resets
-- The oldest reset that is not done, of these monitors.
SELECT id, monitor, segment, actor, reason, reached FROM rowcall.drift_resets
WHERE done_at IS NULL AND monitor = ANY (%s) ORDER BY id LIMIT 1;

-- name: reset_segments
-- The next segments of a reset.
SELECT segment FROM rowcall.drift_state WHERE monitor = %(monitor)s AND CASE WHEN %(segment)s::text IS NULL
    THEN segment > %(reached)s OR (segment = '' AND %(reached)s = '') ELSE segment = %(segment)s END
ORDER BY segment LIMIT %(limit)s;

-- name: reset_reached
-- How far a reset is.
UPDATE rowcall.drift_resets SET reached = %(reached)s, segments = segments + %(segments)s,
    done_at = CASE WHEN %(done)s THEN rowcall.now() END WHERE id = %(id)s;

-- name: resets_of
-- The last resets of a monitor.
SELECT asked_at, segment, actor, reason, segments, done_at FROM rowcall.drift_resets
WHERE monitor = %s ORDER BY id DESC LIMIT %s;

-- name: prune_events
-- Events that were sent long ago.
DELETE FROM rowcall.drift_events WHERE number IN (SELECT number FROM rowcall.drift_events
    WHERE sent_at < rowcall.now() - make_interval(days => %(days)s) ORDER BY sent_at LIMIT %(limit)s);

-- name: prune_states
-- What monitors left that have been retired for long.
DELETE FROM rowcall.drift_state WHERE (monitor, segment) IN (SELECT s.monitor, s.segment
    FROM rowcall.drift_state s JOIN rowcall.drift_monitors m ON m.name = s.monitor
    WHERE m.retired_at < rowcall.now() - make_interval(days => %(days)s) LIMIT %(limit)s);

-- name: prune_monitors
-- Those monitors, once they have no state any more, with what is left of their sources.
WITH gone AS (
    DELETE FROM rowcall.drift_monitors m WHERE m.retired_at < rowcall.now() - make_interval(days => %(days)s)
        AND NOT EXISTS (SELECT FROM rowcall.drift_state s WHERE s.monitor = m.name) RETURNING m.name, m.source
), idle AS (
    SELECT source FROM gone WHERE NOT EXISTS (SELECT FROM rowcall.drift_monitors m WHERE m.source = gone.source
        AND m.name NOT IN (SELECT name FROM gone))
), positions AS (
    DELETE FROM rowcall.drift_positions p USING idle WHERE p.source = idle.source
), polls AS (
    DELETE FROM rowcall.drift_polls p USING idle WHERE p.source = idle.source
), seen AS (
    DELETE FROM rowcall.drift_seen p USING idle WHERE p.source = idle.source
)
SELECT name FROM gone;

-- name: events
-- The last events of a monitor.
SELECT occurred_at, topic, event_type, payload, sent_at FROM rowcall.drift_events
WHERE key = %s OR starts_with(key, %s || ':') ORDER BY number DESC LIMIT %s;

-- name: watch_backlog
-- Jobs that could run and wait, by agent: how many, and for how long the oldest. One that is delayed on purpose is none.
WITH waiting AS (
    SELECT job_type, count(*)::double precision AS jobs, min(greatest(created_at, run_after)) AS since
    FROM rowcall.agent_jobs WHERE status IN ('PENDING', 'WAITING_RETRY') AND run_after <= rowcall.now()
    GROUP BY job_type
)
SELECT 'agent:' || coalesce(w.job_type, a.name) AS queue, coalesce(w.jobs, 0) AS value,
    coalesce(greatest(extract(epoch FROM rowcall.now() - w.since), 0), 0)::double precision AS oldest_seconds
FROM waiting w FULL JOIN (
    SELECT name FROM rowcall.agents
    -- A queue that is told to be full has to be told to be empty, whoever it belonged to.
    UNION SELECT substr(segment, 7) FROM rowcall.drift_state
    WHERE monitor = %(monitor)s AND status IN ('warning', 'critical') AND starts_with(segment, 'agent:')
) a ON a.name = w.job_type;

-- name: watch_lag
-- How far intake has read each topic.
SELECT topic, topic_id, partition, next_offset FROM rowcall.positions WHERE cluster_id = %(cluster)s;

-- name: watch_validation
-- Model calls whose answer was validated, 1 where it failed.
SELECT j.job_type AS agent, CASE WHEN c.validated THEN 0 ELSE 1 END AS value
FROM rowcall.external_calls c JOIN rowcall.agent_jobs j ON j.id = c.job_id
WHERE c.kind = 'model' AND c.validated IS NOT NULL AND c.finished_at > to_timestamp(%(since)s)
    AND c.finished_at <= to_timestamp(%(until)s) ORDER BY c.finished_at, c.id;

-- name: watch_risk
-- The risk level of each answer, once: of a run that was reviewed, as the model proposed it, when it did.
SELECT agent, coalesce(answer ->> 'risk_level', answer ->> 'risk') AS value FROM (
    SELECT j.id, j.job_type AS agent, j.result AS answer, j.finished_at AS at FROM rowcall.agent_jobs j
    WHERE j.status = 'SUCCEEDED' AND j.result IS NOT NULL
        AND NOT EXISTS (SELECT FROM rowcall.reviews r WHERE r.job_id = j.id AND r.proposed_answer IS NOT NULL)
    UNION ALL SELECT j.id, j.job_type, r.proposed_answer, r.opened_at
    FROM rowcall.reviews r JOIN rowcall.agent_jobs j ON j.id = r.job_id WHERE r.proposed_answer IS NOT NULL
) answers
WHERE at > to_timestamp(%(since)s) AND at <= to_timestamp(%(until)s) ORDER BY at, id;

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
