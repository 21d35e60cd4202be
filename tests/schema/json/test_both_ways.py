"""The kernel and the reference decode any JSON alike, and numbers are exact or refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pulsar_spark.schema.codec import Decoded
from pulsar_spark.schema.column_decoder import ColumnDecoder
from pulsar_spark.schema.json import codec
from tests.schema.bits import assert_same_bits
from tests.schema.json.cases import (
    info,
    logical,
    nullable,
    plain,
    random_record,
    random_text,
    record,
)
from tests.schema.json.mutations import mutated_case
from tests.schema.kernel import choose


def both(
    monkeypatch: pytest.MonkeyPatch,
    definition: Any,
    values: Sequence[bytes],
    where: str = "",
    *,
    is_java: bool = False,
) -> Decoded:
    """Decode values in the kernel and by the reference; fail unless the results are the same."""
    schema = info(definition)
    if is_java:
        schema = replace(schema, properties={"__jsr310ConversionEnabled": "true"})
    names = codec.arrow_schema(schema).names
    found = []
    for kernel in (True, False):
        choose(monkeypatch, kernel=kernel)
        raw = pa.array(list(values), pa.binary())
        found.append(codec.decoder(schema, schema, names).decode(raw))
    first, second = found
    assert first.bad == second.bad, where
    for one, other in zip(first.columns, second.columns, strict=True):
        one.validate(full=True)
        assert_same_bits(one, other, where)
    return first


@pytest.mark.fault(44)
@pytest.mark.parametrize("seed", range(40))
def test_both_ways_agree_on_any_text(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    both(monkeypatch, *mutated_case(Random(seed), 200), is_java=seed % 3 > 0)


@pytest.mark.slow
@pytest.mark.fault(44)
@pytest.mark.parametrize("part", range(10))
def test_both_ways_agree_on_a_million_values(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100 * part + 1000, 100 * (part + 1) + 1000):
        both(monkeypatch, *mutated_case(Random(seed), 1000), f"seed {seed}: ", is_java=seed % 3 > 0)


@pytest.mark.parametrize("seed", range(40))
def test_the_kernel_takes_what_producers_write(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    definition = random_record(rng)
    values = [random_text(rng, definition, unusual=False).encode() for _ in range(50)]
    schema = info(definition)
    choose(monkeypatch, kernel=True)
    monkeypatch.delattr(ColumnDecoder, "_reads")
    names = codec.arrow_schema(schema).names
    assert not codec.decoder(schema, schema, names).decode(pa.array(values)).bad


def test_javas_times_beyond_the_years_of_python_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    day, micros = 2_932_897, 86_400_000_000
    local = logical("long", "local-timestamp-millis")
    instant = logical("long", "timestamp-micros")
    definition = record([("d", logical("int", "date")), ("l", local), ("i", instant)])
    values = [
        b'{"d":[10000,1,1],"l":[10000,1,1,0,0],"i":253402300800.000000000}',
        b'{"d":[0,1,1],"l":"0000-01-01T00:00:00","i":5E-9}',
        b'{"d":"0000-01-01","l":[0,1,1,0,0],"i":9.99E-7}',
    ]
    found = both(monkeypatch, definition, values, is_java=True)
    assert not found.bad
    assert [plain(column) for column in found.columns] == [
        [day, -719_528, -719_528],
        [day * micros, -719_528 * micros, -719_528 * micros],
        [day * micros, 0, 0],
    ]


MONEY = logical("bytes", "decimal", precision=5, scale=2)
TINY = ["1e-77", "5e-77", "-1e-76", "1e-78", "1e-39", "1e-41", "5e-999999999", '"1e-77"']
ZEROS = ["0e-999999999", "0E-18", "0e-77", "0e+999999999", '"0e-999999999"', "-0.00e-77"]


def decoded(
    monkeypatch: pytest.MonkeyPatch, kind: Any, *texts: str
) -> list[tuple[Any, Sequence[str]]]:
    """Return the texts decoded as a field of a type, and the errors."""
    values = [f'{{"f0":{text}}}'.encode() for text in texts]
    found = both(monkeypatch, record([("f0", kind)]), values)
    reasons = {item.row: [item.reason] for item in found.bad}
    cells = found.columns[0].to_pylist()
    return [(cell, reasons.get(row, [])) for row, cell in enumerate(cells)]


@pytest.mark.fault(112)
@pytest.mark.parametrize("kind", [MONEY, nullable(MONEY)])
def test_exponents_beyond_a_column_do_not_become_zero(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, (found, bad) in zip(TINY, decoded(monkeypatch, kind, *TINY), strict=True):
        assert (found, len(bad)) == (None, 1), text
    for text, (found, bad) in zip(ZEROS, decoded(monkeypatch, kind, *ZEROS), strict=True):
        assert (str(found), bad) == ("0.00", []), text


@pytest.mark.fault(112)
@pytest.mark.parametrize(
    "text", ["1e-999999999", r'"1\u0065-999999999"', r'"1e\u002d99999999\u0039"']
)
def test_nor_do_they_within_arrays_maps_and_escapes(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, of_text = {"type": "array", "items": MONEY}, {"type": "map", "values": MONEY}
    inner = record([("x", MONEY)], "Inner")
    for kind, value in (
        (array, f"[1,{text}]"),
        (of_text, f'{{"a":{text}}}'),
        (inner, f'{{"x":{text}}}'),
    ):
        ((_, bad),) = decoded(monkeypatch, kind, value)
        assert len(bad) == 1


@pytest.mark.fault(112)
def test_a_number_with_more_digits_than_its_column_is_not_another_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Scaled, it has more than 128 bits, and its lower bits look like a valid number.
    kind = logical("bytes", "decimal", precision=38, scale=18)
    ((found, bad),) = decoded(monkeypatch, kind, "12345678901234567890123")
    assert (found, len(bad)) == (None, 1)


@pytest.mark.fault(112)
def test_numbers_with_exponents_that_fit_are_what_they_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = logical("bytes", "decimal", precision=38, scale=18)
    texts = ["1e3", "12E-1", "0E-18", "1.5e+2", "123456789e-18", '"4E-7"', "99999999999999999999"]
    found = [value for value, _ in decoded(monkeypatch, kind, *texts)]
    wanted = ["1000", "1.2", "0E-18", "150", "1.23456789E-10", "4E-7", "99999999999999999999"]
    assert [f"{float(value):g}" for value in found] == [f"{float(value):g}" for value in wanted]
