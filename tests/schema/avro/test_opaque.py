"""Fields whose type no column has: recursive records, and decimals of more than 38 digits."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.avro import codec as avro_codec
from pulsar_spark.schema.avro.definition import MAX_NESTING
from pulsar_spark.schema.codec import Decoded, Mismatch, identity, record_name
from tests.schema.avro.random_values import info
from tests.schema.avro.test_decoder import damaged
from tests.schema.avro.test_encoder import logical
from tests.schema.avro.test_resolution import of, read, record

pytestmark = pytest.mark.usefixtures("way")


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapped(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


ID = of("id", "int")
WIDE = logical("bytes", "decimal", precision=50, scale=10)
FIXED = {"name": "F", "size": 24, **logical("fixed", "decimal", precision=50, scale=10)}
MANY = Decimal("1234567890123456789012345678901234567890.0123456789")
TREE = record(of("name", "string"), of("kids", array("R")), ID)
LINKED = record(ID, of("next", ["null", "R"]))
NAMED = record(ID, of("kids", mapped("R")))
CHOICE = record(ID, of("either", ["null", "int", "R"]))
MUTUAL = record(
    ID, of("b", record(of("n", "int"), of("a", ["null", "R"]), of("z", "int"), name="B"))
)
LISTED = record(ID, of("bs", array(record(of("n", "int"), of("a", array("R")), name="B"))))
LEAVES = record(
    *(of(f"f{at}", kind) for at, kind in enumerate(["null", "boolean", "long", "float", "double"])),
    of("s", "string"),
    of("b", "bytes"),
    of("e", {"type": "enum", "name": "E", "symbols": ["A", "Z"]}),
    of("x", {"type": "fixed", "name": "X", "size": 3}),
    of("u", ["string", "int"]),
    of("m", mapped("R")),
)
LEAF: dict[str, Any] = {f"f{at}": v for at, v in enumerate([None, True, -(2**40), 1.5, 2.5])}
LEAF |= {"s": "é", "b": b"\xff", "e": "Z", "x": b"abc", "u": 7, "m": {}}
BINARY = pa.binary()


def node(name: str, *kids: Any) -> dict[str, Any]:
    return {"name": name, "kids": list(kids), "id": len(kids)}


def linked(count: int) -> Any:
    value: Any = None
    for number in range(count):
        value = {"id": number, "next": value}
    return value


# The record, the place of the odd part, its type by itself, the column's type, and values.
CASES: dict[str, tuple[Any, Sequence[str | int], Any, pa.DataType, Sequence[Any]]] = {
    "array": (
        TREE, ["kids"], array(TREE), BINARY,
        [node("r", node("a", node("b")), node("c")), node("")],
    ),
    "map": (
        NAMED, ["kids"], mapped(NAMED), BINARY,
        [{"id": 1, "kids": {"é": {"id": 2, "kids": {}}}}, {"id": 3, "kids": {}}],
    ),
    "union": (LINKED, ["next"], LINKED, BINARY, [linked(1), linked(2), linked(5)]),
    "union of several": (
        CHOICE, ["either", "member1"], CHOICE, pa.struct([("member0", pa.int32()),
        ("member1", BINARY)]),
        [{"id": 1, "either": each} for each in (None, 5, {"id": 2, "either": None})],
    ),
    "two records": (
        MUTUAL, ["b", "a"], MUTUAL,
        pa.struct([pa.field("n", pa.int32(), False), ("a", BINARY),
                   pa.field("z", pa.int32(), False)]),
        [{"id": 1, "b": {"n": 2, "a": {"id": 3, "b": {"n": 4, "a": None, "z": 5}}, "z": 6}}],
    ),
    "two records, in lists": (
        LISTED, ["bs", 0, "a"], array(LISTED),
        pa.list_(pa.field("element", pa.struct([pa.field("n", pa.int32(), False),
                                                pa.field("a", BINARY, False)]), False)),
        [{"id": 1, "bs": [{"n": 2, "a": [{"id": 3, "bs": []}]}]}],
    ),
    "everything": (LEAVES, ["m"], mapped(LEAVES), BINARY, [LEAF, {**LEAF, "m": {"k": LEAF}}]),
    "decimal": (record(ID, of("d", WIDE)), ["d"], WIDE, BINARY, [{"id": 1, "d": MANY}]),
    "fixed decimal": (record(ID, of("d", FIXED)), ["d"], FIXED, BINARY, [{"id": 1, "d": -MANY}]),
    "nullable decimal": (
        record(ID, of("d", ["null", WIDE])), ["d"], WIDE, BINARY,
        [{"id": 1, "d": MANY}, {"id": 2, "d": None}],
    ),
    "decimals": (
        record(ID, of("d", array(["null", WIDE]))), ["d"], array(["null", WIDE]), BINARY,
        [{"id": 1, "d": [MANY, None]}, {"id": 2, "d": []}],
    ),
    "decimals by name": (
        record(ID, of("d", mapped(FIXED))), ["d"], mapped(FIXED), BINARY,
        [{"id": 1, "d": {"k": MANY}}],
    ),
}  # fmt: skip


def alone(tree: Any, value: Any) -> bytes | None:
    """Return the encoding of a value by itself, as fastavro writes it."""
    if value is None:
        return None
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(tree), value)
    return out.getvalue()


def at(value: Any, path: Sequence[str | int]) -> Any:
    """Return a part of a value; members of unions are chosen by the value."""
    for step in path:
        value = value[step] if step != "member1" else value if isinstance(value, dict) else None
    return value


def in_column(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        value = None if value is None else value[step]
    return value


def encodings(tree: Any, values: Sequence[Any]) -> list[bytes]:
    return [alone(tree, value) or b"\0" for value in values]


def decode(tree: Any, data: Sequence[bytes], *fields: str) -> Decoded:
    names = fields or avro_codec.arrow_schema(info(tree)).names
    return avro_codec.decoder(info(tree), info(tree), names).decode(pa.array(data, BINARY))


def batch(tree: Any, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), schema=avro_codec.arrow_schema(info(tree)))


def write(tree: Any, columns: pa.RecordBatch) -> Any:
    encoder = avro_codec.encoder(info(tree), columns.schema)
    return pickle.loads(pickle.dumps(encoder)).encode(columns).to_pylist()


@pytest.mark.parametrize("name", CASES)
def test_the_column_has_the_encoding_and_is_written_back_as_it_was(name: str) -> None:
    tree, path, kind, column, values = CASES[name]
    assert avro_codec.arrow_schema(info(tree)).field(path[0]).type == column
    data = encodings(tree, values)
    found = decode(tree, data)
    assert not found.bad
    names = avro_codec.arrow_schema(info(tree)).names
    columns = [column.to_pylist() for column in found.columns]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    assert [in_column(row, path) for row in rows] == [
        alone(kind, at(value, path)) for value in values
    ]
    assert write(tree, batch(tree, found.columns)) == data


@pytest.mark.parametrize("name", CASES)
def test_the_others_are_read_without_it(name: str) -> None:
    tree, path, _, _, values = CASES[name]
    data = encodings(tree, values)
    others = [field["name"] for field in tree["fields"] if field["name"] != path[0]]
    found = decode(tree, data, *others)
    assert not found.bad
    whole = batch(tree, decode(tree, data).columns)
    assert list(found.columns) == [whole.column(each) for each in others]


@pytest.mark.parametrize("name", CASES)
def test_damaged_values_are_undecodable_and_never_something_else(name: str) -> None:
    tree, _, _, _, values = CASES[name]
    rng = Random(name)
    good = encodings(tree, values)
    cut = [data[:size] for data in good for size in range(len(data))]
    assert len(decode(tree, cut).bad) == len(cut)
    data = [damaged(rng, rng.choice(good)) for _ in range(500)]
    found = decode(tree, data)
    fine = pa.array([row not in {bad.row for bad in found.bad} for row in range(len(data))])
    # What is read can be written again, with the same meaning.
    again = write(tree, batch(tree, [column.filter(fine) for column in found.columns]))
    assert list(decode(tree, again).columns) == [column.filter(fine) for column in found.columns]


@pytest.mark.parametrize(
    "tree,field,value,reason",
    [
        (TREE, "kids", b"", "the value ends within a number"),
        (TREE, "kids", b"\0\0", "1 bytes follow"),
        (TREE, "kids", b"\x02\x04a", "2 bytes are announced, 1 are left"),
        (TREE, "kids", b"\x02\x02\xff\0\0\0", "a text is not UTF-8"),
        (TREE, "kids", b"\x02\x02a\0\xff\xff\xff\xff\xff\x01\0", "does not fit an int"),
        (LINKED, "next", b"\x02\x04", "a union of 2 types has the number 2"),
        (LEAVES, "m", b"\x02\x02k\x02", "the byte 2 is not a boolean"),
        (record(ID, of("d", WIDE)), "d", b"\x04\0", "2 bytes are announced"),
        (record(ID, of("d", FIXED)), "d", b"\0" * 23, "24 bytes are announced"),
        (
            LEAVES, "m",
            b"\x02\x02k\x01\x02" + bytes(12) + b"\0\0\x04",
            "an enum of 2 symbols has the number 2",
        ),
    ],
)  # fmt: skip
def test_what_is_no_value_of_the_type_is_not_written(
    tree: Any, field: str, value: bytes, reason: str
) -> None:
    (good,) = {"kids": [node("a")], "next": [linked(1)], "m": [LEAF], "d": [{"id": 1, "d": MANY}]}[
        field
    ]
    columns = list(decode(tree, encodings(tree, [good] * 3)).columns)
    names = avro_codec.arrow_schema(info(tree)).names
    place = names.index(field)
    fine = columns[place][0].as_py()
    columns[place] = pa.array([fine, value, fine], BINARY)
    with pytest.raises(Mismatch, match=reason) as caught:
        write(tree, batch(tree, columns))
    assert (caught.value.field, caught.value.row) == (field, 1)


def test_a_column_of_another_type_is_a_mismatch_that_says_what_to_give() -> None:
    columns = pa.schema([("name", pa.string()), ("kids", pa.string()), ("id", pa.int32())])
    with pytest.raises(SchemaMismatch, match=r"kids is string, .* give its Avro encoding"):
        avro_codec.encoder(info(TREE), columns)


def test_a_missing_field_gets_its_default_or_null() -> None:
    for kind, default, expected in (
        (array("R"), {"default": []}, b"\0"),
        (mapped("R"), {"default": {}}, b"\0"),
        (["null", "R"], {"default": None}, b"\0"),
        (["null", "R"], {}, b"\0"),
        (["R", "null"], {}, b"\x02"),
        (array("R"), {"default": [{"id": 3, "o": []}]}, b"\x02\x06\0\0"),
        (WIDE, {"default": "\xff"}, b"\x02\xff"),
    ):
        tree = record(ID, of("o", kind, **default))
        columns = pa.RecordBatch.from_pydict({"id": pa.array([5], pa.int32())})
        assert write(tree, columns) == [b"\x0a" + expected]
        # A reader of values without it gets the same.
        found = read(record(ID), tree, {"id": 5})
        value = found.columns[1][0].as_py()
        assert (b"" if value is None else value) == (b"" if "null" in kind else expected)
    without: list[dict[str, Any]] = [{}, {"default": {}}, {"default": 7}]
    for default in without:
        for odd in (array("R"), "R"):
            tree = record(ID, of("o", odd, **default))
            with pytest.raises(SchemaMismatch, match="o is missing"):
                write(tree, columns)
            with pytest.raises(SchemaMismatch, match="the field o"):
                read(record(ID), tree, {"id": 5})


def test_values_of_any_depth_are_read_skipped_and_written() -> None:
    depth = 20_000
    data = b"\x02\x02" * depth + b"\x02\0"
    found = decode(LINKED, [data, data[:-1]])
    assert [bad.row for bad in found.bad] == [1]
    assert found.columns[1][0].as_py() == data[2:]
    assert decode(LINKED, [data], "id").columns[0].to_pylist() == [1]
    columns = [column.slice(0, 1) for column in found.columns]
    assert write(LINKED, batch(LINKED, columns)) == [data]


def test_a_record_that_always_contains_itself_has_no_values() -> None:
    between = record(of("f", record(name="E")), of("r", "R"), name="S")
    for kind, reason in (
        ([of("r", "R")], "so that no value ends"),
        ([of("r", between)], "so that no value ends"),
        ([ID, of("r", "R")], "the value ends within a number"),
    ):
        for names in (["r"], ["x"]):
            found = decode(record(*kind, of("x", "int")), [bytes(100)], *names)
            assert reason in found.bad[0].reason


def test_items_without_bytes_are_bounded() -> None:
    tree = record(ID, of("o", array(record(of("n", array("null")), of("r", array("R")), name="Q"))))
    assert avro_codec.arrow_schema(info(tree)).names == ["id", "o"]
    tree = record(of("r", ["null", "R"]), of("n", array("null")))
    for count, is_fine in ((900, True), (1_100, False), (2**62, False)):
        body = b"\x02\0" + pack(count) + b"\0"
        assert bool(decode(tree, [body + b"\0"]).bad) != is_fine


def pack(count: int) -> bytes:
    return alone("long", count) or b""


def test_lists_in_blocks_with_sizes_are_passed_on_as_they_are() -> None:
    kids = b"\x01\x06\x02a\0\x02\x02b\0\0"
    kids = b"\x01\x08\x02a\0\x02\0"
    data = b"\x02r" + kids + b"\x02"
    found = decode(TREE, [data])
    assert (found.bad, found.columns[1].to_pylist()) == ([], [kids])
    assert write(TREE, batch(TREE, found.columns)) == [data]


def test_what_is_no_record_is_one_column() -> None:
    for tree, value, expected in (
        (WIDE, MANY, alone(WIDE, MANY)),
        (array(WIDE), [MANY], alone(array(WIDE), [MANY])),
        (["null", WIDE], MANY, alone(WIDE, MANY)),
        (["null", TREE], None, None),
    ):
        data = encodings(tree, [value])
        found = decode(tree, data)
        assert found.columns[0].to_pylist() == [expected]
        assert write(tree, batch(tree, found.columns)) == data
    data = encodings(array(TREE), [[node("a", node("b"))]])
    (column,) = decode(array(TREE), data).columns
    assert column.type == pa.list_(
        pa.field(
            "element",
            pa.struct(
                [
                    pa.field("name", pa.string(), False),
                    pa.field("kids", BINARY, False),
                    pa.field("id", pa.int32(), False),
                ]
            ),
            False,
        )
    )
    assert column[0][0]["kids"].as_py() == alone(array(TREE), [node("b")])


# --- versions -------------------------------------------------------------------------------


def renamed(tree: Any) -> Any:
    return json.loads(json.dumps(tree).replace('"R"', '"n.Q"').replace('"B"', '"C"'))


@pytest.mark.parametrize("name", CASES)
def test_the_same_type_is_passed_on_whatever_its_names_and_the_other_fields(name: str) -> None:
    tree, path, _, _, values = CASES[name]
    data = encodings(tree, values)
    reader = renamed(tree)
    if "decimal" in name:
        reader["fields"] = [of("more", "string", default="x"), *reader["fields"][::-1]]
    found = avro_codec.decoder(info(tree), info(reader), [str(path[0])]).decode(
        pa.array(data, BINARY)
    )
    assert not found.bad
    assert found.columns == decode(tree, data, str(path[0])).columns


DIFFERENT = {
    "a field more": record(of("name", "string"), of("kids", array("R")), ID, of("x", "int")),
    "a field of another type": record(
        of("name", "string"), of("kids", array("R")), of("id", "long")
    ),
    "a field of another name": record(
        of("name", "string"), of("kids", array("R")), of("ID", "int")
    ),
    "another list": record(of("name", "string"), of("kids", mapped("R")), ID),
    "items that may be null": record(of("name", "string"), of("kids", array(["null", "R"])), ID),
    "no list": record(of("name", "string"), of("kids", ["null", "R"]), ID),
}


CONTAINS_ITSELF = (
    "contains itself, so it stays bytes, and its definition differs between the version"
)


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_type_is_refused_where_the_field_is_asked_for(name: str) -> None:
    for writer, reader in ((TREE, DIFFERENT[name]), (DIFFERENT[name], TREE)):
        with pytest.raises(SchemaMismatch, match="the field kids ") as caught:
            avro_codec.decoder(info(writer), info(reader), ["kids"])
        is_list = name not in ("another list", "no list")
        assert (CONTAINS_ITSELF in caught.value.what) == is_list
        assert ("was written as" in caught.value.what) != is_list
    data = encodings(TREE, [node("a", node("b"))])
    found = avro_codec.decoder(info(TREE), info(DIFFERENT[name]), ["name"])
    assert found.decode(pa.array(data, BINARY)).columns[0].to_pylist() == ["a"]


def test_null_is_null_whatever_the_type() -> None:
    reader = record(ID, of("next", ["null", "R"]), of("x", ["null", "int"], default=None))
    found = read(LINKED, reader, linked(1), linked(2))
    assert found.columns[1].to_pylist() == [None, None]
    assert [(bad.row, bad.field) for bad in found.bad] == [(1, "next")]
    assert CONTAINS_ITSELF in found.bad[0].reason


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
THREE = {**ENUM, "symbols": ["A", "B", "C"]}
# What a field within itself was written as, is read as, and whether that is possible.
CHANGES: dict[str, tuple[Any, Any, bool]] = {
    "a default of an enum": (ENUM, {**ENUM, "default": "A"}, True),
    "no default of an enum": ({**ENUM, "default": "A"}, ENUM, True),
    "an alias": (ENUM, {**ENUM, "aliases": ["Old"]}, True),
    "a symbol more": (ENUM, THREE, True),
    "a symbol less": (THREE, ENUM, False),
    "a symbol more before others": (ENUM, {**ENUM, "symbols": ["C", "A", "B"]}, False),
    "a type more": (["null", ENUM], ["null", ENUM, "string"], True),
    "a type less": (["null", ENUM, "string"], ["null", ENUM], False),
    "a type more before others": (["null", ENUM], ["string", "null", ENUM], False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_no_value_of_a_record_within_itself_does_not_matter(name: str) -> None:
    *kinds, is_read = CHANGES[name]
    writer, reader = (record(of("kind", kind), of("kids", array("R"))) for kind in kinds)
    kids = [{"kind": "A", "kids": []}]
    if is_read:
        found = read(writer, reader, {"kind": "B", "kids": kids})
        assert found.columns[1].to_pylist() == [alone(array(writer), kids)]
    else:
        with pytest.raises(SchemaMismatch, match=CONTAINS_ITSELF):
            avro_codec.decoder(info(writer), info(reader), ["kids"])


def test_a_record_is_compared_with_that_of_the_other_version_wherever_it_is() -> None:
    inner = of("n", "int")
    writer = record(of("s", record(inner, name="S")), of("kids", array("R")))
    listed = of("o", array("R"), default=[])
    reader = record(of("s", record(inner, listed, name="S")), of("kids", array("R")))
    for names in (["kids"], ["s", "kids"]):
        with pytest.raises(SchemaMismatch, match=CONTAINS_ITSELF):
            avro_codec.decoder(info(writer), info(reader), names)


def test_a_query_without_recursion_reads_values_with_it_as_far_as_it_goes() -> None:
    two = record(ID, of("next", ["null", record(ID, name="S")]))
    found = read(LINKED, two, linked(3))
    assert found.columns[1].to_pylist() == [{"id": 1}]


def test_decimals_that_fit_a_column_are_read_into_it() -> None:
    for wide in (WIDE, FIXED):
        narrow = {**wide, "precision": 38}
        for writer, reader in (("null", "null"), (wide, narrow)):
            assert writer == reader or read(
                record(of("d", writer)), record(of("d", reader)), {"d": b"\0" * 23 + b"\x07"}
            ).columns[0].to_pylist() == [Decimal("7E-10")]
        with pytest.raises(SchemaMismatch, match="the field d was written as decimal"):
            read(record(of("d", narrow)), record(of("d", wide)), {"d": b"\0" * 24})
        other = {**wide, "scale": 9}
        with pytest.raises(SchemaMismatch, match="d has more than 38 digits, so it stays bytes, "):
            read(record(of("d", other)), record(of("d", wide)), {"d": b"\0" * 24})


# --- definitions ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_schema_is_what_it_is_whatever_the_names(name: str) -> None:
    tree = CASES[name][0]
    found = identity(info(tree))
    assert found == identity(info(renamed(tree)))
    assert hash(found) == hash(identity(info(renamed(tree))))
    assert found != identity(info({**tree, "fields": [*tree["fields"], of("y", "int")]}))
    assert (record_name(info(tree)), record_name(info(renamed(tree)))) == ("R", "Q")


def test_which_record_is_meant_matters() -> None:
    trees = [
        record(of("s", record(of("t", array(name)), name="S")), of("x", array("S")))
        for name in ("R", "S")
    ]
    assert identity(info(trees[0])) != identity(info(trees[1]))
    with pytest.raises(SchemaMismatch, match=rf"the field s\.t {CONTAINS_ITSELF}"):
        avro_codec.decoder(info(trees[0]), info(trees[1]), ["s"])


def test_a_name_that_is_defined_anew_means_the_record_around() -> None:
    inner = record(of("a", ["null", "R"]), name="R")
    tree = record(of("i", inner), of("b", ["null", "R"]))
    schema = avro_codec.arrow_schema(info(tree))
    assert schema.field("i").type == pa.struct([("a", BINARY)])
    # The inner record is complete, so that the outer one refers to that.
    assert schema.field("b").type == pa.struct([("a", BINARY)])
    data = b"\x02\x02\0\x02\0"
    found = decode(tree, [data])
    assert found.columns[0].to_pylist() == [{"a": b"\x02\0"}]


def test_nesting_is_counted_as_far_as_there_are_columns() -> None:
    tree: Any = ["null", "R"]
    for number in range(MAX_NESTING):
        tree = record(of("f", tree), name=f"S{number}" if number else "R")
    with pytest.raises(SchemaMismatch, match="nested more than"):
        avro_codec.arrow_schema(info(tree))
