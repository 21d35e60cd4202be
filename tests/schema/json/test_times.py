"""Dates and times as numbers, as ISO 8601 text, and as Java's client writes them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.json.reference import NumberText, to_date, to_moment, to_time_of_day
from pulsar_spark.schema.json.types import JsonRule, Shape

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
DATE = Shape(JsonRule.DATE, pa.date32())
MILLIS = Shape(JsonRule.MOMENT, pa.timestamp("us", "UTC"), times=1000)
INSTANT = Shape(JsonRule.MOMENT, pa.timestamp("us", "UTC"), times=1000, java=True)
LOCAL = Shape(JsonRule.MOMENT, pa.timestamp("us"), java=True)
DAY = 86_400_000_000
TIME = Shape(JsonRule.TIME, pa.int64(), times=1_000_000)


@given(st.datetimes(timezones=st.just(timezone.utc)))
def test_iso_text_of_a_moment(moment: datetime) -> None:
    micros = (moment - EPOCH) // timedelta(microseconds=1)
    assert to_moment(moment.isoformat(), MILLIS) == micros
    assert to_moment(f"{moment.replace(tzinfo=None).isoformat()}Z", MILLIS) == micros
    local = moment.replace(tzinfo=None).isoformat(" ")
    assert to_moment(local, LOCAL) == micros
    day, seconds = divmod(micros, 86_400_000_000)
    assert to_date(moment.date().isoformat(), DATE) == day
    assert to_time_of_day(moment.time().isoformat(), TIME) == seconds * 1000


@given(st.integers(-(10**11), 10**11), st.integers(0, 999_999_999))
def test_instants_as_jackson_writes_them(seconds: int, nanos: int) -> None:
    text = "0.0" if seconds == nanos == 0 else f"{seconds}.{nanos:09}"
    assert to_moment(NumberText(text), INSTANT) == seconds * 1_000_000 + nanos // 1000


JAVA: list[tuple[Any, Any, Shape, int]] = [
    (to_moment, NumberText("-0.000001000"), INSTANT, -1),
    (to_moment, NumberText("-1.999999999"), INSTANT, -1),
    (to_moment, 5, INSTANT, 5000),
    (to_moment, NumberText("5E-9"), INSTANT, 0),
    (to_moment, NumberText("9.99E-7"), INSTANT, 0),
    (to_date, [2024, 2, 29], DATE, 19_782),
    (to_date, [10_000, 1, 1], DATE, 2_932_897),
    (to_date, [0, 1, 1], DATE, -719_528),
    (to_date, [0, 2, 29], DATE, -719_469),
    (to_date, [-1, 3, 1], DATE, -719_834),
    (to_date, [5_881_580, 7, 11], DATE, 2**31 - 1),
    (to_date, [-5_877_641, 6, 23], DATE, -(2**31)),
    (to_date, "0000-01-01", DATE, -719_528),
    (to_moment, "0000-01-01T00:00:00", LOCAL, -719_528 * DAY),
    (to_moment, [10_000, 1, 1, 0, 0], LOCAL, 2_932_897 * DAY),
    (to_moment, [-290_308, 12, 21, 19, 59, 5, 224_192_000], LOCAL, -(2**63)),
    (to_moment, [294_247, 1, 10, 4, 0, 54, 775_807_999], LOCAL, 2**63 - 1),
    (to_time_of_day, [13, 14], TIME, 47_640_000_000_000),
    (to_time_of_day, [13, 14, 15, 16], TIME, 47_655_000_000_016),
    (to_moment, [1970, 1, 2, 0, 0], LOCAL, 86_400_000_000),
    (to_moment, [1969, 12, 31, 23, 59, 59, 999_999_999], LOCAL, -1),
]


@pytest.mark.parametrize("convert,value,shape,wanted", JAVA)
def test_what_jackson_makes_of_javas_times(
    convert: Any, value: Any, shape: Shape, wanted: int
) -> None:
    assert convert(value, shape) == wanted


MISFITS: list[tuple[Any, Any, Shape]] = [
    (to_moment, NumberText("1700000000.5"), MILLIS),
    (to_moment, NumberText("99999999999999.0"), INSTANT),
    (to_moment, [2024, 2, 29, 0, 0], INSTANT),
    (to_moment, [2024, 2, 30, 0, 0], LOCAL),
    (to_moment, [2024, 2, 29, 24, 0], LOCAL),
    (to_moment, [2024, 2, 29], LOCAL),
    (to_moment, "2024-02-29T00:00:00+01:00", LOCAL),
    (to_moment, True, MILLIS),
    (to_date, [2024, 2], DATE),
    (to_date, [2024, 2, True], DATE),
    (to_date, [2**70, 1, 1], DATE),
    (to_date, 2**31, DATE),
    (to_date, [5_881_580, 7, 12], DATE),
    (to_date, [-5_877_641, 6, 22], DATE),
    (to_date, [999_999_999, 12, 31], DATE),
    (to_date, [-999_999_999, 1, 1], DATE),
    (to_date, [-1, 2, 29], DATE),
    (to_date, [10_000, 0, 1], DATE),
    (to_moment, [-290_308, 12, 21, 19, 59, 5, 224_191_999], LOCAL),
    (to_moment, [294_247, 1, 10, 4, 0, 54, 775_808_000], LOCAL),
    (to_moment, NumberText("5E-9"), MILLIS),
    (to_moment, NumberText("5E-6"), INSTANT),
    (to_moment, NumberText("31556889864403199.999999999"), INSTANT),
    (to_moment, NumberText("-31557014167219200.0"), INSTANT),
    (to_time_of_day, [13, 14, 15, 10**9], TIME),
    (to_time_of_day, [-1, 0], TIME),
    (to_time_of_day, "24:00", TIME),
    (to_time_of_day, {}, TIME),
]


@pytest.mark.parametrize("convert,value,shape", MISFITS)
def test_what_is_no_time(convert: Any, value: Any, shape: Shape) -> None:
    with pytest.raises(Mismatch):
        convert(value, shape)
