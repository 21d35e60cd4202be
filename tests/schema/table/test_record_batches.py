"""Record batches: limits, schema, and values that do not decode."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.errors import CorruptBatch, CorruptMessage
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.table import names
from pulsar_spark.schema.table.record_batches import (
    CORRUPT,
    DROPMALFORMED,
    FAILFAST,
    PERMISSIVE,
    Projection,
    PublishTimes,
    RecordBatchBuilder,
)
from tests.schema.table.entries import TOPIC, batch, batches_of, message, single

STRING = SchemaInfo(pb.Schema.String, "String")

TYPES: dict[str, pa.DataType] = {
    "value": pa.binary(),
    names.KEY: pa.binary(),
    names.TOPIC: pa.string(),
    "__batchIndex": pa.int32(),
    names.PUBLISH_TIME: pa.timestamp("us", tz="UTC"),
    names.PROPERTIES: pa.map_(pa.string(), pa.string()),
    CORRUPT: pa.binary(),
}


def builder(
    columns: Sequence[str] = ("value",), types: dict[str, pa.DataType] | None = None, **more: Any
) -> RecordBatchBuilder:
    known = {**TYPES, **(types or {})}
    schema = pa.schema([(name, known[name]) for name in columns])
    limits = {key: more.pop(key) for key in ("max_rows", "max_bytes") if key in more}
    return RecordBatchBuilder(schema, Projection(tuple(columns), **more), TOPIC, 3, **limits)


def build(target: RecordBatchBuilder, *entries: ReceivedEntry) -> list[pa.RecordBatch]:
    return batches_of(target, *entries)


def rows(target: RecordBatchBuilder, *entries: ReceivedEntry) -> list[dict[str, Any]]:
    return [row for part in build(target, *entries) for row in part.to_pylist()]


def test_nothing_gives_no_batch() -> None:
    assert build(builder()) == []
    assert build(builder(), batch([message(b"", compacted_out=True)])) == []


def test_columns_come_in_the_order_asked_for_with_the_schema_asked_for() -> None:
    target = builder([names.TOPIC, "value", names.PROPERTIES, "__batchIndex"])
    (found,) = build(target, batch([message(b"a", properties=[("k", "v")]), message(b"b")]))
    assert found.schema == target._schema
    assert found.to_pylist() == [
        {"__topic": TOPIC, "value": b"a", "__messageProperties": [("k", "v")], "__batchIndex": 0},
        {"__topic": TOPIC, "value": b"b", "__messageProperties": [], "__batchIndex": 1},
    ]


def test_wide_offsets_and_other_nullability_are_met() -> None:
    item = pa.field("value", pa.string(), nullable=False)
    kinds = {"value": pa.large_binary(), names.PROPERTIES: pa.map_(pa.string(), item)}
    target = builder(["value", names.PROPERTIES], kinds)
    (found,) = build(target, single(b"x", properties=[("a", "b")]))
    assert found.schema.types == list(kinds.values())


@pytest.mark.fault(91, 92)
def test_batches_have_bounded_rows_and_bytes() -> None:
    entries = [batch([message(bytes(100))] * 30, entry_id=i) for i in range(10)]
    sizes = [part.num_rows for part in build(builder(max_rows=100), *entries)]
    assert sum(sizes) == 300
    assert max(sizes) <= 100
    parts = build(builder(max_bytes=5000), *entries)
    assert sum(part.num_rows for part in parts) == 300
    assert max(part.nbytes for part in parts) <= 5000
    (large, small) = build(builder(max_bytes=5000), single(bytes(20_000)), single(b"x"))
    assert (large.num_rows, small.num_rows) == (1, 1)


@pytest.mark.fault(92)
@pytest.mark.parametrize(
    "name, fields",
    [
        ("__schemaVersion", {"schema_version": b"v" * 5000}),
        ("__producerName", {"producer_name": "p" * 5000}),
        ("__replicatedFrom", {"replicated_from": "ü" * 2500}),
    ],
)
def test_texts_that_a_batch_shares_are_bounded_for_all_its_rows(
    name: str, fields: dict[str, Any]
) -> None:
    kind = pa.binary() if name == "__schemaVersion" else pa.string()
    entries = [batch([message(b"v")] * 99, entry_id=number, **fields) for number in range(3)]

    def sizes(max_bytes: int) -> list[int]:
        target = builder([name, "value"], {name: kind}, max_bytes=max_bytes)
        found = build(target, *entries)
        assert pa.Table.from_batches(found)[name].unique().to_pylist() == list(fields.values())
        return [part.num_rows for part in found]

    assert sizes(20_000) == [3] * 99
    assert sizes(1000) == [1] * 297
    assert sizes(4 << 20) == [297]
    assert len(build(builder(max_bytes=20_000), *entries)) == 1


def test_small_entries_share_a_batch() -> None:
    (found,) = build(builder(), *(single(b"%d" % i, entry_id=i) for i in range(5000)))
    assert found.num_rows == 5000


def test_entries_that_were_published_before_or_after_are_left_out() -> None:
    entries = [
        batch([message(b"a", partition_key="k"), message(b"b")], publish_time=5),
        batch([message(b"c", partition_key="k")], publish_time=6),
        single(b"d", publish_time=6, partition_key="k"),
        single(b"e", publish_time=7),
    ]
    wanted = builder(times=PublishTimes(6, 7))
    assert [row["value"] for row in rows(wanted, *entries)] == [b"c", b"d"]


@pytest.mark.fault(35)
def test_a_damaged_batch_is_an_error() -> None:
    with pytest.raises(CorruptBatch):
        build(builder(), batch([message(b"a")], num_messages_in_batch=2))


TEXT = {"value": pa.string(), CORRUPT: pa.string()}
MIXED = [
    batch([message("grün".encode()), message(b"\xff\xfe"), message(None), message(b"")]),
    single(b"\x80", entry_id=1),
    single(b"end", entry_id=2),
]


@pytest.mark.fault(95)
def test_text_is_text_and_null_stays_null() -> None:
    entry = batch([message("grün 😀".encode()), message(None), message(b"")])
    found = rows(builder(types=TEXT, schema=STRING), entry)
    assert [row["value"] for row in found] == ["grün 😀", None, ""]


@pytest.mark.fault(33)
def test_bytes_that_are_no_text_fail_with_topic_and_id() -> None:
    with pytest.raises(CorruptMessage, match="not UTF-8") as caught:
        build(builder(types=TEXT, schema=STRING, mode=FAILFAST), *MIXED)
    assert caught.value.topic == TOPIC
    assert caught.value.message_id == "7:0:3:1"


def test_permissive_gives_null_and_keeps_the_bytes_in_the_column_for_them() -> None:
    columns = ["value", CORRUPT, "__batchIndex"]
    as_text = rows(builder(columns, TEXT, schema=STRING, mode=PERMISSIVE), *MIXED)
    assert [row["value"] for row in as_text] == ["grün", None, None, "", None, "end"]
    assert [row[CORRUPT] for row in as_text] == [None, "��", None, None, "�", None]
    kinds = {**TEXT, CORRUPT: pa.binary()}
    as_bytes = rows(builder(columns, kinds, schema=STRING, mode=PERMISSIVE), *MIXED)
    assert [row[CORRUPT] for row in as_bytes] == [None, b"\xff\xfe", None, None, b"\x80", None]


def test_dropmalformed_drops_the_rows_whatever_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        found = rows(builder(["__batchIndex"], TEXT, schema=STRING, mode=DROPMALFORMED), *MIXED)
    assert [row["__batchIndex"] for row in found] == [0, 2, 3, -1]
    assert "2 values" in caplog.text


def test_values_that_are_not_asked_for_are_not_decoded() -> None:
    found = rows(builder(["__batchIndex"], TEXT, schema=STRING, mode=FAILFAST), *MIXED)
    assert len(found) == 6


@pytest.mark.fault(98)
def test_a_projection_is_plain_data() -> None:
    projection = Projection(("value",), STRING, PERMISSIVE, PublishTimes(1, 2))
    assert pickle.loads(pickle.dumps(projection)) == projection
