-- free_slots: up to p_wanted of the slots 1 to p_limit of an agent that no running run holds, locked until the caller's
-- transaction ends. A slot is held by a RUNNING run and by nothing else, so a dead worker's slots come back with its
-- runs. Two statements on purpose: the second sees what was claimed and committed before the lock was given.
CREATE FUNCTION rowcall.free_slots(p_agent text, p_limit integer, p_wanted integer) RETURNS integer[] LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET enable_mergejoin = off
    SET enable_hashjoin = off
AS $$
DECLARE
    v_locked integer[];
BEGIN
    IF NOT EXISTS (SELECT FROM rowcall.slots WHERE agent = p_agent AND number = p_limit) THEN
        INSERT INTO rowcall.slots (agent, number) SELECT p_agent, n FROM generate_series(1, p_limit) AS n
        ON CONFLICT DO NOTHING;
    END IF;
    v_locked := ARRAY(
        SELECT s.number FROM rowcall.slots s WHERE s.agent = p_agent AND s.number <= p_limit AND NOT EXISTS (
            SELECT FROM rowcall.agent_jobs j
            WHERE j.job_type = s.agent AND j.slot = s.number AND j.status = 'RUNNING' AND j.slot IS NOT NULL)
        ORDER BY s.number LIMIT p_wanted FOR UPDATE OF s SKIP LOCKED);
    RETURN ARRAY(
        SELECT n FROM unnest(v_locked) AS n WHERE NOT EXISTS (
            SELECT FROM rowcall.agent_jobs j
            WHERE j.job_type = p_agent AND j.slot = n AND j.status = 'RUNNING' AND j.slot IS NOT NULL));
END $$;
