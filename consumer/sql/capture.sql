-- name: read_slots
-- Which of these replication slots are being read.
SELECT slot_name FROM pg_replication_slots WHERE slot_name = ANY (%(names)s) AND active;

-- name: outbox_slot
-- Whether the outbox connector has its slot.
SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s) AS found;
