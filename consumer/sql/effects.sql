-- name: fence
-- Holds the run for a write of its owner and renews its lease; nothing where another owner has it. `left_seconds` is
-- how long the lease holds from here: a request must not leave later.
UPDATE rowcall.agent_jobs
SET locked_until = least(deadline, rowcall.now() + make_interval(secs => %(lease)s))
WHERE id = %(job)s AND lease_epoch = %(epoch)s AND status = 'RUNNING'
RETURNING delivery, extract(epoch FROM locked_until - rowcall.now())::double precision AS left_seconds;

-- name: found
-- The effect of this run, step and key. A new delivery takes up what an earlier one left, unless that is known not to
-- have happened: then it is another effect, with an idempotency key of its own.
SELECT id, job_id, step, business_key, state, idempotent, method, url, request_sha256, attempts, response::text AS response,
    planned_at, sent_at
FROM rowcall.effects
WHERE job_id = %(job)s AND step = %(step)s AND business_key = %(key)s
AND (delivery = %(delivery)s OR state <> 'FAILED')
ORDER BY delivery DESC LIMIT 1 FOR UPDATE;

-- name: plan
-- Writes the effect down before anything is sent; one that is known not to have happened is planned again.
INSERT INTO rowcall.effects
    (id, job_id, delivery, step, business_key, idempotent, method, url, request_sha256, lease_epoch)
VALUES (%(id)s, %(job)s, %(delivery)s, %(step)s, %(key)s, %(idempotent)s, %(method)s, %(url)s, %(digest)s, %(epoch)s)
ON CONFLICT (id) DO UPDATE SET
    state = 'PLANNED', idempotent = excluded.idempotent, method = excluded.method, url = excluded.url,
    request_sha256 = excluded.request_sha256, lease_epoch = excluded.lease_epoch, settled_at = NULL, resolved_by = NULL,
    updated_at = rowcall.now()
RETURNING id, job_id, step, business_key, state, idempotent, method, url, request_sha256, attempts,
    response::text AS response, planned_at, sent_at;

-- name: send
-- The bytes leave now. The trigger on the table refuses it for what may have happened and is not idempotent.
UPDATE rowcall.effects SET
    state = 'SENT', attempts = attempts + 1, sent_at = rowcall.now(), lease_epoch = %(epoch)s, error_code = NULL,
    error = NULL, updated_at = rowcall.now()
WHERE id = %(id)s RETURNING attempts;

-- name: settle
-- What became of the effect. An effect that is there already stays: a repeated write after a lost answer of the commit.
UPDATE rowcall.effects SET
    state = %(state)s, error_code = %(code)s, error = %(error)s, response_status = %(status)s,
    response_sha256 = %(digest)s, response = %(response)s::json, response_truncated = %(truncated)s,
    lease_epoch = %(epoch)s, updated_at = rowcall.now(), resolved_by = %(by)s,
    settled_at = CASE WHEN %(state)s IN ('CONFIRMED', 'FAILED') THEN rowcall.now() END
WHERE id = %(id)s AND state <> %(state)s;

-- name: acted
-- Whether the run's act has had an effect, or may have had one.
SELECT EXISTS (SELECT FROM rowcall.effects WHERE job_id = %s AND step LIKE 'act:%%'
    AND state IN ('SENT', 'UNKNOWN', 'CONFIRMED')) AS found;
