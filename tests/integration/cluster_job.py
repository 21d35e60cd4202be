"""Run by test_cluster.py in processes of their own: writes through Spark and reads back.

Arguments: the master, the service URL, a topic. It prints one JSON line. Nothing here imports
the package: Spark has to find it.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

ROWS = 5_000


def session(master: str) -> SparkSession:
    """Return a session on a cluster, or on a Spark Connect server started for it."""
    builder = SparkSession.builder.appName("cluster job")
    if master.startswith("connect:"):
        builder = builder.remote(master.removeprefix("connect:"))
    else:
        builder = builder.master(master)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.memory": "512m",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main(master: str, service_url: str, topic: str) -> None:
    """Write ROWS rows, read them back, and report where executors loaded the package from."""
    spark = session(master)
    options = {"service.url": service_url, "topic": topic}
    frame = spark.range(0, ROWS, 1, 4).selectExpr("CAST(id AS STRING) AS __key", "'v' AS value")
    frame.write.format("pulsar").mode("append").options(**options).save()
    read = spark.read.format("pulsar").options(**options).load()
    found = read.agg(
        F.count("*").alias("rows"),
        F.sum(F.col("__key").cast("string").cast("long")).alias("sum"),
        F.countDistinct("__topic").alias("partitions"),
    ).collect()[0]
    print(json.dumps({**found.asDict(), "package": _where(spark)}))
    spark.stop()


def _where(spark: SparkSession) -> list[str]:
    @F.udf("string")
    def where(_: int) -> str:
        import pulsar_spark

        return str(pulsar_spark.__file__)

    rows = spark.range(0, 4, 1, 4).select(where("id").alias("file")).distinct().collect()
    return [row["file"] for row in rows]


if __name__ == "__main__":
    main(*sys.argv[1:])
