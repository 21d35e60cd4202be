"""Read and write Apache Pulsar topics from Apache Spark in Python."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from pulsar_spark.client import PulsarClient
    from pulsar_spark.progress import lag
    from pulsar_spark.testing import EmbeddedBroker

__version__ = "0.2.0"

__all__ = ("EmbeddedBroker", "PulsarClient", "lag", "register", "topic_schema")

# Imported when they are first used: each Python worker of Spark's imports this package.
_LAZY = {
    "EmbeddedBroker": "pulsar_spark.testing",
    "PulsarClient": "pulsar_spark.client",
    "lag": "pulsar_spark.progress",
}

# The name is `logs.LOG_LEVEL_VARIABLE`, which takes as long to import as all else here.
if _level := os.environ.get("PULSAR_SPARK_LOG_LEVEL"):
    from pulsar_spark.logs import show_log

    show_log(_level)


def __getattr__(name: str) -> Any:
    """Import what is named, if it is one of the package's own names."""
    if (module := _LAZY.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def register(
    spark: SparkSession,
    *,
    name: str = "pulsar",
    options: Mapping[str, str | int | float | bool | None] | None = None,
) -> None:
    """Register format(`name`) with a session; `options` become defaults of its options.

    Spark finds the format "pulsar" by itself. Call this if a session has not found it, for another
    name, or for options (addresses, credentials) that SQL and code then need not repeat. Options of
    a read or write take precedence; None is left out. Raises OptionError for an invalid name or
    invalid options, UnsupportedFeature for missing features.

    Python workers import this package too, so install it where they run. A thread that did not
    create the session must call this before it writes, because Spark does not find Python data
    sources for `df.write` there.
    """
    from pulsar_spark.spark.compat import make_active
    from pulsar_spark.spark.datasource import PulsarDataSource
    from pulsar_spark.spark.formats import named_format

    plain = name == PulsarDataSource.name() and not options
    spark.dataSource.register(PulsarDataSource if plain else named_format(name, options or {}))
    make_active(spark)


def topic_schema(topic: str, options: Mapping[str, str]) -> str:
    """Return the definition of a topic's newest schema, for Spark's `from_avro`.

    `options` are those of a read (`service.url`, …). For a KEY_VALUE topic it is the value's
    definition. Raises SchemaMismatch for topics whose values are not records, or that have no
    schema, TopicNotFound for those that do not exist.
    """
    from pulsar_spark.spark.topic_schema import topic_schema

    return topic_schema(topic, options)
