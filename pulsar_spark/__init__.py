"""Read and write Apache Pulsar topics from Apache Spark in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__version__ = "0.1.0"


def register(spark: SparkSession) -> None:
    """Make format("pulsar") known to a session that has not found it by itself.

    Python workers import this package too, so it must be installed where they run. A thread that
    did not make the session calls this before it writes: Spark does not find Python data sources
    for `df.write` there.
    """
    from pulsar_spark.spark.compat import make_active
    from pulsar_spark.spark.datasource import PulsarDataSource

    spark.dataSource.register(PulsarDataSource)
    make_active(spark)
