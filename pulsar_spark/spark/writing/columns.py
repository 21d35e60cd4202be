"""Maps a DataFrame's columns to parts of a message, on the driver, by their types."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_spark.errors import InvalidRow, OptionError
from pulsar_spark.schema.table import names
from pulsar_spark.spark.columns import POSITION_COLUMNS, names_alike
from pulsar_spark.spark.compat import INTERNAL_STRUCTS, arrow_schema


@dataclass(frozen=True, slots=True)
class WritableColumn:
    """A reserved column: its allowed types, and which part of a message it sets.

    `types` is their description, `help` the text in docs/columns.md.
    """

    data_types: tuple[DataType, ...]
    types: str
    help: str


WRITABLE_COLUMNS: dict[str, WritableColumn] = {
    names.TOPIC: WritableColumn(
        (StringType(),), "string", "Topic of the row. The option `topic` wins over it."
    ),
    names.KEY: WritableColumn(
        (StringType(), BinaryType()),
        "string or binary",
        "Key, which chooses the partition and what compaction keeps. Binary that is not UTF-8 is "
        "sent as base64 with its flag. On KEY_VALUE topics it has the key's type.",
    ),
    names.ORDERING_KEY: WritableColumn((BinaryType(),), "binary", "Ordering key for Key_Shared."),
    names.EVENT_TIME: WritableColumn(
        (TimestampType(), LongType()), "timestamp or long (milliseconds)", "Event time."
    ),
    names.PROPERTIES: WritableColumn(
        (MapType(StringType(), StringType()),), "map<string,string>", "Properties."
    ),
    names.SEQUENCE_ID: WritableColumn(
        (LongType(),),
        "long",
        "Number that a topic with deduplication drops repeated messages by.",
    ),
    names.DELIVER_AT: WritableColumn(
        (TimestampType(),), "timestamp", "Time before which Shared consumers do not get it."
    ),
}
"""The columns that a write uses by name."""

_DROPPED = frozenset(
    {names.MESSAGE_ID, names.PUBLISH_TIME} | {column.name for column in POSITION_COLUMNS}
) - set(WRITABLE_COLUMNS)
# No schema has as many, and much deeper types would exceed Python's stack.
_MAX_LEVELS = 100
# How similar a name must be to a reserved one, as difflib counts.
_NEAR = 0.8
# Of the columns of a frame few have types of their own.
_MOST_TYPES = 256
_ONE_VALUE: dict[str, tuple[DataType, str]] = {
    "raw": (BinaryType(), "bytes"),
    "string": (StringType(), "text"),
}


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """The used columns' positions, by purpose; plain data.

    `by_name` has the named columns that exist, `values` the positions of the others, `frame` the
    DataFrame's schema, in which what is void can be null. `digest` stands for what is used of it.
    """

    values: tuple[int, ...]
    by_name: tuple[tuple[str, int], ...]
    frame: StructType
    digest: bytes = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Arrow tells types in no more steps than they have levels.
        places = (*self.values, *(position for _, position in self.by_name))
        used = arrow_schema(StructType([self.frame.fields[place] for place in places]))
        key = "" if self.key is None else self.key.dataType.simpleString()
        text = repr((self.values, self.by_name, key)).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text + used.serialize().to_pybytes(), digest_size=16).digest()
        object.__setattr__(self, "digest", digest)

    def position(self, name: str) -> int | None:
        """Return a named column's position, None if it does not exist."""
        return dict(self.by_name).get(name)

    @property
    def fields(self) -> StructType:
        """The columns of the value."""
        return StructType([self.frame.fields[position] for position in self.values])

    @property
    def key(self) -> StructField | None:
        """The key's column, if there is one."""
        position = self.position(names.KEY)
        return None if position is None else self.frame.fields[position]


def plan_columns(schema: StructType, *, topic_given: bool, value_format: str) -> WriteColumns:
    """Return the purpose of each column of a DataFrame.

    Raises OptionError without any topic, InvalidRow for a column of a wrong type or without value
    columns. Void columns are only nulls. With `value_format`, the topic's schema decides which
    values and keys are valid.
    """
    by_name: dict[str, int] = {}
    values: list[int] = []
    known = {name.lower(): name for name in (*WRITABLE_COLUMNS, *_DROPPED)}
    for position, field in enumerate(schema.fields):
        name = known.get(field.name.lower())
        if name is None:
            values.append(position)
        elif name in by_name:
            raise InvalidRow(f"there are two columns named {name}", "Drop one of them.")
        elif name in WRITABLE_COLUMNS:
            # Where values are text, the topic says of which type keys are.
            if name != names.KEY or value_format == "raw":
                check_type(name, field)
            _check_convertible(field.name, field.dataType)
            by_name[name] = position
    if names.TOPIC not in by_name and not topic_given:
        raise OptionError(
            "no topic to write to is set",
            f"Set the option topic, or add a column {names.TOPIC} string.",
        )
    frame = StructType([_void_as_null(field) for field in schema.fields])
    _check_values(StructType([frame.fields[position] for position in values]), value_format)
    return WriteColumns(tuple(values), tuple(sorted(by_name.items())), frame)


def reserved_name_near(name: str) -> str | None:
    """Return the reserved name that a column's name is probably meant to be, if there is one."""
    if not name.startswith("__"):
        return None
    near = get_close_matches(name, WRITABLE_COLUMNS, 1, _NEAR)
    return near[0] if near else None


def check_type(name: str, field: StructField) -> None:
    """Raise InvalidRow if a named column has a wrong type."""
    wanted = WRITABLE_COLUMNS[name]
    given = field.dataType
    if isinstance(given, NullType) and name != names.TOPIC:
        return
    if isinstance(given, MapType):
        # Null values are checked row by row.
        given = MapType(given.keyType, given.valueType)
    if given not in wanted.data_types:
        raise InvalidRow(
            f"the column {field.name} is {field.dataType.simpleString()}, not {wanted.types}",
            # With spark.sql.timestampType=TIMESTAMP_NTZ the word timestamp is timestamp_ntz.
            f"Cast it to {wanted.types.split(' or ')[0].replace('timestamp', 'timestamp_ltz')}, or "
            "drop it.",
        )


def _check_values(fields: StructType, value_format: str) -> None:
    if not fields.fields:
        raise InvalidRow(
            "no column is left for the value of the messages",
            "Add a column value, or the columns of a record.",
        )
    _check_names(fields)
    for field in fields:
        _check_convertible(field.name, field.dataType)
    if value_format not in _ONE_VALUE:
        return
    kind, described = _ONE_VALUE[value_format]
    if len(fields) > 1:
        raise InvalidRow(
            f"valueFormat={value_format} writes one column of {described}, but several are left: "
            f"{', '.join(fields.names)}",
            "Drop the others, or remove valueFormat to write records.",
        )
    field = fields.fields[0]
    if not isinstance(field.dataType, type(kind)):
        raise InvalidRow(
            f"valueFormat={value_format} writes {described}, but the column {field.name} is "
            f"{field.dataType.simpleString()}",
            f"Cast it to {kind.simpleString()}, or remove valueFormat.",
        )


def _check_convertible(column: str, kind: DataType) -> None:
    """Raise InvalidRow for what Spark passes on as its own struct, or not, such as an interval."""
    for place, part in leaves(column, kind):
        what = f"the column {place} is {part.simpleString()}, "
        if isinstance(part, INTERNAL_STRUCTS):
            raise InvalidRow(
                f"{what}which only Spark can read",
                "Write to_json(…) of a variant, ST_AsBinary(…) of a geometry or geography, or drop "
                "it.",
            )
        if error := _conversion_error(part):
            raise InvalidRow(
                f"{what}which Spark cannot convert to Arrow: {error}",
                "Cast it to another type, such as string, or drop it.",
            )


@lru_cache(_MOST_TYPES)
def _conversion_error(part: DataType) -> str:
    """Return why Spark cannot convert a type without parts to Arrow, "" if it can."""
    try:
        arrow_schema(StructType([StructField("column", part)]))
    except (PySparkException, ValueError) as error:
        return str(error) or type(error).__name__
    return ""


def leaves(place: str, kind: DataType, level: int = 0) -> Iterator[tuple[str, DataType]]:
    """Return the types without parts in a type, and where they are."""
    if level > _MAX_LEVELS:
        raise InvalidRow(
            f"the column {place[:100]}… is nested more than {_MAX_LEVELS} levels deep",
            "Write fewer levels, or a part of it as text: to_json(…).",
        )
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from leaves(f"{place}.{field.name}", field.dataType, level + 1)
    elif isinstance(kind, ArrayType):
        yield from leaves(f"{place}[]", kind.elementType, level + 1)
    elif isinstance(kind, MapType):
        yield from leaves(f"{place}{{}}", kind.keyType, level + 1)
        yield from leaves(f"{place}{{}}", kind.valueType, level + 1)
    else:
        yield place, kind


def _void_as_null(field: StructField) -> StructField:
    nullable = field.nullable or isinstance(field.dataType, NullType)
    return StructField(field.name, _with_void_as_null(field.dataType), nullable, field.metadata)


def _with_void_as_null(kind: DataType) -> DataType:
    """Return a type in which void can be null, as Arrow demands, and void keys are text.

    Spark says that the elements of `array()` are void and never null.
    """
    if isinstance(kind, StructType):
        return StructType([_void_as_null(field) for field in kind.fields])
    if isinstance(kind, ArrayType):
        item = kind.elementType
        nullable = kind.containsNull or isinstance(item, NullType)
        return ArrayType(_with_void_as_null(item), nullable)
    if isinstance(kind, MapType):
        key = StringType() if isinstance(kind.keyType, NullType) else kind.keyType
        nullable = kind.valueContainsNull or isinstance(kind.valueType, NullType)
        return MapType(_with_void_as_null(key), _with_void_as_null(kind.valueType), nullable)
    return kind


def _check_names(fields: StructType) -> None:
    if alike := names_alike(fields.names):
        other, name = alike
        what = f"two columns are named {name!r}"
        if other != name:
            what = (
                f"the columns {other!r} and {name!r} differ only in case, and columns match fields "
                "in any case, whatever spark.sql.caseSensitive says"
            )
        raise InvalidRow(what, "Rename one of them.")
