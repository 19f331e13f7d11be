-- name: list_reviews
-- Reviews, the longest waiting first while they are open.
SELECT r.id, r.job_id, j.job_type AS agent, r.state, r.code, r.tier, r.reasons, r.digest, r.shape, j.key_text AS key,
    r.opened_at, r.expires_at, r.escalated_at, r.decided_at, r.decided_by, r.decision_reason, r.edited, r.bypass_id,
    r.superseded_by
FROM rowcall.reviews r JOIN rowcall.agent_jobs j ON j.id = r.job_id
WHERE (%(state)s::text IS NULL OR r.state = %(state)s) AND (%(agent)s::text IS NULL OR j.job_type = %(agent)s)
AND (%(tier)s::text IS NULL OR r.tier = %(tier)s) AND (%(key)s::text IS NULL OR j.key_text = %(key)s) AND (NOT %(escalated)s OR r.escalated_at IS NOT NULL)
ORDER BY r.state <> 'OPEN', CASE WHEN r.state = 'OPEN' THEN r.id ELSE -r.id END LIMIT %(limit)s;

-- name: review
-- One review, whole.
SELECT r.id, r.job_id, j.job_type AS agent, r.agent_version, j.status AS job_status, j.event_id, j.key_text AS key,
    r.state, r.code, r.tier, r.reasons, r.raw_answer, r.proposed_answer::text AS proposed_answer,
    r.changes::text AS changes, r.stale_changes::text AS stale_changes, r.digest, r.shape, r.seen::text AS seen,
    r.seen_digest, r.evidence::text AS evidence, j.input_kind, j.payload::text AS payload, r.opened_at, r.expires_at,
    r.escalates_at, r.escalated_at, r.decided_at, r.decided_by, r.decision_reason, r.edited, r.decided_digest,
    r.decision_group, r.bypass_id, r.superseded_by
FROM rowcall.reviews r JOIN rowcall.agent_jobs j ON j.id = r.job_id WHERE r.id = %s;

-- name: evidence_steps
-- The checkpoints that an answer came from, those thrown away since included.
SELECT s.number, s.name, s.kind, s.superseded, s.output::text AS output, s.agent_version, s.lease_epoch, s.finished_at
FROM rowcall.reviews r CROSS JOIN LATERAL json_array_elements(r.evidence -> 'steps') AS e (step)
JOIN rowcall.job_steps s ON s.job_id = r.job_id AND s.name = e.step ->> 'name'
    AND s.lease_epoch = (e.step ->> 'epoch')::bigint
WHERE r.id = %s ORDER BY s.number;

-- name: evidence_calls
-- The external calls that an answer came from.
SELECT c.id, c.step, c.kind, c.endpoint, coalesce(c.answered_model, c.model) AS model, c.error_code, c.validated,
    c.validation_error, encode(c.input_sha256, 'hex') AS input_sha256, c.response
FROM rowcall.reviews r CROSS JOIN LATERAL json_array_elements_text(r.evidence -> 'calls') AS e (id)
JOIN rowcall.external_calls c ON c.id = e.id::bigint
WHERE r.id = %s ORDER BY c.id;

-- name: job_of_review
-- The run a review belongs to, which has to be held first.
SELECT job_id FROM rowcall.reviews WHERE id = %s;

-- name: lock_review
-- Holds one review, whose job is already held.
SELECT r.id, r.job_id, r.state, r.code, r.tier, r.digest, r.agent_version, r.decided_by, r.decided_at, r.superseded_by,
    r.proposed_answer::text AS proposed_answer, j.job_type AS agent, j.event_id, j.key_text AS key, j.input_kind,
    j.payload::text AS payload
FROM rowcall.reviews r JOIN rowcall.agent_jobs j ON j.id = r.job_id WHERE r.id = %s FOR UPDATE OF r;

-- name: decide
-- The decision of a person.
UPDATE rowcall.reviews SET state = %(state)s, decided_at = rowcall.now(), decided_by = %(actor)s,
    decision_reason = %(reason)s, decided_digest = %(digest)s, edited = %(edited)s, decision_group = %(group)s
WHERE id = %(id)s;

-- name: set_answer
-- What the run is to write when it resumes, and who says so.
UPDATE rowcall.agent_jobs SET approved_answer = %(answer)s::json, approved_by = %(actor)s WHERE id = %(id)s;

-- name: throw_answer
-- Another attempt: the last model call's checkpoint and what was built on it are kept as evidence and count no more;
-- what came before it stays. With `whole`, everything is thrown away: the row is another one than the steps saw.
WITH last_call AS (
    SELECT max(number) AS number FROM rowcall.job_steps
    WHERE job_id = %(id)s AND superseded = 0 AND kind = 'CALL_MODEL'
), thrown AS (
    UPDATE rowcall.job_steps s SET superseded = 1 + (
        SELECT coalesce(max(superseded), 0) FROM rowcall.job_steps WHERE job_id = %(id)s)
    FROM last_call c WHERE s.job_id = %(id)s AND s.superseded = 0 AND (%(whole)s OR s.number >= c.number)
    RETURNING 1
)
UPDATE rowcall.agent_jobs SET asked_again = asked_again + 1, steps_done = steps_done - (SELECT count(*) FROM thrown),
    agent_version = CASE WHEN NOT %(whole)s THEN agent_version END, approved_answer = NULL, approved_by = NULL
WHERE id = %(id)s;

-- name: alike
-- Open reviews like this one, the longest waiting first.
SELECT o.id, o.digest, o.tier FROM rowcall.reviews r JOIN rowcall.reviews o ON o.shape = r.shape
WHERE r.id = %(id)s AND o.state = 'OPEN' ORDER BY o.id LIMIT %(limit)s;

-- name: grant_bypass
-- Lets the medium tier of an agent through for a while.
INSERT INTO rowcall.bypasses (agent, tier, until, reason, granted_by)
VALUES (%(agent)s, %(tier)s, rowcall.now() + make_interval(secs => %(seconds)s), %(reason)s, %(actor)s)
RETURNING id, until;

-- name: lock_bypass
-- Holds one bypass for its end.
SELECT id, agent, tier, until, ended_at, ended_by, until <= rowcall.now() AS over
FROM rowcall.bypasses WHERE id = %s FOR UPDATE;

-- name: end_bypass
-- Ends a bypass before its time.
UPDATE rowcall.bypasses SET ended_at = rowcall.now(), ended_by = %(actor)s WHERE id = %(id)s;

-- name: bypasses
-- Bypasses, newest first, with how many answers each has let through.
SELECT b.id, b.agent, b.tier, b.since, b.until, b.reason, b.granted_by, b.ended_at, b.ended_by,
    b.ended_at IS NULL AND b.until > rowcall.now() AS active,
    (SELECT count(*) FROM rowcall.reviews r WHERE r.bypass_id = b.id)::integer AS let_through
FROM rowcall.bypasses b WHERE (%(agent)s::text IS NULL OR b.agent = %(agent)s) ORDER BY b.id DESC LIMIT %(limit)s;
