"""Record batches of a DataFrame become messages."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pulsar_spark.errors import InvalidRow, InvalidTopicName
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.outgoing_messages import MessageFields, OutgoingMessages
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.spark.writing.columns import WriteColumns
from pulsar_spark.spark.writing.outgoing_rows import RowConverter
from pulsar_spark.spark.writing.row_encoder import RowEncoder
from tests.outgoing import messages_in

TOPIC = "persistent://public/default/t"
UTC = pa.timestamp("us", tz="UTC")


def columns_of(batch: pa.RecordBatch) -> WriteColumns:
    named = tuple(
        (name, position)
        for position, name in enumerate(batch.schema.names)
        if name.startswith("__")
    )
    kind = BinaryType() if _schema_of(batch) is None else StringType()
    frame = StructType([StructField(name, kind) for name in batch.schema.names])
    return WriteColumns((batch.schema.get_field_index("value"),), named, frame)


def batch(value: pa.Array, **columns: pa.Array) -> pa.RecordBatch:
    arrays = {"value": value, **{f"__{name}": array for name, array in columns.items()}}
    return pa.RecordBatch.from_pydict(arrays)


def convert(found: pa.RecordBatch, topic: str | None = TOPIC, **options: Any) -> OutgoingMessages:
    ((name, columns),) = convert_all(found, topic, **options)
    assert topic is None or name == topic
    return columns


def convert_all(
    found: pa.RecordBatch, topic: str | None = None, **options: Any
) -> list[tuple[str, OutgoingMessages]]:
    columns = columns_of(found)
    converter = RowConverter(columns, topic, **options)
    return [
        (part.topic, converter.messages(part, RowEncoder(columns, _schema_of(found))))
        for part in converter.split(found)
    ]


def _schema_of(found: pa.RecordBatch) -> SchemaInfo | None:
    kind = found.schema.field("value").type
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return None if binary else SchemaInfo(pb.Schema.String, "String")


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


@pytest.mark.fault(95)
@pytest.mark.parametrize(
    "values",
    [
        binary(b"a", None, b""),
        pa.array([b"a", None, b""], pa.large_binary()),
        pa.array(["a", None, ""], pa.string()),
        pa.array(["a", None, ""], pa.large_string()),
    ],
)
def test_values_are_bytes_and_null_stays_null(values: pa.Array) -> None:
    found = convert(batch(values))
    assert [message.payload for message in messages_in(found)] == [b"a", None, b""]
    assert found.keys is None


def keys_of(found: OutgoingMessages) -> list[tuple[str | None, bool]]:
    return [(message.key, message.key_is_base64) for message in messages_in(found)]


def text(*keys: str | None) -> list[tuple[str | None, bool]]:
    return [(key, False) for key in keys]


@pytest.mark.fault(95)
def test_keys_that_are_text_are_sent_as_text_and_others_as_bytes() -> None:
    values = binary(b"", b"", b"", b"")
    texts = convert(batch(values, key=pa.array(["a", None, "", "ключ"])))
    assert keys_of(texts) == text("a", None, "", "ключ")
    valid = convert(batch(values, key=binary(b"a", None, b"", "ключ".encode())))
    assert keys_of(valid) == text("a", None, "", "ключ")
    mixed = convert(batch(values, key=binary(b"a", None, b"\xff\xfe", b"")))
    assert keys_of(mixed) == [*text("a", None), ("//4=", True), *text("")]
    for column in (pa.array(["a", "ключ"]), binary(b"a", "ключ".encode())):
        assert keys_of(convert(batch(binary(b"", b""), key=column))) == text("a", "ключ")
    # As some functions of Spark make them.
    wrong = pa.Array.from_buffers(pa.string(), 2, binary(b"a", b"\xff").buffers())
    assert keys_of(convert(batch(binary(b"", b""), key=wrong))) == [*text("a"), ("/w==", True)]
    assert convert(batch(values, key=pa.nulls(4, pa.binary()))).keys is None


def test_key_encoding_bytes_sends_all_keys_as_bytes() -> None:
    values = binary(b"", b"", b"")
    for keys in (pa.array(["a", None, "ü"]), binary(b"a", None, "ü".encode())):
        found = convert(batch(values, key=keys), keys_as_bytes=True)
        assert keys_of(found) == [("YQ==", True), *text(None), ("w7w=", True)]


def test_times_are_milliseconds() -> None:
    values = binary(b"", b"", b"")
    moments = [datetime(2026, 11, 20, tzinfo=timezone.utc), None, 1_500_999]
    as_time = pa.array([moments[0], None, None], UTC)
    found = convert(batch(values, eventTime=as_time, deliverAt=as_time))
    for name in ("event_time", "deliver_at"):
        times = [getattr(message, name) for message in messages_in(found)]
        assert times == [1_795_132_800_000, 0, 0]
    assert found.alone == [True, False, False]
    micros = pa.array([1_500_999, 0, None], pa.int64()).cast(UTC)
    assert event_times(batch(values, eventTime=micros)) == [1500, 0, 0]
    as_long = pa.array([5, None, 0], pa.int64())
    assert event_times(batch(values, eventTime=as_long)) == [5, 0, 0]
    other_zone = pa.array([1_000_000], pa.int64()).cast(pa.timestamp("us", tz="Asia/Tokyo"))
    assert event_times(batch(binary(b""), eventTime=other_zone)) == [1000]
    assert convert(batch(values, eventTime=pa.nulls(3, UTC))).fields is None


def event_times(found: pa.RecordBatch) -> list[int]:
    return [message.event_time for message in messages_in(convert(found))]


@pytest.mark.fault(95)
def test_a_row_takes_from_every_column() -> None:
    kind = pa.map_(pa.string(), pa.string())
    found = convert(
        batch(
            binary(b"1", None, b""),
            key=pa.array(["k", "", "ключ"]),
            eventTime=pa.array([7, None, 0], pa.int64()),
            messageProperties=pa.array([[("b", "1"), ("a", ""), ("b", "2")], None, []], kind),
            orderingKey=binary(b"o", None, b""),
            sequenceId=pa.array([5, None, 0], pa.int64()),
            deliverAt=pa.array([None, 0, 9], pa.int64()),
        )
    )
    assert messages_in(found) == [
        MessageFields(
            b"1",
            "k",
            properties=[("b", "1"), ("a", ""), ("b", "2")],
            event_time=7,
            ordering_key=b"o",
            sequence_id=5,
        ),
        MessageFields(None, "", properties=[]),
        MessageFields(b"", "ключ", ordering_key=b"", properties=[], sequence_id=0, deliver_at=9),
    ]
    assert found.alone == [False, False, True]


@pytest.mark.fault(95)
@pytest.mark.parametrize("rest", [{}, {"eventTime": pa.array([7, 8, 9], pa.int64())}])
@pytest.mark.parametrize("keys", [["a", "b", "a"], ["", None, "a"], [None] * 3])
def test_null_values_are_fields_too(rest: dict[str, pa.Array], keys: list[str | None]) -> None:
    columns = rest | {"key": pa.array(keys, pa.string())}
    found = convert(batch(binary(b"1", None, b""), **columns))
    assert list(found.payloads) == [b"1", b"", b""]
    times = rest["eventTime"].to_pylist() if rest else [0] * 3
    assert messages_in(found) == [
        MessageFields(payload, key, event_time=time, properties=[])
        for payload, key, time in zip([b"1", None, b""], keys, times, strict=True)
    ]


@pytest.mark.fault(95)
@pytest.mark.parametrize("rows", [pa.array([0, 1, 2]), pa.array([1, 2])])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string()])
def test_some_messages_may_have_no_key(kind: pa.DataType, rows: pa.Array) -> None:
    keys = pa.array(["a", None, ""]).cast(kind)
    found = convert(batch(binary(b"1", b"2", b"3"), key=keys).take(rows))
    expected = [(b"1", "a"), (b"2", None), (b"3", "")][-len(rows) :]
    assert [(message.payload, message.key) for message in messages_in(found)] == expected


@pytest.mark.fault(95)
@pytest.mark.parametrize("name,value", [(b"a", b"\xff"), (b"\xff", b"a")])
def test_a_property_that_is_not_utf8_is_refused_by_its_row(name: bytes, value: bytes) -> None:
    raw = pa.array([[], [(b"a", b"b"), (name, value)]], pa.map_(pa.binary(), pa.binary()))
    text = pa.MapArray.from_arrays(
        raw.offsets, raw.keys.view(pa.string()), raw.items.view(pa.string())
    )
    with pytest.raises(InvalidRow, match=r"row 1: a property .* is not UTF-8"):
        convert(batch(binary(b"", b""), messageProperties=text))


def test_a_topic_that_is_not_utf8_is_refused_by_its_row() -> None:
    topics = pa.array([b"a", b"\xff"]).view(pa.string())
    with pytest.raises(InvalidTopicName, match="row 1: __topic is not UTF-8"):
        convert_all(batch(binary(b"", b""), topic=topics))


def test_a_property_of_the_brokers_is_not_sent() -> None:
    own = ("__MSG_PROP_REPL_SOURCE_POSITION", "3:7")
    rows = [[("left", "out")], [("a", "1"), own, ("b", "2")], [own], None, [], [("c", "3")]]
    column = pa.array(rows, pa.map_(pa.string(), pa.string()))
    whole = batch(binary(*[b""] * len(rows)), messageProperties=column)
    expected = [[("a", "1"), ("b", "2")], [], [], [], [("c", "3")]]
    found = messages_in(convert(whole.slice(1)))
    assert [message.properties for message in found] == expected
    (only,) = messages_in(convert(whole.slice(2, 1)))
    assert only.properties == []


def test_columns_that_say_nothing_are_left_out() -> None:
    kind = pa.map_(pa.string(), pa.string())
    found = convert(
        batch(
            binary(b"", b""),
            messageProperties=pa.array([[], None], kind),
            orderingKey=pa.nulls(2, pa.binary()),
            sequenceId=pa.nulls(2, pa.int64()),
            deliverAt=pa.nulls(2, UTC),
        )
    )
    assert (found.fields, found.sequence_ids, found.alone) == (None, None, None)


@pytest.mark.fault(77, 94)
@pytest.mark.parametrize(
    "columns,told",
    [
        ({"eventTime": pa.array([1, -1], pa.int64())}, "row 1: __eventTime lies before 1970"),
        ({"eventTime": pa.array([0, -1], pa.int64()).cast(UTC)}, "row 1: __eventTime"),
        ({"deliverAt": pa.array([-5, None], pa.int64()).cast(UTC)}, "row 0: __deliverAt"),
        ({"sequenceId": pa.array([0, -7], pa.int64())}, "row 1: __sequenceId is negative"),
        (
            {
                "messageProperties": pa.array(
                    [[("a", "b")], [("k", None)]], pa.map_(pa.string(), pa.string())
                )
            },
            "row 1: the property 'k'",
        ),
        ({"topic": pa.array(["t", None])}, "row 1: __topic is null"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(columns: dict[str, pa.Array], told: str) -> None:
    found = batch(binary(b"", b""), **columns)
    with pytest.raises(InvalidRow) as caught:
        convert_all(found, None if "topic" in columns else TOPIC)
    assert told in str(caught.value)


def test_rows_are_numbered_over_all_batches_of_a_task() -> None:
    good = batch(binary(b"", b""), sequenceId=pa.array([1, 2], pa.int64()))
    bad = batch(binary(b"", b""), sequenceId=pa.array([1, -2], pa.int64()))
    columns = columns_of(good)
    converter = RowConverter(columns, TOPIC)
    (part,) = converter.split(good)
    converter.messages(part, RowEncoder(columns, None))
    assert converter.rows == 2
    (part,) = converter.split(bad)
    with pytest.raises(InvalidRow, match="row 3"):
        converter.messages(part, RowEncoder(columns, None))


def test_each_topic_gets_its_rows_in_their_order() -> None:
    topics = pa.array(["t", "u", TOPIC, "persistent://a/b/v", "u", "t"])
    found = convert_all(batch(binary(b"0", b"1", b"2", b"3", b"4", b"5"), topic=topics))
    assert [(name, list(columns.payloads)) for name, columns in found] == [
        (TOPIC, [b"0", b"2", b"5"]),
        ("persistent://public/default/u", [b"1", b"4"]),
        ("persistent://a/b/v", [b"3"]),
    ]


def test_the_option_topic_wins_over_the_column() -> None:
    found = batch(binary(b"0", b"1"), topic=pa.array(["other", None]))
    assert list(convert(found, TOPIC).payloads) == [b"0", b"1"]


def test_a_row_of_one_topic_is_named_by_its_number_in_the_task() -> None:
    found = batch(
        binary(b"", b"", b""),
        topic=pa.array(["t", "u", "t"]),
        sequenceId=pa.array([1, 1, -1], pa.int64()),
    )
    with pytest.raises(InvalidRow, match="row 2"):
        convert_all(found)


@pytest.mark.fault(65)
def test_a_topic_that_is_none_is_an_error_that_names_the_row() -> None:
    topics = pa.array(["t", "u", "t", "ftp://a/b/c", "ftp://a/b/c"])
    with pytest.raises(InvalidTopicName, match=r"row 3: the column __topic: .*ftp"):
        convert_all(batch(binary(*[b""] * 5), topic=topics))


def test_slices_and_dictionaries_are_read_right() -> None:
    topics = pa.array(["x", "t", "u", "t"]).dictionary_encode().cast(pa.string())
    whole = batch(
        binary(b"0", b"1", b"2", b"3"),
        topic=topics,
        messageProperties=pa.array(
            [[("bad", None)], [("a", "1")], [], None], pa.map_(pa.string(), pa.string())
        ),
    )
    found = convert_all(whole.slice(1))
    assert [(name[-1], messages_in(own)) for name, own in found] == [
        ("t", [MessageFields(b"1", properties=[("a", "1")]), MessageFields(b"3", properties=[])]),
        ("u", [MessageFields(b"2", properties=[])]),
    ]


def test_writing_does_not_import_pandas() -> None:
    script = """
import sys
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType
from pulsar_spark.schema.arrow.arrays import binaries, build_array, integers, strings
from pulsar_spark.spark.writing.columns import WriteColumns
from pulsar_spark.spark.writing.outgoing_rows import RowConverter
from pulsar_spark.spark.writing.row_encoder import RowEncoder
arrays = {
    "value": binaries([b"a", b"b", b"c"]),
    "__key": strings(["k", None, "l"]),
    "__topic": strings(["t", "u", "t"]),
    "__messageProperties": build_array([[(b"a", b"b")]] * 3, pa.map_(pa.string(), pa.string())),
    "__eventTime": integers([1, 2, 3], pa.timestamp("us", "UTC")),
}
found = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
named = tuple((name, place) for place, name in enumerate(arrays) if place)
frame = StructType([StructField(name, BinaryType()) for name in arrays])
columns = WriteColumns((0,), named, frame)
converter = RowConverter(columns, None)
messages = [converter.messages(rows, RowEncoder(columns, None)) for rows in converter.split(found)]
assert [len(each) for each in messages] == [2, 1]
print("pandas" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout == "False\n", result.stderr
