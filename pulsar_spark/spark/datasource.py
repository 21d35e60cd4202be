"""The data source "pulsar": the entry point for Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pulsar_spark.errors import OptionError, PulsarError
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.spark.compat import ends_micro_batch, passes_read_limits
from pulsar_spark.spark.options.catalog import without_catalog_keys
from pulsar_spark.spark.options.read import parse_read_options
from pulsar_spark.spark.options.redaction import warn_of_shown_secrets
from pulsar_spark.spark.options.resolve import of_defaults, over_defaults
from pulsar_spark.spark.options.stream import parse_stream_options
from pulsar_spark.spark.options.table import NOWHERE, Scope
from pulsar_spark.spark.options.value_schema import schema_text, with_schema
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.reading.batch_reader import (
    PulsarBatchReader,
    infer_schema,
    infer_values,
)
from pulsar_spark.spark.streaming.reader import PulsarStreamReader, RefusedStreamReader
from pulsar_spark.spark.value_types import ValueType
from pulsar_spark.spark.workers import prepare
from pulsar_spark.spark.writing.writers import PulsarBatchWriter, stream_writer


@dataclass(frozen=True, slots=True)
class FormatDefaults:
    """A format's own options; their values may be secret, so no repr shows them."""

    options: Mapping[str, str] = field(default_factory=dict, repr=False)


class PulsarDataSource(DataSource):
    """Reads and writes Pulsar topics; see docs/options.md for its options."""

    format_name = "pulsar"
    defaults = FormatDefaults()
    # Spark asks for the schema only if the user gives none, and pickles the data source afterwards.
    _inferred = False
    # The definitions that the columns were inferred from, for tasks to decode with.
    _schemas: tuple[SchemaInfo, ...] = ()
    # The content of the file in valueSchema, which is read once.
    _value_schema: str | None = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        prepare()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return cls.format_name

    def _all_options(self, scope: Scope = Scope.BOTH) -> dict[str, str]:
        given = without_catalog_keys(self.options)
        # Spark does not see the defaults.
        warn_of_shown_secrets(given)
        options = over_defaults(given, self.defaults.options, scope)
        return options if self._value_schema is None else with_schema(options, self._value_schema)

    @contextmanager
    def _checked_options(self, scope: Scope) -> Iterator[dict[str, str]]:
        """Give the options of a read or write; errors say which of them are the format's."""
        options = self._all_options(scope)
        try:
            yield options
        except OptionError as error:
            given = {name.lower() for name in self.options}
            raise of_defaults(
                error, [name for name in options if name.lower() not in given]
            ) from None

    @property
    def _told(self) -> Scope:
        """Where it was told which options have no effect."""
        return Scope.READS if self._inferred else NOWHERE

    def schema(self) -> StructType:
        """Return the schema from the topics' schemas and the options; asks the brokers."""
        self._inferred = True
        # Spark asks before it says whether it reads a batch or a stream.
        with self._checked_options(Scope.READS) as given:
            options = parse_read_options(given, Scope.READS)
        self._value_schema = schema_text(options.value_schema)
        kind = infer_values(options)
        if kind is not None and kind.schema is not None and kind.schema.found_as is not None:
            self._schemas = (kind.schema,)
        return infer_schema(options, kind or ValueType())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch, for the columns of `schema`.

        Asks the brokers for the topics' schemas, unless `schema` has; raises as its `partitions`.
        """
        with self._checked_options(Scope.READ) as given:
            options = parse_read_options(given, told=self._told)
        options = replace(options, inferred=self._inferred)
        reader = PulsarBatchReader(options, schema, self._schemas)
        if not self._inferred:
            reader.look_ahead()
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch, for the columns of `schema`."""
        with self._checked_options(Scope.WRITE) as given:
            options = parse_write_options(given)
        writer = PulsarBatchWriter(options, schema, overwrite=overwrite)
        writer.check()
        return writer

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream, for the columns of `schema`.

        Errors in options or columns are raised when Spark asks for an offset.
        """
        try:
            with self._checked_options(Scope.STREAM_READ) as given:
                options = parse_stream_options(given, self._told)
            read = replace(options.read, query=schema, inferred=self._inferred)
            return stream_reader_class()(replace(options, read=read), schema, self._schemas)
        except PulsarError as error:
            return RefusedStreamReader(error)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a micro-batch, for the columns of `schema`.

        With `overwrite`, in complete mode, each micro-batch appends the whole result again: a
        topic's messages cannot be replaced.
        """
        with self._checked_options(Scope.STREAM_WRITE) as given:
            options = parse_write_options(given, Scope.STREAM_WRITE)
        writer = stream_writer(options, schema)
        # A check before writing must not prevent committing what is already written.
        if not ends_micro_batch():
            writer.check()
        return writer


def stream_reader_class() -> type[PulsarStreamReader]:
    """Return the reader class for this version of Spark."""
    if not passes_read_limits():
        return PulsarStreamReader
    from pulsar_spark.spark.streaming.admission_reader import AdmissionStreamReader

    return AdmissionStreamReader
