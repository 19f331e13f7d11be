-- name: server
-- What the server is, and its clock.
SELECT current_setting('server_version_num')::integer AS version, current_setting('server_version') AS version_text,
    current_setting('wal_level') AS wal_level, current_setting('max_slot_wal_keep_size') AS slot_keep,
    extract(epoch FROM clock_timestamp())::double precision AS clock, current_user::text AS role,
    current_database()::text AS database;

-- name: rights
-- What our role lacks in the schema, whether it may replicate, and whether it may do anything at all.
SELECT ARRAY(
        SELECT format('%%s on rowcall.%%s', p, c.relname) FROM pg_class c
        CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p
        WHERE c.relnamespace = to_regnamespace('rowcall') AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND (c.relname, p) NOT IN (('audit', 'UPDATE'), ('audit', 'DELETE'))
        AND NOT has_table_privilege(c.oid, p) ORDER BY c.relname, p
    ) AS missing,
    (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user) AS replicates,
    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser;

-- name: slots
-- The logical slots of this database, and how much WAL each keeps.
SELECT slot_name::text AS slot, active, wal_status, coalesce(invalidation_reason, '') AS invalidation,
    pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint AS behind
FROM pg_replication_slots WHERE database = current_database() AND slot_type = 'logical' ORDER BY slot_name;

-- name: publications
-- Each publication and its tables, with what UPDATE and DELETE will log of the old row.
SELECT p.pubname::text AS publication, quote_ident(t.schemaname) || '.' || quote_ident(t.tablename) AS table,
    c.relreplident::text AS identity
FROM pg_publication p LEFT JOIN pg_publication_tables t USING (pubname)
LEFT JOIN pg_class c ON c.relname = t.tablename AND c.relnamespace = to_regnamespace(quote_ident(t.schemaname))
ORDER BY 1, 2;

-- name: standing
-- What stands in the records and waits for a person.
SELECT (SELECT count(*) FROM rowcall.dead_letters WHERE state = 'OPEN') AS dead_letters,
    (SELECT count(*) FROM rowcall.reviews WHERE state = 'OPEN') AS reviews,
    (SELECT count(*) FROM rowcall.agent_jobs WHERE status = 'FAILED'
        AND finished_at > rowcall.now() - interval '1 day') AS failed,
    (SELECT count(*) FROM rowcall.agent_jobs WHERE status = 'PARKED') AS parked,
    ARRAY(SELECT name || coalesce(': ' || state_reason, '') FROM rowcall.agents WHERE state = 'PAUSED') AS paused,
    ARRAY(SELECT DISTINCT job_type FROM rowcall.agent_jobs WHERE status IN ('PENDING', 'WAITING_RETRY', 'RUNNING')
        AND NOT job_type = ANY (%(agents)s)) AS strangers,
    ARRAY(SELECT name FROM rowcall.agents WHERE state = 'ACTIVE' AND NOT name = ANY (%(agents)s)
        ORDER BY name) AS codeless,
    ARRAY(SELECT format('%%s: %%s (%%s)', j.job_type, count(*), coalesce(a.state, 'not activated'))
        FROM rowcall.agent_jobs j LEFT JOIN rowcall.agents a ON a.name = j.job_type
        WHERE j.status = 'PENDING' AND a.state IS DISTINCT FROM 'ACTIVE'
        GROUP BY j.job_type, a.state ORDER BY j.job_type) AS idle;

-- name: invalid_indexes
-- Indexes of our schema that a build or rebuild has left behind unfinished: written at each change, and of no use.
SELECT c.relname::text AS index, i.indrelid::regclass::text AS table
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = to_regnamespace('rowcall') AND c.relkind = 'i' AND NOT i.indisvalid
AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = c.oid) ORDER BY 1;
