"""The counted cells of a value are those of reading it."""

from __future__ import annotations

import random
import time
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError

from pulsar_spark.schema.arrow.arrays import MAX_CELLS
from pulsar_spark.schema.protobuf import bounds as protobuf_bounds
from pulsar_spark.schema.protobuf import codec as protobuf_codec
from pulsar_spark.schema.protobuf import reading as protobuf_reading
from pulsar_spark.schema.protobuf import reference as protobuf_reference
from pulsar_spark.schema.protobuf.bounds import Counter
from pulsar_spark.schema.protobuf.definition import parse
from pulsar_spark.schema.protobuf.types import MessageField, MessageType, Type
from tests.schema.kernel import choose
from tests.schema.protobuf.cases import (
    RandomSchema,
    add,
    class_of,
    info_of,
    new_file,
    random_message,
)


@pytest.fixture(autouse=True, params=["kernel", "reference"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode values in both ways."""
    choose(monkeypatch, kernel=request.param == "kernel")


def by_hand(message: Any, fields: tuple[MessageField, ...]) -> int:
    total = 0
    for field in fields:
        if field.message is None:
            continue
        own = getattr(message, field.name)
        if field.repeated:
            total += len(own) * field.message.leaves
        for each in within(message, field, field.message):
            total += by_hand(each, field.message.fields)
    return total


def within(message: Any, field: MessageField, kind: MessageType) -> list[Any]:
    own = getattr(message, field.name)
    if kind.is_entry:
        value = kind.fields[1]
        return [Entry(value.name, own[key]) for key in own] if value.message else []
    if field.repeated:
        return list(own)
    return [own] if message.HasField(field.name) else []


class Entry:
    """An entry of a map, as a message with its value."""

    def __init__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def HasField(self, name: str) -> bool:
        return hasattr(self, name)


@pytest.mark.parametrize("syntax", ["proto2", "proto3", "editions"])
def test_random_values_are_counted_as_they_are(syntax: str) -> None:
    counted = 0
    for seed in range(10):
        rng = random.Random(seed)
        file = RandomSchema(rng, syntax).file()
        message, kind = parse(info_of(file)), class_of(file)
        counter = Counter(message.fields)
        for _ in range(20):
            value = random_message(rng, kind)
            expected = by_hand(value, message.fields)
            assert counter.count(value.SerializeToString()) == expected
            counted += expected
    assert counted > 1000


def test_without_repeated_messages_nothing_is_counted() -> None:
    file = new_file()
    message = file.message_type.add(name="M")
    add(message, "a", 1, Type.TYPE_STRING, label=Type.LABEL_REPEATED)
    add(message, "at", 2, Type.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    assert Counter(parse(info_of(file)).fields).harmless is None


def wide(fields: int) -> Any:
    file = new_file()
    inner = file.message_type.add(name="N")
    for number in range(1, fields + 1):
        add(inner, f"f{number}", number, Type.TYPE_INT64)
    message = file.message_type.add(name="M")
    add(message, "id", 1, Type.TYPE_INT64)
    add(message, "ns", 2, Type.TYPE_MESSAGE, type_name=".t.N", label=Type.LABEL_REPEATED)
    return info_of(file)


def test_bytes_that_are_no_message_are_protobufs_error() -> None:
    with pytest.raises(DecodeError):
        Counter(parse(wide(3)).fields).count(b"\x12\x05")


@pytest.mark.fault(44)
def test_a_value_that_would_take_all_memory_is_bad_and_leaves_the_others_alone() -> None:
    info = wide(1000)
    hostile = b"\x12\x00" * 2_500_000
    good = b"\x08\x05" + b"\x12\x02\x08\x07" * 3
    decoder = protobuf_codec.decoder(info, info, ["id", "ns"])
    started = time.process_time()
    decoded = decoder.decode(pa.array([good, hostile, hostile + b"\x12", good], pa.binary()))
    assert time.process_time() - started < 30
    ids, lists = decoded.columns
    assert ids.to_pylist() == [5, None, None, 5]
    assert [value and len(value) for value in lists.to_pylist()] == [3, None, None, 3]
    assert [bad.row for bad in decoded.bad] == [1, 2]
    assert f"more than {MAX_CELLS} fields" in decoded.bad[0].reason
    only_id = protobuf_codec.decoder(info, info, ["id"]).decode(pa.array([hostile], pa.binary()))
    assert only_id.columns[0].to_pylist() == [0]
    assert not only_id.bad


@pytest.mark.parametrize("limit", [3, 10, 1000])
def test_a_value_with_as_much_as_is_allowed_is_read(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (protobuf_bounds, protobuf_reading, protobuf_reference):
        monkeypatch.setattr(module, "MAX_CELLS", limit)
    info = wide(1)
    fits = limit // parse(info).fields[1].message.leaves  # type: ignore[union-attr]
    values = [b"\x12\x00" * count for count in (fits, fits + 1, 0, fits)] * 5
    decoded = protobuf_codec.decoder(info, info, ["ns"]).decode(pa.array(values, pa.binary()))
    lengths = [value if value is None else len(value) for value in decoded.columns[0].to_pylist()]
    assert lengths == [fits, None, 0, fits] * 5
    assert [bad.row for bad in decoded.bad] == [1, 5, 9, 13, 17]
