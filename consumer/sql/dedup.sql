-- name: share_with_activation
-- Taken first in each admission. Many share it; an activation excludes them all, and changes the stamp, so that an
-- admission that was prepared without the new agent is seen.
SELECT pg_advisory_xact_lock_shared(hashtext('rowcall.roster')),
    (SELECT coalesce(sum(generation), 0) || ':' || count(*) FROM rowcall.agents) AS stamp;

-- name: bound_session
-- A frozen intake must not hold up others' inserts: Postgres ends the connection of a longer transaction. Admission looks
-- up by key alone; a plan made while a day was still empty must not scan it when it is full.
SELECT set_config('transaction_timeout', %(timeout)s, false), set_config('enable_seqscan', 'off', false);

-- name: seen
-- Which of these events an agent has had before: by day, or in the undated table (its day may have been too far ahead
-- then). IDs come agent by agent; `firsts` says at which ID each agent begins. One index probe an ID (bound_session).
SELECT k.agent, k.event_id
FROM (SELECT (%(agents)s::text[])[width_bucket(u.number, %(firsts)s::bigint[])] AS agent, u.event_id
      FROM unnest(%(ids)s::text[]) WITH ORDINALITY AS u (event_id, number)) AS k
CROSS JOIN LATERAL (
    (SELECT FROM rowcall.processed_events p
     WHERE p.day = ANY (%(days)s::date[]) AND p.agent = k.agent AND p.event_id = k.event_id LIMIT 1)
    UNION ALL
    (SELECT FROM rowcall.processed_events_undated u
     WHERE u.agent = k.agent AND u.event_id = k.event_id LIMIT 1)
    LIMIT 1) AS known;

-- name: copy_dated
-- Records events whose ID fixes their day, in key order, so that two intakes cannot deadlock. A key that another intake
-- has recorded since `seen` fails the whole admission, which then begins again.
COPY rowcall.processed_events (day, agent, event_id) FROM STDIN;

-- name: copy_undated
-- The same for IDs without a stable day.
COPY rowcall.processed_events_undated (agent, event_id) FROM STDIN;

-- name: copy_jobs
COPY rowcall.agent_jobs (payload, input_kind, key_hash, key_text, event_id, occurred_at, source_topic,
    source_partition, source_offset, root_event, parent_job, depth, chain, not_attributable, job_type, max_attempts) FROM STDIN;

-- name: create_staging
-- For the jobs that may meet a row of their own: those beyond the horizon, and one that was refused in a batch.
CREATE TEMPORARY TABLE staged_jobs (number bigint GENERATED ALWAYS AS IDENTITY, payload json, input_kind text,
    key_hash bigint, key_text text, event_id text, occurred_at timestamptz, source_topic text,
    source_partition integer, source_offset bigint, root_event text, parent_job bigint, depth integer, chain text[],
    not_attributable boolean, job_type text, max_attempts integer) ON COMMIT DROP;

-- name: copy_staged
COPY staged_jobs (payload, input_kind, key_hash, key_text, event_id, occurred_at, source_topic,
    source_partition, source_offset, root_event, parent_job, depth, chain, not_attributable, job_type, max_attempts) FROM STDIN;

-- name: put_staged
-- Moves staged jobs on; one that is there already stays as it is. Returns the agents of the new ones.
INSERT INTO rowcall.agent_jobs (payload, input_kind, key_hash, key_text, event_id, occurred_at, source_topic,
    source_partition, source_offset, root_event, parent_job, depth, chain, not_attributable, job_type,
    max_attempts, status, reason, delivery)
SELECT payload, input_kind, key_hash, key_text, event_id, occurred_at, source_topic,
    source_partition, source_offset, root_event, parent_job, depth, chain, not_attributable, job_type, max_attempts,
    %(status)s, %(reason)s, %(delivery)s
FROM staged_jobs ORDER BY number
ON CONFLICT (job_type, event_id, delivery) WHERE event_id IS NOT NULL DO NOTHING
RETURNING job_type;

-- name: next_delivery
-- The delivery number of a person's re-drive: one more than was recorded for this agent and event, wherever it stands.
SELECT coalesce(max(delivery), 0) + 1 AS delivery FROM (
    SELECT delivery FROM rowcall.processed_events WHERE agent = %(agent)s AND event_id = %(id)s
    UNION ALL SELECT delivery FROM rowcall.processed_events_undated WHERE agent = %(agent)s AND event_id = %(id)s
    UNION ALL SELECT delivery FROM rowcall.agent_jobs WHERE job_type = %(agent)s AND event_id = %(id)s
) AS seen;

-- name: record_dated
INSERT INTO rowcall.processed_events (day, agent, event_id, delivery)
VALUES (date '1970-01-01' + %(day)s::integer, %(agent)s, %(id)s, %(delivery)s);

-- name: record_undated
INSERT INTO rowcall.processed_events_undated (agent, event_id, delivery) VALUES (%(agent)s, %(id)s, %(delivery)s);

-- name: today
-- Days since 1970, UTC.
SELECT (rowcall.now() AT TIME ZONE 'UTC')::date - date '1970-01-01' AS today;

-- name: days
-- The tables of single days: attached, being detached, or left behind by an interrupted prune.
SELECT to_date(right(c.relname, 8), 'YYYYMMDD') - date '1970-01-01' AS day,
    i.inhrelid IS NOT NULL AS attached, coalesce(i.inhdetachpending, false) AS pending
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE n.nspname = 'rowcall' AND c.relkind = 'r' AND c.relname ~ '^processed_events_[0-9]{8}$'
ORDER BY 1;

-- name: lock_days
-- One maker of days at a time.
SELECT pg_advisory_xact_lock(hashtext('rowcall.days'));

-- name: try_lock_prune
-- One pruner at a time, for the session.
SELECT pg_try_advisory_lock(hashtext('rowcall.prune')) AS mine;

-- name: unlock_prune
SELECT pg_advisory_unlock(hashtext('rowcall.prune'));

-- name: day_statements
-- The statements that make, attach, detach, finish detaching and drop the table of one day. Attaching (not CREATE …
-- PARTITION OF) lets admissions go on meanwhile; detaching concurrently does too, and needs no transaction block.
SELECT format('CREATE TABLE IF NOT EXISTS rowcall.%%I (LIKE rowcall.processed_events INCLUDING DEFAULTS)', name) AS make,
    format('ALTER TABLE rowcall.processed_events ATTACH PARTITION rowcall.%%I FOR VALUES FROM (%%L) TO (%%L)',
        name, day, day + 1) AS attach,
    format('ALTER TABLE rowcall.processed_events DETACH PARTITION rowcall.%%I CONCURRENTLY', name) AS detach,
    format('ALTER TABLE rowcall.processed_events DETACH PARTITION rowcall.%%I FINALIZE', name) AS finish,
    format('DROP TABLE IF EXISTS rowcall.%%I', name) AS drop
FROM (SELECT d AS day, 'processed_events_' || to_char(d, 'YYYYMMDD') AS name
      FROM (SELECT date '1970-01-01' + %(day)s::integer AS d) AS one) AS named;
