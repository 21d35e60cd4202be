"""JSON that a person writes → the Python values that an encoder takes, by a schema's types.

Decimals are numbers or text, days and times are ISO text or numbers as the schema counts them, and
bytes are base64.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from pulsar_spark.schema.avro.definition import (
    Array,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    UnionOf,
)
from pulsar_spark.schema.avro.types import sole_type
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.json.reference import to_date, to_moment, to_time_of_day
from pulsar_spark.schema.json.types import JsonRule, Shape
from pulsar_spark.schema.python_values import converter


def of_json(node: Node, value: Any) -> Any:
    """Return the Python value that JSON, parsed with exact numbers, stands for.

    What does not fit the type stays as it is: the encoder has an error for it that names the field.
    """
    match node, value:
        case Record(), dict():
            types = {field.name: field.type for field in node.fields}
            return {
                name: of_json(types[name], item) if name in types else item
                for name, item in value.items()
            }
        case Array(), list():
            return [of_json(node.items, item) for item in value]
        case Map(), dict():
            return {name: of_json(node.values, item) for name, item in value.items()}
        case UnionOf(), _:
            return _of_union(node, value)
        case ((Primitive() | Fixed()), (str() | Decimal())):
            return _of_leaf(node, value)
    return value


def _of_union(union: UnionOf, value: Any) -> Any:
    """Return the value of the first type that takes it; text stays text where that is a type."""
    sole = sole_type(union)
    if sole is not None:
        return of_json(sole, value)
    for made in (value, *(of_json(member, value) for member in union.present)):
        if _fits(union, made):
            return made
    return value


def _fits(node: Node, value: Any) -> bool:
    try:
        converter(node)(value)
    except Mismatch:
        return False
    return True


def _of_leaf(node: Primitive | Fixed, value: str | Decimal) -> Any:
    name = "" if node.logical is None else node.logical.name
    if isinstance(value, Decimal):
        return value if name == "decimal" else float(value)
    if node.logical is None and (isinstance(node, Fixed) or node.kind == "bytes"):
        name = "bytes"
    read = next((read for prefix, read in _READERS.items() if name.startswith(prefix)), None)
    if read is None:
        return value
    try:
        return read(value)
    except (Mismatch, ValueError, InvalidOperation, OverflowError):
        return value


def _moment(shape: Shape, epoch: datetime) -> Callable[[str], datetime]:
    return lambda text: epoch + timedelta(microseconds=to_moment(text, shape))


def _day(text: str) -> date:
    return date(1970, 1, 1) + timedelta(days=to_date(text, _DATE))


def _time_of_day(text: str) -> time:
    return (datetime.min + timedelta(microseconds=to_time_of_day(text, _TIME) // 1000)).time()


_DATE = Shape(JsonRule.DATE, pa.date32())
_TIME = Shape(JsonRule.TIME, pa.time64("ns"))
_MOMENT = Shape(JsonRule.MOMENT, pa.timestamp("us", "UTC"))
_LOCAL = Shape(JsonRule.MOMENT, pa.timestamp("us"))

_READERS: dict[str, Callable[[str], Any]] = {
    "decimal": Decimal,
    "date": _day,
    "time-": _time_of_day,
    "timestamp-": _moment(_MOMENT, datetime(1970, 1, 1, tzinfo=timezone.utc)),
    "local-timestamp-": _moment(_LOCAL, datetime(1970, 1, 1)),
    "bytes": lambda text: b64decode(text, validate=True),
}
"""How text is read, by how the names of logical types begin."""
