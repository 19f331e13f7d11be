-- name: add
-- Puts a run's events into the outbox, in the order in which they were emitted, inside its outcome transaction. An event
-- that stands there already stays as it is. occurred_at is text because it travels as a header: it is fixed here, once,
-- so that a re-sent row carries the same time.
INSERT INTO rowcall.outbox
    (id, topic, key, payload, event_type, content_type, traceparent, occurred_at, cause, job_id)
SELECT e.id, e.topic, e.key, e.payload, e.event_type, e.content_type, %(traceparent)s,
    to_char(rowcall.now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), %(cause)s, %(job)s
FROM unnest(%(ids)s::uuid[], %(topics)s::text[], %(keys)s::text[], %(payloads)s::bytea[], %(event_types)s::text[],
    %(content_types)s::text[]) WITH ORDINALITY AS e (id, topic, key, payload, event_type, content_type, number)
ORDER BY e.number
ON CONFLICT (id) DO NOTHING;
