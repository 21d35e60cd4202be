"""Which column of a data frame becomes what of a message: decided on the driver, by types alone."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_spark.errors import InvalidRow, OptionError, UnsupportedFeature
from pulsar_spark.schema import column_names as names
from pulsar_spark.spark.columns import POSITION_COLUMNS

_HONOURED: dict[str, tuple[tuple[DataType, ...], str]] = {
    names.TOPIC: ((StringType(),), "string"),
    names.KEY: ((StringType(), BinaryType()), "string or binary"),
    names.ORDERING_KEY: ((BinaryType(),), "binary"),
    names.EVENT_TIME: ((TimestampType(), LongType()), "timestamp or long (milliseconds)"),
    names.PROPERTIES: ((MapType(StringType(), StringType()),), "map<string,string>"),
    names.SEQUENCE_ID: ((LongType(),), "long"),
    names.DELIVER_AT: ((TimestampType(),), "timestamp"),
}
_DROPPED = frozenset(
    {names.MESSAGE_ID, names.PUBLISH_TIME} | {column.name for column in POSITION_COLUMNS}
) - set(_HONOURED)


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """Positions of the columns that are used, by what they are used for; plain data.

    `by_name` holds the named columns that are there, `value` the position of the one that is
    left, `text` whether that is a string.
    """

    value: int
    text: bool
    by_name: tuple[tuple[str, int], ...]

    def position(self, name: str) -> int | None:
        """Return the position of a named column, None if it is not there."""
        return dict(self.by_name).get(name)


def plan_columns(schema: StructType, *, topic_given: bool, value_format: str) -> WriteColumns:
    """Return what the columns of a data frame are used for.

    Raises OptionError without any topic, InvalidRow for a column of a wrong type or too many
    or no values, UnsupportedFeature for values that are not encoded.
    """
    by_name: dict[str, int] = {}
    values: list[tuple[int, StructField]] = []
    known = {name.lower(): name for name in (*_HONOURED, *_DROPPED)}
    for position, field in enumerate(schema.fields):
        name = known.get(field.name.lower())
        if name is None:
            values.append((position, field))
        elif name in by_name:
            raise InvalidRow(f"there are two columns {name}", "Drop one of them.")
        elif name in _HONOURED:
            _check_type(name, field)
            by_name[name] = position
    if names.TOPIC not in by_name and not topic_given:
        raise OptionError(
            "no topic to write to is given",
            f"Set the option topic, or add a column {names.TOPIC} string.",
        )
    position, value = _value(values)
    text = _is_text(value, value_format)
    return WriteColumns(position, text, tuple(sorted(by_name.items())))


def _check_type(name: str, field: StructField) -> None:
    types, described = _HONOURED[name]
    given = field.dataType
    if isinstance(given, MapType):
        # Whether values may be null is looked at where they are.
        given = MapType(given.keyType, given.valueType)
    if given not in types:
        raise InvalidRow(
            f"the column {field.name} is {field.dataType.simpleString()}, not {described}",
            f"Cast it to {described.split(' or ')[0]}, or drop it.",
        )


def _value(values: list[tuple[int, StructField]]) -> tuple[int, StructField]:
    if not values:
        raise InvalidRow(
            "there is no column left for the value of the messages",
            "Add a column value, binary or string.",
        )
    if len(values) > 1:
        found = ", ".join(field.name for _, field in values)
        raise UnsupportedFeature(
            f"several columns are left for the value ({found}); records are not encoded by this "
            "version",
            "Encode them into one column, as with to_json(struct(…)), or drop the others.",
        )
    return values[0]


def _is_text(field: StructField, value_format: str) -> bool:
    kind = field.dataType
    if isinstance(kind, StringType):
        if value_format == "raw":
            raise InvalidRow(
                f"valueFormat=raw writes bytes, but the column {field.name} is string",
                "Cast it to binary, or leave valueFormat out.",
            )
        return True
    if isinstance(kind, BinaryType):
        if value_format == "string":
            raise InvalidRow(
                f"valueFormat=string writes text, but the column {field.name} is binary",
                "Cast it to string, or leave valueFormat out.",
            )
        return False
    shape = "records" if isinstance(kind, StructType | MapType | ArrayType) else "this type"
    raise UnsupportedFeature(
        f"the value column {field.name} is {kind.simpleString()}; {shape} is not encoded by this "
        "version",
        "Cast it to string or binary, as with to_json(…).",
    )
