"""Rules apply where and as often as they say, and the log shows all commands."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

import pytest

from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import encode_command
from pulsar_spark.testing import EmbeddedBroker, actions
from pulsar_spark.testing.faults import LOG_LENGTH
from pulsar_spark.testing.rules import COMMANDS
from tests import brief
from tests.support.waiting import finish
from tests.testing.wire_client import WireClient, turn

Dial = Callable[..., WireClient]


@pytest.mark.parametrize("action", ["drop", actions.Drop()])
def test_actions_are_objects_or_names(
    broker: EmbeddedBroker, client: WireClient, action: actions.Action | str
) -> None:
    broker.faults.on("LOOKUP", action, times=1)
    client.ask("LOOKUP", topic="t")
    client.nothing_came()


@pytest.mark.parametrize("command,action", [("NONSENSE", "drop"), ("LOOKUP", "nonsense")])
def test_unknown_commands_and_actions_are_refused(
    broker: EmbeddedBroker, command: str, action: str
) -> None:
    with pytest.raises(OptionError):
        broker.faults.on(command, action)


def test_every_command_of_the_interface_can_be_named(broker: EmbeddedBroker) -> None:
    for command in COMMANDS:
        broker.faults.drop(command).remove()


def test_faults_strike_new_connections(broker: EmbeddedBroker, dial: Dial) -> None:
    broker.faults.close("CONNECTION", reset=True)
    # The reset can come before the client's own connect() has returned.
    with contextlib.suppress(ConnectionResetError):
        assert dial(broker, handshake=False).closed()
    broker.faults.close("CONNECTION")
    assert dial(broker, handshake=False).closed()
    broker.faults.black_hole("CONNECTION")
    silent = dial(broker, handshake=False)
    silent.send("CONNECT", client_version="x", protocol_version=21)
    turn(broker)
    silent.nothing_unread()
    assert dial(broker).request("LOOKUP", topic="t")


def test_a_ping_can_go_without_answer(broker: EmbeddedBroker, client: WireClient) -> None:
    client.send("PING")
    client.expect("PONG")
    for lost in ("PING", "PONG"):
        broker.faults.drop(lost)
        client.send("PING")
        # Only the PINGs of this method are answered.
        client.nothing_came()


def test_closing_by_the_broker_can_be_lost(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    broker.faults.drop("CLOSE_PRODUCER", direction="out")
    broker.unload("t")
    client.nothing_came()


@pytest.mark.fault(1)
def test_connections_are_refused_until_accepted_again(
    broker: EmbeddedBroker, client: WireClient, dial: Dial
) -> None:
    broker.faults.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", broker.port), timeout=5)
    assert client.request("LOOKUP", topic="t")
    broker.faults.accept()
    assert dial(broker).request("LOOKUP", topic="t")


@pytest.mark.parametrize("reset", [False, True])
def test_all_connections_can_be_closed(broker: EmbeddedBroker, dial: Dial, reset: bool) -> None:
    clients = [dial(broker) for _ in range(3)]
    assert broker.faults.disconnect(reset=reset) == 3
    assert all(client.closed() for client in clients)


@pytest.mark.fault(7)
def test_stalled_reads_fill_the_clients_socket(broker: EmbeddedBroker, dial: Dial) -> None:
    client = dial(broker)
    client.produce("t")
    broker.faults.stall_reads()
    late = dial(broker, handshake=False)
    late.send("CONNECT", client_version="x", protocol_version=21)
    turn(broker)
    late.nothing_unread()
    writer = threading.Thread(
        target=lambda: [client.send_entry(bytes(1_000_000)) for _ in range(20)]
    )
    writer.start()
    writer.join(0.3)
    assert writer.is_alive()
    broker.faults.resume_reads()
    finish(writer)
    late.expect("CONNECTED")
    for _ in range(20):
        client.expect("SEND_RECEIPT")


@pytest.mark.fault(15)
def test_clients_are_sent_away_with_an_address(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    client.subscribe("t")
    assert broker.faults.close_producers("t", "pulsar://other:1") == 1
    assert client.expect("CLOSE_PRODUCER").body.assignedBrokerServiceUrl == "pulsar://other:1"
    assert broker.faults.close_consumers("t") == 1
    closed = client.expect("CLOSE_CONSUMER").body
    assert not closed.HasField("assignedBrokerServiceUrl")
    assert closed.request_id == commands.NO_REQUEST_ID


@pytest.mark.fault(14)
def test_unloading_rolls_the_ledger(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    first = client.publish().place
    broker.faults.unload("t")
    client.expect("CLOSE_PRODUCER")
    client.produce("t")
    second = client.publish().place
    assert second[0] > first[0]
    assert second[1] == 0


@pytest.mark.fault(42)
def test_anything_can_be_sent_unasked(broker: EmbeddedBroker, dial: Dial) -> None:
    first, second = dial(broker), dial(broker)
    assert broker.faults.inject(brief.connected("again")) == 2
    first.expect("CONNECTED")
    second.expect("CONNECTED")
    receipt = brief.send_receipt(7, 7, pb.MessageIdData(ledgerId=1, entryId=1))
    assert broker.faults.inject(encode_command(receipt), connection=2) == 1
    assert second.expect("SEND_RECEIPT").body.producer_id == 7
    first.nothing_came()


def test_the_record_counts_by_topic_and_direction(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    broker.create_topic("p", partitions=2)
    client.produce("p-partition-0", 0)
    client.produce("p-partition-1", 1)
    for producer_id in (0, 0, 1):
        client.publish(producer_id=producer_id)
    faults = broker.faults
    assert faults.seen("SEND") == faults.seen("SEND_RECEIPT") == 3
    assert faults.seen("SEND", "p-partition-0") == 2
    assert faults.seen("SEND", "p") == 3
    assert faults.seen("SEND", "other") == 0
    client.request("CLOSE_PRODUCER", producer_id=0)
    broker.unload("p")
    client.expect("CLOSE_PRODUCER")
    assert faults.seen("CLOSE_PRODUCER", direction="in") == 1
    assert faults.seen("CLOSE_PRODUCER", direction="out") == 1
    faults.forget()
    assert faults.seen("SEND") == 0


def test_the_log_keeps_bodies_and_times(broker: EmbeddedBroker, client: WireClient) -> None:
    started = time.monotonic()
    client.subscribe("t", permits=11)
    client.flow(7)
    client.request("CONSUMER_STATS", consumer_id=0)
    log = broker.faults.log("FLOW", "t")
    assert [seen.body.messagePermits for seen in log] == [11, 7]
    assert [seen.connection for seen in log] == [1, 1]
    assert started < log[0].at <= log[1].at < time.monotonic()
    assert broker.faults.log("FLOW", "other") == []


def test_the_log_is_bounded(broker: EmbeddedBroker, client: WireClient) -> None:
    client.subscribe("t", permits=0)
    for _ in range(LOG_LENGTH + 10):
        client.flow(1)
    client.request("CONSUMER_STATS", consumer_id=0)
    assert len(broker.faults.log("FLOW")) == LOG_LENGTH
    assert broker.faults.seen("FLOW") == LOG_LENGTH + 10


@pytest.mark.fault(20)
def test_clients_are_told_of_another_cluster(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t", 3)
    client.subscribe("t", consumer_id=4)
    assert broker.faults.migrate("t", "pulsar://blue:1", "pulsar+ssl://blue:2") == 2
    kind = pb.CommandTopicMigrated
    told = [client.expect("TOPIC_MIGRATED").body for _ in range(2)]
    assert [(each.resource_type, each.resource_id) for each in told] == [
        (kind.Producer, 3),
        (kind.Consumer, 4),
    ]
    assert {each.brokerServiceUrl for each in told} == {"pulsar://blue:1"}
    assert {each.brokerServiceUrlTls for each in told} == {"pulsar+ssl://blue:2"}
    broker.faults.migrate("t", None)
    assert not client.expect("TOPIC_MIGRATED").body.HasField("brokerServiceUrl")


@pytest.mark.parametrize(
    "command,fields",
    [
        ("PRODUCER", {"producer_id": 1}),
        ("SUBSCRIBE", {"consumer_id": 1, "subscription": "s", "subType": 0}),
    ],
)
def test_what_opens_a_producer_or_consumer_is_about_the_topic_that_it_names(
    broker: EmbeddedBroker, client: WireClient, command: str, fields: dict[str, object]
) -> None:
    broker.faults.drop(command, topic="t")
    client.ask(command, topic="t", **fields)
    client.nothing_came()
    assert broker.faults.seen(command, "persistent://public/default/t") == 1
