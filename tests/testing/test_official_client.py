"""The official Python client (based on the C++ client) works with the embedded broker."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.testing import EmbeddedBroker
from tests.support.certificates import Authority
from tests.support.waiting import wait_until

pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")

EARLIEST = pulsar.InitialPosition.Earliest
RECEIVE_MS = 60_000

Connect = Callable[..., Any]


@pytest.fixture
def client(broker: EmbeddedBroker, official_client: Connect) -> Any:
    return official_client(broker.service_url)


def receive(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(RECEIVE_MS) for _ in range(count)]


def read(reader: Any, count: int) -> list[bytes]:
    return [reader.read_next(RECEIVE_MS).data() for _ in range(count)]


def nothing_more(consumer: Any, millis: int = 200) -> bool:
    try:
        consumer.receive(millis)
    except pulsar.Timeout:
        return True
    return False


@pytest.mark.parametrize("batching", [False, True])
def test_messages_arrive_whole_and_in_order(client: Any, batching: bool) -> None:
    consumer = client.subscribe("t", "sub", initial_position=EARLIEST)
    producer = client.create_producer(
        "t", batching_enabled=batching, batching_max_publish_delay_ms=5
    )
    for number in range(50):
        producer.send_async(
            f"m{number}".encode(),
            None,
            partition_key=f"k{number % 3}",
            ordering_key="o",
            properties={"number": str(number), "ä": "ü"},
            event_timestamp=1_000_000 + number,
        )
    producer.flush()
    received = receive(consumer, 50)
    assert [message.data() for message in received] == [f"m{n}".encode() for n in range(50)]
    assert [message.partition_key() for message in received] == [f"k{n % 3}" for n in range(50)]
    assert received[7].properties() == {"number": "7", "ä": "ü"}
    assert received[7].event_timestamp() == 1_000_007
    assert received[7].ordering_key() == "o"
    assert received[7].topic_name() == "persistent://public/default/t"
    assert abs(received[7].publish_timestamp() - time.time() * 1000) < 60_000
    ids = [(m.message_id().ledger_id(), m.message_id().entry_id()) for m in received]
    assert ids == sorted(ids)
    assert (received[0].message_id().batch_index() >= 0) is batching


def test_auto_creation_can_make_partitioned_topics(
    start_broker: Callable[..., EmbeddedBroker], official_client: Connect
) -> None:
    broker = start_broker(auto_create=2)
    client = official_client(broker.service_url)
    client.create_producer("fresh").send(b"m")
    assert len(client.get_topic_partitions("fresh")) == 2


def test_a_topic_is_not_created_where_that_is_off(
    start_broker: Callable[..., EmbeddedBroker], official_client: Connect
) -> None:
    broker = start_broker(auto_create=False)
    client = official_client(broker.service_url, operation_timeout_seconds=3)
    with pytest.raises((pulsar.TopicNotFound, pulsar.Timeout)):
        client.create_producer("fresh")
    assert broker.topics() == []


@pytest.mark.parametrize("batching", [False, True])
def test_seek_by_id_and_by_time(client: Any, batching: bool) -> None:
    producer = client.create_producer("t", batching_enabled=batching)
    ids = [producer.send(f"m{number}".encode()) for number in range(5)]
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    for number in range(5, 10):
        producer.send(f"m{number}".encode())
    consumer = client.subscribe("t", "sub", initial_position=EARLIEST)
    assert len(receive(consumer, 10)) == 10
    consumer.seek(between)
    assert [m.data() for m in receive(consumer, 5)] == [f"m{n}".encode() for n in range(5, 10)]
    consumer.seek(ids[1])
    assert consumer.receive(RECEIVE_MS).data() == b"m2"
    consumer.seek(pulsar.MessageId.earliest)
    assert consumer.receive(RECEIVE_MS).data() == b"m0"


def test_readers_start_where_they_are_told(client: Any) -> None:
    single = client.create_producer("t", batching_enabled=False)
    batched = client.create_producer("t", batching_max_publish_delay_ms=50, batching_enabled=True)
    first = single.send(b"m0")
    ids: list[Any] = []
    for number in range(1, 6):
        batched.send_async(f"m{number}".encode(), lambda _, message_id: ids.append(message_id))
    batched.flush()
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    assert read(reader, 6) == [f"m{n}".encode() for n in range(6)]
    assert not reader.has_message_available()
    reader = client.create_reader("t", first)
    assert read(reader, 5) == [f"m{n}".encode() for n in range(1, 6)]
    reader = client.create_reader("t", ids[2], start_message_id_inclusive=True)
    assert read(reader, 3) == [b"m3", b"m4", b"m5"]
    reader = client.create_reader("t", ids[2])
    assert read(reader, 2) == [b"m4", b"m5"]
    reader = client.create_reader("t", pulsar.MessageId.latest)
    assert not reader.has_message_available()
    single.send(b"new")
    assert read(reader, 1) == [b"new"]


def test_a_reader_seeks_and_its_new_position_stays(client: Any) -> None:
    producer = client.create_producer("t", batching_enabled=False)
    ids = [producer.send(f"m{number}".encode()) for number in range(4)]
    reader = client.create_reader("t", pulsar.MessageId.latest)
    reader.seek(ids[1])
    assert read(reader, 2) == [b"m2", b"m3"]


def test_last_message_id(broker: EmbeddedBroker, client: Any) -> None:
    broker.create_topic("t")
    consumer = client.subscribe("t", "sub", initial_position=EARLIEST)
    assert consumer.get_last_message_id().entry_id() in (-1, 2**64 - 1)
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=50)
    for number in range(3):
        producer.send_async(f"m{number}".encode(), None)
    producer.flush()
    last = consumer.get_last_message_id()
    assert (last.entry_id(), last.batch_index()) == (0, 2)
    single = client.create_producer("t", batching_enabled=False)
    single.send(b"m3")
    last = consumer.get_last_message_id()
    assert (last.entry_id(), last.batch_index()) == (1, -1)


def received_by(consumers: list[Any], count: int) -> list[tuple[int, Any]]:
    """Receive and acknowledge `count` messages; return each with its consumer's number."""
    found: list[tuple[int, Any]] = []

    def all_came() -> bool:
        for index, consumer in enumerate(consumers):
            with contextlib.suppress(pulsar.Timeout):
                message = consumer.receive(50)
                found.append((index, message))
                consumer.acknowledge(message)
        return len(found) >= count

    wait_until(all_came)
    return found


def test_shared_consumers_divide_the_messages(broker: EmbeddedBroker, client: Any) -> None:
    consumers = [
        client.subscribe("t", "sub", pulsar.ConsumerType.Shared, receiver_queue_size=10)
        for _ in range(2)
    ]
    producer = client.create_producer("t", batching_enabled=False)
    for number in range(100):
        producer.send_async(f"m{number}".encode(), None)
    producer.flush()
    seen: list[list[bytes]] = [[], []]
    for index, message in received_by(consumers, 100):
        seen[index].append(message.data())
    assert sorted(seen[0] + seen[1]) == sorted(f"m{n}".encode() for n in range(100))
    assert seen[0]
    assert seen[1]
    wait_until(lambda: broker.subscriptions("t")["sub"].backlog == 0)


def test_negative_acknowledgement_brings_a_message_again(client: Any) -> None:
    consumer = client.subscribe(
        "t", "sub", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    producer = client.create_producer("t", batching_enabled=False)
    producer.send(b"a")
    producer.send(b"b")
    first, second = receive(consumer, 2)
    consumer.acknowledge(second)
    consumer.negative_acknowledge(first)
    again = consumer.receive(RECEIVE_MS)
    assert (again.data(), again.redelivery_count()) == (b"a", 1)
    consumer.acknowledge(again)
    assert nothing_more(consumer)


def test_unacknowledged_messages_come_again(client: Any) -> None:
    consumer = client.subscribe("t", "sub")
    producer = client.create_producer("t", batching_enabled=False)
    for body in (b"a", b"b", b"c"):
        producer.send(body)
    consumer.acknowledge(receive(consumer, 3)[0])
    consumer.redeliver_unacknowledged_messages()
    assert [m.data() for m in receive(consumer, 2)] == [b"b", b"c"]


def test_a_durable_subscription_remembers(broker: EmbeddedBroker, client: Any) -> None:
    consumer = client.subscribe("t", "sub")
    producer = client.create_producer("t", batching_enabled=False)
    for number in range(4):
        producer.send(f"m{number}".encode())
    consumer.acknowledge_cumulative(receive(consumer, 4)[1])
    consumer.close()
    wait_until(lambda: broker.subscriptions("t")["sub"].backlog == 2)
    consumer = client.subscribe("t", "sub")
    assert [m.data() for m in receive(consumer, 2)] == [b"m2", b"m3"]
    consumer.unsubscribe()
    assert broker.subscriptions("t") == {}


def test_key_shared_keeps_a_key_with_one_consumer(client: Any) -> None:
    consumers = [client.subscribe("t", "sub", pulsar.ConsumerType.KeyShared) for _ in range(2)]
    producer = client.create_producer("t", batching_enabled=False)
    for number in range(60):
        producer.send(f"{number}".encode(), partition_key=f"k{number % 10}")
    owners: dict[str, set[int]] = {}
    order: dict[str, list[int]] = {}
    for index, message in received_by(consumers, 60):
        owners.setdefault(message.partition_key(), set()).add(index)
        order.setdefault(message.partition_key(), []).append(int(message.data()))
    assert all(len(those) == 1 for those in owners.values())
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_failover_hands_over_what_is_not_acknowledged(client: Any) -> None:
    first = client.subscribe("t", "sub", pulsar.ConsumerType.Failover, consumer_name="a")
    second = client.subscribe("t", "sub", pulsar.ConsumerType.Failover, consumer_name="b")
    producer = client.create_producer("t", batching_enabled=False)
    for body in (b"a", b"b"):
        producer.send(body)
    messages = receive(first, 2)
    assert nothing_more(second)
    first.acknowledge(messages[0])
    first.close()
    assert second.receive(RECEIVE_MS).data() == b"b"


# Created by a call because type checkers do not know the client's classes.
Reading: Any = type(
    "Reading",
    (pulsar.schema.Record,),
    {"sensor": pulsar.schema.String(), "value": pulsar.schema.Integer()},
)


@pytest.mark.parametrize("kind", ["AvroSchema", "JsonSchema"])
def test_record_schemas_are_registered_and_served(
    broker: EmbeddedBroker, client: Any, kind: str
) -> None:
    if kind == "AvroSchema":
        pytest.importorskip("fastavro", reason="the official client writes Avro by fastavro")
    schema = getattr(pulsar.schema, kind)(Reading)
    producer = client.create_producer("t", schema=schema, batching_enabled=False)
    consumer = client.subscribe("t", "sub", schema=schema, initial_position=EARLIEST)
    producer.send(Reading(sensor="s1", value=7))
    message = consumer.receive(RECEIVE_MS)
    assert (message.value().sensor, message.value().value) == ("s1", 7)
    assert message.schema_version() == "00000000" or message.schema_version()
    assert broker.stats("t").schema_versions == 1


def test_another_type_of_schema_is_refused(client: Any) -> None:
    client.create_producer("t", schema=pulsar.schema.StringSchema())
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("t", schema=pulsar.schema.JsonSchema(Reading))


def test_unload_in_mid_stream_loses_nothing(broker: EmbeddedBroker, client: Any) -> None:
    consumer = client.subscribe("t", "sub", initial_position=EARLIEST)
    producer = client.create_producer(
        "t", batching_enabled=True, batching_max_messages=10, block_if_queue_full=True
    )
    received: list[bytes] = []
    for number in range(2000):
        producer.send_async(str(number).encode(), None)
        if number % 500 == 250:
            broker.unload("t")
    producer.flush()
    seen: set[int] = set()
    while len(seen) < 2000:
        message = consumer.receive(RECEIVE_MS)
        consumer.acknowledge(message)
        seen.add(int(message.data()))
        received.append(message.data())
    assert seen == set(range(2000))
    assert len(broker.stats("t").ledgers) > 1


def test_clients_survive_a_restart(broker: EmbeddedBroker, client: Any) -> None:
    consumer = client.subscribe("t", "sub", initial_position=EARLIEST)
    producer = client.create_producer("t", batching_enabled=False)
    producer.send(b"before")
    broker.restart(down_for=0.2)
    producer.send(b"after")
    assert {consumer.receive(RECEIVE_MS).data(), consumer.receive(RECEIVE_MS).data()} >= {b"after"}


def test_a_name_that_is_taken_is_refused(client: Any, broker: EmbeddedBroker) -> None:
    client.create_producer("t", producer_name="mine")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer("t", producer_name="mine")
    client.subscribe("t", "sub")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe("t", "sub")


def test_topics_of_a_pattern(client: Any, broker: EmbeddedBroker) -> None:
    import re

    for name in ("a.one", "a.two", "b.one"):
        client.create_producer(name).send(name.encode())
    consumer = client.subscribe(
        re.compile("persistent://public/default/a\\..*"), "sub", initial_position=EARLIEST
    )
    assert {m.data() for m in receive(consumer, 2)} == {b"a.one", b"a.two"}


def test_non_persistent_topics_keep_nothing(client: Any) -> None:
    producer = client.create_producer("non-persistent://public/default/t", batching_enabled=False)
    producer.send(b"lost")
    consumer = client.subscribe("non-persistent://public/default/t", "sub")
    time.sleep(0.1)
    producer.send(b"kept")
    assert consumer.receive(RECEIVE_MS).data() == b"kept"
    assert nothing_more(consumer)


def test_the_owners_among_several_brokers_are_found(
    start_broker: Callable[..., EmbeddedBroker], official_client: Connect
) -> None:
    broker = start_broker(brokers=2)
    client = official_client(broker.service_url)
    name = broker.create_topic("p", partitions=8)
    producer = client.create_producer("p", batching_enabled=False)
    consumer = client.subscribe("p", "sub", initial_position=EARLIEST)
    for number in range(40):
        producer.send(str(number).encode(), partition_key=str(number))
    messages = receive(consumer, 40)
    assert {m.data() for m in messages} == {str(n).encode() for n in range(40)}
    for message in messages:
        consumer.acknowledge(message)
    wait_until(
        lambda: all(
            broker.subscriptions(f"{name}-partition-{i}")["sub"].backlog == 0 for i in range(8)
        )
    )
    answers = [seen.body for seen in broker.faults.log("LOOKUP_RESPONSE", name)]
    assert {each.brokerServiceUrl for each in answers} == set(broker.service_urls)
    broker.move(f"{name}-partition-0", 1)
    broker.move(f"{name}-partition-1", 0)
    for number in range(40):
        producer.send(str(number).encode(), partition_key=str(number))
    assert len({m.data() for m in receive(consumer, 40)}) == 40


def test_tls_and_tokens_are_those_of_the_official_client(
    tmp_path: Path, official_client: Connect
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.client()
    with EmbeddedBroker(
        tls=authority.server(client_authority=authority),
        authenticate=lambda method, data: (method, data) in (("token", b"good"), ("tls", b"")),
    ) as broker:
        for login in (
            {
                "authentication": pulsar.AuthenticationToken("good"),
                "tls_certificate_file_path": certificate,
                "tls_private_key_file_path": key,
            },
            {"authentication": pulsar.AuthenticationTLS(certificate, key)},
        ):
            client = official_client(
                broker.service_url,
                tls_trust_certs_file_path=authority.file,
                tls_validate_hostname=True,
                **login,
            )
            client.create_producer("t").send(b"1")
            reader = client.create_reader("t", pulsar.MessageId.earliest)
            assert read(reader, 1) == [b"1"]
        assert broker.internal_errors == ()
