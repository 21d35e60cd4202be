"""The embedded broker's life, and what a test can do to its topics."""

from __future__ import annotations

import contextlib
import gc
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
    LocalProtocolError,
)
from pulsar_spark.testing import EmbeddedBroker
from tests.support.waiting import PATIENCE, finish, wait_until
from tests.testing.wire_client import WireClient

Start = Callable[..., EmbeddedBroker]
Dial = Callable[..., WireClient]


def open_files() -> set[str]:
    """This process's open files, sockets by their own numbers."""
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


def test_a_broker_has_the_port_of_no_earlier_one() -> None:
    ports = []
    for _ in range(300):
        with EmbeddedBroker() as broker:
            ports.append(broker.port)
    assert len(set(ports)) == len(ports)


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

    def runs() -> bool:
        try:
            return broker.topics() == []
        except ClosedError:
            return False

    wait_until(runs)
    assert not broker.wait(timeout=0.01)
    broker.stop()
    finish(serving)
    assert broker.wait()


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

    def refuses() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            # It was going down at that moment.
            return False
        return False

    restart.start()
    wait_until(refuses)
    finish(restart)
    WireClient(port).close()


def test_a_connection_that_is_being_accepted_does_not_outlive_a_restart() -> None:
    with EmbeddedBroker() as broker:
        for _ in range(30):
            with socket.create_connection(("127.0.0.1", broker.port), PATIENCE) as late:
                broker.restart()
                assert broker.connections == 0
                with contextlib.suppress(ConnectionResetError):
                    assert late.recv(1) == b""
    # Sockets left open would cause a warning, which is an error here.
    gc.collect()


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


def test_a_thousand_partitions_are_planned_within_seconds(
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
    # One second on an idle machine; tests share theirs.
    assert time.monotonic() - started < 15
