"""The memory that a client's producers and receiver queues share."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from pulsar_spark.engine.consumers.entries import EntryDecoder
from pulsar_spark.engine.memory import ProducerBudget, ReceiverBudget
from pulsar_spark.errors import ClosedError, OperationTimeout
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import Frame
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from tests.engine.topics import chunks_of


def test_memory_is_reserved_up_to_the_limit() -> None:
    budget = ProducerBudget(100)
    assert budget.reserve(60, 0.0, lambda: False)
    assert budget.reserve(40, 0.0, lambda: False)
    assert not budget.reserve(1, 0.0, lambda: False)
    budget.release(60)
    assert budget.reserve(1, 0.0, lambda: False)
    assert budget.used == 41


def test_a_message_larger_than_the_budget_passes_alone() -> None:
    budget = ProducerBudget(10)
    assert budget.reserve(50, 0.0, lambda: False)
    assert not budget.reserve(1, 0.0, lambda: False)
    budget.release(50)
    assert budget.reserve(1, 0.0, lambda: False)
    assert not budget.reserve(50, 0.0, lambda: False)


@pytest.mark.fault(7)
def test_a_wait_for_memory_ends_at_its_deadline() -> None:
    budget = ProducerBudget(10)
    budget.reserve(10, 0.0, lambda: False)
    began = time.monotonic()
    assert not budget.reserve(1, began + 0.05, lambda: False)
    assert 0.05 <= time.monotonic() - began < 15


def test_a_wait_for_memory_ends_when_memory_is_freed() -> None:
    budget = ProducerBudget(10)
    budget.reserve(10, 0.0, lambda: False)
    threading.Timer(0.05, budget.release, [10]).start()
    assert budget.reserve(10, time.monotonic() + 60, lambda: False)


def test_a_wait_for_memory_ends_when_it_is_given_up() -> None:
    budget = ProducerBudget(10)
    budget.reserve(10, 0.0, lambda: False)
    given_up = threading.Event()

    def give_up() -> None:
        given_up.set()
        budget.wake()

    threading.Timer(0.05, give_up).start()
    began = time.monotonic()
    assert not budget.reserve(10, began + 60, given_up.is_set)
    assert time.monotonic() - began < 30


@pytest.mark.fault(39, 91)
def test_the_shares_of_a_budget_are_what_unfinished_messages_leave() -> None:
    budget = ReceiverBudget(10_000)
    budget.join()
    decoder = EntryDecoder("t", EARLIEST_POSITION, None, budget.total, memory=budget.chunks)
    first = chunks_of(os.urandom(4000), 2500, "a")[0]
    command = pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledgerId=1, entryId=2))
    base = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=command)
    decoder.decode(Frame(base, memoryview(first)))
    assert budget.share == 10_000 - budget.chunks.held < 7500
    decoder.close()
    assert budget.share == 10_000


@pytest.mark.fault(39)
def test_those_who_fetch_chunks_take_turns() -> None:
    budget = ReceiverBudget(8000)
    with budget.fetching(lambda: False) as queue:
        assert queue.total == budget.chunks.held == 1000
        with pytest.raises(OperationTimeout), budget.fetching(lambda: False, 0.01):
            pass
        with pytest.raises(ClosedError), budget.fetching(lambda: True):
            pass
    with budget.fetching(lambda: True):
        pass
    assert budget.chunks.held == 0


_RECEIVE_AND_COUNT_PAGES = """
import resource
from pulsar_spark.client import MessageId, PulsarClient
from pulsar_spark.testing import EmbeddedBroker

def receive():
    blocks = [b"x" * (512 * 1024) for _ in range(8)]
    return b"".join(blocks)

with EmbeddedBroker() as broker:
    {use}
receive()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    receive()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_USE_CLIENT = """
    with PulsarClient(broker.service_url{more}) as client:
        client.create_producer("t").send(b"x")
        client.create_reader("t", MessageId.earliest).read_next(60_000)
"""
_RUN_TASK = (
    _USE_CLIENT.format(more="")
    + """
    import pyarrow as pa
    from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
    from pulsar_spark.schema.table.record_batches import Projection
    from pulsar_spark.spark.options.read import parse_read_options
    from pulsar_spark.spark.reading.partition_reader import read_partition
    from pulsar_spark.spark.reading.partitions import PulsarInputPartition
    options = parse_read_options({"service.url": broker.service_url, "topic": "t"})
    last = broker.stats("t").last
    end = Position(last.ledger_id, last.entry_id + 1)
    topic = "persistent://public/default/t"
    part = PulsarInputPartition(topic, EARLIEST_POSITION, end)
    schema = pa.schema([("value", pa.binary())])
    assert list(read_partition(options, part, schema, Projection(("value",))))
"""
)


@pytest.mark.fault(202)
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="how glibc treats freed memory")
@pytest.mark.parametrize(
    "use,keeps",
    [
        pytest.param(_USE_CLIENT.format(more=""), False, id="client"),
        pytest.param(_USE_CLIENT.format(more=", keep_freed_memory=True"), True, id="option"),
        pytest.param(_RUN_TASK, True, id="task"),
    ],
)
def test_freed_memory_is_kept_by_tasks_and_by_clients_that_are_told_to(
    use: str, keeps: bool
) -> None:
    program = _RECEIVE_AND_COUNT_PAGES.format(use=textwrap.indent(textwrap.dedent(use), "    "))
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    # If it is given back, each of twenty rounds needs two thousand new pages.
    assert (int(found.stdout) < 2_000) == keeps


@pytest.mark.skipif(sys.platform != "linux", reason="how Linux counts address space")
def test_a_task_whose_address_space_is_used_up_goes_on_without_memory_to_keep() -> None:
    program = """
    import resource
    from pulsar_spark.engine.memory import keep_freed_memory
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20),) * 2)
    keep_freed_memory()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")
