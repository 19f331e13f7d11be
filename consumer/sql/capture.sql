-- name: read_slots
-- Which of these replication slots are being read, and by which server process.
SELECT slot_name, active_pid FROM pg_replication_slots WHERE slot_name = ANY (%(names)s) AND active;

-- name: missing_tables
-- Which of these tables, as schema.table, do not exist here. Debezium does not tell upper from lower case.
SELECT current_database() AS database, wanted.name
FROM unnest(%(names)s::text[]) WITH ORDINALITY AS wanted (name, place)
WHERE NOT EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND lower(n.nspname || '.' || c.relname) = lower(wanted.name))
ORDER BY wanted.place;

-- name: publication_change
-- The statement that brings an existing publication to these tables, where it has others; no row where it is right.
WITH wanted AS (
    SELECT c.oid, n.nspname, c.relname
    FROM unnest(%(tables)s::text[]) AS given (name)
    JOIN pg_class c ON c.relkind IN ('r', 'p')
    JOIN pg_namespace n ON n.oid = c.relnamespace AND lower(n.nspname || '.' || c.relname) = lower(given.name))
SELECT format('ALTER PUBLICATION %%I SET TABLE %%s', p.pubname,
    (SELECT string_agg(format('%%I.%%I', nspname, relname), ', ' ORDER BY oid) FROM wanted)) AS statement
FROM pg_publication p
WHERE p.pubname = %(publication)s AND NOT p.puballtables AND EXISTS (SELECT FROM wanted)
    AND (SELECT array_agg(r.prrelid ORDER BY r.prrelid) FROM pg_publication_rel r WHERE r.prpubid = p.oid)
        IS DISTINCT FROM (SELECT array_agg(oid ORDER BY oid) FROM wanted);

-- name: outbox_slot
-- Whether the outbox connector has its slot.
SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s) AS found;
