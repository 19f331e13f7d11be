-- ready_levels: the priorities of an agent's lanes that can be claimed now, highest first, or with p_by_age the one with
-- the oldest lane first. Steps from one priority to the next in the index: its cost is their number, not the backlog's.
CREATE FUNCTION rowcall.ready_levels(p_agent text, p_by_age boolean) RETURNS smallint[] LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_bitmapscan = off
AS $$
DECLARE
    v_level smallint;
    v_oldest timestamptz;
    v_levels smallint[] := '{}';
    v_ages timestamptz[] := '{}';
BEGIN
    LOOP
        SELECT priority FROM rowcall.lanes
        WHERE agent = p_agent AND ready_at IS NOT NULL AND hold IS NULL AND priority <= coalesce(v_level - 1, 32767)
        ORDER BY priority DESC LIMIT 1 INTO v_level;
        EXIT WHEN NOT FOUND;
        SELECT ready_at FROM rowcall.lanes
        WHERE agent = p_agent AND priority = v_level AND ready_at IS NOT NULL AND hold IS NULL
        ORDER BY ready_at LIMIT 1 INTO v_oldest;
        IF v_oldest <= rowcall.now() THEN
            v_levels := v_levels || v_level;
            v_ages := v_ages || v_oldest;
        END IF;
    END LOOP;
    IF p_by_age AND cardinality(v_levels) > 1 THEN
        RETURN ARRAY(SELECT l FROM unnest(v_levels, v_ages) AS u (l, age) ORDER BY age, l DESC);
    END IF;
    RETURN v_levels;
END $$;
