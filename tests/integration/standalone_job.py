"""A query that writes exactly once on a cluster: each line of its input starts a micro-batch.

``python -m tests.integration.standalone_job MASTER FOLDER URL TOPIC``: the checkpoint is in the
folder. It prints "ready", and "done" after each micro-batch.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.integration.standalone_spark import HOSTS
from tests.integration.test_spark_stream_sink import Job

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.driver.memory": "512m",
    "spark.driver.host": HOSTS[0],
    "spark.driver.bindAddress": HOSTS[0],
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # A task that takes long is run a second time, on the other host.
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "2s",
}


def main(master: str, folder: str, url: str, topic: str) -> None:
    """Write micro-batches until the input ends."""
    builder = SparkSession.builder.master(master).appName("standalone job")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    job = Job(
        builder.getOrCreate(), Path(folder), url, topic=topic, deliveryGuarantee="exactly-once"
    )
    print("ready", flush=True)
    for _ in sys.stdin:
        job.run()
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
