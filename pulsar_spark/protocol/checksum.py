"""CRC32C (Castagnoli), the checksum of every message on the wire and in storage.

Pulsar binary protocol, Message frame format: it covers metadata size, metadata and payload as they
are sent, after compression and encryption.
"""

from __future__ import annotations

from crc32c import crc32c as _crc32c

extend_crc32c = _crc32c
"""``extend_crc32c(buffer, value=0)``: continue a CRC32C of `value` with the buffer."""


def crc32c(*buffers: bytes | bytearray | memoryview) -> int:
    """Return the CRC32C of the joined buffers, as an unsigned 32-bit number."""
    value = 0
    for buffer in buffers:
        value = _crc32c(buffer, value)
    return value
