"""Columns → values of a JSON topic: texts of fields, joined for each row.

Columns match fields as on an AVRO topic with the same definition; fields without a column are left
out, if the schema allows it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.arrow.arithmetic import all_within, number, scaled
from pulsar_spark.schema.arrow.arrays import binaries, offsets_of, spread, strings
from pulsar_spark.schema.avro import definition as avro
from pulsar_spark.schema.avro.definition import Node, Primitive, Record, UnionOf
from pulsar_spark.schema.avro.fitting import plan_for_columns
from pulsar_spark.schema.avro.types import (
    NOT_A_UUID,
    TOO_LATE,
    UUID_TEXT,
    WRONG_SIZE,
    is_nullable,
    sole_type,
)
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.json.reference import check_json
from pulsar_spark.schema.json.types import Dialect, JsonRule, Shape, is_java_map, shape_of


class JsonEncoder:
    """Encodes record batches with the Arrow schema `columns`, with a topic's definition.

    Raises SchemaMismatch that lists all mismatches.
    """

    def __init__(self, node: Node, columns: pa.Schema, dialect: Dialect) -> None:
        self._arguments = node, columns, dialect
        plan_for_columns(node, columns)
        self._is_record = isinstance(node, Record)
        if isinstance(node, Record):
            types = {field.name: field.type for field in node.fields}
        else:
            # A null is a message without a value, whatever the type.
            types = {columns.names[0]: UnionOf((node, Primitive("null")))}
        self._writers = [
            writer(types[column.name], column.type, dialect, column.name) for column in columns
        ]
        self._object = object_writer(columns.names, dialect)

    def __reduce__(self) -> tuple[type[JsonEncoder], tuple[Node, pa.Schema, Dialect]]:
        return JsonEncoder, self._arguments

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return a binary array with a value for each row; raises Mismatch."""
        try:
            return self._texts(columns).cast(pa.binary())
        except Mismatch:
            raise self._first_mismatch(columns) from None

    def _texts(self, columns: pa.RecordBatch) -> pa.Array:
        texts = [write(columns.column(i)) for i, write in enumerate(self._writers)]
        if not self._is_record:
            return texts[0]
        return self._object(texts, columns.num_rows)

    def _first_mismatch(self, columns: pa.RecordBatch) -> Mismatch:
        """Return the error of the first row that cannot be written; there is one."""
        start, end = 0, columns.num_rows
        while end - start > 1:
            middle = (start + end) // 2
            if self._mismatch(columns.slice(start, middle - start)) is None:
                start = middle
            else:
                end = middle
        found = self._mismatch(columns.slice(start, 1))
        assert found is not None
        return found.within("", start)

    def _mismatch(self, columns: pa.RecordBatch) -> Mismatch | None:
        try:
            self._texts(columns)
        except Mismatch as mismatch:
            return mismatch
        return None


Write = Callable[[pa.Array], pa.Array]
"""Converts a column to JSON texts, null for null; raises Mismatch."""

_NANOS_PER_DAY = 86_400_000_000_000
_SPECIAL = r'["\\\x00-\x1f]'
_CONTROL = r"[\x00-\x1f]"
_SHORT_ESCAPES = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def writer(node: avro.Node, kind: pa.DataType, dialect: Dialect, path: str) -> Write:
    """Return a writer of columns with the type `kind` for values of a type.

    They match as on AVRO topics. Raises SchemaMismatch for types that JSON has no form for.
    """
    if pa.types.is_null(kind):
        write: Write = _nothing
    else:
        sole = sole_type(node) if isinstance(node, avro.UnionOf) else None
        write = _writer(node if sole is None else sole, kind, dialect, path)
    if is_nullable(node):
        return write

    def checked(column: pa.Array) -> pa.Array:
        if column.null_count:
            raise Mismatch("it is null, and the topic's schema does not allow null there", path)
        return write(column)

    return checked


def _writer(node: avro.Node, kind: pa.DataType, dialect: Dialect, path: str) -> Write:
    match node:
        case avro.Record():
            return _record({f.name: f.type for f in node.fields}, kind, dialect, path)
        case avro.UnionOf():
            return _union(node, kind, dialect, path)
        case avro.Array() if is_java_map(node):
            return _pairs(node.items, kind.value_type, dialect, path)
        case avro.Array():
            item = writer(node.items, kind.value_type, dialect, f"{path}[]")
            return lambda column: _array(column, item)
        case avro.Map():
            value = writer(node.values, kind.item_type, dialect, f"{path}{{}}")
            return lambda column: _map(column, value)
    leaf = _leaf(node, kind, dialect, path)
    # Python's client writes the values of an enum, of which the definition has only the names.
    is_free = isinstance(node, avro.Enum) and dialect.is_python
    check = None if is_free else _checker(node, path)
    return leaf if check is None else lambda column: leaf(check(column))


def _nothing(column: pa.Array) -> pa.Array:
    return pa.nulls(len(column), pa.string())


# --- types with parts ---------------------------------------------------------------------


def joined(pieces: Sequence[pa.Array | pa.Scalar], count: int) -> pa.Array:
    """Return `count` texts, each of its pieces joined; null becomes the word null."""
    found = pc.binary_join_element_wise(
        *pieces, text(""), null_handling="replace", null_replacement="null"
    )
    return found if isinstance(found, pa.Array) else pa.repeat(found, count)


def text(value: str) -> pa.Scalar:
    """Return a text for all rows."""
    return strings([value])[0]


def object_writer(
    names: Sequence[str], dialect: Dialect
) -> Callable[[Sequence[pa.Array], int], pa.Array]:
    """Return the function that makes a number of objects of their fields' texts."""
    quoted = quote(strings(names)).to_pylist()
    if not names or not dialect.leaves_out_nulls:
        starts = [text(f"{',' if i else '{'}{name}:") for i, name in enumerate(quoted)]
        end = text("}" if names else "{}")

        def write(texts: Sequence[pa.Array], count: int) -> pa.Array:
            pieces = [piece for pair in zip(starts, texts, strict=True) for piece in pair]
            return joined([*pieces, end], count)

        return write
    starts = [text(f",{name}:") for name in quoted]
    empty = text("")

    def write_present(texts: Sequence[pa.Array], count: int) -> pa.Array:
        pieces = [
            pc.binary_join_element_wise(start, each, empty)
            for start, each in zip(starts, texts, strict=True)
        ]
        fields = pc.binary_join_element_wise(
            *pieces, empty, null_handling="replace", null_replacement=""
        )
        return joined([text("{"), pc.utf8_slice_codeunits(fields, 1), text("}")], count)

    return write_present


def _record(
    types: Mapping[str, avro.Node], kind: pa.DataType, dialect: Dialect, path: str
) -> Write:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    writers = [writer(types[f.name], f.type, dialect, f"{path}.{f.name}") for f in fields]
    make = object_writer([field.name for field in fields], dialect)

    def write(column: pa.StructArray) -> pa.Array:
        # Ignore the fields of null records.
        present = column.drop_null() if column.null_count else column
        texts = [part(present.field(i)) for i, part in enumerate(writers)]
        return _where_valid(column, make(texts, len(present)))

    return write


def _where_valid(column: pa.Array, texts: pa.Array) -> pa.Array:
    """Return the texts of the non-null rows, with nulls in between."""
    if len(texts) == len(column):
        return texts
    return spread(texts, column.is_valid())


def _union(node: avro.UnionOf, kind: pa.DataType, dialect: Dialect, path: str) -> Write:
    names = [f"member{i}" for i in range(len(node.present))]
    if not pa.types.is_struct(kind) or [field.name for field in kind] != names:
        # The column has a single member's type.
        return _writer(_fitting(node.present, kind), kind, dialect, path)
    writers = [
        _writer(member, field.type, dialect, f"{path}.{field.name}")
        for member, field in zip(node.present, kind, strict=True)
    ]

    def write(column: pa.StructArray) -> pa.Array:
        members = [part(field) for part, field in zip(writers, column.flatten(), strict=True)]
        count = number(0, pa.int32())
        for member in members:
            count = pc.add(count, member.is_valid().cast(pa.int32()))
        if pc.any(pc.greater(count, number(1, pa.int32()))).as_py():
            raise Mismatch("more than one member of the union is not null", path)
        if not node.nullable and pc.any(pc.equal(count, number(0, pa.int32()))).as_py():
            raise Mismatch("no member of the union is set, and it does not allow null", path)
        return pc.coalesce(*members)

    return write


def _fitting(members: Sequence[avro.Node], kind: pa.DataType) -> avro.Node:
    """Return the first member of a union that matches a column, as on AVRO topics."""
    for member in members[:-1]:
        record = avro.Record("r", (avro.RecordField("f", member),))
        try:
            plan_for_columns(record, pa.schema([("f", kind)]))
        except SchemaMismatch:
            continue
        return member
    return members[-1]


def _array(column: pa.ListArray, item: Write) -> pa.Array:
    items = column.flatten()
    return _lists(column, joined([item(items)], len(items)), "[", "]")


def _map(column: pa.MapArray, value: Write) -> pa.Array:
    entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
    lists = pa.Array.from_buffers(
        pa.list_(entries.type),
        len(column),
        column.buffers()[:2],
        column.null_count,
        column.offset,
        children=[entries],
    )
    present = lists.flatten()
    pairs = [quote(present.field(0)), text(":"), value(present.field(1))]
    return _lists(lists, joined(pairs, len(present)), "{", "}")


def _pairs(pair: avro.Node, kind: pa.DataType, dialect: Dialect, path: str) -> Write:
    """Write pairs of keys that are not text as an object, as Jackson does."""
    assert isinstance(pair, avro.Record)
    key, value = (
        writer(each.type, kind.field(each.name).type, dialect, f"{path}[].{each.name}")
        for each in pair.fields
    )

    def write(column: pa.ListArray) -> pa.Array:
        pairs = column.flatten()
        names = key(pairs.field("key"))
        if pairs.null_count or names.null_count:
            raise Mismatch("a key is null, and JSON's are not", path)
        bare = pc.replace_substring_regex(names, '^"(.*)"$', r"\1")
        pieces = [text('"'), bare, text('":'), value(pairs.field("value"))]
        return _lists(column, joined(pieces, len(pairs)), "{", "}")

    return write


def _lists(column: pa.ListArray, items: pa.Array, start: str, end: str) -> pa.Array:
    """Join each list's items with commas."""
    sizes = pc.fill_null(pc.list_value_length(column), number(0, pa.int32()))
    texts = pc.binary_join(pa.ListArray.from_arrays(offsets_of(sizes), items), text(","))
    wrapped = joined([text(start), texts, text(end)], len(column))
    return pc.if_else(column.is_valid(), wrapped, _NULL) if column.null_count else wrapped


# --- types without parts ------------------------------------------------------------------

_NULL = pa.nulls(1, pa.string())[0]


def quote(column: pa.Array) -> pa.Array:
    """Return strings as JSON, null for null."""
    special = pc.match_substring_regex(column, _SPECIAL)
    if pc.any(special).as_py():
        column = pc.replace_substring(column, "\\", "\\\\")
        column = pc.replace_substring(column, '"', '\\"')
        if pc.any(pc.match_substring_regex(column, _CONTROL)).as_py():
            for code in range(32):
                escape = _SHORT_ESCAPES.get(chr(code), f"\\u{code:04x}")
                column = pc.replace_substring(column, chr(code), escape)
    return pc.binary_join_element_wise(text('"'), column, text('"'), text(""))


def _checked_json(column: pa.Array, path: str) -> pa.Array:
    for row, value in enumerate(column.to_pylist()):
        try:
            check_json("null" if value is None else value)
        except Mismatch as error:
            raise Mismatch(error.reason, path, row) from None
    return column


def _checker(node: avro.Node, path: str) -> Write | None:
    """Return a check for values that a type does not allow, None if it allows all."""
    if isinstance(node, avro.Opaque):
        return lambda column: _checked_json(column, path)
    if isinstance(node, avro.Enum):
        symbols = strings(node.symbols)
        return lambda column: _symbols(column, symbols, path)
    if isinstance(node, avro.Fixed) and node.logical is None:
        size = node.size
        return lambda column: _sized(column, size, path)
    logical = node.logical if isinstance(node, avro.Primitive | avro.Fixed) else None
    if logical is not None and logical.name == "uuid":
        return lambda column: _uuid_texts(column, path)
    return None


def _symbols(column: pa.Array, symbols: pa.Array, path: str) -> pa.Array:
    unknown = pc.and_(column.is_valid(), pc.invert(pc.is_in(column, value_set=symbols)))
    if pc.any(unknown).as_py():
        found = column.filter(unknown)[0].as_py()
        raise Mismatch(f"it is {found[:100]!r}, which is not a symbol of the enum", path)
    return column


def _sized(column: pa.Array, size: int, path: str) -> pa.Array:
    sizes = pc.binary_length(column)
    if pc.any(pc.not_equal(sizes, number(size, pa.int32()))).as_py():
        raise Mismatch(WRONG_SIZE.format(size), path)
    return column


def _uuid_texts(column: pa.Array, path: str) -> pa.Array:
    # Bytes become such text.
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if is_text and pc.any(pc.invert(pc.match_substring_regex(column, UUID_TEXT))).as_py():
        raise Mismatch(NOT_A_UUID, path)
    return column


def _leaf(node: avro.Node, kind: pa.DataType, dialect: Dialect, path: str) -> Write:
    shape = shape_of(node, node, dialect)
    if shape.rule is JsonRule.RECORD:
        # Only a duration has no parts in a definition but several in a column.
        if not pa.types.is_struct(kind):
            raise SchemaMismatch(
                f"{path} is {kind}, and a duration is an object in JSON",
                "Give a struct of months, days and milliseconds.",
            )
        long = avro.UnionOf((avro.Primitive("null"), avro.Primitive("long")))
        return _record(dict.fromkeys(shape.names, long), kind, dialect, path)
    write = _LEAVES.get(shape.rule, _as_text)
    if dialect.is_python:
        write = OF_PYTHON.get(shape.rule, write)
    if shape.java:
        write = _iso_texts
    if shape.rule is JsonRule.TEXT and pa.types.is_binary(kind):
        write = _uuids

    def convert(column: pa.Array) -> pa.Array:
        try:
            return write(column, shape)
        except (pa.ArrowInvalid, ValueError) as error:
            reason = str(error) if shape.java else _REASONS.get(shape.rule, str(error))
            raise Mismatch(reason, path) from None

    return convert


def _as_text(column: pa.Array, shape: Shape) -> pa.Array:
    """Return texts of types with the same form in JSON and Arrow: booleans, integers, decimals."""
    return column.cast(shape.kind).cast(pa.string())


def _quoted(column: pa.Array, shape: Shape) -> pa.Array:
    return quote(column)


def _dates(column: pa.Array, shape: Shape) -> pa.Array:
    return column.view(pa.int32()).cast(pa.string())


def _base64(column: pa.Array, shape: Shape) -> pa.Array:
    encoded = [value if value is None else b64encode(value) for value in column.to_pylist()]
    return pc.binary_join_element_wise(
        text('"'), binaries(encoded, pa.string()), text('"'), text("")
    )


def _uuids(column: pa.Array, shape: Shape) -> pa.Array:
    values = column.to_pylist()
    return quote(strings([v if v is None else str(UUID(bytes=v)) for v in values]))


def _floats(column: pa.Array, shape: Shape, quotes: str = '"') -> pa.Array:
    column = column.cast(shape.kind)
    texts = column.cast(pa.string())
    # Without a point it would be read as an integer, which has no negative zero.
    minus_zero = pc.equal(texts, text("-0"))
    if pc.any(minus_zero).as_py():
        texts = pc.if_else(minus_zero, text("-0.0"), texts)
    finite = pc.is_finite(column)
    if not pc.any(pc.invert(finite)).as_py():
        return texts
    nan, positive, negative = (
        text(f"{quotes}{word}{quotes}") for word in ("NaN", "Infinity", "-Infinity")
    )
    infinity = pc.if_else(pc.greater(column, pc.negate(column)), positive, negative)
    words = pc.if_else(pc.is_nan(column), nan, infinity)
    return pc.if_else(finite, texts, words)


def _bare_floats(column: pa.Array, shape: Shape) -> pa.Array:
    return _floats(column, shape, "")


def _values_of_enums(column: pa.Array, shape: Shape) -> pa.Array:
    """Write numbers as such: they are values of an enum's members, other text is their names."""
    is_number = pc.match_substring_regex(column, r"^-?(0|[1-9][0-9]{0,17})$")
    return pc.if_else(is_number, column, quote(column))


def _utf8(column: pa.Array, shape: Shape) -> pa.Array:
    return quote(column.cast(pa.string()))


def _times_of_day(column: pa.Array, shape: Shape) -> pa.Array:
    _check_time_of_day(column)
    return _moments(column, shape)


def _check_time_of_day(column: pa.Array) -> None:
    if not all_within(column.view(pa.int64()), 0, _NANOS_PER_DAY - 1):
        raise ValueError("it is not a time of day in nanoseconds")


def _iso_texts(column: pa.Array, shape: Shape) -> pa.Array:
    """Return dates and times in a form that all of Jackson's classes read unambiguously."""
    zone = ""
    if shape.rule is JsonRule.TIME:
        _check_time_of_day(column)
        column = column.view(pa.int64()).view(pa.time64("ns"))
    elif shape.rule is JsonRule.MOMENT:
        zone = "Z" if shape.kind.tz is not None else ""
        column = column.view(pa.timestamp("us"))
    texts = pc.replace_substring(column.cast(pa.string()), " ", "T")
    if (
        shape.rule is not JsonRule.TIME
        and pc.any(pc.invert(pc.match_substring_regex(texts, r"^\d{4}-"))).as_py()
    ):
        raise ValueError("it is not in the years 0 to 9999, which ISO 8601 has")
    return pc.binary_join_element_wise(text('"'), texts, text(f'{zone}"'), text(""))


def _moments(column: pa.Array, shape: Shape) -> pa.Array:
    return scaled(column.view(pa.int64()), shape.divided, shape.times).cast(pa.string())


_LEAVES: dict[JsonRule, Callable[[pa.Array, Shape], pa.Array]] = {
    JsonRule.TEXT: _quoted,
    JsonRule.ENUM: _quoted,
    JsonRule.FLOAT: _floats,
    JsonRule.BASE64: _base64,
    JsonRule.BYTES: _utf8,
    JsonRule.DATE: _dates,
    JsonRule.MOMENT: _moments,
    JsonRule.TIME: _times_of_day,
}

OF_PYTHON = {JsonRule.FLOAT: _bare_floats, JsonRule.ENUM: _values_of_enums}
"""What Python's client reads in another form than Java's."""

_REASONS = {
    JsonRule.BYTES: "it is not UTF-8, and schemas of the Python client have bytes as UTF-8",
    JsonRule.DECIMAL: "it does not fit the precision and scale of the topic's schema",
    JsonRule.MOMENT: TOO_LATE,
}
