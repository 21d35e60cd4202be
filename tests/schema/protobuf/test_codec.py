"""Random protobuf schemas and values are read and written as protobuf itself does."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FeatureSet

from pulsar_spark.schema.protobuf import codec
from pulsar_spark.schema.protobuf.types import Type
from tests.schema.kernel import choose
from tests.schema.protobuf.cases import (
    RandomSchema,
    add,
    add_map,
    class_of,
    expected_row,
    info_of,
    new_file,
    random_message,
    same,
    sorted_maps,
)

# Times the number of schemas: more than 100,000 records.
RECORDS = 1700
SEEDS = range(20)


@pytest.mark.parametrize("syntax", ["proto2", "proto3", "editions"])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_records_of_random_schemas(syntax: str, seed: int) -> None:
    rng = random.Random(f"{syntax} {seed}")
    file = RandomSchema(rng, syntax).file()
    info, kind = info_of(file), class_of(file)
    messages = [random_message(rng, kind) for _ in range(RECORDS)]
    raw = pa.array([message.SerializeToString() for message in messages], pa.binary())
    schema = codec.arrow_schema(info)
    decoded = codec.decoder(info, info, schema.names).decode(raw)
    assert not decoded.bad
    batch = pa.RecordBatch.from_arrays(list(decoded.columns), schema=schema)
    batch.validate(full=True)
    for row, message in zip(batch.to_pylist(), messages, strict=True):
        assert same([sorted_maps(row)], [expected_row(message)])
    check_written(codec.encoder(info, schema).encode(batch), messages, kind)


def check_written(values: pa.Array, messages: list[Any], kind: Any) -> None:
    values.validate(full=True)
    assert values.type == pa.binary()
    for value, message in zip(values.to_pylist(), messages, strict=True):
        found = kind.FromString(value)
        assert found.SerializeToString(deterministic=True) == message.SerializeToString(
            deterministic=True
        )


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("place", ["file", "message", "map", "entry", "key", "value"])
def test_neither_entries_of_maps_nor_their_values_are_delimited(
    place: str, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = new_file(syntax="editions")
    add(file.message_type.add(name="N"), "x", 1, Type.TYPE_INT32)
    message = file.message_type.add(name="M")
    add_map(message, "t.M", "m", 1, Type.TYPE_STRING, Type.TYPE_MESSAGE, ".t.N")
    add(message, "one", 2, Type.TYPE_MESSAGE, type_name=".t.N")
    entry = message.nested_type[0]
    key, value = entry.field
    places: dict[str, Any] = {
        "file": file,
        "message": message,
        "map": message.field[0],
        "entry": entry,
        # As compilers have it: they copy a map's features to its key and value.
        "key": key,
        "value": value,
    }
    places[place].options.features.message_encoding = FeatureSet.DELIMITED
    info, kind = info_of(file), class_of(file)
    given = kind(m={"a": {"x": 7}, "": {}}, one={"x": 5})
    values = [given.SerializeToString(), b"\n\0" + kind(one={"x": 1}).SerializeToString()]
    choose(monkeypatch, kernel=kernel)
    columns = codec.arrow_schema(info)
    decoded = codec.decoder(info, info, columns.names).decode(pa.array(values, pa.binary()))
    batch = pa.RecordBatch.from_arrays(list(decoded.columns), schema=columns)
    messages = [kind.FromString(each) for each in values]
    assert same(
        [sorted_maps(each) for each in batch.to_pylist()], list(map(expected_row, messages))
    )
    check_written(codec.encoder(info, columns).encode(batch), messages, kind)
