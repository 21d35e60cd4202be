"""One value at a time: the same JSON as columns are written as."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.avro import codec as avro_codec
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.json import codec as json_codec
from pulsar_spark.schema.python_values import PythonDecoder, PythonEncoder
from tests.schema.avro.random_values import Schemas, Values, encoded, info

VALUE = {"name": "value", "type": "double"}
JAVA = {"__jsr310ConversionEnabled": "true"}


def as_json(tree: Any, client: str = "") -> SchemaInfo:
    """Return a JSON topic's schema, as a client defines it."""
    found = replace(info(tree), type=pb.Schema.Json)
    if client == "java":
        return replace(found, properties=JAVA)
    if client == "python":
        return replace(found, schema_data=json.dumps(tree, indent=1).encode())
    return found


@pytest.mark.parametrize("client", ["", "java", "python"])
@pytest.mark.parametrize("seed", range(30))
def test_a_value_is_written_as_a_column_of_one_is(seed: int, client: str) -> None:
    rng = Random(seed)
    tree = Schemas(rng).record()
    values = Values(rng)
    raw = pa.array(encoded(tree, (values.of(tree) for _ in range(5))), pa.binary())
    schema = as_json(tree, client)
    columns = json_codec.arrow_schema(schema)
    rows = avro_codec.decoder(info(tree), info(tree), columns.names).decode(raw).columns
    batch = pa.RecordBatch.from_arrays(
        [c.cast(f.type) for c, f in zip(rows, columns, strict=True)], schema=columns
    )
    encoder = json_codec.encoder(schema, columns)
    python = PythonEncoder(schema)

    def by_row(row: int) -> bytes:
        found: bytes = encoder.encode(batch.slice(row, 1))[0].as_py()
        return found

    for row, value in enumerate(PythonDecoder(info(tree), info(tree)).decode(raw)):
        expected = outcome(partial(by_row, row))
        assert outcome(partial(python.encode, value)) == expected


def outcome(make: Callable[[], bytes]) -> Any:
    """Return the JSON that was made, or the field that was refused."""
    try:
        return json.loads(make())
    except Mismatch as mismatch:
        return mismatch.field


def test_text_is_escaped_and_doubles_have_points() -> None:
    fields = [
        {"name": "a_b", "type": "string"},
        {"name": "d", "type": {"type": "map", "values": "double"}},
    ]
    encoder = PythonEncoder(as_json({"type": "record", "name": "R", "fields": fields}))
    numbers = {"a": 1.0, "b": -0.0, "c": 1e-7, "d": -math.inf, "e": 1e16}
    value: dict[str, Any] = {"a_b": 'é\n\\"\u2028\x00', "d": numbers}
    assert encoder.encode(value).decode() == (
        '{"a_b":"é\\n\\\\\\"\u2028\\u0000","d":'
        '{"a":1.0,"b":-0.0,"c":1e-07,"d":"-Infinity","e":1e+16}}'
    )


def test_maps_with_other_keys_than_text_and_values_of_enums() -> None:
    pair = {
        "type": "record",
        "name": "org.apache.avro.reflect.PairX",
        "fields": [{"name": "key", "type": "int"}, VALUE],
    }
    symbols = {"type": "enum", "name": "E", "symbols": ["A"]}
    fields = [
        {"name": "m", "type": {"type": "array", "items": pair}},
        {"name": "e", "type": symbols},
    ]
    schema = as_json({"type": "record", "name": "R", "fields": fields}, "python")
    encoder = PythonEncoder(schema)
    value: dict[str, Any] = {"m": [{"key": 1, "value": math.inf}], "e": "A"}
    assert encoder.encode(value) == b'{"m":{"1":Infinity},"e":"A"}'


def test_values_of_enums_of_python_are_numbers() -> None:
    symbols = {"type": "enum", "name": "E", "symbols": ["A"]}
    tree = {"type": "record", "name": "R", "fields": [{"name": "e", "type": symbols}]}
    columns = pa.schema([("e", pa.string())])
    batch = pa.record_batch([pa.array(["A", "5", "-7", "05", "x" * 3])], schema=columns)
    texts = json_codec.encoder(as_json(tree, "python"), columns).encode(batch).to_pylist()
    assert texts == [b'{"e":"A"}', b'{"e":5}', b'{"e":-7}', b'{"e":"05"}', b'{"e":"xxx"}']


def test_the_keys_of_pairs_are_not_null() -> None:
    key = {"name": "key", "type": ["null", "int"]}
    pair = {"type": "record", "name": "org.apache.avro.reflect.PairX", "fields": [key, VALUE]}
    fields = [{"name": "m", "type": {"type": "array", "items": pair}}]
    schema = as_json({"type": "record", "name": "R", "fields": fields})
    columns = json_codec.arrow_schema(schema)
    batch = pa.RecordBatch.from_pylist([{"m": [{"key": None, "value": 1.5}]}], schema=columns)
    with pytest.raises(Mismatch, match="m: a key is null"):
        json_codec.encoder(schema, columns).encode(batch)
