"""Decodes mutated JSON in a separate process, because Arrow's reader might crash.

``python -m tests.schema.json.decode_mutated SEED CASES`` writes each case before it is decoded. If
the two decoding paths differ, it writes the difference and exits.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from pulsar_spark.schema.codec import Decoded
from pulsar_spark.schema.json import codec
from pulsar_spark.schema.json.arrow_reader import Refused
from pulsar_spark.schema.json.reading import JsonDecoder
from tests.schema.bits import assert_same_bits
from tests.schema.json.cases import (
    broken,
    info,
    logical,
    nullable,
    random_record,
    random_text,
    record,
)

_DECIMALS = [(5, 2), (1, 0), (1, 1), (18, 18), (20, 4), (38, 0), (38, 18), (38, 37), (38, 38)]
_PLAIN: list[Any] = ["int", "long", "float", "double", "string", "boolean", "bytes"]
_EXTREMES = [0, 1, 4, 37, 38, 39, 75, 76, 77, 78, 99, 2**31 - 1, 2**31, 2**32, 10**9 - 1, 10**9]
_ODD_VALUES = [
    "null",
    "[]",
    "{}",
    "true",
    '""',
    "[null]",
    "NaN",
    "-Infinity",
    "1,",
    '"\\u0000"',
    "-0",
]
_DIGITS = ["0", "1", "5", "9", "12345", "9" * 18, "9" * 37, "9" * 38, "1" + "0" * 38, "9" * 77]


def decode(kind: Any, values: Sequence[bytes], *, one_by_one: bool = False) -> Decoded:
    """Decode values of a record, one by one if that is asked for."""
    decoder = codec.decoder(info(kind), info(kind), [field["name"] for field in kind["fields"]])
    raw = pa.array(list(values), pa.binary())
    if not one_by_one:
        return decoder.decode(raw)
    with patch.object(JsonDecoder, "_together", side_effect=Refused):
        return decoder.decode(raw)


def mutated_number(rng: random.Random) -> str:
    """Return a JSON number, or almost one, often hard to convert."""
    text = rng.choice(["", "", "-", "-", "+"]) + rng.choice(_DIGITS)
    if rng.random() < 0.5:
        zeros = "0" * rng.choice([0, 1, 2, 17, 18, 36, 37, 38, 40, 75, 76, 77])
        text += "." + zeros + rng.choice(["", *_DIGITS])
    if rng.random() < 0.6:
        power = str(rng.choice(_EXTREMES) + rng.choice([0, 0, -1, 1]))
        text += rng.choice("eE") + rng.choice(["", "+", "-", "-", "-"]) + power.lstrip("-")
    if rng.random() < 0.4:
        text = json.dumps(text)
        if rng.random() < 0.3:
            letter = rng.choice(text[1:-1])
            text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def mutated_case(rng: random.Random) -> tuple[Any, list[bytes]]:
    """Return the definition of a record, often with decimals, and unusual values for it."""
    return _any_case(rng) if rng.random() < 0.5 else _decimal_case(rng)


def _any_case(rng: random.Random) -> tuple[Any, list[bytes]]:
    definition = random_record(rng)
    values = []
    for _ in range(rng.choice([1, 3, 20])):
        text = random_text(rng, definition)
        parts = [
            rng.choice(_ODD_VALUES) if rng.random() < 0.02 else part
            for part in re.split(r"([0-9.eE+-]+|[{}\[\]:,])", text)
        ]
        parts = [mutated_number(rng) if _is_number(rng, part) else part for part in parts]
        value = "".join(parts)
        values.append(broken(rng, value) if rng.random() < 0.1 else value.encode())
    return definition, values


def _is_number(rng: random.Random, part: str) -> bool:
    return part[:1].isdigit() and rng.random() < 0.1


def _decimal_case(rng: random.Random) -> tuple[Any, list[bytes]]:
    fields: list[tuple[str, Any]] = []
    for number in range(rng.randint(1, 4)):
        precision, scale = rng.choice(_DECIMALS)
        kind: Any = logical("bytes", "decimal", precision=precision, scale=scale)
        if rng.random() < 0.3:
            kind = rng.choice(_PLAIN)
        if rng.random() < 0.2:
            kind = rng.choice([{"type": "array", "items": kind}, {"type": "map", "values": kind}])
        fields.append((f"f{number}", nullable(kind)))
    definition = record(fields)
    values = []
    for _ in range(rng.choice([1, 3, 20])):
        parts = [f'"{name}":{_text(rng, kind)}' for name, kind in fields if rng.random() < 0.9]
        value = f"{{{','.join(parts)}}}"
        values.append(broken(rng, value) if rng.random() < 0.1 else value.encode())
    return definition, values


def _text(rng: random.Random, kind: Any) -> str:
    inner = kind[1]
    if isinstance(inner, dict) and inner["type"] == "array":
        return f"[{mutated_number(rng)},{mutated_number(rng)}]"
    if isinstance(inner, dict) and inner["type"] == "map":
        return f'{{"a":{mutated_number(rng)}}}'
    return mutated_number(rng) if rng.random() < 0.8 else _usual(rng, inner)


def _usual(rng: random.Random, kind: Any) -> str:
    if isinstance(kind, dict):
        return str(rng.choice([0, 1, -1, 0.5, "1.5", 12]))
    return random_text(rng, kind)


def main(seed: int, cases: int) -> None:
    """Decode this many cases on both paths."""
    for number in range(cases):
        definition, values = mutated_case(random.Random(f"{seed} {number}"))
        print(number, json.dumps(definition), values, flush=True)
        together, alone = decode(definition, values), decode(definition, values, one_by_one=True)
        assert together.bad == alone.bad, (together.bad, alone.bad)
        for one, other in zip(together.columns, alone.columns, strict=True):
            one.validate(full=True)
            assert_same_bits(one, other)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
