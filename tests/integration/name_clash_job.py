"""Run by test_name_clash.py in a process of its own: a jar has a source called "pulsar", too.

Arguments: the jar, the service URL, a topic. It prints one JSON line.
"""

from __future__ import annotations

import json
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pulsar_spark


def main(jar: str, service_url: str, topic: str) -> None:
    """Read and write the topic under another name; report the result of the clashing name."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.extraClassPath", jar)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    pulsar_spark.register(spark)
    try:
        spark.read.format("pulsar").option("service.url", service_url).load(topic)
        clash = ""
    except PySparkException as error:
        clash = str(error)
    pulsar_spark.register(spark, name="pulsar_py", options={"service.url": service_url})
    frame = spark.sql("SELECT 'a' AS value")
    frame.write.format("pulsar_py").mode("append").save(topic)
    rows = spark.read.format("pulsar_py").load(topic).collect()
    print(json.dumps({"clash": clash, "values": [row["value"] for row in rows]}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
