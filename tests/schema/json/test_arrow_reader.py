"""Rows go into Arrow's reader only if none can be mistaken for another one's."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.schema.json.arrow_reader import ObjectReader, Refused

READER = ObjectReader({"a": pa.int64(), "s": pa.string()})
# Characters that could confuse a reader of joined objects.
TRICKS = st.text(alphabet='{}[]",:\\\n 1anulsx\x00', max_size=12)


def read(*rows: bytes) -> list[list[object]]:
    columns = READER.read(pa.array(rows, pa.binary()))
    return [list(column.to_pylist()) for column in columns]


def refusal(*rows: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        read(*rows)
    return caught.value


def test_objects_are_read_by_name_and_others_skipped() -> None:
    assert read(b'{"s":"x","a":1}', b'{"b":[{}]}', b' {"a":null}\n') == [
        [1, None, None],
        ["x", None, None],
    ]


@pytest.mark.parametrize(
    "row", [b"", b"1", b"null", b"[]", b"{}{}", b"{}null{}", b"{}[]{}", b'{}"a"{}', b"{} {}"]
)
def test_what_is_not_one_object_is_refused_before_it_is_read(row: bytes) -> None:
    assert refusal(b'{"a":1}', row, b'{"a":1}').row == 1


@pytest.mark.parametrize(
    "row",
    [
        b'{"a":"1"}',
        b'{"a":1,"a":2}',
        b'{"a":01}',
        b'{"s":"\\ud800"}',
        b'{"s":"\xff"}',
        b'{"x":-NaN}',
        b'{"x":Inf}',
        b'{"s":"\0"}',
    ],
)
def test_a_row_is_blamed_where_it_is_known(row: bytes) -> None:
    assert refusal(b'{"a":1}', b'{"a":1}', row, b'{"a":1}').row == 2


def test_no_row_is_blamed_where_it_is_not_known() -> None:
    assert refusal(b'{"a":1}', b'{"a":1.5}').row is None


def test_braces_in_strings_are_no_reason_to_refuse() -> None:
    texts = ['}"', "}null{", "\\}x", '"}x{"']
    rows = [json.dumps({"s": text}).encode() for text in texts]
    assert read(*rows)[1] == texts


@given(st.lists(TRICKS, min_size=1, max_size=4))
def test_rows_that_are_read_are_each_an_object_by_themselves(texts: list[str]) -> None:
    rows = [f'{{"a":1{text}}}' for text in texts]
    try:
        found = read(*[row.encode() for row in rows])
    except Refused:
        return
    trees = [json.loads(row) for row in rows]
    assert found == [[tree.get("a") for tree in trees], [tree.get("s") for tree in trees]]


def test_strictly_other_fields_and_patterns_are_refused_too() -> None:
    strict = ObjectReader({"a": pa.struct([("k", pa.int64())])}, refused='"k":null')
    assert strict.read(pa.array([b'{"a":{"k":1}}', b'{"a":null}'], pa.binary()))
    for row in (b'{"a":{"l":1}}', b'{"b":1}', b'{"a":{"k":null}}'):
        with pytest.raises(Refused) as caught:
            strict.read(pa.array([row], pa.binary()))
        assert caught.value.strictly
