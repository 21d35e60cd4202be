"""Numbers are exact, or an error."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.codec import Mismatch
from pulsar_spark.schema.json.reference import (
    NumberText,
    in_range,
    named,
    scaled_decimal,
    whole_number,
)
from pulsar_spark.schema.json.types import JsonRule, Shape

LONG = Shape(JsonRule.INTEGER, pa.int64())
PRICE = Shape(JsonRule.DECIMAL, pa.decimal128(10, 2))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str))
def test_whole_numbers_are_those_without_a_fraction(text: str) -> None:
    number = Decimal(text)
    if number == number.to_integral_value() and number.adjusted() <= 40:
        assert whole_number(NumberText(text), LONG) == number
    else:
        with pytest.raises(Mismatch):
            whole_number(NumberText(text), LONG)


@given(st.integers(-(10**11), 10**11), st.integers(0, 4))
def test_decimals_fit_their_precision_and_scale_or_are_refused(digits: int, places: int) -> None:
    number = Decimal(digits).scaleb(-places)
    hundredths = number * 100
    if hundredths == int(hundredths) and abs(hundredths) < 10**10:
        assert scaled_decimal(NumberText(f"{number:f}"), PRICE) == hundredths
    else:
        with pytest.raises(Mismatch):
            scaled_decimal(NumberText(f"{number:f}"), PRICE)


@pytest.mark.parametrize(
    "text", ["1e999999999", "1e99999999999", "-1e-999999999", "NaN", "9" * 9999]
)
def test_hostile_numbers_are_refused_soon(text: str) -> None:
    for convert, shape in ((whole_number, LONG), (scaled_decimal, PRICE)):
        with pytest.raises(Mismatch):
            convert(NumberText(text), shape)


def test_the_range_and_the_names_of_values() -> None:
    assert in_range(127, range(-128, 128)) == 127
    with pytest.raises(Mismatch, match="out of the range"):
        in_range(128, range(-128, 128))
    values: list[Any] = [True, 1, 1.5, NumberText("1"), "1", [], {}]
    names = [named(value) for value in values]
    assert names == ["a boolean", *["a number"] * 3, "a string", "an array", "an object"]
