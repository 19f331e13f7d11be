-- name: lock
-- One migrator at a time; a second one waits here and then finds nothing left to do.
SELECT pg_advisory_lock(hashtext('rowcall.migrate'));

-- name: unlock
SELECT pg_advisory_unlock(hashtext('rowcall.migrate'));

-- name: create_history
CREATE SCHEMA IF NOT EXISTS rowcall;
CREATE TABLE IF NOT EXISTS rowcall.schema_migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT statement_timestamp()
);

-- name: history_exists
SELECT to_regclass('rowcall.schema_migrations') IS NOT NULL AS found;

-- name: history
SELECT version, name, sha256 FROM rowcall.schema_migrations ORDER BY version;

-- name: record
INSERT INTO rowcall.schema_migrations (version, name, sha256) VALUES (%s, %s, %s);

-- name: functions
SELECT name, sha256 FROM rowcall.schema_functions;

-- name: drops
-- What takes the functions of these names away, in whatever form they exist: a new form may return another type.
SELECT format('DROP FUNCTION %%s', p.oid::regprocedure) AS statement
FROM pg_proc p WHERE p.pronamespace = 'rowcall'::regnamespace AND p.proname = ANY (%s);

-- name: forget_functions
DELETE FROM rowcall.schema_functions;

-- name: record_function
INSERT INTO rowcall.schema_functions (name, sha256) VALUES (%s, %s);
