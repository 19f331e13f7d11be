-- chain_entry: an agent and the row (the lane of its key) for which it stands in a chain; as consumer.records.chain.
CREATE FUNCTION rowcall.chain_entry(agent text, key_hash bigint) RETURNS text LANGUAGE sql IMMUTABLE
RETURN agent || '@' || lpad(to_hex(key_hash), 16, '0');
