"""Columns of opened entries equal their messages one by one."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import CorruptMessage
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.schema.table import names
from pulsar_spark.schema.table.metadata_columns import SOURCES
from pulsar_spark.schema.table.record_batches import Projection, RecordBatchBuilder
from tests.schema.table.entries import PARTITION, TOPIC, batch, batches_of, message, single

TYPES = {
    names.VALUE: pa.binary(),
    names.TOPIC: pa.string(),
    names.PARTITION: pa.int32(),
    **{name: kind for name, (_, kind) in SOURCES.items()},
}


def column(name: str, *entries: ReceivedEntry) -> list[Any]:
    schema = pa.schema({name: TYPES[name]})
    builder = RecordBatchBuilder(schema, Projection((name,)), TOPIC, PARTITION, max_rows=10**6)
    (found,) = batches_of(builder, *entries)
    found.validate(full=True)
    return found.column(0).to_pylist()  # type: ignore[no-any-return]


MANY = 200
"""Messages of a large batch."""


@pytest.mark.fault(95)
def test_values_of_single_messages_and_batches_come_in_order() -> None:
    entries = [
        single(b"one"),
        single(None),
        single(b""),
        batch([message(b"a"), message(None), message(b"")]),
        batch([message(b"%d" % i) for i in range(MANY)]),
        single(memoryview(b"view")),  # type: ignore[arg-type]
    ]
    expected = [b"one", None, b"", b"a", None, b"", *(b"%d" % i for i in range(MANY)), b"view"]
    assert column(names.VALUE, *entries) == expected


@pytest.mark.fault(60, 62, 95)
def test_part_of_a_large_batch_with_nulls_and_removed_messages() -> None:
    messages = [
        message(None)
        if i % 7 == 0
        else message(b"", compacted_out=True)
        if i % 5 == 0
        else message(b"%d" % i)
        for i in range(MANY)
    ]
    expected = [
        (i, None if i % 7 == 0 else b"%d" % i) for i in range(10, 190) if i % 7 == 0 or i % 5 != 0
    ]
    entry = batch(messages, wanted=range(10, 190))
    assert column(names.VALUE, entry) == [value for _, value in expected]
    assert column("__batchIndex", entry) == [index for index, _ in expected]
    assert column(names.MESSAGE_ID, entry) == [
        MessageIdAdv(7, 0, 3, index, MANY).serialize() for index, _ in expected
    ]


@pytest.mark.fault(92)
def test_a_batch_of_more_messages_than_are_prepared_for() -> None:
    count = 20_001
    entry = batch([message(b"x")] * count)
    assert column(names.VALUE, entry) == [b"x"] * count
    assert (
        column(names.MESSAGE_ID, entry)[-1] == MessageIdAdv(7, 0, 3, count - 1, count).serialize()
    )


@pytest.mark.parametrize("count", [1, 3, MANY])
def test_message_ids_are_those_of_the_official_clients(count: int) -> None:
    chunked = single(b"x", entry_id=9, first_chunk=MessageIdAdv(7, 6, 3))
    assert column(
        names.MESSAGE_ID, single(b"", entry_id=300), batch([message()] * count), chunked
    ) == [
        MessageIdAdv(7, 300, 3).serialize(),
        *(MessageIdAdv(7, 0, 3, i, count).serialize() for i in range(count)),
        MessageIdAdv(7, 9, 3, first_chunk=MessageIdAdv(7, 6, 3)).serialize(),
    ]


@pytest.mark.fault(95)
def test_keys_are_bytes_and_base64_is_undone() -> None:
    entry = batch(
        [
            message(partition_key="k"),
            message(),
            message(partition_key=""),
            message(partition_key="/w==", partition_key_b64_encoded=True),
            message(partition_key="ключ 😀", event_time=5),
        ]
    )
    assert column(names.KEY, entry) == [b"k", None, b"", b"\xff", "ключ 😀".encode()]
    assert column(names.KEY, single(b"", partition_key="k"), single(b"")) == [b"k", None]
    flagged = single(b"", partition_key="/w==", partition_key_b64_encoded=True)
    assert column(names.KEY, flagged) == [b"\xff"]
    assert column(names.KEY, batch([message()] * 3)) == [None] * 3
    part = batch([message(partition_key=f"{i}") for i in range(9)], wanted=range(4, 6))
    assert column(names.KEY, part) == [b"4", b"5"]


def test_the_error_for_a_key_that_is_not_base64_names_its_message() -> None:
    claimed: dict[str, Any] = {"partition_key": "@", "partition_key_b64_encoded": True}
    for entry in (single(b"", **claimed), batch([message(b"", **claimed)])):
        with pytest.raises(CorruptMessage, match="base64") as caught:
            column(names.KEY, entry)
        assert caught.value.topic == TOPIC
        assert caught.value.message_id is not None


def utc(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, timezone.utc)


@pytest.mark.fault(94)
def test_event_times_are_null_unless_they_are_set_and_the_last_one_beyond_the_year_9999() -> None:
    entry = batch([message(event_time=1500), message(), message(event_time=0)])
    assert column(names.EVENT_TIME, entry) == [utc(1500), None, None]
    assert column(names.EVENT_TIME, batch([message()] * 2)) == [None, None]
    assert column(names.EVENT_TIME, single(b"", event_time=1500), single(b"")) == [utc(1500), None]
    last = 253_402_300_799_999
    latest = datetime(9999, 12, 31, 23, 59, 59, 999_000, timezone.utc)
    for time in (last, last + 1, 1_790_000_000_000_000, 2**63 + 5, 2**64 - 5):
        assert column(names.EVENT_TIME, single(b"", event_time=time)) == [latest]
        assert column(names.EVENT_TIME, batch([message(event_time=time), message()])) == [
            latest,
            None,
        ]


@pytest.mark.fault(94)
def test_publish_times_stand_for_all_messages_of_an_entry() -> None:
    entries = [batch([message()] * 2, publish_time=1500), single(b"", publish_time=0)]
    assert column(names.PUBLISH_TIME, *entries) == [utc(1500), utc(1500), utc(0)]
    assert column(names.PUBLISH_TIME, single(b"", publish_time=2**64 - 1))[0].year == 9999


@pytest.mark.fault(95)
def test_properties_are_maps_and_the_last_of_a_repeated_key_counts() -> None:
    entries = [
        batch(
            [
                message(properties=[("a", "1"), ("b", ""), ("a", "2")]),
                message(),
                message(event_time=5),
            ]
        ),
        batch([message()] * 2),
        single(b"", properties=[("ü", "\0")]),
        single(b""),
    ]
    assert column(names.PROPERTIES, *entries) == [
        [("a", "2"), ("b", "")],
        [],
        [],
        [],
        [],
        [("ü", "\0")],
        [],
    ]


def test_columns_of_position_and_producer() -> None:
    entries = [
        batch(
            [message(sequence_id=5, ordering_key=b"o"), message()],
            index=41,
            producer_name="mine",
            schema_version=b"\0" * 8,
            redelivery_count=2,
            replicated_from="r",
        ),
        single(b"abc", entry_id=1, sequence_id=2**64 - 1, ordering_key=b"q"),
    ]
    expected: dict[str, list[Any]] = {
        names.TOPIC: [TOPIC] * 3,
        names.PARTITION: [3, 3, 3],
        "__ledgerId": [7, 7, 7],
        "__entryId": [0, 0, 1],
        "__batchIndex": [0, 1, -1],
        "__producerName": ["mine", "mine", "p"],
        names.SEQUENCE_ID: [5, 101, -1],
        names.ORDERING_KEY: [b"o", None, b"q"],
        "__schemaVersion": [b"\0" * 8, b"\0" * 8, None],
        "__redeliveryCount": [2, 2, 0],
        "__size": [0, 0, 3],
        "__index": [40, 41, None],
        "__replicatedFrom": ["r", "r", None],
    }
    for name, wanted in expected.items():
        assert column(name, *entries) == wanted, name


@given(
    st.lists(
        st.lists(st.none() | st.binary(max_size=5), min_size=1, max_size=80),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_any_batches_give_their_payloads_and_ids(
    payloads: list[list[bytes | None]], keyed: bool
) -> None:
    entries = [
        batch(
            [
                message(payload, **({"partition_key": "k"} if keyed else {}))
                for payload in batch_payloads
            ],
            entry_id=number,
        )
        for number, batch_payloads in enumerate(payloads)
    ]
    expected = [payload for part in payloads for payload in part]
    assert column(names.VALUE, *entries) == expected
    assert column(names.MESSAGE_ID, *entries) == [
        MessageIdAdv(7, number, 3, row, len(part)).serialize()
        for number, part in enumerate(payloads)
        for row in range(len(part))
    ]
