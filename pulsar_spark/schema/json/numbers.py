"""Numbers of parsed JSON, exactly: as integers, and as decimals with a scale."""

from __future__ import annotations

import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

from pulsar_spark.schema.json.types import Rule, Shape

LONGEST_INTEGER = 40
"""Digits and sign of the longest integer that is parsed: columns hold none that is longer."""
NOT_FINITE = frozenset(("NaN", "Infinity", "-Infinity"))
"""The words that stand where a number should."""

_LONGEST_DECIMAL = 1000
_EXACT = Context(prec=_LONGEST_DECIMAL, Emax=MAX_EMAX, Emin=MIN_EMIN)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)


class Misfit(Exception):
    """A value is not what its shape wants; `path` leads to it, innermost name last."""

    def __init__(self, reason: str, *path: str) -> None:
        self.reason = reason
        self.path = path
        super().__init__(reason)

    @property
    def field(self) -> str:
        """The path as people write it."""
        return "".join(self.path).removeprefix(".")

    def inside(self, name: str) -> Misfit:
        """Return the same, seen from one level further out."""
        return Misfit(self.reason, name, *self.path)


class NumberText(str):
    """A number as it is written, where it is not a short integer."""

    __slots__ = ()


def wrong(value: Any, wanted: Rule) -> Misfit:
    """Return what is raised for a value of another kind."""
    return Misfit(f"it is {named(value)} where the schema has {wanted.value}")


def named(value: Any) -> str:
    """Return what a value is, without telling it."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float | NumberText):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def whole_number(value: Any, shape: Shape) -> int:
    """Return an integer, also one that is written as 1.0 or 1e3."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, NumberText) or value in NOT_FINITE:
        raise wrong(value, shape.rule)
    number = Decimal(value) if _DECIMAL.fullmatch(value) else None
    # Beyond that it is out of any column's range, and the power would not end.
    if number is None or number.adjusted() > LONGEST_INTEGER:
        raise Misfit("it is a number out of the range of its type")
    whole = int(number)
    if whole != number:
        raise Misfit(f"it is a number with a fraction where the schema has {shape.rule.value}")
    return whole


def in_range(number: int, allowed: range) -> int:
    """Return the number; raises Misfit if it is not among those allowed."""
    if number in allowed:
        return number
    raise Misfit("it is a number out of the range of its type")


def scaled_decimal(value: Any, shape: Shape) -> int:
    """Return a decimal times ten to the power of its scale; refuses to round."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise wrong(value, shape.rule)
    text = str(value)
    if not _DECIMAL.fullmatch(text):
        raise wrong(value, shape.rule)
    kind = shape.kind
    number = Decimal(text)
    digits = number.adjusted() + 1 + kind.scale
    if len(text) > _LONGEST_DECIMAL or (number and not 0 < digits <= kind.precision):
        raise Misfit(
            f"it is a number that {kind.precision} digits, {kind.scale} of them behind "
            "the point, do not hold"
        )
    scaled = number.scaleb(kind.scale, _EXACT) if number else number
    whole = int(scaled)
    if whole != scaled:
        raise Misfit(f"it is a number with more than {kind.scale} digits behind the point")
    return whole
