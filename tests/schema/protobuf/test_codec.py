"""Random protobuf schemas and values are read and written as protobuf itself does."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema.protobuf import codec
from tests.schema.protobuf.cases import (
    RandomSchema,
    class_of,
    expected_row,
    info_of,
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
