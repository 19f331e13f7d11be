"""From bytes to records, given the schemas: framing, Debezium's envelope, types, application events, event IDs.

Read `decoder` first, then `changes`, `columns` and `identity`. No module here does input or output.
"""

from consumer.wire.avro import frame
from consumer.wire.columns import PLACEHOLDER
from consumer.wire.decoder import Decoded, Decoder, Ignored, SchemaOf
from consumer.wire.events import Headers

__all__ = ["PLACEHOLDER", "Decoded", "Decoder", "Headers", "Ignored", "SchemaOf", "frame"]
