"""SENDs of columns by templates: the bytes that protobuf makes, and blocks of whole entries."""

from __future__ import annotations

import itertools
import random
from array import array
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.engine.codecs import compress
from pulsar_spark.errors import LocalProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.outgoing_batches import (
    MessageFields,
    UniformMessages,
    encode_fields,
    encode_uniform_batch,
    key_field,
)
from pulsar_spark.protocol.send_encoder import (
    BLOCK_BYTES,
    LARGE_ENTRY,
    PythonSendEncoder,
    SendEncoder,
    block_of,
    make_encoder,
)
from pulsar_spark.protocol.sends import OutgoingEntry, SendLimits, encode_entry, single_entry
from pulsar_spark.schema.arrow.byte_column import byte_values
from tests.protocol.batch_bodies import encode_batch, fields_of
from tests.protocol.fields import unbatched_fields
from tests.protocol.implementations import Implementation
from tests.protocol.test_sends import NOW, parse_frame

# --- columns --------------------------------------------------------------------------------


def random_columns(count: int, seed: int, keyed: bool) -> tuple[list[bytes], list[bytes] | None]:
    rng = random.Random(seed)
    payloads = [rng.randbytes(rng.choice([0, 1, 5, 127, 128, 300, 20_000])) for _ in range(count)]
    if not keyed:
        return payloads, None
    return payloads, [b"k" * rng.choice([0, 3, 127, 128, 200]) for _ in range(count)]


def expected_frames(
    payloads: list[bytes], keys: list[bytes] | None, first: int, per_entry: int, own: SendLimits
) -> list[bytes]:
    """Return a column's frames, made with protobuf entry by entry."""
    frames = []
    for start in range(0, len(payloads), per_entry):
        part = payloads[start : start + per_entry]
        own_keys = None if keys is None else keys[start : start + per_entry]
        body = part[0] if len(part) == 1 else encode_uniform_batch(part, first + start, own_keys)
        entry = OutgoingEntry(
            body,
            num_messages=None if len(part) == 1 else len(part),
            partition_key=None if own_keys is None else own_keys[0].decode(),
        )
        (send,) = encode_entry(entry, first + start, own, NOW)
        frames.append(b"".join(send.buffers))
    return frames


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4])
@pytest.mark.parametrize("version", [b"", bytes(7) + b"\x05"])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("per_entry", [1, 2, 10, 36, 1000])
def test_columns_become_the_very_bytes_that_protobuf_makes(
    impl: Implementation, codec: int, version: bytes, keyed: bool, per_entry: int
) -> None:
    own = SendLimits("prod-\u00e9", 300, 5 << 20, codec, version, compress=compress)
    encoder = impl.encoder(300, "prod-\u00e9", version, codec)
    # The ids get one more digit within the column.
    for seed, first in enumerate((0, 100, 127, 16_380, 2**40, 2**62)):
        payloads, keys = random_columns(37, seed, keyed)
        data, ends = encoder.encode(payloads, keys, first, NOW, per_entry)
        frames = expected_frames(payloads, keys, first, per_entry, own)
        assert data == b"".join(frames)
        assert list(ends) == list(itertools.accumulate(map(len, frames)))


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4])
@pytest.mark.parametrize("per_entry", [2, 10, 1000])
def test_fields_that_are_encoded_already_stand_before_each_sequence_id(
    impl: Implementation, codec: int, per_entry: int
) -> None:
    own = SendLimits("p", 3, 5 << 20, codec, compress=compress)
    encoder = impl.encoder(3, "p", codec=codec)
    for seed, first in enumerate((0, 100, 16_380, 2**62)):
        payloads, _ = random_columns(40, seed, False)
        keys = [None if number % 7 % 2 else b"key%d" % number for number in range(40)]
        fields = [_fields_of(message) for message in zip(payloads, keys, range(40), strict=True)]
        data, ends = encoder.encode(payloads, keys, first, NOW, per_entry, fields)
        frames = []
        for start in range(0, 40, per_entry):
            part = slice(start, start + per_entry)
            body = encoder.body(payloads[part], keys[part], first + start, fields[part])
            rows = zip(payloads[part], keys[part], range(start, 40), strict=False)
            expected = [_message(*row) for row in rows]
            assert body == encode_batch(expected, first + start)
            entry = OutgoingEntry(body, len(expected), partition_key=expected[0].key)
            (send,) = encode_entry(entry, first + start, own, NOW)
            frames.append(b"".join(send.buffers))
        assert data == b"".join(frames)
        assert list(ends) == list(itertools.accumulate(map(len, frames)))
    with pytest.raises((ValueError, LocalProtocolError)):
        encoder.body(payloads, keys, 0, fields[1:])


@pytest.mark.parametrize("codec, per_entry", [(pb.NONE, 5), (pb.LZ4, 20)], ids=str)
def test_fields_that_would_not_be_written_are_an_error(
    impl: Implementation, codec: int, per_entry: int
) -> None:
    encoder = impl.encoder(3, "p", codec=codec)
    with pytest.raises(ValueError, match="have no fields"):
        encoder.encode([b"v"] * 21, None, 0, NOW, per_entry, [b"\x60\x05"] * 21)


@pytest.mark.parametrize("missing", ["payload", "key", "field"])
@pytest.mark.parametrize("per_entry", [1, 10])
def test_only_keys_beside_fields_may_be_missing(
    impl: Implementation, per_entry: int, missing: str
) -> None:
    encoder = impl.encoder(3, "p")
    payloads: list[Any] = [b"v"] * 10
    keys: list[Any] = [b"k"] * 10
    fields: list[Any] | None = None if missing == "key" else [b"\x60\x05"] * 10
    column = {"payload": payloads, "key": keys, "field": fields}[missing]
    assert column is not None
    column[5] = None
    with pytest.raises((TypeError, LocalProtocolError)):
        encoder.encode(payloads, keys, 0, NOW, per_entry, fields)


@pytest.mark.parametrize("version", [b"", bytes(7) + b"\x05"])
@pytest.mark.parametrize("txn", [None, TxnId(3, 500)])
def test_unbatched_fields_make_the_very_bytes_that_protobuf_makes(
    impl: Implementation, version: bytes, txn: TxnId | None
) -> None:
    own = SendLimits("p", 3, 5 << 20, schema_version=version, txn=txn)
    encoder = impl.encoder(3, "p", version)
    if txn is not None:
        encoder = make_encoder(3, "p", version, pb.NONE, compress, txn)
    for seed, first in enumerate((0, 100, 16_380, 2**62)):
        payloads, _ = random_columns(40, seed, False)
        keys = [None if number % 7 % 2 else b"key%d" % number for number in range(40)]
        messages = [_message(*row) for row in zip(payloads, keys, range(40), strict=True)]
        fields = [
            unbatched_fields(message.properties, message.key, message.event_time)
            for message in messages
        ]
        frames = []
        for number, message in enumerate(messages):
            (send,) = encode_entry(single_entry(message), first + number, own, NOW)
            frames.append(b"".join(send.buffers))
        data, ends = encoder.encode(payloads, keys, first, NOW, 1, fields)
        assert data == b"".join(frames)
        assert list(ends) == list(itertools.accumulate(map(len, frames)))
        column = UniformMessages(payloads, keys, fields, unbatched=True)
        assert column.take(range(5, 40)).messages() == messages[5:]


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4])
@pytest.mark.parametrize("per_entry", [1, 4, 1000])
@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_columns_in_buffers_make_the_bytes_that_lists_make(
    impl: Implementation, codec: int, per_entry: int, columns: int, kind: pa.DataType
) -> None:
    payloads, keys = random_columns(40, 1, True)
    assert keys is not None
    fields = [_fields_of(message) for message in zip(payloads, keys, range(40), strict=True)]

    def encoded(encoder: SendEncoder, column: Callable[[list[bytes]], Any]) -> tuple[Any, ...]:
        own_keys = column(keys) if columns > 1 else None
        own_fields = column(fields) if columns > 2 else None
        body = encoder.body(column(payloads), own_keys, 100, own_fields)
        if own_fields is not None and (codec, per_entry) == (pb.LZ4, 1):
            return (body,)
        data, ends = encoder.encode(column(payloads), own_keys, 100, NOW, per_entry, own_fields)
        return body, data, list(ends)

    def in_buffer(values: list[bytes]) -> Any:
        return byte_values(pa.array([b"skipped", *values], kind))[1:]

    for encoder in (impl.encoder(3, "p", codec=codec), _in_a_transaction(codec)):
        assert encoded(encoder, in_buffer) == encoded(encoder, list)


def _in_a_transaction(codec: int) -> SendEncoder:
    return make_encoder(3, "p", b"", codec, compress, TxnId(1, 2))


class _Damaged:
    """What looks like a column, but has edges that are not in its bytes."""

    def __init__(self, edges: list[int]) -> None:
        self.edges = memoryview(array("q", edges))

    def joined(self) -> bytes:
        return b"abc"


@pytest.mark.parametrize("edges", [[], [0, 4], [0, 2, 1], [5, 9], [-(2**63), 2**63 - 1]], ids=str)
def test_edges_that_are_not_in_their_column_are_refused(
    impl: Implementation, edges: list[int]
) -> None:
    column: Any = _Damaged(edges)
    # Only the compiled implementation reads buffers.
    with pytest.raises(TypeError if impl.name == "python" else ValueError):
        impl.encoder(3, "p").encode(column, None, 0, NOW, 1)


def _message(payload: bytes, key: bytes | None, number: int) -> MessageFields:
    properties = [("number", str(number))] * (number % 3)
    text = None if key is None else key.decode()
    return MessageFields(payload, text, properties=properties, event_time=number)


def _fields_of(row: tuple[bytes, bytes | None, int]) -> bytes:
    return fields_of(_message(*row))


def odd(number: int) -> MessageFields:
    """Return a message with some of all fields."""
    rng = random.Random(number)
    message = MessageFields(None if number % 7 == 0 else rng.randbytes(rng.choice([0, 5, 200])))
    if number % 2:
        message.key = "k\u00e9" * rng.choice([0, 1, 100])
        message.key_is_base64 = bool(number % 3)
    if number % 5 == 1:
        message.ordering_key = rng.randbytes(number)
    if number % 3 == 1:
        message.properties = [("name", "v" * number), ("name", ""), ("\u20ac", "\u20ac")]
    message.event_time = rng.choice([0, 1, 2**41, 2**63 - 1])
    message.null_key = number % 11 == 0
    return message


@pytest.mark.parametrize("txn", [None, TxnId(3, 2**40)], ids=["no txn", "txn"])
@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4])
@pytest.mark.parametrize("version", [b"", bytes(7) + b"\x05"])
def test_messages_of_their_own_have_their_fields_as_protobuf_writes_them(
    codec: int, version: bytes, txn: TxnId | None
) -> None:
    """In another order, perhaps; without compression the compiled encoder does the same."""
    own = SendLimits("prod-\u00e9", 300, 5 << 20, codec, version, compress=compress, txn=txn)
    given = (300, "prod-\u00e9", version, codec, compress, txn)
    encoders = [PythonSendEncoder(*given)]
    if codec == pb.NONE:
        encoders.append(make_encoder(*given))  # type: ignore[arg-type]
    messages = [odd(number) for number in range(300)]
    pairs = [encode_fields(message, unbatched=True) for message in messages]
    columns = [key_field(b"", key, True) if fields is None else fields for key, fields in pairs]
    payloads = [message.payload or b"" for message in messages]
    for encoder in encoders:
        data, ends = encoder.encode(payloads, None, 100, NOW, 1, columns)
        assert len(ends) == 300
        start = 0
        for number, (message, end) in enumerate(zip(messages, ends, strict=True), 100):
            (send,) = encode_entry(single_entry(message), number, own, NOW)
            assert parsed(data[start:end]) == parsed(b"".join(send.buffers))
            start = end


def parsed(frame: bytes) -> tuple[pb.BaseCommand, pb.MessageMetadata, bytes]:
    """Return a SEND as a broker reads it."""
    command, metadata, payload = parse_frame(frame)
    return command, pb.MessageMetadata.FromString(metadata), payload


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 300])
def test_an_entry_of_its_own_is_the_same_with_its_payload_apart(
    impl: Implementation, codec: int, keyed: bool, count: int
) -> None:
    own = SendLimits("p", 3, 5 << 20, codec, compress=compress)
    encoder = impl.encoder(3, "p", codec=codec)
    payloads, keys = random_columns(count, count, keyed)
    body = encoder.body(payloads, keys, 5)
    assert body == encode_uniform_batch(payloads, 5, keys)
    key = None if keys is None else keys[0]
    head, payload = encoder.frame(payloads[0] if count == 1 else body, 5, NOW, key, count)
    (expected,) = expected_frames(payloads, keys, 5, count, own)
    assert head + bytes(payload) == expected


def test_the_metadata_of_an_entry_is_no_larger_than_its_bound(impl: Implementation) -> None:
    encoder = impl.encoder(2**63, "p" * 300, bytes(8), pb.ZLIB)
    head, payload = encoder.frame(b"x" * 100, 2**63 - 2000, 2**50, None, 1000)
    _, metadata_bytes, found = parse_frame(bytes(head) + bytes(payload))
    assert len(metadata_bytes) <= encoder.overhead
    assert found == payload


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("per_entry", [1, 2, 10])
@pytest.mark.parametrize("txn", [TxnId(0, 0), TxnId(3, 2**40)])
def test_columns_of_a_transaction_become_the_very_bytes_that_protobuf_makes(
    codec: int, keyed: bool, per_entry: int, txn: TxnId
) -> None:
    own = SendLimits("p", 300, 5 << 20, codec, b"version", compress=compress, txn=txn)
    encoder = make_encoder(300, "p", b"version", codec, compress, txn)
    payloads, keys = random_columns(37, 1, keyed)
    data, ends = encoder.encode(payloads, keys, 100, NOW, per_entry)
    frames = expected_frames(payloads, keys, 100, per_entry, own)
    assert data == b"".join(frames)
    assert list(ends) == list(itertools.accumulate(map(len, frames)))
    assert max(map(len, keys or [b""])) + encoder.overhead >= max(
        len(parse_frame(frame)[1]) for frame in frames
    )


# --- blocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("per_entry", [1, 3, 10])
@pytest.mark.parametrize("keyed", [False, True])
def test_blocks_make_up_a_column_in_whole_entries_within_bounds(
    per_entry: int, keyed: bool
) -> None:
    rng = random.Random(per_entry)
    sizes = [rng.choice([0, 10, 100, 5_000, LARGE_ENTRY, 3 * BLOCK_BYTES]) for _ in range(500)]
    payloads = [bytes(size) for size in [*sizes, *[100] * 5000]]
    keys = [bytes(20)] * len(payloads) if keyed else None
    in_buffers = UniformMessages(_in_a_buffer(payloads), keys and _in_a_buffer(keys))
    start, blocks = 0, 0
    while start < len(payloads):
        stop, largest = block_of(UniformMessages(payloads, keys), per_entry, start, 2000)
        assert (stop, largest) == block_of(in_buffers, per_entry, start, 2000)
        entries = [
            sum(map(len, payloads[at : min(at + per_entry, stop)]))
            for at in range(start, stop, per_entry)
        ]
        assert stop == len(payloads) or (stop - start) % per_entry == 0
        assert stop - start <= 2000
        assert max(entries) <= largest
        assert len(entries) == 1 or (largest < LARGE_ENTRY and sum(entries) <= BLOCK_BYTES)
        start, blocks = stop, blocks + 1
    # Large ones are alone, small ones together.
    assert blocks < 500


def _in_a_buffer(values: list[bytes]) -> Any:
    return byte_values(pa.array(values, pa.binary()))


def test_small_messages_before_a_large_one_make_a_block() -> None:
    messages = UniformMessages([b"x"] * 100 + [bytes(LARGE_ENTRY)] + [b"x"] * 100)
    assert block_of(messages, 1, 0, 2000)[0] == 100
    assert block_of(messages, 1, 100, 2000)[0] == 101
    assert block_of(messages, 1, 101, 2000)[0] == 201
