-- escalate_reviews: marks undecided reviews that have waited for long, once each; returns them. One worker at a time.
-- Takes no job's lock: it changes nothing that a decision looks at.
CREATE FUNCTION rowcall.escalate_reviews(p_limit integer)
RETURNS TABLE (review_id bigint, job_id bigint, agent text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('rowcall.escalate_reviews')) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH late AS MATERIALIZED (
        SELECT id FROM rowcall.reviews
        WHERE state = 'OPEN' AND escalated_at IS NULL AND escalates_at <= rowcall.now()
        ORDER BY id LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), marked AS (
        UPDATE rowcall.reviews r SET escalated_at = rowcall.now() FROM late, rowcall.agent_jobs j
        WHERE r.id = late.id AND j.id = r.job_id
        RETURNING r.id, r.job_id, j.job_type
    ), told AS (
        INSERT INTO rowcall.review_events (kind, review_id, job_id) SELECT 'escalated', id, job_id FROM marked
    ), audited AS (
        INSERT INTO rowcall.audit (actor, action, subject, detail)
        SELECT 'rowcall', 'escalate', 'job ' || job_id, json_build_object('review', id) FROM marked
    )
    SELECT id, job_id, job_type FROM marked ORDER BY id;
END $$;
