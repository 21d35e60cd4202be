"""Schemas of topics: stored by version, checked for compatibility, served."""

from __future__ import annotations

import json
import re
from typing import Any

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.refusals import Refusal

_T = pb.Schema
_RECORD_TYPES = frozenset((_T.Avro, _T.Json))
# Types that mean "the topic's schema" and are never stored.
_NOT_STORED = frozenset((_T.AutoConsume,))

MAX_VERSIONS = 10_000


def type_name(kind: int) -> str:
    """Return a schema type's name as brokers write it, such as ``KEY_VALUE``."""
    if kind == _T.Bool:
        return "BOOLEAN"
    name = pb.Schema.Type.Name(kind)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


class SchemaHistory:
    """The versions of one topic's schema, oldest first; all partitions share one history."""

    def __init__(self) -> None:
        self._versions: list[pb.Schema] = []

    def __len__(self) -> int:
        return len(self._versions)

    def get(self, version: bytes | None) -> tuple[pb.Schema, bytes] | None:
        """Return the schema of a version, or the latest for None; None if there is none."""
        latest = len(self._versions) - 1
        number = latest if version is None else int.from_bytes(version, "big")
        if not 0 <= number < len(self._versions):
            return None
        return self._versions[number], _version(number)

    def add(self, schema: pb.Schema) -> bytes:
        """Return a schema's version; stores it as a new version if it is unknown.

        Raises Refusal (IncompatibleSchema) if it is incompatible with the latest one.
        """
        for number, known in enumerate(self._versions):
            if _same(known, schema):
                return _version(number)
        if self._versions:
            _check_fits(self._versions[-1], schema)
        if len(self._versions) >= MAX_VERSIONS:
            raise Refusal(pb.IncompatibleSchema, f"the topic has {MAX_VERSIONS} schema versions")
        stored = pb.Schema()
        stored.CopyFrom(schema)
        self._versions.append(stored)
        return _version(len(self._versions) - 1)

    def check_reader(self, schema: pb.Schema) -> None:
        """Raise Refusal (IncompatibleSchema) if a consumer with this schema cannot read."""
        if not self._versions:
            raise Refusal(
                pb.IncompatibleSchema,
                "Failed to add schema to an active topic with empty(BYTES) schema: "
                f"new schema type {type_name(schema.type)}",
            )
        latest = self._versions[-1]
        if not _same(latest, schema):
            _check_fits(latest, schema)


def is_stored(schema: pb.Schema) -> bool:
    """Whether a client's schema must be stored and checked."""
    return schema.type not in _NOT_STORED


def _version(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _same(left: pb.Schema, right: pb.Schema) -> bool:
    return left.type == right.type and left.schema_data == right.schema_data


def _check_fits(old: pb.Schema, new: pb.Schema) -> None:
    if old.type != new.type:
        raise Refusal(
            pb.IncompatibleSchema,
            f"Incompatible schema: exists schema type {type_name(old.type)}, "
            f"new schema type {type_name(new.type)}",
        )
    if old.type in _RECORD_TYPES:
        try:
            problem = _record_problem(_avro(old), _avro(new))
        except RecursionError:
            problem = "the schema is nested too deeply"
        if problem:
            raise Refusal(pb.IncompatibleSchema, f"Incompatible schema: {problem}")


def _avro(schema: pb.Schema) -> Any:
    try:
        return json.loads(schema.schema_data)
    except (ValueError, RecursionError):
        raise Refusal(pb.IncompatibleSchema, "Invalid schema definition data") from None


def _record_problem(old: Any, new: Any) -> str | None:
    """Return why readers of one record cannot read the other, including its fields.

    By default brokers require full compatibility: a field that only one record has needs a default,
    and common fields must have the same type.
    """
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return None if old == new else "the types differ"
    fields = [
        {field.get("name"): field for field in schema.get("fields", ()) if isinstance(field, dict)}
        for schema in (old, new)
    ]
    for here, there, what in ((fields[1], fields[0], "new"), (fields[0], fields[1], "removed")):
        for name, field in here.items():
            if name not in there and "default" not in field:
                return f"the {what} field {name!r} has no default"
    for name in fields[0].keys() & fields[1].keys():
        if _bare(fields[0][name].get("type")) != _bare(fields[1][name].get("type")):
            return f"the field {name!r} changed its type"
    return None


def _bare(kind: Any) -> str:
    """Return a field's type without names and properties that do not affect its encoding."""
    if isinstance(kind, dict):
        ignored = ("name", "namespace", "doc", "avro.java.string")
        kind = {key: _bare(value) for key, value in kind.items() if key not in ignored}
    elif isinstance(kind, list):
        kind = [_bare(item) for item in kind]
    return json.dumps(kind, sort_keys=True)
