"""One value at a time: the bytes that columns are written as."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema.avro.definition import parse_definition
from pulsar_spark.schema.avro.value_writing import value_writer
from pulsar_spark.schema.codec import Mismatch, codec_of
from pulsar_spark.schema.python_values import PythonDecoder, converter
from tests.schema.avro.random_values import Schemas, Values, encoded, info

FIXED = {"type": "fixed", "name": "F", "size": 2}


def by_column(tree: Any, value: dict[str, Any]) -> bytes:
    schema = info(tree)
    columns = codec_of(schema).arrow_schema(schema)
    arrays = [pa.array([value[field.name]], field.type) for field in columns]
    batch = pa.RecordBatch.from_arrays(arrays, schema=columns)
    written: bytes = codec_of(schema).encoder(schema, columns).encode(batch)[0].as_py()
    return written


@pytest.mark.parametrize("seed", range(60))
def test_a_value_is_written_as_a_column_of_one_is(seed: int) -> None:
    rng = Random(seed)
    tree = Schemas(rng).record()
    values = Values(rng)
    raw = pa.array(encoded(tree, (values.of(tree) for _ in range(5))), pa.binary())
    node = parse_definition(info(tree).schema_data)
    convert, write = converter(node), value_writer(node)
    for value in PythonDecoder(info(tree), info(tree)).decode(raw):
        found = convert(value)
        assert write(found) == by_column(tree, found)


@pytest.mark.parametrize(
    "kind, value, field, reason",
    [
        (FIXED, b"abc", "f", "the 2 bytes"),
        ({"type": "string", "logicalType": "uuid"}, "no", "f", "not a UUID"),
        (
            {"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"},
            "no",
            "f",
            "not a UUID",
        ),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 2**62, "f", "beyond what 64 bits"),
        (
            {"type": "array", "items": {"type": "fixed", "name": "F", "size": 1}},
            [b""],
            "f[]",
            "1 b",
        ),
        (
            {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 2},
            Decimal(-129),
            "f",
            "of 1 bytes",
        ),
    ],
)
def test_a_value_that_its_type_cannot_hold_is_refused(
    kind: Any, value: Any, field: str, reason: str
) -> None:
    tree = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    with pytest.raises(Mismatch, match=reason) as raised:
        value_writer(parse_definition(info(tree).schema_data))({"f": value})
    assert raised.value.field == field
