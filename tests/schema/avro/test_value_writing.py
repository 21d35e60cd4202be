"""One value at a time: the bytes that rows are written as."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema.avro import codec as avro_codec
from pulsar_spark.schema.avro.definition import parse_definition
from pulsar_spark.schema.avro.fitting import plan_for_values
from pulsar_spark.schema.avro.value_writing import value_writer
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.python_values import PythonDecoder, PythonEncoder
from tests.schema.avro.random_values import Schemas, Values, encoded, info

FIXED = {"type": "fixed", "name": "F", "size": 2}


@pytest.mark.parametrize("seed", range(60))
def test_a_value_of_python_is_written_as_a_row_is(seed: int) -> None:
    rng = Random(seed)
    tree = Schemas(rng).record()
    values = Values(rng)
    schema = info(tree)
    raw = pa.array(encoded(tree, (values.of(tree) for _ in range(5))), pa.binary())
    columns = avro_codec.arrow_schema(schema)
    found = avro_codec.decoder(schema, schema, columns.names).decode(raw).columns
    batch = pa.RecordBatch.from_arrays(list(found), schema=columns)
    written = avro_codec.encoder(schema, columns).encode(batch).to_pylist()
    encoder = PythonEncoder(schema)
    assert [encoder.encode(each) for each in PythonDecoder(schema, schema).decode(raw)] == written


@pytest.mark.parametrize(
    "kind, value, field, reason",
    [
        (FIXED, b"abc", "f", "the 2 bytes"),
        ({"type": "string", "logicalType": "uuid"}, b"no", "f", "not a UUID"),
        (
            {"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"},
            b"no",
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
            -129,
            "f",
            "not fit",
        ),
    ],
)
def test_a_value_that_its_type_cannot_hold_is_refused(
    kind: Any, value: Any, field: str, reason: str
) -> None:
    tree = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    with pytest.raises(Mismatch, match=reason) as raised:
        value_writer(plan_for_values(parse_definition(info(tree).schema_data)))([value])
    assert raised.value.field == field
