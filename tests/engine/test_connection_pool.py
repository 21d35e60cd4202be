from __future__ import annotations

import os
import socket
import threading

import pytest

from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.operations import run
from pulsar_spark.engine.options import AuthOptions, ClientOptions
from pulsar_spark.errors import (
    ClosedError,
    ConnectError,
    NotAllowed,
    OptionError,
    UnsupportedFeature,
)
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.scripted_broker import ScriptedBroker, T
from tests.support.java_server import free_ports
from tests.support.waiting import wait_until


def free_address() -> str:
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"


def test_a_broker_has_one_connection_however_many_ask_at_once() -> None:
    with ScriptedBroker() as broker, ConnectionPool(broker.options()) as pool:
        found: list[ClientConnection] = []
        threads = [
            threading.Thread(target=lambda: found.append(pool.get(broker.broker)))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(map(id, found))) == 1
        assert len(broker.sessions) == 1
        assert pool.service() is found[0]


def test_a_broker_behind_a_proxy_has_a_connection_of_its_own() -> None:
    with ScriptedBroker() as broker, ConnectionPool(broker.options()) as pool:
        direct = pool.get(broker.broker)
        proxied = pool.get(BrokerAddress("broker-1:6650", broker.address))
        assert direct is not proxied
        assert pool.get(BrokerAddress("broker-1:6650", broker.address)) is proxied
        urls = [connect.proxy_to_broker_url for connect in broker.commands(T.CONNECT)]
        assert urls == ["", "broker-1:6650"]


def test_a_connection_that_broke_is_made_anew() -> None:
    with ScriptedBroker() as broker, ConnectionPool(broker.options()) as pool:
        first = pool.get(broker.broker)
        broker.sessions[0].drop()
        wait_until(lambda: first.closed, "the connection's end")
        second = pool.get(broker.broker)
        assert second is not first
        assert pool.connections == [second]


def test_a_failure_is_not_kept() -> None:
    address = free_address()
    with ConnectionPool(ClientOptions(f"pulsar://{address}")) as pool:
        with pytest.raises(ConnectError):
            pool.get(BrokerAddress(address, address))
        with ScriptedBroker(port=int(address.split(":")[1])):
            assert not pool.get(BrokerAddress(address, address)).closed


@pytest.mark.fault(3)
def test_all_hosts_of_the_service_url_are_tried() -> None:
    with ScriptedBroker() as broker:
        dead = [free_address(), free_address()]
        url = f"pulsar://{dead[0]},{broker.address},{dead[1]}"
        for _ in range(5):
            with ConnectionPool(ClientOptions(url)) as pool:
                assert pool.service().address.physical == broker.address
                assert pool.service().address.physical == broker.address


@pytest.mark.fault(3)
def test_a_host_that_takes_no_more_connections_is_left_for_the_next() -> None:
    with EmbeddedBroker() as full, EmbeddedBroker() as other:
        full.faults.error("CONNECT", "NotAllowedError", "too many connections", times=None)
        hosts = [broker.service_url.removeprefix("pulsar://") for broker in (full, other)]
        with ConnectionPool(ClientOptions(f"pulsar://{','.join(hosts)}")) as pool:
            pool._hosts = list(hosts)
            assert pool.service().address.physical == hosts[1]
            assert pool._hosts == hosts[::-1]


@pytest.mark.fault(3)
def test_if_all_hosts_refuse_connections_it_is_their_refusal() -> None:
    with EmbeddedBroker() as one, EmbeddedBroker() as other:
        for broker in (one, other):
            broker.faults.error("CONNECT", "NotAllowedError", "too many connections", times=None)
        hosts = [broker.service_url.removeprefix("pulsar://") for broker in (one, other)]
        with (
            ConnectionPool(ClientOptions(f"pulsar://{','.join(hosts)}")) as pool,
            pytest.raises(NotAllowed, match="too many connections"),
        ):
            pool.service()


@pytest.mark.fault(3)
def test_a_silent_host_does_not_take_the_time_of_the_next() -> None:
    """The operation ends before connecting would."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ScriptedBroker() as broker:
        hosts = [f"127.0.0.1:{silent.getsockname()[1]}", broker.address]
        options = ClientOptions(
            f"pulsar://{','.join(hosts)}", operation_timeout=3.0, connection_timeout=60.0
        )
        with ConnectionPool(options) as pool:
            pool._hosts = list(hosts)
            found = run(pool.service_operation, options.operation_timeout)
            assert found.address.physical == broker.address


@pytest.mark.fault(3, 5)
def test_a_host_whose_connection_was_lost_is_tried_last() -> None:
    with ScriptedBroker() as one, ScriptedBroker() as other:
        url = f"pulsar://{one.address},{other.address}"
        with ConnectionPool(ClientOptions(url)) as pool:
            for _ in range(3):
                first = pool.service()
                broker = one if first.address.physical == one.address else other
                broker.sessions[-1].drop()
                wait_until(lambda at=first: at.closed, "the connection's end")  # type: ignore[misc]
                # A connection to a broker behind it says nothing about that host.
                pool.get(BrokerAddress("broker-1:6650", one.address))
                assert pool.service().address != first.address


@pytest.mark.fault(3)
def test_if_no_host_answers_all_are_named() -> None:
    dead = [free_address(), free_address()]
    with ConnectionPool(ClientOptions(f"pulsar://{dead[0]},{dead[1]}")) as pool:
        with pytest.raises(ConnectError) as caught:
            pool.service()
        assert dead[0] in str(caught.value)
        assert dead[1] in str(caught.value)


@pytest.mark.fault(10)
def test_clients_spread_over_the_hosts() -> None:
    hosts = ",".join(f"h{number}:6650" for number in range(20))
    first = {ConnectionPool(ClientOptions(f"pulsar://{hosts}"))._hosts[0] for _ in range(50)}
    assert len(first) > 5


def test_close_ends_all_connections_and_refuses_new_ones() -> None:
    with ScriptedBroker() as broker:
        pool = ConnectionPool(broker.options())
        connection = pool.get(broker.broker)
        pool.close()
        pool.close()
        assert connection.closed
        with pytest.raises(ClosedError):
            pool.get(broker.broker)


def test_what_is_not_built_is_refused_before_anything_connects() -> None:
    with pytest.raises(UnsupportedFeature, match="athenz"):
        ConnectionPool(ClientOptions("pulsar://h", auth=AuthOptions("athenz")))
    with pytest.raises(OptionError):
        ConnectionPool(ClientOptions("pulsar://h", auth=AuthOptions("token")))


@pytest.mark.fault(75)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_the_error_in_a_forked_child_says_to_create_its_own() -> None:
    with ScriptedBroker() as broker, ConnectionPool(broker.options()) as pool:
        connection = pool.get(broker.broker)
        child = os.fork()
        if child == 0:
            try:
                pool.get(broker.broker)
            except ClosedError as error:
                pool.close()
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not connection.closed
