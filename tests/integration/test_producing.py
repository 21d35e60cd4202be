"""Writing continues whatever brokers do, and nothing is lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from pulsar_spark.client import MessageId, PulsarClient
from pulsar_spark.engine import attaching
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions, ProducerOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.errors import ProducerBusy, ProducerFenced, TopicTerminated
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.outgoing_messages import MessageFields
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.brokers import Broker, Embedded, Real
from tests.outgoing import outgoing
from tests.support.real_broker import OwnBroker
from tests.support.waiting import finish, wait_until


def read_back(url: str, topic: str) -> list[bytes]:
    # A broker that was just started may take half a minute to load a topic.
    with PulsarClient(url, operation_timeout_seconds=90) as client:
        reader = client.create_reader(topic, MessageId.earliest)
        found: list[bytes] = []
        while reader.has_message_available():
            found.append(reader.read_next(60_000).data())
        return found


def first_seen(values: list[bytes]) -> list[bytes]:
    return list(dict.fromkeys(values))


class Trouble:
    """Disturbs a broker again and again, until stopped."""

    def __init__(self, action: Callable[[], object], pause: float) -> None:
        self._action = action
        self._pause = pause
        self._stopped = threading.Event()
        self.times = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Trouble:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def has_come(self, times: int = 3) -> bool:
        """Whether it was done this many times, or has failed."""
        return self.times >= times or not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause):
            self._action()
            self.times += 1


def write_through(
    writer: PartitionedProducer,
    count: int,
    pause: float,
    enough: Callable[[], bool] = lambda: True,
) -> list[bytes]:
    """Write `count` numbered messages over some time, or more until there is `enough`.

    Returns when all are acknowledged.
    """
    values: list[bytes] = []
    while len(values) < count or not enough():
        start = len(values)
        values += [b"%06d" % number for number in range(start, start + 100)]
        writer.write(outgoing(values[start:]))
        if start % 500 == 0:
            writer.flush_batches()
        time.sleep(pause)
    writer.close()
    return values


@pytest.mark.fault(14)
def test_unloading_the_topic_again_and_again_loses_nothing(broker: Broker) -> None:
    topic = broker.create_topic()
    with (
        ClientContext(ClientOptions(broker.service_url)) as context,
        Trouble(lambda: broker.unload(topic), 0.4) as trouble,
    ):
        writer = PartitionedProducer(context, topic, ProducerOptions(batching_max_messages=70))
        values = write_through(writer, 10_000, 0.03, trouble.has_come)
        counts = writer.counts
    assert trouble.times >= 3
    assert counts.acknowledged == len(values)
    assert counts.reconnects >= 1
    found = read_back(broker.service_url, topic)
    assert first_seen(found) == values
    assert broker.kind == "real" or len(found) < 2 * len(values)


@pytest.mark.fault(11, 12)
@pytest.mark.parametrize("kill", [False, True])
def test_a_broker_that_is_started_again_loses_nothing(tuned_broker: Broker, kill: bool) -> None:
    topic = tuned_broker.create_topic()
    url = tuned_broker.service_url
    with ClientContext(ClientOptions(url)) as context:
        writer = PartitionedProducer(context, topic, ProducerOptions(send_timeout=90.0))
        values: list[bytes] = []
        restarted = threading.Event()

        def write() -> None:
            values.extend(write_through(writer, 5000, 0.02, restarted.is_set))

        thread = threading.Thread(target=write)
        thread.start()
        time.sleep(0.3)
        try:
            tuned_broker.restart(kill=kill)
        finally:
            restarted.set()
        finish(thread, seconds=150.0)
        assert writer.counts.acknowledged == len(values)
        assert writer.counts.reconnects >= 1
    found = read_back(url, topic)
    assert first_seen(found) == values
    # Messages that were stored but not acknowledged are written twice: at most those in flight.
    assert max(Counter(found).values()) <= 2


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real_broker)])
def deduplicating(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker that deduplicates by producer names and sequence ids."""
    if request.param == "embedded":
        with EmbeddedBroker(deduplication=True) as own:
            yield Embedded(own)
    else:
        start: Callable[[Mapping[str, str] | None], OwnBroker] = request.getfixturevalue(
            "start_real_broker"
        )
        yield Real(start({"brokerDeduplicationEnabled": "true"}))


@pytest.mark.slow
@pytest.mark.fault(13)
def test_with_deduplication_and_a_name_nothing_is_written_twice(deduplicating: Broker) -> None:
    topic = deduplicating.create_topic()
    with (
        ClientContext(ClientOptions(deduplicating.service_url)) as context,
        Trouble(lambda: deduplicating.unload(topic), 0.4) as trouble,
    ):
        options = ProducerOptions(producer_name="mine", batching_max_messages=70)
        writer = PartitionedProducer(context, topic, options)
        values = write_through(writer, 10_000, 0.03, trouble.has_come)
    assert trouble.times >= 3
    assert read_back(deduplicating.service_url, topic) == values


@pytest.mark.fault(13)
def test_what_a_name_sent_before_is_acknowledged_and_counted_as_duplicates(
    deduplicating: Broker,
) -> None:
    topic = deduplicating.create_topic()
    options = ProducerOptions(producer_name="mine", batching_max_messages=10)
    for attempt in range(2):
        with ClientContext(ClientOptions(deduplicating.service_url)) as context:
            writer = PartitionedProducer(context, topic, options)
            ids = list(range(50, 100))
            payloads = [b"%d" % number for number in ids]
            writer.write(outgoing(payloads, sequence_ids=ids))
            writer.close()
            assert writer.counts.duplicates == (50 if attempt else 0)
    assert read_back(deduplicating.service_url, topic) == [b"%d" % n for n in range(50, 100)]


@pytest.mark.fault(5, 7)
def test_a_broker_that_hangs_for_a_while_delays_only(tuned_broker: Broker) -> None:
    topic = tuned_broker.create_topic()
    with ClientContext(ClientOptions(tuned_broker.service_url)) as context:
        writer = PartitionedProducer(context, topic, ProducerOptions())
        writer.write(outgoing([b"before"]))
        writer.flush()
        tuned_broker.pause()
        threading.Timer(3.0, tuned_broker.resume).start()
        writer.write(outgoing([bytes(10_000)] * 500))
        writer.close()
        assert writer.counts.acknowledged == 501
    assert first_seen(read_back(tuned_broker.service_url, topic)) == [b"before", bytes(10_000)]


@pytest.mark.slow
@pytest.mark.fault(9)
def test_a_writer_that_pauses_stays_connected(tuned_broker: Broker) -> None:
    topic = tuned_broker.create_topic()
    with ClientContext(ClientOptions(tuned_broker.service_url)) as context:
        writer = PartitionedProducer(context, topic, ProducerOptions())
        writer.write(outgoing([b"before"]))
        writer.flush()
        # Longer than the broker waits for the answer to its PING.
        time.sleep(6.5)
        writer.write(outgoing([b"after"]))
        writer.close()
        assert writer.counts.reconnects == 0
    assert read_back(tuned_broker.service_url, topic) == [b"before", b"after"]


@pytest.mark.fault(56)
def test_a_topic_that_is_terminated_takes_nothing_more(broker: Broker) -> None:
    topic = broker.create_topic()
    with ClientContext(ClientOptions(broker.service_url)) as context:
        writer = PartitionedProducer(context, topic, ProducerOptions())
        writer.write(outgoing([b"1"]))
        writer.flush()
        broker.terminate(topic)
        began = time.monotonic()
        with pytest.raises(TopicTerminated):
            write_through(writer, 1000, 0.01)
        assert time.monotonic() - began < 25


@pytest.mark.fault(88)
def test_exclusive_access_is_kept_lost_and_waited_for(broker: Broker) -> None:
    topic = broker.create_topic()
    with ExitStack() as stack:

        def opened(mode: int) -> PartitionedProducer:
            # Each has its own connection: the broker closes the one on which a producer sends that
            # has lost its access.
            context = stack.enter_context(ClientContext(ClientOptions(broker.service_url)))
            return PartitionedProducer(context, topic, ProducerOptions(access_mode=mode)).open()

        first = opened(pb.Exclusive)
        with pytest.raises(ProducerFenced):
            opened(pb.Exclusive)
        fencing = opened(pb.ExclusiveWithFencing)
        fencing.write(outgoing([b"1"]))
        fencing.flush()
        with pytest.raises(ProducerFenced):
            write_through(first, 1000, 0.01)
        waiting: list[PartitionedProducer] = []
        thread = threading.Thread(target=lambda: waiting.append(opened(pb.WaitForExclusive)))
        thread.start()
        time.sleep(0.3)
        assert not waiting
        fencing.close()
        finish(thread)
        waiting[0].write(outgoing([b"2"]))
        waiting[0].close()
    assert read_back(broker.service_url, topic) == [b"1", b"2"]


@pytest.mark.fault(88)
def test_a_name_that_is_in_use_is_an_error_after_a_while(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(attaching, "BUSY_SECONDS", 1.0)
    topic = broker.create_topic()
    url = broker.service_url
    with ClientContext(ClientOptions(url)) as one, ClientContext(ClientOptions(url)) as other:
        options = ProducerOptions(producer_name="mine")
        first = PartitionedProducer(one, topic, options).open()
        with pytest.raises(ProducerBusy, match="its own"):
            PartitionedProducer(other, topic, options).open()
        first.close()
        PartitionedProducer(other, topic, options).open().close()


@pytest.mark.fault(95)
def test_an_official_consumer_sees_every_field(broker: Broker, official_client: Any) -> None:
    topic = broker.create_topic()
    pulsar = pytest.importorskip("pulsar")
    payloads = [b"1", None, b"", bytes(1000)]
    columns = outgoing(
        payloads,
        keys=["k", None, "", b"\x00\xff"],
        ordering_keys=[None, b"o", None, None],
        event_times=[5, None, 0, 7],
        properties=[{"a": "1"}, None, [("b", "2"), ("b", "3")], {}],
    )
    with (
        ClientContext(ClientOptions(broker.service_url)) as context,
        PartitionedProducer(context, topic, ProducerOptions(compression=pb.LZ4)) as writer,
    ):
        writer.write(columns)
    reader = official_client(broker.service_url).create_reader(topic, pulsar.MessageId.earliest)
    found = [reader.read_next(60_000) for _ in payloads]
    assert [message.data() for message in found] == [b"1", b"", b"", bytes(1000)]
    assert [message.has_null_value() for message in found] == [False, True, False, False]
    assert [message.partition_key() for message in found] == ["k", "", "", "AP8="]
    assert [message.ordering_key() for message in found] == ["", "o", "", ""]
    assert [message.event_timestamp() for message in found] == [5, 0, 0, 7]
    assert [message.properties() for message in found] == [{"a": "1"}, {}, {"b": "2"}, {}]
    reader.close()


def test_keys_go_to_the_partitions_that_the_routing_names(broker: Broker) -> None:
    topic = broker.create_topic(partitions=4)
    keys = [f"key-{number}" for number in range(200)]
    with (
        ClientContext(ClientOptions(broker.service_url)) as context,
        PartitionedProducer(context, topic, ProducerOptions()) as writer,
    ):
        writer.write(outgoing([key.encode() for key in keys], keys=keys))
        expected = [writer.route(MessageFields(b"", key)) for key in keys]
    for partition, name in enumerate(broker.partitions_of(topic, 4)):
        own = [key.encode() for key, at in zip(keys, expected, strict=True) if at == partition]
        assert read_back(broker.service_url, name) == own
    wait_until(lambda: not broker.producers(name), "producers are gone")
