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

-- name: outbox_slot
-- Whether the outbox connector has its slot.
SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s) AS found;
