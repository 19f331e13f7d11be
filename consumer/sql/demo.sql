-- name: add_order
-- One paid order that is large enough to be looked at.
INSERT INTO public.orders (customer_id, amount, status, paid_at)
VALUES (%(customer)s, %(amount)s, 'paid', rowcall.now()) RETURNING id;

-- name: add_small_orders
-- Orders that no agent wants: they make traffic for the connector, and the detector learns what they cost.
INSERT INTO public.orders (customer_id, amount, status)
SELECT %(customer)s, least(90, greatest(1, round(random_normal(%(middle)s, 4)::numeric, 2))), 'paid'
FROM generate_series(1, %(count)s);

-- name: lock_order
-- Holds the row, so that the outcome transaction of its run has to wait.
SELECT id FROM public.orders WHERE id = %(order)s FOR UPDATE;

-- name: runs
-- The triaged orders and what became of their runs.
SELECT o.id AS "order", j.id AS job, j.event_id, j.status, j.attempt_count AS attempts, j.lease_epoch AS claims, j.result ->> 'title' AS title,
    j.last_error, (extract(epoch FROM j.finished_at - j.occurred_at) * 1000)::integer AS milliseconds,
    (SELECT count(*) FROM rowcall.external_calls c WHERE c.job_id = j.id AND c.kind = 'model') AS calls,
    (SELECT count(*) FROM rowcall.job_steps s WHERE s.job_id = j.id AND s.kind = 'CALL_MODEL') AS answers
FROM public.orders o LEFT JOIN rowcall.agent_jobs j
    ON j.job_type = 'order-triage' AND j.input_kind = 'change' AND (j.payload -> 'key' ->> 'id')::bigint = o.id
WHERE o.amount > 100 ORDER BY o.id, j.id;

-- name: open_reviews
-- Runs of one of these agents that wait for a person.
SELECT r.id, r.job_id, r.code, r.reasons, r.proposed_answer IS NOT NULL AS proposed, j.job_type AS agent
FROM rowcall.reviews r JOIN rowcall.agent_jobs j ON j.id = r.job_id
WHERE r.state = 'OPEN' AND j.job_type = ANY (%(agents)s) ORDER BY r.id;

-- name: waits_for_row
-- Whether a worker's outcome transaction waits for a row lock.
SELECT count(*) AS waiting FROM pg_stat_activity
WHERE application_name LIKE 'rowcall executor%%' AND wait_event_type = 'Lock';

-- name: results
-- What stands in the database at the end.
SELECT (SELECT count(*) FROM public.orders WHERE amount > 100) AS orders,
    (SELECT count(*) FROM public.orders WHERE amount > 100 AND triage IS NOT NULL) AS triaged,
    (SELECT count(*) FROM public.notices) AS notices,
    (SELECT count(*) FROM rowcall.outbox WHERE topic = 'orders.triaged') AS emitted,
    (SELECT count(*) FROM rowcall.agent_jobs WHERE job_type = 'order-triage') AS runs,
    (SELECT count(*) FROM rowcall.agent_jobs WHERE job_type = 'order-triage' AND status = 'REJECTED') AS rejected,
    (SELECT count(*) FROM rowcall.agent_jobs WHERE job_type = 'triage-notice') AS notice_runs,
    (SELECT count(*) FROM rowcall.dead_letters) AS dead_letters;

-- name: drift
-- What the monitor told and what became of it: events, and what its agents have written so far.
SELECT (SELECT count(*) FROM rowcall.drift_events WHERE topic = 'drift.warning' AND payload::json ->> 'turn' = 'raised') AS warnings,
    (SELECT count(*) FROM rowcall.drift_events WHERE topic = 'drift.critical' AND payload::json ->> 'turn' = 'raised') AS criticals,
    (SELECT count(*) FROM public.drift_reports) AS reports,
    (SELECT count(*) FROM public.drift_actions) AS actions,
    (SELECT count(*) FROM rowcall.agent_jobs WHERE job_type = ANY (%(agents)s)
        AND status IN ('SUCCEEDED', 'REJECTED')) AS ended,
    (SELECT string_agg(format('%%s is %%s: %%s', job_type, status, last_error), '; ') FROM rowcall.agent_jobs
        WHERE job_type = ANY (%(agents)s) AND status IN ('FAILED', 'CANCELLED')) AS failed;
