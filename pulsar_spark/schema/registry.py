"""Topic schemas from the brokers' registry, and definitions that drivers give their tasks.

A definition can be large, so what is sent for each task only names it, by its digest. A process
keeps the definitions that it was given, and what is made of them, for the tasks that follow.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import Operation, value_of
from pulsar_spark.errors import PulsarError, SchemaMismatch
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import TopicName

_MAX_VERSIONS = 1000
_MAX_OLDER = 100
_VERSION_SIZE = 8
_DIGEST_SIZE = 16
_MAX_REMEMBERED = 32


@lru_cache(_MAX_REMEMBERED)
def _digest(schema: SchemaInfo) -> bytes:
    told = (schema.type, schema.name, sorted(schema.properties.items()))
    text = repr(told).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text + b"\0" + schema.schema_data, digest_size=_DIGEST_SIZE).digest()


class SchemaRef(NamedTuple):
    """Names a schema by its digest, and the topic and version that brokers have it as, if any."""

    digest: bytes
    topic: str = ""
    version: bytes = b""

    @classmethod
    def of(cls, schema: SchemaInfo) -> SchemaRef:
        """Return the name of a schema."""
        return cls(_digest(schema), *(schema.found_as or ()))


_remembered: dict[bytes, SchemaInfo] = {}
"""What this process was given. Guarded by the interpreter: a lost entry is only given again."""


def definition_of(ref: SchemaRef, given: Mapping[bytes, SchemaInfo]) -> SchemaInfo | None:
    """Return a schema by its name, if this process was given it: always the same object."""
    found = _remembered.get(ref.digest)
    if found is None:
        found = given.get(ref.digest)
        if found is not None:
            remember(found)
    return found


def remember(schema: SchemaInfo) -> None:
    """Keep a definition for tasks of this process that only have its name."""
    while len(_remembered) >= _MAX_REMEMBERED:
        _remembered.pop(next(iter(_remembered)), None)
    _remembered[_digest(schema)] = schema


def fetched(lookup: Lookup, ref: SchemaRef) -> SchemaInfo:
    """Return a schema by its name from the registry.

    Raises SchemaMismatch if it is not there any more, and the broker's error.
    """
    found = SchemaVersions(lookup, ref.topic)(ref.version)
    if SchemaRef.of(found).digest != ref.digest:
        raise SchemaMismatch(
            f"the version {version_number(ref.version)} of the topic's schema is another one than "
            "when the read was planned: the topic was deleted and made again",
            "Read it again.",
            topic=ref.topic,
        )
    remember(found)
    return found


def latest_schemas(
    lookup: Lookup, topics: Sequence[str]
) -> dict[str, SchemaInfo | PulsarError | None]:
    """Return each topic's latest schema, None if it has none, or an error.

    All are requested at once. A missing topic has no schema.
    """
    return lookup.ask_many(
        topics, lambda topic, deadline: _schema_operation(lookup, topic, None, deadline)
    )


def latest_schema(lookup: Lookup, topic: str) -> SchemaInfo | None:
    """Return the latest schema of a topic, None for one without.

    `topic` is a topic or a partition, which has its topic's schema. Raises the broker's error.
    """
    owner = str(TopicName.parse(topic).partitioned)
    return value_of(latest_schemas(lookup, [owner])[owner])


def older_schemas(lookup: Lookup, topic: str) -> Iterator[SchemaInfo]:
    """Yield a topic's schemas before the latest one, newest first, at most 100.

    Skips deleted versions. Raises the broker's error.
    """
    answer = lookup.ask(topic, lambda name, deadline: lookup.schema_operation(name, None, deadline))
    latest = b"" if answer is None else answer.version
    if len(latest) != _VERSION_SIZE:
        return
    versions = SchemaVersions(lookup, topic)
    number = int.from_bytes(latest, "big")
    for older in range(number - 1, max(number - _MAX_OLDER, 0) - 1, -1):
        with contextlib.suppress(SchemaMismatch):
            yield versions(older.to_bytes(_VERSION_SIZE, "big"))


class SchemaVersions:
    """The versions of a topic's schema, each fetched once, when it is first needed.

    Those that are `known` already are not. Partitions have their topic's schema.
    """

    def __init__(
        self, lookup: Lookup, topic: str, known: Mapping[bytes, SchemaInfo] | None = None
    ) -> None:
        self._lookup = lookup
        self._topic = str(TopicName.parse(topic).partitioned)
        self._known: dict[bytes, SchemaInfo] = dict(known or {})

    def __call__(self, version: bytes) -> SchemaInfo:
        """Return the schema of a version.

        Raises SchemaMismatch for a version that the registry lacks, OperationTimeout, and other
        errors of the broker.
        """
        found = self._known.get(version)
        if found is None:
            found = self._ask(version)
            if len(self._known) >= _MAX_VERSIONS:
                del self._known[next(iter(self._known))]
            self._known[version] = found
        return found

    def _ask(self, version: bytes) -> SchemaInfo:
        found = self._lookup.ask(
            self._topic,
            lambda topic, deadline: _schema_operation(self._lookup, topic, version, deadline),
        )
        if found is None:
            raise SchemaMismatch(
                f"messages were written with the version {version_number(version)} of the topic's "
                "schema, which the registry does not have: it was deleted",
                "Read such messages with valueFormat=raw.",
                topic=self._topic,
            )
        return found


def version_number(version: bytes) -> str:
    """Return a schema version as a decimal number: brokers count versions from 0."""
    return str(int.from_bytes(version, "big")) if len(version) == _VERSION_SIZE else version.hex()


def _schema_operation(
    lookup: Lookup, topic: str, version: bytes | None, deadline: Deadline
) -> Operation[SchemaInfo | None]:
    found = yield from lookup.schema_operation(topic, version, deadline)
    return None if found is None else replace(found.schema, found_as=(topic, found.version))
