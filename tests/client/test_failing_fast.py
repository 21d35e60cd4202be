"""What is final fails at once, though the operation timeout leaves time for more attempts."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.client import AuthenticationOauth2, AuthenticationToken, MessageId, PulsarClient
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.retry import can_pass
from pulsar_spark.errors import (
    BrokerUnreachable,
    ConnectError,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
    TlsError,
)
from pulsar_spark.testing import EmbeddedBroker
from tests.support.certificates import Authority, days
from tests.support.java_server import free_ports

MOST_SECONDS = 60.0
"""More than any of these takes on a slow machine; the operation timeout is twice as long."""


@contextlib.contextmanager
def silent_host() -> Iterator[str]:
    """A host that lets nobody in: its queue of connections is full, and it takes none of them."""
    with contextlib.ExitStack() as held:
        server = held.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def mute_host() -> Iterator[str]:
    """A host that accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def error_of(url: str, **options: Any) -> PulsarError:
    """Return the error of each first call of a client, which comes soon; all of one class."""
    calls: list[Callable[[PulsarClient], object]] = [
        lambda client: client.create_producer("t"),
        lambda client: client.subscribe("t", "s"),
        lambda client: client.create_reader("t", MessageId.earliest),
        lambda client: client.create_table_view("t"),
    ]
    found: list[PulsarError] = []
    with PulsarClient(url, operation_timeout_seconds=2 * MOST_SECONDS, **options) as client:
        for call in calls:
            started = time.monotonic()
            with pytest.raises(PulsarError) as caught:
                call(client)
            assert time.monotonic() - started < MOST_SECONDS
            found.append(caught.value)
    assert len({type(error) for error in found}) == 1
    return found[0]


@pytest.mark.parametrize("host", [silent_host, mute_host])
def test_a_host_that_does_not_answer_has_the_time_to_connect_once(
    host: Callable[[], contextlib.AbstractContextManager[str]],
) -> None:
    with host() as address:
        error = error_of(f"pulsar://{address}", connection_timeout_ms=300)
    # It is both, for programs that expect either.
    assert isinstance(error, ConnectError)
    assert isinstance(error, OperationTimeout)
    assert "attempts" not in str(error)
    # Who has been connected goes on; the host may be back soon.
    assert can_pass(error, lives=True)


def test_each_silent_host_of_the_service_url_has_that_time() -> None:
    with silent_host() as one, silent_host() as other:
        error = error_of(f"pulsar://{one},{other}", connection_timeout_ms=300)
    assert one in str(error)
    assert other in str(error)


def test_a_host_that_answers_is_connected_to_though_another_is_silent() -> None:
    with EmbeddedBroker() as broker, silent_host() as silent:
        url = f"pulsar://{silent},127.0.0.1:{broker.port}"
        with PulsarClient(url, connection_timeout_ms=300) as client:
            client.create_producer("t").send(b"x")


def test_a_web_service_that_is_silent_has_the_time_to_connect_once() -> None:
    with silent_host() as address:
        error = error_of(f"http://{address}", connection_timeout_ms=300)
    assert isinstance(error, BrokerUnreachable)


def test_a_refused_connection_is_tried_again_until_the_operation_timeout() -> None:
    url = f"pulsar://127.0.0.1:{free_ports(1)[0]}"
    with (
        PulsarClient(url, operation_timeout_seconds=1) as client,
        pytest.raises(BrokerUnreachable, match=r"after [0-9]+ attempts"),
    ):
        client.create_producer("t")


def test_a_spark_task_tries_a_silent_host_again_until_the_operation_timeout() -> None:
    with silent_host() as address:
        options = ClientOptions(f"pulsar://{address}", operation_timeout=2, connection_timeout=0.3)
        with (
            ClientContext(options) as context,
            pytest.raises(OperationTimeout, match=r"after [0-9]+ attempts"),
        ):
            context.lookup.partitions("t")


def test_an_issuer_of_tokens_that_refuses_connections_is_asked_once() -> None:
    pytest.importorskip("authlib")
    given = {
        "issuer_url": f"http://127.0.0.1:{free_ports(1)[0]}",
        "private_key": json.dumps({"client_id": "c", "client_secret": "canary-secret"}),
    }
    with EmbeddedBroker() as broker:
        error = error_of(broker.service_url, authentication=AuthenticationOauth2(json.dumps(given)))
        assert broker.faults.seen("CONNECT") == 0
    assert "issuer" in str(error)
    assert "canary" not in str(error)
    assert can_pass(error, lives=True)


@pytest.mark.parametrize("listeners", [(), ("inner", "outer")])
def test_a_listener_that_the_brokers_do_not_have_is_asked_for_once(
    listeners: tuple[str, ...],
) -> None:
    with EmbeddedBroker(listeners=listeners) as broker:
        error = error_of(broker.service_url, listener_name="canary")
    assert "'canary'" in str(error)
    assert can_pass(error, lives=True)


def test_a_listener_that_the_brokers_have_is_asked_for() -> None:
    with (
        EmbeddedBroker(listeners=("inner", "outer")) as broker,
        PulsarClient(broker.service_url, listener_name="outer") as client,
    ):
        client.create_producer("t").send(b"x")
        assert {seen.body.advertised_listener_name for seen in broker.faults.log("LOOKUP")} == {
            "outer"
        }


def test_a_port_without_tls_is_named_as_such() -> None:
    with EmbeddedBroker() as broker:
        url = f"pulsar+ssl://127.0.0.1:{broker.port}"
        error = error_of(url, authentication=AuthenticationToken("canary"))
        assert isinstance(error, TlsError)
        assert f"127.0.0.1:{broker.port} does not speak TLS" in str(error)
        assert "pulsar://" in error.remedy
        # Whoever asks without TLS shows no credentials.
        assert broker.faults.seen("CONNECT")
        assert not any(seen.body.auth_data for seen in broker.faults.log("CONNECT"))


def test_a_port_for_tls_is_named_as_such(tmp_path: Path) -> None:
    with EmbeddedBroker(tls=Authority(tmp_path).server()) as broker:
        error = error_of(f"pulsar://127.0.0.1:{broker.port}")
    assert isinstance(error, RemoteProtocolError)
    assert "speaks TLS" in str(error)
    assert "pulsar+ssl://" in error.remedy


def test_a_certificate_that_is_not_valid_yet_is_named_as_such(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with EmbeddedBroker(tls=authority.server(not_before=days(1))) as broker:
        error = error_of(
            f"pulsar+ssl://127.0.0.1:{broker.port}", tls_trust_certs_file_path=authority.file
        )
    assert isinstance(error, TlsError)
    assert "is not valid yet" in str(error)
