"""Read and write Apache Pulsar topics from Apache Spark in Python."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__version__ = "0.2.0"

LOG_LEVEL_VARIABLE = "PULSAR_SPARK_LOG_LEVEL"
"""Environment variable with the minimum level of log messages on stderr, such as INFO.

Python workers of Spark show warnings alone, and there is nobody who could configure their logging.
"""


def _show_log(level: str) -> None:
    """Log to stderr from a level on, unless logging is configured already."""
    import logging

    logger = logging.getLogger(__name__)
    try:
        logger.setLevel(level.strip().upper())
    except ValueError:
        logger.warning("%s is not a level such as INFO: it is ignored", LOG_LEVEL_VARIABLE)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    # Whoever configures logging has the lines, and has them once.
    handler.addFilter(lambda _: not logging.getLogger().handlers)
    logger.addHandler(handler)


if _level := os.environ.get(LOG_LEVEL_VARIABLE):
    _show_log(_level)


def register(
    spark: SparkSession,
    *,
    name: str = "pulsar",
    options: Mapping[str, str | int | float | bool] | None = None,
) -> None:
    """Make format(`name`) known to a session, with `options` as defaults of its options.

    The format "pulsar" is found by Spark itself; manually it is for a session that has not found
    it, for another name, and for options (addresses, credentials) that SQL and code then need
    not repeat. What a read or write says itself wins. Raises OptionError for a name or options
    that cannot be, UnsupportedFeature for what is not built yet.

    Python workers import this package too, so it must be installed where they run. A thread that
    did not make the session calls this before it writes: Spark does not find Python data sources
    for `df.write` there.
    """
    from pulsar_spark.spark.compat import make_active
    from pulsar_spark.spark.datasource import PulsarDataSource
    from pulsar_spark.spark.formats import named_format

    plain = name == PulsarDataSource.name() and not options
    spark.dataSource.register(PulsarDataSource if plain else named_format(name, options or {}))
    make_active(spark)


def topic_schema(topic: str, options: Mapping[str, str]) -> str:
    """Return the definition of a topic's newest schema, as Spark's `from_avro` takes it.

    `options` are those of a read (`service.url`, …). A KEY_VALUE topic's is that of its values.
    Raises SchemaMismatch for topics whose values are no records, or that have no schema.
    """
    from pulsar_spark.spark.topic_schema import topic_schema

    return topic_schema(topic, options)
