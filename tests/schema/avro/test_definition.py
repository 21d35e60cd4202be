"""Avro definitions: parsed types, and errors for hostile ones."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.avro.definition import (
    MAX_DEFINITION,
    MAX_NESTING,
    NO_DEFAULT,
    Array,
    Enum,
    Fixed,
    Logical,
    Map,
    Node,
    Opaque,
    Primitive,
    Record,
    RecordField,
    Reference,
    UnionOf,
    parse_definition,
)


def parse(tree: Any) -> Node:
    return parse_definition(json.dumps(tree).encode())


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def of(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def test_records_have_fields_with_defaults_and_aliases() -> None:
    found = parse(
        record(
            of("a", "int"),
            of("b", ["null", "string"], default=None, aliases=["old"]),
            namespace="org.example",
            aliases=["Old", "other.Name"],
        )
    )
    assert found == Record(
        "org.example.R",
        (
            RecordField("a", Primitive("int"), NO_DEFAULT),
            RecordField("b", UnionOf((Primitive("null"), Primitive("string"))), None, ("old",)),
        ),
    )


def test_arrays_maps_enums_and_fixed() -> None:
    assert parse({"type": "array", "items": "long"}) == Array(Primitive("long"))
    assert parse({"type": "map", "values": {"type": "bytes"}}) == Map(Primitive("bytes"))
    assert parse({"type": "enum", "name": "x.E", "symbols": ["A", "B"], "default": "A"}) == Enum(
        "x.E", ("A", "B"), "A"
    )
    assert parse({"type": "fixed", "name": "F", "size": 3}) == Fixed("F", 3)
    assert parse({"type": {"type": "string"}}) == Primitive("string")


def test_names_are_found_in_the_namespace_of_what_they_lie_in_then_without_one() -> None:
    inner = record(of("e", {"type": "enum", "name": "E", "symbols": ["A"]}), name="b.Inner")
    found = parse(
        record(
            of("first", {"type": "fixed", "name": "F", "namespace": "", "size": 1}),
            of("inner", inner),
            of("again", "b.E"),
            of("fixed", "F"),
            namespace="a",
        )
    )
    assert isinstance(found, Record)
    kinds = {field.name: field.type for field in found.fields}
    assert kinds["again"] == Enum("b.E", ("A",))
    assert kinds["fixed"] == kinds["first"] == Fixed("F", 1)


@pytest.mark.parametrize(
    "kind,logical",
    [
        ({"type": "int", "logicalType": "date"}, Logical("date")),
        ({"type": "long", "logicalType": "timestamp-nanos"}, Logical("timestamp-nanos")),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            Logical("decimal", 9, 2),
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, Logical("decimal", 9, 0)),
        (
            {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
            Logical("duration"),
        ),
    ],
)
def test_logical_types(kind: Any, logical: Logical) -> None:
    found = parse(kind)
    assert isinstance(found, Primitive | Fixed)
    assert found.logical == logical


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "string", "logicalType": "date"},
        {"type": "long", "logicalType": "of-the-future"},
        {"type": "int", "logicalType": ["date"]},
        {"type": "bytes", "logicalType": "decimal"},
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
        {"type": "bytes", "logicalType": "decimal", "precision": True},
        {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5},
        {"type": "fixed", "name": "F", "size": 8, "logicalType": "duration"},
    ],
)
def test_logical_types_that_make_no_sense_are_left_out(kind: Any) -> None:
    found = parse(kind)
    assert isinstance(found, Primitive | Fixed)
    assert found.logical is None


@pytest.mark.parametrize(
    "tree,what",
    [
        (1, "is 1, which is not an Avro type"),
        ({}, "without a name for its kind"),
        ("unknown", "unknown type 'unknown'"),
        ([], "union of nothing"),
        ([["int"]], "union right in a union"),
        (record(of("a", "int"), of("a", "int")), "the field a is there twice"),
        (record({"type": "int"}), "a field without a name"),
        (record({"name": "a"}), "field a lacks 'type'"),
        ({"type": "record", "name": "R"}, "without a list of fields"),
        ({"type": "record", "fields": []}, "a record type without a name"),
        (record(of("a", {"type": "array"})), r"field a\[\] lacks 'items'"),
        (record(of("a", {"type": "enum", "name": "E"})), "the enum 'E' without"),
        (record(of("a", {"type": "fixed", "name": "F", "size": -1})), "fixed size -1"),
    ],
)
def test_damage_is_named_with_its_path(tree: Any, what: str) -> None:
    with pytest.raises(SchemaMismatch, match=what):
        parse(tree)


@pytest.mark.fault(44)
def test_a_record_that_holds_itself_is_refused_with_the_path_unless_types_may_be_opaque() -> None:
    tree = record(of("a", {"type": "array", "items": ["null", "R"]}))
    with pytest.raises(SchemaMismatch, match=r"'R' contains itself, in the field a\[\]"):
        parse_definition(json.dumps(tree).encode(), opaque=False)
    found = parse(tree)
    assert isinstance(found, Record)
    (field,) = found.fields
    assert isinstance(field.type, Opaque)
    assert isinstance(field.type.type, Array)
    union = field.type.type.items
    assert isinstance(union, UnionOf)
    assert isinstance(union.members[1], Reference)
    assert union.members[1].record is found


def _nested_json() -> bytes:
    return b"[" * 500_000


def _nested_types() -> bytes:
    return b'{"type":"array","items":' * 900 + b'"int"' + b"}" * 900


def _nested_by_name() -> bytes:
    fields = [of("f0", record(of("x", "int"), name="R0"))]
    fields += [of(f"f{i}", record(of("x", f"R{i - 1}"), name=f"R{i}")) for i in range(1, 900)]
    return json.dumps(record(*fields)).encode()


def _doubled_by_name() -> bytes:
    fields = [of("f0", record(of("x", "int"), name="R0"))]
    fields += [
        of(f"f{i}", record(of("x", f"R{i - 1}"), of("y", f"R{i - 1}"), name=f"R{i}"))
        for i in range(1, MAX_NESTING - 2)
    ]
    return json.dumps(record(*fields)).encode()


def _many_fields() -> bytes:
    return json.dumps(record(*(of(f"f{i}", "int") for i in range(30_000)))).encode()


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b" " * (MAX_DEFINITION + 1),
        b"1" * 5000,
        _nested_json(),
        _nested_types(),
        _nested_by_name(),
        _doubled_by_name(),
        _many_fields(),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_hostile_definitions_are_refused_in_bounded_time(data: bytes) -> None:
    started = time.process_time()
    with pytest.raises(SchemaMismatch) as caught:
        parse_definition(data)
    assert len(str(caught.value)) < 2000
    assert time.process_time() - started < 20


KEYS = [
    *("type", "name", "namespace", "fields", "items", "values", "symbols", "size"),
    *("logicalType", "precision", "scale", "default", "aliases"),
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10**20)
    | st.sampled_from(["int", "string", "record", "enum", "fixed", "array", "map", "R", "a.R"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=6,
        )
    ),
    max_leaves=30,
)


@pytest.mark.fault(44)
@given(JSON)
def test_any_json_is_a_type_or_a_schema_mismatch(tree: Any) -> None:
    with contextlib.suppress(SchemaMismatch):
        parse(tree)
