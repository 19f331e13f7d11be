-- transactions: for each 32-bit transaction ID from the log, its state here and the run whose outcome wrote it.
-- A txid is extended by the epoch of the current snapshot, one lower where it would lie far ahead. 'pending' is not
-- visible yet (decoding may be ahead of visibility); 'lost' was aborted here, so the log is of another timeline.
CREATE FUNCTION rowcall.transactions(p_txids bigint[])
RETURNS TABLE (txid bigint, full_txid bigint, state text, job_id bigint, agent text) LANGUAGE sql STABLE AS $$
    WITH bounds AS MATERIALIZED (
        SELECT pg_snapshot_xmax(s)::text::bigint AS xmax, s AS snapshot FROM pg_current_snapshot() AS s
    ), extended AS MATERIALIZED (
        SELECT t.txid, CASE WHEN candidate > xmax + 2147483648 THEN candidate - 4294967296 ELSE candidate END AS full_txid
        FROM bounds, unnest(p_txids) AS t (txid), LATERAL (SELECT ((xmax >> 32) << 32) | t.txid AS candidate) c
    )
    SELECT e.txid, e.full_txid, CASE
            WHEN e.full_txid < 0 OR e.full_txid >= b.xmax THEN 'pending'
            WHEN NOT pg_visible_in_snapshot(e.full_txid::text::xid8, b.snapshot) THEN 'pending'
            WHEN pg_xact_status(e.full_txid::text::xid8) = 'aborted' THEN 'lost'
            ELSE 'visible' END,
        r.id, r.job_type
    FROM bounds b, extended e LEFT JOIN rowcall.agent_jobs r ON r.result_txid = e.full_txid
$$;
