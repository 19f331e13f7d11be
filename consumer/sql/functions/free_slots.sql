-- free_slots: up to p_wanted of the slots 1 to p_limit of an agent that no running run holds, locked until the caller's
-- transaction ends; skips what another claim has locked. Runs under way without a slot of these (they were claimed
-- before the limit was lowered, or made) keep the lowest free ones back, one each, so that nothing starts while there are
-- as many as may be. A slot is held by a RUNNING run and by nothing else, so a dead
-- worker's slots come back with its runs. Looks twice on purpose: the second statement sees what was claimed and
-- committed before the lock was given.
CREATE FUNCTION rowcall.free_slots(p_agent text, p_limit integer, p_wanted integer) RETURNS integer[] LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_mergejoin = off
AS $$
DECLARE
    v_slot integer;
    v_locked integer[] := '{}';
BEGIN
    FOR v_slot IN
        SELECT n FROM generate_series(1, p_limit) AS n
        EXCEPT
        SELECT slot FROM rowcall.agent_jobs WHERE job_type = p_agent AND status = 'RUNNING' AND slot IS NOT NULL
        ORDER BY n OFFSET (
            -- In the order of the index of running runs: one by agent would lead past all that wait for a person.
            SELECT count(*) FROM (
                SELECT job_type, slot FROM rowcall.agent_jobs WHERE status = 'RUNNING' ORDER BY id OFFSET 0) running
            WHERE job_type = p_agent AND (slot IS NULL OR slot > p_limit))
    LOOP
        EXIT WHEN cardinality(v_locked) >= p_wanted;
        IF pg_try_advisory_xact_lock(hashtextextended('rowcall.slot ' || p_agent, v_slot)) THEN
            v_locked := v_locked || v_slot;
        END IF;
    END LOOP;
    RETURN ARRAY(
        SELECT unnest(v_locked)
        EXCEPT
        SELECT slot FROM rowcall.agent_jobs WHERE job_type = p_agent AND status = 'RUNNING' AND slot IS NOT NULL);
END $$;
