"""Compression of payloads: NONE, LZ4, ZLIB, ZSTD, SNAPPY, each as Pulsar has it on the wire.

All are raw: LZ4 and SNAPPY are single blocks without a frame, ZSTD is one frame, ZLIB a zlib
stream, which Java's client flushes but never finishes. Pulsar binary protocol, Message metadata:
`compression` names the codec, `uncompressed_size` the size before; a batch or a message in chunks
is compressed as a whole.

A payload is never believed: the declared size is held against a limit before anything is
allocated, no more than that is allocated, and the output must have exactly that size.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import lz4.block
from google.protobuf.unknown_fields import UnknownFieldSet

from pulsar_spark.errors import (
    DecompressionError,
    LocalProtocolError,
    MissingDependency,
    UnsupportedCodec,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb

Buffer = bytes | bytearray | memoryview

_COMPRESSION_FIELD = 8  # of MessageMetadata

# Frames of at most this window need no more memory than any decoder must have by the format's
# specification; a larger window is fine up to the size of what it decodes to.
_ZSTD_WINDOW = 8 * 1024 * 1024
_ZSTD_UNKNOWN_SIZES = (-1, 2**64 - 1)


def codec_of(metadata: pb.MessageMetadata) -> int:
    """Return the number of the codec that a message is compressed with.

    The `compression` field alone does not tell: protobuf hides a value that it does not know,
    and the payload would pass for an uncompressed one.
    """
    unknown = UnknownFieldSet(metadata)
    for index in range(len(unknown)):
        if unknown[index].field_number == _COMPRESSION_FIELD:
            return int(unknown[index].data)
    return metadata.compression


def compress(codec: int, data: Buffer) -> Buffer:
    """Return `data` compressed with a codec of `pb.CompressionType`; for NONE `data` itself.

    Raises MissingDependency if the codec's package is not installed, LocalProtocolError if
    there is no such codec.
    """
    if codec == pb.NONE:
        return data
    compressor = _COMPRESSORS.get(codec)
    if compressor is None:
        raise LocalProtocolError(f"there is no codec {codec}")
    return compressor(data)


def decompress(codec: int, data: Buffer, uncompressed_size: int, limit: int) -> Buffer:
    """Return the `uncompressed_size` bytes that `data` is the compressed form of.

    `limit` is the most that is acceptable, in bytes. With NONE `data` itself is returned, and
    its declared size ignored, as official clients do. Raises DecompressionError if the size is
    above the limit or not the true one or the bytes are damaged, UnsupportedCodec,
    MissingDependency.
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
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise UnsupportedCodec(
            f"a payload is compressed with codec {codec}, which is not supported"
        )
    output = decompressor(data, uncompressed_size)
    if len(output) != uncompressed_size:
        raise _wrong_size(codec, uncompressed_size, len(output))
    return output


def _wrong_size(codec: int, declared: int, actual: int | None = None) -> DecompressionError:
    name = pb.CompressionType.Name(codec)
    if declared == 0:
        return DecompressionError(
            f"a payload compressed with {name} does not say how large it is uncompressed"
        )
    real = "another size" if actual is None else f"{actual} bytes"
    return DecompressionError(
        f"a payload compressed with {name} says that it has {declared} bytes uncompressed, "
        f"but has {real}"
    )


def _damaged(codec: int, declared: int) -> DecompressionError:
    return DecompressionError(
        f"a payload compressed with {pb.CompressionType.Name(codec)} is damaged, "
        f"or has not the {declared} bytes that it says"
    )


def _missing(codec: int, package: str) -> MissingDependency:
    name = pb.CompressionType.Name(codec)
    return MissingDependency(
        f"compression with {name} needs the package {package}, which is not installed",
        f'Run: pip install "pulsar-spark[{name.lower()}]"',
    )


# --- LZ4 ----------------------------------------------------------------------------------


def _compress_lz4(data: Buffer) -> bytes:
    compressed: bytes = lz4.block.compress(data, store_size=False)
    return compressed


def _decompress_lz4(data: Buffer, size: int) -> bytes:
    try:
        output: bytes = lz4.block.decompress(data, uncompressed_size=size)
    except lz4.block.LZ4BlockError:
        # The block decoder does not tell a full buffer from damaged bytes.
        raise _wrong_size(pb.LZ4, size) if size == 0 else _damaged(pb.LZ4, size) from None
    return output


# --- ZLIB ---------------------------------------------------------------------------------


def _decompress_zlib(data: Buffer, size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        # One byte more than declared shows output that is too long; 0 would mean no bound.
        output = stream.decompress(data, size + 1)
    except zlib.error:
        raise _damaged(pb.ZLIB, size) from None
    if len(output) > size:
        raise _wrong_size(pb.ZLIB, size)
    if stream.unused_data:
        raise DecompressionError("bytes follow the end of a payload compressed with ZLIB")
    return output


# --- ZSTD ---------------------------------------------------------------------------------


def _compress_zstd(data: Buffer) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _missing(pb.ZSTD, "zstandard") from None
    return zstandard.ZstdCompressor().compress(data)


def _decompress_zstd(data: Buffer, size: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _missing(pb.ZSTD, "zstandard") from None
    try:
        # A frame that names its size is given that much, whatever was asked for: look first.
        header = zstandard.get_frame_parameters(data)
        if header.content_size not in (size, *_ZSTD_UNKNOWN_SIZES):
            raise _wrong_size(pb.ZSTD, size, header.content_size)
        if header.window_size > max(size, _ZSTD_WINDOW):
            raise DecompressionError(
                f"a payload compressed with ZSTD asks for a window of {header.window_size} bytes"
            )
        return zstandard.ZstdDecompressor().decompress(
            data, max_output_size=max(size, 1), allow_extra_data=False
        )
    except zstandard.ZstdError:
        raise _damaged(pb.ZSTD, size) from None


# --- SNAPPY -------------------------------------------------------------------------------


def _compress_snappy(data: Buffer) -> bytes:
    try:
        from cramjam import snappy
    except ImportError:
        raise _missing(pb.SNAPPY, "cramjam") from None
    return bytes(snappy.compress_raw(data))


def _decompress_snappy(data: Buffer, size: int) -> bytes:
    try:
        from cramjam import DecompressionError as SnappyError
        from cramjam import snappy
    except ImportError:
        raise _missing(pb.SNAPPY, "cramjam") from None
    # A block begins with its size, and the decoder allocates that: look first.
    stated = _snappy_size(data)
    if stated is None:
        raise _damaged(pb.SNAPPY, size)
    if stated != size:
        raise _wrong_size(pb.SNAPPY, size, stated)
    try:
        return bytes(snappy.decompress_raw(data))
    except SnappyError:
        raise _damaged(pb.SNAPPY, size) from None


def _snappy_size(data: Buffer) -> int | None:
    """Return the size that a block states: a number of up to five digits of seven bits."""
    size = 0
    for place, digit in enumerate(data[:5]):
        size |= (digit & 127) << 7 * place
        if digit < 128:
            return size
    return None


_COMPRESSORS: dict[int, Callable[[Buffer], bytes]] = {
    pb.LZ4: _compress_lz4,
    pb.ZLIB: zlib.compress,
    pb.ZSTD: _compress_zstd,
    pb.SNAPPY: _compress_snappy,
}

_DECOMPRESSORS: dict[int, Callable[[Buffer, int], bytes]] = {
    pb.LZ4: _decompress_lz4,
    pb.ZLIB: _decompress_zlib,
    pb.ZSTD: _decompress_zstd,
    pb.SNAPPY: _decompress_snappy,
}
