"""Metadata of many entries: read by the column as one by one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol.entry_metadata import RESTS, Rest, Rests
from pulsar_spark.protocol.metadata_columns import RestColumns, columns_of, read_rests
from pulsar_spark.protocol.opened_metadata import UnusualMetadata
from pulsar_spark.protocol.varints import UnusualNumber
from tests.protocol.rests import any_rest, as_expected, expected, rest

pytestmark = pytest.mark.usefixtures("templates")
_UNUSUAL = UnusualMetadata, UnusualNumber, IndexError


def as_rows(columns: RestColumns) -> list[Rest]:
    metadata, names, values, sizes, keys, times = columns
    texts, at = [], 0
    for size in sizes:
        texts.append(values[at : at + size])
        at += size
    assert at == len(values)
    rows = iter(texts)
    own = [tuple(next(rows) for _ in each) for each in names]
    assert list(rows) == []
    return list(zip(metadata, names, own, keys, times, strict=True))


def traced(number: int, **fields: Any) -> bytes:
    """Return metadata whose sizes are like those of others with this number of digits."""
    pairs = ("number", str(number)), ("source", "web")
    return rest(*pairs, partition_key=f"k{number}", event_time=10**9 + number, **fields)


def repeated(number: int) -> bytes:
    """Return metadata of the same size, with a name that is repeated."""
    pairs = ("source", str(number)), ("source", "web")
    return rest(*pairs, partition_key=f"k{number}", event_time=10**9 + number)


def repeated_alone(number: int) -> bytes:
    """Return metadata with nothing but a property that is repeated, in the first with its value."""
    return rest(("source", "x" * (number % 7 + 1)), ("source", "x"))


def varied(number: int, **fields: Any) -> bytes:
    """Return metadata whose sizes are hardly ever those of another one."""
    random = Random(number)
    pairs = [(name, "x" * random.randrange(100)) for name in ("source", "path", "é")]
    key = "k" * random.randrange(100)
    return rest(*pairs, partition_key=key, event_time=10**12 + number, **fields)


def without_key(number: int) -> bytes:
    return rest(("path", "y" * (number * 31 % 100)), event_time=10**12 + number)


def without_time(number: int) -> bytes:
    return rest(("path", "y" * (number * 31 % 100)), partition_key="k" * (number % 90))


def with_key_alone(number: int) -> bytes:
    return rest(("", ""), partition_key="k" * (number % 90), schema_version=b"1")


def with_long_text(number: int) -> bytes:
    return rest(("path", "y" * (100 + number * 31 % 60)), event_time=10**12 + number)


def replicated(number: int) -> bytes:
    return rest(("path", "y" * (number * 31 % 60)), replicated_from="r", event_time=10**12)


def versioned(number: int) -> bytes:
    return varied(number, schema_version=bytes([number // 30]))


def timed(number: int) -> bytes:
    """Return metadata whose event time has any size."""
    return rest(("path", "y" * (number * 31 % 60)), event_time=2 ** (number % 60))


KINDS = [
    traced,
    repeated,
    repeated_alone,
    varied,
    without_key,
    without_time,
    with_key_alone,
    with_long_text,
    replicated,
    versioned,
    timed,
]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(KINDS), st.sampled_from([0, 5, 95, 990]), st.integers(1, 60)),
            st.tuples(any_rest.map(lambda data: lambda _: data), st.just(0), st.integers(1, 40)),
        ),
        min_size=1,
        max_size=4,
    ),
    st.none() | st.randoms(use_true_random=False),
)
def test_many_are_read_as_one_by_one(
    runs: list[tuple[Any, int, int]], shuffling: Random | None
) -> None:
    data = [make(first + number) for make, first, count in runs for number in range(count)]
    if shuffling:
        shuffling.shuffle(data)
    assert as_rows(read_rests(data)) == [RESTS[each] for each in data]


def test_columns_of_rests_are_those_rests() -> None:
    rests = [RESTS[make(number)] for make in KINDS for number in range(3)]
    assert as_rows(columns_of(rests)) == rests


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record what is read one by one from here on."""
    one_by_one: list[bytes] = []
    read = Rests.__missing__

    def recording(self: Rests, data: bytes) -> Rest:
        one_by_one.append(data)
        return read(self, data)

    monkeypatch.setattr(Rests, "__missing__", recording)
    return one_by_one


def test_many_of_one_size_are_read_by_one_template(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [traced(number, schema_version=b"1") for number in range(1000, 3000)]
    RESTS[data[0]]
    monkeypatch.delattr(Rests, "_read")
    found = as_rows(read_rests(data))
    assert [as_expected(each) for each in found] == list(map(expected, data))


@pytest.mark.parametrize(
    "make", [varied, without_key, without_time, with_key_alone], ids=lambda make: make.__name__
)
def test_many_of_one_kind_are_read_field_by_field_over_all(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [make(number) for number in range(500)]
    one_by_one = count_reads(monkeypatch)
    found = as_rows(read_rests(data))
    assert len(one_by_one) == 1
    assert [as_expected(each) for each in found] == list(map(expected, data))


def test_of_a_repeated_property_the_last_value_counts_in_all() -> None:
    data = [repeated_alone(number) for number in range(100)]
    found = as_rows(read_rests(data))
    assert [values for _, _, values, _, _ in found] == [(b"x",)] * 100


def test_kinds_may_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [varied, without_key, without_time]
    data = [kinds[number % 3](number) for number in range(600)]
    one_by_one = count_reads(monkeypatch)
    found = as_rows(read_rests(data))
    assert len(one_by_one) == 3
    assert [as_expected(each) for each in found] == list(map(expected, data))


def test_long_texts_are_read_one_by_one_among_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    long = rest(("path", "z" * 300), event_time=10**12)
    data = [without_key(number) for number in range(300)]
    data[50:50] = [long]
    one_by_one = count_reads(monkeypatch)
    assert as_expected(as_rows(read_rests(data))[50]) == expected(long)
    assert len(one_by_one) == 2


def test_many_with_long_texts_are_read_one_by_one() -> None:
    data = [rest(("path", "z" * (200 + number)), event_time=10**12) for number in range(100)]
    assert [as_expected(each) for each in as_rows(read_rests(data))] == list(map(expected, data))


def test_many_kinds_cost_one_look_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [rest((f"name{number % 50}", "x" * (number % 97))) for number in range(500)]
    one_by_one = count_reads(monkeypatch)
    found = as_rows(read_rests(data))
    assert len(one_by_one) >= 490
    assert [as_expected(each) for each in found] == list(map(expected, data))


def damages(data: bytes) -> list[bytes]:
    """Return the bytes with one of them changed."""
    return [
        data[:at] + bytes([byte]) + data[at + 1 :]
        for at in range(len(data))
        for byte in {0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1}
    ]


@pytest.mark.parametrize("make", [traced, varied], ids=lambda make: make.__name__)
def test_one_of_many_that_is_damaged_is_read_as_by_itself(make: Any) -> None:
    data = [make(number) for number in range(100, 140)]
    others = [RESTS[each] for each in data[:20] + data[21:]]
    for damaged in (*damages(data[20]), data[20][:-1], data[20] + b"\0"):
        check_among(data, 20, damaged, others)


def test_the_first_of_many_may_be_damaged() -> None:
    data = [varied(number) for number in range(7, 40)]
    others = [RESTS[each] for each in data[1:]]
    for damaged in damages(data[0]):
        check_among(data, 0, damaged, others)


def check_among(data: Sequence[bytes], place: int, damaged: bytes, others: list[Rest]) -> None:
    """Check that damaged metadata in place of some is read as by itself, the others as before."""
    mixed = [*data[:place], damaged, *data[place + 1 :]]
    try:
        found = RESTS[damaged]
    except _UNUSUAL:
        with pytest.raises(_UNUSUAL):
            read_rests(mixed)
        return
    many = as_rows(read_rests(mixed))
    assert many[place] == found
    assert many[:place] + many[place + 1 :] == others
