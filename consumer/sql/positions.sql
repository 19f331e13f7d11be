-- name: read
-- How far each of these partitions has been read.
SELECT p.topic_id, p.partition, p.next_offset
FROM rowcall.positions p JOIN unnest(%(topic_ids)s::text[], %(partitions)s::integer[]) AS v (topic_id, partition)
    ON p.topic_id = v.topic_id AND p.partition = v.partition
WHERE p.cluster_id = %(cluster)s;

-- name: advance
-- Moves positions forward, in key order (the only order in which position rows are locked). A partition that is not
-- returned has been read further by another intake: its messages are not ours to admit.
INSERT INTO rowcall.positions AS p (cluster_id, topic_id, partition, topic, next_offset)
SELECT %(cluster)s, v.topic_id, v.partition, v.topic, v.next_offset
FROM unnest(%(topic_ids)s::text[], %(partitions)s::integer[], %(topics)s::text[], %(firsts)s::bigint[],
            %(nexts)s::bigint[]) AS v (topic_id, partition, topic, first_offset, next_offset)
ORDER BY v.topic_id, v.partition
ON CONFLICT (cluster_id, topic_id, partition) DO UPDATE
    SET next_offset = excluded.next_offset, topic = excluded.topic, updated_at = rowcall.now()
    WHERE p.next_offset <= (
        SELECT f.first_offset FROM unnest(%(topic_ids)s::text[], %(partitions)s::integer[], %(firsts)s::bigint[])
            AS f (topic_id, partition, first_offset)
        WHERE f.topic_id = excluded.topic_id AND f.partition = excluded.partition)
RETURNING p.topic_id, p.partition;

-- name: reset
-- After offsets that Kafka does not have any more: the one move that may go back. Only from the position that was seen.
UPDATE rowcall.positions SET next_offset = %(next)s, updated_at = rowcall.now()
WHERE cluster_id = %(cluster)s AND topic_id = %(topic_id)s AND partition = %(partition)s AND next_offset = %(seen)s
RETURNING next_offset;
