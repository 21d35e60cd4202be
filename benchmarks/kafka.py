"""Kafka, so that Spark's own source can read the same rows: one broker in KRaft mode.

Nothing is downloaded: `--kafka` is a Python with Spark and kafka-python, `--kafka-jars` a folder
with a Kafka server's jars in `server/` and those of Spark's Kafka connector in `source/`.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.spark_process import SparkProcess
from benchmarks.workloads import Workload
from tests.support.java_server import free_ports

_READY_SECONDS = 60.0
_STOP_SECONDS = 30.0

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/logs
offsets.topic.replication.factor=1
message.max.bytes=10000000
"""

# Kafka's overhead for a record and for a batch, besides value and key; see its documentation.
_RECORD_BYTES = 12
_BATCH_BYTES = 61


@dataclass
class Kafka:
    """A broker, and a Spark process with the Kafka connector."""

    broker: KafkaBroker
    spark: SparkProcess

    def has(self, workload: Workload) -> bool:
        """Whether Kafka can have this shape: one producer, only keys, and no large messages."""
        return workload.producers == 1 and not workload.properties and workload.size <= 1_000

    def fill(self, workload: Workload) -> str:
        """Write the workload's rows, in batches of nearly its size, as far as Kafka allows."""
        topic = f"bench-{workload.name}-{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(topic, workload.partitions)
        record = workload.size + _RECORD_BYTES
        batch = 0 if workload.batch == 1 else workload.batch * record + _BATCH_BYTES
        columns = [column.replace("AS __key", "AS key") for column in workload.columns_sql()[:2]]
        self.spark.ask(
            "write",
            source="kafka",
            options={
                "kafka.bootstrap.servers": self.broker.address,
                "topic": topic,
                "kafka.batch.size": str(batch),
                "kafka.linger.ms": "0" if workload.batch == 1 else "1000",
                "kafka.compression.type": workload.compression.lower(),
                "kafka.max.request.size": "10000000",
            },
            messages=workload.messages,
            tasks=1,
            columns=columns,
        )
        return topic

    def latency(self, rows: int) -> dict[str, Any]:
        """Measure how long rows take to arrive, in a topic of one partition."""
        topic = f"bench-arriving-{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(topic, 1)
        answer: dict[str, Any] = self.spark.ask(
            "kafka_latency", address=self.broker.address, topic=topic, rows=rows
        )
        return answer

    def frame(self, topic: str) -> dict[str, object]:
        """The options of the read; Kafka's rows have seven columns too."""
        options = {
            "kafka.bootstrap.servers": self.broker.address,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "endingOffsets": "latest",
        }
        return {"source": "kafka", "options": options}


class KafkaBroker:
    """A broker with 1 GB of heap, Kafka's default; `close` deletes its data."""

    def __init__(self, jars: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pulsar-bench-kafka-"))
        broker, controller = free_ports(2)
        self.address = f"127.0.0.1:{broker}"
        self._settings = self._folder / "server.properties"
        self._classpath = f"{jars / 'server'}/*"
        self._settings.write_text(
            _SETTINGS.format(broker=broker, controller=controller, folder=self._folder)
        )
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # As one argument: an id may start with a hyphen.
        identity = f"--cluster-id={cluster}"
        tool = ["kafka.tools.StorageTool", "format", identity, "-c", str(self._settings)]
        subprocess.run(self._java(*tool), check=True, capture_output=True, cwd=self._folder)
        self._log = open(self._folder / "server.log", "wb")  # noqa: SIM115 - until `close`
        self._process = subprocess.Popen(
            self._java("kafka.Kafka", str(self._settings)),
            cwd=self._folder, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._wait(("127.0.0.1", broker))

    def create_topic(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        command = ["org.apache.kafka.tools.TopicCommand", "--create", "--topic", topic]
        command += ["--partitions", str(partitions), "--bootstrap-server", self.address]
        subprocess.run(self._java(*command), check=True, capture_output=True)

    def _java(self, *arguments: str) -> list[str]:
        return ["java", "-Xms512m", "-Xmx1g", "-cp", self._classpath, *arguments]

    def _wait(self, address: tuple[str, int]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            try:
                socket.create_connection(address, 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    text = (self._folder / "server.log").read_text("utf-8", "replace")
                    self.close()
                    raise RuntimeError(f"Kafka did not start: {text[-2000:]}") from None
                time.sleep(0.1)

    def close(self) -> None:
        """Stop it and remove its data."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def connector_settings(jars: Path) -> str:
    """Spark's settings for the Kafka connector, as JSON."""
    return json.dumps({"spark.jars": ",".join(map(str, sorted((jars / "source").glob("*.jar"))))})
