-- supersede_reviews: a newer change of the same row takes the place of an undecided review, where the agent does not
-- say on_newer = 'wait'. Looks at these jobs, or at all that wait where p_jobs is NULL; returns how many were replaced.
-- The newer job stands behind in the lane, came later, is no write of the agent itself, and is of the same class of
-- operation (the row stands, or it is gone). Skips a job that somebody holds: a decision is under way, or promote()
-- already holds lanes, which are locked after jobs; what is skipped is found by the next look.
CREATE FUNCTION rowcall.supersede_reviews(p_jobs bigint[]) RETURNS integer LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_mergejoin = off
    SET jit = off
AS $$
DECLARE
    v_held bigint[];
    v_newer bigint[];
    v_ids bigint[];
    v_errors text[];
    v_nothing text[];
BEGIN
    SELECT array_agg(id), array_agg(newer) FROM (
        SELECT j.id, n.id AS newer
        FROM rowcall.reviews r JOIN rowcall.agent_jobs j ON j.id = r.job_id
        JOIN rowcall.agents a ON a.name = j.job_type
        CROSS JOIN LATERAL (
            SELECT x.id FROM rowcall.agent_jobs x
            WHERE x.job_type = j.job_type AND x.key_hash = j.key_hash AND x.lane_seq IS NOT NULL
            AND x.status IN ('PENDING', 'RUNNING', 'WAITING_RETRY', 'WAITING_REVIEW', 'WAITING_EVENT', 'PARKED')
            AND (x.lane_seq, x.id) > (j.lane_seq, j.id) AND x.input_kind = 'change'
            AND x.id > j.id AND (x.occurred_at < j.occurred_at) IS NOT TRUE
            AND (x.payload ->> 'op' IN ('d', 't')) = (j.payload ->> 'op' IN ('d', 't'))
            AND NOT EXISTS (SELECT FROM rowcall.agent_jobs p WHERE p.id = x.parent_job AND p.job_type = x.job_type)
            ORDER BY x.lane_seq, x.id LIMIT 1
        ) n
        WHERE r.state = 'OPEN' AND r.code <> 'effect_unknown' AND (p_jobs IS NULL OR r.job_id = ANY (p_jobs))
        AND j.status = 'WAITING_REVIEW' AND j.input_kind = 'change'
        AND a.options ->> 'on_newer' IS DISTINCT FROM 'wait'
        ORDER BY j.id LIMIT CASE WHEN p_jobs IS NULL THEN 1000 END FOR UPDATE OF j SKIP LOCKED
    ) replaced INTO v_held, v_newer;
    IF v_held IS NULL THEN
        RETURN 0;
    END IF;
    WITH closed AS (
        UPDATE rowcall.reviews r SET state = 'SUPERSEDED', superseded_by = u.newer, decided_at = rowcall.now(),
            decided_by = 'rowcall', decision_reason = format('job %s is a newer change of the same row', u.newer)
        FROM unnest(v_held, v_newer) AS u (id, newer) WHERE r.job_id = u.id AND r.state = 'OPEN'
        RETURNING r.id, r.job_id, r.superseded_by
    ), told AS (
        INSERT INTO rowcall.review_events (kind, review_id, job_id) SELECT 'superseded', id, job_id FROM closed
    ), audited AS (
        INSERT INTO rowcall.audit (actor, action, subject, detail)
        SELECT 'rowcall', 'supersede', 'job ' || job_id, json_build_object('review', id, 'newer', superseded_by)
        FROM closed
    )
    SELECT array_agg(job_id ORDER BY job_id), array_agg(format('superseded by job %s, a newer change of the same row',
        superseded_by) ORDER BY job_id) FROM closed INTO v_ids, v_errors;
    IF v_ids IS NULL THEN
        RETURN 0;
    END IF;
    v_nothing := array_fill(NULL::text, ARRAY[cardinality(v_ids)]);
    PERFORM rowcall.settle(v_ids, array_fill(NULL::bigint, ARRAY[cardinality(v_ids)]),
        array_fill('CANCELLED'::text, ARRAY[cardinality(v_ids)]), v_nothing,
        array_fill('superseded'::text, ARRAY[cardinality(v_ids)]), v_errors, v_nothing,
        array_fill(NULL::double precision, ARRAY[cardinality(v_ids)]), array_fill(0, ARRAY[cardinality(v_ids)]));
    RETURN cardinality(v_ids);
END $$;
