"""Policies of brokers: which error names them, and what reads, streams and sinks need."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from pulsar_spark.client import ConsumerType, MessageId, PulsarClient, Result
from pulsar_spark.engine import attaching
from pulsar_spark.engine.consumers import consumer_session
from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.errors import (
    ConsumerBusy,
    IncompatibleSchema,
    NotAllowed,
    OperationTimeout,
    ProducerBusy,
    PulsarError,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_spark.spark.options.read import parse_read_options
from pulsar_spark.spark.options.stream import Caps
from pulsar_spark.spark.options.write import parse_write_options
from pulsar_spark.spark.reading.batch_reader import PulsarBatchReader, infer_schema
from pulsar_spark.spark.writing.writers import PulsarBatchWriter, PulsarStreamWriter, stream_writer
from pulsar_spark.testing import BacklogQuota, TopicPolicies
from tests.integration.brokers import Broker, as_real
from tests.integration.messages import clustered
from tests.integration.streams import Feed
from tests.spark.streams import Make
from tests.spark.topics import rows_of
from tests.support.real_broker import rest_path
from tests.support.waiting import finish, wait_until
from tests.testing.wire_client import WireClient

VALUE = StructType().add("value", BinaryType())
# A limit that others hold is waited for: not long, here.
SHORT = {"pulsar.client.operationTimeoutMs": "2000"}
BAD_ADVICE = (
    "give each its own name",
    "Remove pulsar.producer.producerName",
    "Restart the query",
    "metadata store",
)


def read(broker: Broker, topic: str, **options: str) -> list[bytes]:
    """Read a topic as a batch, task after task."""
    given = {"service.url": broker.service_url, "topic": topic, **options}
    parsed = parse_read_options(given)
    reader = PulsarBatchReader(parsed, infer_schema(parsed))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row["value"] for row in rows_of(batches)]


def write(broker: Broker, topic: str, values: list[bytes], **options: str) -> None:
    """Write values as a task of a batch does."""
    given = {"service.url": broker.service_url, "topic": topic, **options}
    task = PulsarBatchWriter(parse_write_options(given), VALUE, overwrite=False)
    task.check()
    task.write(iter([pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})]))


@contextmanager
def held(broker: Broker, topic: str) -> Iterator[PulsarClient]:
    """Another application: a consumer with a durable subscription, and a producer."""
    with PulsarClient(broker.service_url) as client:
        client.subscribe(topic, "app")
        client.create_producer(topic)
        yield client


class Roles:
    """What users do with a topic, each with a short operation timeout."""

    def __init__(self, broker: Broker, topic: str, make: Make) -> None:
        self._broker = broker
        self._topic = topic
        self._make = make

    def batch(self) -> None:
        read(self._broker, self._topic, **SHORT)

    def stream(self) -> None:
        self._make(self._topic, startingOffsets="earliest", **SHORT).batch()

    def sink(self) -> None:
        write(self._broker, self._topic, [b"a"], **SHORT)

    def subscribe(self) -> None:
        with self._client() as client:
            client.subscribe(self._topic, "new")

    def reader(self) -> None:
        with self._client() as client:
            client.create_reader(self._topic, MessageId.earliest)

    def producer(self) -> None:
        with self._client() as client:
            client.create_producer(self._topic)

    def _client(self) -> PulsarClient:
        return PulsarClient(self._broker.service_url, operation_timeout_seconds=2)


READING = ("batch", "stream", "subscribe", "reader")
# For each policy: who meets it, what is raised, and the name that an administrator knows.
POLICIES: dict[
    str, tuple[TopicPolicies, dict[tuple[str, ...], type[PulsarError]], tuple[str, ...]]
] = {
    "consumers": (
        TopicPolicies(max_consumers=1),
        {READING: ConsumerBusy},
        ("maxConsumersPerTopic", "set-max-consumers-per-topic", "docs/deploying.md"),
    ),
    "subscriptions": (
        TopicPolicies(max_subscriptions=1),
        {READING: NotAllowed},
        ("maxSubscriptionsPerTopic", "set-max-subscriptions-per-topic", "docs/deploying.md"),
    ),
    "producers": (
        TopicPolicies(max_producers=1),
        {("sink", "producer"): ProducerBusy},
        ("maxProducersPerTopic", "set-max-producers-per-topic", "docs/deploying.md"),
    ),
    "subscription creation": (
        TopicPolicies(auto_subscription_creation=False),
        {("stream", "subscribe"): SubscriptionNotFound},
        ("autoSubscriptionCreation", "topics create-subscription -s", "earliest persistent://"),
    ),
    "encryption": (
        TopicPolicies(encryption_required=True),
        {("sink", "producer"): OperationTimeout},
        ("encryptionRequired", "pulsar.producer.encryptionKeys"),
    ),
    "types": (
        TopicPolicies(subscription_types=("Shared",)),
        {READING: NotAllowed},
        ("subscriptionTypesEnabled", "need Exclusive"),
    ),
}


@pytest.mark.fault(140)
@pytest.mark.parametrize("policy", POLICIES)
def test_an_error_names_the_policy_and_what_helps(
    broker: Broker, make: Make, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "BUSY_SECONDS", 0.5)
    policies, expected, words = POLICIES[policy]
    topic = broker.create_limited_topic(policies)
    roles = Roles(broker, topic, make)
    with ExitStack() as stack:
        if policy in ("consumers", "subscriptions", "producers"):
            stack.enter_context(held(broker, topic))
        for names, kind in expected.items():
            for name in names:
                with pytest.raises(kind) as caught:
                    getattr(roles, name)()
                text = str(caught.value)
                assert all(word in text for word in (*words, topic)), (name, text)
                assert not any(advice in text for advice in BAD_ADVICE), (name, text)


@pytest.mark.fault(140)
def test_a_limit_on_the_consumers_of_a_subscription_is_named(broker: Broker) -> None:
    topic = broker.create_limited_topic(TopicPolicies(max_consumers_per_subscription=1))
    with PulsarClient(broker.service_url) as client:
        client.subscribe(topic, "s", ConsumerType.Shared)
        with pytest.raises(ConsumerBusy, match="maxConsumersPerSubscription"):
            client.subscribe(topic, "s", ConsumerType.Shared)


@pytest.mark.fault(140)
def test_where_nobody_may_create_subscriptions_reads_work_and_streams_use_given_ones(
    broker: Broker, feed: Feed, make: Make
) -> None:
    topic = broker.create_limited_topic(TopicPolicies(auto_subscription_creation=False))
    written = feed(topic, [2, 1])
    assert read(broker, topic) == written
    if broker.kind == "real":
        path = f"{rest_path(topic)}/subscription/given"
        as_real(broker).own.admin("PUT", path, {"ledgerId": -1, "entryId": -1})
        query = make(topic, startingOffsets="earliest", subscription="given")
        assert query.batch() == written
        written = feed(topic, [1])
        assert query.restarted().batch() == written


@pytest.mark.fault(140)
def test_a_topic_that_nobody_may_create_is_named_with_the_policy(broker: Broker) -> None:
    real = as_real(broker)
    namespace = real.create_namespace()
    real.own.admin(
        "POST", f"namespaces/{namespace}/autoTopicCreation", {"allowAutoTopicCreation": False}
    )
    topic = real.unique_topic(namespace=namespace)
    with pytest.raises(TopicNotFound, match="autoTopicCreation.*topics create " + topic):
        write(real, topic, [b"a"])
    with PulsarClient(real.service_url) as client:
        with pytest.raises(TopicNotFound, match="autoTopicCreation"):
            client.create_producer(topic)
        with pytest.raises(TopicNotFound, match="autoTopicCreation"):
            client.subscribe(topic, "s")
    with pytest.raises(TopicNotFound, match="Reading never creates"):
        read(real, topic)


@pytest.mark.fault(140)
def test_policies_on_schemas_topics_and_backlogs_are_named(broker: Broker) -> None:
    real = as_real(broker)
    namespace = real.create_namespace()
    topic = real.create_topic(real.unique_topic(namespace=namespace))
    definition = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    path = f"schemas/{topic.removeprefix('persistent://')}/schema"
    real.own.admin("POST", path, {"type": "AVRO", "schema": definition, "properties": {}})
    for policy, value in (("schemaValidationEnforced", True), ("maxTopicsPerNamespace", 1)):
        real.own.admin("POST", f"namespaces/{namespace}/{policy}", value)

    def refused(name: str) -> bool:
        with PulsarClient(real.service_url) as client:
            try:
                client.create_producer(name)
            except PulsarError as error:
                found.append(error)
                return True
        return False

    found: list[PulsarError] = []
    for name, kind, word in (
        (topic, IncompatibleSchema, "schemaValidationEnforced"),
        (real.unique_topic(namespace=namespace), NotAllowed, "maxTopicsPerNamespace"),
    ):
        wait_until(lambda name=name: refused(name), f"{word} is not obeyed")  # type: ignore[misc]
        assert isinstance(found[-1], kind)
        assert word in str(found[-1])


@pytest.mark.slow
@pytest.mark.fault(144)
def test_a_clients_producer_goes_on_when_the_backlog_is_gone(tuned_broker: Broker) -> None:
    namespace = tuned_broker.create_namespace()
    # What the deduplication's own cursor has not passed yet counts as a backlog, for minutes.
    assert tuned_broker.ask("POST", f"namespaces/{namespace}/deduplication", False)[0] == 204
    topic = tuned_broker.create_topic(tuned_broker.unique_topic("t", namespace))
    with PulsarClient(tuned_broker.service_url) as client:
        consumer = client.subscribe(topic, "app")
        producer = client.create_producer(topic, send_timeout_millis=10_000)
        quota = {"limitSize": 5000, "policy": "producer_exception"}
        path = f"namespaces/{namespace}/backlogQuota?backlogQuotaType=destination_storage"
        assert tuned_broker.ask("POST", path, quota)[0] == 204

        outcomes: list[Result] = []

        def is_refused() -> bool:
            producer.send_async(bytes(1000), lambda result, _: outcomes.append(result))
            return Result.ProducerBlockedQuotaExceededException in outcomes

        wait_until(is_refused, "the quota is not exceeded")
        received: list[bytes] = []

        def goes_on() -> bool:
            producer.send_async(b"after", lambda *_: None)
            with suppress(OperationTimeout):
                while b"after" not in received:
                    message = consumer.receive(200)
                    received.append(message.data())
                    consumer.acknowledge(message)
            return b"after" in received

        wait_until(goes_on, "the producer goes on")


@pytest.mark.parametrize("policy,code", [("producer_request_hold", 7), ("producer_exception", 8)])
def test_over_a_quota_producers_are_closed_and_new_ones_refused(
    tuned_broker: Broker, policy: str, code: int
) -> None:
    limits = TopicPolicies(backlog_size=BacklogQuota(1000, policy), deduplication=False)
    topic = tuned_broker.create_limited_topic(limits)
    with closing(WireClient(port_of(tuned_broker))) as wire:
        wire.produce(topic)
        wire.subscribe(topic, "s")
        # One message: the producer may be closed at any moment from then on.
        wire.publish(bytes(2000))
        assert wire.expect("CLOSE_PRODUCER").body.producer_id == 0
        refused = wire.request("PRODUCER", topic=topic, producer_id=1)
        assert (refused.name, refused.body.error) == ("ERROR", code)
        assert refused.body.message == (
            "org.apache.pulsar.broker.service.BrokerServiceException$"
            "TopicBacklogQuotaExceededException: "
            "Cannot create producer on topic with backlog quota exceeded"
        )


def test_eviction_cuts_a_backlog_to_nine_tenths_of_its_quota(tuned_broker: Broker) -> None:
    limits = TopicPolicies(
        backlog_size=BacklogQuota(1000, "consumer_backlog_eviction"), deduplication=False
    )
    topic = tuned_broker.create_limited_topic(limits)
    with closing(WireClient(port_of(tuned_broker))) as wire:
        wire.produce(topic)
        wire.subscribe(topic, "s")
        for _ in range(20):
            wire.publish(bytes(100))
        backlogs: list[int] = []

        def is_cut() -> bool:
            stats = tuned_broker.ask("GET", f"{rest_path(topic)}/stats")[1]
            backlogs.append(stats["subscriptions"]["s"]["msgBacklog"])
            return backlogs[-1] != 20

        wait_until(is_cut, "the backlog is not cut")
        # An entry has 125 bytes with its metadata, and some more with that of a real broker.
        assert backlogs[-1] in (7, 8)
        wire.publish(b"the producer goes on")


def port_of(broker: Broker) -> int:
    return int(broker.service_url.rpartition(":")[2])


# --- what is needed -----------------------------------------------------------------------------


def in_four_ledgers(broker: Broker, feed: Feed, policies: TopicPolicies) -> tuple[str, list[bytes]]:
    """Return a topic that obeys policies, and its messages in four ledgers."""
    topic = broker.create_limited_topic(policies)
    written: list[bytes] = []
    for _ in range(4):
        written += feed(topic, [1, 3, 0])
        broker.roll_ledger(topic)
    return topic, written


@pytest.mark.fault(141)
def test_questions_of_a_plan_take_turns_where_one_consumer_is_allowed(
    broker: Broker, feed: Feed
) -> None:
    limits = TopicPolicies(max_consumers=1, max_subscriptions=1)
    topic, _ = in_four_ledgers(broker, feed, limits)
    for more in ({"minPartitions": "8"}, {"startingTime": "0", "minPartitions": "8"}):
        given = {"service.url": broker.service_url, "topic": topic, **more}
        options = parse_read_options(given)
        assert len(PulsarBatchReader(options, infer_schema(options)).partitions()) >= 4


@pytest.mark.fault(141)
def test_a_batch_read_needs_one_consumer_and_subscription_more_than_its_tasks(
    broker: Broker, feed: Feed
) -> None:
    limits = TopicPolicies(max_consumers=2, max_subscriptions=2)
    topic, written = in_four_ledgers(broker, feed, limits)
    assert read(broker, topic) == written
    assert read(broker, topic, minPartitions="8") == written


@pytest.mark.fault(141)
def test_tasks_that_read_a_topic_at_once_need_a_consumer_each_and_one_for_questions(
    broker: Broker, feed: Feed
) -> None:
    limits = TopicPolicies(max_consumers=5, max_subscriptions=5)
    topic, written = in_four_ledgers(broker, feed, limits)
    options = parse_read_options(
        {"service.url": broker.service_url, "topic": topic, "minPartitions": "4"}
    )
    reader = PulsarBatchReader(options, infer_schema(options))
    with ThreadPoolExecutor(4) as tasks:
        found = tasks.map(lambda part: list(reader.read(part)), reader.partitions())
        batches = [batch for task in found for batch in task]
    assert [row["value"] for row in rows_of(batches)] == written


@pytest.mark.fault(141)
def test_a_task_that_finds_the_topic_full_goes_on_when_another_has_ended(
    broker: Broker, feed: Feed
) -> None:
    topic = broker.create_limited_topic(TopicPolicies(max_consumers=1))
    written = feed(topic, [2, 2])
    client = PulsarClient(broker.service_url)
    client.create_reader(topic, MessageId.earliest)
    found: list[list[bytes]] = []
    reading = threading.Thread(target=lambda: found.append(read(broker, topic)))
    reading.start()
    client.close()
    finish(reading)
    assert found == [written]


@pytest.mark.fault(141)
def test_a_stream_needs_two_consumers_and_subscriptions_more_than_its_tasks(
    broker: Broker, feed: Feed, make: Make
) -> None:
    limits = TopicPolicies(max_consumers=3, max_subscriptions=3)
    topic, written = in_four_ledgers(broker, feed, limits)
    query = make(topic, startingOffsets="earliest")
    assert query.batch() == written
    for _ in range(2):
        written = feed(topic, [2, 0, 1])
        broker.roll_ledger(topic)
        assert query.batch(Caps(max_messages=2)) + query.batch() == written
        query = query.restarted()


only_one = pytest.mark.parametrize(
    "policies,kind",
    [
        (TopicPolicies(max_consumers=1), ConsumerBusy),
        (TopicPolicies(max_subscriptions=1), NotAllowed),
    ],
)


@pytest.mark.fault(141)
@only_one
def test_a_stream_that_cannot_read_beside_its_subscription_fails_at_its_start(
    broker: Broker, feed: Feed, make: Make, policies: TopicPolicies, kind: type[PulsarError]
) -> None:
    topic = broker.create_limited_topic(policies)
    feed(topic, [1])
    query = make(topic, startingOffsets="earliest", **SHORT)
    with pytest.raises(kind, match="PerTopic is reached"):
        query.source.initial()


@pytest.mark.fault(141)
def test_sinks_need_one_producer_for_each_task_that_runs(broker: Broker) -> None:
    topic = broker.create_limited_topic(TopicPolicies(max_producers=1))
    for value in (b"a", b"b"):
        write(broker, topic, [value])
    assert read(broker, topic) == [b"a", b"b"]


# --- what a refusal does not mean ---------------------------------------------------------------


@pytest.mark.fault(142)
def test_a_policy_is_not_taken_for_an_existing_subscription(broker: Broker) -> None:
    topic = broker.create_limited_topic(TopicPolicies(max_subscriptions=2))
    with held(broker, topic) as client, clustered(broker) as context:
        probe = Probe(context.pool, 2.0)
        assert probe.subscriptions_exist([(topic, "app"), (topic, "other")]) == [True, False]
        assert probe.is_compacted(topic) is False
        client.subscribe(topic, "second")
        (answer,) = probe.subscriptions_exist([(topic, "other")])
        assert isinstance(answer, NotAllowed)
        with pytest.raises(NotAllowed, match="maxSubscriptionsPerTopic"):
            probe.is_compacted(topic)


# --- exactly once -------------------------------------------------------------------------------


def exactly_once(broker: Broker, topic: str, records: str, **options: str) -> PulsarStreamWriter:
    given = {
        "service.url": broker.service_url,
        "topic": topic,
        "deliveryGuarantee": "exactly-once",
        "sinkId": records,
        "sinkStateTopic": records,
    }
    return stream_writer(parse_write_options({**given, **options}), VALUE)


@pytest.mark.fault(143)
@only_one
def test_a_sink_that_could_not_read_its_records_is_refused_before_the_first_row(
    broker: Broker, policies: TopicPolicies, kind: type[PulsarError]
) -> None:
    records = broker.create_limited_topic(policies)
    for _ in range(2):
        # The second time, its subscription is there already. If the last attempt gets no answer in
        # time, its error names the one before.
        with pytest.raises((kind, OperationTimeout), match="PerTopic is reached"):
            exactly_once(broker, broker.create_topic(), records, **SHORT).check()


@pytest.mark.fault(143)
@pytest.mark.parametrize("full", [False, True])
def test_a_sink_works_with_two_consumers_on_its_records_and_none_on_its_topic(
    broker: Broker, full: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_session, "_TURN_SECONDS", 0.5)
    enough = TopicPolicies(max_consumers=2, max_subscriptions=2, max_producers=1)
    records = broker.create_limited_topic(enough)
    topic = broker.create_limited_topic(TopicPolicies(max_consumers=1, max_producers=1))
    with PulsarClient(broker.service_url) as client:
        application = client.subscribe(topic, "app")
        if not full:
            application.close()
        for number in range(2):
            writer: Any = exactly_once(broker, topic, records)
            writer.check()
            values = pa.array([b"%d" % number], pa.binary())
            message = writer.write(iter([pa.RecordBatch.from_pydict({"value": values})]))
            exactly_once(broker, topic, records).commit([message], number)
        if not full:
            application = client.subscribe(topic, "app")
        assert [application.receive(60_000).value() for _ in range(2)] == [b"0", b"1"]
    assert ("whether readers see it is unknown" in caplog.text) is full
