"""Plans for values of JSON topics: how the kernel and the reference read them into columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulsar_spark.schema.arrow.arrays import MAX_CELLS, widest_item
from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.column_decoder import Read
from pulsar_spark.schema.json.reference import converter, count_cells, fields_of, parse
from pulsar_spark.schema.json.types import JsonRule, Shape

# An item of a list takes as many bytes: a digit and a comma.
_SMALLEST_ITEM = 2


@dataclass(frozen=True)
class JsonPlan:
    """Reads objects by the shapes of the requested fields.

    With `is_whole` there is one shape: the value itself, of any type. Unless a value `ends` with
    its JSON, anything may follow.
    """

    shapes: Mapping[str, Shape]
    is_whole: bool = False
    ends: bool = True

    def reader(self) -> Read:
        """Return the function that reads one value."""
        shapes = list(self.shapes.values())
        # The value itself is a field without a name.
        names = [""] if self.is_whole else list(self.shapes)
        fields = fields_of(names, list(map(converter, shapes)))
        widest = max((widest_item(shape.kind) for shape in shapes), default=0)

        def read(value: bytes) -> Sequence[Any] | None:
            try:
                tree = parse(value, ends=self.ends)
                if tree is None:
                    return None
                if self.is_whole:
                    tree = {"": tree}
                elif not isinstance(tree, dict):
                    raise Mismatch("it is JSON, but not an object")
                if len(value) // _SMALLEST_ITEM * widest > MAX_CELLS:
                    cells = sum(map(count_cells, map(tree.get, names), shapes))
                    if cells > MAX_CELLS:
                        raise Mismatch(f"its lists have more than {MAX_CELLS} fields")
                return fields(tree)
            except RecursionError:
                raise Mismatch("it is nested too deeply") from None

        return read

    def described(self) -> tuple[Any, ...]:
        """Return the plan as the kernel takes it."""
        if self.is_whole:
            (shape,) = self.shapes.values()
            return "json", _described(shape), True
        fields = [(name.encode(), _described(shape)) for name, shape in self.shapes.items()]
        return "json", ("record", fields), False


def _described(shape: Shape) -> tuple[Any, ...]:
    match shape.rule:
        case JsonRule.RECORD:
            parts = zip(shape.names, shape.parts, strict=True)
            return "record", [(name.encode(), _described(part)) for name, part in parts]
        case JsonRule.ARRAY | JsonRule.MAP:
            name = "array" if shape.rule is JsonRule.ARRAY else "map"
            return name, _described(shape.parts[0]), widest_item(shape.kind)
        case JsonRule.MOMENT | JsonRule.TIME:
            return "time", _form(shape), shape.times, shape.divided
        case JsonRule.DECIMAL:
            return "decimal", shape.kind.scale, shape.kind.precision
    return _SIMPLE.get(shape.rule, ("refused",))


def _form(shape: Shape) -> str:
    if shape.rule is JsonRule.TIME:
        return "of day"
    if shape.kind.tz is None:
        return "local"
    return "java utc" if shape.java else "utc"


_SIMPLE: dict[JsonRule, tuple[Any, ...]] = {
    JsonRule.BOOLEAN: ("boolean",),
    JsonRule.INTEGER: ("integer",),
    JsonRule.DATE: ("date",),
    JsonRule.FLOAT: ("float",),
    JsonRule.TEXT: ("text", True, True),
    JsonRule.BYTES: ("text", False, False),
    JsonRule.ENUM: ("text", True, False),
    JsonRule.BASE64: ("base64",),
}
"""Left alone are unions of several types, keys that are no text, bytes that become text, what is
always null, and what is of another type."""
