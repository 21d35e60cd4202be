"""Fields of JSON topics whose type no column has: the column has their JSON."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.codec import Decoded, Mismatch
from pulsar_spark.schema.json import codec
from tests.schema.json.cases import info, logical, nullable, record

pytestmark = pytest.mark.usefixtures("way")

ID = ("id", "int")
WIDE = logical("bytes", "decimal", precision=50, scale=10)
FIXED = {"name": "F", "size": 24, **logical("fixed", "decimal", precision=50, scale=10)}
ARRAY, MAP = {"type": "array", "items": "R"}, {"type": "map", "values": "R"}
MANY = "1234567890123456789012345678901234567890.0123456789"
STRING = pa.string()

# Fields, the odd one's type, and its JSON in messages and columns (null for none).
CASES: dict[str, tuple[Any, pa.DataType, Sequence[tuple[str, Any]]]] = {
    "array": (ARRAY, STRING, [(text, text) for text in ("[]", '[{"id":1,"o":[]}]')]),
    "map": (MAP, STRING, [(text, text) for text in ("{}", '{"z":{"id":1},"a":{}}')]),
    "union": (nullable("R"), STRING, [('{"o":null,"id":7}',) * 2, ("null", None)]),
    "union of several": (
        ["null", "int", "R"], pa.struct([("member0", pa.int32()), ("member1", STRING)]),
        [("null", None), ("5", {"member0": 5, "member1": None}),
         ('{"id":1}', {"member0": None, "member1": '{"id":1}'})],
    ),
    "two records": (
        record([("n", "int"), ("a", nullable("R")), ("z", "int")], "B"),
        pa.struct([("n", pa.int32()), ("a", STRING), ("z", pa.int32())]),
        [('{"n":1,"a":{"id":1},"z":2}', {"n": 1, "a": '{"id":1}', "z": 2}),
         ('{"n":1,"a":null,"z":2}', {"n": 1, "a": None, "z": 2})],
    ),
    "two records, in lists": (
        {"type": "array", "items": record([("a", ARRAY)], "B")},
        pa.list_(pa.struct([("a", STRING)])),
        [('[{"a":[{"id":1}]},{"a":[]}]', [{"a": '[{"id":1}]'}, {"a": "[]"}])],
    ),
    "decimal": (WIDE, STRING, [(text, text) for text in (MANY, "-1", "1E+400", "-0.0", '"7"')]),
    "fixed decimal": (FIXED, STRING, [(MANY, MANY)]),
    "decimals": (
        {"type": "array", "items": nullable(WIDE)}, STRING, [(f"[{MANY},null]",) * 2],
    ),
}  # fmt: skip
TEXTS = [
    *("0", "-0", "1e5", "1.50", "9" * 5000, "true", "false", '""', '"é\\n\\"\\\\"', '"\U0001f600"'),
    *("[1,2.0,[],{}]", '{"b":1,"a":{"b":null}}', '"\\ud800"', '{"\\udc00":1}', "NaN", "-Infinity"),
]


def decode(definition: Any, values: Sequence[str], *names: str) -> Decoded:
    schema = info(definition)
    fields = names or codec.arrow_schema(schema).names
    raw = pa.array([value.encode() for value in values], pa.binary())
    return codec.decoder(schema, schema, fields).decode(raw)


def write(definition: Any, *columns: pa.Array) -> list[str]:
    schema = info(definition)
    columns_of = codec.arrow_schema(schema)
    encoder = pickle.loads(pickle.dumps(codec.encoder(schema, columns_of)))
    batch = pa.RecordBatch.from_arrays(list(columns), schema=columns_of)
    return [value.decode() for value in encoder.encode(batch).to_pylist()]


@pytest.mark.parametrize("name", CASES)
def test_the_column_has_the_json_and_is_written_back_as_it_was(name: str) -> None:
    kind, column, values = CASES[name]
    definition = record([ID, ("o", kind)])
    assert codec.arrow_schema(info(definition)) == pa.schema([("id", pa.int32()), ("o", column)])
    data = [f'{{"id":7,"o":{text}}}' for text, _ in values]
    found = decode(definition, data)
    assert not found.bad
    assert found.columns[1].to_pylist() == [expected for _, expected in values]
    assert write(definition, *found.columns) == data
    assert decode(definition, data, "id").columns[0].to_pylist() == [7] * len(data)


@pytest.mark.parametrize("text", TEXTS)
def test_any_json_is_kept_as_it_was(text: str) -> None:
    definition = record([ID, ("o", ARRAY)])
    data = [f'{{"id":7,"o":{text}}}']
    found = decode(definition, data)
    assert (found.bad, found.columns[1].to_pylist()) == ([], [text])
    assert write(definition, *found.columns) == data


def test_only_space_and_needless_escapes_are_lost() -> None:
    found = decode(record([("o", ARRAY)]), ['{"o" : [ 1 , {"\\u0061":"\\/"}\n]}'])
    assert found.columns[0].to_pylist() == ['[1,{"a":"/"}]']


def test_what_is_no_json_or_nested_too_deeply_is_undecodable() -> None:
    deep = "[" * 5000 + "]" * 5000
    texts = ["[", "[1]]", "", "01", deep]
    found = decode(record([("o", ARRAY)]), [f'{{"o":{text}}}' for text in texts])
    assert [bad.row for bad in found.bad] == list(range(len(texts)))


@pytest.mark.parametrize(
    "text", ["", " ", "[", "[1]]", "1,2", "a", "'a'", "01", "\ufeff1", "[" * 5000 + "]" * 5000]
)
def test_what_is_not_one_json_value_is_not_written(text: str) -> None:
    definition = record([ID, ("o", nullable("R"))])
    columns = pa.array([1, 2, 3], pa.int32()), pa.array([None, text, "{}"])
    with pytest.raises(Mismatch) as caught:
        write(definition, *columns)
    assert (caught.value.field, caught.value.row) == ("o", 1)


def test_a_null_is_not_written_where_the_schema_has_none() -> None:
    with pytest.raises(Mismatch, match="it is null") as caught:
        write(record([("o", ARRAY)]), pa.array([None], STRING))
    assert caught.value.field == "o"


def test_a_column_of_another_type_is_a_mismatch_that_says_what_to_give() -> None:
    with pytest.raises(SchemaMismatch, match=r"o is binary, .* in JSON its text as string"):
        codec.encoder(info(record([("o", ARRAY)])), pa.schema([("o", pa.binary())]))


def test_versions_are_read_by_name_whatever_the_type() -> None:
    old, new = record([("o", "int"), ID]), record([ID, ("o", ARRAY)])
    data = ['{"o":5,"id":1}', '{"id":2}']
    raw = pa.array([value.encode() for value in data])
    for writer, reader in ((old, new), (new, new)):
        found = codec.decoder(info(writer), info(reader), ["id", "o"]).decode(raw)
        assert [column.to_pylist() for column in found.columns] == [[1, 2], ["5", None]]
    found = codec.decoder(info(new), info(old), ["id", "o"]).decode(raw)
    assert [column.to_pylist() for column in found.columns] == [[1, 2], [5, None]]


def test_what_is_no_record_is_one_column() -> None:
    for definition, value in ((WIDE, MANY), ({"type": "array", "items": WIDE}, f"[{MANY}]")):
        found = decode(definition, [value])
        assert found.columns[0].to_pylist() == [value]
        assert write(definition, *found.columns) == [value]


def test_definitions_of_python_are_read_alike() -> None:
    schema = info(record([ID, ("o", ARRAY)]), indent=1)
    raw = pa.array([json.dumps({"id": 1, "o": [{"id": 2}]}).encode()])
    found = codec.decoder(schema, schema, ["o"]).decode(raw)
    assert found.columns[0].to_pylist() == ['[{"id":2}]']
