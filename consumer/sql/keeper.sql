-- name: lead
-- Whether this session is the one that restarts connectors. It holds the lock until it ends; asking again is harmless.
SELECT pg_try_advisory_lock(hashtext('rowcall.keeper')) AS mine;
