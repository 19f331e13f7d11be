-- is_held: whether a hold of a tenant or topic covers such a job now, which has waited since p_since. For the few lanes
-- that hold_lanes does not put aside: parked for a version, or suspect. A storm lets them go with those as old as they.
CREATE FUNCTION rowcall.is_held(p_agent text, p_tenant text, p_topic text, p_since timestamptz) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM rowcall.holds h
        WHERE (h.tenant IS NOT NULL OR h.topic IS NOT NULL) AND (h.agent IS NULL OR h.agent = p_agent)
        AND (h.tenant IS NULL OR h.tenant = p_tenant) AND (h.topic IS NULL OR h.topic = p_topic)
        AND (h.until > rowcall.now() OR (h.reason = 'storm' AND p_since > h.released_to)))
$$;
