-- period_end: when the present window of a budget ends, in UTC; a total never does.
CREATE FUNCTION rowcall.period_end(p_period text) RETURNS timestamptz LANGUAGE sql STABLE
RETURN CASE WHEN p_period = 'total' THEN 'infinity'::timestamptz
    ELSE (date_trunc(p_period, rowcall.now() AT TIME ZONE 'UTC') + ('1 ' || p_period)::interval) AT TIME ZONE 'UTC' END;
