"""Random definitions, and JSON that mostly fits them and is often hard to convert."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from tests.schema.json.cases import broken, logical, nullable, random_record, random_text, record

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


def mutated_case(rng: random.Random, count: int) -> tuple[Any, list[bytes]]:
    """Return the definition of a record, often with decimals or times, and values for it."""
    return rng.choice((_any_case, _any_case, _decimal_case, _time_case))(rng, count)


def _any_case(rng: random.Random, count: int) -> tuple[Any, list[bytes]]:
    definition = random_record(rng)
    values = []
    for _ in range(count):
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


def _decimal_case(rng: random.Random, count: int) -> tuple[Any, list[bytes]]:
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
    for _ in range(count):
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


_TIMES = [
    logical("int", "date"),
    logical("int", "time-millis"),
    logical("long", "time-micros"),
    logical("long", "timestamp-millis"),
    logical("long", "timestamp-nanos"),
    logical("long", "local-timestamp-micros"),
]
_MOMENTS = [
    "[2024,2,29]",
    "[13,14]",
    "[13,14,15,123456789]",
    "[2024,2,29,13,14]",
    "[2024,2,29,13,14,15,123456789]",
    "1700000000.123456789",
    "1700000000123",
    "19782",
    '"2024-02-29"',
    '"13:14:15.123456789"',
    '"2024-02-29T13:14:15.123456789"',
    '"2000-12-31T23:59:59Z"',
    '"1969-12-31 00:00:00,5+01:30"',
    '""',
]


def _time_case(rng: random.Random, count: int) -> tuple[Any, list[bytes]]:
    definition = record([(f"f{i}", nullable(rng.choice(_TIMES))) for i in range(3)])
    values = []
    for _ in range(count):
        texts = [rng.choice(_MOMENTS) for _ in range(3)]
        if rng.random() < 0.5:
            texts = [_other_digits(rng, text) for text in texts]
        value = ",".join(f'"f{i}":{text}' for i, text in enumerate(texts))
        values.append(broken(rng, value) if rng.random() < 0.02 else f"{{{value}}}".encode())
    return definition, values


def _other_digits(rng: random.Random, text: str) -> str:
    letters = list(text)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(letters))
        if letters[place].isdigit() or rng.random() < 0.1:
            letters[place] = rng.choice("0123456789")
    return "".join(letters)
