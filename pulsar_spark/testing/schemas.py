"""Schemas of topics: stored by version, checked for compatibility, served."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.testing.avro import why_unreadable
from pulsar_spark.testing.refusals import Refusal

_T = pb.Schema
RECORD_TYPES = frozenset((_T.Avro, _T.Json))
"""The types whose schema is an Avro definition."""

STRATEGIES = (
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)
"""Which new schemas a topic takes; UNDEFINED is a broker's default, FULL."""
# With these a consumer only needs to read what producers of the latest schema write.
_READ_BACKWARD = ("UNDEFINED", "BACKWARD", "FORWARD", "FORWARD_TRANSITIVE", "FULL")

MAX_VERSIONS = 10_000


class KeptSchema(NamedTuple):
    """A stored version, and when it was stored, in ms since 1970."""

    schema: pb.Schema
    timestamp: int


class SchemaHistory:
    """The versions of one topic's schema, oldest first; all partitions share one history.

    Deleting it uses up a version too, before which nothing counts any more.
    """

    def __init__(self) -> None:
        self._versions: list[KeptSchema | None] = []

    def __len__(self) -> int:
        return len(self.kept())

    def kept(self) -> dict[int, KeptSchema]:
        """The versions that count, by number."""
        numbered = list(enumerate(self._versions))
        deleted = max((number for number, found in numbered if found is None), default=-1)
        return {number: found for number, found in numbered[deleted + 1 :] if found is not None}

    def get(self, version: bytes | None) -> tuple[pb.Schema, bytes] | None:
        """Return the schema of a version, or the latest for None; None if there is none."""
        latest = len(self._versions) - 1
        number = latest if version is None else int.from_bytes(version, "big")
        found = self.kept().get(number)
        return None if found is None else (found.schema, _version(number))

    def find(self, schema: pb.Schema) -> int | None:
        """Return the version of a schema that is stored, None for another one."""
        matches = (number for number, found in self.kept().items() if _same(found.schema, schema))
        return next(matches, None)

    def add(self, schema: pb.Schema, strategy: str = "FULL", *, update: bool = True) -> bytes:
        """Return a schema's version; stores it as a new version if it is unknown.

        Raises Refusal (IncompatibleSchema) if the strategy does not allow it beside earlier ones,
        or without `update`.
        """
        if (number := self.find(schema)) is not None:
            return _version(number)
        if not update:
            raise Refusal(
                pb.IncompatibleSchema, "Schema not found and schema auto updating is disabled."
            )
        self.check(schema, strategy)
        if len(self._versions) >= MAX_VERSIONS:
            raise Refusal(pb.IncompatibleSchema, f"the topic has {MAX_VERSIONS} schema versions")
        stored = pb.Schema()
        stored.CopyFrom(schema)
        self._versions.append(KeptSchema(stored, time.time_ns() // 1_000_000))
        return _version(len(self._versions) - 1)

    def delete(self, *, force: bool) -> int:
        """Delete all versions; returns the number that this used up, -1 with `force`."""
        if force:
            self._versions.clear()
            return -1
        self._versions.append(None)
        return len(self._versions) - 1

    def check(self, schema: pb.Schema, strategy: str) -> None:
        """Raise Refusal (IncompatibleSchema) if the strategy does not allow a new schema."""
        earlier = [found.schema for found in self.kept().values()]
        if strategy == "ALWAYS_COMPATIBLE" or not earlier:
            return
        for old in earlier if strategy.endswith("_TRANSITIVE") else earlier[-1:]:
            _check_fits(old, schema, strategy)

    def check_reader(self, schema: pb.Schema, strategy: str = "FULL") -> None:
        """Raise Refusal (IncompatibleSchema) if a consumer with this schema cannot read."""
        if not len(self):
            raise Refusal(
                pb.IncompatibleSchema,
                "Failed to add schema to an active topic with empty(BYTES) schema: "
                f"new schema type {SchemaInfo(schema.type).type_name}",
            )
        if not _same(next(reversed(self.kept().values())).schema, schema):
            self.check(schema, "BACKWARD" if strategy in _READ_BACKWARD else strategy)


def is_stored(schema: pb.Schema) -> bool:
    """Whether a client's schema must be stored and checked."""
    # This type means the topic's own schema.
    return schema.type != _T.AutoConsume


def _version(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _same(left: pb.Schema, right: pb.Schema) -> bool:
    return left.type == right.type and left.schema_data == right.schema_data


def _check_fits(old: pb.Schema, new: pb.Schema, strategy: str) -> None:
    if old.type != new.type:
        raise Refusal(
            pb.IncompatibleSchema,
            f"Incompatible schema: exists schema type {SchemaInfo(old.type).type_name}, "
            f"new schema type {SchemaInfo(new.type).type_name}",
        )
    if strategy == "ALWAYS_INCOMPATIBLE":
        raise Refusal(pb.IncompatibleSchema, "Incompatible schema: none fits with ALWAYS_…")
    if old.type in RECORD_TYPES:
        problem = _record_problem(_avro(old), _avro(new), strategy)
        if problem:
            raise Refusal(pb.IncompatibleSchema, f"Incompatible schema: {problem}")


def _record_problem(old: Any, new: Any, strategy: str) -> str | None:
    """Return why one definition cannot read what the other wrote, as far as a strategy asks."""
    try:
        problem = None
        if not strategy.startswith("FORWARD"):
            problem = why_unreadable(new, old, "new")
        if problem is None and not strategy.startswith("BACKWARD"):
            problem = why_unreadable(old, new, "removed")
    except (RecursionError, TypeError, KeyError, AttributeError):
        problem = "a schema is nested too deeply, or is no Avro schema"
    return problem


def _avro(schema: pb.Schema) -> Any:
    try:
        return json.loads(schema.schema_data)
    except (ValueError, RecursionError):
        raise Refusal(pb.IncompatibleSchema, "Invalid schema definition data") from None
