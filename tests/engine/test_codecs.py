"""Compression: round trips, recordings of official clients, wrong sizes, bombs."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import tracemalloc
import zlib
from functools import lru_cache

import lz4.block
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.engine import codecs
from pulsar_spark.engine.codecs import compress, decompress
from pulsar_spark.errors import (
    CorruptMessage,
    DecompressionError,
    LocalProtocolError,
    MissingDependency,
    UnsupportedCodec,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb

CODECS = [pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY]
NAMED = pytest.mark.parametrize("codec", CODECS, ids=pb.CompressionType.Name)
MIB = 2**20
LIMIT = 5 * MIB
TEXT = b"line of the batch, and again " * 100


def zstd_stream(*blocks: bytes) -> bytes:
    """A frame without the size of its content."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for block in blocks:
            stream.write(block)
    return bytes(sink.getvalue().to_pybytes())


def flushed_zlib(data: bytes) -> bytes:
    """As Java's client writes it: a stream that is flushed but not finished."""
    stream = zlib.compressobj()
    return stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)


@given(st.binary(max_size=2000), st.sampled_from([pb.NONE, *CODECS]))
def test_what_is_compressed_decompresses(data: bytes, codec: int) -> None:
    compressed = compress(codec, data)
    assert decompress(codec, compressed, len(data), LIMIT) == data
    assert decompress(codec, memoryview(bytes(compressed)), len(data), len(data)) == data


@NAMED
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_taken(codec: int, wrap: type) -> None:
    compressed = compress(codec, wrap(TEXT))
    assert len(compressed) < len(TEXT) // 4
    assert decompress(codec, wrap(bytes(compressed)), len(TEXT), LIMIT) == TEXT


def test_blocks_have_no_frame_and_no_size_in_front() -> None:
    assert compress(pb.LZ4, b"abc") == bytes.fromhex("30616263")
    assert compress(pb.SNAPPY, b"abc") == bytes.fromhex("0308616263")
    assert bytes(compress(pb.ZSTD, b"abc"))[:4] == bytes.fromhex("28b52ffd")
    assert zlib.decompress(compress(pb.ZLIB, b"abc")) == b"abc"


def test_uncompressed_data_is_handed_through() -> None:
    view = memoryview(TEXT)
    assert compress(pb.NONE, view) is view
    assert decompress(pb.NONE, view, 0, LIMIT) is view
    with pytest.raises(DecompressionError, match="at most 10"):
        decompress(pb.NONE, view, 0, 10)


def test_a_stream_that_java_never_finishes_is_read() -> None:
    data = flushed_zlib(TEXT)
    with pytest.raises(zlib.error):
        zlib.decompress(data)
    assert decompress(pb.ZLIB, data, len(TEXT), LIMIT) == TEXT
    assert decompress(pb.ZLIB, flushed_zlib(b""), 0, LIMIT) == b""


def test_a_zstd_frame_without_its_size_is_read() -> None:
    data = zstd_stream(TEXT)
    assert decompress(pb.ZSTD, data, len(TEXT), LIMIT) == TEXT
    for wrong in (1, len(TEXT) - 1, len(TEXT) + 1):
        with pytest.raises(DecompressionError):
            decompress(pb.ZSTD, data, wrong, LIMIT)


@pytest.mark.fault(37)
@NAMED
@pytest.mark.parametrize("declared", [-1, 1, len(TEXT) - 1, len(TEXT) + 1, LIMIT, 2**32 - 1])
def test_a_size_that_is_not_true_is_refused(codec: int, declared: int) -> None:
    with pytest.raises(DecompressionError, match="bytes"):
        decompress(codec, compress(codec, TEXT), declared, LIMIT)


@pytest.mark.fault(37)
@NAMED
def test_a_missing_size_is_named_as_the_reason(codec: int) -> None:
    with pytest.raises(DecompressionError, match="does not declare"):
        decompress(codec, compress(codec, TEXT), 0, LIMIT)


@pytest.mark.fault(37)
@NAMED
def test_a_size_above_the_limit_is_refused_before_anything_is_allocated(codec: int) -> None:
    data = compress(codec, bytes(MIB))
    tracemalloc.start()
    with pytest.raises(DecompressionError, match="at most 1000"):
        decompress(codec, data, MIB, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000


@NAMED
def test_damaged_bytes_are_refused(codec: int) -> None:
    rng = random.Random(codec)
    text = rng.randbytes(300) * 3
    good = bytes(compress(codec, text))
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = rng.choice([len(data), rng.randrange(len(data) + 1)])
        try:
            output = decompress(codec, bytes(data[:cut]), len(text), LIMIT)
        except CorruptMessage:
            continue
        assert len(output) == len(text)


@NAMED
@given(st.binary(max_size=100), st.integers(0, 200))
def test_random_bytes_are_refused_or_have_the_size(codec: int, data: bytes, size: int) -> None:
    try:
        output = decompress(codec, data, size, 150)
    except CorruptMessage:
        return
    assert len(output) == size


@pytest.mark.parametrize("codec", [pb.ZLIB, pb.ZSTD], ids=pb.CompressionType.Name)
@pytest.mark.parametrize("behind", [b"x", bytes(compress(pb.ZSTD, b"")), b"\0" * 100])
def test_bytes_behind_the_end_are_refused(codec: int, behind: bytes) -> None:
    with pytest.raises(DecompressionError):
        decompress(codec, bytes(compress(codec, TEXT)) + behind, len(TEXT), LIMIT)


@pytest.mark.fault(38)
@pytest.mark.parametrize("codec", [5, 99, -1])
def test_an_unknown_codec_is_refused_by_its_number(codec: int) -> None:
    with pytest.raises(UnsupportedCodec, match=f"codec {codec}, which is not supported"):
        decompress(codec, b"abc", 3, LIMIT)
    with pytest.raises(LocalProtocolError, match=str(codec)):
        compress(codec, b"abc")


@pytest.mark.fault(37)
@NAMED
def test_a_large_payload_is_decompressed_without_a_second_copy(codec: int) -> None:
    size = 16 * MIB
    data = compress(codec, bytes(size))
    decompress(codec, compress(codec, TEXT), len(TEXT), LIMIT)  # what a codec allocates once
    tracemalloc.start()
    output = decompress(codec, data, size, size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert bytes(output) == bytes(size)
    assert peak < 1.3 * size


@pytest.mark.fault(37)
@NAMED
@pytest.mark.parametrize("wrong", [-1, 1, 1000])
def test_the_size_of_a_large_payload_is_checked_to_the_byte(codec: int, wrong: int) -> None:
    body = random.Random(codec).randbytes(MIB) * 2
    data = compress(codec, body)
    assert decompress(codec, data, len(body), LIMIT) == body
    with pytest.raises(DecompressionError):
        decompress(codec, data, len(body) + wrong, LIMIT)
    with pytest.raises(DecompressionError):
        decompress(codec, bytes(data)[: len(data) // 2], len(body), LIMIT)


@pytest.mark.parametrize("codec", [pb.ZSTD, pb.SNAPPY], ids=pb.CompressionType.Name)
def test_an_arrow_without_a_codec_is_an_error(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        @staticmethod
        def is_available(name: str) -> bool:
            return False

    data = compress(codec, TEXT)
    monkeypatch.setattr(pa, "Codec", Bare)
    monkeypatch.setattr(codecs, "_arrow_codec", codecs._arrow_codec.__wrapped__)
    with pytest.raises(MissingDependency, match=pb.CompressionType.Name(codec)):
        compress(codec, TEXT)
    with pytest.raises(MissingDependency, match="pip install"):
        decompress(codec, data, len(TEXT), LIMIT)


# --- bombs ------------------------------------------------------------------------------------


def zlib_bomb(size: int) -> bytes:
    stream = zlib.compressobj(9)
    block = bytes(MIB)
    return b"".join(stream.compress(block) for _ in range(size // MIB)) + stream.flush()


@lru_cache
def bombs() -> list[tuple[int, bytes]]:
    # Each decompresses to many times the limit.
    return [
        (pb.LZ4, lz4.block.compress(bytes(64 * MIB), store_size=False)),
        (pb.ZLIB, zlib_bomb(64 * MIB)),
        (pb.ZSTD, zstd_stream(*[bytes(MIB)] * 64)),
        (pb.ZSTD, bytes(compress(pb.ZSTD, bytes(64 * MIB)))),
        (pb.SNAPPY, bytes(compress(pb.SNAPPY, bytes(64 * MIB)))),
        # No more than a header that promises 5 GiB.
        (pb.ZSTD, bytes.fromhex("28b52ffd" + "e0" + "0000004001000000" + "010000")),
        (pb.SNAPPY, bytes.fromhex("8080808014" + "00")),
        (pb.SNAPPY, bytes.fromhex("ffffffff0f" + "00")),
    ]


@pytest.mark.fault(38)
@pytest.mark.parametrize("declared", [0, 1000, MIB])
def test_bombs_are_refused_within_the_limit(declared: int) -> None:
    for codec, bomb in bombs():
        tracemalloc.start()
        with pytest.raises(DecompressionError):
            decompress(codec, bomb, declared, MIB)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * MIB


@pytest.mark.fault(38)
def test_a_frame_that_asks_for_a_huge_window_is_refused() -> None:
    # Magic number, no content size, the window's exponent, and one last block of raw bytes.
    block = (len(TEXT) << 3 | 1).to_bytes(3, "little") + TEXT
    data = bytes.fromhex("28b52ffd 00 68") + block
    assert decompress(pb.ZSTD, data, len(TEXT), LIMIT) == TEXT
    data = bytes.fromhex("28b52ffd 00 88") + block
    with pytest.raises(DecompressionError, match="window of 134217728 bytes"):
        decompress(pb.ZSTD, data, len(TEXT), LIMIT)


_BOUNDED = """
    import resource, sys
    from pulsar_spark.errors import DecompressionError
    from pulsar_spark.engine.codecs import decompress
    from tests.engine.test_codecs import MIB
    bombs = eval(sys.stdin.read())
    for codec, bomb in bombs:  # whatever a codec needs once is there before the limit
        try:
            decompress(codec, bomb[:20], 1000, MIB)
        except DecompressionError:
            pass
    with open("/proc/self/statm") as f:
        used = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 24 * MIB,) * 2)
    for codec, bomb in bombs:
        for declared in (0, 1000, 4 * MIB):
            try:
                decompress(codec, bomb, declared, 5 * MIB)
            except DecompressionError:
                continue
            sys.exit(f"codec {codec} was not refused")
"""


@pytest.mark.fault(38)
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and limits of address space")
def test_bombs_are_refused_where_little_memory_is_left() -> None:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_BOUNDED)],
        input=repr(bombs()),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
