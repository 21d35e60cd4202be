"""Recorded conversations: their folder, and how to compare their manifests.

`PULSAR_SPARK_GOLDEN` names another folder of the same form.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

FOLDER = Path(
    os.environ.get("PULSAR_SPARK_GOLDEN") or Path(__file__).parent.parent / "data" / "golden"
)
SIDES = ("client", "broker")

Manifest = dict[str, Any]


def names() -> list[str]:
    """The names of all captures."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def manifest(name: str) -> Manifest:
    """The manifest of a capture."""
    loaded: Manifest = json.loads((FOLDER / f"{name}.json").read_text())
    return loaded


def stream(connection: Manifest, side: str) -> bytes:
    """All bytes that one side of a connection sent."""
    path = FOLDER / connection[f"{side}_file"]
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def frames(recorded: Manifest, connection: int, side: str) -> list[Manifest]:
    """The manifest's frames of one side of one connection, in order."""
    return [f for f in recorded["frames"] if f["conn"] == connection and f["from"] == side]


def streams() -> Iterator[tuple[str, int, str]]:
    """Every (capture, connection, side)."""
    for name in names():
        for connection in manifest(name)["connections"]:
            for side in SIDES:
                yield name, connection["id"], side


def expected_bytes(value: Manifest) -> bytes | None:
    """The bytes that a manifest has as text or hex; None if it has only a hash."""
    if "utf8" in value:
        return str(value["utf8"]).encode()
    return bytes.fromhex(value["hex"]) if "hex" in value else None


def check_payload(actual: bytes | memoryview, expected: Manifest) -> None:
    """Assert that a payload is the one in a manifest."""
    assert len(actual) == expected["length"]
    assert hashlib.sha256(actual).hexdigest() == expected["sha256"]


def check_message(actual: Message, expected: Manifest) -> None:
    """Assert that exactly the fields of a manifest's object are set, with its values."""
    present = {field.name: (field, value) for field, value in actual.ListFields()}
    assert set(present) == set(expected)
    for name, (field, value) in present.items():
        _check_field(field, value, expected[name])


def _check_field(field: Any, value: Any, expected: Any) -> None:
    repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == 3
    if repeated:
        _check_list(field, list(value), expected)
    else:
        _check_value(field, value, expected)


def _check_list(field: Any, values: list[Any], expected: Any) -> None:
    if isinstance(expected, dict):
        # The manifest has pairs as an object.
        assert {pair.key: pair.value for pair in values} == expected
        return
    assert len(values) == len(expected)
    for value, wanted in zip(values, expected, strict=True):
        _check_value(field, value, wanted)


def _check_value(field: Any, value: Any, expected: Any) -> None:
    if field.message_type is not None:
        check_message(value, expected)
    elif field.enum_type is not None:
        assert field.enum_type.values_by_number[value].name == expected
    elif isinstance(value, bytes):
        wanted = expected_bytes(expected) if isinstance(expected, dict) else expected
        if wanted is None:
            check_payload(value, expected)
        else:
            assert value == wanted
    else:
        assert value == expected
