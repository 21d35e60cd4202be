"""Exactly-once commits to topics that were terminated, deleted or made again meanwhile."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pulsar_spark.client import PulsarClient
from pulsar_spark.client.schema import StringSchema
from pulsar_spark.engine.producers.terminated import terminated_topics
from pulsar_spark.errors import NotAllowed, TopicLost, TopicTerminated, TornBatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.spark.options.table import Scope
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.writing import exactly_once
from pulsar_spark.spark.writing.task_writer import PulsarCommitMessage
from pulsar_spark.spark.writing.writers import ArrowStreamWriter, PulsarBatchWriter
from pulsar_spark.testing import EmbeddedBroker, TopicPolicies
from tests.integration.brokers import Broker, Embedded, as_real
from tests.integration.messages import readable
from tests.integration.sink_job import SCHEMA
from tests.integration.sinks import dying
from tests.support.real_broker import AdminError
from tests.support.waiting import wait_until

TASKS = 2
CHANGES = [
    "terminated",
    "deleted",
    pytest.param("made again", marks=pytest.mark.slow),
    "made again and written to",
]
DELETIONS = CHANGES[1:]
KINDS = ["stream", pytest.param("batch", marks=pytest.mark.slow)]
NAMED = StructType([*SCHEMA.fields, StructField("__topic", StringType())])


class Sink:
    """An exactly-once sink whose rows go to several topic partitions, from each task to each."""

    def __init__(self, broker: Broker, topics: list[str], kind: str, **options: str) -> None:
        self.topics = topics
        self.kind = kind
        self.options = {
            "service.url": broker.service_url,
            "deliveryGuarantee": "exactly-once",
            "sinkId": "s",
            "sinkStateTopic": broker.create_transactional_topic(0),
            "transactionTimeout": "1h",
            # More than any test may wait for an answer that never comes.
            "pulsar.client.operationTimeoutMs": "60000",
            **options,
        }
        self._job: PulsarBatchWriter | None = None

    def writer(self) -> Any:
        """Return a new writer; one of a job writes its unit."""
        if self.kind == "stream":
            return ArrowStreamWriter(parse_write_options(self.options, Scope.STREAM_WRITE), NAMED)
        self._job = PulsarBatchWriter(parse_write_options(self.options), NAMED, overwrite=False)
        return self._job

    def write(self, unit: int) -> list[PulsarCommitMessage]:
        """Run the tasks of a unit."""
        writer = self.writer()
        return [writer.write(iter([self._rows(f"{unit}-{task}")])) for task in range(TASKS)]

    def _rows(self, value: str) -> pa.RecordBatch:
        values = [value] * len(self.topics)
        return pa.RecordBatch.from_pydict({"value": values, "__topic": self.topics})

    def commit(self, messages: list[PulsarCommitMessage], unit: int) -> None:
        """Commit a unit."""
        if self.kind == "stream":
            self.writer().commit(list(messages), unit)
        else:
            assert self._job is not None
            self._job.commit(messages)

    def abort(self, messages: list[PulsarCommitMessage], unit: int) -> None:
        """Do what Spark does when a commit failed."""
        self.writer().abort(list(messages), *([unit] if self.kind == "stream" else []))

    def run(self, unit: int) -> None:
        """Write a unit from its check to its commit."""
        self.writer().check()
        self.commit(self.write(unit), unit)


def rows(*units: int) -> Counter[str]:
    """Return the values that these units write to each topic."""
    return Counter(f"{unit}-{task}" for unit in units for task in range(TASKS))


def seen(broker: Broker, topic: str) -> Counter[str]:
    """Return the readable messages of a topic."""
    return readable(broker.service_url, topic)


def change(broker: Broker, topic: str, how: str) -> None:
    """Terminate, delete or make again a topic, or one partition of it."""
    if how == "terminated":
        broker.terminate(topic)
        return
    broker.delete_topic(topic)
    if how.startswith("made again"):
        try:
            broker.create_topic(topic)
        except (AdminError, NotAllowed) as error:
            # A producer of the test, which comes back by itself, may have made it first.
            if "exists" not in str(error):
                raise
    if how.endswith("written to"):
        with PulsarClient(broker.service_url) as client:
            client.create_producer(topic).send(b"new")


@pytest.fixture
def topics(broker: Broker) -> list[str]:
    """Two topics that take transactions; the first one is changed."""
    return [broker.create_transactional_topic(0) for _ in range(2)]


def taken_by(call: Callable[[], None]) -> float:
    """Return how many seconds a call takes."""
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


# --- while tasks write ----------------------------------------------------------------------------

GUARANTEES = {
    "exactly once": {"deliveryGuarantee": "exactly-once", "sinkId": "s"},
    "effectively once": {"pulsar.producer.producerName": "job"},
    "at least once": {},
}
SOME = 1500
"""More than the rows whose numbers name a task's producers, before any row is sent."""


@pytest.mark.fault(177)
@pytest.mark.parametrize(
    "guarantee, how",
    [
        # Within a transaction, rows whose receipts got lost with a broker may not be resent.
        *product(GUARANTEES, ["deleted", "made again"]),
        *product(list(GUARANTEES)[1:], ["unloaded"]),
    ],
)
def test_a_task_fails_if_what_it_has_written_is_gone(
    broker: Broker, guarantee: str, how: str
) -> None:
    """Spark runs it again, and writes all rows anew."""
    numbered = guarantee == "effectively once"
    if numbered:
        topic = broker.create_limited_topic(TopicPolicies(deduplication=True))
    else:
        topic = broker.create_transactional_topic(0)
    given = {
        "service.url": broker.service_url,
        "topic": topic,
        "pulsar.producer.batchingEnabled": "false",
        **GUARANTEES[guarantee],
    }
    schema = StructType([*SCHEMA.fields, *([StructField("__sequenceId", LongType())] * numbered)])
    writer = PulsarBatchWriter(parse_write_options(given), schema, overwrite=False)
    writer.check()
    values = [str(value) for value in range(2 * SOME)]

    def rows_from(first: int) -> pa.RecordBatch:
        found: dict[str, Any] = {"value": values[first : first + SOME]}
        if numbered:
            found["__sequenceId"] = list(range(first, first + SOME))
        return pa.RecordBatch.from_pydict(found)

    def batches(*, is_changed: bool) -> Iterator[pa.RecordBatch]:
        yield rows_from(0)
        if is_changed:
            wait_until(lambda: broker.entries(topic), "no row is stored")
            broker.unload(topic) if how == "unloaded" else change(broker, topic, how)
        yield rows_from(SOME)

    if how == "unloaded":
        done = writer.write(batches(is_changed=True))
    else:
        with pytest.raises(TopicLost, match=rf"acknowledged are gone.*{topic}"):
            writer.write(batches(is_changed=True))
        done = writer.write(batches(is_changed=False))
    writer.commit([done])
    assert seen(broker, topic) == Counter(values)


# --- before the decision --------------------------------------------------------------------------


@pytest.mark.fault(160)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", CHANGES)
def test_nothing_is_committed_if_a_topic_changed_after_the_tasks(
    broker: Broker, topics: list[str], kind: str, how: str
) -> None:
    sink = Sink(broker, topics, kind)
    sink.run(0)
    messages = sink.write(1)
    change(broker, topics[0], how)
    with pytest.raises(TopicLost, match=r"not written, and nothing of it is visible") as caught:
        sink.commit(messages, 1)
    assert topics[0] in str(caught.value)
    assert how.split(" and ", maxsplit=1)[0] in str(caught.value)
    assert topics[1] not in str(caught.value)
    sink.abort(messages, 1)
    assert seen(broker, topics[1]) == rows(0)
    # Nothing holds the other topic.
    with PulsarClient(broker.service_url) as client:
        client.create_producer(topics[1]).send(b"after")
    assert seen(broker, topics[1]) == rows(0) + Counter(["after"])
    sink.topics = topics[1:] if how == "terminated" else topics
    sink.run(1)
    assert seen(broker, topics[1]) == rows(0, 1) + Counter(["after"])
    if how != "terminated":
        assert seen(broker, topics[0]) == rows(1) + Counter(["new"] * how.endswith("to"))


@pytest.mark.fault(160)
@pytest.mark.parametrize("how", CHANGES)
def test_nothing_is_committed_if_one_of_several_partitions_changed(
    broker: Broker, how: str
) -> None:
    topic = broker.create_transactional_topic(3)
    sink = Sink(broker, [topic] * 6, "stream")
    sink.options["pulsar.producer.batchingEnabled"] = "false"
    messages = sink.write(0)
    changed, *others = broker.partitions_of(topic, 3)
    change(broker, changed, how)
    with pytest.raises(TopicLost, match=changed):
        sink.commit(messages, 0)
    for other in others:
        assert seen(broker, other) == Counter()


@pytest.mark.fault(160)
def test_a_topic_that_is_made_again_between_two_tasks_is_noticed(
    broker: Broker, topics: list[str]
) -> None:
    sink = Sink(broker, topics, "stream")
    first, _ = sink.write(0)
    change(broker, topics[0], "made again")
    _, second = sink.write(0)
    with pytest.raises(TopicLost, match=rf"{topics[0]}.*made again"):
        sink.commit([first, second], 0)


@pytest.mark.fault(160)
def test_asking_whether_a_topic_is_there_does_not_make_it(
    broker: Broker, topics: list[str]
) -> None:
    sink = Sink(broker, topics, "stream")
    messages = sink.write(0)
    change(broker, topics[0], "deleted")
    with pytest.raises(TopicLost):
        sink.commit(messages, 0)
    with PulsarClient(broker.service_url) as client:
        assert topics[0] not in client._context.lookup.topics_of_namespace("public/default")


@pytest.mark.fault(160)
def test_asking_makes_no_topic_if_the_role_may_not_read_either() -> None:
    with EmbeddedBroker() as own:
        broker = Embedded(own)
        topics = [broker.create_topic() for _ in range(2)]
        sink = Sink(broker, topics, "stream")
        messages = sink.write(0)
        own.delete_topic(topics[0])
        with own.faults.error("SUBSCRIBE", pb.AuthorizationError, topic=topics[0], times=None):
            sink.commit(messages, 0)
        assert topics[0] not in own.topics()


@pytest.mark.fault(160)
@pytest.mark.parametrize("code", [pb.ConsumerBusy, pb.NotAllowedError])
def test_a_terminated_topic_that_allows_no_consumer_is_known_if_it_exists(code: int) -> None:
    with EmbeddedBroker() as own:
        broker = Embedded(own)
        topics = [broker.create_topic() for _ in range(2)]
        sink = Sink(broker, topics, "stream", **{"pulsar.client.operationTimeoutMs": "2000"})
        messages = sink.write(0)
        own.terminate_topic(topics[0])
        refused = own.faults.error("SUBSCRIBE", code, topic=topics[0], times=None)
        with refused, pytest.raises(TopicLost, match=topics[0]):
            sink.commit(messages, 0)


@pytest.mark.fault(160)
@pytest.mark.parametrize(
    "code",
    [pb.AuthorizationError, pb.ProducerBusy, pb.NotAllowedError, pb.MetadataError,
     pb.ProducerBlockedQuotaExceededError, pb.ProducerBlockedQuotaExceededException,
     pb.TooManyRequests, pb.IncompatibleSchema],
)  # fmt: skip
def test_a_topic_that_takes_no_further_producer_is_committed_to(code: int) -> None:
    with EmbeddedBroker() as own:
        broker = Embedded(own)
        topics = [broker.create_topic() for _ in range(2)]
        sink = Sink(broker, topics, "stream", **{"pulsar.client.operationTimeoutMs": "5000"})
        messages = sink.write(0)
        with own.faults.error("PRODUCER", code, topic=topics[0], times=None):
            sink.commit(messages, 0)
        assert seen(broker, topics[0]) == rows(0)
        assert own.internal_errors == ()


@pytest.mark.fault(160)
@pytest.mark.parametrize(
    "policy,value",
    [("schemaValidationEnforced", True), ("encryptionRequired", True), ("maxProducersPerTopic", 1)],
)
def test_a_terminated_topic_is_known_whatever_policy_it_has(
    broker: Broker, policy: str, value: object
) -> None:
    real = as_real(broker)
    namespace = real.create_namespace()
    topic = real.create_topic(real.unique_topic(namespace=namespace))
    with PulsarClient(real.service_url) as client:
        client.create_producer(topic, schema=StringSchema()).send("x")
        real.own.admin("POST", f"namespaces/{namespace}/{policy}", value)
        real.terminate(topic)
        assert terminated_topics(client._context.pool, [topic]) == {topic}


@pytest.mark.fault(160)
def test_a_task_that_finds_a_topic_terminated_waits_for_no_answer(
    broker: Broker, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactly_once, "_ABORT_SECONDS", 60.0)
    sink = Sink(broker, topics, "stream")
    change(broker, topics[1], "terminated")

    def write() -> None:
        with pytest.raises(TopicTerminated):
            sink.write(0)

    assert taken_by(write) < 30
    # Its transaction holds the other topic no more.
    with PulsarClient(broker.service_url) as client:
        client.create_producer(topics[0]).send(b"after")
    wait_until(lambda: seen(broker, topics[0]) == Counter(["after"]), "it is held")


# --- after the decision ---------------------------------------------------------------------------


@pytest.fixture
def at_point(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], None]], None]:
    """Have a function called when the driver reaches a point, the first time."""

    def install(point: str, function: Callable[[], None]) -> None:
        left = [True]

        def reach(reached: str) -> None:
            if left[0] and reached == point:
                left[0] = False
                function()

        monkeypatch.setattr(exactly_once, "reach", reach)

    return install


AtPoint = Callable[[str, Callable[[], None]], None]


@pytest.mark.slow
@pytest.mark.fault(161)
@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_that_is_terminated_during_the_commit_tears_the_unit_at_every_start(
    broker: Broker, topics: list[str], kind: str, at_point: AtPoint
) -> None:
    sink = Sink(broker, topics, kind, **{"pulsar.client.operationTimeoutMs": "5000"})
    sink.run(0)
    messages = sink.write(1)
    at_point("after-markers", lambda: change(broker, topics[0], "terminated"))
    with pytest.raises(TornBatch, match=rf"never see what .* wrote to {topics[0]}.*terminated"):
        sink.commit(messages, 1)
    sink.abort(messages, 1)
    assert seen(broker, topics[1]) == rows(0, 1)
    # Whoever finds it needs no answer that never comes.
    sink.options["pulsar.client.operationTimeoutMs"] = "60000"
    sink.topics = topics[1:]

    def start() -> None:
        with pytest.raises(TornBatch, match=rf"never see what .* wrote to {topics[0]}"):
            sink.run(1)

    assert taken_by(start) < 30
    assert taken_by(start) < 30


@pytest.mark.fault(161)
@pytest.mark.parametrize("how", DELETIONS)
def test_a_topic_that_is_deleted_during_the_commit_is_told(
    broker: Broker, topics: list[str], how: str, at_point: AtPoint
) -> None:
    sink = Sink(broker, topics, "stream")
    messages = sink.write(0)
    at_point("after-markers", lambda: change(broker, topics[0], how))
    with pytest.raises(TornBatch, match=rf"what .* wrote to {topics[0]}.*deleted"):
        sink.commit(messages, 0)
    assert seen(broker, topics[1]) == rows(0)


# --- what another driver finds --------------------------------------------------------------------


@pytest.mark.fault(162)
@pytest.mark.parametrize("point", ["after-decision", "after-markers"])
@pytest.mark.parametrize("how", CHANGES)
def test_a_decision_is_dropped_if_a_topic_changed_before_any_commit(
    broker: Broker, topics: list[str], how: str, point: str
) -> None:
    sink = Sink(broker, topics, "stream")
    sink.run(0)
    with dying(point):
        sink.commit(sink.write(1), 1)
    change(broker, topics[0], how)
    if how == "terminated":
        # A terminated topic takes no rows.
        sink.topics = topics[1:]
    assert taken_by(lambda: sink.run(1)) < 30
    assert seen(broker, topics[1]) == rows(0, 1)
    sink.run(2)
    assert seen(broker, topics[1]) == rows(0, 1, 2)
    if how != "terminated":
        assert seen(broker, topics[0]) == rows(1, 2) + Counter(["new"] * how.endswith("to"))


@pytest.mark.fault(162)
@pytest.mark.parametrize("how", CHANGES)
def test_a_decided_job_is_dropped_if_a_topic_changed_before_any_commit(
    broker: Broker, topics: list[str], how: str
) -> None:
    sink = Sink(broker, topics, "batch")
    with dying("after-decision"):
        sink.commit(sink.write(0), 0)
    change(broker, topics[0], how)
    sink.writer().check()
    sink.topics = topics[1:]
    sink.run(1)
    assert seen(broker, topics[1]) == rows(1)


@pytest.mark.slow
@pytest.mark.fault(162)
@pytest.mark.parametrize("how", ["terminated", "deleted"])
def test_a_topic_that_changed_when_some_was_committed_tears_the_unit(
    broker: Broker, topics: list[str], how: str, at_point: AtPoint
) -> None:
    sink = Sink(broker, topics, "stream", **{"pulsar.client.operationTimeoutMs": "5000"})
    messages = sink.write(0)
    with dying("after-markers"):
        sink.commit(messages, 0)
    change(broker, topics[0], how)
    with PulsarClient(broker.service_url, operation_timeout_seconds=2) as client:
        first = messages[0].txn
        assert first is not None
        client._context.coordinators.end_all([first], commit=True)
    sink.topics = topics[1:]
    for _ in range(2):
        with pytest.raises(TornBatch, match=topics[0]):
            sink.run(0)
    assert seen(broker, topics[1]) == rows(0)


@pytest.mark.fault(163)
def test_what_retention_removed_after_its_commit_is_told_and_tears_nothing(
    broker: Broker, topics: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink(broker, topics, "stream")
    with dying("after-ends"):
        sink.commit(sink.write(0), 0)
    # The driver is down for as long as messages are kept.
    with PulsarClient(broker.service_url) as client:
        client.create_producer(topics[0]).send(b"later")
    broker.trim(topics[0])
    with PulsarClient(broker.service_url) as client:
        client.create_producer(topics[0]).send(b"even later")
    sink.run(0)
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert any(topics[0] in text and "retention" in text for text in told)
    sink.run(1)
    assert seen(broker, topics[1]) == rows(0, 1)


@pytest.mark.fault(163)
def test_a_topic_that_is_deleted_before_readers_saw_an_earlier_batch_is_told(
    broker: Broker, topics: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink(broker, topics, "stream")
    with PulsarClient(broker.service_url) as client:
        other = client.new_transaction(600_000)
        client.create_producer(topics[0]).send(b"other", txn=other)
        sink.run(0)
        change(broker, topics[0], "deleted")
        sink.topics = topics[1:]
        sink.run(1)
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert any(topics[0] in text and "batch 0" in text and "deleted" in text for text in told)
    assert seen(broker, topics[1]) == rows(0, 1)
