"""Valid entries of all kinds, and random mutations of their bytes."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from crc32c import crc32c

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from tests.protocol.block_streams import (
    COLUMNS,
    LEDGER,
    TIME,
    USUAL,
    MakeDecoder,
    blockwise,
    entry,
    metadata,
    opened,
    options,
)

# Digits, tags and sizes with a meaning.
_BYTES = bytes.fromhex("00 01 02 7f 80 81 ff 08 09 0a 0e 10 12 18 1a 20 22 28 2a 30 32 3a 40 48 4a")
_BYTES += bytes.fromhex("50 58 60 6a 72 7a 82 88 92 98 a0 b0 b8 c0 c8 d2 d8 e0 e8 f0 f8")

# Tokens with short and long lengths, offsets of one, and of more than there is.
_LZ4_BYTES = bytes.fromhex("00 01 02 07 08 0f 10 11 1f 40 44 80 f0 f1 ff")

_STREAM = 100
_WITH_ORDERING_KEY = USUAL | {"ordering_key", "schema_version"}


def random_entry(random: Random, entry_id: int) -> bytes:
    """Return the frame of a valid entry, usual or unusual."""
    fields: dict[str, Any] = {
        "producer_name": random.choice(["p", "standalone-0-28", "ü" * 5, "q" * 200]),
        "sequence_id": random.choice([entry_id, 0, 2**40, 2**64 - 1]),
        "publish_time": random.choice([TIME, TIME + entry_id, 0, 2**50]),
        "partition": random.choice([-1, -1, -1, None, 3]),
    }
    for name, value in _RARE:
        if random.random() < 0.05:
            fields[name] = value
    if random.random() < 0.2:
        fields["index"] = random.choice([entry_id, 0, 2**40])
        fields["broker_timestamp"] = random.choice([TIME, None])
    if random.random() < 0.2:
        fields["codec"] = pb.LZ4
    content: Any = random.choice([b"", b"2\x01", b"v", None, bytes(random.randrange(300))])
    if random.random() < 0.5:
        content = [_random_message(random) for _ in range(random.choice([1, 2, 3, 10, 20]))]
        if random.random() < 0.3:
            # All alike.
            content = content[:1] * random.choice([2, 16, 40])
    if random.random() < 0.4:
        fields.update(_random_key(random))
    return entry(entry_id, content, **fields)


_RARE: list[tuple[str, Any]] = [
    ("event_time", 1500),
    ("event_time", 2**60),
    ("ordering_key", b"o"),
    ("schema_version", bytes(8)),
    ("replicated_from", "r"),
    ("replicate_to", ["a"]),
    ("highest_sequence_id", 2**40),
    ("deliver_at_time", 5),
    ("properties", [("a", "1"), ("b", ""), ("a", "2")]),
    ("properties", [("ü" * 70, "x" * 300)]),
    ("null_partition_key", True),
    ("txnid_least_bits", 5),
    ("uncompressed_size", 7),
    ("redelivery_count", 3),
    ("consumer_epoch", 0),
    ("ack_set", [5]),
    ("marker_type", 10),
]


def _random_key(random: Random) -> dict[str, Any]:
    return random.choice(
        [
            {"partition_key": "k"},
            {"partition_key": ""},
            {"partition_key": "k" * 200},
            {"partition_key": "/w==", "partition_key_b64_encoded": True},
            {"partition_key": "@", "partition_key_b64_encoded": True},
        ]
    )


def _random_message(random: Random) -> tuple[pb.SingleMessageMetadata, bytes]:
    fields: dict[str, Any] = {}
    if random.random() < 0.8:
        fields["sequence_id"] = random.choice([0, 127, 128, 2**40, 2**64 - 1])
    if random.random() < 0.4:
        fields.update(_random_key(random))
    if random.random() < 0.1:
        fields["event_time"] = random.choice([1500, 2**60])
    if random.random() < 0.1:
        fields["properties"] = [("a", "1"), ("b", ""), ("a", "2")]
    if random.random() < 0.1:
        fields["ordering_key"] = b"o"
    if random.random() < 0.02:
        fields["compacted_out"] = True
    return metadata(random.choice([b"", b"v", None, bytes(random.randrange(300))]), **fields)


class _Layout:
    """The offsets of a frame's parts."""

    def __init__(self, data: bytes) -> None:
        self.command_end = 8 + struct.unpack_from(">I", data, 4)[0]
        at = self.command_end
        self.broker_at = 0
        if data[at : at + 2] == b"\x0e\x02":
            self.broker_at = at + 2
            at += 6 + struct.unpack_from(">I", data, at + 2)[0]
        self.checksum_at = at + 2
        self.metadata_at = at + 6
        self.payload_at = self.metadata_at + 4 + struct.unpack_from(">I", data, at + 6)[0]


def checked(data: bytes, metadata_at: int | None = None) -> bytes:
    """Return a frame with a valid checksum, which covers all from the metadata's size on."""
    found = bytearray(data)
    at = _Layout(data).metadata_at if metadata_at is None else metadata_at
    struct.pack_into(">I", found, at - 4, crc32c(memoryview(found)[at:]))
    return bytes(found)


def mutate(random: Random, data: bytes, layout: _Layout) -> bytes:
    """Return a frame with some bytes changed, inserted or removed, but its own size correct."""
    found = bytearray(data)
    # Most of a frame's structure is before the payload, or in its first bytes.
    stop = min(len(found), layout.payload_at + 40)
    shift = 0
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        at = random.randrange(4, stop) if random.random() < 0.9 else random.randrange(4, len(data))
        at = min(at, len(found) - 1)
        kind = random.random()
        if kind < 0.6:
            found[at] = random.choice(_BYTES)
        elif kind < 0.8:
            found[at] ^= 1 << random.randrange(8)
        elif kind < 0.9:
            found.insert(at, random.choice(_BYTES))
            shift += _shift_sizes(found, layout, at, 1)
        else:
            del found[at]
            shift += _shift_sizes(found, layout, at, -1)
    struct.pack_into(">I", found, 0, len(found) - 4)
    if random.random() < 0.9 and layout.metadata_at + shift < len(found):
        start = layout.metadata_at + shift
        value = crc32c(memoryview(found)[start:])
        struct.pack_into(">I", found, start - 4, value)
    return bytes(found)


def _shift_sizes(data: bytearray, layout: _Layout, at: int, by: int) -> int:
    """Correct the size of the changed part; return how far the others moved."""
    if at < layout.command_end:
        if at > 12:
            data[7] = (data[7] + by) & 255
            data[11] = (data[11] + by) & 255
        return by
    if layout.broker_at and layout.broker_at + 4 < at < layout.checksum_at - 2:
        data[layout.broker_at + 3] = (data[layout.broker_at + 3] + by) & 255
        return by
    if layout.metadata_at + 4 <= at < layout.payload_at:
        size = struct.unpack_from(">I", data, layout.metadata_at)[0]
        struct.pack_into(">I", data, layout.metadata_at, (size + by) % 2**32)
    return 0 if at >= layout.metadata_at else by


def compare(make: MakeDecoder, random: Random, frames: int) -> None:
    """Compare a decoder with the opener on this many frames, most of them damaged."""
    for first in range(0, frames, _STREAM):
        count = min(_STREAM, frames - first)
        stream: list[bytes] = []
        base = [random_entry(random, number * 40) for number in range(12)]
        layouts = [_Layout(data) for data in base]
        for number in range(count):
            which = number * len(base) // count
            data = base[which]
            stream.append(mutate(random, data, layouts[which]) if random.random() < 0.8 else data)
        columns = random.choice([COLUMNS, USUAL, USUAL, frozenset({"value", "sequence_id"})])
        fields: dict[str, Any] = {"max_rows": random.choice([3, 50, 10_000])}
        if random.random() < 0.3:
            fields["end"] = (LEDGER, random.randrange(480), random.randrange(3))
        if random.random() < 0.1:
            fields["published_from"] = TIME
        start = EARLIEST_POSITION
        if random.random() < 0.5:
            start = Position(LEDGER, 40 * random.randrange(4), random.randrange(3))
        wanted = options(columns, **fields)
        joined = b"".join(stream)
        blockwise(make, joined, wanted, start).same_as(opened(joined, wanted, start))


def compare_compressed(make: MakeDecoder, random: Random, entries: int) -> tuple[int, int]:
    """Compare a decoder with the opener on LZ4 blocks, three damaged ones for each.

    Return how many of those that are whole it left to the opener, and how many damaged ones
    it took.
    """
    left = taken = 0
    for _ in range(entries):
        whole = entry(1, _text(random), codec=pb.LZ4)
        start = _Layout(whole).payload_at
        for copy in range(4):
            data = bytearray(whole)
            for _ in range(copy and random.choice([1, 1, 2])):
                # The end has rules of its own.
                first = random.choice([start, max(start, len(data) - 30)])
                data[random.randrange(first, len(data))] = random.choice(_LZ4_BYTES)
            stream, wanted = checked(bytes(data)), options({"value"})
            found = blockwise(make, stream, wanted)
            found.same_as(opened(stream, wanted, EARLIEST_POSITION))
            if not copy:
                left += len(found.slow)
            elif data != whole:
                taken += not found.slow
    return left, taken


def _text(random: Random) -> bytes:
    """Return bytes with matches of all lengths at all distances."""
    words = [random.randbytes(random.choice([1, 2, 5, 9, 17, 40])) for _ in range(20)]
    if random.random() < 0.2:
        words = [b"a", bytes(300), *words]
    text = b"".join(random.choices(words, k=random.randrange(1, 400)))
    return text[: random.choice([13, 40, 70, 300, 2000, len(text)])]


def compare_alike(make: MakeDecoder, random: Random, streams: int) -> None:
    """As `compare`, for streams in which all but a few messages are laid out alike."""
    for _ in range(streams):
        stream = _alike(random)
        for place in random.sample(range(len(stream)), random.choice([0, 0, 1, 2])):
            stream[place] = mutate(random, stream[place], _Layout(stream[place]))
        if random.random() < 0.1:
            del stream[random.randrange(len(stream))]
        fields: dict[str, Any] = {
            "max_rows": random.choice([30, 10_000, 10_000]),
            "max_bytes": random.choice([2000, 1 << 20, 1 << 20]),
        }
        if random.random() < 0.3:
            fields["end"] = (LEDGER, random.randrange(250), random.choice([0, 0, 1]))
        start = Position(LEDGER, random.choice([0, 0, 110, 150]))
        columns = random.choice([USUAL, USUAL, _WITH_ORDERING_KEY, {"value", "key", "message_id"}])
        wanted, joined = options(columns, **fields), b"".join(stream)
        blockwise(make, joined, wanted, start).same_as(opened(joined, wanted, start))


def _alike(random: Random) -> list[bytes]:
    names = random.choice([["p"], ["p"], ["p", "q"], ["p", "longer", "p-2"]])
    first, sequence_id = random.choice([0, 100, 16_350]), random.choice([50, 300, 300, 2**40])
    publish_time = random.choice([TIME, TIME, 100, 2**50, 2**62])
    fields: dict[str, Any] = {}
    if random.random() < 0.3:
        fields["schema_version"] = bytes(8)
    if random.random() < 0.1:
        fields["properties"] = [("a", "1")]
    own = random.choice([(), (), ("properties",), ("event_time",), ("properties", "event_time")])
    rare = random.choice([0, 0, 0, 0.02, 0.5])
    even = random.random() < 0.5
    with_keys = random.choice([True, True, False])
    batched = random.choice([True, False])
    stream = []
    for number in range(random.choice([20, 100, 100])):
        name = names[number % len(names)]
        if with_keys:
            fields["partition_key"] = "k" * random.choice([1, 4, 4, 20])
        if random.random() < 0.002:
            fields.update(random.choice([{"event_time": 5}, {"schema_version": bytes(3)}]))
        if "properties" in own:
            source = random.choice(["web", "app", "warehouse"])
            number_text = str(number) if even else "9" * random.randrange(200)
            fields["properties"] = [("number", number_text), ("source", source)]
        if "event_time" in own:
            fields["event_time"] = random.choice([TIME, 100]) + 5 * number
        content: Any = random.randbytes(random.choice([0, 5, 40]))
        if batched:
            content = _batch_alike(random)
        its = fields
        if random.random() < rare:
            content, its = _rarely(random, content, fields)
        stream.append(
            entry(
                first + number,
                content,
                producer_name=name,
                sequence_id=sequence_id + 7 * number + 1000 * len(name),
                publish_time=publish_time + number // 3,
                **its,
            )
        )
    return stream


_RARELY: list[dict[str, Any]] = [
    {"properties": [("a", "1"), ("a", "2")]},
    {"properties": []},
    {"event_time": 0},
    {"event_time": 2**60},
    {"ordering_key": b"o"},
    {"ordering_key": b"o" * 80},
    {"replicated_from": "r"},
    {"partition_key": "/w==", "partition_key_b64_encoded": True},
    {"partition_key": "@", "partition_key_b64_encoded": True},
    {"partition_key": ""},
]


def _rarely(random: Random, content: Any, fields: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a null value, or what messages rarely have besides."""
    if isinstance(content, bytes) and random.random() < 0.1:
        return None, fields
    return content, fields | random.choice(_RARELY)


def _batch_alike(random: Random) -> list[tuple[pb.SingleMessageMetadata, bytes]]:
    size, key = random.choice([(5, "key"), (5, "key"), (40, "key"), (9, "longer")])
    messages = [
        metadata(random.randbytes(size), partition_key=key, sequence_id=number)
        for number in range(random.choice([3, 3, 3, 10]))
    ]
    if random.random() < 0.002:
        messages[-1] = _random_message(random)
    return messages
