"""Which Avro schemas can read each other, as the rules of schema resolution say."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_spark.testing.avro import why_unreadable


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    listed = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "fields": listed}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


FIXED = {"type": "fixed", "name": "F", "size": 4}
TREE = record(("left", ["null", "R"]), ("value", "int"))
TWICE = record(("one", FIXED), ("two", "F"))


@pytest.mark.parametrize(
    "reader,writer",
    [
        ("int", "int"),
        ("double", "int"),
        ("bytes", "string"),
        ({"type": "int", "logicalType": "date"}, "int"),
        (["null", "long"], "int"),
        (["null", "int"], ["int", "null"]),
        (enum("a", "b"), enum("a")),
        (enum("b", default="b"), enum("a")),
        (array("long"), array("int")),
        ({"type": "map", "values": "string"}, {"type": "map", "values": "string"}),
        (FIXED, dict(FIXED)),
        (TREE, record(("left", ["null", "R"]), ("value", "int"))),
        (TWICE, TWICE),
        (record(("a", "long"), name="S"), record(("a", "int"), ("b", "int"))),
    ],
)
def test_these_can_be_read(reader: Any, writer: Any) -> None:
    assert why_unreadable(reader, writer, "new") is None


@pytest.mark.parametrize(
    "reader,writer,why",
    [
        ("int", "long", "the types differ"),
        ("int", ["int", "null"], "the types differ"),
        (["null", "int"], "string", "a union has no such member"),
        (["string", "int"], ["int", "boolean"], "a union has no such member"),
        (enum("a"), enum("a", "b"), "the symbols ['b'] are gone"),
        (array("int"), array("long"), "the types differ"),
        ({**FIXED, "size": 5}, FIXED, "the sizes differ"),
        (record(("a", "int"), ("b", "int")), record(("a", "int")), "the new field 'b'"),
        (record(("a", record(("b", "int")))), record(("a", record(("b", "long")))), "'b' changed"),
        (TREE, record(("left", ["null", "R"]), ("value", "long")), "'value' changed its type"),
    ],
)
def test_these_cannot_and_it_says_why(reader: Any, writer: Any, why: str) -> None:
    assert why in str(why_unreadable(reader, writer, "new"))
