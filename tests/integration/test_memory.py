"""The memory of a task while it reads, whatever the topic's size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.schema.table.record_batches import MAX_BYTES
from tests.integration.brokers import Broker
from tests.integration.messages import clustered
from tests.outgoing import outgoing

MIB = 1024 * 1024
BUDGET = 64 * MIB
AT_ONCE = 10_000

# Reads two topics as a task does: the first, small one gives the baseline. It starts slowly, so
# that the broker has used all its permits.
READ = """
import sys, time
from pyspark.sql.types import BinaryType, StructField, StructType
from pulsar_spark.spark.datasource import PulsarDataSource

def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024

def read(topic):
    source = PulsarDataSource({"service.url": sys.argv[1], "topic": topic})
    reader = source.reader(StructType([StructField("value", BinaryType())]))
    size = 0
    for partition in reader.partitions():
        for batch in reader.read(partition):
            if not size:
                time.sleep(1.0)
            size += batch.nbytes
    return size

read(sys.argv[2])
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = peak()
print(read(sys.argv[3]), peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    "size, count", [(100, 1_500_000), (1_000_000, 200)], ids=["small-batched", "large"]
)
def test_a_task_holds_the_receive_budget_and_two_record_batches(
    broker: Broker, size: int, count: int
) -> None:
    small, large = broker.create_topic(), broker.create_topic()
    batched = ProducerOptions(batching_enabled=size < 1000)
    with clustered(broker) as context:
        for topic, messages in ((small, 10), (large, count)):
            with PartitionedProducer(context, topic, batched) as writer:
                for start in range(0, messages, AT_ONCE):
                    payloads = [b"x" * size] * min(AT_ONCE, messages - start)
                    writer.write(outgoing(payloads))
    done = subprocess.run(
        [sys.executable, "-c", READ, broker.service_url, small, large],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read, held = map(int, done.stdout.split())
    assert read >= size * count
    assert held <= BUDGET + 2 * MAX_BYTES
