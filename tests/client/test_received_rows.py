"""Messages that are taken together have the same fields as when taken one by one."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.client.message import Message, messages_of, messages_of_rows
from pulsar_spark.client.schema import BytesSchema
from pulsar_spark.client.values import MessageValues
from pulsar_spark.engine.codecs import compress
from pulsar_spark.engine.consumers.entries import EntryDecoder
from pulsar_spark.engine.consumers.rows import RowDecoder
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock, encode_raw_payload_command
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from tests import brief
from tests.engine.topics import stored_entry
from tests.protocol.conftest import impl
from tests.protocol.implementations import Implementation

__all__ = ["impl"]

TOPIC = "persistent://public/default/t-partition-3"
LIMIT = 1 << 20
FAR = 253_402_300_799_999


def message(payload: bytes | None = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
    """A message of a batch, or outside of one."""
    if payload is None:
        fields["null_value"] = True
    return fields, payload or b""


def entry(
    *messages: tuple[dict[str, Any], bytes],
    codec: int = pb.NONE,
    true: bytes = b"\x01",
    **fields: Any,
) -> bytes:
    """A stored entry: a batch, or with `alone` its only message without a batch.

    `true` is how the mark of a key in base64 is encoded.
    """
    if fields.pop("alone", False):
        ((own, payload),) = messages
        stored = stored_entry(_packed(payload, codec, fields), **fields, **own, checksum=False)
        stored = stored.replace(b"\x88\x01\x01", b"\x88\x01" + true)
        return b"\x0e\x01" + crc32c(stored).to_bytes(4, "big") + stored
    parts = []
    for own, payload in messages:
        metadata = pb.SingleMessageMetadata(payload_size=len(payload), **own).SerializeToString()
        metadata = metadata.replace(b"\x30\x01", b"\x30" + true)
        parts += [len(metadata).to_bytes(4, "big"), metadata, payload]
    body = _packed(b"".join(parts), codec, fields)
    return stored_entry(body, num_messages_in_batch=len(messages), **fields)


def _packed(body: bytes, codec: int, fields: dict[str, Any]) -> bytes:
    if codec == pb.NONE:
        return body
    fields |= {"compression": codec, "uncompressed_size": len(body)}
    return bytes(compress(codec, body))


def block(*entries: bytes, redeliveries: Sequence[int] = ()) -> MessageBlock:
    frames = []
    for number, stored in enumerate(entries):
        where = pb.MessageIdData(ledgerId=7, entryId=number + 120, partition=3)
        count = redeliveries[number] if redeliveries else None
        command = brief.message(5, where, redelivery_count=count)
        frames.append(b"".join(map(bytes, encode_raw_payload_command(command, stored))))
    data = b"".join(frames)
    return MessageBlock(5, data, 0, len(data), len(frames))


def together(impl: Implementation, found: MessageBlock, most: int = 1000) -> list[Message]:
    """All messages of a block, none of which has to be opened."""
    decoder = RowDecoder(TOPIC, 3, most, LIMIT, impl.make)
    messages: list[Message] = []
    at = found.start
    while at < found.stop:
        rows, progress = decoder.take(found, at, EARLIEST_POSITION)
        at = progress.at
        assert rows is not None
        assert 0 < rows.rows <= most
        messages += messages_of_rows(rows, MessageValues(BytesSchema()))
    return messages


def one_by_one(found: MessageBlock) -> list[Message]:
    decoder = EntryDecoder(TOPIC, EARLIEST_POSITION, None, LIMIT, in_order=False)
    messages: list[Message] = []
    for frame in found.frames():
        opened = decoder.decode(frame)
        assert opened is not None
        messages += messages_of(opened, MessageValues(BytesSchema()))
    return messages


def told(found: Message) -> tuple[Any, ...]:
    """All fields of a message."""
    fields = found.fields()
    return (
        found.data(),
        found.value(),
        found.has_null_value(),
        found.message_id(),
        found.message_id().unwrap(),
        found.message_id().serialize(),
        pickle.loads(pickle.dumps(found.message_id())),
        hash(found.message_id()),
        found.topic_name(),
        found.partition_key(),
        found.ordering_key(),
        found.properties(),
        found.publish_timestamp(),
        found.event_timestamp(),
        found.redelivery_count(),
        found.schema_version(),
        found.producer_name(),
        found.encryption_context(),
        fields.HasField("partition_key"),
        fields.partition_key_b64_encoded,
        fields.null_value,
        repr(found).removeprefix("Message"),
    )


CASES = {
    "alone": [entry(message(b"one"), alone=True), entry(message(b"two"), alone=True)],
    "batch": [entry(message(b"one"), message(b"two")), entry(message(b"three"))],
    "mixed": [entry(message(b"one"), message(b"")), entry(message(b"x"), alone=True)],
    "null": [entry(message(None), message(b"")), entry(message(None), alone=True)],
    "key": [
        entry(message(b"a", partition_key="kéy"), message(b"b", partition_key="")),
        entry(message(b"c", partition_key="alone"), alone=True),
    ],
    "key in base64": [
        entry(
            message(b"a", partition_key="YWJj", partition_key_b64_encoded=True),
            message(b"b", partition_key="abc"),
        ),
        entry(message(b"c", partition_key="YWJj", partition_key_b64_encoded=True), alone=True),
        entry(message(b"d", partition_key="abc"), alone=True),
    ],
    "key in base64, oddly marked": [
        entry(
            message(b"a", partition_key="YWJj", partition_key_b64_encoded=True),
            message(b"b", partition_key="YWJj"),
            true=b"\x02",
        ),
        entry(
            message(b"c", partition_key="YWJj", partition_key_b64_encoded=True),
            alone=True,
            true=b"\x02",
        ),
    ],
    "key in base64, compressed": [
        entry(
            message(b"a" * 50, partition_key="YWJj", partition_key_b64_encoded=True),
            message(b"a" * 50, partition_key="abc"),
            codec=pb.LZ4,
        ),
    ],
    "times": [
        entry(message(b"a", event_time=5), message(b"b")),
        entry(message(b"c", event_time=FAR), message(b"b", event_time=FAR + 1)),
        entry(message(b"d", event_time=FAR + 1), alone=True, publish_time=FAR + 1),
        entry(message(b"e", event_time=2**63 - 1), alone=True, publish_time=FAR),
        entry(message(b"f", event_time=7), alone=True),
    ],
    "times, compressed": [
        entry(message(b"f" * 50, event_time=FAR + 5), message(b"f" * 50), codec=pb.ZLIB),
    ],
    "properties": [
        entry(
            message(
                b"a",
                properties=[pb.KeyValue(key="a", value="1"), pb.KeyValue(key="a", value="2")],
            ),
            message(b"b"),
        ),
        entry(message(b"c", properties=[pb.KeyValue(key="é", value="")]), alone=True),
    ],
    "rare": [
        entry(message(b"a", ordering_key=b"\xff\0"), schema_version=b"\0\x80"),
        entry(message(b"b", ordering_key=b"o"), alone=True, schema_version=b"\0\x01"),
        entry(message(b"c"), alone=True),
    ],
    "bytes like those of fields": [
        entry(message(b"\x30\x01\x88\x01\x01\x40\x01\x48", partition_key="k")),
        entry(message(b"\x28" + b"\xff" * 8, partition_key="k"), alone=True),
    ],
    "compressed": [
        entry(message(b"z" * 100), message(b"y" * 100), codec=pb.LZ4),
        entry(message(b"z" * 100), alone=True, codec=pb.ZSTD),
    ],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("most", [1000, 1])
def test_messages_taken_together_say_the_same(impl: Implementation, name: str, most: int) -> None:
    found = block(*CASES[name])
    assert list(map(told, together(impl, found, most))) == list(map(told, one_by_one(found)))


def test_redeliveries_are_counted(impl: Implementation) -> None:
    found = block(*CASES["alone"], redeliveries=[0, 4])
    assert [each.redelivery_count() for each in together(impl, found)] == [0, 4]
    rows, _ = RowDecoder(TOPIC, 3, 10, LIMIT, impl.make).take(found, 0, EARLIEST_POSITION)
    assert rows is not None
    assert rows.redelivered


def test_what_lies_before_a_place_is_opened_entry_by_entry(impl: Implementation) -> None:
    found = block(entry(message(b"a"), message(b"b")), entry(message(b"c")))
    for floor in (Position(7, 120, 1), Position(7, 121), Position(8, 0)):
        decoder = RowDecoder(TOPIC, 3, 10, LIMIT, impl.make)
        rows, progress = decoder.take(found, 0, floor)
        assert (rows, progress.at) == (None, found.stop)
        assert not decoder.suits(found, 0)
    rows, _ = RowDecoder(TOPIC, 3, 10, LIMIT, impl.make).take(found, 0, Position(7, 120))
    assert rows is not None


def test_an_entry_that_comes_again_is_opened_entry_by_entry(impl: Implementation) -> None:
    first, second = (block(each).data for each in (entry(message(b"a")), entry(message(b"b"))))
    twice = MessageBlock(5, first + second, 0, len(first + second), 2)
    decoder = RowDecoder(TOPIC, 3, 10, LIMIT, impl.make)
    # All of them are, so none is decoded in vain again and again.
    rows, progress = decoder.take(twice, 0, EARLIEST_POSITION)
    assert (rows, progress.at) == (None, twice.stop)
    assert not any(decoder.suits(twice, at) for at in (0, len(first)))


def test_damage_is_opened_entry_by_entry(impl: Implementation) -> None:
    whole = block(entry(message(b"a"), alone=True), entry(message(b"b"), alone=True))
    data = whole.data[:-1] + b"?"
    damaged = MessageBlock(5, data, 0, len(data), 2)
    decoder = RowDecoder(TOPIC, 3, 10, LIMIT, impl.make)
    rows, progress = decoder.take(damaged, 0, EARLIEST_POSITION)
    assert rows is not None
    assert [each.data() for each in messages_of_rows(rows, MessageValues(BytesSchema()))] == [b"a"]
    at = progress.at
    rows, progress = decoder.take(damaged, at, EARLIEST_POSITION)
    assert (rows, progress.at) == (None, at)


KEYS = st.one_of(st.none(), st.text(max_size=4))
MESSAGES = st.builds(
    lambda payload, key, time, properties: message(
        payload,
        **({} if key is None else {"partition_key": key}),
        **({} if time is None else {"event_time": time}),
        properties=[pb.KeyValue(key=a, value=b) for a, b in properties],
    ),
    st.one_of(st.none(), st.binary(max_size=40)),
    KEYS,
    st.one_of(st.none(), st.integers(0, 2**63 - 1)),
    st.lists(st.tuples(st.text(max_size=2), st.text(max_size=3)), max_size=2),
)
ENTRIES = st.one_of(
    st.builds(lambda one: entry(one, alone=True), MESSAGES),
    st.builds(
        lambda many, codec: entry(*many, codec=codec),
        st.lists(MESSAGES, min_size=1, max_size=5),
        st.sampled_from([pb.NONE, pb.LZ4]),
    ),
)


@given(entries=st.lists(ENTRIES, min_size=1, max_size=6), most=st.sampled_from([1, 2, 3, 100]))
def test_any_messages_taken_together_say_the_same(entries: list[bytes], most: int) -> None:
    from pulsar_spark.protocol.implementation import native

    impl = Implementation("in use", native)
    found = block(*entries)
    assert list(map(told, together(impl, found, most))) == list(map(told, one_by_one(found)))


@pytest.mark.parametrize(
    "stored, expected",
    [
        (entry(*[message(b"x" * 100, partition_key="k")] * 800), True),
        (entry(*[message(b"x" * 15_000)]), True),
        (entry(*[message(b"x" * 5_000)] * 20), False),
        (entry(message(b"x" * 20_000), alone=True), False),
        (entry(*[message(b"x" * 100)] * 2_000), False),
        (b"\xff" * 30_000, False),
    ],
    ids=["small ones", "a small frame", "large ones", "a large one", "a huge batch", "damaged"],
)
def test_batches_of_small_messages_are_taken_as_rows_though_their_frames_are_large(
    stored: bytes, expected: bool
) -> None:
    found = block(stored, stored)
    assert RowDecoder(TOPIC, 3, 1000, LIMIT).suits(found, 0) is expected
