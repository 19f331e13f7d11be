-- name: write
-- One row a message that could not be handled, whole, in the transaction that moves past it.
INSERT INTO rowcall.dead_letters (agent, event_id, cluster_id, topic, partition, "offset", message_at, message_key,
    message_value, headers, schema_id, error_code, error, app_version)
VALUES (%(agent)s, %(event_id)s, %(cluster)s, %(topic)s, %(partition)s, %(offset)s,
    to_timestamp(%(message_ms)s::double precision / 1000), %(key)s, %(value)s, %(headers)s::json, %(schema_id)s,
    %(code)s, %(error)s, %(version)s);

-- name: list
-- The newest first; without a state, all of them.
SELECT id, state, agent, event_id, topic, partition, "offset", error_code, error, created_at, closed_at, closed_by
FROM rowcall.dead_letters WHERE %(state)s::text IS NULL OR state = %(state)s ORDER BY id DESC LIMIT %(limit)s;

-- name: show
-- One, with its bytes.
SELECT id, state, agent, event_id, cluster_id, topic, partition, "offset", message_at, message_key, message_value,
    headers::text AS headers, schema_id, error_code, error, app_version, created_at, closed_at, closed_by
FROM rowcall.dead_letters WHERE id = %(id)s;

-- name: hold
-- Locks one for its re-drive, so that two people cannot re-drive it at once.
SELECT state FROM rowcall.dead_letters WHERE id = %(id)s FOR UPDATE;

-- name: close
-- Ends one, and says who did.
UPDATE rowcall.dead_letters SET state = %(state)s, closed_at = rowcall.now(), closed_by = %(actor)s
WHERE id = %(id)s AND state = 'OPEN' RETURNING id;

-- name: audit
INSERT INTO rowcall.audit (actor, action, subject, detail)
VALUES (%(actor)s, %(action)s, %(subject)s, %(detail)s::json);
