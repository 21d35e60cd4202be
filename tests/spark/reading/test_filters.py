"""Pushed filters keep the same rows as Spark would."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from pulsar_spark.schema.table import names
from pulsar_spark.schema.table.runs import RowFilter
from pulsar_spark.spark.reading.filters import PushedFilters, take_filters

if not hasattr(spark, "Filter"):
    pytest.skip("this Spark pushes no filters down", allow_module_level=True)

COLUMNS = ("value", "__key", "__topic", "__messageId", "__publishTime", "__partition")
T0, T1, PLAIN = (
    f"persistent://public/default/{name}" for name in ("t-partition-0", "t-partition-1", "u")
)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def take(*filters: Any) -> PushedFilters:
    taken, left = take_filters(filters, COLUMNS, COLUMNS)
    assert left == []
    return taken


def left(*filters: Any) -> list[Any]:
    taken, rest = take_filters(filters, COLUMNS, COLUMNS)
    assert taken == PushedFilters()
    return rest


def kept(*filters: Any) -> list[str]:
    return [topic for topic in (T0, T1, PLAIN) if take(*filters).takes_partition(topic)]


TOPIC = (names.TOPIC,)
PARTITION = (names.PARTITION,)
KEY = (names.KEY,)
ID = (names.MESSAGE_ID,)
TIME = (names.PUBLISH_TIME,)


@pytest.mark.parametrize(
    "pushed,topics",
    [
        (spark.EqualTo(TOPIC, T1), [T1]),
        (spark.EqualNullSafe(TOPIC, T1), [T1]),
        (spark.EqualTo(TOPIC, None), []),
        (spark.In(TOPIC, [T1, None, "x"]), [T1]),  # type: ignore[arg-type]
        (spark.StringStartsWith(TOPIC, T0[:-1]), [T0, T1]),
        (spark.StringEndsWith(TOPIC, "/u"), [PLAIN]),
        (spark.StringContains(TOPIC, "partition"), [T0, T1]),
        (spark.GreaterThan(TOPIC, T0), [T1, PLAIN]),
        (spark.IsNull(TOPIC), []),
        (spark.IsNotNull(TOPIC), [T0, T1, PLAIN]),
        (spark.EqualTo(PARTITION, 1), [T1]),
        (spark.LessThan(PARTITION, 0), [PLAIN]),
        (spark.GreaterThanOrEqual(PARTITION, 0), [T0, T1]),
        (spark.LessThanOrEqual(PARTITION, 0), [T0, PLAIN]),
        (spark.In(PARTITION, [0, -1]), [T0, PLAIN]),  # type: ignore[arg-type]
    ],
)
def test_topic_partitions_that_can_have_no_rows_are_left_out(
    pushed: Any, topics: list[str]
) -> None:
    assert kept(pushed) == topics


def test_conditions_add_up() -> None:
    assert kept(
        spark.IsNotNull(TOPIC), spark.StringContains(TOPIC, "t-"), spark.EqualTo(PARTITION, 0)
    ) == [T0]


@pytest.mark.parametrize(
    "filters,expected",
    [
        ([spark.EqualTo(KEY, b"a")], RowFilter(keys=frozenset({b"a"}))),
        ([spark.EqualTo(KEY, bytearray(b"a"))], RowFilter(keys=frozenset({b"a"}))),
        ([spark.In(KEY, [b"a", None])], RowFilter(keys=frozenset({b"a"}))),  # type: ignore[arg-type]
        (
            [spark.IsNotNull(KEY), spark.EqualTo(KEY, b"a")],
            RowFilter(keys=frozenset({b"a"}), has_key=True),
        ),
        ([spark.EqualTo(KEY, b"a"), spark.EqualTo(KEY, b"b")], RowFilter(keys=frozenset())),
        ([spark.IsNull(KEY)], RowFilter(has_key=False)),
        ([spark.IsNull(KEY), spark.IsNotNull(KEY)], RowFilter(has_key=False, keys=frozenset())),
        ([spark.IsNotNull(ID)], RowFilter()),
        ([spark.EqualTo(ID, b"i")], RowFilter(message_ids=frozenset({b"i"}))),
        ([spark.IsNull(ID)], RowFilter(message_ids=frozenset())),
        ([spark.IsNotNull(TIME)], RowFilter()),
    ],
)
def test_messages_are_filtered_by_key_and_id(filters: list[Any], expected: RowFilter) -> None:
    assert take(*filters).row_filter == expected


def test_no_time_is_null() -> None:
    assert not any(take(spark.IsNull(TIME)).row_filter.takes_entry(time) for time in (0, 1, 10**12))


COMPARISONS: dict[Any, Any] = {
    spark.EqualTo: lambda a, b: a == b,
    spark.EqualNullSafe: lambda a, b: a == b,
    spark.GreaterThan: lambda a, b: a > b,
    spark.GreaterThanOrEqual: lambda a, b: a >= b,
    spark.LessThan: lambda a, b: a < b,
    spark.LessThanOrEqual: lambda a, b: a <= b,
}


@given(
    st.lists(
        st.tuples(st.sampled_from(list(COMPARISONS)), st.integers(0, 12_000)),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 12),
)
def test_publish_times_are_compared_to_the_microsecond(
    comparisons: list[tuple[Any, int]], millis: int
) -> None:
    filters = [kind(TIME, EPOCH + timedelta(microseconds=micros)) for kind, micros in comparisons]
    expected = all(COMPARISONS[kind](millis * 1000, micros) for kind, micros in comparisons)
    assert take(*filters).row_filter.takes_entry(millis) is expected


@pytest.mark.parametrize(
    "pushed",
    [
        spark.EqualTo(("value",), b"x"),
        spark.EqualTo(("__key", "inner"), b"x"),
        spark.EqualTo(("other",), b"x"),
        spark.GreaterThan(KEY, b"x"),
        spark.EqualTo(KEY, "text"),
        spark.EqualNullSafe(KEY, None),
        spark.Not(spark.EqualTo(KEY, b"x")),
        spark.Not(spark.EqualTo(PARTITION, 1)),
        spark.EqualTo(TIME, datetime(2026, 1, 1)),
        spark.In(TIME, (EPOCH,)),
        spark.StringStartsWith(KEY, "a"),
    ],
)
def test_what_cannot_be_met_exactly_is_left_to_spark(pushed: Any) -> None:
    assert left(pushed) == [pushed]


def test_columns_are_known_by_the_names_that_the_user_gave_them() -> None:
    taken, rest = take_filters([spark.EqualTo(("__TOPIC",), T0)], [names.TOPIC], ["__TOPIC"])
    assert rest == []
    assert taken.takes_partition(T0)
    assert not taken.takes_partition(T1)


@pytest.mark.fault(98)
def test_what_is_taken_is_plain_data() -> None:
    taken = take(spark.EqualTo(TOPIC, T0), spark.EqualTo(KEY, b"a"))
    assert pickle.loads(pickle.dumps(taken)) == taken
