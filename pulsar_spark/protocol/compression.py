"""Compression of payloads: NONE, LZ4, ZLIB, ZSTD, SNAPPY, in Pulsar's wire formats.

All are raw: LZ4 and SNAPPY are single blocks without a frame, ZSTD is one frame, ZLIB a zlib
stream, which the Java client flushes but never finishes. Pulsar binary protocol, Message metadata:
`compression` names the codec, `uncompressed_size` the original size; batches and chunked messages
are compressed as a whole.

Sizes in a payload are never trusted. Before anything is allocated, the declared size is checked
against a limit, and against the size in a ZSTD frame or SNAPPY block; the output must then have
exactly that size. NONE, LZ4 and ZLIB are implemented here. ZSTD and SNAPPY are only checked here; a
`Codecs` is given functions for them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from io import BytesIO
from types import MappingProxyType
from typing import NamedTuple

import lz4.block

from pulsar_spark.errors import DecompressionError, LocalProtocolError, UnsupportedCodec
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.validation import hidden_number

_COMPRESSION_FIELD = 8  # of MessageMetadata

# ZLIB is decompressed in pieces of this size, so that little memory is needed besides the output.
_PIECE = 256 * 1024

# Every decoder must support this window, by the format's specification; a larger one is accepted up
# to the size of the output.
_ZSTD_WINDOW = 8 * 1024 * 1024
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_RESERVED_BIT = 0x08
_ZSTD_CHECKSUM_BIT = 0x04
# Length of the dictionary id by its two flag bits.
_ZSTD_DICTIONARY_SIZES = (0, 1, 2, 4)
_ZSTD_CONTENT_SIZES = (0, 2, 4, 8)


class CompressionCodec(NamedTuple):
    """One codec's functions, each for a whole payload.

    `decompress` gets the exact output size, which is checked before, and allocates no more. Raises
    ValueError for damaged bytes and for output of another size.
    """

    compress: Callable[[Buffer], bytes]
    decompress: Callable[[Buffer, int], bytes]


class Codecs:
    """Compresses and decompresses payloads with this module's codecs and `others`.

    `others` are by number of `pb.CompressionType`, and take precedence.
    """

    def __init__(self, others: Mapping[int, CompressionCodec] = MappingProxyType({})) -> None:
        self._codecs = {**BUILT_IN, **others}

    def compress(self, codec: int, data: Buffer) -> Buffer:
        """Compress `data`; NONE returns `data` itself.

        Raises LocalProtocolError for an unknown codec.
        """
        if codec == pb.NONE:
            return data
        found = self._codecs.get(codec)
        if found is None:
            raise LocalProtocolError(f"there is no codec {codec}")
        return found.compress(data)

    def decompress(self, codec: int, data: Buffer, uncompressed_size: int, limit: int) -> Buffer:
        """Decompress `data` to `uncompressed_size` bytes.

        `limit` is the maximum acceptable size in bytes. NONE returns `data` itself and ignores the
        declared size, as official clients do. Raises DecompressionError if the size is above the
        limit or wrong, or if the bytes are damaged; and UnsupportedCodec.
        """
        if codec == pb.NONE:
            uncompressed_size = len(data)
        if not 0 <= uncompressed_size <= limit:
            raise DecompressionError(
                f"a payload says that it has {uncompressed_size} bytes uncompressed, "
                f"but at most {limit} are accepted"
            )
        if codec == pb.NONE:
            return data
        found = self._codecs.get(codec)
        if found is None:
            raise UnsupportedCodec(
                f"a payload is compressed with codec {codec}, which is not supported"
            )
        if (check := _CHECKS.get(codec)) is not None:
            check(data, uncompressed_size)
        try:
            output = found.decompress(data, uncompressed_size)
        except ValueError:
            if uncompressed_size == 0:
                raise _wrong_size(codec, 0) from None
            raise _damaged(codec, uncompressed_size) from None
        if len(output) != uncompressed_size:
            raise _wrong_size(codec, uncompressed_size, len(output))
        return output


def codec_of(metadata: pb.MessageMetadata) -> int:
    """Return the number of a message's codec.

    The `compression` field is not enough: protobuf hides a value that it does not know, and the
    payload would pass as uncompressed.
    """
    hidden = hidden_number(metadata, _COMPRESSION_FIELD)
    return metadata.compression if hidden is None else hidden


def _wrong_size(codec: int, declared: int, actual: int | None = None) -> DecompressionError:
    name = pb.CompressionType.Name(codec)
    if declared == 0:
        return DecompressionError(
            f"a payload compressed with {name} does not declare its uncompressed size"
        )
    real = "another size" if actual is None else f"{actual} bytes"
    return DecompressionError(
        f"a payload compressed with {name} says that it has {declared} bytes uncompressed, "
        f"but has {real}"
    )


def _damaged(codec: int, declared: int) -> DecompressionError:
    return DecompressionError(
        f"a payload compressed with {pb.CompressionType.Name(codec)} is damaged, or does not have "
        f"the declared {declared} bytes"
    )


# --- LZ4 ----------------------------------------------------------------------------------


def _compress_lz4(data: Buffer) -> bytes:
    compressed: bytes = lz4.block.compress(data, store_size=False)
    return compressed


def _decompress_lz4(data: Buffer, size: int) -> bytes:
    try:
        output: bytes = lz4.block.decompress(data, uncompressed_size=size)
    except lz4.block.LZ4BlockError as error:
        # LZ4's decoder does not distinguish a full buffer from damaged bytes.
        raise ValueError(str(error)) from None
    return output


# --- ZLIB ---------------------------------------------------------------------------------


def _decompress_zlib(data: Buffer, size: int) -> bytes:
    stream = zlib.decompressobj()
    output = BytesIO()
    view = memoryview(data)
    # One byte more than declared detects output that is too long; 0 would mean no limit.
    left = size + 1
    try:
        for at in range(0, len(view), _PIECE):
            part: Buffer = view[at : at + _PIECE]
            while True:
                wanted = min(_PIECE, left)
                piece = stream.decompress(part, wanted)
                left -= output.write(piece)
                if left == 0:
                    raise _wrong_size(pb.ZLIB, size)
                part = stream.unconsumed_tail
                # Output that was cut at `wanted` continues even if all input is consumed.
                if not part and len(piece) < wanted:
                    break
            if stream.unused_data:
                raise DecompressionError("bytes follow the end of a payload compressed with ZLIB")
    except zlib.error as error:
        raise ValueError(str(error)) from None
    return output.getvalue()


BUILT_IN: Mapping[int, CompressionCodec] = {
    pb.LZ4: CompressionCodec(_compress_lz4, _decompress_lz4),
    pb.ZLIB: CompressionCodec(zlib.compress, _decompress_zlib),
}
"""The codecs implemented here."""


# --- ZSTD ---------------------------------------------------------------------------------


def _check_zstd(data: Buffer, size: int) -> None:
    """Raise unless `data` is one complete frame that agrees with `size`."""
    end = 0
    try:
        content_size, window, begin, has_checksum = _zstd_header(data)
        if content_size not in (size, None):
            raise _wrong_size(pb.ZSTD, size, content_size)
        if window > max(size, _ZSTD_WINDOW):
            raise DecompressionError(
                f"a payload compressed with ZSTD asks for a window of {window} bytes"
            )
        end = _zstd_blocks_end(data, begin) + 4 * has_checksum
    except IndexError:
        raise _damaged(pb.ZSTD, size) from None
    if end > len(data):
        raise _damaged(pb.ZSTD, size)
    if end < len(data):
        raise DecompressionError("bytes follow the end of a payload compressed with ZSTD")


def _zstd_header(data: Buffer) -> tuple[int | None, int, int, bool]:
    """Return content size, window, where the blocks start, and whether a checksum follows them.

    Raises IndexError if the header is damaged.
    """
    if bytes(data[:4]) != _ZSTD_MAGIC:
        raise IndexError
    descriptor = data[4]
    if descriptor & _ZSTD_RESERVED_BIT:
        raise IndexError
    at = 5
    is_single_segment = bool(descriptor & 0x20)
    window = 0
    if not is_single_segment:
        base = 1 << 10 + (data[at] >> 3)
        window = base + base // 8 * (data[at] & 7)
        at += 1
    at += _ZSTD_DICTIONARY_SIZES[descriptor & 3]
    digits = _ZSTD_CONTENT_SIZES[descriptor >> 6] or int(is_single_segment)
    field = bytes(data[at : at + digits])
    if len(field) < digits:
        raise IndexError
    content_size = None
    if digits:
        content_size = int.from_bytes(field, "little") + (256 if digits == 2 else 0)
    # A single-segment frame's window is its content.
    if is_single_segment and content_size is not None:
        window = content_size
    return content_size, window, at + digits, bool(descriptor & _ZSTD_CHECKSUM_BIT)


def _zstd_blocks_end(data: Buffer, at: int) -> int:
    """Return where the blocks that start at `at` end; raises IndexError if one is incomplete."""
    is_last = False
    while not is_last:
        header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        is_last = bool(header & 1)
        # A block of type 1 is one repeated byte.
        at += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)
    return at


# --- SNAPPY -------------------------------------------------------------------------------


def _check_snappy(data: Buffer, size: int) -> None:
    """Raise unless the block starts with `size`, a number of up to five 7-bit digits."""
    stated = 0
    for place, digit in enumerate(data[:5]):
        stated |= (digit & 127) << 7 * place
        if digit < 128:
            if stated != size:
                raise _wrong_size(pb.SNAPPY, size, stated)
            return
    raise _damaged(pb.SNAPPY, size)


_CHECKS: dict[int, Callable[[Buffer, int], None]] = {
    pb.ZSTD: _check_zstd,
    pb.SNAPPY: _check_snappy,
}
