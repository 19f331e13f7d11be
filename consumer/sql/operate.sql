-- name: list_jobs
-- Runs by what is given, newest first; NULL filters nothing.
SELECT id, job_type AS agent, status, reason, attempt_count, max_attempts, steps_done, event_id, delivery,
    key_text AS key, dedupe_key, error_code, last_error, run_after, created_at, updated_at, finished_at
FROM rowcall.agent_jobs
WHERE (%(status)s::text IS NULL OR status = %(status)s)
AND (%(agent)s::text IS NULL OR job_type = %(agent)s)
AND (%(event)s::text IS NULL OR event_id = %(event)s)
ORDER BY id DESC LIMIT %(limit)s;

-- name: job
-- One run, whole.
SELECT id, job_type AS agent, status, reason, payload::text AS payload, result::text AS result, attempt_count,
    max_attempts, losses, postponed, steps_done, run_after, locked_until, deadline, owner::text AS owner, lease_epoch, last_error,
    error_code, created_at, updated_at, started_at, finished_at, dedupe_key, input_kind, tenant, key_text AS key,
    priority, agent_version, event_id, delivery, occurred_at, source_topic, source_partition, source_offset,
    root_event, parent_job, depth, chain, window_until, traceparent, approved_answer::text AS approved_answer, approved_by,
    result_txid, not_attributable,
    (SELECT count(*) FROM rowcall.coalesced_events c WHERE c.job_id = j.id) AS merged_count
FROM rowcall.agent_jobs j WHERE id = %s;

-- name: parked_of_root
-- Jobs of this root that are parked because of what caused them, oldest first.
SELECT id FROM rowcall.agent_jobs WHERE root_event = %(root)s AND depth > 0
AND status = 'PARKED' AND reason = 'causation_loop' ORDER BY id;

-- name: live_of_root
-- Whatever this root has set off that has not ended, newest first: what was caused ends before what caused it.
SELECT id FROM rowcall.agent_jobs WHERE root_event = %(root)s AND depth > 0
AND status IN ('PENDING', 'RUNNING', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED') ORDER BY id DESC;

-- name: known_root
-- Whether anything was ever caused by this root.
SELECT EXISTS (SELECT FROM rowcall.agent_jobs WHERE root_event = %(root)s AND depth > 0) AS found;

-- name: steps_of
-- Checkpoints of one run, those thrown away included.
SELECT number, name, kind, superseded, output::text AS output, agent_version, lease_epoch, started_at, finished_at
FROM rowcall.job_steps WHERE job_id = %s ORDER BY superseded DESC, number;

-- name: calls_of
-- External calls of one run, in the order they left.
SELECT id, step, attempt, kind, endpoint, model, answered_model, state, sent_at, finished_at, duration_ms, status_code,
    error_code, error, prompt_tokens, completion_tokens, finish_reason, validated, validation_error, late,
    encode(input_sha256, 'hex') AS input_sha256, response
FROM rowcall.external_calls WHERE job_id = %s ORDER BY id;

-- name: reviews_of
-- Every review one run had.
SELECT id, state, code, reasons, opened_at, decided_at, decided_by, decision_reason
FROM rowcall.reviews WHERE job_id = %s ORDER BY id;

-- name: dead_letters_of
-- Dead letters of the run's event, for its agent or for none in particular.
SELECT id, state, error_code, error, topic, partition, "offset", created_at, closed_at, closed_by
FROM rowcall.dead_letters WHERE event_id = %(event)s AND (agent IS NULL OR agent = %(agent)s) ORDER BY id;

-- name: coalesced_of
-- Events the run has taken in.
SELECT id, event_id, payload::text AS payload, coalesced_at
FROM rowcall.coalesced_events WHERE job_id = %s ORDER BY id;

-- name: outbox_of
-- Records the run has sent. The time bounds are there for the index: outbox rows carry none on the run.
SELECT o.id::text AS id, o.topic, o.key, o.event_type, o.content_type, octet_length(o.payload) AS bytes, o.occurred_at,
    o.created_at
FROM rowcall.agent_jobs j JOIN rowcall.outbox o ON o.job_id = j.id AND o.created_at >= j.created_at
    AND o.created_at <= coalesce(j.finished_at, j.updated_at) + interval '1 minute'
WHERE j.id = %s ORDER BY o.created_at, o.id;

-- name: audit_of
-- What people did to the run or to its reviews.
SELECT at, actor, action, detail::text AS detail
FROM rowcall.audit WHERE subject = %s ORDER BY id;

-- name: wait_for_locks
-- No act of a person waits longer for one lock: an outcome holds its run for as long as the agent's write takes.
SELECT set_config('lock_timeout', '5s', true);

-- name: lock_job
-- Holds one run for a person's move. Lock order: this job, then its review, then (in settle) its lane.
SELECT id, job_type AS agent, status, reason, attempt_count, max_attempts, event_id, delivery, occurred_at, dedupe_key,
    tenant, run_after, locked_until, owner::text AS owner
FROM rowcall.agent_jobs WHERE id = %s FOR UPDATE;

-- name: settle
-- One run, moved by a person whatever its epoch; see sql/functions. Returns its id if it moved.
SELECT rowcall.settle(ARRAY[%(id)s]::bigint[], ARRAY[NULL]::bigint[], ARRAY[%(status)s]::text[], ARRAY[NULL]::text[],
    ARRAY[%(code)s]::text[], ARRAY[%(error)s]::text[], ARRAY[NULL]::text[],
    ARRAY[%(delay)s]::double precision[], ARRAY[%(attempts)s]::integer[]) AS id;

-- name: next_delivery
-- One more than any delivery this event had for this agent. The day narrows the search to one partition.
SELECT 1 + greatest(%(delivery)s,
    (SELECT max(delivery) FROM rowcall.agent_jobs WHERE job_type = %(agent)s AND event_id = %(event)s),
    (SELECT max(delivery) FROM rowcall.processed_events
     WHERE day = (%(occurred)s::timestamptz AT TIME ZONE 'UTC')::date AND agent = %(agent)s AND event_id = %(event)s),
    (SELECT max(delivery) FROM rowcall.processed_events_undated WHERE agent = %(agent)s AND event_id = %(event)s)
) AS delivery;

-- name: deliver_dated
-- The dedup row of a new delivery, on the day that holds the old one. Returns nothing where no day does.
INSERT INTO rowcall.processed_events (day, agent, event_id, delivery)
SELECT day, agent, event_id, %(next)s FROM rowcall.processed_events
WHERE day = (%(occurred)s::timestamptz AT TIME ZONE 'UTC')::date AND agent = %(agent)s AND event_id = %(event)s
ORDER BY delivery DESC LIMIT 1
RETURNING delivery;

-- name: deliver_undated
-- The same for an event whose ID fixes no day, or whose day is pruned.
INSERT INTO rowcall.processed_events_undated (agent, event_id, delivery) VALUES (%(agent)s, %(event)s, %(next)s);

-- name: set_delivery
-- Numbers the run's new delivery.
UPDATE rowcall.agent_jobs SET delivery = %(next)s WHERE id = %(id)s;

-- name: supersede_steps
-- Throws the run's checkpoints away but keeps them as evidence, and unpins the agent's version. An approval of the answer
-- that they led to will not be carried out any more.
WITH thrown AS (
    UPDATE rowcall.job_steps SET superseded = 1 + (
        SELECT coalesce(max(superseded), 0) FROM rowcall.job_steps WHERE job_id = %(id)s)
    WHERE job_id = %(id)s AND superseded = 0
), withdrawn AS (
    UPDATE rowcall.reviews SET state = 'STALE' WHERE job_id = %(id)s AND state = 'APPROVED'
)
UPDATE rowcall.agent_jobs SET steps_done = 0, agent_version = NULL, approved_answer = NULL, approved_by = NULL
WHERE id = %(id)s;

-- name: holder
-- The run that holds a dedupe_key.
SELECT id, status FROM rowcall.agent_jobs WHERE tenant = %(tenant)s AND job_type = %(agent)s
AND dedupe_key = %(dedupe_key)s AND status NOT IN ('FAILED', 'REJECTED', 'CANCELLED');

-- name: close_reviews
-- Runs that end without a decision close their open reviews; the jobs are held already.
UPDATE rowcall.reviews SET state = 'CLOSED', decided_at = rowcall.now(), decided_by = %(actor)s,
    decision_reason = %(reason)s
WHERE job_id = ANY (%(ids)s) AND state = 'OPEN';

-- name: audit
-- What a person did, in the transaction that does it.
INSERT INTO rowcall.audit (actor, action, subject, detail)
VALUES (%(actor)s, %(action)s, %(subject)s, %(detail)s::json);

-- name: hint
-- Tells the workers that there is something to look at.
SELECT pg_notify('rowcall_work', '');

-- name: agents
-- The agents the database knows.
SELECT name, version, topics, state, state_reason, paused_until, generation, activated_at, updated_at
FROM rowcall.agents ORDER BY name;

-- name: lock_against_admission
-- Waits until no admission is under way, as activate.sql does: what is admitted after this knows the new state.
SELECT pg_advisory_xact_lock(hashtext('rowcall.roster'));

-- name: lock_agent
-- Holds one agent for a person's move.
SELECT name, state FROM rowcall.agents WHERE name = %s FOR UPDATE;

-- name: hold_agent_state
-- An agent's state, held so that it cannot be retired before this transaction ends. Lock order: after the run.
SELECT state FROM rowcall.agents WHERE name = %s FOR SHARE;

-- name: set_agent_state
-- Pauses, resumes or retires an agent; the generation tells every intake to read the roster again.
UPDATE rowcall.agents SET state = %(state)s, state_reason = %(reason)s, paused_until = NULL, updated_at = rowcall.now(),
    generation = generation + 1
WHERE name = %(name)s;

-- name: cancel_some
-- Cancels up to 1,000 live runs of an agent, in id order as settle locks them; how many there were and those that moved.
WITH live AS (
    SELECT array_agg(id) AS ids, count(*)::integer AS n FROM (
        SELECT id FROM rowcall.agent_jobs WHERE job_type = %(agent)s
        AND status IN ('PENDING', 'RUNNING', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED')
        ORDER BY id LIMIT 1000) AS batch
)
SELECT n AS live, ARRAY(SELECT rowcall.settle(ids, array_fill(NULL::bigint, ARRAY[n]),
    array_fill('CANCELLED'::text, ARRAY[n]), array_fill(NULL::text, ARRAY[n]),
    array_fill('cancelled'::text, ARRAY[n]), array_fill(%(error)s::text, ARRAY[n]),
    array_fill(NULL::text, ARRAY[n]), array_fill(NULL::double precision, ARRAY[n]),
    array_fill(0, ARRAY[n])) WHERE n > 0) AS moved
FROM live;

-- name: list_effects
-- Effects by what is given, newest first; those that nobody knows the end of before all others. NULL filters nothing.
SELECT e.id::text AS id, e.job_id, j.job_type AS agent, j.status AS job_status, e.step, e.business_key AS key, e.state,
    e.method, e.url, e.attempts, e.error_code, e.planned_at, e.sent_at, e.settled_at, e.resolved_by
FROM rowcall.effects e JOIN rowcall.agent_jobs j ON j.id = e.job_id
WHERE (%(state)s::text IS NULL OR e.state = %(state)s) AND (%(agent)s::text IS NULL OR j.job_type = %(agent)s)
AND (%(job)s::bigint IS NULL OR e.job_id = %(job)s)
ORDER BY e.state <> 'UNKNOWN', e.planned_at DESC, e.id LIMIT %(limit)s;

-- name: effect
-- One effect, whole.
SELECT e.id::text AS id, e.job_id, j.job_type AS agent, j.status AS job_status, e.delivery, e.step,
    e.business_key AS key, e.state, e.idempotent, e.method, e.url, encode(e.request_sha256, 'hex') AS request_sha256,
    e.attempts, e.error_code, e.error, e.response_status, encode(e.response_sha256, 'hex') AS response_sha256,
    e.response::text AS response, e.response_truncated, e.planned_at, e.sent_at, e.settled_at, e.resolved_by
FROM rowcall.effects e JOIN rowcall.agent_jobs j ON j.id = e.job_id WHERE e.id = %s;

-- name: calls_of_effect
-- The requests of one effect in the order they left; a late one may say what nobody knew.
SELECT c.id, c.attempt, c.lease_epoch, c.state, c.sent_at, c.finished_at, c.duration_ms, c.status_code, c.error_code,
    c.error, c.late, c.response
FROM rowcall.effects e JOIN rowcall.external_calls c ON c.job_id = e.job_id AND c.idempotency_key = e.id::text
WHERE e.id = %s ORDER BY c.id;

-- name: job_of_effect
-- The run an effect belongs to, which has to be held first.
SELECT job_id FROM rowcall.effects WHERE id = %s;

-- name: lock_effect
-- Holds one effect, whose job is already held.
SELECT id::text AS id, step, state, method, url, resolved_by, settled_at FROM rowcall.effects WHERE id = %s FOR UPDATE;

-- name: resolve_effect
-- What a person found out about an effect.
UPDATE rowcall.effects SET state = %(state)s, response_status = %(status)s, response = %(response)s::json,
    response_truncated = false, response_sha256 = NULL, settled_at = rowcall.now(), resolved_by = %(actor)s,
    updated_at = rowcall.now()
WHERE id = %(id)s;

-- name: unresolved_effects
-- What else of a run nobody knows the end of.
SELECT id::text AS id FROM rowcall.effects WHERE job_id = %s AND state IN ('SENT', 'UNKNOWN') ORDER BY planned_at, id;

-- name: effect_review
-- The open review that holds a run for its effect.
SELECT id FROM rowcall.reviews WHERE job_id = %s AND state = 'OPEN' AND code = 'effect_unknown' FOR UPDATE;
