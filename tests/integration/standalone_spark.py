"""A standalone cluster of Spark with two workers, which Spark takes for two hosts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.support.java_server import free_ports
from tests.support.waiting import wait_until

HOSTS = ("127.0.0.1", "127.0.0.2")
"""Spark runs a slow task twice only on different hosts."""

_DEPLOY = "org.apache.spark.deploy"
_JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@contextmanager
def standalone_spark(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Run the cluster and yield its URL; executors have one slot each, and this environment."""
    (port,) = free_ports(1)
    master = f"spark://{HOSTS[0]}:{port}"
    size = ("--cores", "1", "--memory", "600m")
    servers = [["master.Master", "--host", HOSTS[0], "--port", str(port), "--webui-port", "0"]]
    for host in HOSTS:
        place = ("--host", host, "--webui-port", "0", "--work-dir", str(folder / host))
        servers.append(["worker.Worker", *place, *size, master])
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    settings = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": " ".join(_JVM_FLAGS)}
    log_file = folder / "cluster.log"
    processes = []
    try:
        with log_file.open("w") as log:
            for name, *arguments in servers:
                process = subprocess.Popen(
                    [spark_class, f"{_DEPLOY}.{name}", *arguments],
                    env={**os.environ, **settings, **environment},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                processes.append(process)
        wait_until(
            lambda: log_file.read_text().count("Registering worker") == len(HOSTS),
            f"the workers are not there: {log_file}",
        )
        yield master
    finally:
        for process in processes:
            # A worker's executors are in its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
