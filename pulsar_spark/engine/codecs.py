"""All of Pulsar's codecs: the protocol's own, and ZSTD and SNAPPY with Arrow.

Arrow's decoders are told the output's size and do not report how much they wrote. If they wrote
less, the rest would be whatever was in memory. So each use says why its size is right.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from pulsar_spark.errors import MissingDependency, UnsupportedCodec
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.compression import BUILT_IN, Codecs, CompressionCodec

# Java's level.
_ZSTD_LEVEL = 3
# From this size on, decompressing twice is cheaper than copying.
_LARGE = 1024 * 1024


@cache
def _arrow_codec(name: str, level: int | None = None) -> Any:
    import pyarrow as pa  # heavy, and not needed where nothing is compressed

    if not pa.Codec.is_available(name):
        raise MissingDependency(
            f"compression with {name.upper()} needs a pyarrow that was built with it",
            'Run: pip install --force-reinstall "pyarrow>=15"',
        )
    return pa.Codec(name, compression_level=level)


def _decompress_lz4(data: Buffer, size: int) -> bytes:
    """Decompress without the second copy of the output that the lz4 package makes."""
    if size < _LARGE:
        return _LZ4.decompress(data, size)
    # Nothing states the output's length: check that it does not fit into a buffer one byte shorter.
    try:
        _decompress("lz4_raw", data, size - 1)
    except ValueError:
        return _decompress("lz4_raw", data, size)
    raise ValueError("the block is shorter")


def _compress(name: str, level: int | None, data: Buffer) -> bytes:
    compressed: bytes = _arrow_codec(name, level).compress(data, asbytes=True)
    return compressed


def _decompress(name: str, data: Buffer, size: int) -> bytes:
    try:
        output: bytes = _arrow_codec(name).decompress(data, decompressed_size=size, asbytes=True)
    except OSError as error:
        raise ValueError(str(error)) from None
    return output


_LZ4 = BUILT_IN[pb.LZ4]
_CODECS = Codecs(
    {
        pb.LZ4: _LZ4._replace(decompress=_decompress_lz4),
        # Arrow itself raises an error if the output is shorter.
        pb.ZSTD: CompressionCodec(
            partial(_compress, "zstd", _ZSTD_LEVEL), partial(_decompress, "zstd")
        ),
        # The block states its size, which is checked, and the decoder enforces it.
        pb.SNAPPY: CompressionCodec(
            partial(_compress, "snappy", None), partial(_decompress, "snappy")
        ),
    }
)

compress = _CODECS.compress
decompress = _CODECS.decompress


def available_codecs() -> list[str]:
    """Return the names of the codecs installed here, in the protocol's order."""
    names: list[str] = []
    for name, number in pb.CompressionType.items():
        try:
            compress(number, b"")
        except (MissingDependency, UnsupportedCodec):
            continue
        names.append(name)
    return names
