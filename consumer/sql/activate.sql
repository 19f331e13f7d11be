-- name: lock_against_admission
-- Waits until no admission is under way, and lets none begin: what is admitted after this knows the new agent.
SELECT pg_advisory_xact_lock(hashtext('rowcall.roster'));

-- name: put_agent
-- Writes an agent's row, or raises its version; never lowers it. The state is the operator's and is kept. Returns the
-- row as it was before, where there was one.
WITH old AS (SELECT name, version, topics, options, state FROM rowcall.agents WHERE name = %(name)s FOR UPDATE),
put AS (
    INSERT INTO rowcall.agents AS a (name, version, topics, options)
    VALUES (%(name)s, %(version)s, %(topics)s, %(options)s::jsonb)
    ON CONFLICT (name) DO UPDATE SET version = excluded.version, topics = excluded.topics, options = excluded.options,
        generation = a.generation + 1, updated_at = rowcall.now()
        WHERE a.version < excluded.version OR (a.version = excluded.version
            AND (a.topics <> excluded.topics OR a.options <> excluded.options))
    RETURNING a.version
)
SELECT (SELECT version FROM put) AS written, o.version AS old_version, o.topics AS old_topics, o.state AS old_state
FROM (SELECT) AS one LEFT JOIN old o ON true;

-- name: revive
-- Brings a retired agent back and forgets where it once started. Returns a row if it was retired.
WITH revived AS (
    UPDATE rowcall.agents SET state = 'ACTIVE', state_reason = NULL, paused_until = NULL,
        generation = generation + 1, activated_at = rowcall.now(), updated_at = rowcall.now()
    WHERE name = %(name)s AND state = 'RETIRED' RETURNING name
), forgotten AS (
    DELETE FROM rowcall.agent_starts WHERE agent IN (SELECT name FROM revived)
)
INSERT INTO rowcall.audit (actor, action, subject, detail)
SELECT %(actor)s, 'activate', 'agent ' || name, '{"before": "RETIRED"}' FROM revived RETURNING subject;

-- name: put_start
-- Fixes where an agent starts in a partition, once. Not below what has been admitted already: an event that passed by
-- before the agent was there is not one of its own.
INSERT INTO rowcall.agent_starts (agent, cluster_id, topic_id, partition, topic, start_offset)
SELECT %(agent)s, %(cluster)s, %(topic_id)s, %(partition)s, %(topic)s,
    greatest(%(start)s, coalesce((SELECT p.next_offset FROM rowcall.positions p WHERE p.cluster_id = %(cluster)s
        AND p.topic_id = %(topic_id)s AND p.partition = %(partition)s), 0))
ON CONFLICT (agent, cluster_id, topic_id, partition) DO NOTHING;

-- name: roster
-- Every agent there is, each with the stamp of them all: it changes with each change of an agent's row, and admission
-- compares it (dedup.sql, share_with_activation).
SELECT name, version, topics, options, state, sum(generation) OVER () || ':' || count(*) OVER () AS stamp
FROM rowcall.agents ORDER BY name;

-- name: starts
-- Where agents start in the partitions of these topics.
SELECT agent, topic_id, partition, start_offset FROM rowcall.agent_starts
WHERE cluster_id = %(cluster)s AND topic_id = ANY (%(topic_ids)s);
