"""The reader of a batch: plans on the driver, reads in tasks.

Only plain data is pickled to the tasks: the options, the columns, and the definitions of schemas.
Tasks open and close their own connections.

Spark pickles the reader before it asks for the partitions, and for a stream in another process than
the one that plans. So what the reader cannot have yet, a task gets by its name from the registry,
once in each process.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import topic_of
from pulsar_spark.schema.bounded_cache import BoundedCache
from pulsar_spark.schema.registry import SchemaRef, definition_of, fetched
from pulsar_spark.schema.table.record_batches import PERMISSIVE, Projection
from pulsar_spark.spark.columns import check_columns, given_type, project, read_schema
from pulsar_spark.spark.compat import arrow_schema
from pulsar_spark.spark.options.read import ReadOptions
from pulsar_spark.spark.reading.partition_reader import read_partition
from pulsar_spark.spark.reading.partitions import PulsarInputPartition
from pulsar_spark.spark.reading.planner import Planner, Topics
from pulsar_spark.spark.value_types import ValueType
from pulsar_spark.spark.workers import prepare

if TYPE_CHECKING:
    import pyarrow as pa


def infer_values(options: ReadOptions) -> ValueType | None:
    """Return the type of a read's values, from its topics' schemas; asks the brokers.

    None for topics that do not exist yet: their values are bytes, and if the topics turn out to
    have a schema, the query has to start again. Raises as `Planner.topics` and
    `Planner.value_type`.
    """
    given = given_type(options)
    if given is not None and options.pattern is None:
        # No broker needs to be asked, and planning checks the topics.
        return given
    with ClientContext.shared(options.client) as context:
        planner = Planner(context, options)
        topics = planner.find_topics().topics if options.waiting else planner.topics()
        return planner.value_type(topics) if topics else None


def infer_schema(options: ReadOptions, kind: ValueType | None = None) -> StructType:
    """Return the schema of a read, as `infer_values`, or for values of a type that is known.

    PERMISSIVE adds a column for the bytes of values that cannot be decoded. Raises as
    `read_schema`.
    """
    return read_schema(
        kind or infer_values(options) or ValueType(),
        include_metadata=options.include_metadata,
        corrupt_column=options.corrupt_column if options.mode == PERMISSIVE else None,
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    """What a task makes of a reader's columns and of a schema."""

    sources: tuple[str, ...]
    arrow: pa.Schema


# Spark asks for the partitions at once.
_FRESH_SECONDS = 30.0


class _Found(NamedTuple):
    """What a read is planned for: its topics, the type of values, and each topic's schema.

    `empty` topics had no say in the type. It is not used after the time `until`.
    """

    topics: Topics
    kind: ValueType
    schemas: Mapping[str, SchemaInfo | None]
    empty: Collection[str]
    until: float


# How often topics may get their first messages while a read is planned.
_MOST_DECISIONS = 5
_MAX_COLUMNS = 16
# A reader goes to each task, so it has few definitions: topics that are read together have mostly
# one.
_MAX_CARRIED = 8
_columns = BoundedCache[tuple[str, bytes], _Columns](_MAX_COLUMNS, _MAX_COLUMNS)
"""Those of this process's last tasks, by their reader and by the digest of the schema."""


class PulsarBatchReader(DataSourceReader):
    """Reads topics as they are when `partitions` is called. Asks no broker before.

    `schemas` are definitions that its tasks will probably need.
    """

    def __init__(
        self, options: ReadOptions, schema: StructType, schemas: Iterable[SchemaInfo] = ()
    ) -> None:
        self._options = replace(options, query=schema)
        self._schema = schema
        # Errors that do not depend on schemas are raised without asking a broker.
        self._given = given_type(self._options)
        project(schema, self._given, options.corrupt_column, options.mode)
        self._id = secrets.token_hex(8)
        self._definitions: dict[bytes, SchemaInfo] = {}
        self._carry(*schemas)
        self._found: _Found | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks need."""
        return {**self.__dict__, "_found": None}

    def look_ahead(self) -> None:
        """Find topics and their schemas for the next call of `partitions`.

        So the definition is there when Spark pickles this. Raises as `partitions`.
        """
        if self._given is None:
            with ClientContext.shared(self._options.client) as context:
                self._found = self._find(Planner(context, self._options))
            self._carry(*[schema for schema in [self._found.kind.schema] if schema is not None])

    def _find(self, planner: Planner) -> _Found:
        topics = planner.topics()
        kind = planner.value_type(topics)
        check_columns(self._schema, kind, self._options, planner.schemas)
        until = time.monotonic() + _FRESH_SECONDS
        return _Found(topics, kind, planner.schemas, planner.without_messages, until)

    def partitions(self) -> list[InputPartition]:
        """Plan the read: its topics, ends and splits are fixed from now on.

        Raises as `Planner`, and OptionError for a schema that does not match the topics.
        """
        prepare()
        with ClientContext.shared(self._options.client) as context:
            planner = Planner(context, self._options)
            found, self._found = self._found, None
            if found is None or time.monotonic() > found.until:
                found = self._find(planner)
            planned = planner.partitions(found.topics, found.kind)
            for _ in range(_MOST_DECISIONS):
                if not any(topic_of(each.topic) in found.empty for each in planned):
                    break
                # It has got messages since, and so perhaps a schema.
                found = self._find(planner)
                planned = planner.partitions(found.topics, found.kind)
            # What comes all the time, and goes, is not of this read.
            planned = [each for each in planned if topic_of(each.topic) not in found.empty]
            # What is planned are messages that there were before any task asks for a version.
            eras = dict.fromkeys(found.schemas, secrets.token_hex(8))
            self.give(planned, found.kind, found.schemas, eras)
            return [*planned]

    def give(
        self,
        planned: Iterable[PulsarInputPartition],
        kind: ValueType,
        written: Mapping[str, SchemaInfo | None],
        eras: Mapping[str, str],
    ) -> None:
        """Tell tasks the type of the values, and which schemas topics certainly have.

        `written` are current versions by topic, and `eras` are when it has the same versions. Both
        are as certain as the tasks' ranges: if a topic was made again meanwhile, none is of use.
        """
        if kind.schema is None:
            return
        self._carry(kind.schema)
        for partition in planned:
            owner = topic_of(partition.topic)
            schema, partition.era = written.get(owner), eras.get(owner, "")
            if schema is not None:
                self._carry(schema)
                partition.written = (SchemaRef.of(schema),)

    def _carry(self, *schemas: SchemaInfo) -> None:
        for schema in schemas:
            digest = SchemaRef.of(schema).digest
            if len(self._definitions) < _MAX_CARRIED:
                self._definitions.setdefault(digest, schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a task."""
        prepare()
        # If nothing is planned, Spark adds an empty partition itself.
        if not isinstance(partition, PulsarInputPartition):
            return iter(())
        schema = self._schema_of(partition)
        columns = self._columns(partition, schema)
        projection = Projection(
            columns=columns.sources,
            schema=schema,
            mode=self._options.mode,
            as_java=self._options.json_coercion == "java",
            times=partition.times,
        )
        pairs = ((ref.version, definition_of(ref, self._definitions)) for ref in partition.written)
        written = {version: found for version, found in pairs if found is not None}
        return read_partition(self._options, partition, columns.arrow, projection, written)

    def _schema_of(self, partition: PulsarInputPartition) -> SchemaInfo | None:
        """Return what decodes the values: what was planned with, whatever the topic has now."""
        if self._given is not None or (ref := partition.schema) is None:
            return None if self._given is None else self._given.schema
        found = definition_of(ref, self._definitions)
        if found is None:
            # The task's own topic is certainly there; the one that the name is of may be deleted.
            own = next((each for each in partition.written if each.digest == ref.digest), ref)
            with ClientContext.shared(self._options.client) as context:
                found = fetched(context.lookup, own)
        return found

    def _columns(self, partition: PulsarInputPartition, schema: SchemaInfo | None) -> _Columns:
        key = self._id, b"" if partition.schema is None else partition.schema.digest
        found = _columns.get(key)
        if found is None:
            options = self._options
            sources = project(self._schema, ValueType(schema), options.corrupt_column, options.mode)
            found = _Columns(sources, arrow_schema(self._schema))
            _columns.put(key, found, 1)
        return found
