"""Columns of messages to send, and a message's fields as bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import InvalidRow, WrongType
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.outgoing_messages import (
    MessageFields,
    OutgoingMessages,
    encode_fields,
    fields_in_batch,
    fields_outside,
)
from pulsar_spark.schema.arrow.byte_column import byte_values
from tests.outgoing import messages_in

texts = st.text(max_size=20)
in_batches = st.builds(
    MessageFields,
    payload=st.none() | st.binary(max_size=200),
    key=st.none() | texts,
    ordering_key=st.none() | st.binary(max_size=20),
    properties=st.lists(st.tuples(texts, texts), max_size=3),
    event_time=st.integers(0, 2**63 - 1),
    null_key=st.booleans(),
)


def fields(message: MessageFields) -> pb.MessageMetadata:
    found = pb.MessageMetadata()
    found.MergeFromString(encode_fields(message)[1])
    return found


def test_a_message_has_all_its_fields_in_bytes() -> None:
    message = MessageFields(
        None,
        "AAE=",
        key_is_base64=True,
        ordering_key=b"\x00\xff",
        properties=[("a", "1"), ("a", "2"), ("", "")],
        event_time=1234,
        null_key=True,
        deliver_at=5678,
        replicate_to=("r1", "r2"),
        txn=TxnId(2, 9),
    )
    found = fields(message)
    assert encode_fields(message)[0] == b"AAE="
    assert found.partition_key_b64_encoded
    assert found.ordering_key == b"\x00\xff"
    pairs = [(pair.key, pair.value) for pair in found.properties]
    assert pairs == [("a", "1"), ("a", "2"), ("", "")]
    assert (found.event_time, found.deliver_at_time) == (1234, 5678)
    assert list(found.replicate_to) == ["r1", "r2"]
    assert (found.txnid_most_bits, found.txnid_least_bits) == (2, 9)
    assert found.null_value
    assert found.null_partition_key
    assert message.goes_alone


@pytest.mark.fault(95)
@pytest.mark.parametrize("key", ["", "\x00", "😀", "k" * 500])
def test_any_text_is_a_key(key: str) -> None:
    assert encode_fields(MessageFields(b"", key)) == (key.encode(), b"")


@pytest.mark.fault(95)
def test_a_message_without_fields_has_none() -> None:
    assert encode_fields(MessageFields(b"x")) == (None, b"")
    assert not MessageFields(b"x").goes_alone


@pytest.mark.fault(95)
@pytest.mark.parametrize(
    "fields, kind",
    [
        ({"key": "\ud800"}, InvalidRow),
        ({"properties": [("a", "\udfff")]}, InvalidRow),
        ({"event_time": -1}, InvalidRow),
        ({"event_time": 2**64}, InvalidRow),
        ({"deliver_at": 2**63}, InvalidRow),
        ({"properties": [("a", 1)]}, WrongType),
        ({"properties": [("a", None)]}, WrongType),
        ({"properties": [(None, "a")]}, WrongType),
        ({"key": b"k"}, WrongType),
        ({"event_time": "1"}, WrongType),
    ],
    ids=str,
)
def test_what_no_message_can_have_is_an_error(
    fields: dict[str, Any], kind: type[InvalidRow]
) -> None:
    with pytest.raises(kind, match="cannot be sent") as raised:
        encode_fields(MessageFields(b"", **fields))
    assert type(raised.value) is kind


def test_a_property_of_the_brokers_is_not_sent() -> None:
    own = [("a", "1"), ("__MSG_PROP_REPL_SOURCE_POSITION", "3:7"), ("b", "2")]
    found = fields(MessageFields(b"", properties=own)).properties
    assert [(pair.key, pair.value) for pair in found] == [("a", "1"), ("b", "2")]
    assert encode_fields(MessageFields(b"", properties=own[1:2])) == (None, b"")


@given(in_batches)
def test_fields_are_the_same_after_a_batch(message: MessageFields) -> None:
    message.key_is_base64 = message.key is not None and message.null_key
    key, own = encode_fields(message)
    metadata = fields_in_batch(own)
    if key is not None:
        metadata.partition_key = key.decode()
    assert fields_outside(metadata) == (key, own)


# --- columns ----------------------------------------------------------------------------------


@given(st.lists(in_batches, max_size=8), st.integers(0, 8))
def test_messages_are_the_same_when_they_leave_their_columns(
    messages: list[MessageFields], cut: int
) -> None:
    columns = OutgoingMessages.of(messages)
    assert messages_in(columns) == messages
    assert messages_in(columns.copy(cut, len(messages))) == messages[cut:]
    rows = range(len(messages))[::-2]
    assert messages_in(columns.take(rows)) == messages[::-2]
    joined = OutgoingMessages.of(messages[:cut])
    joined.extend(OutgoingMessages.of(messages[cut:]))
    assert messages_in(joined) == messages


def test_columns_begin_with_the_first_message_that_needs_them() -> None:
    columns = OutgoingMessages([])
    columns.append(b"1", None, b"", None)
    assert (columns.keys, columns.fields) == (None, None)
    columns.append(b"2", b"k", b"", None)
    columns.append(b"3", None, b"\x60\x05", None)
    assert columns.keys == [None, b"k", None]
    assert columns.fields == [b"", b"", b"\x60\x05"]


def test_what_is_joined_keeps_who_is_told() -> None:
    columns = OutgoingMessages([b"1"], callbacks=["a"])
    columns.extend(OutgoingMessages([b"2"]))
    columns.extend(OutgoingMessages([b"3"], callbacks=["c"]))
    assert columns.callbacks == ["a", None, "c"]


def test_where_messages_start_and_end_holds_for_more_messages_too() -> None:
    messages = OutgoingMessages([b"abc", b""], [b"k", b"key"])
    assert messages.edges() == [0, 4, 7]
    messages.extend(OutgoingMessages([b"de"], [b""], [b"more"]))
    assert messages.edges() == [0, 4, 7, 13]
    assert [messages.size(1, 3), messages.size(0, 0), messages.size(2, 2)] == [9, 0, 0]
    assert OutgoingMessages([b"abc", b"d"], [b"k", None]).edges() == [0, 4, 5]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_columns_in_buffers_have_the_sizes_of_lists(count: int) -> None:
    lists = [[b"abc", b"", b"d"], [b"k", b"key", b""], [b"", b"\x60\x05", b""]][:count]
    buffers = [byte_values(pa.array(own, pa.binary())) for own in lists]
    found = OutgoingMessages(*buffers).edges()  # type: ignore[arg-type]
    assert [end - found[0] for end in found] == list(OutgoingMessages(*lists).edges())  # type: ignore[arg-type]


def test_a_batch_takes_what_fits_and_at_least_one() -> None:
    messages = OutgoingMessages([bytes(100)] * 10)
    each = messages.batch_size(0, 1)
    assert [messages.fitting(2, 10, size) for size in (0, each, 3 * each + 1, 100 * each)] == [
        3, 3, 5, 10,
    ]  # fmt: skip
    assert messages.fitting(2, 4, 100 * each) == 4


def test_messages_are_grouped_by_what_decides_on_their_consumer() -> None:
    groups = OutgoingMessages.of(
        [
            MessageFields(b"", "AAE="),
            MessageFields(b"", "AAE=", properties=[("\x92\x01", "\x88\x01\x01")]),
            MessageFields(b"", "AAE=", key_is_base64=True),
            MessageFields(b"", "AAE=", ordering_key=b"o"),
            MessageFields(b"", "other", ordering_key=b"o"),
            MessageFields(b"", ordering_key=b""),
            MessageFields(b""),
        ]
    )
    found = groups.groups(0, 7)
    assert found[0] == found[1] == b"AAE="
    assert found[3] == found[4]
    assert len(set(found)) == 5


def test_runs_of_messages_that_go_alone_are_told_apart() -> None:
    messages = OutgoingMessages([b""] * 5, alone=[False, False, True, True, False])
    assert [messages.alike(start) for start in (0, 1, 2, 4)] == [
        (2, False), (2, False), (4, True), (5, False),
    ]  # fmt: skip
    assert OutgoingMessages([b""] * 5).alike(3) == (5, False)
