-- lane_priority: the priority of a lane whose head is such a job. A run whose answer a person has approved goes before
-- all others of its agent, and no budget or storm holds it: all it does is write. Above any priority a job can have.
CREATE FUNCTION rowcall.lane_priority(p_approved boolean, p_priority integer) RETURNS smallint LANGUAGE sql IMMUTABLE
RETURN CASE WHEN p_approved THEN 1000 ELSE p_priority END;
