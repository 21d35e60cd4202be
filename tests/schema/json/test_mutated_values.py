"""Values that crash Arrow's JSON reader, or that it rounds, are kept away from it.

Separate processes decode them, so that a crash is a test failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.schema.json.cases import logical, nullable, record
from tests.schema.json.decode_mutated import decode

ROOT = Path(__file__).parents[3]


def run(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python with this package; if it crashes, fail the test with the last case."""
    command = [sys.executable, "-X", "faulthandler", *(["-c", code] if code else [])]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"ended with {done.returncode} in {last}: {done.stderr[-3000:]}"
    return done


NAMED = """
import json, sys
from tests.schema.json.decode_mutated import decode
kind, values = json.loads(sys.argv[1])
for value in values:
    found = decode(kind, [value.encode()])
    column = found.columns[0].to_pylist()
    print(json.dumps([str(column[0]), [item.reason for item in found.bad]]))
"""


def decoded(kind: Any, *texts: str) -> list[tuple[str, list[str]]]:
    """Return the texts decoded as a field of a type, and the errors."""
    values = [f'{{"f0":{text}}}' for text in texts]
    done = run(json.dumps([record([("f0", kind)]), values]), code=NAMED)
    return [(found, bad) for found, bad in map(json.loads, done.stdout.splitlines())]


MONEY = logical("bytes", "decimal", precision=5, scale=2)
TINY = ["1e-77", "5e-77", "-1e-76", "1e-78", "1e-39", "1e-41", "5e-999999999", '"1e-77"']
ZEROS = ["0e-999999999", "0E-18", "0e-77", "0e+999999999", '"0e-999999999"', "-0.00e-77"]


@pytest.mark.fault(112)
@pytest.mark.parametrize("kind", [MONEY, nullable(MONEY)])
def test_exponents_beyond_a_column_neither_end_the_process_nor_become_zero(kind: Any) -> None:
    for text, (found, bad) in zip(TINY, decoded(kind, *TINY), strict=True):
        assert (found, len(bad)) == ("None", 1), text
    for text, (found, bad) in zip(ZEROS, decoded(kind, *ZEROS), strict=True):
        assert (found, bad) == ("0.00", []), text


@pytest.mark.fault(112)
@pytest.mark.parametrize(
    "text", ["1e-999999999", r'"1\u0065-999999999"', r'"1e\u002d99999999\u0039"']
)
def test_nor_do_they_within_arrays_maps_and_escapes(text: str) -> None:
    array, of_text = {"type": "array", "items": MONEY}, {"type": "map", "values": MONEY}
    inner = record([("x", MONEY)], "Inner")
    for kind, value in (
        (array, f"[1,{text}]"),
        (of_text, f'{{"a":{text}}}'),
        (inner, f'{{"x":{text}}}'),
    ):
        ((_, bad),) = decoded(kind, value)
        assert len(bad) == 1


@pytest.mark.fault(112)
def test_a_number_with_more_digits_than_its_column_is_not_another_number() -> None:
    # Scaled, it has more than 128 bits, and its lower bits look like a valid number.
    kind = logical("bytes", "decimal", precision=38, scale=18)
    found = decode(record([("f0", kind)]), [b'{"f0":12345678901234567890123}'])
    assert found.columns[0].to_pylist() == [None]
    assert len(found.bad) == 1


@pytest.mark.fault(112)
def test_numbers_with_exponents_that_fit_are_what_they_say() -> None:
    kind = logical("bytes", "decimal", precision=38, scale=18)
    texts = ["1e3", "12E-1", "0E-18", "1.5e+2", "123456789e-18", '"4E-7"', "99999999999999999999"]
    found = [value for value, _ in decoded(kind, *texts)]
    wanted = ["1000", "1.2", "0E-18", "150", "1.23456789E-10", "4E-7", "99999999999999999999"]
    assert [f"{float(value):g}" for value in found] == [f"{float(value):g}" for value in wanted]


@pytest.mark.fault(112)
@pytest.mark.parametrize(
    "seed, cases",
    [
        (1, 400),
        (2, 400),
        pytest.param(3, 40_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_mutated_values_are_decoded_alike_together_and_alone(seed: int, cases: int) -> None:
    run("-m", "tests.schema.json.decode_mutated", str(seed), str(cases))
