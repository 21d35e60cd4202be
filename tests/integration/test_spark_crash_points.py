"""Spark writes exactly once on a real broker, although it is killed at each crash point."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.spark.writing.crash_points import VARIABLE
from tests.integration.crash_job import QUERIES
from tests.integration.test_spark_stream_sink import numbers
from tests.support import groups
from tests.support.real_broker import RealBroker

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

ROUNDS = int(os.environ.get("PULSAR_SPARK_CRASH_ROUNDS", "1"))
SECONDS = 900
PARTITIONS = 2
# Not nearly as long as a transaction may be open that nobody ends.
READ_MS = 60_000


class Crash:
    """A folder of checkpoints, and the drivers whose queries use them."""

    def __init__(
        self, folder: Path, broker: RealBroker, topic: str, names: Collection[str] = tuple(QUERIES)
    ) -> None:
        self.folder = folder
        self.names = names
        self._topic = topic
        self._url = broker.service_url
        (folder / "crash").mkdir()
        for name in names:
            broker.create_topic(self.topic(name), PARTITIONS)

    def topic(self, name: str) -> str:
        """Return the topic of a query."""
        return f"{self._topic}-{name}"

    def commits(self, name: str) -> list[Path]:
        """Return a query's notes of its micro-batches."""
        return list((self.folder / name / "checkpoint" / "commits").glob("[0-9]*"))

    def run(self, mode: str) -> list[str]:
        """Run a driver until it prints that it is done, then kill it; return all that it prints."""
        command = [sys.executable, "-m", "tests.integration.crash_job", mode, self._url]
        with (self.folder / f"{mode}.log").open("w+") as log:
            process = subprocess.Popen(
                [*command, str(self.folder), self._topic, *self.names],
                env={**os.environ, VARIABLE: str(self.folder / "crash")},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
            try:
                assert process.stdout is not None
                told = []
                for line in process.stdout:
                    told.append(line)
                    if line.strip() == "done":
                        break
                log.seek(0)
                assert told[-1:] == ["done\n"], "".join(told) + log.read()[-3000:]
                return told
            finally:
                self._kill(process)

    def _kill(self, process: subprocess.Popen[str]) -> None:
        held = [int(file.read_text()) for file in (self.folder / "crash").glob("*.pid")]
        for file in (self.folder / "crash").glob("*.pid"):
            file.unlink()
        # The driver, its JVM, and the Python processes held at their crash points.
        for kill, pid in [(os.killpg, process.pid), *((os.kill, pid) for pid in held)]:
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
        process.communicate()

    def check(self, client: Any) -> None:
        """Check that each topic has each row of the committed micro-batches once."""
        for name in self.names:
            batches = len(self.commits(name))
            assert batches >= 1, name
            assert read(client, self.topic(name)) == numbers(0, batches), name


def read(client: Any, topic: str) -> Counter[bytes]:
    """Return a topic's messages, once no transaction on it is open."""
    found: Counter[bytes] = Counter()
    for number in range(PARTITIONS):
        name = f"{topic}-partition-{number}"
        producer = client.create_producer(name)
        producer.send(b"end")
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        try:
            while (value := reader.read_next(timeout_millis=READ_MS).data()) != b"end":
                found[value] += 1
        except pulsar.Timeout:
            pytest.fail(f"{name}: {len(found)} rows are read, and then a transaction is open")
        for one in (reader, producer):
            one.close()
    return found


@pytest.fixture
def crash(tmp_path: Path, real_broker: RealBroker) -> Crash:
    return Crash(tmp_path, real_broker, real_broker.unique_topic("crash"))


@pytest.mark.slow
@pytest.mark.xdist_group(groups.OWN_SPARKS)
@pytest.mark.fault(78, 79)
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("_number", range(ROUNDS))
def test_python_processes_that_are_killed_at_any_point_write_each_row_once(
    crash: Crash, real_broker: RealBroker, official_client: Callable[..., Any], _number: int
) -> None:
    crash.run("strike")
    crash.check(official_client(real_broker.service_url))


@pytest.mark.slow
@pytest.mark.xdist_group(groups.OWN_SPARKS)
@pytest.mark.fault(78, 79)
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("_number", range(ROUNDS))
def test_a_spark_that_is_killed_at_any_point_writes_each_row_once(
    crash: Crash, real_broker: RealBroker, official_client: Callable[..., Any], _number: int
) -> None:
    crash.run("hold")
    crash.run("finish")
    crash.check(official_client(real_broker.service_url))
