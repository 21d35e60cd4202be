"""Values of a record batch, whichever versions of the schema they were written with."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.codec import Decoded, Undecodable
from pulsar_spark.schema.column_decoder import ColumnDecoder
from pulsar_spark.schema.primitives import PrimitiveDecoder
from pulsar_spark.schema.table.value_decoder import ValueDecoder
from tests.schema.table.entries import TOPIC, batch, message, rows_of, single

INT32 = SchemaInfo(pb.Schema.Int32, "INT32")
INT64 = SchemaInfo(pb.Schema.Int64, "INT64")
STRING = SchemaInfo(pb.Schema.String, "String")
VERSIONS = {b"\0" * 7 + b"\0": INT32, b"\0" * 7 + b"\1": INT64}
OLD, NEW = VERSIONS


def i32(value: int) -> bytes:
    return struct.pack(">i", value)


def i64(value: int) -> bytes:
    return struct.pack(">q", value)


MIXED = (
    single(i32(1), schema_version=OLD),
    batch([message(i32(2)), message(None)], schema_version=OLD),
    batch([message(i64(3)), message(i64(4))], schema_version=NEW),
    single(i64(5)),
    single(i32(6), schema_version=OLD),
)


@pytest.mark.fault(64)
def test_each_message_is_decoded_with_the_version_it_was_written_with() -> None:
    decoder = ValueDecoder(INT64, ["value"], VERSIONS.__getitem__)
    found = decoder.decode(rows_of(*MIXED), TOPIC)
    assert found.columns["value"].to_pylist() == [1, 2, None, 3, 4, 5, 6]
    assert len(found.raw) == 7
    assert not found.bad


def test_a_version_is_asked_for_once_and_none_for_messages_without() -> None:
    asked: list[bytes] = []

    def ask(version: bytes) -> SchemaInfo:
        asked.append(version)
        return VERSIONS[version]

    decoder = ValueDecoder(INT64, ["value"], ask)
    assert asked == []
    for _ in range(3):
        decoder.decode(rows_of(*MIXED), TOPIC)
    assert asked == [OLD, NEW]


def test_a_value_that_cannot_be_decoded_is_reported_with_its_row() -> None:
    decoder = ValueDecoder(INT64, ["value"], VERSIONS.__getitem__)
    bad = (
        batch([message(i32(2)), message(i32(3))], schema_version=OLD),
        batch([message(i64(4)), message(b"?")], schema_version=NEW),
        single(b"!", schema_version=OLD),
    )
    found = decoder.decode(rows_of(*bad), TOPIC)
    assert found.columns["value"].to_pylist() == [2, 3, 4, None, None]
    assert [item.row for item in found.bad] == [3, 4]
    assert all(isinstance(item, Undecodable) for item in found.bad)
    assert found.bad_version == NEW


@pytest.mark.fault(64)
def test_no_value_decodes_of_a_version_that_cannot_become_the_querys() -> None:
    decoder = ValueDecoder(INT64, ["value"], lambda version: STRING)
    found = decoder.decode(rows_of(*MIXED), TOPIC)
    assert found.columns["value"].to_pylist() == [None, None, None, None, None, 5, None]
    assert [item.row for item in found.bad] == [0, 1, 3, 4, 6]
    assert isinstance(found.unreadable, SchemaMismatch)
    assert "version 0" in str(found.unreadable)
    assert "STRING" in str(found.unreadable)


def test_decoders_are_bounded_in_number() -> None:
    decoder = ValueDecoder(INT32, ["value"], lambda version: INT32)
    for first in range(0, 1500, 300):
        numbers = range(first, first + 300)
        entries: list[Any] = [
            single(i32(number), schema_version=number.to_bytes(8, "big")) for number in numbers
        ]
        found = decoder.decode(rows_of(*entries), TOPIC)
        assert found.columns["value"].to_pylist() == list(numbers)
    assert len(decoder._decoders) <= 1000


def test_versions_that_will_be_needed_are_told_at_once() -> None:
    told: list[list[bytes]] = []
    decoder = ValueDecoder(
        INT64, ["value"], VERSIONS.__getitem__, expect=lambda versions: told.append([*versions])
    )
    for _ in range(2):
        decoder.decode(rows_of(*MIXED), TOPIC)
    assert told == [[OLD, NEW]]


def test_values_of_one_version_are_decoded_together_wherever_they_lie() -> None:
    decoder = ValueDecoder(INT64, ["value"], VERSIONS.__getitem__)
    entries = [
        single(i64(number) if number % 2 else i32(number), schema_version=(OLD, NEW)[number % 2])
        for number in range(100)
    ]
    decode, calls = PrimitiveDecoder.decode, []

    def counted(self: PrimitiveDecoder, raw: pa.Array) -> Decoded:
        calls.append(len(raw))
        return decode(self, raw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrimitiveDecoder, "decode", counted)
        found = decoder.decode(rows_of(*entries), TOPIC)
    assert calls == [50, 50]
    assert found.columns["value"].to_pylist() == list(range(100))


def test_of_versions_that_alternate_the_first_bad_value_tells_its_version() -> None:
    decoder = ValueDecoder(INT64, ["value"], VERSIONS.__getitem__)
    found = decoder.decode(
        rows_of(
            single(i32(0), schema_version=OLD),
            single(b"new", schema_version=NEW),
            single(b"old", schema_version=OLD),
            single(i64(3), schema_version=NEW),
        ),
        TOPIC,
    )
    assert found.columns["value"].to_pylist() == [0, None, None, 3]
    assert [item.row for item in found.bad] == [1, 2]
    assert found.bad_version == NEW


def avro(*names: str) -> SchemaInfo:
    fields = [{"name": name, "type": ["null", "long"], "default": None} for name in names]
    tree = {"type": "record", "name": "R", "fields": fields}
    return SchemaInfo(pb.Schema.Avro, "R", json.dumps(tree).encode())


def count_calls(patch: pytest.MonkeyPatch) -> list[int]:
    """Return how many values each call of a decoder of columns gets from here on."""
    decode, calls = ColumnDecoder.decode, []

    def counted(self: ColumnDecoder, raw: pa.Array, numbers: pa.Array | None = None) -> Decoded:
        calls.append(len(raw))
        return decode(self, raw, numbers)

    patch.setattr(ColumnDecoder, "decode", counted)
    return calls


@pytest.mark.parametrize("order", ["in turn", "backwards", "one after the other"])
@pytest.mark.parametrize("count,most", [(2, 1), (200, 1), (300, 2), (600, 3)])
def test_values_of_many_versions_take_few_calls(
    count: int, most: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = ValueDecoder(
        avro("a"), ["a"], lambda version: avro("a", f"b{int.from_bytes(version, 'big')}")
    )
    numbers = {
        "in turn": [*range(count)] * 2,
        "backwards": [*reversed(range(count))] * 2,
        "one after the other": sorted([*range(count)] * 2),
    }[order]
    entries = [
        single(bytes((2, row % 50 * 2, 0)), schema_version=n.to_bytes(8, "big"))
        for row, n in enumerate(numbers)
    ]
    calls = count_calls(monkeypatch)
    for _ in range(2):
        calls.clear()
        found = decoder.decode(rows_of(*entries), TOPIC)
        assert found.columns["a"].to_pylist() == [row % 50 for row in range(2 * count)]
        assert len(calls) == most
        assert sum(calls) == 2 * count


def test_a_version_that_cannot_be_read_leaves_the_others_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = (7).to_bytes(8, "big")
    decoder = ValueDecoder(
        avro("a"),
        ["a"],
        lambda version: STRING if version == bad else avro("a", f"b{version[-1]}"),
    )
    entries = [single(b"\2\2\0", schema_version=(row % 20).to_bytes(8, "big")) for row in range(40)]
    calls = count_calls(monkeypatch)
    found = decoder.decode(rows_of(*entries), TOPIC)
    assert calls == [38]
    assert found.columns["a"].to_pylist() == [None if row % 20 == 7 else 1 for row in range(40)]
    assert [each.row for each in found.bad] == [7, 27]
    assert found.bad_version == bad
    assert found.unreadable is not None


def test_batches_with_some_of_the_versions_before_need_no_other_decoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    together = ColumnDecoder.together

    def counted(self: ColumnDecoder, decoders: Sequence[Any]) -> Any:
        made.append(len(decoders))
        return together(self, decoders)

    monkeypatch.setattr(ColumnDecoder, "together", counted)
    decoder = ValueDecoder(avro("a"), ["a"], lambda version: avro("a", f"b{version[-1]}"))
    rng = Random(1)
    for _ in range(200):
        some = rng.sample(range(40), 30)
        entries = [single(b"\2\2\0", schema_version=n.to_bytes(8, "big")) for n in some]
        found = decoder.decode(rows_of(*entries), TOPIC)
        assert found.columns["a"].to_pylist() == [1] * 30
    assert len(made) <= 10
    made.clear()
    # Those that follow one another are no more work than they are.
    for first in range(50, 150):
        entries = [
            single(b"\2\2\0", schema_version=n.to_bytes(8, "big")) for n in (first, first + 1)
        ]
        decoder.decode(rows_of(*entries), TOPIC)
    assert sum(made) <= 4 * 100


@pytest.mark.fault(64)
def test_avro_values_of_versions_in_turn_are_decoded_in_one_call() -> None:
    versions = {OLD: avro("a"), NEW: avro("a", "b")}
    decoder = ValueDecoder(versions[NEW], ["a", "b"], versions.__getitem__)
    entries = []
    for number in range(100):
        if number % 2:
            entries.append(single(b"\x02\x02\x02\x04", schema_version=NEW))
        else:
            entries.append(single(b"\x02\x06", schema_version=OLD))
    entries[3] = single(b"\x02", schema_version=NEW)
    with pytest.MonkeyPatch.context() as patch:
        calls = count_calls(patch)
        found = decoder.decode(rows_of(*entries), TOPIC)
    assert calls == [100]
    assert found.columns["a"].to_pylist() == [3, 1, 3, None] + [3, 1] * 48
    assert found.columns["b"].to_pylist() == [None, 2, None, None] + [None, 2] * 48
    assert ([bad.row for bad in found.bad], found.bad_version) == ([3], NEW)
