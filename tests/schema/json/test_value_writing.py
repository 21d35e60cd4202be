"""One value at a time: the same JSON as columns are written as."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.arrow.arrays import build_array
from pulsar_spark.schema.codec import Mismatch, codec_of
from pulsar_spark.schema.json.codec import parse_json_definition
from pulsar_spark.schema.json.types import Dialect
from pulsar_spark.schema.json.value_writing import value_writer
from pulsar_spark.schema.python_values import PythonDecoder, converter
from tests.schema.avro.random_values import Schemas, Values, encoded, info

JAVA = {"__jsr310ConversionEnabled": "true"}


def as_json(tree: Any, client: str = "") -> SchemaInfo:
    """Return a JSON topic's schema, as a client defines it."""
    found = replace(info(tree), type=pb.Schema.Json)
    if client == "java":
        return replace(found, properties=JAVA)
    if client == "python":
        return replace(found, schema_data=json.dumps(tree, indent=1).encode())
    return found


def by_column(schema: SchemaInfo, cells: list[Any]) -> Any:
    columns = codec_of(schema).arrow_schema(schema)
    arrays = [build_array([c], field.type) for c, field in zip(cells, columns, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=columns)
    return json.loads(codec_of(schema).encoder(schema, columns).encode(batch)[0].as_py())


@pytest.mark.parametrize("client", ["", "java", "python"])
@pytest.mark.parametrize("seed", range(30))
def test_a_value_is_written_as_a_column_of_one_is(seed: int, client: str) -> None:
    rng = Random(seed)
    tree = Schemas(rng).record()
    values = Values(rng)
    raw = pa.array(encoded(tree, (values.of(tree) for _ in range(5))), pa.binary())
    schema = as_json(tree, client)
    node = parse_json_definition(schema)
    convert, write = converter(node), value_writer(node, Dialect.of(schema))
    for value in PythonDecoder(info(tree), info(tree)).decode(raw):
        found = convert(value)
        expected = outcome(partial(by_column, schema, found))
        assert outcome(lambda: json.loads(write(found))) == expected  # noqa: B023


def outcome(make: Callable[[], Any]) -> Any:
    """Return what was made, or the field that was refused."""
    try:
        return make()
    except Mismatch as mismatch:
        return mismatch.field


def test_text_is_escaped_as_json_asks() -> None:
    tree = {"type": "record", "name": "R", "fields": [{"name": "a_b", "type": "string"}]}
    write = value_writer(parse_json_definition(as_json(tree)), Dialect())
    value = 'é\n\\"\u2028\x00'
    assert write([value.encode()]) == '{"a_b":"é\\n\\\\\\"\u2028\\u0000"}'
    assert json.loads(write([value.encode()])) == {"a_b": value}


def test_maps_with_other_keys_than_text_and_values_of_enums() -> None:
    pair = {
        "type": "record",
        "name": "org.apache.avro.reflect.PairX",
        "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "double"}],
    }
    symbols = {"type": "enum", "name": "E", "symbols": ["A"]}
    fields = [
        {"name": "m", "type": {"type": "array", "items": pair}},
        {"name": "e", "type": symbols},
    ]
    schema = as_json({"type": "record", "name": "R", "fields": fields}, "python")
    write = value_writer(parse_json_definition(schema), Dialect.of(schema))
    assert write([[(1, struct.pack("<d", math.inf))], b"5"]) == '{"m":{"1":Infinity},"e":5}'
    with pytest.raises(Mismatch, match="a key is null"):
        write([[None], b"A"])
