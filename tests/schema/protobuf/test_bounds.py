"""The fields of a value's messages are counted, before they take all memory."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema import column_decoder
from pulsar_spark.schema.arrow.arrays import MAX_CELLS
from pulsar_spark.schema.protobuf import codec as protobuf_codec
from pulsar_spark.schema.protobuf import reference
from pulsar_spark.schema.protobuf.definition import parse
from pulsar_spark.schema.protobuf.types import MessageField, Type
from tests.schema.kernel import choose
from tests.schema.protobuf.cases import (
    RandomSchema,
    add,
    class_of,
    info_of,
    new_file,
    random_message,
)

pytestmark = pytest.mark.usefixtures("way")


def wide(fields: int) -> Any:
    file = new_file()
    inner = file.message_type.add(name="N")
    for number in range(1, fields + 1):
        add(inner, f"f{number}", number, Type.TYPE_INT64)
    message = file.message_type.add(name="M")
    add(message, "id", 1, Type.TYPE_INT64)
    add(message, "ns", 2, Type.TYPE_MESSAGE, type_name=".t.N", label=Type.LABEL_REPEATED)
    return info_of(file)


def cells(message: Any, fields: Sequence[MessageField]) -> int:
    """Count the fields of messages in lists, maps and oneofs."""
    total = 0
    for field in fields:
        if field.message is None:
            continue
        own, inner = getattr(message, field.name), field.message
        if inner.is_entry:
            total += len(own) * inner.leaves
            kind = inner.fields[1].message
            items = [] if kind is None else [(own[key], kind) for key in own]
        elif field.repeated:
            total += len(own) * inner.leaves
            items = [(each, inner) for each in own]
        else:
            items = [(own, inner)] if message.HasField(field.name) else []
            total += len(items) * inner.leaves if field.oneof else 0
        total += sum(cells(each, kind.fields) for each, kind in items)
    return total


@pytest.mark.parametrize("syntax", ["proto2", "proto3", "editions"])
def test_random_values_are_read_up_to_their_number_of_fields(
    syntax: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel counts no oneofs, as it refuses to read a second message of one.
    choose(monkeypatch, kernel=False)
    counted = 0
    for seed in range(10):
        rng = random.Random(seed)
        file = RandomSchema(rng, syntax).file()
        own, kind = info_of(file), class_of(file)
        message, names = parse(own), protobuf_codec.arrow_schema(own).names
        for _ in range(20):
            value = random_message(rng, kind)
            expected = cells(value, message.fields)
            counted += expected
            for limit in {expected, max(expected - 1, 0)}:
                patch_limit(monkeypatch, limit)
                decoder = protobuf_codec.decoder(own, own, names)
                bad = decoder.decode(pa.array([value.SerializeToString()], pa.binary())).bad
                reasons = [f"its messages have more than {limit} fields"] * (limit < expected)
                assert [each.reason for each in bad] == reasons
    assert counted > 1000


def patch_limit(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    for module in (reference, column_decoder):
        monkeypatch.setattr(module, "MAX_CELLS", limit)


def test_groups_count_as_messages_do(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_limit(monkeypatch, 12)
    file = new_file(syntax="proto2")
    inner = file.message_type.add(name="N")
    add(inner, "a", 1, Type.TYPE_INT32)
    add(inner, "n", 2, Type.TYPE_MESSAGE, type_name=".google.protobuf.Duration")
    message = file.message_type.add(name="M")
    add(message, "g", 1, Type.TYPE_GROUP, type_name=".t.N")
    add(message, "gs", 2, Type.TYPE_GROUP, type_name=".t.N", label=Type.LABEL_REPEATED)
    info = info_of(file)
    leaves = parse(info).fields[1].message.leaves  # type: ignore[union-attr]
    single, unknown, one = b"\x0b\x08\x01\x0c", b"\x1b\x13\x14\x1c", b"\x13\x12\x00\x14"
    # With the wire type of a message it is unknown, whatever is in it.
    other = b"\x0a\x04\x13\x14\x13\x14"
    fits = 12 // leaves
    values = [single * 9 + unknown * 9 + other * 9 + one * count for count in (fits, fits + 1)]
    decoded = protobuf_codec.decoder(info, info, ["g", "gs"]).decode(pa.array(values, pa.binary()))
    assert [bad.row for bad in decoded.bad] == [1]
    assert decoded.columns[0][0].as_py() == {"a": 1, "n": None}
    assert len(decoded.columns[1][0]) == fits


@pytest.mark.fault(44)
def test_nor_do_messages_of_oneofs_take_all_memory() -> None:
    """Protobuf makes a new one whenever the member changes, and keeps those before."""
    file = new_file()
    inner = file.message_type.add(name="N")
    for number in range(1, 1001):
        add(inner, f"f{number}", number, Type.TYPE_INT64)
    message = file.message_type.add(name="M")
    message.oneof_decl.add(name="choice")
    add(message, "n", 1, Type.TYPE_MESSAGE, type_name=".t.N", oneof_index=0)
    add(message, "x", 2, Type.TYPE_INT64, oneof_index=0)
    info = info_of(file)
    switched = b"\x0a\x00\x10\x05"
    values = [switched * 1_000_000, switched * 100]
    decoded = protobuf_codec.decoder(info, info, ["n", "x"]).decode(pa.array(values, pa.binary()))
    assert [bad.row for bad in decoded.bad] == [0]
    assert f"more than {MAX_CELLS} fields" in decoded.bad[0].reason
    assert [column.to_pylist() for column in decoded.columns] == [[None, None], [None, 5]]


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "end, times",
    [
        (b"\x12\x05", 1),  # longer than the value
        (b"\x12", 1),
        (b"\x14", 3),  # ends of groups that have not begun
        (b"\xa3\x06", 1_000_000),  # beginnings of groups that do not end
        (b"\xff", 2_000_000),  # a number without an end
        (b"\x17", 1),  # wire type 7
    ],
)
def test_what_is_counted_may_be_malformed(end: bytes, times: int) -> None:
    info = wide(4000)
    decoder = protobuf_codec.decoder(info, info, ["id", "ns"])
    few, good = b"\x12\x02\x08\x07" * 5000, b"\x08\x05" + b"\x12\x00" * 3
    started = time.process_time()
    decoded = decoder.decode(pa.array([good, few + end * times, good], pa.binary()))
    assert time.process_time() - started < 30
    assert [(bad.row, bad.field) for bad in decoded.bad] == [(1, "")]
    assert "not a protobuf message" in decoded.bad[0].reason
    assert decoded.columns[0].to_pylist() == [5, None, 5]


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
    patch_limit(monkeypatch, limit)
    info = wide(1)
    fits = limit // parse(info).fields[1].message.leaves  # type: ignore[union-attr]
    values = [b"\x12\x00" * count for count in (fits, fits + 1, 0, fits)] * 5
    decoded = protobuf_codec.decoder(info, info, ["ns"]).decode(pa.array(values, pa.binary()))
    lengths = [value if value is None else len(value) for value in decoded.columns[0].to_pylist()]
    assert lengths == [fits, None, 0, fits] * 5
    assert [bad.row for bad in decoded.bad] == [1, 5, 9, 13, 17]
