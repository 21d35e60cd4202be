"""Values of one schema read as another: as in fastavro, and more leniently where documented."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.avro import codec as avro_codec
from pulsar_spark.schema.codec import Decoded
from tests.schema.avro.random_values import Schemas, Values, decoded, encoded, info, rows
from tests.schema.kernel import choose


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def of(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def read(writer: Any, reader: Any, *values: Any) -> Decoded:
    names = avro_codec.arrow_schema(info(reader)).names
    decoder = avro_codec.decoder(info(writer), info(reader), names)
    return decoder.decode(pa.array(encoded(writer, values), pa.binary()))


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


# --- random pairs ---------------------------------------------------------------------------------

_WIDER = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "double"),
    "float": ("float", "double"),
    "bytes": ("bytes",),
    "string": ("string", "bytes"),
}


class Evolution:
    """Makes a later version of a schema that can read values of the earlier one."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._schemas = Schemas(rng, logical=False)

    def of(self, tree: Any) -> Any:
        rng = self._rng
        if isinstance(tree, str):
            wider = rng.choice(_WIDER.get(tree, (tree,)))
            return ["null", wider] if rng.random() < 0.2 else wider
        kind = tree["type"] if isinstance(tree, dict) else ""
        changed: dict[str, Any] = {}
        if kind == "record":
            return self._record(tree)
        if kind == "array":
            changed = {"items": self.of(tree["items"])}
        elif kind == "map":
            changed = {"values": self.of(tree["values"])}
        elif kind == "enum":
            changed = {"symbols": ["new", *tree["symbols"][1:]], "default": "new"}
        return {**tree, **changed} if changed else tree

    def _record(self, tree: dict[str, Any]) -> dict[str, Any]:
        rng = self._rng
        fields: list[dict[str, Any]] = []
        for field in tree["fields"]:
            if fields and rng.random() < 0.2:
                continue
            changed = {"name": field["name"], "type": self.of(field["type"])}
            if rng.random() < 0.2:
                changed |= {"name": f"{field['name']}_new", "aliases": ["other", field["name"]]}
            fields.append(changed)
        fields += rng.sample(
            [
                of("added_null", ["null", "string"], default=None),
                of("added_text", "string", default="Zürich"),
                of("added_bytes", "bytes", default="\u00ff\u0000"),
                of("added_list", {"type": "array", "items": "int"}, default=[1, -2, 300]),
                of("added_map", {"type": "map", "values": "double"}, default={"a": 0.5}),
            ],
            rng.randrange(3),
        )
        rng.shuffle(fields)
        return {**tree, "fields": fields}


@pytest.mark.fault(64)
@pytest.mark.parametrize("seed", range(40))
def test_random_versions_are_read_as_fastavro_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    writer = Schemas(rng, logical=False).record()
    reader = Evolution(rng).of(writer)
    values = Values(rng)
    count = 600 if seed % 2 else 250
    choose(monkeypatch, kernel=bool(seed % 2))
    data = encoded(writer, (values.of(writer) for _ in range(count)))
    names = avro_codec.arrow_schema(info(reader)).names
    found = avro_codec.decoder(info(writer), info(reader), names).decode(pa.array(data))
    assert not found.bad
    assert rows(names, found.columns) == [
        _narrowed(row, reader) for row in decoded(writer, data, reader)
    ]


def _narrowed(found: Any, tree: Any) -> Any:
    """Return fastavro's value in the reader's types: it leaves defaults and numbers as they are."""
    if isinstance(tree, list):
        present = [member for member in tree if member != "null"]
        return found if found is None or len(present) > 1 else _narrowed(found, present[0])
    kind = tree if isinstance(tree, str) else tree["type"]
    if kind == "float":
        found = pa.scalar(float(found), pa.float32()).as_py()
    elif kind == "double":
        found = float(found)
    elif kind == "bytes" and isinstance(found, str):
        found = found.encode("latin-1")
    elif kind == "record":
        found = {f["name"]: _narrowed(found[f["name"]], f["type"]) for f in tree["fields"]}
    elif kind == "array":
        found = [_narrowed(item, tree["items"]) for item in found]
    elif kind == "map":
        found = [(key, _narrowed(item, tree["values"])) for key, item in found]
    return found


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "writer,reader,value,expected",
    [
        ("int", "long", 7, 7),
        ("int", "float", 7, 7.0),
        ("long", "double", 2**40, 2.0**40),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "Zürich", "Zürich".encode()),
        ("bytes", "string", "Zürich".encode(), "Zürich"),
        ("int", ["null", "long"], 7, 7),
        (["null", "int"], ["null", "long"], 7, 7),
        (["int", "string"], "long", 7, 7),
        (["null", "int"], "int", 7, 7),
        ("int", ["string", "long"], 7, {"member0": None, "member1": 7}),
        ("int", ["long", "int"], 7, 7),
        (
            "string",
            ["int", "bytes", "string"],
            "a",
            {f"member{i}": [None, None, "a"][i] for i in range(3)},
        ),
        (["null", "int", "string"], ["string", "null", "int"], 7, {"member0": None, "member1": 7}),
        (enum("A", "B"), enum("B", "A"), "A", "A"),
        (enum("A", "B"), enum("C", default="C"), "B", "C"),
        (
            record(of("x", "int"), name="One"),
            record(of("x", "int"), name="Two"),
            {"x": 1},
            {"x": 1},
        ),
    ],
)
def test_rules(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    found = read(record(of("f", writer)), record(of("f", reader)), {"f": value})
    assert not found.bad
    assert found.columns[0].to_pylist() == [expected]


@pytest.mark.parametrize(
    "writer,reader,expected",
    [
        ("timestamp-millis", "timestamp-micros", 5000),
        ("timestamp-nanos", "timestamp-millis", 0),
        ("timestamp-micros", "timestamp-millis", 5),
        ("timestamp-millis", "local-timestamp-nanos", 5000),
        ("", "timestamp-millis", 5000),
        ("timestamp-millis", "", 5),
        ("time-micros", "time-micros", 5000),
    ],
)
def test_times_of_another_unit_are_converted(writer: str, reader: str, expected: int) -> None:
    kinds = [{"type": "long", "logicalType": name} if name else "long" for name in (writer, reader)]
    found = read(record(of("f", kinds[0])), record(of("f", kinds[1])), {"f": 5})
    assert found.columns[0].view(pa.int64()).to_pylist() == [expected]


def test_decimals_keep_the_scale_they_were_written_with() -> None:
    def decimal(scale: int) -> Any:
        return {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": scale}

    found = read(record(of("f", decimal(1))), record(of("f", decimal(3))), {"f": b"\x0f"})
    assert str(found.columns[0][0]) == "1.500"
    coarser = read(
        record(of("f", decimal(3))), record(of("f", decimal(1))), {"f": b"\x64"}, {"f": b"\x0f"}
    )
    assert str(coarser.columns[0][0]) == "0.1"
    assert [item.row for item in coarser.bad] == [1]


def test_a_name_comes_before_an_alias() -> None:
    writer = record(of("a", "int"), of("b", "int"))
    reader = record(of("c", "int", aliases=["b", "a"]), of("b", "int"))
    found = read(writer, reader, {"a": 1, "b": 2})
    assert [column.to_pylist() for column in found.columns] == [[1], [2]]


@pytest.mark.parametrize("names", [("b", "c"), ("c", "b"), ("b",), ("c",)])
def test_fields_that_were_renamed_in_turn_keep_their_values(names: tuple[str, ...]) -> None:
    writer = record(of("a", "int"), of("b", "int"))
    fields = [of("b", "int", aliases=["a"]), of("c", "int", aliases=["b"], default=-1)]
    decoder = avro_codec.decoder(info(writer), info(record(*fields)), names)
    found = decoder.decode(pa.array(encoded(writer, [{"a": 1, "b": 2}]), pa.binary()))
    assert [column.to_pylist() for column in found.columns] == [
        [{"b": 1, "c": 2}[name]] for name in names
    ]


def test_an_alias_of_another_field_makes_no_difference_to_those_renamed_in_turn() -> None:
    writer = record(of("a", "int"), of("b", "int"), of("x", "int"))
    reader = record(
        of("b", "int", aliases=["a"]),
        of("c", "int", aliases=["b"], default=-1),
        of("x", "int"),
        of("y", "int", aliases=["x"], default=-1),
    )
    found = read(writer, reader, {"a": 1, "b": 2, "x": 3})
    assert [column.to_pylist() for column in found.columns] == [[1], [2], [3], [-1]]


def test_an_alias_takes_no_field_that_has_its_name() -> None:
    writer = record(of("a", "int"), of("b", "int"))
    found = read(writer, record(of("b", "int", aliases=["a"])), {"a": 1, "b": 2})
    assert found.columns[0].to_pylist() == [2]


@pytest.mark.parametrize("alias", ["Circle", "other.Circle"])
def test_a_member_of_a_union_is_found_by_its_alias(alias: str) -> None:
    def shape(name: str, **more: Any) -> dict[str, Any]:
        return {**record(of("size", "int"), name=name), **more}

    writer = record(of("f", ["null", shape("Circle")]))
    reader = record(of("f", ["null", shape("Square"), shape("Disc", aliases=[alias])]))
    found = read(writer, reader, {"f": {"size": 5}})
    assert found.columns[0].to_pylist() == [{"member0": None, "member1": {"size": 5}}]


@pytest.mark.parametrize(
    "written,read_as,places",
    [
        ("A B", "C D", [0, 1]),
        # A name counts before the place.
        ("A B", "B A", [1, 0]),
        ("A B", "B C", [1, 0]),
        ("A B C", "C D E", [1, 2, 0]),
        # What is left over is read as the first of its kind.
        ("A B C", "D E", [0, 1, 0]),
    ],
)
def test_members_of_a_union_without_their_name_are_read_in_their_order(
    written: str, read_as: str, places: list[int]
) -> None:
    def union(names: str) -> Any:
        return record(of("f", ["null", *(record(of("v", "int"), name=n) for n in names.split())]))

    values = [{"f": (name, {"v": 1})} for name in written.split()]
    found = read(union(written), union(read_as), *values).columns[0].to_pylist()
    assert [[*each.values()].index({"v": 1}) for each in found] == places


def test_members_of_a_union_without_their_name_are_read_as_what_equals_them() -> None:
    def union(*members: Any) -> Any:
        return record(of("f", ["null", *members]))

    x, y = of("x", ["null", "int"]), of("y", ["null", "int"])
    writer = union(record(x, name="A"), record(y, name="B"))
    reader = union(record(y, name="C"), record(x, name="D"))
    found = read(writer, reader, {"f": ("A", {"x": 1})}, {"f": ("B", {"y": 2})})
    assert found.columns[0].to_pylist() == [
        {"member0": None, "member1": {"x": 1}},
        {"member0": {"y": 2}, "member1": None},
    ]


def test_a_missing_field_that_can_be_null_needs_no_default() -> None:
    found = read(record(of("a", "int")), record(of("b", ["string", "null"])), {"a": 1})
    assert found.columns[0].to_pylist() == [None]


def test_a_branch_without_a_place_is_undecodable_where_it_occurs() -> None:
    writer, reader = record(of("f", ["int", "string"])), record(of("f", "int"))
    found = read(writer, reader, {"f": 1}, {"f": "x"})
    assert found.columns[0].to_pylist() == [1, None]
    assert [(item.row, item.field) for item in found.bad] == [(1, "f")]
    assert "was written as string, the query reads it as int" in found.bad[0].reason


def test_a_symbol_without_a_place_is_undecodable_where_it_occurs() -> None:
    found = read(
        record(of("f", enum("A", "B"))), record(of("f", enum("A"))), {"f": "A"}, {"f": "B"}
    )
    assert found.columns[0].to_pylist() == ["A", None]
    assert [item.row for item in found.bad] == [1]


@pytest.mark.fault(64)
@pytest.mark.parametrize(
    "writer,reader,what",
    [
        (of("a", "string"), of("a", "int"), "the field a was written as string"),
        (of("a", "long"), of("a", "int"), "the field a was written as long"),
        (of("a", ["null", "string"]), of("a", "int"), "written as one of null, string"),
        (of("a", "int"), of("b", "int"), "the field b has no default"),
        (of("a", "int"), of("b", "int", default="x"), "the field b has a default of another type"),
        (
            of("a", {"type": "array", "items": record(of("x", "int"), name="I")}),
            of("a", {"type": "array", "items": record(of("x", "string"), name="I")}),
            r"the field a\[\].x was written as int",
        ),
        (
            of("a", {"type": "map", "values": "int"}),
            of("a", {"type": "map", "values": "string"}),
            "the field a{} was written as int",
        ),
    ],
)
def test_versions_that_do_not_go_together_are_refused_with_the_path(
    writer: Any, reader: Any, what: str
) -> None:
    with pytest.raises(SchemaMismatch, match=what):
        read(record(writer), record(reader))


def test_a_field_that_is_not_asked_for_need_not_go_together() -> None:
    writer = record(of("a", "string"), of("b", "int"))
    reader = record(of("a", "int"), of("b", "long"), of("c", "int"))
    found = avro_codec.decoder(info(writer), info(reader), ["b"])
    data = encoded(writer, [{"a": "x", "b": 5}])
    assert found.decode(pa.array(data)).columns[0].to_pylist() == [5]


@pytest.mark.fault(44)
def test_unions_of_a_hostile_size_are_refused_in_bounded_time() -> None:
    members = [record(of("x", "int"), name=f"R{n}") for n in range(2000)]
    others = [record(of("y", "int"), name=f"S{n}") for n in range(2000)]
    with pytest.raises(SchemaMismatch, match="too large"):
        avro_codec.decoder(info(record(of("f", members))), info(record(of("f", others))), ["f"])


@pytest.mark.fault(44)
def test_defaults_of_a_hostile_size_are_refused() -> None:
    wanted = [of(f"f{n}", "string", default="x" * 5000) for n in range(4)]
    with pytest.raises(SchemaMismatch, match="the default of the field f3 is too large"):
        read(record(of("a", "int")), record(*wanted), {"a": 1})
    assert (
        len(read(record(of("a", "int")), record(*wanted[:3]), {"a": 1}).columns[0][0].as_py())
        == 5000
    )
