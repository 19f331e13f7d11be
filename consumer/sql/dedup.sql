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
      FROM json_array_elements_text(%(ids)s::json) WITH ORDINALITY AS u (event_id, number)) AS k
CROSS JOIN LATERAL (
    (SELECT FROM rowcall.processed_events p
     WHERE p.day = ANY (%(days)s::date[]) AND p.agent = k.agent AND p.event_id = k.event_id LIMIT 1)
    UNION ALL
    (SELECT FROM rowcall.processed_events_undated u
     WHERE u.agent = k.agent AND u.event_id = k.event_id LIMIT 1)
    LIMIT 1) AS known;

-- name: any_undated
-- Whether one of these agents has IDs in the undated table: one probe an agent.
SELECT EXISTS (SELECT FROM unnest(%(agents)s::text[]) AS a (name) CROSS JOIN LATERAL (
    SELECT FROM rowcall.processed_events_undated u WHERE u.agent = a.name LIMIT 1) AS one) AS found;

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
-- For the jobs that may meet a row of their own, or are not born like all others: beyond the horizon, parked, waiting for
-- later changes, refused in a batch.
CREATE TEMPORARY TABLE staged_jobs (number bigint GENERATED ALWAYS AS IDENTITY, payload json, input_kind text,
    key_hash bigint, key_text text, event_id text, occurred_at timestamptz, source_topic text,
    source_partition integer, source_offset bigint, root_event text, parent_job bigint, depth integer, chain text[],
    not_attributable boolean, job_type text, max_attempts integer) ON COMMIT DROP;

-- name: drop_staging
DROP TABLE staged_jobs;

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
-- The dedup row of a re-drive. Where the first delivery has none it gets one: admission writes no other, and must meet it.
WITH first AS (
    INSERT INTO rowcall.processed_events (day, agent, event_id, delivery)
    SELECT date '1970-01-01' + %(day)s::integer, %(agent)s, %(id)s, 1 WHERE %(delivery)s > 1
    ON CONFLICT DO NOTHING)
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

-- name: forget_undated
-- IDs without a day that were seen long ago, a part of them. No index on the time: the oldest rows stand first, and this
-- is asked seldom.
DELETE FROM rowcall.processed_events_undated WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM rowcall.processed_events_undated
    WHERE seen_at < rowcall.now() - make_interval(days => %(days)s) LIMIT %(limit)s));

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

-- name: keep_limits
-- Writes the limits of causation down for what the database decides by itself, where they have changed.
UPDATE rowcall.causation_limits SET max_depth = %(max_depth)s, root_runs = %(root_runs)s
WHERE (max_depth, root_runs) <> (%(max_depth)s, %(root_runs)s);

-- name: runs_left
-- How many more runs each root may have in this minute. Parked ones count: the breaker stays open while the storm lasts.
SELECT r.root, l.root_runs, l.root_runs - (SELECT count(*) FROM (
        SELECT FROM rowcall.agent_jobs j WHERE j.root_event = r.root AND j.depth > 0
        AND j.created_at > rowcall.now() - interval '1 minute' LIMIT l.root_runs) AS recent) AS runs_left
FROM unnest(%(roots)s::text[]) AS r (root) CROSS JOIN rowcall.causation_limits l;

-- name: lock_roots
-- One admission at a time for roots that come near their limit. Few locks whatever the number of roots, in order.
SELECT pg_advisory_xact_lock(hashtext('rowcall.root'), bucket) FROM (
    SELECT DISTINCT hashtext(root) & 63 AS bucket FROM unnest(%(roots)s::text[]) AS r (root) ORDER BY 1) AS buckets;

-- name: explain_parked
-- Says on each parked job why it is. Returns their ids.
UPDATE rowcall.agent_jobs j SET error_code = 'causation_loop', last_error = w.why
FROM unnest(%(agents)s::text[], %(events)s::text[], %(whys)s::text[]) AS w (agent, event_id, why)
WHERE j.job_type = w.agent AND j.event_id = w.event_id AND j.delivery = 1 AND j.status = 'PARKED'
RETURNING j.id, j.job_type AS agent, j.event_id;

-- name: open_to_merge
-- The job of each agent and key that takes in later changes: the newest, if no claim holds it or has had it. A job that is
-- just being claimed is left alone, and so is an older one then: its key's order is the order of the jobs.
SELECT j.id, j.job_type AS agent, j.key_hash AS lane, j.input_kind AS kind, j.payload::text AS payload, j.latest_at,
    j.depth
FROM unnest(%(agents)s::text[], %(lanes)s::bigint[]) AS w (agent, lane)
CROSS JOIN LATERAL (
    SELECT * FROM rowcall.agent_jobs o
    WHERE o.id = (SELECT max(n.id) FROM rowcall.agent_jobs n WHERE n.job_type = w.agent AND n.key_hash = w.lane
                  AND n.window_until IS NOT NULL AND n.status = 'PENDING')
    AND o.status = 'PENDING' AND o.lease_epoch = 0 AND o.delivery = 1
    FOR UPDATE SKIP LOCKED) AS j;

-- name: open_windows
-- Lets new jobs wait for later changes of their key. Returns the id of each.
WITH wanted AS MATERIALIZED (
    SELECT j.id, w.* FROM unnest(%(agents)s::text[], %(events)s::text[], %(windows)s::double precision[],
        %(longest)s::double precision[]) AS w (agent, event_id, quiet, longest)
    JOIN rowcall.agent_jobs j ON j.job_type = w.agent AND j.event_id = w.event_id AND j.delivery = 1
), opened AS (
    UPDATE rowcall.agent_jobs j SET run_after = rowcall.now() + make_interval(secs => w.quiet),
        window_until = rowcall.now() + make_interval(secs => w.longest)
    FROM wanted w WHERE j.id = w.id AND j.status IN ('PENDING', 'PARKED') AND j.lease_epoch = 0
)
SELECT id, agent, event_id FROM wanted;

-- name: merge
-- Puts later changes into the jobs that take them in: the newest row where the rule says so, the deeper cause, and a
-- window that moves with them as far as it may. A job that has its place in a lane keeps its time.
UPDATE rowcall.agent_jobs j SET payload = coalesce(w.payload::json, j.payload), merged = j.merged + w.number,
    latest_at = coalesce(w.latest_at, j.latest_at), updated_at = rowcall.now(),
    run_after = CASE WHEN w.number = 0 OR j.lane_seq IS NOT NULL OR j.run_after <= rowcall.now() THEN j.run_after
        ELSE least(greatest(j.run_after, rowcall.now() + make_interval(secs => w.quiet)), j.window_until) END,
    root_event = coalesce(w.root, j.root_event),
    parent_job = CASE WHEN w.root IS NULL THEN j.parent_job ELSE w.parent END,
    depth = CASE WHEN w.root IS NULL THEN j.depth ELSE w.depth END,
    chain = CASE WHEN w.root IS NULL THEN j.chain ELSE ARRAY(SELECT json_array_elements_text(w.chain::json)) END
FROM unnest(%(ids)s::bigint[], %(payloads)s::text[], %(numbers)s::integer[], %(latest)s::timestamptz[],
    %(windows)s::double precision[], %(roots)s::text[], %(parents)s::bigint[], %(depths)s::integer[],
    %(chains)s::text[]) AS w (id, payload, number, latest_at, quiet, root, parent, depth, chain)
WHERE j.id = w.id;

-- name: record_merged
-- Every event that was taken in, whole, beside the job that took it.
INSERT INTO rowcall.coalesced_events (job_id, event_id, payload)
SELECT w.id, w.event_id, w.payload::json
FROM unnest(%(ids)s::bigint[], %(events)s::text[], %(payloads)s::text[]) WITH ORDINALITY
    AS w (id, event_id, payload, number)
ORDER BY w.number;
