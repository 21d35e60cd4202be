"""The shapes of fields follow the reader's definition, and the writer's units."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.avro.definition import Node, parse_definition
from pulsar_spark.schema.avro.types import arrow_type
from pulsar_spark.schema.json.types import Dialect, JsonRule, Shape, shape_of
from tests.schema.json.cases import LEAVES, info, logical, nullable, record

OTHERS, PYTHON = Dialect(), Dialect(is_python=True)


def node(kind: Any) -> Node:
    return parse_definition(json.dumps(kind).encode())


def shape(kind: Any, writer: Any = None, dialect: Dialect = OTHERS) -> Shape:
    return shape_of(node(kind), node(kind if writer is None else writer), dialect)


@pytest.mark.parametrize("leaf", LEAVES)
def test_columns_have_the_types_that_avro_topics_have(leaf: Any) -> None:
    for kind in (
        leaf,
        nullable(leaf),
        {"type": "array", "items": leaf},
        {"type": "map", "values": leaf},
        record([("a", leaf)]),
        [leaf, "null", record([])],
    ):
        assert shape(kind).kind == arrow_type(node(kind), all_nullable=True)


@pytest.mark.parametrize("family", ["timestamp", "local-timestamp"])
def test_units_are_the_writers_in_the_same_family_only(family: str) -> None:
    reader = logical("long", f"{family}-micros")
    assert (shape(reader).times, shape(reader).divided) == (1, 1)
    assert shape(reader, logical("long", f"{family}-millis")).times == 1000
    assert shape(reader, logical("long", f"{family}-nanos")).divided == 1000
    for other in ("long", logical("long", "time-millis"), "string"):
        assert shape(reader, other).times == 1


def test_the_writers_types_are_found_by_name_in_whatever_they_lie() -> None:
    def deep(unit: str, *more: tuple[str, Any]) -> dict[str, Any]:
        item = record([*more, ("at", nullable(logical("long", unit)))], "Item")
        return {"type": "map", "values": {"type": "array", "items": item}}

    found = shape(deep("timestamp-micros"), deep("timestamp-millis", ("x", "int")))
    assert found.parts[0].parts[0].parts[0].times == 1000


def test_bytes_are_base64_or_text_by_who_defined_the_schema() -> None:
    assert shape("bytes").rule is JsonRule.BASE64
    assert shape("bytes", dialect=PYTHON).rule is JsonRule.BYTES
    assert shape({"type": "fixed", "name": "F", "size": 2}).rule is JsonRule.BASE64


def test_clients_are_known_by_white_space_and_properties() -> None:
    definition = record([("é", "bytes")])
    assert Dialect.of(info(definition, indent=1)) == PYTHON
    for indent in (None, 2):
        assert Dialect.of(info(definition, indent=indent)) == OTHERS
    java = {"__jsr310ConversionEnabled": "false"}
    of_java = SchemaInfo(pb.Schema.Json, "", info(definition, indent=1).schema_data, java)
    assert Dialect.of(of_java) == Dialect(has_java_times=True)


def test_javas_times_have_their_own_rules() -> None:
    java = Dialect(has_java_times=True)
    for kind in (logical("int", "date"), logical("int", "time-millis")):
        assert shape(kind, dialect=java).java
