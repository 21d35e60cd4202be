"""Parsers of option values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.spark.options.parsers import (
    boolean,
    choice,
    duration_millis,
    integer,
    iso_millis,
    milliseconds,
    plain_seconds,
    size,
    text,
    text_list,
    within,
)


@pytest.mark.parametrize(
    "parse,given_text,value",
    [
        (duration_millis, "250", 250),
        (duration_millis, "500ms", 500),
        (duration_millis, " 30s ", 30_000),
        (duration_millis, "5m", 300_000),
        (duration_millis, "1h", 3_600_000),
        (duration_millis, "7d", 7 * 86_400_000),
        (duration_millis, "5 M", 300_000),
        (milliseconds(0), "1500", 1.5),
        (plain_seconds, "30", 30.0),
        (plain_seconds, "500ms", 0.5),
        (size, "10", 10),
        (size, "10b", 10),
        (size, "64k", 64 * 1024),
        (size, "64KiB", 64 * 1024),
        (size, "10m", 10 * 1024**2),
        (size, "1g", 1024**3),
        (integer, " -5 ", -5),
        (boolean, "TRUE", True),
        (boolean, "false", False),
        (text, " a ", "a"),
        (text_list, "a, b,a", ("a", "b")),
        (choice("LZ4", "NONE"), "lz4", "LZ4"),
        (within(integer, 1, 9), "9", 9),
        (milliseconds(1), "1", 0.001),
        (milliseconds(0), "0", 0.0),
    ],
)
def test_a_value_is_understood(parse: Callable[[str], Any], given_text: str, value: Any) -> None:
    assert parse(given_text) == value


@pytest.mark.fault(99)
@pytest.mark.parametrize("wrong", ["['w1', 'w2']", ' ["w1"]', "('a', 'b')"])
def test_what_python_makes_of_a_list_is_refused_with_the_form_to_write(wrong: str) -> None:
    with pytest.raises(ValueError, match="names separated by commas: a,b"):
        text_list(wrong)


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "parse,wrong",
    [
        *((duration_millis, wrong) for wrong in ("", "-1", "1.5s", "ten", "5 weeks", "9" * 30)),
        *((size, wrong) for wrong in ("", "-1", "1t", "k", "1.5m")),
        *((integer, wrong) for wrong in ("", "1e3", "1_000", "0x10", "9" * 30)),
        *((boolean, wrong) for wrong in ("", "yes", "1")),
        *((text_list, wrong) for wrong in ("", "a,,b", "a,")),
        (text, "  "),
        (choice("LZ4"), "LZ5"),
        (within(integer, 1, 9), "0"),
        (within(integer, 1, 9), "10"),
        (milliseconds(0), "36501d"),
        (milliseconds(1), "0"),
        (milliseconds(0, 10), "1s"),
    ],
)
def test_other_text_is_refused(parse: Callable[[str], Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse(wrong)


@pytest.mark.parametrize(
    "iso,millis",
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01Z", 1000),
        ("2026-11-20T10:00:00Z", 1_795_168_800_000),
        ("2026-11-20T10:00:00", 1_795_168_800_000),
        ("2026-11-20 10:00", 1_795_168_800_000),
        ("2026-11-20T11:00:00+01:00", 1_795_168_800_000),
        ("2026-11-20T05:00:00-0500", 1_795_168_800_000),
        ("2026-11-20T05:00:00-05", 1_795_168_800_000),
        ("1970-01-01T00:00:00.001Z", 1),
        ("1970-01-01T00:00:00,25Z", 250),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01T00:00:00.001000Z", 1),
        ("1969-12-31T23:59:59Z", -1000),
    ],
)
def test_iso_times_are_utc_milliseconds_rounded_up(iso: str, millis: int) -> None:
    assert iso_millis(iso) == millis


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "now",
        "2026-13-01",
        "2026-02-30",
        "2026-11-20T25:00:00Z",
        "10:00",
        "2026-11-20T10:00:00+30",
    ],
)
def test_a_time_that_does_not_exist_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="ISO-8601"):
        iso_millis(wrong)


@given(st.datetimes(timezones=st.timezones()))
def test_what_python_writes_as_iso_is_read_back(moment: Any) -> None:
    offset = moment.utcoffset()
    if offset is None or offset.total_seconds() % 60:
        return
    try:
        expected = moment.timestamp()
    except OverflowError:
        return
    assert abs(iso_millis(moment.isoformat()) - expected * 1000) <= 1


@given(st.text(max_size=30))
def test_nothing_but_value_errors_comes_of_any_text(anything: str) -> None:
    for parse in (boolean, duration_millis, plain_seconds, size, integer, iso_millis, text_list):
        try:
            parse(anything)
        except ValueError:
            continue
