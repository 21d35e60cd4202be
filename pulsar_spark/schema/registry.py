"""Topic schemas from the brokers' registry."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import Operation, value_of
from pulsar_spark.errors import PulsarError, SchemaMismatch
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import TopicName

_MAX_VERSIONS = 1000
_MAX_OLDER = 100
_VERSION_SIZE = 8


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

    Partitions have their topic's schema.
    """

    def __init__(self, lookup: Lookup, topic: str) -> None:
        self._lookup = lookup
        self._topic = str(TopicName.parse(topic).partitioned)
        self._known: dict[bytes, SchemaInfo] = {}

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
