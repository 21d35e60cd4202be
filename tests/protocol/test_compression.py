"""The protocol's own compression; tests/engine/test_codecs.py tests all codecs together."""

from __future__ import annotations

import pytest

from pulsar_spark.errors import DecompressionError, LocalProtocolError, UnsupportedCodec
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.compression import Codecs, CompressionCodec, codec_of

LIMIT = 1000
# A ZSTD frame and a SNAPPY block of "abc", after their formats.
BLOCKS = {
    pb.ZSTD: bytes.fromhex("28b52ffd 20 03 190000") + b"abc",
    pb.SNAPPY: bytes.fromhex("03 08") + b"abc",
}
HANDED_IN = pytest.mark.parametrize("codec", list(BLOCKS), ids=pb.CompressionType.Name)


def handed_in(codec: int, output: bytes | None) -> Codecs:
    """Codecs, one of which gives `output`, or fails."""

    def decompress(data: Buffer, size: int) -> bytes:
        if output is None:
            raise ValueError("damaged")
        return output

    return Codecs({codec: CompressionCodec(bytes, decompress)})


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4, pb.ZLIB])
def test_the_protocol_alone_has_three_codecs(codec: int) -> None:
    compressed = Codecs().compress(codec, b"abc" * 100)
    assert Codecs().decompress(codec, compressed, 300, LIMIT) == b"abc" * 100


@HANDED_IN
def test_the_others_are_refused_by_their_number(codec: int) -> None:
    with pytest.raises(LocalProtocolError, match=str(codec)):
        Codecs().compress(codec, b"abc")
    with pytest.raises(UnsupportedCodec, match=f"codec {codec}"):
        Codecs().decompress(codec, BLOCKS[codec], 3, LIMIT)


@HANDED_IN
def test_a_codec_that_is_handed_in_is_used(codec: int) -> None:
    codecs = handed_in(codec, b"abc")
    assert codecs.compress(codec, b"x") == b"x"
    assert codecs.decompress(codec, BLOCKS[codec], 3, LIMIT) == b"abc"


@pytest.mark.fault(37)
@HANDED_IN
@pytest.mark.parametrize("output", [None, b"", b"ab", b"abcd"])
def test_what_a_codec_gives_is_not_believed(codec: int, output: bytes | None) -> None:
    with pytest.raises(DecompressionError):
        handed_in(codec, output).decompress(codec, BLOCKS[codec], 3, LIMIT)


@pytest.mark.fault(37)
@HANDED_IN
def test_a_block_that_contradicts_its_size_never_reaches_the_codec(codec: int) -> None:
    for size in (2, 4, 999):
        with pytest.raises(DecompressionError, match=f"{size} bytes uncompressed, but has 3"):
            handed_in(codec, bytes(size)).decompress(codec, BLOCKS[codec], size, LIMIT)


@pytest.mark.fault(38)
@pytest.mark.parametrize(
    "frame",
    [
        "",
        "28b52ffd",
        "28b52ffe 20 03 190000 616263",  # another magic number
        "28b52ffd 28 03 190000 616263",  # a reserved bit
        "28b52ffd 20",  # ends before the content size
        "28b52ffd e0 03000000000000",  # ends within it
        "28b52ffd 20 03",  # no block
        "28b52ffd 20 03 1900",
        "28b52ffd 20 03 190000 6162",  # a block that is cut
        "28b52ffd 20 03 180000 616263",  # a block that is not the last one
        "28b52ffd 24 03 190000 616263 000000",  # a checksum that is cut
        "28b52ffd 20 03 190000 616263 00",  # bytes behind the last block
        "28b52ffd 20 03 190000 616263 28b52ffd 20 00 010000",  # another frame
    ],
)
def test_a_zstd_frame_that_is_not_whole_never_reaches_the_codec(frame: str) -> None:
    codecs = handed_in(pb.ZSTD, b"abc")
    with pytest.raises(DecompressionError):
        codecs.decompress(pb.ZSTD, bytes.fromhex(frame), 3, LIMIT)


@pytest.mark.parametrize(
    "frame, size",
    [
        ("28b52ffd 00 00 190000 616263", 3),  # a window of 1 KiB, no content size
        ("28b52ffd 24 03 190000 616263 00000000", 3),  # with a checksum
        ("28b52ffd 60 0000 010800" + "00" * 256, 256),  # a size of two bytes
        ("28b52ffd a0 03000000 1b0000 61", 3),  # one byte, three times
        ("28b52ffd e3 00000000 0300000000000000 190000 616263", 3),  # with a dictionary
        ("28b52ffd 20 03 080000 61 110000 6263", 3),  # two blocks
    ],
)
def test_every_form_of_a_zstd_frame_reaches_the_codec(frame: str, size: int) -> None:
    codecs = handed_in(pb.ZSTD, bytes(size))
    assert codecs.decompress(pb.ZSTD, bytes.fromhex(frame), size, LIMIT) == bytes(size)


@pytest.mark.fault(38)
@pytest.mark.parametrize("codec", [0, 1, 4, 5, 99])
def test_the_codec_is_found_even_if_protobuf_hides_it(codec: int) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    assert codec_of(metadata) == pb.NONE
    data = metadata.SerializeToString() + bytes((0x40, codec)) + b"\xa0\x1f\x07"
    assert codec_of(pb.MessageMetadata.FromString(data)) == codec


@pytest.mark.fault(30, 31, 38)
@pytest.mark.parametrize(
    "field", ["42026162", "4500000063", "410000000000000063", "434005" + "44"], ids=len
)
def test_a_codec_field_of_another_wire_type_is_another_field(field: str) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    metadata.compression = pb.LZ4
    data = metadata.SerializeToString() + bytes.fromhex(field)
    assert codec_of(pb.MessageMetadata.FromString(data)) == pb.LZ4
    data += b"\x40\x63"
    assert codec_of(pb.MessageMetadata.FromString(data)) == 99
