-- name: now
-- The clock that slots are measured by.
SELECT rowcall.now() AS now;

-- name: stored
-- Every schedule there is.
SELECT name, source, definition, state, state_reason, next_slot, created_at, updated_at FROM rowcall.schedules
ORDER BY name;

-- name: lock_definitions
-- One process at a time brings definitions into the database.
SELECT pg_advisory_xact_lock(hashtext('rowcall.schedules'));

-- name: put
-- Writes a definition. A changed expression or zone counts from now on; the state is the operator's and is kept, but
-- one that came back after it was taken out of the code is active again.
INSERT INTO rowcall.schedules AS s (name, source, definition, next_slot)
VALUES (%(name)s, %(source)s, %(definition)s::jsonb, %(next)s)
ON CONFLICT (name) DO UPDATE SET source = excluded.source, definition = excluded.definition,
    state = CASE WHEN s.state = 'RETIRED' THEN 'ACTIVE' ELSE s.state END,
    state_reason = CASE WHEN s.state = 'RETIRED' THEN NULL ELSE s.state_reason END,
    next_slot = CASE WHEN s.state = 'RETIRED' OR s.definition ->> 'cron' <> excluded.definition ->> 'cron'
                      OR s.definition ->> 'timezone' <> excluded.definition ->> 'timezone'
                     THEN excluded.next_slot ELSE s.next_slot END,
    updated_at = rowcall.now()
WHERE s.definition <> excluded.definition OR s.source <> excluded.source OR s.state = 'RETIRED'
RETURNING s.name;

-- name: retire
-- Schedules that their source no longer declares.
UPDATE rowcall.schedules SET state = 'RETIRED', state_reason = 'no longer declared', updated_at = rowcall.now()
WHERE source = %(source)s AND name <> ALL (%(names)s) AND state <> 'RETIRED' RETURNING name;

-- name: pick
-- One schedule that is due, held for this transaction; others are left to other schedulers.
SELECT name, definition, next_slot, rowcall.now() AS now FROM rowcall.schedules
WHERE state = 'ACTIVE' AND next_slot <= rowcall.now() ORDER BY next_slot, name LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: hold
-- One schedule by its name, held for this transaction.
SELECT name, definition, state, next_slot, rowcall.now() AS now FROM rowcall.schedules WHERE name = %s FOR UPDATE;

-- name: next_due
-- Seconds until something is due; NULL where nothing will be.
SELECT extract(epoch FROM min(next_slot) - rowcall.now())::double precision AS seconds FROM rowcall.schedules
WHERE state = 'ACTIVE' AND next_slot IS NOT NULL;

-- name: advance
-- The first slot that is still to be dealt with.
UPDATE rowcall.schedules SET next_slot = %(next)s, updated_at = rowcall.now() WHERE name = %(name)s;

-- name: set_state
-- A person's pause or resumption.
UPDATE rowcall.schedules SET state = %(state)s, state_reason = %(reason)s, next_slot = %(next)s,
    updated_at = rowcall.now() WHERE name = %(name)s;

-- name: note
-- What became of a slot. Returns nothing where the slot has been dealt with before; a backfill may still fire one that
-- started nothing.
INSERT INTO rowcall.schedule_slots AS s (schedule, slot, outcome, job_id, detail, backfill)
VALUES (%(schedule)s, %(slot)s, %(outcome)s, %(job)s, %(detail)s, %(backfill)s)
ON CONFLICT (schedule, slot) DO UPDATE SET outcome = excluded.outcome, job_id = excluded.job_id,
    detail = excluded.detail, backfill = true, decided_at = rowcall.now()
WHERE %(backfill)s AND s.outcome IN ('skipped', 'missed', 'refused')
RETURNING s.slot;

-- name: settled_slots
-- Slots of a range that have been dealt with and started something: a backfill leaves them alone.
SELECT slot FROM rowcall.schedule_slots
WHERE schedule = %(schedule)s AND slot >= %(start)s AND slot < %(end)s AND outcome IN ('queued', 'sent', 'coalesced');

-- name: live
-- Runs of earlier slots that are not finished, the oldest first; `effect` is one that may have happened outside.
SELECT j.id, j.status, (SELECT min(e.id::text) FROM rowcall.effects e
    WHERE e.job_id = j.id AND e.state IN ('SENT', 'UNKNOWN')) AS effect FROM rowcall.schedule_slots s JOIN rowcall.agent_jobs j ON j.id = s.job_id
WHERE s.schedule = %s AND j.status NOT IN ('SUCCEEDED', 'FAILED', 'REJECTED', 'CANCELLED') ORDER BY j.id;

-- name: cancel
-- Ends runs of earlier slots for a newer one, by the one function through which runs move.
SELECT rowcall.settle(%(ids)s, array_fill(NULL::bigint, ARRAY[n]), array_fill('CANCELLED'::text, ARRAY[n]),
    array_fill(NULL::text, ARRAY[n]), array_fill('superseded_slot'::text, ARRAY[n]),
    array_fill(%(error)s::text, ARRAY[n]), array_fill(NULL::text, ARRAY[n]),
    array_fill(NULL::double precision, ARRAY[n]), array_fill(0, ARRAY[n])) AS id
FROM (SELECT cardinality(%(ids)s::bigint[]) AS n) AS size;

-- name: close_reviews
-- Reviews of runs that a newer slot has ended.
UPDATE rowcall.reviews SET state = 'CLOSED', decided_at = rowcall.now(), decided_by = %(by)s,
    decision_reason = %(reason)s WHERE job_id = ANY (%(ids)s) AND state = 'OPEN';

-- name: agent_state
-- Whether runs of the agent are wanted, held so that it cannot end before this transaction does.
SELECT state FROM rowcall.agents WHERE name = %s FOR SHARE;

-- name: queue
-- The slot's run. Its event ID names the slot, so that it is queued once whatever becomes of the slot's row.
INSERT INTO rowcall.agent_jobs
    (job_type, payload, dedupe_key, event_id, occurred_at, root_event, key_text, key_hash, run_after, tenant, priority,
     max_attempts)
VALUES (%(agent)s, %(payload)s::json, %(dedupe_key)s, %(event)s, %(slot)s, %(event)s, %(key)s,
    CASE WHEN %(key)s::text IS NULL THEN rowcall.own_lane() ELSE rowcall.key_lane(%(key)s) END, %(run_after)s,
    %(tenant)s, %(priority)s, %(max_attempts)s)
ON CONFLICT DO NOTHING RETURNING id;

-- name: holder
-- The run that holds the business key, or that was queued for this very slot.
SELECT id, event_id IS NOT DISTINCT FROM %(event)s AS same FROM rowcall.agent_jobs
WHERE job_type = %(agent)s AND (event_id = %(event)s OR (tenant = %(tenant)s
    AND dedupe_key = %(dedupe_key)s AND status NOT IN ('FAILED', 'REJECTED', 'CANCELLED'))) ORDER BY id LIMIT 1;

-- name: coalesce
-- The slot's payload beside the run that stands for it.
INSERT INTO rowcall.coalesced_events (job_id, event_id, payload) VALUES (%(job)s, %(event)s, %(payload)s::json);

-- name: tick
-- A tick for a topic, through the outbox.
INSERT INTO rowcall.outbox (id, topic, key, payload, event_type, content_type, occurred_at)
VALUES (%(id)s, %(topic)s, %(key)s, %(payload)s, 'tick', 'application/json', %(occurred_at)s)
ON CONFLICT (id) DO NOTHING;

-- name: slots
-- The latest slots of a schedule and what became of them.
SELECT s.slot, s.outcome, s.job_id, j.status, s.detail, s.backfill, s.decided_at FROM rowcall.schedule_slots s
LEFT JOIN rowcall.agent_jobs j ON j.id = s.job_id WHERE s.schedule = %(schedule)s ORDER BY s.slot DESC LIMIT %(limit)s;

-- name: audit
-- Who did what to a schedule.
INSERT INTO rowcall.audit (actor, action, subject, detail)
VALUES (%(actor)s, %(action)s, %(subject)s, %(detail)s::json);
