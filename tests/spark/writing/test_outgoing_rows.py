"""Record batches of a DataFrame become messages."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pulsar_spark.engine.producers.partitioned_producer import MessageColumns
from pulsar_spark.errors import InvalidRow, InvalidTopicName
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.outgoing_batches import MessageFields
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.spark.writing.columns import WriteColumns
from pulsar_spark.spark.writing.outgoing_rows import RowConverter
from pulsar_spark.spark.writing.row_encoder import RowEncoder

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


def convert(found: pa.RecordBatch, topic: str | None = TOPIC, **options: Any) -> MessageColumns:
    ((name, columns),) = convert_all(found, topic, **options)
    assert topic is None or name == topic
    return columns


def convert_all(
    found: pa.RecordBatch, topic: str | None = None, **options: Any
) -> list[tuple[str, MessageColumns]]:
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
    assert [message.payload for message, _ in found.rows()] == [b"a", None, b""]
    assert found.plain
    assert found.keys is None


@pytest.mark.fault(95)
def test_keys_that_are_text_are_sent_as_text_and_others_as_bytes() -> None:
    values = binary(b"", b"", b"", b"")
    text = convert(batch(values, key=pa.array(["a", None, "", "ключ"])))
    assert text.keys == ["a", None, "", "ключ"]
    valid = convert(batch(values, key=binary(b"a", None, b"", "ключ".encode())))
    assert valid.keys == ["a", None, "", "ключ"]
    mixed = convert(batch(values, key=binary(b"a", None, b"\xff\xfe", b"")))
    assert mixed.keys == ["a", None, b"\xff\xfe", ""]
    for column in (pa.array(["a", "ключ"]), binary(b"a", "ключ".encode())):
        complete = convert(batch(binary(b"", b""), key=column))
        assert list(complete.keys or ()) == ["a", "ключ"]
        assert list(complete.text_keys() or ()) == [b"a", "ключ".encode()]
    # As some functions of Spark make them.
    wrong = pa.Array.from_buffers(pa.string(), 2, binary(b"a", b"\xff").buffers())
    assert convert(batch(binary(b"", b""), key=wrong)).keys == ["a", b"\xff"]
    assert convert(batch(values, key=pa.nulls(4, pa.binary()))).keys is None


def test_key_encoding_bytes_sends_all_keys_as_bytes() -> None:
    values = binary(b"", b"", b"")
    for keys in (pa.array(["a", None, "ü"]), binary(b"a", None, "ü".encode())):
        assert convert(batch(values, key=keys), keys_as_bytes=True).keys == [
            b"a",
            None,
            "ü".encode(),
        ]


def test_times_are_milliseconds() -> None:
    values = binary(b"", b"", b"")
    moments = [datetime(2026, 11, 20, tzinfo=timezone.utc), None, 1_500_999]
    as_time = pa.array([moments[0], None, None], UTC)
    found = convert(batch(values, eventTime=as_time, deliverAt=as_time))
    assert found.event_times == [1_795_132_800_000, None, None]
    assert found.deliver_at == [1_795_132_800_000, None, None]
    micros = pa.array([1_500_999, 0, None], pa.int64()).cast(UTC)
    assert event_times(batch(values, eventTime=micros)) == [1500, 0, 0]
    as_long = pa.array([5, None, 0], pa.int64())
    assert event_times(batch(values, eventTime=as_long)) == [5, 0, 0]
    other_zone = pa.array([1_000_000], pa.int64()).cast(pa.timestamp("us", tz="Asia/Tokyo"))
    assert event_times(batch(binary(b""), eventTime=other_zone)) == [1000]
    assert convert(batch(values, eventTime=pa.nulls(3, UTC))).fields is None


def event_times(found: pa.RecordBatch) -> list[int]:
    return [message.event_time for message, _ in convert(found).rows()]


@pytest.mark.fault(95)
def test_rows_with_nothing_rare_have_their_fields_encoded_together() -> None:
    kind = pa.map_(pa.string(), pa.string())
    properties = pa.array([[("b", "1"), ("a", ""), ("b", "2")], None, []], kind)
    found = convert(
        batch(
            binary(b"1", b"2", b""),
            key=pa.array(["k", "", "ключ"]),
            eventTime=pa.array([7, None, 0], pa.int64()),
            messageProperties=properties,
        )
    )
    assert found.plain
    assert found.fields is not None
    assert [message for message, _ in found.rows()] == [
        MessageFields(b"1", "k", properties=[("b", "1"), ("a", ""), ("b", "2")], event_time=7),
        MessageFields(b"2", "", properties=[]),
        MessageFields(b"", "ключ", properties=[]),
    ]


@pytest.mark.fault(95)
@pytest.mark.parametrize("unbatched", [True, False])
@pytest.mark.parametrize("rest", [{}, {"eventTime": pa.array([7, 8, 9], pa.int64())}])
@pytest.mark.parametrize("keys", [["a", "b", "a"], ["", None, "a"], [None] * 3])
def test_null_values_are_fields_too(
    rest: dict[str, pa.Array], keys: list[str | None], unbatched: bool
) -> None:
    columns = rest | {"key": pa.array(keys, pa.string())}
    found = convert(batch(binary(b"1", None, b""), **columns), unbatched_fields=unbatched)
    assert found.plain
    assert found.unbatched == unbatched
    assert list(found.payloads) == [b"1", b"", b""]
    times = rest["eventTime"].to_pylist() if rest else [0] * 3
    assert [message for message, _ in found.rows()] == [
        MessageFields(payload, key, event_time=time, properties=[])
        for payload, key, time in zip([b"1", None, b""], keys, times, strict=True)
    ]


@pytest.mark.fault(95)
@pytest.mark.parametrize("unbatched", [True, False])
@pytest.mark.parametrize("rows", [pa.array([0, 1, 2]), pa.array([1, 2])])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string()])
def test_where_some_messages_have_no_key_their_keys_are_fields(
    kind: pa.DataType, rows: pa.Array, unbatched: bool
) -> None:
    keys = pa.array(["a", None, ""]).cast(kind)
    found = convert(
        batch(binary(b"1", b"2", b"3"), key=keys).take(rows), unbatched_fields=unbatched
    )
    assert found.fields is not None
    expected = [(b"1", "a"), (b"2", None), (b"3", "")][-len(rows) :]
    assert [(message.payload, message.key) for message, _ in found.rows()] == expected
    assert list(found.keys or ()) == [key for _, key in expected]


def test_a_writer_that_takes_no_fields_gets_none() -> None:
    times = pa.array([7, 8], pa.int64())
    keys = pa.array(["k", None])
    found = convert(batch(binary(None, b""), eventTime=times, key=keys), takes_fields=False)
    assert found.fields is None
    assert found.keys == ["k", None]
    assert found.payloads == [None, b""]
    assert found.event_times == [7, 8]


@pytest.mark.parametrize(
    "value,columns",
    [
        (None, {"key": binary(b"\xff", b"k")}),
        (b"", {"key": binary(b"\xff", b"k")}),
        (b"", {"key": binary(b"\xff", None)}),
        (b"", {"orderingKey": binary(b"o", None)}),
        (b"", {"sequenceId": pa.array([5, None], pa.int64())}),
        (b"", {"deliverAt": pa.array([5, None], pa.int64()).cast(UTC)}),
    ],
)
def test_a_column_with_something_rare_goes_row_by_row(
    value: bytes | None, columns: dict[str, pa.Array]
) -> None:
    properties = pa.array([[("a", "b")]] * 2, pa.map_(pa.string(), pa.string()))
    found = convert(batch(binary(value, b""), messageProperties=properties, **columns))
    assert found.fields is None
    assert found.properties == [[("a", "b")]] * 2


@pytest.mark.fault(95)
@pytest.mark.parametrize("name,value", [(b"a", b"\xff"), (b"\xff", b"a")])
def test_a_property_that_is_not_utf8_is_refused_by_its_row(name: bytes, value: bytes) -> None:
    raw = pa.array([[], [(b"a", b"b"), (name, value)]], pa.map_(pa.binary(), pa.binary()))
    text = pa.MapArray.from_arrays(
        raw.offsets, raw.keys.view(pa.string()), raw.items.view(pa.string())
    )
    with pytest.raises(InvalidRow, match=r"row 1: a property .* is not UTF-8"):
        convert(batch(binary(b"", b""), messageProperties=text))


def test_other_columns_are_taken_as_they_are() -> None:
    properties = pa.array([[("a", "b")], None, []], pa.map_(pa.string(), pa.string()))
    found = convert(
        batch(
            binary(b"", b"", b""),
            orderingKey=binary(b"o", None, b""),
            messageProperties=properties,
            sequenceId=pa.array([5, None, 0], pa.int64()),
        )
    )
    assert found.ordering_keys == [b"o", None, b""]
    assert found.properties == [[("a", "b")], None, []]
    assert found.sequence_ids == [5, None, 0]
    assert not found.plain


def test_columns_that_say_nothing_are_left_out() -> None:
    kind = pa.map_(pa.string(), pa.string())
    found = convert(
        batch(
            binary(b"", b""),
            messageProperties=pa.array([[], None], kind),
            orderingKey=pa.nulls(2, pa.binary()),
            sequenceId=pa.nulls(2, pa.int64()),
        )
    )
    assert found.plain


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
def test_a_topic_that_is_none_is_an_error() -> None:
    with pytest.raises(InvalidTopicName, match="__topic"):
        convert_all(batch(binary(b""), topic=pa.array(["ftp://a/b/c"])))


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
    assert [(name[-1], [message for message, _ in own.rows()]) for name, own in found] == [
        ("t", [MessageFields(b"1", properties=[("a", "1")]), MessageFields(b"3", properties=[])]),
        ("u", [MessageFields(b"2")]),
    ]
