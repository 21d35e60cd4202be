"""Topic schemas from the brokers' registry, and definitions that drivers give their tasks.

A definition can be large, so what is sent for each task only names it, by its digest. A process
keeps the definitions that it was given, and what is made of them, for the tasks that follow.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import Operation, value_of
from pulsar_spark.errors import PulsarError, SchemaMismatch
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import topic_of
from pulsar_spark.schema.bounded_cache import BoundedCache

_MAX_VERSIONS = 1000
_MAX_OLDER = 100
_VERSION_SIZE = 8
_DIGEST_SIZE = 16
_MAX_DIGESTS = 32
_MAX_REMEMBERED = 10_000
_MAX_REMEMBERED_BYTES = 32 * 1024 * 1024
# What a process needs to remember that it has a definition as a version of a topic.
_ENTRY_BYTES = 300


@lru_cache(_MAX_DIGESTS)
def _digest(schema: SchemaInfo) -> bytes:
    # What users declare has columns besides its definition.
    told = (type(schema).__name__, schema.type, sorted(schema.properties.items()))
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


_remembered = BoundedCache[bytes | tuple[str, str, bytes], SchemaInfo](
    _MAX_REMEMBERED, _MAX_REMEMBERED_BYTES
)
"""What this process was given, by digest, and what it asked for: by era, topic and version too."""


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
    _remembered.put(_digest(schema), schema, schema.size + _ENTRY_BYTES)


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
    return lookup.ask_many(topics, partial(_schema_operation, lookup, None))


def latest_schema(lookup: Lookup, topic: str) -> SchemaInfo | None:
    """Return the latest schema of a topic, None for one without.

    `topic` is a topic or a partition, which has its topic's schema. Raises the broker's error.
    """
    owner = topic_of(topic)
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

    Those that are `known` already are not, nor those that this process has fetched in the same
    `era`: a topic that was made again counts its versions anew, in another era. Partitions have
    their topic's schema.
    """

    def __init__(
        self,
        lookup: Lookup,
        topic: str,
        known: Mapping[bytes, SchemaInfo] | None = None,
        era: str = "",
    ) -> None:
        self._lookup = lookup
        self._topic = topic_of(topic)
        self._known: dict[bytes, SchemaInfo] = dict(known or {})
        self._era = era

    def __call__(self, version: bytes) -> SchemaInfo:
        """Return the schema of a version.

        Raises SchemaMismatch for a version that the registry lacks, OperationTimeout, and other
        errors of the broker.
        """
        found = self._have(version)
        return self._ask([version])[0] if found is None else found

    def expect(self, versions: Iterable[bytes]) -> None:
        """Fetch versions that will be needed, all at once.

        Raises as a call, except for what the registry lacks.
        """
        missing = [version for version in versions if self._have(version) is None]
        if len(missing) > 1:
            with contextlib.suppress(SchemaMismatch):
                self._ask(missing)

    def _have(self, version: bytes) -> SchemaInfo | None:
        found = self._known.get(version)
        if found is None and self._era:
            found = _remembered.get((self._era, self._topic, version))
        return found

    def _ask(self, versions: Sequence[bytes]) -> list[SchemaInfo]:
        """Fetch versions at once; raises the first error after it has taken what it was told."""
        attempts = [partial(_schema_operation, self._lookup, version) for version in versions]
        answers = self._lookup.ask_each(self._topic, attempts)
        for version, found in zip(versions, answers, strict=True):
            if isinstance(found, SchemaInfo):
                self._take(version, found)
        return [
            self._checked(version, value_of(found))
            for version, found in zip(versions, answers, strict=True)
        ]

    def _take(self, version: bytes, found: SchemaInfo) -> None:
        if self._era:
            # Many topics have one definition, which is kept once.
            if _remembered.get(_digest(found)) is None:
                remember(found)
            same = _remembered.get(_digest(found)) or found
            _remembered.put((self._era, self._topic, version), same, _ENTRY_BYTES)
        if len(self._known) >= _MAX_VERSIONS:
            del self._known[next(iter(self._known))]
        self._known[version] = found

    def _checked(self, version: bytes, found: SchemaInfo | None) -> SchemaInfo:
        if found is None:
            is_one = len(version) >= _VERSION_SIZE
            why = "it was deleted" if is_one else f"a version has {_VERSION_SIZE} bytes"
            raise SchemaMismatch(
                f"messages were written with the version {version_number(version)} of the topic's "
                f"schema, which the registry does not have: {why}",
                "Read such messages with valueFormat=raw.",
                topic=self._topic,
            )
        return found


def version_number(version: bytes) -> str:
    """Return a schema version as a decimal number: brokers count versions from 0."""
    return str(int.from_bytes(version, "big")) if len(version) == _VERSION_SIZE else version.hex()


def _schema_operation(
    lookup: Lookup, version: bytes | None, topic: str, deadline: Deadline
) -> Operation[SchemaInfo | None]:
    if version is not None and len(version) < _VERSION_SIZE:
        # A broker that is asked for it ends the connection.
        return None
    found = yield from lookup.schema_operation(topic, version, deadline)
    return None if found is None else replace(found.schema, found_as=(topic, found.version))
