"""Spark's filters → the topic partitions and message ranges that match.

Only filters that can be applied exactly are taken; Spark applies the others. Filters are recognised
by class name, because not every supported Spark version has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.schema.table import names
from pulsar_spark.schema.table.runs import RowFilter

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_NO_TIME = RowFilter(published_from=0, published_before=0)
_CONSTANTS = (names.TOPIC, names.PARTITION)


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter on a column whose value is the same for a whole topic partition."""

    column: str
    kind: str
    value: Any = None

    def holds(self, value: Any) -> bool:
        """Return whether `value`, which is never null, matches."""
        given = self.value
        if self.kind in _TESTS:
            return given is not None and bool(_TESTS[self.kind](value, given))
        if self.kind == "In":
            return value in [member for member in given if member is not None]
        return self.kind == "IsNotNull"


_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda value, given: value == given,
    "EqualNullSafe": lambda value, given: value == given,
    "GreaterThan": lambda value, given: value > given,
    "GreaterThanOrEqual": lambda value, given: value >= given,
    "LessThan": lambda value, given: value < given,
    "LessThanOrEqual": lambda value, given: value <= given,
    "StringStartsWith": lambda value, given: value.startswith(given),
    "StringEndsWith": lambda value, given: value.endswith(given),
    "StringContains": lambda value, given: given in value,
}


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The filters taken: conditions on topic partitions, and a filter of messages."""

    conditions: tuple[Condition, ...] = ()
    row_filter: RowFilter = field(default_factory=RowFilter)

    def takes_partition(self, topic: str) -> bool:
        """Whether a topic partition, by its full name, can have matching rows."""
        values = {names.TOPIC: topic, names.PARTITION: TopicName.parse(topic).partition_index}
        return all(condition.holds(values[condition.column]) for condition in self.conditions)


def take_filters(
    filters: Iterable[Any], columns: Sequence[str], aliases: Sequence[str]
) -> tuple[PushedFilters, list[Any]]:
    """Return what could be taken of `filters`, and the filters left to Spark.

    `aliases` are the names of `columns` in the user's schema.
    """
    by_alias = dict(zip(aliases, columns, strict=True))
    taken = PushedFilters()
    left: list[Any] = []
    for pushed in filters:
        attribute: Sequence[str] = getattr(pushed, "attribute", ())
        column = by_alias.get(attribute[0]) if len(attribute) == 1 else None
        narrowed = None if column is None else _take(taken, column, pushed)
        if narrowed is None:
            left.append(pushed)
        else:
            taken = narrowed
    return taken, left


def _take(taken: PushedFilters, column: str, pushed: Any) -> PushedFilters | None:
    kind = type(pushed).__name__
    value: Any = getattr(pushed, "value", None)
    if column in _CONSTANTS:
        if kind not in _TESTS and kind not in ("In", "IsNull", "IsNotNull"):
            return None
        condition = Condition(column, kind, tuple(value) if kind == "In" else value)
        return replace(taken, conditions=(*taken.conditions, condition))
    row_filter: RowFilter | None = None
    if column == names.PUBLISH_TIME:
        row_filter = _by_time(taken.row_filter, kind, value)
    elif column == names.KEY:
        row_filter = _by_key(taken.row_filter, kind, value)
    elif column == names.MESSAGE_ID:
        row_filter = _by_id(taken.row_filter, kind, value)
    return None if row_filter is None else replace(taken, row_filter=row_filter)


def _by_time(found: RowFilter, kind: str, value: Any) -> RowFilter | None:
    if kind == "IsNotNull":
        return found
    if kind == "IsNull":
        return _NO_TIME
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    # Publish times are whole milliseconds: take the first one at or after the given microsecond.
    micros = (value - _EPOCH) // _MICROSECOND
    at, behind = -(-micros // 1000), micros // 1000 + 1
    low, high = {
        "EqualTo": (at, behind),
        "EqualNullSafe": (at, behind),
        "GreaterThan": (behind, None),
        "GreaterThanOrEqual": (at, None),
        "LessThan": (None, at),
        "LessThanOrEqual": (None, behind),
    }.get(kind, (None, None))
    if low is None and high is None:
        return None
    lows = [bound for bound in (found.published_from, low) if bound is not None]
    highs = [bound for bound in (found.published_before, high) if bound is not None]
    return replace(
        found,
        published_from=max(lows) if lows else None,
        published_before=min(highs) if highs else None,
    )


def _by_key(found: RowFilter, kind: str, value: Any) -> RowFilter | None:
    if kind in ("IsNull", "IsNotNull"):
        has_key = kind == "IsNotNull"
        if found.has_key is not None and found.has_key != has_key:
            return replace(found, keys=frozenset())
        return replace(found, has_key=has_key)
    wanted = _bytes_of(kind, value)
    if wanted is None:
        return None
    return replace(found, keys=wanted if found.keys is None else found.keys & wanted)


def _by_id(found: RowFilter, kind: str, value: Any) -> RowFilter | None:
    if kind == "IsNotNull":
        return found
    wanted = frozenset[bytes]() if kind == "IsNull" else _bytes_of(kind, value)
    if wanted is None:
        return None
    ids = found.message_ids
    return replace(found, message_ids=wanted if ids is None else ids & wanted)


def _bytes_of(kind: str, value: Any) -> frozenset[bytes] | None:
    """Return the bytes that a filter compares with, or None for another kind of filter."""
    members = value if kind == "In" else [value] if kind in ("EqualTo", "EqualNullSafe") else None
    if members is None or (kind == "EqualNullSafe" and value is None):
        return None
    present = [member for member in members if member is not None]
    if not all(isinstance(member, bytes | bytearray) for member in present):
        return None
    return frozenset(map(bytes, present))
