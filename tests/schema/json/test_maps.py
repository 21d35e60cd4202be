"""Maps that are read as records keep all keys, nulls and their order."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_spark.schema.avro.definition import Record, parse_definition
from pulsar_spark.schema.json.arrow_reader import Refused
from pulsar_spark.schema.json.reading import MapReader
from pulsar_spark.schema.json.types import Dialect, Shape, field_shapes
from tests.schema.json.cases import logical, nullable, record

KEYS = st.text(max_size=4) | st.sampled_from(["a", "b", 'q"', "null", "\\", "\x00", "a\u0301"])
VALUES = st.none() | st.integers(-(2**63), 2**63 - 1)


def shapes(*fields: tuple[str, Any]) -> dict[str, Shape]:
    node = parse_definition(json.dumps(record(fields)).encode())
    assert isinstance(node, Record)
    return field_shapes(node, node, Dialect())


LONGS = shapes(("m", {"type": "map", "values": nullable("long")}), ("x", "int"))


def binary(*trees: Any, **options: Any) -> pa.Array:
    return pa.array([json.dumps(tree, **options).encode() for tree in trees], pa.binary())


@given(
    st.lists(st.none() | st.dictionaries(KEYS, VALUES, max_size=4), min_size=1, max_size=6),
    st.sets(KEYS, max_size=5),
    st.booleans(),
)
@example([{"Inf": None}], set(), False)
def test_what_is_read_is_whole(
    maps: list[dict[str, int | None] | None], known: set[str], ascii_only: bool
) -> None:
    reader = MapReader({"m": LONGS["m"]}, {"x": LONGS["x"]})
    reader.learn("m", known)
    rows = binary(*[{"m": entries, "x": 1} for entries in maps], ensure_ascii=ascii_only)
    entries = [entry for one in maps if one for entry in one.items()]
    simple = all(key in known and value is not None for key, value in entries)
    if not simple:
        # Arrow rejects rows with other keys; known keys with null are found in the text.
        with pytest.raises(Refused) as caught:
            reader.read(rows)
        # Numbers that may not be finite are rejected before maps are checked.
        assert caught.value.strictly or any("NaN" in key or "Inf" in key for key, _ in entries)
        return
    try:
        (column,) = reader.read(rows)
    except Refused:
        # The text of a string can look like a key with null, or like a number.
        assert any(odd in key for key in known for odd in ("null", "NaN", "Inf"))
        return
    column.validate(full=True)
    assert column.type == LONGS["m"].kind
    wanted = [one if one is None else sorted(one.items()) for one in maps]
    assert column.to_pylist() == wanted


def test_values_become_what_their_shape_says() -> None:
    times = shapes(("m", {"type": "map", "values": logical("long", "timestamp-millis")}))
    reader = MapReader(times, {})
    reader.learn("m", ["b", "a"])
    (column,) = reader.read(binary({"m": {"b": 1}}, {}, {"m": {"b": 2, "a": 3}}))
    assert column.items.view(pa.int64()).to_pylist() == [1000, 3000, 2000]
    assert column.keys.to_pylist() == ["b", "a", "b"]


def test_it_is_not_tried_where_another_field_cannot_be_read() -> None:
    several = shapes(("m", {"type": "map", "values": "int"}), ("u", ["int", "string"]))
    assert MapReader({"m": several["m"]}, {"u": several["u"]}).given_up


@pytest.mark.parametrize("keys", [[str(i) for i in range(65)], ["x" * 201]])
def test_it_gives_up_where_keys_are_too_many_or_too_long(keys: list[str]) -> None:
    reader = MapReader({"m": LONGS["m"]}, {})
    reader.learn("m", keys)
    assert reader.given_up
    assert not reader.knows_keys


def test_it_gives_up_where_rows_keep_being_refused() -> None:
    reader = MapReader(LONGS, {})
    reader.learn("m", ["a"])
    for _ in range(3):
        reader.failed()
    reader.read(binary({"m": {"a": 1}}))
    for _ in range(4):
        assert not reader.given_up
        reader.failed()
    assert reader.given_up
