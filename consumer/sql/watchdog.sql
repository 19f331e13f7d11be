-- name: limit_statements
-- A look that takes longer is ended; the others go on. Half a gap: a watchdog that waits has not been away.
SELECT set_config('statement_timeout', round(least(10000, 500 * %(gap)s)) || 'ms', false),
    set_config('lock_timeout', round(least(5000, 250 * %(gap)s)) || 'ms', false);

-- name: begin_round
-- Says that a watchdog looks now, and tells when one last did. Those that look together come one after the other, so that
-- one of them alone sees a gap. The first row ever is no gap. A clock that went back is one: nothing can be judged by
-- moments that lie ahead, the end of a quiet time among them.
WITH first AS (INSERT INTO rowcall.watch_rounds (single) VALUES (true) ON CONFLICT DO NOTHING),
held AS (SELECT last_at, quiet_until FROM rowcall.watch_rounds FOR UPDATE),
old AS (SELECT last_at, quiet_until, rowcall.now() - last_at > make_interval(secs => %(gap)s)
    OR last_at > rowcall.now() + make_interval(secs => %(future)s) AS gap FROM held),
looked AS (
    UPDATE rowcall.watch_rounds r SET last_at = rowcall.now(),
        quiet_until = CASE WHEN old.gap THEN rowcall.now() + make_interval(secs => %(quiet)s) ELSE old.quiet_until END
    FROM old RETURNING old.last_at, r.quiet_until, old.gap
)
SELECT rowcall.now() AS now, l.last_at, coalesce(l.quiet_until > rowcall.now(), false) AS quiet,
    coalesce(l.gap, false) AS gap
FROM (SELECT) AS one LEFT JOIN looked l ON true;

-- name: still_looking
-- A look that takes long is no gap; a machine that slept during it is.
UPDATE rowcall.watch_rounds SET last_at = rowcall.now()
WHERE rowcall.now() - last_at BETWEEN interval '0' AND make_interval(secs => %(gap)s);

-- name: states
-- All that is watched. A pause that has ended is none.
SELECT subject, state, since, told, message, due_at, last_beat_at, run_id, reminders, reminded_at,
    coalesce(paused_until > rowcall.now(), false) AS paused FROM rowcall.watch_states ORDER BY subject;

-- name: processes
-- Beats of processes.
SELECT subject, instance, kind, state, started_at, at, progress, progress_at, run_id,
    extract(epoch FROM expected_next - at)::double precision AS interval, rowcall.now() AS now
FROM rowcall.heartbeats;

-- name: schedules
-- Schedules with the first slot that nobody has dealt with yet, and the last one that somebody has.
SELECT s.name, s.state, s.state_reason, s.next_slot, l.slot, l.outcome, l.detail, l.decided_at, l.job_id
FROM rowcall.schedules s
LEFT JOIN LATERAL (SELECT slot, outcome, detail, decided_at, job_id FROM rowcall.schedule_slots
    WHERE schedule = s.name ORDER BY slot DESC LIMIT 1) l ON true
WHERE s.state <> 'RETIRED';

-- name: agents
-- What is expected of each agent, and the last runs of it that ended. Failures are counted up to as many as matter. A
-- pause with an end is the engine's own, not a person's. `resumed_at` is when a pause of the agent ended, as a flip says;
-- a pause of its subject alone knew when it was due.
SELECT a.name, a.state, a.state_reason, a.paused_until, a.updated_at, a.activated_at,
    s.id AS success_id, s.finished_at AS success_at,
    f.id AS failure_id, f.finished_at AS failure_at, f.error_code, r.claimed_at, r.id AS running_id,
    (a.options ->> 'expect_every')::double precision AS expect_every,
    (a.options ->> 'start_grace')::double precision AS start_grace,
    (a.options ->> 'run_grace')::double precision AS run_grace,
    coalesce((a.options ->> 'misses')::integer, 1) AS misses,
    (SELECT max(coalesce(v.opened_at, j.updated_at)) FROM rowcall.agent_jobs j
        LEFT JOIN rowcall.reviews v ON v.job_id = j.id AND v.state = 'OPEN'
        WHERE j.job_type = a.name AND j.status = 'WAITING_REVIEW') AS review_since,
    (SELECT max(o.at) FROM rowcall.watch_flips o WHERE o.subject = 'agent:' || a.name AND o.old_state = 'paused'
        AND (SELECT p.due_at FROM rowcall.watch_flips p WHERE p.subject = o.subject AND p.id < o.id
            ORDER BY p.id DESC LIMIT 1) IS NULL) AS resumed_at,
    (SELECT count(*) FROM (SELECT FROM rowcall.agent_jobs j WHERE j.job_type = a.name AND j.status = 'FAILED'
        AND j.finished_at > coalesce(s.finished_at, '-infinity')
        LIMIT coalesce((a.options ->> 'misses')::integer, 1)) x) AS failures,
    (SELECT count(*) FROM (SELECT FROM rowcall.agent_jobs j WHERE j.job_type = a.name AND j.status = 'FAILED'
        AND j.finished_at > rowcall.now() - make_interval(secs => %(calm)s)
        LIMIT coalesce((a.options ->> 'misses')::integer, 1)) x) AS recent_failures
FROM rowcall.agents a
LEFT JOIN LATERAL (SELECT j.id, j.finished_at FROM rowcall.agent_jobs j WHERE j.job_type = a.name
    AND j.status = 'SUCCEEDED' AND j.finished_at IS NOT NULL ORDER BY j.finished_at DESC LIMIT 1) s ON true
LEFT JOIN LATERAL (SELECT j.id, j.finished_at, j.error_code FROM rowcall.agent_jobs j WHERE j.job_type = a.name
    AND j.status = 'FAILED' AND j.finished_at IS NOT NULL ORDER BY j.finished_at DESC LIMIT 1) f ON true
LEFT JOIN LATERAL (SELECT j.id, j.claimed_at FROM rowcall.agent_jobs j WHERE j.job_type = a.name
    AND j.status = 'RUNNING' ORDER BY j.claimed_at DESC NULLS LAST LIMIT 1) r ON true
WHERE a.state <> 'RETIRED';

-- name: outputs
-- Whether the last successful run of each agent that writes left something behind, and its runs of late that did not.
-- Those whose agent may leave nothing behind say so in their step and are not found here.
SELECT a.name, s.id AS success_id, s.finished_at AS success_at, e.id AS empty_id, e.first_at, e.runs,
    w.output ->> 'rows' = '0' AND w.output ->> 'emitted' = '0' AND w.output ->> 'empty_output' IS NULL AS empty
FROM rowcall.agents a
LEFT JOIN LATERAL (SELECT j.id, j.finished_at FROM rowcall.agent_jobs j WHERE j.job_type = a.name
    AND j.status = 'SUCCEEDED' AND j.finished_at IS NOT NULL ORDER BY j.finished_at DESC LIMIT 1) s ON true
LEFT JOIN rowcall.job_steps w ON w.job_id = s.id AND w.name = 'write_result' AND w.superseded = 0
LEFT JOIN (
    SELECT j.job_type, count(*) AS runs, min(x.finished_at) AS first_at,
        (array_agg(x.job_id ORDER BY x.finished_at))[1] AS id
    FROM (SELECT job_id, finished_at FROM rowcall.job_steps
        WHERE kind = 'WRITE_RESULT' AND superseded = 0 AND output ->> 'rows' = '0' AND output ->> 'emitted' = '0'
        AND output ->> 'empty_output' IS NULL AND finished_at > rowcall.now() - make_interval(secs => %(window)s)
        ORDER BY finished_at DESC LIMIT 5000) x
    JOIN rowcall.agent_jobs j ON j.id = x.job_id AND j.status = 'SUCCEEDED' GROUP BY j.job_type
) e ON e.job_type = a.name
WHERE a.state <> 'RETIRED' AND (w.output IS NOT NULL OR e.id IS NOT NULL)
AND coalesce(a.options ->> 'empty_output', 'alert') = 'alert';

-- name: running
-- For each agent the run that is under way for longest, and the one whose lease or deadline ended first.
SELECT j.job_type AS name, count(*) AS runs, min(j.claimed_at) AS claimed_at,
    (array_agg(j.id ORDER BY j.claimed_at))[1] AS run_id, min(least(j.deadline, j.locked_until)) AS lost_at,
    (array_agg(j.id ORDER BY least(j.deadline, j.locked_until)))[1] AS lost_id,
    min((a.options ->> 'run_grace')::double precision) AS run_grace
FROM rowcall.agent_jobs j LEFT JOIN rowcall.agents a ON a.name = j.job_type
WHERE j.status = 'RUNNING' GROUP BY j.job_type;

-- name: waiting
-- Since when each agent's oldest run that could be claimed waits, in its lane or still outside the lanes. Runs that wait
-- for a person, an event, a budget or their time are none. Runs whose agent nobody knows wait for ever: a misspelt
-- job_type. Their names are found by jumping from one to the next, whatever number of lanes there is. A pause
-- with an end is the machine's, one without a person's.
WITH RECURSIVE named AS (
    (SELECT agent FROM rowcall.lanes WHERE ready_at IS NOT NULL AND hold IS NULL ORDER BY agent LIMIT 1)
    UNION ALL
    SELECT (SELECT l.agent FROM rowcall.lanes l WHERE l.ready_at IS NOT NULL AND l.hold IS NULL AND l.agent > n.agent
        ORDER BY l.agent LIMIT 1) FROM named n WHERE n.agent IS NOT NULL
)
SELECT u.name, min(u.since) AS since, (array_agg(u.id ORDER BY u.since))[1] AS run_id,
    bool_or(a.name IS NULL) AS unknown,
    coalesce(bool_or(a.state = 'PAUSED' AND a.paused_until IS NULL), false) AS by_hand,
    min(CASE WHEN a.paused_until > rowcall.now() THEN a.state_reason END) AS refused FROM (
    SELECT a.name, greatest(l.ready_at, j.created_at) AS since, l.head AS id FROM rowcall.agents a
    CROSS JOIN LATERAL unnest(rowcall.ready_levels(a.name, false)) AS v (level)
    CROSS JOIN LATERAL (SELECT ready_at, head FROM rowcall.lanes WHERE agent = a.name AND priority = v.level
        AND ready_at IS NOT NULL AND hold IS NULL ORDER BY ready_at, head LIMIT 1) l
    JOIN rowcall.agent_jobs j ON j.id = l.head
    UNION ALL
    SELECT n.agent, greatest(l.ready_at, j.created_at), l.head FROM named n
    CROSS JOIN LATERAL (SELECT ready_at, head FROM rowcall.lanes WHERE agent = n.agent AND ready_at IS NOT NULL
        AND hold IS NULL ORDER BY priority DESC, ready_at, head LIMIT 1) l
    JOIN rowcall.agent_jobs j ON j.id = l.head
    WHERE l.ready_at <= rowcall.now() AND NOT EXISTS (SELECT FROM rowcall.agents WHERE name = n.agent)
    UNION ALL
    SELECT i.job_type, greatest(i.run_after, i.created_at), i.id FROM (
        SELECT job_type, id, run_after, created_at FROM rowcall.agent_jobs WHERE lane_seq IS NULL
        AND status = 'PENDING' ORDER BY CASE WHEN holds_key THEN created_at ELSE run_after END, id LIMIT 1000) i
    WHERE i.run_after <= rowcall.now()
) u LEFT JOIN rowcall.agents a ON a.name = u.name
WHERE a.name IS NULL OR a.state <> 'RETIRED' GROUP BY u.name;

-- name: executors
-- When the last executor fell silent, or will have: a clean end is silence from then on, a death only after beats that
-- it missed. No row at all where none ever ran; beats that lie in the future are none.
SELECT max(CASE WHEN state = 'STOPPED' OR expected_next IS NULL THEN at
    ELSE at + (expected_next - at) * %(misses)s + make_interval(secs => %(tolerance)s) END) AS silent_at,
    max(at) AS at
FROM rowcall.heartbeats WHERE subject = 'executor' AND at <= rowcall.now() + make_interval(secs => %(future)s) HAVING count(*) > 0;

-- name: fleets
-- Roles that something needs, since when at the latest, and when the last process of each fell silent, or will have.
SELECT f.role, f.since, f.needed, h.silent_at, h.at FROM (
    SELECT 'intake' AS role, min(activated_at) AS since, count(*) AS needed FROM rowcall.agents
    WHERE state <> 'RETIRED' AND topics <> '{}'
    UNION ALL
    SELECT 'drift', max(seen_at), count(*) FROM rowcall.drift_monitors WHERE retired_at IS NULL
) f LEFT JOIN LATERAL (
    SELECT max(CASE WHEN state = 'STOPPED' OR expected_next IS NULL THEN at
        ELSE at + (expected_next - at) * %(misses)s + make_interval(secs => %(tolerance)s) END) AS silent_at, max(at) AS at
    FROM rowcall.heartbeats WHERE subject = f.role AND at <= rowcall.now() + make_interval(secs => %(future)s)
) h ON true WHERE f.needed > 0;

-- name: holds
-- Budgets that are spent and storms, while they hold lanes.
SELECT reason, budget_id, agent, topic, since, nullif(until, 'infinity') AS until, detail FROM rowcall.holds ORDER BY id;

-- name: parked
-- The first run that is parked until a person lets it go, by why.
SELECT r.reason, j.id AS run_id, j.job_type AS agent, j.updated_at AS since
FROM unnest('{causation_loop,budget_root,older_than_horizon}'::text[]) AS r (reason)
CROSS JOIN LATERAL (SELECT id, job_type, updated_at FROM rowcall.agent_jobs
    WHERE status = 'PARKED' AND reason = r.reason ORDER BY id LIMIT 1) j;

-- name: open_reviews
-- When the first review of each agent escalated, and when the one that expires first is about to: an hour before it,
-- or when a tenth of its time is left.
SELECT j.job_type AS agent, min(r.escalated_at) AS escalated_at, min(e.expiring_at) AS expiring_at,
    (array_agg(r.expires_at ORDER BY e.expiring_at) FILTER (WHERE e.expiring_at IS NOT NULL))[1] AS expires_at,
    (array_agg(r.id ORDER BY e.expiring_at) FILTER (WHERE e.expiring_at IS NOT NULL))[1] AS review_id
FROM rowcall.reviews r JOIN rowcall.agent_jobs j ON j.id = r.job_id
CROSS JOIN LATERAL (SELECT CASE WHEN r.code <> 'effect_unknown'
    THEN r.expires_at - least(interval '1 hour', (r.expires_at - r.opened_at) / 10) END AS expiring_at) e
WHERE r.state = 'OPEN' GROUP BY j.job_type;

-- name: dead_letter_topics
-- The first dead letter of each topic that nobody has dealt with; steps from topic to topic in the index.
WITH RECURSIVE topics (topic) AS (
    (SELECT topic FROM rowcall.dead_letters WHERE state = 'OPEN' ORDER BY topic LIMIT 1)
    UNION ALL
    SELECT (SELECT d.topic FROM rowcall.dead_letters d WHERE d.state = 'OPEN' AND d.topic > t.topic
        ORDER BY d.topic LIMIT 1) FROM topics t WHERE t.topic IS NOT NULL
)
SELECT t.topic, d.id, d.error_code, d.created_at AS since FROM topics t
CROSS JOIN LATERAL (SELECT id, error_code, created_at FROM rowcall.dead_letters
    WHERE state = 'OPEN' AND topic = t.topic ORDER BY id LIMIT 1) d;

-- name: connector_beats
-- When each connector last wrote its own beat.
SELECT connector, beat_at FROM rowcall.connector_heartbeats;

-- name: begin_watching
-- New subjects; one that another watchdog has just written stays.
INSERT INTO rowcall.watch_states (subject, due_at, last_beat_at)
SELECT s.subject, s.due_at, s.last_beat_at
FROM unnest(%(subjects)s::text[], %(due)s::timestamptz[], %(beats)s::timestamptz[]) AS s (subject, due_at, last_beat_at)
ORDER BY 1 ON CONFLICT (subject) DO NOTHING;

-- name: see
-- What is known of subjects whose state stays.
UPDATE rowcall.watch_states w SET seen_at = rowcall.now(), due_at = s.due_at, last_beat_at = s.last_beat_at
FROM unnest(%(subjects)s::text[], %(due)s::timestamptz[], %(beats)s::timestamptz[]) AS s (subject, due_at, last_beat_at)
WHERE w.subject = s.subject;

-- name: move
-- The flip belongs to whoever finds the state still as it was known: one of several watchdogs.
UPDATE rowcall.watch_states SET state = %(new)s, since = rowcall.now(), told = %(told)s, message = %(message)s,
    due_at = %(due)s, last_beat_at = %(beat)s, run_id = %(run)s, reminders = 0, reminded_at = rowcall.now(),
    seen_at = rowcall.now()
WHERE subject = %(subject)s AND state = %(old)s RETURNING subject;

-- name: flip
INSERT INTO rowcall.watch_flips (subject, old_state, new_state, due_at, last_beat_at, run_id, message)
VALUES (%(subject)s, %(old)s, %(new)s, %(due)s, %(beat)s, %(run)s, %(message)s)
RETURNING id AS flip, subject, old_state, new_state, due_at, at, last_beat_at, run_id;

-- name: last_flip
SELECT id AS flip, subject, old_state, new_state, due_at, at, last_beat_at, run_id FROM rowcall.watch_flips
WHERE subject = %(subject)s ORDER BY id DESC LIMIT 1;

-- name: alert
-- One row a channel, in the transaction of what is told.
INSERT INTO rowcall.watch_alerts (flip, reminder, channel, message)
SELECT %(flip)s, %(reminder)s, c, %(message)s FROM unnest(%(channels)s::text[]) AS c
ON CONFLICT (flip, reminder, channel) DO NOTHING;

-- name: remind
-- Counts a reminder that is due, once; the flip it is about.
UPDATE rowcall.watch_states SET reminders = reminders + 1, reminded_at = rowcall.now()
WHERE subject = %(subject)s AND state = %(state)s AND reminders = %(reminders)s AND told
AND reminded_at NOT BETWEEN rowcall.now() - make_interval(secs => %(seconds)s) + interval '1 us' AND rowcall.now()
RETURNING reminders, message;

-- name: take_alert
-- The alert of a channel that has waited longest, put off for others while it is sent. Nothing is put off for longer
-- than `longest`: what seems to be is from before the clock went back.
WITH next AS (
    SELECT id FROM rowcall.watch_alerts WHERE channel = %(channel)s AND next_try IS NOT NULL
    AND next_try NOT BETWEEN rowcall.now() + interval '1 us' AND rowcall.now() + make_interval(secs => %(longest)s)
    ORDER BY next_try, id LIMIT 1 FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE rowcall.watch_alerts a SET attempts = a.attempts + 1,
        next_try = rowcall.now() + make_interval(secs => %(lease)s)
    FROM next WHERE a.id = next.id RETURNING a.id, a.flip, a.reminder, a.message, a.attempts
)
SELECT t.id, t.flip, t.reminder, t.message, t.attempts, f.subject, f.new_state, f.old_state, f.due_at, f.last_beat_at,
    f.run_id, f.at FROM taken t JOIN rowcall.watch_flips f ON f.id = t.flip;

-- name: sent
UPDATE rowcall.watch_alerts SET sent_at = rowcall.now(), next_try = NULL, last_error = NULL
WHERE id = %(id)s AND next_try IS NOT NULL;

-- name: not_sent
-- Tries again later, or never.
UPDATE rowcall.watch_alerts SET last_error = %(error)s,
    gave_up_at = CASE WHEN %(give_up)s THEN rowcall.now() END,
    next_try = CASE WHEN %(give_up)s THEN NULL ELSE rowcall.now() + make_interval(secs => %(delay)s) END
WHERE id = %(id)s AND next_try IS NOT NULL;

-- name: prune_flips
DELETE FROM rowcall.watch_flips WHERE at < rowcall.now() - make_interval(days => %(days)s);

-- name: prune_alerts
DELETE FROM rowcall.watch_alerts WHERE made_at < rowcall.now() - make_interval(days => %(days)s);

-- name: give_up_orphans
-- Alerts for channels that are in nobody's file any more: whoever had one would have tried within the day.
WITH gone AS (
    UPDATE rowcall.watch_alerts SET gave_up_at = rowcall.now(), next_try = NULL,
        last_error = 'no watchdog has a channel of this name'
    WHERE next_try < rowcall.now() - interval '1 day' AND channel <> ALL (%(channels)s::text[]) RETURNING channel
)
SELECT channel, count(*) FROM gone GROUP BY channel ORDER BY channel;

-- name: prune_heartbeats
-- Instances that ended as they should more than an hour ago, or have been silent for a week. One that may have taken a
-- dead one's place is kept as long as that one: without it the old death would look new.
DELETE FROM rowcall.heartbeats h
WHERE h.at < rowcall.now() - interval '7 days' OR (h.state = 'STOPPED' AND h.at < rowcall.now() - interval '1 hour'
    AND NOT EXISTS (SELECT FROM rowcall.heartbeats d WHERE d.subject = h.subject AND d.state = 'RUNNING'
        AND d.at < h.started_at AND d.at >= rowcall.now() - interval '7 days'));

-- name: prune_states
-- What nobody has seen for an hour is not there any more, unless a person paused it.
DELETE FROM rowcall.watch_states WHERE seen_at < rowcall.now() - interval '1 hour'
AND state IN ('new', 'up', 'late', 'paused') AND coalesce(paused_until <= rowcall.now(), true);

-- name: list
-- What is watched, the worst first, with alerts of it that have not gone out.
SELECT w.subject, w.state, w.since, w.last_beat_at, w.due_at, w.run_id, w.reminders, w.paused_by,
    nullif(w.paused_until, 'infinity') AS paused_until, w.message,
    (SELECT count(*) FROM rowcall.watch_alerts a JOIN rowcall.watch_flips f ON f.id = a.flip
     WHERE f.subject = w.subject AND a.gave_up_at IS NOT NULL) AS gave_up,
    (SELECT count(*) FROM rowcall.watch_alerts a JOIN rowcall.watch_flips f ON f.id = a.flip
     WHERE f.subject = w.subject AND a.next_try IS NOT NULL) AS unsent
FROM rowcall.watch_states w
WHERE (%(state)s::text IS NULL OR w.state = %(state)s)
ORDER BY array_position(ARRAY['failed', 'overdue', 'stuck', 'no_output', 'late', 'paused', 'new', 'up'], w.state),
    w.subject;

-- name: flips
-- The latest changes, and what became of their alerts.
SELECT f.id, f.at, f.subject, f.old_state, f.new_state, f.due_at, f.last_beat_at, f.run_id, f.message,
    ARRAY(SELECT a.channel || CASE WHEN a.reminder > 0 THEN ' (reminder ' || a.reminder || ')' ELSE '' END
        || CASE WHEN a.sent_at IS NOT NULL THEN ' sent' WHEN a.gave_up_at IS NOT NULL
            THEN ' GAVE_UP: ' || coalesce(a.last_error, '')
            WHEN a.attempts > 0 THEN ' tried ' || a.attempts || ' times: ' || coalesce(a.last_error, 'under way')
            ELSE ' waits' END
        FROM rowcall.watch_alerts a WHERE a.flip = f.id ORDER BY a.reminder, a.channel) AS alerts
FROM rowcall.watch_flips f WHERE (%(subject)s::text IS NULL OR f.subject = %(subject)s)
ORDER BY f.id DESC LIMIT %(limit)s;

-- name: is_ahead
SELECT %(at)s::timestamptz > rowcall.now() AS ahead;

-- name: pause
UPDATE rowcall.watch_states SET paused_until = coalesce(%(until)s::timestamptz, 'infinity'), paused_by = %(by)s
WHERE subject = %(subject)s RETURNING subject;

-- name: resume
UPDATE rowcall.watch_states SET paused_until = NULL, paused_by = NULL
WHERE subject = %(subject)s AND paused_until IS NOT NULL RETURNING subject;

-- name: forget
DELETE FROM rowcall.watch_states WHERE subject = %(subject)s RETURNING subject;

-- name: forget_instance
-- A process that will not beat again; one that does writes itself anew.
DELETE FROM rowcall.heartbeats WHERE kind || ':' || subject || '@' || instance = %(subject)s;

-- name: known
-- Whether it is watched.
SELECT subject FROM rowcall.watch_states WHERE subject = %(subject)s;

-- name: audit
INSERT INTO rowcall.audit (actor, action, subject, detail)
VALUES (%(actor)s, %(action)s, %(subject)s, %(detail)s::json);
