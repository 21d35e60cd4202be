"""What a writing task asks of the brokers, by the number of partitions and topics."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import ceil
from operator import le
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from pulsar_spark.engine import context
from pulsar_spark.engine.context import shared_connections
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.errors import TopicTerminated
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.options.table import Scope
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing.exactly_once import opened
from pulsar_spark.spark.writing.task_writer import tasks_of, transactions_of
from pulsar_spark.spark.writing.writers import ArrowStreamWriter
from pulsar_spark.testing import EmbeddedBroker, TopicPolicies
from tests.spark.topics import full, read, set_schema, values
from tests.support.round_trips import Asked
from tests.support.waiting import wait_until

# So late that commands which do not wait for each other come before any answer.
LATE = 0.25
AT_ONCE = 64
COUNTS = (1, 10, 100, 1000)
SINK = {"deliveryGuarantee": "exactly-once", "sinkId": "s"}
KINDS: dict[str, Any] = {
    "value": (BinaryType(), pa.binary()),
    "text": (StringType(), pa.string()),
    "__key": (StringType(), pa.string()),
    "__topic": (StringType(), pa.string()),
    "__sequenceId": (LongType(), pa.int64()),
}


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    yield
    shared_connections().close_unused()


def task(
    broker: EmbeddedBroker,
    columns: dict[str, list[Any]],
    options: dict[str, str] | None = None,
    *,
    batch: bool = False,
) -> Any:
    """Write rows as a task of Spark does: of a micro-batch, or of a batch."""
    schema = StructType()
    for name in columns:
        schema.add(name, KINDS[name][0])
    given = {"service.url": broker.service_url, **(options or {})}
    if "__topic" not in columns:
        given.setdefault("topic", "t")
    source = PulsarDataSource(given)
    writer: Any = source.writer(schema, False) if batch else source.streamWriter(schema, False)
    arrays = {name: pa.array(data, KINDS[name][1]) for name, data in columns.items()}
    return writer.write(iter([pa.RecordBatch.from_pydict(arrays)]))


def keyed(count: int) -> dict[str, list[Any]]:
    """Return rows for each of so many partitions, or nearly."""
    return {
        "value": [b"x"] * (10 * count),
        "__key": [str(number) for number in range(10 * count)],
    }


def producers(broker: EmbeddedBroker, topic: str = "t", partitions: int = 0) -> int:
    names = [f"{topic}-partition-{n}" for n in range(partitions)] or [topic]
    return sum(len(broker.stats(name).producers) for name in names)


# --- producers are opened together ------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 10, 100])
def test_a_task_opens_each_producer_once_and_all_of_them_together(
    broker: EmbeddedBroker, count: int
) -> None:
    broker.create_topic("t", count)
    rows: dict[str, list[Any]] = {
        "value": [b"x"] * count,
        "__key": [str(number) for number in range(count)],
    }
    with Asked(broker, LATE) as asked:
        done = task(broker, rows, batch=True)
    used = len(done.last_ids)
    assert asked.counts["PRODUCER"] == asked.counts["LOOKUP"] == used
    assert asked.counts["PARTITIONED_METADATA"] == 1
    assert asked.counts["CLOSE_PRODUCER"] == used
    # The schema, the number of partitions, a lookup and a producer each, rows, and the end.
    assert asked.in_sequence <= 6 + 4 * ceil(used / AT_ONCE)


@pytest.mark.parametrize("batching", ["true", "false"])
def test_rows_without_a_key_have_their_producers_opened_together(
    broker: EmbeddedBroker, batching: str
) -> None:
    broker.create_topic("t", 50)
    options = {"pulsar.producer.batchingEnabled": batching}
    with Asked(broker, LATE) as asked:
        # Batches are filled by bytes.
        done = task(broker, {"value": [b"x" * 16_000] * 400}, options, batch=True)
    assert asked.counts["PRODUCER"] == len(done.last_ids) == 50
    assert asked.in_sequence <= 10


def test_few_rows_open_few_producers(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 100)
    with Asked(broker) as asked:
        task(broker, {"value": [b"x"]}, batch=True)
        task(broker, {"value": [b"x"] * 3}, batch=True)
        task(broker, {"value": [b"x"] * 7, "__key": ["k"] * 7}, batch=True)
        task(broker, {"value": [b"x" * 1000] * 300}, batch=True)
    assert asked.counts["PRODUCER"] == 1 + 1 + 1 + 3


@pytest.mark.parametrize("count", [1, 10, 100])
def test_rows_that_name_topics_ask_about_all_of_them_together(
    broker: EmbeddedBroker, count: int
) -> None:
    topics = [f"t{number}" for number in range(count)]
    for topic in topics:
        broker.create_topic(topic, 2)
    rows: dict[str, list[Any]] = {"text": ["x"] * (4 * count), "__topic": topics * 4}
    with Asked(broker, LATE) as asked:
        task(broker, rows, batch=True)
    for command in ("GET_SCHEMA", "PARTITIONED_METADATA", "LOOKUP", "PRODUCER"):
        assert asked.counts[command] == count, command
    assert asked.in_sequence <= 6 + 4 * ceil(count / AT_ONCE)
    assert read(broker, {"topics": ",".join(topics)})[0]["value"] == "x"


def test_one_topic_of_many_that_cannot_be_written_costs_no_rows_of_the_others(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topic("a")
    broker.create_topic("b")
    broker.terminate_topic("b")
    rows: dict[str, list[Any]] = {"value": [b"1", b"2", b"3"], "__topic": ["a", "b", "a"]}
    done = task(broker, rows, {"deliveryGuarantee": "none"}, batch=True)
    assert done.failed == 1
    assert wait_until(lambda: values(broker, {"topic": "a"})) == [b"1", b"3"]
    with pytest.raises(TopicTerminated):
        task(broker, rows, batch=True)


@pytest.mark.parametrize("count", [1, 10, 100])
def test_partitions_join_a_transaction_together(count: int) -> None:
    rows: dict[str, list[Any]] = {
        "value": [b"x"] * count,
        "__key": [str(number) for number in range(count)],
    }
    with EmbeddedBroker() as broker:
        broker.create_topic("t", count)
        writer, _ = exactly_once(broker, rows, tasks=0)
        arrays = {name: pa.array(column, KINDS[name][1]) for name, column in rows.items()}
        with Asked(broker, LATE) as asked:
            done = writer.write(iter([pa.RecordBatch.from_pydict(arrays)]))
    used = len(done.last_ids)
    assert done.txn is not None
    assert asked.counts["ADD_PARTITION_TO_TXN"] == asked.counts["NEW_TXN"] == 1
    # One more announces the transaction.
    assert asked.counts["PRODUCER"] == used + 1
    assert asked.in_sequence <= 12 + 4 * ceil(used / AT_ONCE)


@pytest.mark.parametrize("count", [1, 10, 100])
def test_a_commit_opens_records_and_announcements_together(count: int) -> None:
    rows: dict[str, list[Any]] = {"value": [b"x"] * count, "__key": list(map(str, range(count)))}
    with EmbeddedBroker() as broker:
        broker.create_topic("t", count)
        # What the micro-batch before has left is there, too.
        for number in range(2):
            writer, messages = exactly_once(broker, rows, tasks=3)
            if not number:
                writer.commit(messages, 0)
        shared_connections().close_unused()
        sink = parse_write_options(
            {"service.url": broker.service_url, "topic": "t", **SINK}, Scope.STREAM_WRITE
        )
        assert sink.exactly_once is not None
        tasks = tasks_of(messages)
        with (
            Asked(broker, LATE, but=["CLOSE_CONSUMER"]) as asked,
            opened(
                sink.client, sink.exactly_once, tasks.driver, read_from=tasks.read_from
            ) as taken,
        ):
            # A lookup, the subscription, the fence's producer, the fence, and reading.
            assert asked.in_sequence <= 5
            taken.abort_attempts(but=transactions_of(messages))
            # Tasks of others may announce again.
            assert asked.in_sequence <= 6
            counts = asked.counts
            assert counts["PRODUCER"] == counts["SEND"] == counts["LOOKUP"] == 2
            assert counts["SUBSCRIBE"] == 4
        writer.commit(messages, 1)
        assert len(values(broker, {"topic": "t"})) == 6 * count


def test_a_micro_batch_waits_for_few_round_trips() -> None:
    """The first one of a process tries the coordinator out, and whose the sink is."""
    count = 20
    rows: dict[str, list[Any]] = {"value": [b"x"] * count, "__key": list(map(str, range(count)))}
    arrays = {name: pa.array(column, KINDS[name][1]) for name, column in rows.items()}
    most = [12, 10, 19]
    found: list[list[int]] = []
    with EmbeddedBroker() as broker:
        broker.create_topic("t", count)
        # On a busy machine commands that do not wait for each other may come in sequence, too.
        for number in range(6):
            if number > 2 and all(map(le, map(min, zip(*found[2:], strict=True)), most)):
                break
            with Asked(broker, LATE) as check:
                writer, _ = exactly_once(broker, rows, tasks=0)
                assert check.counts["NEW_TXN"] == (not number)
                counts = [check.in_sequence]
            with Asked(broker, LATE) as task:
                done = writer.write(iter([pa.RecordBatch.from_pydict(arrays)]))
                counts.append(task.in_sequence)
            with Asked(broker, LATE) as commit:
                unchecked_writer(broker).commit([done], number)
                counts.append(commit.in_sequence)
            found.append(counts)
        assert len(values(broker, {"topic": "t"})) == len(found) * count
    assert found[0][0] <= 30
    assert all(map(le, map(min, zip(*found[2:], strict=True)), most)), found


def unchecked_writer(broker: EmbeddedBroker) -> ArrowStreamWriter:
    """Return the writer that Spark makes to commit."""
    given = {"service.url": broker.service_url, "topic": "t", **SINK}
    schema = StructType().add("value", BinaryType()).add("__key", StringType())
    return ArrowStreamWriter(parse_write_options(given, Scope.STREAM_WRITE), schema)


def exactly_once(
    broker: EmbeddedBroker, rows: dict[str, list[Any]], tasks: int
) -> tuple[Any, list[Any]]:
    """Return a writer of a micro-batch, and what its tasks have told."""
    schema = StructType().add("value", BinaryType()).add("__key", StringType())
    source = PulsarDataSource({"service.url": broker.service_url, "topic": "t", **SINK})
    writer: Any = source.streamWriter(schema, False)
    arrays = {name: pa.array(column, KINDS[name][1]) for name, column in rows.items()}
    batch = pa.RecordBatch.from_pydict(arrays)
    return writer, [writer.write(iter([batch])) for _ in range(tasks)]


# --- producers are kept for the next task ---------------------------------------------------------


@pytest.mark.parametrize("count", COUNTS)
def test_the_next_task_of_a_stream_opens_no_producer(broker: EmbeddedBroker, count: int) -> None:
    broker.create_topic("t", count)
    rows: dict[str, list[Any]] = {"value": [b"x"] * count, "__key": list(map(str, range(count)))}
    done = task(broker, rows)
    with Asked(broker) as asked:
        again = task(broker, rows)
    counts = asked.counts
    assert counts["PRODUCER"] == counts["LOOKUP"] == counts["CLOSE_PRODUCER"] == 0
    assert counts["PARTITIONED_METADATA"] == counts["GET_SCHEMA"] == 1
    assert counts["SEND"] == len(done.last_ids) == len(again.last_ids)
    assert again.acknowledged == count
    assert again.last_ids != done.last_ids


def test_kept_producers_are_closed_when_they_are_idle(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "KEPT_SECONDS", 0.2)
    broker.create_topic("t", 10)
    task(broker, keyed(10))
    assert producers(broker, partitions=10) == 10
    wait_until(lambda: producers(broker, partitions=10) == 0)
    # The connection stays.
    assert broker.connections == 1
    assert task(broker, keyed(10)).acknowledged == 100


def test_a_batch_write_leaves_no_producer(broker: EmbeddedBroker) -> None:
    broker.create_topic("t", 10)
    task(broker, keyed(10), batch=True)
    assert producers(broker, partitions=10) == 0


SOMEBODYS: dict[str, dict[str, str]] = {
    "named": {"pulsar.producer.producerName": "p"},
    "exclusive": {"pulsar.producer.accessMode": "Exclusive"},
    "transactional": SINK,
    "without a guarantee": {"deliveryGuarantee": "none"},
}


@pytest.mark.parametrize("whose", SOMEBODYS)
def test_producers_that_are_somebodys_are_not_kept(whose: str) -> None:
    with EmbeddedBroker() as broker:
        task(broker, {"value": [b"x"]}, SOMEBODYS[whose])
        wait_until(lambda: producers(broker) == 0)


def test_rows_with_ids_of_their_own_share_no_producer(broker: EmbeddedBroker) -> None:
    """A broker would take the ids of the second task for those of the first."""
    broker.create_topic("t")
    for _ in range(2):
        done = task(broker, {"value": [b"a", b"b"], "__sequenceId": [1, 2]})
        assert done.acknowledged == 2
        assert producers(broker) == 0


def test_kept_producers_go_on_with_their_ids_where_topics_deduplicate() -> None:
    with EmbeddedBroker(deduplication=True) as broker:
        broker.create_topic("t", 3)
        for _ in range(3):
            done = task(broker, keyed(3))
            assert (done.acknowledged, done.duplicates) == (30, 0)
        assert len(values(broker, {"topic": "t"})) == 90


OTHERS: dict[str, dict[str, str]] = {
    "compression": {"pulsar.producer.compressionType": "LZ4"},
    "sizes": {"pulsar.producer.batchingMaxMessages": "10"},
    "schema": {"valueFormat": "raw"},
    "credentials": {
        "pulsar.client.authPluginClassName": "token",
        "pulsar.client.authParams": "token:secret",
    },
}


@pytest.mark.parametrize("other", OTHERS)
def test_writes_that_differ_share_no_producer(broker: EmbeddedBroker, other: str) -> None:
    broker.create_topic("t")
    task(broker, {"text": ["x"]} if other == "schema" else {"value": [b"x"]})
    with Asked(broker) as asked:
        task(broker, {"value": [b"x"]}, OTHERS[other])
    assert asked.counts["PRODUCER"] == 1


@pytest.mark.parametrize("other", ["compression", "sizes", "schema"])
def test_a_kept_producer_gives_way_where_the_topic_takes_no_other(
    broker: EmbeddedBroker, other: str
) -> None:
    broker.create_topic("t")
    broker.set_policies("t", TopicPolicies(max_producers=1))
    task(broker, {"text": ["x"]} if other == "schema" else {"value": [b"x"]})
    with Asked(broker) as asked:
        assert task(broker, {"value": [b"x"]}, OTHERS[other]).acknowledged == 1
    # The second one is refused, the kept one closed, and the next attempt succeeds.
    assert asked.counts["PRODUCER"] == 2


def test_a_schema_that_has_changed_is_registered_before_rows_are_written_with_it(
    broker: EmbeddedBroker,
) -> None:
    broker.create_topic("t")

    def record(*names: str) -> SchemaInfo:
        fields = ",".join(
            f'{{"name":"{name}","type":["null","string"],"default":null}}' for name in names
        )
        text = f'{{"type":"record","name":"r","fields":[{fields}]}}'
        return SchemaInfo(pb.Schema.Avro, "r", text.encode())

    set_schema(broker, "t", record("text"))
    for _ in range(2):
        task(broker, {"text": ["x"]})
    set_schema(broker, "t", record("text", "more"))
    with Asked(broker) as asked:
        done = task(broker, {"text": ["y"]})
    assert asked.counts["PRODUCER"] == 1
    assert dict(done.schemas)[full("t")] == (1).to_bytes(8, "big").hex()
    rows = read(broker, {"topic": "t"})
    assert [(row["text"], row["more"]) for row in rows] == [("x", None), ("x", None), ("y", None)]


@pytest.mark.parametrize("what", ["unloaded", "made again", "cut off", "more partitions"])
def test_kept_producers_that_were_closed_are_opened_again(
    broker: EmbeddedBroker, what: str
) -> None:
    broker.create_topic("t", 3)
    task(broker, keyed(3))
    if what == "unloaded":
        for number in range(3):
            broker.unload(f"t-partition-{number}")
    elif what == "made again":
        broker.delete_topic("t")
        broker.create_topic("t", 3)
    elif what == "cut off":
        broker.faults.disconnect()
    else:
        broker.add_partitions("t", 6)
    with Asked(broker) as asked:
        done = task(broker, keyed(3))
    assert done.acknowledged == 30
    assert asked.counts["PRODUCER"] == 3
    assert len(values(broker, {"topic": "t"})) == (30 if what == "made again" else 60)


def test_what_keeps_producers_out_is_told_although_some_were_kept(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    task(broker, {"value": [b"x"]})
    broker.terminate_topic("t")
    with pytest.raises(TopicTerminated, match="terminated"):
        task(broker, {"value": [b"x"]})


def test_a_task_that_fails_keeps_no_producer(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")

    def flush(self: PartitionedProducer, timeout: float | None = None) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(PartitionedProducer, "flush", flush)
        with pytest.raises(RuntimeError, match="killed"):
            task(broker, {"value": [b"x"]})
    assert producers(broker) == 0


def test_a_forked_child_uses_no_producer_of_its_parent(broker: EmbeddedBroker) -> None:
    broker.create_topic("t")
    task(broker, {"value": [b"parent"]})
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if task(broker, {"value": [b"child"]}).acknowledged == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with Asked(broker) as asked:
        task(broker, {"value": [b"parent"]})
    assert asked.counts["PRODUCER"] == 0
    assert values(broker, {"topic": "t"}) == [b"parent", b"child", b"parent"]
