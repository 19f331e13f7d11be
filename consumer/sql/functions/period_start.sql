-- period_start: when the present window of a budget began, in UTC; a total has no beginning.
CREATE FUNCTION rowcall.period_start(p_period text) RETURNS timestamptz LANGUAGE sql STABLE
RETURN CASE WHEN p_period = 'total' THEN '-infinity'::timestamptz
    ELSE date_trunc(p_period, rowcall.now(), 'UTC') END;
