"""Run by test_real_security.py in a process of its own: writes and reads on executors.

Arguments: a file with JSON, `files` for the executors' folders, `variables` for their environment,
and `ways` to log in, each a name with the options of a read and a write. It prints a line for each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

ROWS = 500


def main(file: str) -> None:
    """Write `ROWS` rows to a topic for each way to log in, and read them back."""
    told = json.loads(Path(file).read_text())
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("secured job")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "512m",
        "spark.files": ",".join(told["files"]),
        **{f"spark.executorEnv.{name}": value for name, value in told["variables"].items()},
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for name, options in told["ways"].items():
        frame = spark.range(0, ROWS, 1, 2).withColumnRenamed("id", "value")
        frame.write.format("pulsar").mode("append").options(**options).save()
        read = spark.read.format("pulsar").options(**options).load()
        found = read.agg(F.count("*"), F.sum("value")).collect()[0]
        assert tuple(found) == (ROWS, ROWS * (ROWS - 1) // 2), found
        print(f"--- {name}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
