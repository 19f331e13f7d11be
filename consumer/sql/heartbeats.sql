-- name: beat
-- One statement a process, whatever number of roles it has. Progress that did not move keeps its time.
INSERT INTO rowcall.heartbeats AS h (subject, instance, expected_next, progress, detail)
SELECT b.subject, %(instance)s, rowcall.now() + make_interval(secs => %(seconds)s), b.progress, %(detail)s::json
FROM unnest(%(subjects)s::text[], %(progress)s::bigint[]) AS b (subject, progress)
ON CONFLICT (subject, instance) DO UPDATE SET
    state = 'RUNNING', at = rowcall.now(), expected_next = excluded.expected_next, progress = excluded.progress,
    progress_at = CASE WHEN h.progress <> excluded.progress THEN rowcall.now() ELSE h.progress_at END,
    detail = excluded.detail;

-- name: stopped
-- A clean end: nobody is to wait for the next beat.
UPDATE rowcall.heartbeats SET state = 'STOPPED', at = rowcall.now(), expected_next = NULL
WHERE instance = %(instance)s;
