"""The embedded broker's life, and what a test can do to its topics."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from pulsar_spark.errors import (
    ClosedError,
    ConnectError,
    CorruptMessage,
    InvalidTopicName,
    LocalProtocolError,
    NotAllowed,
    TopicNotFound,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import encode_payload_command
from pulsar_spark.protocol.message_id import MessageId, Position
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient

Start = Callable[..., EmbeddedBroker]
Dial = Callable[..., WireClient]


def open_files() -> set[str]:
    """What this process has open, sockets by their own numbers."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return {target for target in found if target.startswith(("socket:", "anon_inode:"))}


def test_nothing_is_left_when_it_stops() -> None:
    files, threads = open_files(), set(threading.enumerate())
    with EmbeddedBroker(brokers=2) as broker:
        port = broker.port
        clients = [WireClient(port) for _ in range(3)]
        clients[0].produce("t")
        clients[1].subscribe("t")
        broker.faults.black_hole("LOOKUP")
        clients[2].ask("LOOKUP", topic="t")
    for client in clients:
        client.close()
    assert set(threading.enumerate()) == threads
    assert open_files() <= files
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_importing_it_starts_nothing() -> None:
    script = (
        "import threading, pulsar_spark.testing\n"
        "assert threading.active_count() == 1\n"
        "pulsar_spark.testing.EmbeddedBroker()\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_it_listens_on_loopback_only(broker: EmbeddedBroker) -> None:
    assert broker.service_url == f"pulsar://127.0.0.1:{broker.port}"
    with open("/proc/net/tcp") as table:
        ours = [line.split()[1] for line in table if f":{broker.port:04X} 00000000" in line]
    assert ours == [f"0100007F:{broker.port:04X}"]


def test_a_chosen_port_is_used_and_a_taken_one_refused(start_broker: Start) -> None:
    port = start_broker().port
    with pytest.raises(ConnectError, match=str(port)):
        start_broker(port=port)


def test_a_stopped_broker_says_so() -> None:
    broker = EmbeddedBroker()
    for use in (lambda: broker.service_url, lambda: broker.faults, broker.topics):
        with pytest.raises(ClosedError):
            use()
    with broker:
        assert broker.topics() == []
    broker.stop()
    with pytest.raises(ClosedError):
        broker.topics()
    with pytest.raises(LocalProtocolError):
        broker.start()
    assert broker.internal_errors == ()
    assert broker.notes == ()


def test_a_broker_that_was_started_can_be_a_context() -> None:
    broker = EmbeddedBroker().start()
    with broker as same:
        assert same is broker
    assert broker.wait(timeout=0)


def test_waiting_ends_when_the_broker_stops() -> None:
    broker = EmbeddedBroker()
    serving = threading.Thread(target=broker.run_forever)
    serving.start()
    while True:
        try:
            assert broker.topics() == []
            break
        except ClosedError:
            time.sleep(0.01)
    assert not broker.wait(timeout=0.01)
    broker.stop()
    serving.join(10)
    assert not serving.is_alive()
    assert broker.wait()


def test_topics_have_full_names(broker: EmbeddedBroker) -> None:
    assert broker.create_topic("t") == "persistent://public/default/t"
    assert broker.create_topic("a/b/p", partitions=2) == "persistent://a/b/p"
    assert broker.topics() == [
        "persistent://a/b/p-partition-0",
        "persistent://a/b/p-partition-1",
        "persistent://public/default/t",
    ]


def test_wrong_names_are_errors(broker: EmbeddedBroker) -> None:
    broker.create_topic("p", partitions=2)
    with pytest.raises(NotAllowed):
        broker.create_topic("p")
    with pytest.raises(InvalidTopicName):
        broker.create_topic("a/b")
    with pytest.raises(TopicNotFound):
        broker.unload("missing")
    with pytest.raises(TopicNotFound, match="one partition"):
        broker.stats("p")
    with pytest.raises(NotAllowed):
        broker.add_partitions("p", 1)


def test_partitions_are_added(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.create_topic("p", partitions=2)
    broker.add_partitions("p", 4)
    assert client.request("PARTITIONED_METADATA", topic="p").body.partitions == 4


def test_entries_can_be_stored_without_a_producer(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    broker.create_topic("t")
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=3
    )
    command = pb.BaseCommand(
        type=pb.BaseCommand.SEND, send=pb.CommandSend(producer_id=0, sequence_id=0)
    )
    head, body = encode_payload_command(command, metadata.SerializeToString(), b"body")
    entry = bytes(head)[8 + command.ByteSize() :] + bytes(body)
    first = broker.append("t", entry)
    assert (first.entry_id, broker.stats("t").messages_in) == (0, 3)
    damaged = entry[:-1] + b"?"
    with pytest.raises(CorruptMessage):
        broker.append("t", damaged)
    broker.append("t", damaged, messages=3)
    client.subscribe("t")
    assert client.payloads(2) == [b"body", b"bod?"]


def test_ledgers_roll_when_they_are_full_or_on_demand(start_broker: Start, dial: Dial) -> None:
    broker = start_broker(max_entries_per_ledger=2)
    client = dial(broker)
    client.produce("t")
    places = [client.publish().place for _ in range(3)]
    broker.roll_ledger("t")
    places.append(client.publish().place)
    assert [entry for _, entry in places] == [0, 1, 0, 0]
    assert len({ledger for ledger, _ in places}) == 3


def test_ledger_ids_can_be_chosen(broker: EmbeddedBroker, client: WireClient) -> None:
    broker.create_topic("t", ledger_id=500)
    client.produce("t")
    assert client.publish().place == (500, 0)
    broker.delete_topic("t")
    broker.create_topic("t", ledger_id=3)
    client.produce("t")
    assert client.publish().place == (3, 0)


@pytest.mark.parametrize("kind", [MessageId, Position])
def test_trimming_takes_ids_and_positions(
    broker: EmbeddedBroker, client: WireClient, kind: type[MessageId] | type[Position]
) -> None:
    client.produce("t")
    places = [client.publish().place for _ in range(3)]
    broker.trim("t", before=kind(*places[1]))
    assert broker.stats("t").entries == 2
    assert broker.stats("t").first == MessageId(*places[1])


@pytest.mark.fault(11)
def test_a_restart_keeps_data_and_durable_subscriptions(broker: EmbeddedBroker, dial: Dial) -> None:
    client = dial(broker)
    client.produce("t")
    for number in range(3):
        client.publish(f"{number}".encode())
    client.subscribe("t", "durable")
    client.read("t", consumer_id=1)
    client.ack(client.messages(3)[0])
    client.request("CONSUMER_STATS", consumer_id=0)
    port, ledger = broker.port, broker.stats("t").ledgers[-1]
    broker.restart(down_for=0.05)
    assert client.closed()
    assert broker.port == port
    client = dial(broker)
    assert list(broker.subscriptions("t")) == ["durable"]
    client.subscribe("t", "durable")
    assert client.payloads(2) == [b"1", b"2"]
    client.produce("t")
    assert client.publish().place > (ledger, 0)


def test_nobody_gets_in_during_a_restart(broker: EmbeddedBroker) -> None:
    port = broker.port
    restart = threading.Thread(target=lambda: broker.restart(down_for=0.3))
    restart.start()
    time.sleep(0.1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    restart.join(10)
    WireClient(port).close()


def test_calls_work_on_the_brokers_own_thread(broker: EmbeddedBroker, client: WireClient) -> None:
    problems: list[type[Exception]] = []

    def use(_: object) -> None:
        broker.create_topic("made")
        try:
            broker.restart()
        except LocalProtocolError as error:
            problems.append(type(error))

    broker.faults.call("LOOKUP", use)
    client.request("LOOKUP", topic="t")
    assert problems == [LocalProtocolError]
    assert broker.topics() == ["persistent://public/default/made"]


@pytest.mark.fault(15)
def test_topics_move_between_brokers(start_broker: Start) -> None:
    broker = start_broker(brokers=2)
    assert len(set(broker.service_urls)) == 2
    broker.create_topic("t")
    broker.move("t", 1, assign=False)
    first, second = (WireClient(int(url.rpartition(":")[2])) for url in broker.service_urls)
    redirect = first.request("LOOKUP", topic="t").body
    assert redirect.response == pb.CommandLookupTopicResponse.Redirect
    assert redirect.brokerServiceUrl == broker.service_urls[1]
    assert first.produce("t").body.error == pb.ServiceNotReady
    found = second.request("LOOKUP", topic="t").body
    assert found.response == pb.CommandLookupTopicResponse.Connect
    assert not found.proxy_through_service_url
    second.produce("t")
    broker.move("t", 0)
    closed = second.expect("CLOSE_PRODUCER").body
    assert closed.assignedBrokerServiceUrl == broker.service_urls[0]
    for client in (first, second):
        client.close()


@pytest.mark.slow
def test_a_thousand_partitions_are_planned_well_within_three_seconds(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    name = broker.create_topic("p", partitions=1000)
    started = time.monotonic()
    parts = [f"{name}-partition-{number}" for number in range(1000)]
    requests: list[Callable[[int], int]] = [
        lambda number: client.ask("LOOKUP", topic=parts[number]),
        lambda number: client.ask(
            "SUBSCRIBE",
            topic=parts[number],
            subscription="plan",
            subType=0,
            consumer_id=number,
            durable=False,
        ),
        lambda number: client.ask("GET_LAST_MESSAGE_ID", consumer_id=number),
        lambda number: client.ask("CLOSE_CONSUMER", consumer_id=number),
    ]
    for request in requests:
        for request_id in [request(number) for number in range(1000)]:
            client.answer(request_id)
    assert time.monotonic() - started < 3
