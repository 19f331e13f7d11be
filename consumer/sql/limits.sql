-- name: admit_calls
-- What may leave for the model now; see sql/functions.
SELECT * FROM rowcall.admit_calls(%(ids)s, %(epochs)s, %(tokens)s, %(money)s, %(endpoint)s, %(calls)s,
    %(calls_seconds)s, %(rate)s, %(rate_seconds)s);

-- name: settle_calls
-- What calls really used; see sql/functions.
SELECT rowcall.settle_calls(%(ids)s, %(tokens)s, %(money)s) AS settled;

-- name: pause_endpoint
-- The endpoint has asked every worker to wait; the longest wish counts.
INSERT INTO rowcall.buckets AS b (name, permits, paused_until)
VALUES ('calls:' || %(endpoint)s, 0, rowcall.now() + make_interval(secs => %(seconds)s))
ON CONFLICT (name) DO UPDATE SET paused_until = greatest(b.paused_until, excluded.paused_until);

-- name: keep_limits
-- What is due of the limits; see sql/functions. Returns the holds that began or ended, each once.
SELECT * FROM rowcall.keep_limits(%s);

-- name: next_permit
-- Seconds until the first of these agents with waiting work and a rate may start a run again. One that might have for a
-- while is held back by something else (a pause, slots, a budget), which no look at its rate ends.
SELECT min(greatest(0.0, w.seconds))::double precision AS seconds FROM (
    SELECT (1 - b.permits) * a.rate_seconds / a.rate_runs - extract(epoch FROM rowcall.now() - b.filled_at) AS seconds
    FROM rowcall.agent_limits a JOIN rowcall.buckets b ON b.name = 'agent:' || a.agent
    WHERE a.agent = ANY (%s) AND a.rate_runs IS NOT NULL AND EXISTS (
        SELECT FROM rowcall.lanes l WHERE l.agent = a.agent AND l.ready_at IS NOT NULL AND l.hold IS NULL)) w
WHERE w.seconds > -0.05;
