-- name: open_review
-- Holds an answer for a person; a run has at most one open review. With it the steps and calls that led to the answer,
-- by name and ID: their rows stay.
INSERT INTO rowcall.reviews (job_id, code, reasons, raw_answer, proposed_answer, tier, agent_version, digest, shape,
    seen, seen_digest, changes, stale_changes, expires_at, escalates_at, evidence)
VALUES (%(id)s, %(code)s, %(reasons)s, %(raw)s, %(proposed)s::json, %(tier)s, %(version)s, %(digest)s, %(shape)s,
    %(seen)s::json, %(seen_digest)s, %(changes)s::json, %(stale)s::json,
    rowcall.now() + make_interval(secs => %(expires)s), rowcall.now() + make_interval(secs => %(escalates)s),
    json_build_object(
        'steps', (SELECT coalesce(json_agg(json_build_object('name', s.name, 'epoch', s.lease_epoch) ORDER BY s.number),
                                  '[]')
                  FROM rowcall.job_steps s WHERE s.job_id = %(id)s AND s.superseded = 0),
        'calls', (SELECT coalesce(json_agg(c.id ORDER BY c.id), '[]')
                  FROM rowcall.external_calls c WHERE c.job_id = %(id)s)))
ON CONFLICT (job_id) WHERE state = 'OPEN' DO UPDATE
SET code = excluded.code, reasons = excluded.reasons, raw_answer = excluded.raw_answer,
    proposed_answer = excluded.proposed_answer, tier = excluded.tier, agent_version = excluded.agent_version,
    digest = excluded.digest, shape = excluded.shape, seen = excluded.seen, seen_digest = excluded.seen_digest,
    changes = excluded.changes, stale_changes = excluded.stale_changes, evidence = excluded.evidence
RETURNING id;

-- name: active_bypass
-- The bypass that lets an agent's answers of a tier through now; held, so that its end is before or after this one.
SELECT id FROM rowcall.bypasses
WHERE agent = %(agent)s AND tier = %(tier)s AND ended_at IS NULL AND since <= rowcall.now() AND until > rowcall.now()
ORDER BY id DESC LIMIT 1 FOR SHARE;

-- name: let_through
-- The decision of a bypass, and its audit row.
WITH decided AS (
    UPDATE rowcall.reviews SET state = 'APPROVED', decided_at = rowcall.now(), decided_by = 'bypass ' || %(bypass)s,
        bypass_id = %(bypass)s, decided_digest = digest
    WHERE id = %(review)s RETURNING id, job_id, proposed_answer
), told AS (
    INSERT INTO rowcall.audit (actor, action, subject, detail)
    SELECT 'bypass ' || %(bypass)s, 'approve', 'job ' || job_id,
        json_build_object('review', id, 'bypass', %(bypass)s::bigint) FROM decided
)
UPDATE rowcall.agent_jobs j SET approved_answer = d.proposed_answer, approved_by = 'bypass ' || %(bypass)s
FROM decided d WHERE j.id = d.job_id;

-- name: withdraw_approval
-- What a person approved cannot be written any more: the approval's review becomes STALE and its run keeps no answer.
WITH stale AS (
    UPDATE rowcall.reviews SET state = 'STALE', stale_changes = %(stale)s::json
    WHERE id = %(review)s AND state = 'APPROVED' RETURNING id, job_id
), told AS (
    INSERT INTO rowcall.review_events (kind, review_id, job_id) SELECT 'stale', id, job_id FROM stale
), audited AS (
    INSERT INTO rowcall.audit (actor, action, subject, detail)
    SELECT 'rowcall', 'stale', 'job ' || job_id, json_build_object('review', id) FROM stale
)
UPDATE rowcall.agent_jobs SET approved_answer = NULL, approved_by = NULL WHERE id = %(id)s;

-- name: refresh_lane
-- The run's lane after its approval came or went by itself: a lane has its head's priority, and an approved head its own.
SELECT rowcall.refresh_lanes(ARRAY[job_type], ARRAY[key_hash]) FROM rowcall.agent_jobs
WHERE id = %s AND lane_seq IS NOT NULL;

-- name: put_row
-- The row as it stands becomes the run's input, where a person is asked about it.
UPDATE rowcall.agent_jobs SET payload = %(payload)s::json WHERE id = %(id)s;

-- name: supersede
-- A newer change may stand behind this run already; see sql/functions.
SELECT rowcall.supersede_reviews(ARRAY[%s]::bigint[]) AS superseded;

-- name: supersede_all
-- The same for every open review: what was passed over because somebody held it is found here.
SELECT rowcall.supersede_reviews(NULL) AS superseded;

-- name: expire
-- Denies what nobody decided in time; see sql/functions.
SELECT review_id, job_id, agent FROM rowcall.expire_reviews(%s);

-- name: escalate
-- Marks what has waited for long; see sql/functions.
SELECT review_id, job_id, agent FROM rowcall.escalate_reviews(%s);

-- name: open_counts
-- Open reviews by agent, tier and age. Few rows: the partial index has the open ones alone.
SELECT j.job_type AS agent, coalesce(r.tier, 'unknown') AS tier, CASE
        WHEN r.opened_at > rowcall.now() - interval '1 hour' THEN 'hour'
        WHEN r.opened_at > rowcall.now() - interval '1 day' THEN 'day'
        WHEN r.opened_at > rowcall.now() - interval '7 days' THEN 'week'
        ELSE 'older' END AS age, count(*)::integer AS n
FROM rowcall.reviews r JOIN rowcall.agent_jobs j ON j.id = r.job_id WHERE r.state = 'OPEN' GROUP BY 1, 2, 3;

-- name: decided_counts
-- Reviews that were decided in the last hour, by agent and what became of them.
SELECT j.job_type AS agent, lower(r.state) AS decision, count(*)::integer AS n
FROM rowcall.reviews r JOIN rowcall.agent_jobs j ON j.id = r.job_id
WHERE r.decided_at > rowcall.now() - interval '1 hour' GROUP BY 1, 2;
