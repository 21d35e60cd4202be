"""The admin REST is off by default, bounded, and open to those whom the broker lets in."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pulsar_spark.client import AuthenticationToken, InitialPosition, PulsarClient
from pulsar_spark.errors import LocalProtocolError, RemoteProtocolError
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.rest import connection
from tests.support.certificates import Authority
from tests.support.waiting import wait_until

SECONDS = 30.0
Start = Callable[..., EmbeddedBroker]


@pytest.fixture
def broker(start_broker: Start) -> EmbeddedBroker:
    return start_broker(rest=True)


@pytest.fixture
def http(broker: EmbeddedBroker) -> Iterator[HTTPConnection]:
    with closing(connected(broker)) as made:
        yield made


def connected(broker: EmbeddedBroker) -> HTTPConnection:
    return HTTPConnection(urlsplit(broker.admin_url).netloc, timeout=SECONDS)


def asked(http: HTTPConnection, method: str, path: str, body: str | None = None) -> int:
    http.request(method, path, body)
    response = http.getresponse()
    response.read()
    return response.status


def opened(broker: EmbeddedBroker) -> socket.socket:
    parts = urlsplit(broker.admin_url)
    return socket.create_connection(("127.0.0.1", parts.port or 0), timeout=SECONDS)


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side closes the connection, or resets it."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


HEALTH = "/admin/v2/brokers/health"


def test_without_the_option_nothing_listens(start_broker: Start) -> None:
    broker = start_broker()
    with pytest.raises(LocalProtocolError, match="no admin REST"):
        _ = broker.admin_url
    assert len(broker._parts()[1].ports) == 1


def test_the_port_can_be_chosen(start_broker: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert start_broker(rest=port).admin_url == f"http://127.0.0.1:{port}"


def test_a_connection_serves_one_request_after_another(http: HTTPConnection) -> None:
    for _ in range(3):
        assert asked(http, "GET", HEALTH) == 200
    assert asked(http, "PUT", "/admin/v2/persistent/public/default/t/partitions", "2") == 204
    assert asked(http, "GET", "/admin/v2/persistent/public/default/t/partitions") == 200


@pytest.mark.parametrize(
    "path,status",
    [
        ("/admin/v2/namespaces/public/default/offloadThreshold", 501),
        ("/admin/v2/persistent/public/default/t/dispatchRate", 501),
        ("/metrics", 404),
        ("/", 404),
        ("/admin/v2/unknown-domain/public/default/t/stats", 501),
        ("/admin/v2/persistent/public/def%20ault/t/partitions", 412),
    ],
)
def test_what_the_broker_does_not_have_is_said(
    http: HTTPConnection, path: str, status: int
) -> None:
    assert asked(http, "GET", path) == status


@pytest.mark.parametrize(
    "method,path,body,status",
    [
        ("POST", "namespaces/public/default/messageTTL", "1e999", 400),
        ("POST", "namespaces/public/default/messageTTL?messageTTL=x", None, 404),
        ("POST", "namespaces/public/default/messageTTL", '"x"', 400),
        ("POST", "namespaces/public/default/deduplication", "1", 400),
        ("POST", "namespaces/public/default/backlogQuota", "[]", 400),
        ("POST", "namespaces/public/default/backlogQuota", '{"limitSize":{}}', 400),
        ("POST", "namespaces/public/default/retention", "{}", 400),
        ("POST", "namespaces/public/default/subscriptionTypesEnabled", "{}", 400),
        (
            "PUT",
            "namespaces/public/new",
            '{"message_ttl_in_seconds":"x","backlog_quota_map":1}',
            400,
        ),
        ("PUT", "namespaces/public/new", '{"schema_compatibility_strategy":{}}', 400),
        ("PUT", "namespaces/public/default/schemaCompatibilityStrategy", "{}", 204),
        ("PUT", "tenants/t", "[]", 400),
        ("PUT", "tenants/t", '{"allowedClusters":1}', 412),
        ("PUT", "tenants/t", '{"allowedClusters":["standalone"],"adminRoles":1}', 400),
        ("PUT", "persistent/public/default/t/subscription/s", "{}", 400),
        ("POST", "persistent/public/default/t/subscription/s/resetcursor", "7", 400),
        ("POST", "schemas/public/default/t/schema", "[]", 400),
        ("POST", "schemas/public/default/t/schema", '{"type":"JSON","schema":{}}', 400),
        ("POST", "schemas/public/default/t/schema", '{"type":"JSON","schema":"{"}', 422),
        ("POST", "schemas/public/default/t/schema", r'{"type":"STRING","schema":"\ud800"}', 422),
        ("POST", "schemas/public/default/t/schema", r'{"type":"\ud800"}', 500),
        ("POST", "schemas/public/default/t/schema", '{"type":"KEY_VALUE","schema":"1"}', 422),
        ("POST", "schemas/public/default/t/schema", '{"type":"STRING","properties":1}', 400),
        ("PUT", "persistent/public/default/t/partitions", "99999999", 406),
        ("PUT", "persistent/public/default/t/partitions", "1.5", 400),
    ],
)
def test_bodies_that_make_no_sense_are_refused(
    http: HTTPConnection, method: str, path: str, body: str | None, status: int
) -> None:
    assert asked(http, method, f"/admin/v2/{path}", body) == status


def test_a_request_that_is_too_large_is_refused_and_ends_the_connection(
    broker: EmbeddedBroker,
) -> None:
    with opened(broker) as sock:
        sock.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
        answer = b""
        while data := sock.recv(4096):
            answer += data
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_client_that_sends_nothing_more_is_disconnected(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_IDLE_SECONDS", 0.1)
    with opened(broker) as sock:
        sock.sendall(b"GET / HTTP")
        assert sock.recv(1) == b""


def test_connections_are_bounded(broker: EmbeddedBroker) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(closing(connected(broker)))
        assert asked(first, "GET", HEALTH) == 200
        for _ in range(connection.MAX_CONNECTIONS - 1):
            stack.enter_context(opened(broker))
        with opened(broker) as late:
            assert is_closed(late)
        assert asked(first, "GET", HEALTH) == 200


def test_a_client_that_takes_it_for_a_broker_is_told_at_once(broker: EmbeddedBroker) -> None:
    address = urlsplit(broker.admin_url).netloc
    with (
        PulsarClient(f"pulsar://{address}", operation_timeout_seconds=SECONDS) as client,
        pytest.raises(RemoteProtocolError, match="the peer speaks HTTP, not Pulsar"),
    ):
        client.get_topic_partitions("t")


def test_the_broker_ends_its_connections_when_it_stops(start_broker: Start) -> None:
    broker = start_broker(rest=True)
    server = broker._parts()[1]
    with opened(broker) as sock:
        wait_until(lambda: bool(server.rest_connections), "it is connected")
        began = time.monotonic()
        broker.stop()
        assert time.monotonic() - began < SECONDS
        assert is_closed(sock)


def test_after_a_restart_it_listens_at_the_same_port(broker: EmbeddedBroker) -> None:
    before = broker.admin_url
    broker.create_topic("kept")
    broker.restart()
    with closing(connected(broker)) as http:
        assert asked(http, "GET", "/admin/v2/persistent/public/default/kept/stats") == 200
    assert broker.admin_url == before


def test_it_lets_in_whom_the_broker_lets_in(start_broker: Start) -> None:
    def authenticate(method: str, data: bytes) -> bool:
        return (method, data) == ("token", b"secret")

    broker = start_broker(rest=True, authenticate=authenticate)
    with closing(connected(broker)) as http:
        assert asked(http, "GET", HEALTH) == 401
        for token, status in (("secret", 200), ("another", 401)):
            http.request("GET", HEALTH, headers={"Authorization": f"Bearer {token}"})
            response = http.getresponse()
            response.read()
            assert response.status == status
    with (
        PulsarClient(broker.admin_url, AuthenticationToken("secret")) as client,
        client.create_producer("t") as producer,
    ):
        producer.send(b"found by REST")


def test_with_tls_it_speaks_https(start_broker: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.host("broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    broker = start_broker(rest=True, tls=context)
    assert broker.admin_url.startswith("https://")
    trusting = ssl.create_default_context(cafile=authority.file)
    netloc = urlsplit(broker.admin_url).netloc
    with closing(HTTPSConnection(netloc, timeout=SECONDS, context=trusting)) as http:
        assert asked(http, "GET", HEALTH) == 200
    with PulsarClient(broker.admin_url, tls_trust_certs_file_path=authority.file) as client:
        client.create_producer("t").send(b"found by REST")


def test_with_several_brokers_the_owner_is_named(start_broker: Start) -> None:
    broker = start_broker(rest=True, brokers=3)
    broker.create_topic("t", partitions=6)
    with PulsarClient(broker.admin_url) as client:
        with client.create_producer("t") as producer:
            for number in range(12):
                producer.send(b"%d" % number)
        consumer = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
        assert len({consumer.receive(60_000).data() for _ in range(12)}) == 12


def test_a_topic_can_be_created_with_properties(
    broker: EmbeddedBroker, http: HTTPConnection
) -> None:
    path = "/admin/v2/persistent/public/default/described/partitions"
    described = {"Content-Type": "application/vnd.partitioned-topic-metadata+json"}
    http.request("PUT", path, '{"partitions":3,"properties":{"a":"b"}}', described)
    response = http.getresponse()
    response.read()
    assert response.status == 204
    assert len(broker.topics()) == 3


def test_transactions_are_found_by_http(broker: EmbeddedBroker) -> None:
    with PulsarClient(broker.admin_url) as client:
        consumer = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
        txn = client.new_transaction()
        with client.create_producer("t") as producer:
            producer.send(b"committed", txn=txn)
        txn.commit()
        assert consumer.receive(60_000).data() == b"committed"
