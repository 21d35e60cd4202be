"""Limits of brokers: sizes, names in use, fencing and quotas."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pulsar_spark.client import MessageId, PulsarClient, Result
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import (
    MessageTooLarge,
    NotAllowed,
    OperationTimeout,
    ProducerBusy,
    ProducerFenced,
    PulsarError,
    QuotaExceeded,
    QuotaExceededHold,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.outgoing_messages import MessageFields
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.testing import BacklogQuota, TopicPolicies
from tests.integration.brokers import Broker, as_real
from tests.integration.conftest import TUNED_MESSAGE_SIZE
from tests.integration.messages import clustered, official_read, read_entries, read_rows
from tests.outgoing import single
from tests.support.real_broker import rest_path
from tests.support.waiting import wait_until

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

Connect = Callable[..., Any]


@pytest.fixture
def tuned_client(tuned_broker: Broker, official_client: Connect) -> Any:
    return official_client(tuned_broker.service_url)


def metadata_size(broker: Broker, topic: str, fields: MessageFields) -> int:
    """Return the bytes of a message besides its payload."""
    options = ProducerOptions(batching_enabled=False, producer_name="same")
    with clustered(broker) as context, PartitionedProducer(context, topic, options) as writer:
        writer.send(fields)
    entry = read_entries(broker, topic)[-1]
    return len(entry.metadata.SerializeToString())


# --- sizes ----------------------------------------------------------------------------------


@pytest.mark.fault(86)
@pytest.mark.parametrize("what", ["payload", "key", "property"])
def test_the_largest_message_is_sent_and_a_larger_one_refused_before(
    tuned_broker: Broker, tuned_client: Any, what: str
) -> None:
    topic = tuned_broker.create_topic()

    def message(size: int) -> MessageFields:
        text = "x" * size
        if what == "payload":
            return MessageFields(text.encode())
        if what == "key":
            return MessageFields(b"x", text)
        return MessageFields(b"x", properties=[("name", text)])

    # The length of its numbers depends on the size, so measure near the limit.
    near = TUNED_MESSAGE_SIZE - 2000
    total = metadata_size(tuned_broker, topic, message(near)) + len(message(near).payload or b"")
    largest = near + TUNED_MESSAGE_SIZE - total
    options = ProducerOptions(batching_enabled=False, producer_name="same")
    with clustered(tuned_broker) as context, PartitionedProducer(context, topic, options) as writer:
        for size in (largest - 1, largest):
            writer.send(message(size))
        with pytest.raises(MessageTooLarge) as caught:
            writer.send(message(largest + 1))
        assert f"{TUNED_MESSAGE_SIZE + 1} bytes" in str(caught.value)
        # Others are not affected.
        writer.send(MessageFields(b"after"))
        writer.flush()
        assert writer.counts.reconnects == 0
    rows = read_rows(tuned_broker, topic)
    sizes = [
        len(row.entry.SerializeToString()) + len(row.content.payload or b"") for row in rows[1:3]
    ]
    assert sizes == [TUNED_MESSAGE_SIZE - 1, TUNED_MESSAGE_SIZE]
    theirs = official_read(tuned_client, topic, 4)
    assert [m.data() for m in theirs] == [row.content.payload for row in rows]


@pytest.mark.fault(86)
def test_the_largest_message_of_a_broker_as_it_is_installed(broker: Broker) -> None:
    topic = broker.create_topic()
    near = 5 * 1024 * 1024 - 2000
    largest = 5 * 1024 * 1024 - metadata_size(broker, topic, MessageFields(bytes(near)))
    options = ProducerOptions(batching_enabled=False, producer_name="same")
    payload = random.Random(1).randbytes(largest)
    with clustered(broker) as context, PartitionedProducer(context, topic, options) as writer:
        writer.send(MessageFields(payload))
        writer.flush()
        with pytest.raises(MessageTooLarge):
            writer.send(MessageFields(payload + b"x"))
    assert read_rows(broker, topic)[-1].content.payload == payload


@pytest.mark.fault(86)
def test_batches_grow_up_to_the_limit_and_are_split_above(
    tuned_broker: Broker, tuned_client: Any
) -> None:
    topic = tuned_broker.create_topic()
    rng = random.Random(2)
    payloads = [rng.randbytes(rng.choice((10, 1000, 20_000, 40_000))) for _ in range(300)]
    # Larger than the maximum message size: the batches must be split.
    options = ProducerOptions(batching_max_bytes=10 * TUNED_MESSAGE_SIZE)
    with clustered(tuned_broker) as context, PartitionedProducer(context, topic, options) as writer:
        for payload in payloads:
            writer.send(MessageFields(payload))
    assert [m.data() for m in official_read(tuned_client, topic, 300)] == payloads


@pytest.mark.fault(86)
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_chunks_begin_where_a_message_no_longer_fits(
    tuned_broker: Broker, tuned_client: Any, over: int
) -> None:
    topic = tuned_broker.create_topic()
    near = MessageFields(bytes(TUNED_MESSAGE_SIZE - 2000))
    size = TUNED_MESSAGE_SIZE - metadata_size(tuned_broker, topic, near) + over
    payload = random.Random(size).randbytes(size)
    options = ProducerOptions(batching_enabled=False, chunking_enabled=True, producer_name="same")
    with clustered(tuned_broker) as context, PartitionedProducer(context, topic, options) as writer:
        writer.send(MessageFields(payload))
        writer.send(MessageFields(payload * 5))
    rows = read_rows(tuned_broker, topic)[1:]
    assert [row.content.payload for row in rows] == [payload, payload * 5]
    assert (rows[0].received.first_chunk is not None) == (over > 0)
    assert [m.data() for m in official_read(tuned_client, topic, 3)][1:] == [payload, payload * 5]


@pytest.mark.fault(86)
def test_chunks_of_the_official_client_at_the_limit(
    tuned_broker: Broker, tuned_client: Any
) -> None:
    topic = tuned_broker.create_topic()
    producer = tuned_client.create_producer(topic, chunking_enabled=True)
    payloads = [bytes([n]) * (TUNED_MESSAGE_SIZE + n - 150) for n in range(0, 200, 10)]
    for payload in payloads:
        producer.send(payload)
    assert [row.content.payload for row in read_rows(tuned_broker, topic)] == payloads


# --- names and fences -----------------------------------------------------------------------


def refusal(context: ClientContext, topic: str, options: ProducerOptions) -> PulsarError:
    """Return why a producer cannot be opened, or the last error before its timeout."""
    for seconds in (1.0, 20.0):
        with pytest.raises((ProducerBusy, ProducerFenced, OperationTimeout)) as caught:
            TopicProducer(context, topic, options).open(timeout=seconds)
        if isinstance(caught.value.__cause__ or caught.value, ProducerBusy | ProducerFenced):
            break
        # The broker was too busy to answer.
    return caught.value


@pytest.mark.fault(88)
def test_a_name_that_is_taken_is_waited_for(broker: Broker, official_client: Connect) -> None:
    topic = broker.create_topic()
    holder = official_client(broker.service_url).create_producer(topic, producer_name="taken")
    options = ProducerOptions(producer_name="taken")
    with clustered(broker) as context:
        error = refusal(context, topic, options)
        assert isinstance(error.__cause__ or error, ProducerBusy)
        assert "taken" in str(error)
        patient = TopicProducer(context, topic, options)
        started = time.monotonic()
        threading.Timer(1.0, holder.close).start()
        patient.open(timeout=60.0)
        assert time.monotonic() - started >= 0.9
        assert broker.producers(topic) == {"taken"}
        patient.close()


@pytest.mark.fault(88)
def test_an_exclusive_producer_keeps_others_out(broker: Broker, official_client: Connect) -> None:
    topic = broker.create_topic()
    client = official_client(broker.service_url)
    holder = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with clustered(broker) as context:
        for mode in (pb.Shared, pb.Exclusive):
            error = refusal(context, topic, ProducerOptions(access_mode=mode))
            assert isinstance(error.__cause__ or error, ProducerBusy | ProducerFenced)
        waiting = TopicProducer(context, topic, ProducerOptions(access_mode=pb.WaitForExclusive))
        threading.Timer(0.5, holder.close).start()
        waiting.open(timeout=60.0)
        waiting.send(single(b"mine now"))
        waiting.close()
    assert [row.content.payload for row in read_rows(broker, topic)] == [b"mine now"]


@pytest.mark.fault(88)
def test_a_fenced_producer_fails_for_good(broker: Broker, official_client: Connect) -> None:
    topic = broker.create_topic()
    client = official_client(broker.service_url)
    with clustered(broker) as context:
        ours = TopicProducer(context, topic, ProducerOptions(access_mode=pb.ExclusiveWithFencing))
        ours.open()
        ours.send(single(b"before"))
        ours.flush()
        theirs = client.create_producer(
            topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing
        )
        theirs.send(b"theirs")

        def fenced() -> bool:
            try:
                ours.send(single(b"too late"))
                ours.flush()
            except ProducerFenced:
                return True
            return False

        wait_until(fenced, "fenced")
        with pytest.raises(ProducerFenced):
            ours.send(single(b"never"))
        # And the other way round.
        again = TopicProducer(context, topic, ProducerOptions(access_mode=pb.ExclusiveWithFencing))
        again.open()
        again.send(single(b"ours again"))
        again.close()
        with pytest.raises(pulsar.PulsarException):
            theirs.send(b"not any more")
    assert [row.content.payload for row in read_rows(broker, topic)] == [
        b"before",
        b"theirs",
        b"ours again",
    ]


# --- quotas ---------------------------------------------------------------------------------


@pytest.mark.fault(88)
@pytest.mark.parametrize("policy", ["producer_exception", "producer_request_hold"])
def test_a_backlog_quota_is_named(tuned_broker: Broker, tuned_client: Any, policy: str) -> None:
    policies = TopicPolicies(backlog_size=BacklogQuota(5000, policy))
    topic = tuned_broker.create_limited_topic(policies)
    tuned_client.subscribe(topic, "never reads")
    with clustered(tuned_broker) as context:
        producer = TopicProducer(context, topic, ProducerOptions(send_timeout=20.0)).open()
        for _ in range(10):
            producer.send(single(random.randbytes(2000)))
        producer.flush()

        def trouble() -> str:
            late = TopicProducer(context, topic)
            try:
                late.open(timeout=1.0).close()
            except (QuotaExceeded, QuotaExceededHold, OperationTimeout) as error:
                return str(error)
            return ""

        wait_until(lambda: "backlog quota" in trouble(), "over the quota")
        # Once the backlog is gone, sending continues.
        tuned_broker.ask("POST", f"{rest_path(topic)}/subscription/never%20reads/skip_all")
        wait_until(lambda: not trouble(), "within the quota")
        producer.abort()


@pytest.mark.fault(65)
def test_partitions_that_are_added_are_seen(broker: Broker) -> None:
    topic = broker.create_topic(
        broker.unique_topic("grows", broker.create_namespace()), partitions=2
    )
    with clustered(broker) as context:
        lookup = Lookup(context.pool)
        assert lookup.partitions(topic) == 2
        broker.add_partitions(topic, 5)
        assert lookup.partitions(topic) == 5
        with PartitionedProducer(
            context, topic, ProducerOptions(batching_max_messages=1)
        ) as writer:
            assert writer.partitions == 5
            for _ in range(10):
                writer.send(MessageFields(b"x"))
    assert [len(read_rows(broker, name)) for name in broker.partitions_of(topic, 5)] == [2] * 5


# --- a topic's policy -------------------------------------------------------------------------


def limited_topic(broker: Broker, most: int, partitions: int = 0) -> str:
    """Return a topic whose policy allows messages of at most so many bytes."""
    real = as_real(broker)
    topic = real.create_topic(partitions=partitions)
    real.own.admin("POST", f"{rest_path(topic)}/maxMessageSize", most)
    options = ProducerOptions(batching_enabled=False)

    def is_refused(name: str) -> bool:
        with clustered(real) as context:
            producer = TopicProducer(context, name, options)
            producer.send(single(bytes(most)))
            try:
                producer.close()
            except NotAllowed:
                return True
        return False

    for name in real.partitions_of(topic, partitions):
        wait_until(lambda name=name: is_refused(name))  # type: ignore[misc]
    return topic


@pytest.mark.fault(137)
@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_sink_obeys_a_topics_policy(broker: Broker, guarantee: str, partitions: int) -> None:
    topic = limited_topic(broker, 2000, partitions)
    given = {"service.url": broker.service_url, "topic": topic, "deliveryGuarantee": guarantee}
    if guarantee == "exactly-once":
        given["sinkId"] = topic
    columns = {
        "value": pa.array([b"%05d" % number * 20 for number in range(5000)]),
        "__key": pa.array([f"k{number % 5}" for number in range(5000)]),
    }
    schema = StructType().add("value", "binary").add("__key", "string")
    writer = PulsarDataSource(given).writer(schema, False)
    writer.commit([writer.write(iter([pa.record_batch(columns)]))])
    found: dict[str, list[int]] = {}
    for name in broker.partitions_of(topic, partitions):
        for content in [row.content for row in read_rows(broker, name)]:
            if content.key:
                found.setdefault(content.key, []).append(int((content.payload or b"")[:5]))
    assert found == {f"k{key}": list(range(key, 5000, 5)) for key in range(5)}


@pytest.mark.fault(137)
def test_a_row_that_a_topics_policy_refuses_is_named(broker: Broker) -> None:
    topic = limited_topic(broker, 2000)
    values = [b"x" * (3000 if number == 1234 else 100) for number in range(5000)]
    given = {"service.url": broker.service_url, "topic": topic}
    writer = PulsarDataSource(given).writer(StructType().add("value", "binary"), False)
    told = r"row 1234: a message of 30\d\d bytes was refused: .*Exceed maximum message size"
    with pytest.raises(NotAllowed, match=told):
        writer.write(iter([pa.record_batch({"value": pa.array(values)})]))


@pytest.mark.fault(137)
@pytest.mark.parametrize("batching", [False, True])
def test_a_producer_goes_on_after_a_message_that_a_topics_policy_refuses(
    broker: Broker, client: PulsarClient, batching: bool
) -> None:
    topic = limited_topic(broker, 2000)
    producer = client.create_producer(topic, batching_enabled=batching)
    results: dict[int, str] = {}

    def note(number: int) -> Callable[[Result, MessageId], None]:
        return lambda result, _: results.update({number: result.name})

    for number in range(200):
        value = b"%03d" % number + b"x" * (3000 if number == 50 else 60)
        producer.send_async(value, note(number))
    with pytest.raises(NotAllowed, match="Exceed maximum message size"):
        producer.flush()
    assert list(results) == list(range(200))
    assert {number for number, name in results.items() if name != "Ok"} == {50}
    producer.send(b"999 later")
    stored = [row.content.payload or b"" for row in read_rows(broker, topic)]
    numbers = [int(payload[:3]) for payload in stored if payload.strip(b"\0")]
    assert numbers == [*range(50), *range(51, 200), 999]
