-- expire_reviews: what nobody decided in time is denied: its review EXPIRED, its job CANCELLED with the code
-- review_expired. Returns the reviews it closed. One worker at a time; skips a job whose decision is under way. An effect
-- whose outcome is unknown does not go away by waiting and never expires.
CREATE FUNCTION rowcall.expire_reviews(p_limit integer)
RETURNS TABLE (review_id bigint, job_id bigint, agent text) LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_mergejoin = off
    SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_held bigint[];
    v_reviews bigint[];
    v_ids bigint[];
    v_agents text[];
    v_nothing text[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('rowcall.expire_reviews')) THEN
        RETURN;
    END IF;
    SELECT array_agg(id) FROM (
        SELECT j.id FROM rowcall.reviews r JOIN rowcall.agent_jobs j ON j.id = r.job_id
        WHERE r.state = 'OPEN' AND r.expires_at <= rowcall.now() AND r.code <> 'effect_unknown'
        AND j.status = 'WAITING_REVIEW'
        ORDER BY j.id LIMIT p_limit FOR UPDATE OF j SKIP LOCKED
    ) late INTO v_held;
    IF v_held IS NULL THEN
        RETURN;
    END IF;
    WITH closed AS (
        UPDATE rowcall.reviews r SET state = 'EXPIRED', decided_at = rowcall.now(), decided_by = 'rowcall',
            decision_reason = 'nobody decided in time'
        FROM rowcall.agent_jobs j
        WHERE r.job_id = ANY (v_held) AND r.state = 'OPEN' AND r.expires_at <= rowcall.now() AND j.id = r.job_id
        RETURNING r.id, r.job_id, j.job_type
    ), told AS (
        INSERT INTO rowcall.review_events (kind, review_id, job_id) SELECT 'expired', id, job_id FROM closed
    ), audited AS (
        INSERT INTO rowcall.audit (actor, action, subject, detail)
        SELECT 'rowcall', 'expire', 'job ' || job_id, json_build_object('review', id) FROM closed
    )
    SELECT array_agg(id ORDER BY job_id), array_agg(job_id ORDER BY job_id), array_agg(job_type ORDER BY job_id)
    FROM closed INTO v_reviews, v_ids, v_agents;
    IF v_ids IS NULL THEN
        RETURN;
    END IF;
    v_nothing := array_fill(NULL::text, ARRAY[cardinality(v_ids)]);
    PERFORM rowcall.settle(v_ids, array_fill(NULL::bigint, ARRAY[cardinality(v_ids)]),
        array_fill('CANCELLED'::text, ARRAY[cardinality(v_ids)]), v_nothing,
        array_fill('review_expired'::text, ARRAY[cardinality(v_ids)]),
        array_fill('nobody decided its review in time'::text, ARRAY[cardinality(v_ids)]), v_nothing,
        array_fill(NULL::double precision, ARRAY[cardinality(v_ids)]), array_fill(0, ARRAY[cardinality(v_ids)]));
    RETURN QUERY SELECT * FROM unnest(v_reviews, v_ids, v_agents);
END $$;
