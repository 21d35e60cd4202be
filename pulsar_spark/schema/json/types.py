"""How to read a field's JSON: its Arrow type, and the meaning of numbers and texts.

JSON says less than an Avro definition. Its meaning depends on the client that writes it:

- The Java client writes with Jackson: bytes are base64, enums their symbols, NaN and the infinities
  the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``. Decimals are plain numbers, even where
  Avro's reflection defines text. Dates and times are those of java.time: an Instant is seconds with
  a point, local ones are arrays such as ``[2024,2,29,13,14,15,123456789]``.
- The Python client writes with `json`: bytes are text, enums the *values* of their members, which
  may be numbers, NaN and the infinities bare words.
- Others write dates and times as numbers in the logical type's unit, or as ISO 8601 text, which is
  accepted from all clients.

A schema shows which client defined it: Java's sets properties, Python's indents the definition.
This decides whether bytes are base64 or text, and what a time with a point means.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.avro import definition as avro
from pulsar_spark.schema.avro.resolution import describe, factors
from pulsar_spark.schema.avro.types import arrow_type, is_nullable, sole_type


class JsonRule(Enum):
    """How a value is written in JSON."""

    NULL = "null"
    BOOLEAN = "a boolean"
    INTEGER = "an integer"
    FLOAT = "a number"
    DECIMAL = "a decimal number"
    TEXT = "a string"
    ENUM = "a symbol"
    BASE64 = "a string in base64"
    BYTES = "a string that stands for its UTF-8"
    BASE64_TEXT = "a string in base64 that stands for a text"
    DATE = "a number of days or an ISO date"
    MOMENT = "a whole number or an ISO time"
    TIME = "a whole number or an ISO time of day"
    RECORD = "an object"
    ARRAY = "an array"
    PAIRS = "an object with keys of another type than text"
    MAP = "an object with values of one type"
    UNION = "one of several types"
    ANY = "any JSON"
    UNFIT = "another type"


@dataclass(frozen=True, slots=True)
class Shape:
    """How to read values: `kind` is the column's type.

    With the rules MOMENT and TIME a number n is n × `times` ÷ `divided` in the
    column's unit. `parts` are a record's fields, a union's members, or the item type of an array or
    map. `words` are an enum's symbols, or a record's required fields. With `java`, times are
    written as in Java; with `coerces_as_java`, it also takes what loses something. `why` is what is
    wrong with all values that are UNFIT.
    """

    rule: JsonRule
    kind: pa.DataType
    times: int = 1
    divided: int = 1
    parts: tuple[Shape, ...] = ()
    names: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    java: bool = False
    coerces_as_java: bool = False
    why: str = ""


_JAVA_PROPERTY = "__jsr310ConversionEnabled"
# Whether the definition allows null wherever the class does. If not, Java leaves out what is null.
_JAVA_NULL_PROPERTY = "__alwaysAllowNull"


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which client defined the schema, as far as that matters, and who is to read it.

    Without `coerces_as_java`, a value of another kind is only taken where nothing is lost.
    `leaves_out_nulls` is for definitions that do not say which fields of a Java class can be null.
    If types `are_declared` by the user, these alone say which texts are base64.
    """

    is_python: bool = False
    has_java_times: bool = False
    coerces_as_java: bool = False
    leaves_out_nulls: bool = False
    are_declared: bool = False

    @classmethod
    def of(cls, info: SchemaInfo) -> Dialect:
        """Return the dialect of a schema with a JSON definition."""
        definition = info.schema_data
        is_java = _JAVA_PROPERTY in info.properties
        is_python = not is_java and definition.startswith(b"{\n ") and _is_indented(definition)
        leaves_out = info.properties.get(_JAVA_NULL_PROPERTY) == "false"
        return cls(is_python, is_java, leaves_out_nulls=leaves_out)


def _is_indented(definition: bytes) -> bool:
    try:
        return definition == json.dumps(json.loads(definition), indent=1).encode()
    except RecursionError:
        return False


def field_shapes(reader: avro.Node, writer: avro.Node, dialect: Dialect) -> dict[str, Shape]:
    """Return the shapes of a record's fields by name, written with `writer`, read with `reader`."""
    assert isinstance(reader, avro.Record)
    fields = writer.fields if isinstance(writer, avro.Record) else ()
    written = {field.name: field.type for field in fields}
    return {
        field.name: shape_of(field.type, written.get(field.name, field.type), dialect)
        for field in reader.fields
    }


def shape_of(reader: avro.Node, writer: avro.Node, dialect: Dialect) -> Shape:
    """Return how to read values written with `writer` into a column for `reader`."""
    node, source = only_type(reader), only_type(writer)
    if isinstance(node, avro.UnionOf):
        return _union(node, source, dialect)
    (source,) = _writers_types([node], source)
    return _converted(node, source, dialect) or _plain(node, source, dialect)


def _plain(node: avro.Node, source: avro.Node, dialect: Dialect) -> Shape:
    kind = arrow_type(node, all_nullable=True)
    match node:
        case avro.Record():
            fields = field_shapes(node, source, dialect)
            required = frozenset(f.name for f in node.fields if not is_nullable(f.type))
            return _struct(JsonRule.RECORD, kind, list(fields.values()), required)
        case avro.Array():
            inner = source.items if isinstance(source, avro.Array) else node.items
            rule = JsonRule.PAIRS if is_java_map(node) else JsonRule.ARRAY
            return Shape(rule, kind, parts=(shape_of(node.items, inner, dialect),))
        case avro.Map():
            inner = source.values if isinstance(source, avro.Map) else node.values
            return Shape(JsonRule.MAP, kind, parts=(shape_of(node.values, inner, dialect),))
        case avro.Enum():
            return Shape(JsonRule.ENUM, kind, words=frozenset(node.symbols))
    return _leaf(node, source, dialect)


def _union(node: avro.UnionOf, source: avro.Node, dialect: Dialect) -> Shape:
    kind = arrow_type(node, all_nullable=True)
    families = set(map(_family, node.present))
    members = []
    for member, written in zip(node.present, _writers_types(node.present, source), strict=True):
        # Text and bytes look alike: values go to the member of their own type, if there is one.
        is_another = _are_related(_family(written), _family(member))
        is_unfit = is_another and _family(written) in families
        members.append(_unfit(member, written) if is_unfit else shape_of(member, written, dialect))
    return Shape(JsonRule.UNION, kind, parts=tuple(members), names=_names(kind))


def _writers_types(readers: Sequence[avro.Node], source: avro.Node) -> list[avro.Node]:
    """Return the types that values of the reader's types were written with.

    Of a union they are the members that are most alike. Where none is, it is the type itself.
    """
    written = source.present if isinstance(source, avro.UnionOf) else (source,)
    records = _paired_records(readers, written)
    known: dict[tuple[str, str], avro.Node] = {}
    for each in written:
        known.setdefault((_family(each), ""), each)
        known.setdefault((_family(each), _kind_name(each)), each)

    def find(node: avro.Node) -> avro.Node:
        if isinstance(node, avro.Record):
            return records.get(node.name, node)
        if not isinstance(source, avro.UnionOf):
            return source
        family = _family(node)
        related = (each for each in (*_TIMES, *_TEXTS) if _are_related(each, family))
        marks = [(family, _kind_name(node)), (family, ""), *((each, "") for each in related)]
        return next((known[each] for each in marks if each in known), node)

    return [find(each) for each in readers]


def _paired_records(
    readers: Sequence[avro.Node], written: Sequence[avro.Node]
) -> dict[str, avro.Record]:
    """Return the writer's record for the reader's ones by name, none of them twice.

    First those with the same name, then the same name in another namespace, then in their order.
    """
    left = [each for each in readers if isinstance(each, avro.Record)]
    free = {each.name: each for each in written if isinstance(each, avro.Record)}
    found = {each.name: free.pop(each.name) for each in left if each.name in free}
    bare = {name.rpartition(".")[2]: name for name in reversed(free)}
    left = [each for each in left if each.name not in found]
    for each in left:
        name = bare.pop(each.name.rpartition(".")[2], None)
        if name is not None:
            found[each.name] = free.pop(name)
    rest = [each.name for each in left if each.name not in found]
    return found | dict(zip(rest, free.values(), strict=False))


_LEAF = avro.Primitive | avro.Fixed | avro.Enum
_TIMES = ("date", "time", "timestamp")
_TEXTS = ("bytes", "string")


def _are_related(one: str, other: str) -> bool:
    """Whether values of two families look alike, but mean something else."""
    return one != other and any(one in each and other in each for each in (_TIMES, _TEXTS))


def _converted(node: avro.Node, source: avro.Node, dialect: Dialect) -> Shape | None:
    """Return how to read values that look like those of the reader's type, but are of another."""
    written, wanted = _family(source), _family(node)
    are_leaves = isinstance(source, _LEAF) and isinstance(node, _LEAF)
    if not are_leaves or written == wanted or written == "null":
        return None
    if written in _TIMES and wanted in _TIMES:
        return _unfit(node, source)
    if dialect.is_python or dialect.are_declared or "bytes" not in (written, wanted):
        return None
    if _are_related(written, wanted):
        rule = JsonRule.BYTES if wanted == "bytes" else JsonRule.BASE64_TEXT
        return Shape(rule, arrow_type(node, all_nullable=True))
    return _unfit(node, source)


def _unfit(node: avro.Node, source: avro.Node) -> Shape:
    why = f"it was written as {describe(source)}, the query reads it as {describe(node)}"
    return Shape(JsonRule.UNFIT, arrow_type(node, all_nullable=True), why=why)


def kind_of(node: avro.Node) -> str:
    """Return what decides on a value's form: the family of a logical type, or the type."""
    if isinstance(node, avro.Primitive | avro.Fixed) and node.logical is not None:
        family, _, unit = node.logical.name.rpartition("-")
        return family or unit
    if isinstance(node, avro.Primitive):
        return node.kind
    return "bytes" if isinstance(node, avro.Fixed) else type(node).__name__.lower()


def _family(node: avro.Node) -> str:
    kind = kind_of(node).removeprefix("local-")
    return "string" if kind == "uuid" else kind


def is_java_map(node: avro.Array) -> bool:
    """Whether this is how Avro's reflection defines Java's maps whose keys are not strings."""
    pair = node.items
    return (
        isinstance(pair, avro.Record)
        and pair.name.startswith("org.apache.avro.reflect.Pair")
        and [field.name for field in pair.fields] == ["key", "value"]
    )


def only_type(node: avro.Node) -> avro.Node:
    """Return the only type of a union's values but null; other types as they are."""
    sole = sole_type(node) if isinstance(node, avro.UnionOf) else None
    return node if sole is None else sole


def _names(kind: pa.DataType) -> tuple[str, ...]:
    return tuple(kind.field(i).name for i in range(kind.num_fields))


def _struct(
    rule: JsonRule, kind: pa.DataType, parts: Sequence[Shape], required: frozenset[str]
) -> Shape:
    return Shape(rule, kind, parts=tuple(parts), names=_names(kind), words=required)


_LEAVES: dict[str, JsonRule] = {
    "null": JsonRule.NULL,
    "boolean": JsonRule.BOOLEAN,
    "int": JsonRule.INTEGER,
    "long": JsonRule.INTEGER,
    "float": JsonRule.FLOAT,
    "double": JsonRule.FLOAT,
    "string": JsonRule.TEXT,
    "decimal": JsonRule.DECIMAL,
    "uuid": JsonRule.TEXT,
}


def _leaf(node: avro.Node, source: avro.Node, dialect: Dialect) -> Shape:
    kind = arrow_type(node, all_nullable=True)
    if isinstance(node, avro.Opaque):
        return Shape(JsonRule.ANY, kind)
    assert isinstance(node, avro.Primitive | avro.Fixed)
    name = node.logical.name if node.logical else ""
    family, _, unit = name.rpartition("-")
    if family in ("timestamp", "local-timestamp", "time") or name == "date":
        return _time(kind, family, _writers_unit(source, family) or unit, dialect)
    if name == "duration":
        numbers = [Shape(JsonRule.INTEGER, pa.int64()) for _ in _names(kind)]
        return _struct(JsonRule.RECORD, kind, numbers, frozenset(_names(kind)))
    if pa.types.is_binary(kind):
        if dialect.is_python:
            return Shape(JsonRule.BYTES, kind)
        return Shape(JsonRule.BASE64, kind, coerces_as_java=dialect.coerces_as_java)
    return Shape(_LEAVES[name or _kind_name(node)], kind, coerces_as_java=dialect.coerces_as_java)


def _time(kind: pa.DataType, family: str, unit: str, dialect: Dialect) -> Shape:
    java, coerces = dialect.has_java_times, dialect.coerces_as_java
    if not family:
        return Shape(JsonRule.DATE, kind, java=java, coerces_as_java=coerces)
    rule = JsonRule.TIME if family == "time" else JsonRule.MOMENT
    scale = factors(family, unit)
    if java and coerces and (family, unit) == ("timestamp", "micros"):
        # An Instant. Milliseconds are of a Date, or of a number that is called a time.
        scale = _MICROS_PER_SECOND, 1
    return Shape(rule, kind, *scale, java=java, coerces_as_java=coerces)


_MICROS_PER_SECOND = 1_000_000


def _kind_name(node: avro.Node) -> str:
    return node.kind if isinstance(node, avro.Primitive) else "fixed"


def _writers_unit(source: avro.Node, family: str) -> str:
    """Return the unit of the writer's times, "" if its type is of another family."""
    logical = source.logical if isinstance(source, avro.Primitive) else None
    found, _, unit = (logical.name if logical else "").rpartition("-")
    return unit if found.removeprefix("local-") == family.removeprefix("local-") else ""
