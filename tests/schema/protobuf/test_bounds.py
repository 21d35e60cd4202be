"""The counted cells of a value are those of reading it."""

from __future__ import annotations

import random
import time
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema import column_decoder
from pulsar_spark.schema.arrow.arrays import MAX_CELLS
from pulsar_spark.schema.protobuf import bounds as protobuf_bounds
from pulsar_spark.schema.protobuf import codec as protobuf_codec
from pulsar_spark.schema.protobuf.definition import parse
from pulsar_spark.schema.protobuf.types import Type
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


def wide(fields: int) -> Any:
    file = new_file()
    inner = file.message_type.add(name="N")
    for number in range(1, fields + 1):
        add(inner, f"f{number}", number, Type.TYPE_INT64)
    message = file.message_type.add(name="M")
    add(message, "id", 1, Type.TYPE_INT64)
    add(message, "ns", 2, Type.TYPE_MESSAGE, type_name=".t.N", label=Type.LABEL_REPEATED)
    return info_of(file)


@pytest.mark.parametrize("syntax", ["proto2", "proto3", "editions"])
def test_counted_or_not_values_are_read_alike(syntax: str) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        file = RandomSchema(rng, syntax).file()
        own, kind = info_of(file), class_of(file)
        names = protobuf_codec.arrow_schema(own).names
        values = [random_message(rng, kind).SerializeToString() for _ in range(20)]
        values.append(values[0] + b"\x07")
        raw = pa.array(values, pa.binary())
        plain = protobuf_codec.decoder(own, own, names).decode(raw)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(protobuf_bounds, "_SMALLEST", 0)
            counted = protobuf_codec.decoder(own, own, names).decode(raw)
        assert counted.bad == plain.bad
        assert list(map(str, counted.columns)) == list(map(str, plain.columns))


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
    for module in (protobuf_bounds, column_decoder):
        monkeypatch.setattr(module, "MAX_CELLS", limit)
    info = wide(1)
    fits = limit // parse(info).fields[1].message.leaves  # type: ignore[union-attr]
    values = [b"\x12\x00" * count for count in (fits, fits + 1, 0, fits)] * 5
    decoded = protobuf_codec.decoder(info, info, ["ns"]).decode(pa.array(values, pa.binary()))
    lengths = [value if value is None else len(value) for value in decoded.columns[0].to_pylist()]
    assert lengths == [fits, None, 0, fits] * 5
    assert [bad.row for bad in decoded.bad] == [1, 5, 9, 13, 17]
