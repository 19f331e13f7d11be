-- name: checkpoint
-- Keeps finished steps and renews the leases, for the runs that are still their owner's; returns those runs. A step is
-- progress: what was lost before it counts no more.
-- Everything is written from what the locked rows return, in id order: a stale owner's step has no row to hang on. One
-- group may hold steps of an old and of the present epoch of one run, when a worker took its own run over.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)b::bigint[], %(epochs)b::bigint[], %(names)b::text[], %(kinds)b::text[],
        %(numbers)b::integer[], %(outputs)b::text[], %(versions)b::integer[], %(started)b::timestamptz[])
        AS a (id, epoch, name, kind, number, output, version, started_at)
), fenced AS MATERIALIZED (
    SELECT j.id, a.epoch FROM rowcall.agent_jobs j
    JOIN (SELECT DISTINCT id, epoch FROM asked) a ON j.id = a.id AND j.lease_epoch = a.epoch AND j.status = 'RUNNING'
    ORDER BY j.id FOR NO KEY UPDATE OF j
), renewed AS (
    UPDATE rowcall.agent_jobs j SET
        locked_until = least(j.deadline, rowcall.now() + make_interval(secs => %(lease)s)),
        steps_done = j.steps_done + c.steps, agent_version = coalesce(j.agent_version, c.version), losses = 0,
        updated_at = rowcall.now()
    FROM fenced f
    JOIN (SELECT id, epoch, count(*) AS steps, min(version) AS version FROM asked GROUP BY id, epoch) c
        USING (id, epoch)
    WHERE j.id = f.id
    RETURNING j.id, j.lease_epoch AS epoch
), kept AS (
    INSERT INTO rowcall.job_steps (job_id, name, kind, number, output, agent_version, lease_epoch, started_at)
    SELECT a.id, a.name, a.kind, a.number, a.output::json, a.version, r.epoch, a.started_at
    FROM asked a JOIN renewed r USING (id, epoch)
    ON CONFLICT (job_id, name, superseded) DO NOTHING
)
SELECT id, epoch FROM renewed;

-- name: supersede_steps
-- Throws the checkpoints of a run away for another attempt, kept as evidence.
UPDATE rowcall.job_steps SET superseded = 1 + (
    SELECT coalesce(max(superseded), 0) FROM rowcall.job_steps WHERE job_id = %(id)s)
WHERE job_id = %(id)s AND superseded = 0;

-- name: call_sent
-- Records external calls before they leave, for the runs that are still their owner's; returns those records.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)b::bigint[], %(epochs)b::bigint[], %(steps)b::text[], %(attempts)b::integer[],
        %(kinds)b::text[], %(endpoints)b::text[], %(models)b::text[], %(keys)b::text[], %(digests)b::bytea[])
        AS a (id, epoch, step, attempt, kind, endpoint, model, key, digest)
), fenced AS MATERIALIZED (
    SELECT j.id, a.epoch FROM rowcall.agent_jobs j
    JOIN (SELECT DISTINCT id, epoch FROM asked) a ON j.id = a.id AND j.lease_epoch = a.epoch AND j.status = 'RUNNING'
    ORDER BY j.id FOR NO KEY UPDATE OF j
)
INSERT INTO rowcall.external_calls
    (job_id, lease_epoch, step, attempt, kind, endpoint, model, idempotency_key, input_sha256)
SELECT a.id, a.epoch, a.step, a.attempt, a.kind, a.endpoint, a.model, a.key, a.digest
FROM asked a JOIN fenced f USING (id, epoch)
RETURNING job_id, lease_epoch, step, attempt, id;

-- name: call_done
-- Completes call records. Deliberately not fenced: a run that lost its lease may still say what its call gave, marked
-- late; the record belongs to the call, and nothing else is written.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)s::bigint[], %(durations)s::integer[], %(statuses)s::integer[], %(codes)s::text[],
        %(errors)s::text[], %(prompt)s::bigint[], %(completion)s::bigint[], %(models)s::text[], %(reasons)s::text[],
        %(digests)b::bytea[], %(responses)b::text[], %(validated)s::boolean[], %(validation)s::text[])
        AS a (id, duration, status, code, error, prompt, completion, model, reason, digest, response, validated,
              validation)
), ordered AS MATERIALIZED (
    SELECT c.id, NOT EXISTS (
        SELECT FROM rowcall.agent_jobs j
        WHERE j.id = c.job_id AND j.lease_epoch = c.lease_epoch AND j.status = 'RUNNING') AS late
    FROM rowcall.external_calls c JOIN asked a USING (id) WHERE c.state = 'sent' ORDER BY c.id FOR UPDATE OF c
)
UPDATE rowcall.external_calls c SET
    state = 'done', finished_at = rowcall.now(), duration_ms = a.duration, status_code = a.status, error_code = a.code,
    error = a.error, prompt_tokens = a.prompt, completion_tokens = a.completion, answered_model = a.model,
    finish_reason = a.reason, response_sha256 = a.digest, response = a.response, validated = a.validated,
    validation_error = a.validation, late = o.late
FROM asked a JOIN ordered o USING (id) WHERE c.id = a.id;
