"""Arrays of any type built from plain values equal those that pyarrow makes."""

from __future__ import annotations

import struct
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema.arrow.arrays import build_array, cells_of
from tests.schema.random_columns import Columns

DOUBLES = [0.1, None, float("inf")]
RICH = pa.struct(
    [
        ("a", pa.list_(pa.list_(pa.int64()))),
        ("b", pa.map_(pa.string(), pa.struct([("x", pa.int8()), ("y", pa.decimal128(30, 2))]))),
        ("c", pa.timestamp("us")),
        ("d", pa.binary()),
        ("e", pa.bool_()),
        ("f", pa.int16()),
        ("g", pa.null()),
        ("n", pa.float32()),
    ]
)
POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])


@pytest.mark.parametrize(
    "kind,values,shown",
    [
        (pa.null(), [None, None], None),
        (pa.bool_(), [True, None, False] * 5, None),
        (pa.int32(), [1, None, -(2**31)], None),
        (pa.int64(), [2**63 - 1, None], None),
        (pa.float32(), [struct.pack("<f", 0.5), None], [0.5, None]),
        (pa.float64(), [struct.pack("<d", n) if n else None for n in DOUBLES], DOUBLES),
        (pa.binary(), [b"a", None, b""], None),
        (pa.string(), [b"a", None, "Zürich".encode()], ["a", None, "Zürich"]),
        (pa.decimal128(10, 2), [150, None, -1], [Decimal("1.50"), None, Decimal("-0.01")]),
        (pa.list_(pa.int32()), [[1, None], None, []], None),
        (pa.list_(pa.list_(pa.binary())), [[[b"a"], None], None, [[]]], None),
        (pa.map_(pa.string(), pa.int64()), [[(b"a", 1)], None, []], [[("a", 1)], None, []]),
        (
            POINT,
            [[1, b"a"], None, [None, None]],
            [{"x": 1, "y": "a"}, None, {"x": None, "y": None}],
        ),
        (pa.struct([]), [[], None], [{}, None]),
    ],
)
def test_values_become_arrays(kind: pa.DataType, values: list[Any], shown: Any) -> None:
    for some, wanted in ((values, shown or values), (values[:1], (shown or values)[:1]), ([], [])):
        found = build_array(some, kind)
        found.validate(full=True)
        assert found.type == kind
        assert found.to_pylist() == wanted


@pytest.mark.parametrize("seed", range(20))
def test_arrays_become_values_and_back(seed: int) -> None:
    kind = RICH
    found = Columns(Random(seed), nulls=0.1).column(kind, 30).slice(3)
    again = build_array(cells_of(found), kind)
    again.validate(full=True)
    # Equal bits: NaN is unlike itself.
    plain = pa.struct([*list(RICH)[:-1], pa.field("n", pa.int32())])
    assert again.view(plain) == found.view(plain)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")])
def test_dates_and_times_are_numbers(kind: pa.DataType) -> None:
    size = pa.int32() if kind == pa.date32() else pa.int64()
    assert build_array([-5, None], kind).view(size).to_pylist() == [-5, None]
