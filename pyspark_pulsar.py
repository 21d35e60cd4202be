"""Makes format("pulsar") known to Spark, which imports every top-level module named pyspark_*.

Spark does so in every session, for Pulsar or not, and an error here would hide all other Python
data sources too. So nothing is imported before Spark asks for DefaultSource, and pulsar_spark
itself not before the data source is used.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsar_spark.spark.datasource import PulsarDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        source = _default_source()
    except ImportError as error:
        # Spark takes this for a module without a data source.
        raise AttributeError(f"no data source in this Spark: {error}") from error
    # From now on it is found without this function, and can be pickled by its name.
    globals()[name] = source
    return source


def _default_source() -> type:
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """The data source "pulsar", which is loaded when it is used."""

        @classmethod
        def name(cls) -> str:
            return "pulsar"

        # One for all calls, and for the process that this object is pickled to: it remembers
        # whether it was asked for the schema.
        @cached_property
        def _source(self) -> DataSource:
            try:
                from pulsar_spark.spark.datasource import PulsarDataSource
            except ModuleNotFoundError as error:
                from pulsar_spark.errors import missing_package

                raise missing_package(error) or error from None

            return PulsarDataSource(self.options)

        def schema(self) -> Any:
            return self._source.schema()

        def reader(self, schema: Any) -> Any:
            return self._source.reader(schema)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return self._source.writer(schema, overwrite)

        def streamReader(self, schema: Any) -> Any:
            return self._source.streamReader(schema)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return self._source.streamWriter(schema, overwrite)

    DefaultSource.__qualname__ = "DefaultSource"
    DefaultSource.__module__ = __name__
    return DefaultSource
