-- permits: how many runs of an agent may start now by its rate, with its bucket locked for the caller, who takes off what
-- it started. 0 while another claimer holds the bucket. A tenth of the rate may start at once after a quiet time, so any
-- period sees at most 1.1 times the rate.
CREATE FUNCTION rowcall.permits(p_agent text, p_runs integer, p_seconds double precision) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_burst double precision := greatest(1.0, p_runs / 10.0);
    v_permits double precision;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('rowcall.bucket ' || p_agent, 0)) THEN
        RETURN 0;
    END IF;
    SELECT least(v_burst, permits + p_runs / p_seconds * extract(epoch FROM rowcall.now() - filled_at))
    FROM rowcall.buckets WHERE name = 'agent:' || p_agent INTO v_permits;
    IF NOT FOUND THEN
        INSERT INTO rowcall.buckets (name, permits) VALUES ('agent:' || p_agent, v_burst);
        RETURN floor(v_burst)::integer;
    END IF;
    IF v_permits >= 1 THEN
        UPDATE rowcall.buckets SET permits = v_permits, filled_at = rowcall.now() WHERE name = 'agent:' || p_agent;
    END IF;
    RETURN greatest(0, floor(v_permits))::integer;
END $$;
