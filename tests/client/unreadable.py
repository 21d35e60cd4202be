"""Entries that cannot be read, of each kind, without the keys of those that are encrypted."""

from __future__ import annotations

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.ack_sets import MAX_BATCH
from tests.engine.topics import stored_entry

BAD_BATCH = stored_entry(b"\0\0\0\x05", num_messages_in_batch=3)
BAD_CODEC = stored_entry(b"no LZ4", compression=pb.LZ4, uncompressed_size=100)

UNREADABLE = {
    # The first delivery is damaged on its way.
    "checksum": stored_entry(b"damaged"),
    "batch": BAD_BATCH,
    "empty batch": stored_entry(b"", num_messages_in_batch=0),
    "huge batch": stored_entry(b"", num_messages_in_batch=MAX_BATCH + 1),
    "codec": BAD_CODEC,
    "too large": stored_entry(b"no LZ4", compression=pb.LZ4, uncompressed_size=2**31 - 1),
    "no key": stored_entry(
        b"sealed",
        encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")],
        encryption_param=bytes(12),
    ),
    "no nonce": stored_entry(b"", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]),
    "chunk": stored_entry(
        b"end", uuid="u", chunk_id=1, num_chunks_from_msg=2, total_chunk_msg_size=9
    ),
}
