"""Values of all schemas: Java's client's, which we read, and ours, which it reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql.types import StructType

from tests.integration.brokers import Broker
from tests.integration.java_peer import JavaPeer
from tests.integration.typed import Reading, copy_rows, read

pytestmark = [pytest.mark.real_broker, pytest.mark.timeout(600)]

EPOCH = datetime(1970, 1, 1)


@pytest.fixture(scope="module")
def java(request: pytest.FixtureRequest) -> Iterator[JavaPeer]:
    peer = JavaPeer(request.getfixturevalue("_distribution"))
    yield peer
    peer.close()


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def millis(moment: datetime) -> int:
    return (moment.replace(tzinfo=None) - EPOCH) // timedelta(milliseconds=1)


MOMENT = utc("2023-11-14T22:13:20.123")
BEFORE = utc("1950-01-02T03:04:05.006")

# Java's value as JSON, and the value that we read.
PRIMITIVES: dict[str, tuple[list[Any], list[Any]]] = {
    "BOOLEAN": ([True, False], [True, False]),
    "INT8": ([0, -128, 127], [0, -128, 127]),
    "INT16": ([258, -(2**15)], [258, -(2**15)]),
    "INT32": ([-2, 2**31 - 1], [-2, 2**31 - 1]),
    "INT64": ([2**40, -(2**63)], [2**40, -(2**63)]),
    "FLOAT": ([1.5, -0.25], [1.5, -0.25]),
    "DOUBLE": ([-0.1, 1e300], [-0.1, 1e300]),
    "STRING": (["grün ✓", ""], ["grün ✓", ""]),
    "BYTES": (["AP8="], [b"\0\xff"]),
    "DATE": ([millis(MOMENT), millis(BEFORE)], [MOMENT.date(), BEFORE.date()]),
    "TIME": ([3_723_004], [3_723_004_000_000]),
    "TIMESTAMP": ([millis(MOMENT), millis(BEFORE)], [MOMENT, BEFORE]),
    "INSTANT": (
        ["2023-11-14T22:13:20.123456789Z", "1950-01-02T03:04:05.000006Z"],
        [utc("2023-11-14T22:13:20.123456"), utc("1950-01-02T03:04:05.000006")],
    ),
    "LOCAL_DATE": (["2024-02-29", "1900-01-01"], [date(2024, 2, 29), date(1900, 1, 1)]),
    "LOCAL_TIME": (["13:14:15.000000016"], [47_655_000_000_016]),
    "LOCAL_DATE_TIME": (
        ["2024-02-29T13:14:15.123456", "1900-01-01T00:00:00.000001"],
        [datetime(2024, 2, 29, 13, 14, 15, 123456), datetime(1900, 1, 1, 0, 0, 0, 1)],
    ),
}


@pytest.mark.fault(94)
def test_we_read_javas_primitives(broker: Broker, java: JavaPeer) -> None:
    for kind, (theirs, ours) in PRIMITIVES.items():
        topic = broker.create_topic()
        java.write_typed(broker, topic, {"type": kind}, [*theirs, None])
        assert [row["value"] for row in read(broker, topic)] == [*ours, None], kind


READINGS: list[dict[str, Any]] = [
    {
        "sensor": "s✓",
        "count": -5,
        "total": 2**50,
        "ratio": 0.5,
        "value": 1e-7,
        "ok": True,
        "color": "GREEN",
        "tags": ["a", ""],
        "limits": {"low": 1, "high": -2},
        "place": {"city": "Basel", "height": None},
        "route": [{"city": None, "height": 1.5}, {"city": "x", "height": -1.0}],
    },
    {
        "sensor": None,
        "count": 0,
        "total": 0,
        "ratio": None,
        "value": 0.0,
        "ok": False,
        "color": None,
        "tags": None,
        "limits": None,
        "place": None,
        "route": [],
    },
]


def reading(kind: str) -> dict[str, str]:
    return {"type": kind, "class": "Reading"}


def test_what_java_left_out_is_written_back(broker: Broker, java: JavaPeer) -> None:
    # Its definition does not say that fields can be null.
    schema = {**reading("JSON"), "alwaysAllowNull": False}
    source, target = broker.create_topic(), broker.create_topic()
    java.write_typed(broker, source, schema, READINGS)
    java.write_typed(broker, target, schema, [])
    assert [row["sensor"] for row in read(broker, source)] == ["s✓", None]
    copy_rows(broker, source, target)
    raw = [read(broker, topic, {"valueFormat": "raw"}) for topic in (source, target)]
    stored, written = ([json.loads(row["value"]) for row in rows] for rows in raw)
    assert "sensor" not in stored[1]
    assert written == stored
    found = java.read_typed(broker, target, schema, 2)
    assert found == java.read_typed(broker, source, schema, 2)


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_we_read_javas_records(broker: Broker, java: JavaPeer, kind: str) -> None:
    topic = broker.create_topic()
    for batching in (True, False):
        java.write_typed(broker, topic, reading(kind), READINGS, batching=batching)
    rows = read(broker, topic)
    assert [{name: row[name] for name in READINGS[0]} for row in rows] == READINGS * 2


MOMENTS = [
    {
        "at": "2023-11-14T22:13:20.123Z",
        "day": "2024-02-29",
        "time": "13:14:15.123",
        "amount": "123456.789",
        "data": "AP8=",
    },
    {"at": None, "day": None, "time": None, "amount": None, "data": None},
]


MOMENTS_READ: list[dict[str, Any]] = [
    {
        "at": utc("2023-11-14T22:13:20.123"),
        "day": date(2024, 2, 29),
        "time": 47_655_123_000_000,
        "amount": "123456.789",
        "data": b"\0\xff",
    },
    {"at": None, "day": None, "time": None, "amount": None, "data": None},
]


@pytest.mark.fault(94)
@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_we_read_javas_times_in_records(broker: Broker, java: JavaPeer, kind: str) -> None:
    topic = broker.create_topic()
    java.write_typed(broker, topic, {"type": kind, "class": "Moments"}, MOMENTS)
    rows = read(broker, topic)
    assert [{name: row[name] for name in MOMENTS_READ[0]} for row in rows] == MOMENTS_READ


def test_fields_of_javas_own_classes_are_read_and_written_back(
    broker: Broker, java: JavaPeer
) -> None:
    schema = {"type": "JSON", "class": "Own"}
    source, target = broker.create_topic(), broker.create_topic()
    full = {"place": "de_CH", "count": 5, "letters": "ab", "any": {"x": [1.5, "é"]}}
    nulls = dict.fromkeys((*full, "day")) | {"letters": ""}
    given = [full | {"day": millis(MOMENT)}, nulls]
    java.write_typed(broker, source, schema, given)
    java.write_typed(broker, target, schema, [])
    first, second = ({name: row[name] for name in given[0]} for row in read(broker, source))
    assert first == {
        "day": MOMENT,
        "place": '"de_CH"',
        "count": "5",
        "letters": "ab",
        "any": '{"x":[1.5,"é"]}',
    }
    assert second == nulls
    copy_rows(broker, source, target)
    found = java.read_typed(broker, target, schema, 2)
    assert found == java.read_typed(broker, source, schema, 2)


MESSAGES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "com.google.rpc.ErrorInfo": (
        [{"reason": "r", "domain": "d", "metadata": {"k": "v", "": ""}}, {}],
        [
            {"reason": "r", "domain": "d", "metadata": {"k": "v", "": ""}},
            {"reason": "", "domain": "", "metadata": {}},
        ],
    ),
    "com.google.type.Money": (
        [{"currencyCode": "CHF", "units": str(2**60), "nanos": -1}],
        [{"currency_code": "CHF", "units": 2**60, "nanos": -1}],
    ),
    "com.google.rpc.QuotaFailure": (
        [{"violations": [{"subject": "s", "description": "d"}, {}]}],
        [
            {
                "violations": [
                    {"subject": "s", "description": "d"},
                    {"subject": "", "description": ""},
                ]
            }
        ],
    ),
}


def test_we_read_javas_protobuf_messages(broker: Broker, java: JavaPeer) -> None:
    for name, (theirs, ours) in MESSAGES.items():
        topic = broker.create_topic()
        java.write_typed(broker, topic, {"type": "PROTOBUF_NATIVE", "class": name}, theirs)
        rows = read(broker, topic)
        found = [{key: row[key] for key in ours[0]} for row in rows]
        assert [_without_more(row, ours[0]) for row in found] == ours, name


def test_we_read_javas_protobuf_records(broker: Broker, java: JavaPeer) -> None:
    name = "com.google.type.Money"
    theirs, ours = MESSAGES[name]
    schema = {"type": "PROTOBUF", "class": name}
    source, target = broker.create_topic(), broker.create_topic()
    java.write_typed(broker, source, schema, theirs)
    rows = read(broker, source)
    assert [{key: row[key] for key in ours[0]} for row in rows] == ours
    java.write_typed(broker, target, schema, [])
    copy_rows(broker, source, target)
    assert java.read_typed(broker, target, schema, 1) == java.read_typed(broker, source, schema, 1)


def _without_more(row: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """Leave out fields that later versions of a message type may have added to lists."""
    return {
        key: [
            {name: item[name] for name in like[key][0]} if isinstance(item, dict) else item
            for item in value
        ]
        if isinstance(value, list) and like[key]
        else value
        for key, value in row.items()
    }


# --- keys and values --------------------------------------------------------------------------

PAIRS: dict[str, tuple[dict[str, Any], list[Any], str, list[Any]]] = {
    "primitives": (
        {"key": {"type": "INT32"}, "value": {"type": "STRING"}},
        [{"key": 1, "value": "a"}, {"key": None, "value": "b"}, {"key": -3, "value": None}],
        "value",
        [(1, "a"), (None, "b"), (-3, None)],
    ),
    "bytes": (
        {"key": {"type": "BYTES"}, "value": {"type": "DOUBLE"}},
        [{"key": "AP8=", "value": 1.5}],
        "value",
        [(b"\0\xff", 1.5)],
    ),
    "records": (
        {"key": {"type": "JSON", "class": "Later"}, "value": {"type": "AVRO", "class": "Later"}},
        [
            {
                "key": {"sensor": "s", "count": 1, "unit": None},
                "value": {"sensor": "v", "count": 2, "unit": "m"},
            },
            {"key": None, "value": {"sensor": None, "count": 3, "unit": None}},
        ],
        "sensor",
        [({"sensor": "s", "count": 1, "unit": None}, "v"), (None, None)],
    ),
    "protobuf": (
        {
            "key": {"type": "STRING"},
            "value": {"type": "PROTOBUF_NATIVE", "class": "com.google.type.Money"},
        },
        [{"key": "k", "value": {"currencyCode": "CHF", "units": "7"}}],
        "units",
        [("k", 7)],
    ),
}


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_we_read_javas_pairs(broker: Broker, java: JavaPeer, encoding: str) -> None:
    for name, (parts, theirs, column, ours) in PAIRS.items():
        topic = broker.create_topic()
        schema = {"type": "KEY_VALUE", "encoding": encoding, **parts}
        for batching in (True, False):
            java.write_typed(broker, topic, schema, theirs, batching=batching)
        rows = read(broker, topic)
        assert [(row["__key"], row[column]) for row in rows] == ours * 2, name
        only_keys = StructType([Reading(broker, topic).schema["__key"]])
        assert [row["__key"] for row in read(broker, topic, schema=only_keys)] == [
            key for key, _ in ours * 2
        ]


# --- what we write ----------------------------------------------------------------------------


@pytest.mark.fault(94)
def test_java_reads_our_primitives(broker: Broker, java: JavaPeer) -> None:
    for kind, (theirs, _) in PRIMITIVES.items():
        source, target = broker.create_topic(), broker.create_topic()
        java.write_typed(broker, source, {"type": kind}, [*theirs, None])
        java.write_typed(broker, target, {"type": kind}, [])
        copy_rows(broker, source, target)
        found = java.read_typed(broker, target, {"type": kind}, len(theirs) + 1)
        assert found == [*map(_as_kept(kind), theirs), None], kind


def _as_kept(kind: str) -> Callable[[Any], Any]:
    """Return a value as it survives in columns, which have microseconds."""
    if kind == "DATE":
        return lambda value: value // 86_400_000 * 86_400_000
    if kind == "INSTANT":
        return lambda value: value.replace("123456789Z", "123456Z")
    return lambda value: value


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@pytest.mark.parametrize("name,values", [("Reading", READINGS), ("Moments", MOMENTS)])
def test_java_reads_our_records(
    broker: Broker, java: JavaPeer, kind: str, name: str, values: list[Any]
) -> None:
    schema = {"type": kind, "class": name}
    source, target = broker.create_topic(), broker.create_topic()
    java.write_typed(broker, source, schema, values)
    java.write_typed(broker, target, schema, [])
    copy_rows(broker, source, target)
    found = java.read_typed(broker, target, schema, len(values))
    # If all columns are null: a null value is read like that.
    nothing = [set(value.values()) == {None} if name == "Moments" else False for value in values]
    assert found == [None if n else v for n, v in zip(nothing, values, strict=True)]


def test_java_reads_our_protobuf_messages(broker: Broker, java: JavaPeer) -> None:
    for name, (theirs, _) in MESSAGES.items():
        schema = {"type": "PROTOBUF_NATIVE", "class": name}
        source, target = broker.create_topic(), broker.create_topic()
        java.write_typed(broker, source, schema, theirs)
        java.write_typed(broker, target, schema, [])
        copy_rows(broker, source, target)
        found = java.read_typed(broker, target, schema, len(theirs))
        assert found == java.read_typed(broker, source, schema, len(theirs)), name


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_java_reads_our_pairs(broker: Broker, java: JavaPeer, encoding: str) -> None:
    for name, (parts, theirs, _, _) in PAIRS.items():
        schema = {"type": "KEY_VALUE", "encoding": encoding, **parts}
        source, target = broker.create_topic(), broker.create_topic()
        java.write_typed(broker, source, schema, theirs)
        java.write_typed(broker, target, schema, [])
        copy_rows(broker, source, target)
        found = java.read_typed(broker, target, schema, len(theirs))
        assert found == java.read_typed(broker, source, schema, len(theirs)), name
