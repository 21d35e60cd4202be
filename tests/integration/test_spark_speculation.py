"""Spark runs slow tasks twice (spark.speculation): what the loser has done does no harm."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from pulsar_spark.testing import EmbeddedBroker
from tests.integration.brokers import Embedded, wait_until
from tests.integration.messages import read_rows
from tests.integration.speculation_job import ROWS, TASKS
from tests.spark.topics import full, store
from tests.support.real_broker import free_ports

ROOT = Path(__file__).resolve().parent.parent.parent
JOB = Path(__file__).with_name("speculation_job.py")
SECONDS = 240

# Spark does not run a task twice on one host: each of its workers has an address of its own.
HOSTS = ("127.0.0.2", "127.0.0.3")


@contextmanager
def cluster(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run a standalone cluster of two hosts; yields the master's address."""
    (port,) = free_ports(1)
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    place = ["--webui-port", "0"]
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), *place]]
    for host in HOSTS:
        work = ["--cores", str(TASKS // 2), "--memory", "600m", "--work-dir", str(folder / host)]
        commands.append([f"{deploy}.worker.Worker", "--host", host, *place, *work, master])
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    processes: list[subprocess.Popen[bytes]] = []
    # Each reaches the others by its own address, not by one for all of the machine.
    environment = {key: value for key, value in environment.items() if key != "SPARK_LOCAL_IP"}
    with (folder / "cluster.log").open("wb") as log:
        try:
            for command in commands:
                processes.append(
                    subprocess.Popen(
                        [spark_class, *command],
                        env=environment,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
            yield master
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run_job(own: EmbeddedBroker, folder: Path) -> list[str]:
    """Run the job; returns the values that its stream has read."""
    left_out = ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    with cluster(folder, environment) as master, (folder / "job.log").open("wb") as log:
        command = [sys.executable, str(JOB), master, own.service_url, "source", "target"]
        done = subprocess.run(
            [*command, str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 0, (folder / "job.log").read_text()[-4000:]
    values: list[str] = json.loads(done.stdout.splitlines()[-1])
    return values


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.fault(67)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all addresses of 127/8")
def test_a_task_that_runs_twice_reads_each_row_once_and_writes_each_row(tmp_path: Path) -> None:
    with EmbeddedBroker() as own:
        own.create_topic("source", partitions=TASKS)
        own.create_topic("target")
        for number in range(ROWS):
            store(own, f"{full('source')}-partition-{number % TASKS}", [b"%d" % number])
        values = run_job(own, tmp_path)
        for name in ("read", "write"):
            attempts = {path.name for path in tmp_path.glob(f"{name}-*")}
            assert {f"{name}-0", f"{name}-1"} <= attempts, "Spark has run no task twice"
        assert sorted(map(int, values)) == list(range(ROWS))
        written = Counter(
            int(row.content.payload or b"") for row in read_rows(Embedded(own), full("target"))
        )
        assert set(written) == set(range(ROWS))
        # The loser is killed where it stands: what it had sent by then is there twice.
        twice = {number for number, count in written.items() if count > 1}
        assert max(written.values()) <= 2
        assert 0 < len(twice) <= 100
        wait_until(lambda: not own.connections, "the loser is still connected")
        assert own.internal_errors == ()
