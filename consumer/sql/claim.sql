-- name: promote
-- Places up to %s committed, due jobs into their lanes; -1 when another worker is at it.
SELECT rowcall.promote(%s) AS placed;

-- name: reclaim
-- Takes up to %s runs from owners whose lease or deadline is over.
SELECT rowcall.reclaim(%s) AS reclaimed;

-- name: mend_lanes
-- Puts right up to %s lanes that statements by hand have broken; see sql/functions.
SELECT rowcall.mend_lanes(%s) AS mended;

-- name: due
-- What of the upkeep has anything to do, in one statement: each part by itself would be one that finds nothing.
SELECT EXISTS (SELECT FROM rowcall.agent_jobs WHERE status = 'RUNNING' AND locked_until <= rowcall.now()) AS expired,
    EXISTS (SELECT FROM rowcall.agents
        WHERE name = ANY (%(agents)s) AND state = 'PAUSED' AND paused_until <= rowcall.now()) AS paused,
    EXISTS (SELECT FROM rowcall.reviews WHERE state = 'OPEN')
        OR EXISTS (SELECT FROM rowcall.reviews WHERE decided_at > rowcall.now() - interval '1 hour') AS reviews,
    EXISTS (SELECT FROM rowcall.agent_limits WHERE agent = ANY (%(agents)s) AND rate_runs IS NOT NULL) AS rated,
    EXISTS (SELECT FROM rowcall.holds) OR EXISTS (SELECT FROM rowcall.spend WHERE state = 'RESERVED')
        OR EXISTS (SELECT FROM rowcall.agent_jobs WHERE status = 'PARKED' AND reason = 'budget') AS limits;

-- name: any_work
-- Whether promote or claim may find anything, for a worker that has just found nothing: one statement in place of two.
-- Rather too often than too seldom: a lane of a paused agent counts.
SELECT EXISTS (SELECT FROM rowcall.agent_jobs
        WHERE lane_seq IS NULL AND status = 'PENDING'
        AND CASE WHEN holds_key THEN created_at ELSE run_after END <= rowcall.now())
    OR EXISTS (SELECT FROM unnest(%(agents)s::text[], %(versions)s::integer[]) AS a (name, version)
        WHERE rowcall.ready_levels(a.name, false) <> '{}'
        OR EXISTS (SELECT FROM rowcall.lanes l WHERE l.agent = a.name AND l.parked_version = a.version)
        OR EXISTS (SELECT FROM rowcall.lanes l WHERE l.agent = a.name AND l.suspect_at <= rowcall.now())) AS found;

-- name: claim
-- Takes the heads of ready lanes; see sql/functions. Brings the checkpoints of a resumed run with it: a second
-- statement could fail and leave the claim to its lease.
SELECT id, job_type, lease_epoch, attempt_count, max_attempts, input_kind, payload::text AS payload, steps_done,
    event_id, delivery, occurred_at, key_text, source_topic, source_partition, source_offset,
    root_event, depth, chain, key_hash, merged, tenant, traceparent, approved_answer::text AS approved_answer, approved_by, created_at,
    losses, postponed, agent_version,
    CASE WHEN steps_done > 0 THEN (
        SELECT json_agg(json_build_object(
            'name', s.name, 'kind', s.kind, 'number', s.number, 'output', s.output::text))::text
        FROM rowcall.job_steps s WHERE s.job_id = c.id AND s.superseded = 0) END AS steps,
    CASE WHEN c.approved_answer IS NOT NULL THEN (
        SELECT json_build_object('review', r.id, 'digest', r.decided_digest, 'version', r.agent_version,
            'edited', r.edited, 'tier', r.tier, 'code', r.code, 'seen', r.seen::text)::text
        FROM rowcall.reviews r WHERE r.job_id = c.id AND r.state = 'APPROVED' ORDER BY r.id DESC LIMIT 1) END AS approval,
    CASE WHEN c.asked_again > 0 THEN (
        SELECT json_agg(r.decision_reason ORDER BY r.id)::text
        FROM rowcall.reviews r WHERE r.job_id = c.id AND r.state = 'AGAIN') END AS feedback
FROM rowcall.claim(%(agents)s, %(limit)s, %(owner)s, %(lease)s, %(deadline)s, %(versions)s, %(deadlines)s,
    %(suspects)s) AS c ORDER BY id;

-- name: beat
-- Renews leases. Skips rows that a checkpoint or outcome holds: those renew by themselves. Never past the deadline.
WITH mine AS MATERIALIZED (
    SELECT j.id FROM rowcall.agent_jobs j JOIN unnest(%(ids)s::bigint[], %(epochs)s::bigint[]) AS v (id, epoch)
        ON j.id = v.id AND j.lease_epoch = v.epoch AND j.status = 'RUNNING'
    ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE rowcall.agent_jobs j
SET locked_until = least(j.deadline, rowcall.now() + make_interval(secs => %(lease)s))
FROM mine WHERE j.id = mine.id;

-- name: still_mine
-- Which of these runs still belong to the epoch that claimed them.
SELECT j.id, j.lease_epoch
FROM rowcall.agent_jobs j JOIN unnest(%(ids)s::bigint[], %(epochs)s::bigint[]) AS v (id, epoch)
    ON j.id = v.id AND j.lease_epoch = v.epoch AND j.status = 'RUNNING';

-- name: pause_agent
-- An agent whose model calls are all refused: claims stop until the time given, or until a person resumes it.
UPDATE rowcall.agents SET state = 'PAUSED', state_reason = %(reason)s,
    paused_until = rowcall.now() + make_interval(secs => %(seconds)s), updated_at = rowcall.now()
WHERE name = %(agent)s AND state <> 'RETIRED' AND (state <> 'PAUSED' OR paused_until IS NOT NULL);

-- name: unpause_agents
-- Ends timed pauses that have run out; claims take no notice of such a pause in any case.
UPDATE rowcall.agents SET state = 'ACTIVE', state_reason = NULL, paused_until = NULL, updated_at = rowcall.now()
WHERE name = ANY (%(agents)s) AND state = 'PAUSED' AND paused_until <= rowcall.now();
