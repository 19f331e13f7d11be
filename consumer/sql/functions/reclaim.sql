-- reclaim: runs whose lease or deadline is over go back to PENDING, whichever agents the caller has. Returns how many.
-- A deadline burns the attempt, and at the attempt limit the run is FAILED. A lost lease is a loss and burns none: a
-- worker that dies takes its innocent runs with it. Losses have a limit of their own, which only a run reaches that got
-- nowhere in between; from the second on it is claimed as a suspect, see refresh_lanes and claim. Skips what another
-- session holds: it is just being settled.
CREATE FUNCTION rowcall.reclaim(p_limit integer) RETURNS integer LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_mergejoin = off
    SET jit = off
AS $$
DECLARE
    v_ids bigint[];
    v_lost bigint[];
    v_epochs bigint[];
    v_statuses text[];
    v_codes text[];
    v_errors text[];
    v_delays double precision[];
    v_attempts integer[];
    v_nothing text[];
BEGIN
    SELECT array_agg(id), array_agg(id) FILTER (WHERE lost), array_agg(lease_epoch),
           array_agg(CASE WHEN number >= most THEN 'FAILED' ELSE 'PENDING' END),
           array_agg(CASE WHEN lost THEN 'lease_expired' ELSE 'deadline_exceeded' END),
           array_agg(CASE WHEN lost
               THEN format('loss %s of %s: the worker stopped renewing its lease; worker %s%s', number, most, owner,
                   CASE WHEN number >= most THEN '. Each loss was without progress: see whether this run ends the '
                       'process it runs in (memory, a crash in native code), then retry it' ELSE '' END)
               ELSE format('attempt %s of %s: the run passed its hard deadline; worker %s', number, most, owner) END),
           -- Whoever was in flight with a run that kills its worker should not meet it again at once.
           array_agg(CASE WHEN number > 1 THEN random() * power(2, least(number, 2)) END),
           array_agg(CASE WHEN lost THEN -1 ELSE 0 END)
    FROM (
        SELECT e.*, CASE WHEN lost THEN losses + 1 ELSE attempt_count END AS number,
               CASE WHEN lost THEN coalesce((SELECT (g.options ->> 'max_losses')::integer FROM rowcall.agents g
                                             WHERE g.name = e.job_type), 5) ELSE max_attempts END AS most
        FROM (
            SELECT id, job_type, lease_epoch, attempt_count, max_attempts, losses, owner,
                   -- Beats bring a lease up to the deadline; one that ends before it was left by its worker.
                   locked_until < deadline AS lost
            FROM rowcall.agent_jobs WHERE status = 'RUNNING' AND locked_until <= rowcall.now()
            ORDER BY id LIMIT p_limit FOR UPDATE SKIP LOCKED
        ) e
    ) expired INTO v_ids, v_lost, v_epochs, v_statuses, v_codes, v_errors, v_delays, v_attempts;
    IF v_ids IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE rowcall.agent_jobs SET losses = losses + 1 WHERE id = ANY (v_lost);
    v_nothing := array_fill(NULL::text, ARRAY[cardinality(v_ids)]);
    RETURN (SELECT count(*) FROM rowcall.settle(v_ids, v_epochs, v_statuses, v_nothing, v_codes, v_errors, v_nothing,
        v_delays, v_attempts));
END $$;
