"""Run by test_spark_secrets.py in a process of its own: uses credentials in many ways, most wrong.

Arguments: a folder for Spark's event log, and the secret. What goes wrong is printed as users
see it, with all that can be shown of data frames.
"""

from __future__ import annotations

import logging
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from pulsar_spark.testing import EmbeddedBroker

PLUGIN = "pulsar.client.authPluginClassName"
PARAMS = "pulsar.client.authParams"


def session(folder: str) -> SparkSession:
    """Return a session that logs much and keeps a log of its events."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{folder}")
        .config("spark.log.level", "INFO")
        .getOrCreate()
    )


def attempt(name: str, work: Callable[[], object]) -> None:
    """Print what a piece of work returns or fails with."""
    try:
        print(f"--- {name}: {work()!r}")
    except Exception as error:
        print(f"--- {name} failed: {error!r}\n{error}")
        traceback.print_exc(file=sys.stdout)


class Jobs:
    """Reads and writes with one set of options more than the broker and the topic."""

    def __init__(self, spark: SparkSession, url: str, **options: str) -> None:
        self.spark = spark
        self.options = {"service.url": url, "topic": "t", **options}

    def read(self) -> Any:
        """Read the topic, and show whatever can be shown of that."""
        frame = self.spark.read.format("pulsar").options(**self.options).load()
        frame.explain(extended=True)
        frame.explain(mode="formatted")
        frame.show()
        print(frame, frame.schema.json(), frame._jdf.queryExecution().toString())
        return frame.collect()

    def write(self) -> None:
        """Write a row."""
        frame = self.spark.range(1).selectExpr("string(id) value")
        frame.write.format("pulsar").mode("append").options(**self.options).save()


def main(folder: str, secret: str) -> None:
    """Run all that a credential can be part of."""
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    # It logs all that is said to the JVM.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    spark = session(folder)
    with EmbeddedBroker() as broker, EmbeddedBroker() as strict:
        url = broker.service_url
        token = {PLUGIN: "token", PARAMS: f"token:{secret}"}
        attempt("write", Jobs(spark, url, **token).write)
        attempt("read", Jobs(spark, url, **token).read)
        text = f"the token {secret} and token:{secret} are not known"
        strict.faults.error("CONNECT", "AuthenticationError", text, times=None)
        attempt("read refused", Jobs(spark, strict.service_url, **token).read)
        attempt("write refused", Jobs(spark, strict.service_url, **token).write)
        with broker.faults.error("SEND", "NotAllowedError", text, times=None):
            attempt("send refused", Jobs(spark, url, **token).write)
        with broker.faults.error("SUBSCRIBE", "AuthorizationError", text, times=None):
            attempt("subscribe refused", Jobs(spark, url, **token, includeMetadata="true").read)
        basic = f'{{"userId": "u", "password": "{secret}"}}'
        wrong = {
            "basic": {PLUGIN: "basic", PARAMS: basic},
            "not JSON": {PLUGIN: "basic", PARAMS: basic[:-1]},
            "no plugin": {PARAMS: f"token:{secret}"},
            "unknown plugin": {PLUGIN: "magic", PARAMS: f"token:{secret}"},
            "empty": {PLUGIN: "token", PARAMS: "token:"},
            "misspelt": {PLUGIN: "token", "pulsar.client.authParam": f"token:{secret}"},
            "twice": {PLUGIN: "token", PARAMS: f"token:{secret}", "tokn": secret},
        }
        for name, options in wrong.items():
            attempt(f"{name}: read", Jobs(spark, url, **options).read)
        attempt("misspelt: write", Jobs(spark, url, **wrong["misspelt"]).write)
        within = url.replace("//", f"//user:{secret}@")
        attempt("in the URL", Jobs(spark, within).read)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            gone = f"pulsar://127.0.0.1:{taken.getsockname()[1]}"
            quick = {"pulsar.client.operationTimeoutMs": "1000"}
            attempt("nobody there", Jobs(spark, gone, **token, **quick).read)
    spark.stop()
    print("--- the end")


if __name__ == "__main__":
    main(*sys.argv[1:])
