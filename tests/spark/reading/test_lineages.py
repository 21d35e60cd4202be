"""Topics that are read together in the middle of an upgrade: their newest schemas differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Type
from pyspark.sql.types import StructType

from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.schema.key_value import join_pairs
from pulsar_spark.schema.table.names import KEY
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.options.stream import StreamOptions, parse_stream_options
from pulsar_spark.spark.streaming.reader import PulsarStreamReader
from pulsar_spark.testing import EmbeddedBroker
from tests.schema.protobuf.cases import add, class_of, info_of, new_file
from tests.spark.topics import rows_of, set_schema, store


@pytest.fixture(autouse=True)
def _always_compatible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_spark.testing.schemas._check_fits", lambda *_: None)


Fields = dict[str, dict[str, Any]]
"""The fields of a version by name: their Avro type, default and aliases, and Protobuf's number."""


def field(number: int, kind: str, default: Any = None, *aliases: str) -> dict[str, Any]:
    return {"number": number, "type": kind, "default": default, "aliases": list(aliases)}


ID, NAME, COUNT = field(1, "long"), field(2, "string", "n"), field(3, "int", 7)
CITY = field(4, "string", "-")
FIRST: Fields = {"id": ID, "name": NAME, "count": COUNT}


class Avro:
    kind = pb.Schema.Avro

    def schema(self, fields: Fields, record: str = "Order") -> SchemaInfo:
        return SchemaInfo(self.kind, "", json.dumps(self.definition(fields, record)).encode())

    def definition(self, fields: Fields, record: str = "Order") -> dict[str, Any]:
        listed = [
            {"name": name, "type": each["type"], "aliases": each["aliases"]}
            | ({} if each["default"] is None else {"default": each["default"]})
            for name, each in fields.items()
        ]
        return {"type": "record", "name": record, "fields": listed}

    def encode(self, fields: Fields, value: dict[str, Any]) -> bytes:
        out = BytesIO()
        fastavro.schemaless_writer(out, self.definition(fields), value)
        return out.getvalue()

    def decode(self, written: Fields, wanted: Fields, data: bytes) -> dict[str, Any]:
        schemas = self.definition(written), self.definition(wanted)
        found: Any = fastavro.schemaless_reader(BytesIO(data), *schemas)
        return dict(found)


class Json(Avro):
    kind = pb.Schema.Json

    def encode(self, fields: Fields, value: dict[str, Any]) -> bytes:
        return json.dumps(value).encode()

    def decode(self, written: Fields, wanted: Fields, data: bytes) -> dict[str, Any]:
        found = json.loads(data)
        return {name: found.get(name) for name in wanted}


class Protobuf:
    def schema(self, fields: Fields, record: str = "Order") -> SchemaInfo:
        return info_of(self.file(fields, record), record)

    def file(self, fields: Fields, record: str = "Order") -> Any:
        kinds = {"long": Type.TYPE_INT64, "int": Type.TYPE_INT32, "string": Type.TYPE_STRING}
        file = new_file(syntax="proto3")
        message = file.message_type.add(name=record)
        for name, each in fields.items():
            add(message, name, each["number"], kinds[each["type"]])
        return file

    def encode(self, fields: Fields, value: dict[str, Any]) -> bytes:
        data: bytes = class_of(self.file(fields), "Order")(**value).SerializeToString()
        return data

    def decode(self, written: Fields, wanted: Fields, data: bytes) -> dict[str, Any]:
        found = class_of(self.file(wanted), "Order").FromString(data)
        return {name: getattr(found, name) for name in wanted}


class Listed(Protobuf):
    """PROTOBUF as Java's client registers it."""

    def schema(self, fields: Fields, record: str = "Order") -> SchemaInfo:
        kinds = {"long": "INT64", "int": "INT32", "string": "STRING"}
        listed = [
            {"number": each["number"], "name": name, "type": kinds[each["type"]]}
            | {"label": "LABEL_OPTIONAL", "definition": None}
            for name, each in fields.items()
        ]
        blank = {"long": 0, "int": 0, "string": ""}
        zeros = {n: each | {"default": blank[each["type"]]} for n, each in fields.items()}
        definition = json.dumps(Avro().definition(zeros, record)).encode()
        properties = {"__PARSING_INFO__": json.dumps(listed)}
        return SchemaInfo(pb.Schema.Protobuf, "", definition, properties)


class Pairs(Avro):
    """Pairs whose keys and values are of the same versions."""

    def schema(self, fields: Fields, record: str = "Order") -> SchemaInfo:
        own = super().schema(fields, record)
        return join_key_value(own, own, separated=False)

    def encode(self, fields: Fields, value: dict[str, Any]) -> bytes:
        parts = [pa.array([super().encode(fields, value)], pa.binary())] * 2
        data: bytes = join_pairs(*parts)[0].as_py()
        return data

    def decode(self, written: Fields, wanted: Fields, data: bytes) -> dict[str, Any]:
        size = int.from_bytes(data[:4], "big")
        found = super().decode(written, wanted, data[4 : 4 + size])
        return {**found, KEY: found}


FORMATS = {each.__name__: each() for each in (Avro, Json, Protobuf, Listed, Pairs)}


@dataclass(frozen=True)
class Change:
    """An upgrade, and which version the topics are read as in the middle of it."""

    second: Fields
    read_as: int = 2
    but: tuple[tuple[str, int], ...] = ()
    """Formats in which it is another one."""

    def reader(self, of: str) -> Fields:
        return self.second if dict(self.but).get(of, self.read_as) == 2 else FIRST


WITHOUT = {"id": ID, "name": NAME}
LONGER = {**FIRST, "count": field(3, "long", 7)}
# JSON and Protobuf have no defaults that count.
CHANGES = {
    "added": Change({**FIRST, "city": CITY}),
    "added without default": Change(
        {**FIRST, "city": field(4, "string")}, but=(("Avro", 1), ("Pairs", 1))
    ),
    "removed": Change(WITHOUT, read_as=1),
    "one removed, one added": Change({**WITHOUT, "city": CITY}),
    "promoted": Change(LONGER),
    "reordered": Change(dict(reversed(FIRST.items()))),
    "renamed": Change({"id": ID, "title": field(2, "string", "t", "name"), "count": COUNT}),
}
TABLE = [(change, kind) for change in CHANGES for kind in FORMATS]
SELECTIONS = {"topics": "a,b", "topicsPattern": "a|b"}


class Topics:
    """Topics a and b, of which a gets the second version first."""

    def __init__(self, broker: EmbeddedBroker, kind: str, change: str) -> None:
        self._broker = broker
        self.format: Any = FORMATS[kind]
        self.change = CHANGES[change]
        self.wanted = self.change.reader(kind)
        self.versions = (FIRST, self.change.second)
        self.stored: list[tuple[Fields, bytes]] = []
        for topic in "ab":
            broker.create_topic(topic)
            set_schema(broker, topic, self.format.schema(FIRST))
            self.store(topic, 0)

    def store(self, topic: str, version: int) -> None:
        number = len(self.stored) + 1
        fields = self.versions[version]
        value = {"id": number, "name": "x", "title": "y", "count": 5, "city": "z"}
        if fields["id"] and fields.get("count", COUNT)["type"] == "long":
            value["count"] = 2**40 + number
        data = self.format.encode(fields, {name: value[name] for name in fields})
        self.stored.append((fields, data))
        number_of_version = version.to_bytes(8, "big")
        store(self._broker, topic, [data], schema_version=number_of_version)

    def upgrade(self, topic: str) -> None:
        set_schema(self._broker, topic, self.format.schema(self.versions[1]))
        self.store(topic, 1)

    def expected(self, wanted: Fields | None = None, since: int = 0) -> list[dict[str, Any]]:
        """Return what the format's own library reads."""
        wanted = self.wanted if wanted is None else wanted
        return [self.format.decode(own, wanted, data) for own, data in self.stored[since:]]


def in_order(rows: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def values(rows: list[dict[str, Any]], like: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return in_order([{name: row[name] for name in like[0]} for row in rows])


class Reads:
    """Reads topics as Spark does."""

    def __init__(self, broker: EmbeddedBroker, **options: str) -> None:
        self.options = {"service.url": broker.service_url, **options}

    def batch(self, schema: StructType | None = None) -> list[dict[str, Any]]:
        source = PulsarDataSource(dict(self.options))
        found: Any = source.reader(schema or source.schema())
        return rows_of(batch for part in found.partitions() for batch in found.read(part))

    def stream(self, schema: StructType | None = None) -> Stream:
        """Start a query as a program that is run anew does."""
        options = {**self.options, "startingOffsets": "earliest"}
        found = parse_stream_options(options)
        query = schema or PulsarDataSource(dict(options)).schema()
        read = replace(found.read, query=query, inferred=schema is None)
        return Stream(replace(found, read=read), query)


@dataclass
class Stream:
    """A query, which goes on where one ended."""

    options: StreamOptions
    schema: StructType
    end: dict[str, Any] | None = None

    def after(self, other: Stream) -> Stream:
        return replace(self, end=other.end)

    def batch(self) -> list[dict[str, Any]]:
        """Restart, and read a micro-batch."""
        reader = PulsarStreamReader(self.options, self.schema)
        start = self.end or reader.initialOffset()
        reader.partitions(start, start)
        self.end = reader.latestOffset()
        parts = reader.partitions(start, self.end)
        rows = rows_of(batch for part in parts for batch in reader.read(part))
        reader.stop()
        return rows


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("change,kind", TABLE)
def test_a_batch_reads_versions_of_one_record_as_one_of_them(
    broker: EmbeddedBroker, change: str, kind: str, selection: str
) -> None:
    topics = Topics(broker, kind, change)
    topics.upgrade("a")
    reads = Reads(broker, **{selection: SELECTIONS[selection]})
    rows, expected = reads.batch(), topics.expected()
    assert values(rows, expected) == in_order(expected)
    columns = [name for name in rows[0] if not name.startswith("__")]
    assert columns == list(topics.wanted)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("change,kind", TABLE)
def test_a_stream_restarts_in_the_middle_of_an_upgrade(
    broker: EmbeddedBroker, change: str, kind: str, selection: str
) -> None:
    topics = Topics(broker, kind, change)
    reads = Reads(broker, **{selection: SELECTIONS[selection]})
    first = reads.stream()
    expected = topics.expected(FIRST)
    assert values(first.batch(), expected) == in_order(expected)
    read = len(topics.stored)
    topics.upgrade("a")
    topics.store("b", 0)
    second = reads.stream().after(first)
    expected = topics.expected(since=read)
    assert values(second.batch(), expected) == in_order(expected)
    # The other topic follows.
    read = len(topics.stored)
    topics.upgrade("b")
    expected = topics.expected(topics.versions[1], since=read)
    assert values(reads.stream().after(second).batch(), expected) == in_order(expected)


# Of the others, the first version cannot read values of the second.
KEPT = [
    (change, kind)
    for change, kind in TABLE
    if change not in ("promoted", "renamed") or kind in ("Json", "Protobuf", "Listed")
    if (change, kind) not in {("promoted", "Protobuf"), ("promoted", "Listed")}
    if (change, kind) != ("promoted", "Json")
]


@pytest.mark.parametrize("change,kind", KEPT)
def test_a_query_keeps_the_columns_of_the_first_version(
    broker: EmbeddedBroker, change: str, kind: str
) -> None:
    topics = Topics(broker, kind, change)
    reads = Reads(broker, topics="a,b")
    query = reads.stream()
    query.batch()
    read = len(topics.stored)
    topics.upgrade("a")
    expected = topics.expected(FIRST, since=read)
    assert values(query.batch(), expected) == in_order(expected)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("change,kind", TABLE)
def test_columns_of_the_users_choice_are_read_in_the_middle_of_an_upgrade(
    broker: EmbeddedBroker, change: str, kind: str, selection: str
) -> None:
    topics = Topics(broker, kind, change)
    topics.upgrade("a")
    chosen = StructType().add("id", "long").add("__topic", "string")
    reads = Reads(broker, **{selection: SELECTIONS[selection]})
    wanted = [{"id": row["id"]} for row in topics.expected(FIRST if change == "removed" else None)]
    assert values(reads.batch(chosen), wanted) == in_order(wanted)
    assert values(reads.stream(chosen).batch(), wanted) == in_order(wanted)


CLASHES = {
    "Avro": r"field count was written as string, the query reads it as int",
    "Json": r"field count was written as array, the query reads it as int",
    "Protobuf": r"count is int32, and was written as string",
    "Listed": r"count is int32, and was written as string",
    "Pairs": r"field count was written as string, the query reads it as int",
}


@pytest.mark.parametrize("kind", FORMATS)
def test_fields_that_cannot_be_read_as_one_are_named_and_columns_get_past_them(
    broker: EmbeddedBroker, kind: str
) -> None:
    of: Any = FORMATS[kind]
    other = {**FIRST, "count": field(3, "string", "0")}
    schema, value = of.schema(other), of.encode(other, {"id": 2, "name": "x", "count": "c"})
    if kind == "Json":
        text = schema.schema_data.replace(
            b'"type": "string", "aliases": [], "default": "0"',
            b'"type": {"type": "array", "items": "int"}, "aliases": []',
        )
        schema, value = SchemaInfo(pb.Schema.Json, "", text), b'{"id":2,"name":"x","count":[1]}'
    for topic, own in (("b", of.schema(FIRST)), ("a", schema)):
        broker.create_topic(topic)
        set_schema(broker, topic, own)
    version = (0).to_bytes(8, "big")
    store(broker, "a", [value], schema_version=version)
    first = of.encode(FIRST, {"id": 1, "name": "x", "count": 5})
    store(broker, "b", [first], schema_version=version)
    reads = Reads(broker, topics="b,a")
    with pytest.raises(OptionError, match=CLASHES[kind]) as caught:
        reads.batch()
    assert ".schema(…)" in str(caught.value)
    chosen = StructType().add("name", "string").add("id", "long")
    assert in_order(reads.batch(chosen)) == [{"name": "x", "id": 1}, {"name": "x", "id": 2}]
    with pytest.raises(OptionError, match=CLASHES[kind]):
        reads.batch(chosen.add("count", "integer"))


@pytest.mark.parametrize("of", [Avro(), Json()])
def test_all_fields_that_do_not_fit_are_named_whatever_else_they_can_be(
    broker: EmbeddedBroker, of: Any
) -> None:
    changes: list[tuple[Any, Any]] = [
        (["null", "int"], ["null", "boolean"]),
        ({"type": "array", "items": ["null", "int"]}, {"type": "map", "values": "int"}),
        ({"type": "array", "items": ["null", "int"]}, {"type": "array", "items": "boolean"}),
        (["null", "int"], ["null", "int"]),
    ]
    for topic, side in (("a", 0), ("b", 1)):
        broker.create_topic(topic)
        fields = [{"name": f"f{i}", "type": pair[side]} for i, pair in enumerate(changes)]
        definition = {"type": "record", "name": "Order", "fields": fields}
        set_schema(broker, topic, SchemaInfo(of.kind, "", json.dumps(definition).encode()))
    with pytest.raises(OptionError) as caught:
        Reads(broker, topics="a,b").batch()
    told = str(caught.value)
    assert [name for name in ("f0", "f1", "f2[]", "f3") if name in told] == ["f0", "f1", "f2[]"]
    assert Reads(broker, topics="a,b").batch(StructType().add("f3", "integer")) == []


def test_topics_that_only_share_a_name_and_a_field_are_not_one(broker: EmbeddedBroker) -> None:
    for topic, name in (("a", "x"), ("b", "y")):
        broker.create_topic(topic)
        set_schema(broker, topic, Avro().schema({"id": ID, name: CITY}))
    with pytest.raises(OptionError, match="each lacks fields of another one: x, y"):
        Reads(broker, topics="a,b").batch()


def test_an_enum_is_read_as_the_version_with_all_symbols(broker: EmbeddedBroker) -> None:
    rows: list[dict[str, Any]] = []
    for topic, symbols in (("a", ["R", "G"]), ("b", ["R", "G", "B"])):
        broker.create_topic(topic)
        kind = {"type": "enum", "name": "Colour", "symbols": symbols}
        fields = [{"name": "id", "type": "int"}, {"name": "colour", "type": kind}]
        definition = json.dumps({"type": "record", "name": "Car", "fields": fields}).encode()
        set_schema(broker, topic, SchemaInfo(pb.Schema.Avro, "", definition))
        out = BytesIO()
        row = {"id": len(rows), "colour": symbols[-1]}
        fastavro.schemaless_writer(out, json.loads(definition), row)
        store(broker, topic, [out.getvalue()], schema_version=(0).to_bytes(8, "big"))
        rows.append(row)
    assert values(Reads(broker, topics="a,b").batch(), rows) == rows


def enum(*symbols: str, default: str | None = None) -> dict[str, Any]:
    found = {"type": "enum", "name": "Colour", "symbols": list(symbols)}
    return found if default is None else {**found, "default": default}


def car(kind: Any) -> dict[str, Any]:
    fields = [{"name": "id", "type": "int"}, {"name": "colour", "type": kind}]
    return {"type": "record", "name": "Car", "fields": fields}


class Cars:
    """Topics whose versions of one record differ in the type of one field."""

    def __init__(self, broker: EmbeddedBroker, as_keys: bool = False) -> None:
        self._broker = broker
        self._as_keys = as_keys
        self.reads = Reads(broker, topics="a,b")

    def write(self, topic: str, kind: Any, number: int, colour: Any, version: int = 0) -> None:
        definition, out = car(kind), BytesIO()
        if not version:
            self._broker.create_topic(topic)
        own = SchemaInfo(pb.Schema.Avro, "", json.dumps(definition).encode())
        fastavro.schemaless_writer(out, definition, {"id": number, "colour": colour})
        data = out.getvalue()
        if self._as_keys:
            own = join_key_value(own, own, separated=False)
            data = join_pairs(pa.array([data]), pa.array([data]))[0].as_py()
        set_schema(self._broker, topic, own)
        store(self._broker, topic, [data], schema_version=version.to_bytes(8, "big"))

    def colours(self) -> list[Any]:
        """Return what a batch reads, which is what a stream reads, too."""
        found = [
            [row[KEY]["colour"] if self._as_keys else row["colour"] for row in in_order(rows)]
            for rows in (self.reads.batch(), self.reads.stream().batch())
        ]
        assert found[0] == found[1]
        return found[0]


HELD = {
    "a field": lambda kind: (kind, lambda colour: colour),
    "an array": lambda kind: ({"type": "array", "items": kind}, lambda colour: [colour]),
    "a union": lambda kind: (["null", kind], lambda colour: colour),
}


@pytest.mark.parametrize("as_keys", [False, True])
@pytest.mark.parametrize("wide", ["a", "b"])
@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_a_new_symbol_is_read_although_the_enum_has_a_default(
    broker: EmbeddedBroker, held: Any, wide: str, as_keys: bool
) -> None:
    narrow = "b" if wide == "a" else "a"
    cars = Cars(broker, as_keys)
    old, in_it = held(enum("U", "R", default="U"))
    new, _ = held(enum("U", "R", "G", default="U"))
    cars.write(narrow, old, 1, in_it("R"))
    cars.write(wide, old, 2, in_it("R"))
    cars.write(wide, new, 3, in_it("G"), version=1)
    assert cars.colours() == [in_it("R"), in_it("R"), in_it("G")]
    # One that chooses columns does not read them as the old version, either.
    if not as_keys:
        query = cars.reads.stream().schema
        assert [row["colour"] for row in in_order(cars.reads.batch(query))][2] == in_it("G")


@pytest.mark.parametrize("upgraded", ["a", "b"])
def test_of_versions_that_lose_as_much_the_newest_is_read(
    broker: EmbeddedBroker, upgraded: str
) -> None:
    other = "b" if upgraded == "a" else "a"
    cars = Cars(broker)
    old, new = enum("U", "R", default="U"), enum("U", "G", default="U")
    cars.write(other, old, 1, "R")
    cars.write(upgraded, old, 2, "R")
    cars.write(upgraded, new, 3, "G", version=1)
    assert cars.colours() == ["U", "U", "G"]


def renamed(*names: str, **more: Any) -> list[Any]:
    """Return a union of records that are equal but for names; `more` are their aliases."""
    return [
        "null",
        *(
            {"type": "record", "name": name, "aliases": more.get(name, [])}
            | {"fields": [{"name": "v", "type": "int"}]}
            for name in names
        ),
    ]


@pytest.mark.parametrize("selection", ["a,b", "b,a"])
def test_members_of_a_union_that_other_topics_name_otherwise_keep_their_places(
    broker: EmbeddedBroker, selection: str
) -> None:
    cars = Cars(broker)
    cars.reads = Reads(broker, topics=selection)
    cars.write("a", renamed("Click", "View"), 1, ("View", {"v": 1}))
    cars.write("b", renamed("ClickEvent", "ViewEvent"), 2, ("ViewEvent", {"v": 2}))
    found = [list(colour.values()) for colour in cars.colours()]
    assert found == [[None, {"v": 1}], [None, {"v": 2}]]


@pytest.mark.parametrize("selection", ["a,b", "b,a"])
def test_aliases_of_one_topic_hold_where_others_lack_them(
    broker: EmbeddedBroker, selection: str
) -> None:
    fields = {"id": ID, "name": field(2, "string", "n")}
    latest = {"id": ID, "title": field(2, "string", "t")}
    aliased = {"id": ID, "title": field(2, "string", "t", "name")}
    of = Avro()
    for topic, versions in (("a", [latest]), ("b", [fields, aliased])):
        broker.create_topic(topic)
        for number, each in enumerate(versions):
            set_schema(broker, topic, of.schema(each))
            value = {"id": len(versions) + number, "name": "x", "title": "x"}
            data = of.encode(each, {name: value[name] for name in each})
            store(broker, topic, [data], schema_version=number.to_bytes(8, "big"))
    reads = Reads(broker, topics=selection)
    query = reads.stream()
    for rows in (reads.batch(), reads.batch(query.schema), query.batch()):
        assert [row["title"] for row in in_order(rows)] == ["x", "x", "x"]


@pytest.mark.parametrize("selection", ["a,b", "b,a"])
def test_aliases_of_types_hold_where_other_topics_lack_them(
    broker: EmbeddedBroker, selection: str
) -> None:
    cars = Cars(broker)
    cars.reads = Reads(broker, topics=selection)
    names = "ViewEvent", "ClickEvent"
    aliases = {"ViewEvent": ["View"], "ClickEvent": ["Click"]}
    cars.write("a", renamed(*names), 1, ("ViewEvent", {"v": 1}))
    cars.write("b", renamed("Click", "View"), 2, ("Click", {"v": 2}))
    cars.write("b", renamed(*names, **aliases), 3, ("ViewEvent", {"v": 3}), version=1)
    found = [list(colour.values()) for colour in cars.colours()]
    assert found == [[{"v": 1}, None], [None, {"v": 2}], [{"v": 3}, None]]


@pytest.mark.parametrize("selection", ["a,b", "b,a"])
def test_text_and_bytes_are_read_as_bytes(broker: EmbeddedBroker, selection: str) -> None:
    cars = Cars(broker)
    cars.reads = Reads(broker, topics=selection)
    cars.write("a", "string", 1, "é")
    cars.write("b", "bytes", 2, b"\xff")
    assert cars.colours() == ["é".encode(), b"\xff"]
