"""Lookups by REST: requests, answers, where credentials go, and what is not trusted."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.client import InitialPosition, MessageId, PulsarClient
from pulsar_spark.engine.authentication.providers import provider_for
from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.http_client import THREADS, HttpClient
from pulsar_spark.engine.context import ClientContext, shared_connections
from pulsar_spark.engine.options import AuthOptions, ClientOptions, TlsOptions
from pulsar_spark.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerInvalidTopicName,
    ClosedError,
    ConnectError,
    ConnectionLost,
    NotAllowed,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
    ServiceNotReady,
    TlsError,
    TopicNotFound,
    UnsupportedFeature,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import split_key_value
from pulsar_spark.schema.registry import SchemaVersions, latest_schemas
from pulsar_spark.testing import EmbeddedBroker
from tests.support.asking import broker_of
from tests.support.certificates import Authority
from tests.support.issuer import Answer, say
from tests.support.java_server import free_ports
from tests.support.waiting import finish, wait_until
from tests.support.web_service import WebService, refuse

TOPIC = "persistent://public/default/t"
SECRET = "canary-90d1"
TOKEN = AuthOptions("token", token=SECRET)


@pytest.fixture
def web() -> Iterator[WebService]:
    with WebService("pulsar://broker:6650") as service:
        yield service


def context_for(url: str, **more: Any) -> ClientContext:
    values: dict[str, Any] = {"operation_timeout": 20.0, "connection_timeout": 5.0, **more}
    return ClientContext(ClientOptions(url, **values))


def refused(
    url: str, kind: type[PulsarError] | tuple[type[PulsarError], ...], **more: Any
) -> PulsarError:
    """Return the error of a lookup."""
    with context_for(url, **more) as context, pytest.raises(kind) as caught:
        broker_of(context.lookup, TOPIC)
    assert caught.value.topic == TOPIC
    assert SECRET not in f"{caught.value!s}{caught.value!r}"
    return caught.value


def given(service: WebService) -> list[str | None]:
    """Return the credentials of each request."""
    return [asked.headers.get("Authorization") for asked in service.asked]


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield the address of a server that accepts connections and is no web service."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                serve(peer)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        finish(thread)


# --- what is asked and understood -------------------------------------------------------------


def test_a_lookup_gives_the_broker_that_is_named(web: WebService) -> None:
    with context_for(web.url, listener_name="a b") as context:
        broker = broker_of(context.lookup, "public/default/a b%é+c")
    assert broker == BrokerAddress("broker:6650", "broker:6650")
    (asked,) = web.asked
    assert asked.path == "/lookup/v2/topic/persistent/public/default/a%20b%25%C3%A9%2Bc"
    assert asked.query == {"listenerName": ["a b"]}
    assert asked.headers["Host"] == web.host
    assert "Authorization" not in asked.headers


def test_names_with_a_cluster_have_the_paths_of_old_brokers(web: WebService) -> None:
    topic = "persistent://tenant/cluster/ns/a/b"
    with context_for(web.url) as context:
        broker_of(context.lookup, topic)
        context.lookup.partitions(topic)
        context.lookup.topics_of_namespace("tenant/cluster/ns")
    assert [asked.path for asked in web.asked] == [
        "/lookup/v2/destination/persistent/tenant/cluster/ns/a%2Fb",
        "/admin/persistent/tenant/cluster/ns/a%2Fb/partitions",
        "/admin/namespaces/tenant/cluster/ns/destinations",
    ]


def test_partitions_and_topics_are_asked_for(web: WebService) -> None:
    web.partitions = 3
    web.topics = [f"{TOPIC}-partition-1", f"{TOPIC}-partition-0", "nonsense://", TOPIC + "2"]
    with context_for(web.url) as context:
        assert context.lookup.partitions(TOPIC) == 3
        assert context.partitions_for_writing(TOPIC) == 3
        assert context.lookup.topics_of_namespace("public/default") == [TOPIC, TOPIC + "2"]
        web.answers = [refuse(404, "Topic not found"), refuse(404, "Namespace not found")]
        with pytest.raises(TopicNotFound, match="Topic not found") as caught:
            context.lookup.partitions(TOPIC)
        assert caught.value.topic == TOPIC
        assert context.lookup.topics_of_namespace("no/where") == []
    paths = [asked.path for asked in web.asked]
    assert paths[0] == paths[1] == "/admin/v2/persistent/public/default/t/partitions"
    assert [asked.query["checkAllowAutoCreation"] for asked in web.asked[:2]] == [
        ["false"],
        ["true"],
    ]
    assert paths[2] == "/admin/v2/namespaces/public/default/topics"
    assert web.asked[2].query == {"mode": ["PERSISTENT"]}


def test_schemas_are_returned_by_version_in_the_registrys_form(web: WebService) -> None:
    version = (7).to_bytes(8, "big")
    with context_for(web.url) as context:
        lookup = context.lookup
        assert latest_schemas(lookup, [TOPIC]) == {TOPIC: None}
        web.schema = {
            "version": 7,
            "type": "KEY_VALUE",
            "data": '{"key":"","value":{"type":"record","name":"R","fields":[]}}',
            "properties": {"key.schema.type": "STRING", "value.schema.type": "AVRO"},
        }
        found = SchemaVersions(lookup, f"{TOPIC}-partition-1")(version)
        key, value, separated = split_key_value(found)
        assert (key.type, key.schema_data) == (pb.Schema.String, b"")
        assert value.type == pb.Schema.Avro
        assert value.schema_data == b'{"type":"record","name":"R","fields":[]}'
        assert not separated
        assert web.asked[-1].path == "/admin/v2/schemas/public/default/t/schema/7"
        latest_schemas(lookup, ["public/default/a%b"])
        # The web service decodes this name twice.
        assert web.asked[-1].path == "/admin/v2/schemas/public/default/a%2525b/schema"


def test_messages_are_written_and_read_by_the_binary_protocol() -> None:
    with EmbeddedBroker() as broker, WebService(broker.service_url, partitions=0) as web:
        broker.create_topic("t")
        with PulsarClient(web.url) as client:
            client.create_producer("t").send(b"one")
            reader = client.create_reader("t", MessageId.earliest)
            assert reader.read_next(20_000).data() == b"one"
            assert client.get_topic_partitions("t") == [TOPIC]
    assert web.asked


def test_patterns_work_with_rest_alone() -> None:
    with EmbeddedBroker() as broker, WebService(broker.service_url, partitions=0) as web:
        broker.create_topic("t")
        web.topics = [TOPIC]
        with PulsarClient(web.url) as client:
            consumer = client.subscribe(
                re.compile("persistent://public/default/t.*"),
                "s",
                initial_position=InitialPosition.Earliest,
            )
            client.create_producer("t").send(b"one")
            assert consumer.receive(20_000).data() == b"one"
            consumer.close()


def test_topics_that_move_are_looked_up_again() -> None:
    with EmbeddedBroker() as broker, WebService(broker.service_url) as web:
        broker.create_topic("t")
        with PulsarClient(web.url) as client:
            producer = client.create_producer("t")
            reader = client.create_reader("t", MessageId.earliest)
            for number in range(3):
                producer.send(b"%d" % number)
                assert reader.read_next(20_000).data() == b"%d" % number
                broker.unload("t")


def test_connections_are_kept_and_few(web: WebService) -> None:
    with context_for(web.url) as context:
        found = context.lookup.ask_many(
            [f"t{number}" for number in range(100)], context.lookup.broker_operation
        )
        assert all(isinstance(broker, BrokerAddress) for broker in found.values())
    assert web.connections <= THREADS
    assert len(web.asked) == 100


@pytest.mark.fault(1)
def test_a_connection_that_the_server_ended_meanwhile_is_made_anew(web: WebService) -> None:
    def once(handler: http.server.BaseHTTPRequestHandler) -> None:
        # Announced as kept alive, and then closed.
        say(200, web.lookup)(handler)
        handler.close_connection = True

    web.answers, web.again = [once], True
    with context_for(web.url) as context:
        for _ in range(20):
            broker_of(context.lookup, TOPIC)
    assert len(web.asked) == 20


@pytest.mark.fault(3)
def test_all_hosts_are_tried_and_the_one_that_answers_is_kept(web: WebService) -> None:
    (port,) = free_ports(1)
    dead = f"127.0.0.1:{port}"
    with context_for(f"http://{dead},{web.host}") as context:
        for _ in range(5):
            assert broker_of(context.lookup, TOPIC).logical == "broker:6650"
    error = refused(f"http://{dead}", ConnectError, operation_timeout=0.5)
    assert dead in str(error)


# --- redirects and credentials ----------------------------------------------------------------


@pytest.mark.fault(16)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(web: WebService, status: int) -> None:
    with WebService("pulsar://owner:6650") as owner, context_for(web.url) as context:
        web.answers = [web.redirect(owner.url, status)]
        assert broker_of(context.lookup, TOPIC).logical == "owner:6650"
        assert [asked.path for asked in owner.asked] == [web.asked[0].path]
        # A path without a host stays on the same host.
        web.answers = [say(status, b"", Location="/lookup/v2/topic/other?authoritative=true")]
        assert broker_of(context.lookup, TOPIC).logical == "broker:6650"
        assert web.asked[-1].query == {"authoritative": ["true"]}


@pytest.mark.fault(16)
def test_endless_redirects_are_an_error_after_the_limit(web: WebService) -> None:
    web.answers, web.again = [web.redirect(web.url)], True
    error = refused(web.url, RemoteProtocolError, max_lookup_redirects=7)
    assert "too many redirects (7)" in str(error)
    assert len(web.asked) == 8


@pytest.mark.fault(3, 16)
def test_after_a_host_that_redirects_without_end_another_one_is_asked(web: WebService) -> None:
    with WebService("pulsar://owner:6650") as other:
        web.answers, web.again = [web.redirect(web.url)], True
        with context_for(f"http://{web.host},{other.host}") as context:
            answers = set()
            for _ in range(3):
                with contextlib.suppress(RemoteProtocolError):
                    answers.add(broker_of(context.lookup, TOPIC).logical)
        assert answers == {"owner:6650"}
        assert len(web.asked) in (0, 21)


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    "location",
    [
        "",
        "pulsar://b:6650/",
        "ftp://b/",
        "//",
        "http://",
        f"http://me:{SECRET}@127.0.0.1/",
        "http://[::1/",
        "http://127.0.0.1:99999/",
        "https://127.0.0.1:1/",
        "x" * 100_000,
    ],
)
def test_redirects_that_lead_nowhere_are_errors(web: WebService, location: str) -> None:
    web.answers, web.again = [say(307, b"", **({"Location": location} if location else {}))], True
    kinds = (RemoteProtocolError, NotAllowed)
    with context_for(web.url) as context, pytest.raises(kinds) as caught:
        broker_of(context.lookup, TOPIC)
    assert SECRET not in str(caught.value)


@pytest.mark.fault(97)
def test_an_address_that_repeats_credentials_is_refused(web: WebService) -> None:
    web.lookup["brokerUrl"] = f"pulsar://{SECRET}.example:6650"
    error = refused(web.url, RemoteProtocolError, auth=TOKEN)
    assert "contains credentials" in str(error)
    web.answers, web.again = [web.redirect(f"http://{SECRET}.example:80")], True
    error = refused(web.url, RemoteProtocolError, auth=TOKEN)
    assert "contains credentials" in str(error)


@pytest.mark.fault(96)
def test_credentials_go_to_the_hosts_of_the_service_url_alone(web: WebService) -> None:
    with WebService("pulsar://owner:6650") as owner:
        web.answers = [web.redirect(owner.url)]
        with context_for(web.url, auth=TOKEN) as context:
            assert broker_of(context.lookup, TOPIC).logical == "owner:6650"
        assert given(web) == [f"Bearer {SECRET}"]
        assert given(owner) == [None]

        # It asks for credentials.
        web.answers, owner.answers = [web.redirect(owner.url)], [refuse(401, "who are you?")]
        error = refused(web.url, AuthenticationError, auth=TOKEN)
        assert owner.host in str(error)
        assert "Name all brokers in service.url" in str(error)
        assert len(owner.asked) == 2

        web.answers, web.again = [web.redirect(owner.url)], True
        with context_for(f"http://{owner.host},{web.host}", auth=TOKEN) as context:
            for _ in range(4):
                assert broker_of(context.lookup, TOPIC).logical == "owner:6650"
        assert set(given(owner)[2:]) == {f"Bearer {SECRET}"}


def test_a_redirect_may_write_a_host_of_the_service_url_in_other_case(web: WebService) -> None:
    port = web.host.rpartition(":")[2]
    web.answers = [web.redirect(f"http://LocalHost:{port}")]
    with context_for(f"http://localHOST:{port}", auth=TOKEN) as context:
        assert broker_of(context.lookup, TOPIC).logical == "broker:6650"
    assert given(web) == [f"Bearer {SECRET}"] * 2


@pytest.mark.fault(53, 96)
def test_nothing_goes_from_tls_to_plain(tmp_path: Path, web: WebService) -> None:
    authority = Authority(tmp_path)
    tls = TlsOptions(trust_certs_file=authority.file)
    with WebService("pulsar://b:1", tls=authority.server()) as secure:
        # A broker without a TLS address.
        error = refused(secure.url, RemoteProtocolError, tls=tls)
        assert "never downgraded from TLS to plain" in str(error)
        secure.lookup["brokerUrlTls"] = "pulsar://b:1"
        assert "another scheme" in str(refused(secure.url, RemoteProtocolError, tls=tls))
        secure.lookup["brokerUrlTls"] = "pulsar+ssl://b:2"
        with context_for(secure.url, tls=tls) as context:
            assert broker_of(context.lookup, TOPIC).logical == "b:2"
        secure.answers = [secure.redirect(web.url)]
        error = refused(secure.url, RemoteProtocolError, tls=tls, auth=TOKEN)
        assert "never downgraded from TLS to plain" in str(error)
    assert not web.asked


@pytest.mark.parametrize(
    "auth,expected",
    [
        (TOKEN, f"Bearer {SECRET}"),
        (
            AuthOptions("basic", username="me", password=SECRET),
            "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode(),
        ),
        (AuthOptions(), None),
    ],
)
def test_credentials_are_given_in_the_headers_of_java(
    web: WebService, auth: AuthOptions, expected: str | None
) -> None:
    with context_for(web.url, auth=auth) as context:
        broker_of(context.lookup, TOPIC)
    assert given(web) == [expected]
    method = web.asked[0].headers.get("X-Pulsar-Auth-Method-Name")
    assert method == (auth.method if expected else None)


@pytest.mark.fault(47)
def test_a_token_file_is_read_for_every_request(web: WebService, tmp_path: Path) -> None:
    file = tmp_path / "token"
    with context_for(web.url, auth=AuthOptions("token", token_file=str(file))) as context:
        for token in ("first", "second"):
            file.write_text(token)
            broker_of(context.lookup, TOPIC)
    assert given(web) == ["Bearer first", "Bearer second"]


class Vault:
    """An authentication plugin of a user's own."""

    method_name = "vault"

    def __init__(self, params: str) -> None:
        self.params = params

    def auth_data(self) -> bytes:
        return b"for the binary protocol"


class WebVault(Vault):
    """The same, also for web services."""

    def http_headers(self) -> dict[str, str]:
        return {"X-Vault": self.params}


def test_without_headers_from_a_users_class_the_method_must_be_known(
    web: WebService,
) -> None:
    auth = AuthOptions("plugin", plugin=f"{__name__}:WebVault", plugin_params=SECRET)
    with context_for(web.url, auth=auth) as context:
        broker_of(context.lookup, TOPIC)
    assert web.asked[0].headers["X-Vault"] == SECRET
    auth = AuthOptions("plugin", plugin=f"{__name__}:Vault", plugin_params=SECRET)
    error = refused(web.url, UnsupportedFeature, auth=auth)
    assert "http_headers" in str(error)


@pytest.mark.fault(45, 96)
@pytest.mark.parametrize("token", [f"{SECRET}\r\nX: 1", f"{SECRET}é"])
def test_credentials_that_are_no_header_are_refused_and_not_shown(
    web: WebService, token: str
) -> None:
    refused(web.url, AuthenticationError, auth=AuthOptions("token", token=token))
    assert not web.asked


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.fault(45, 46, 96)
@pytest.mark.parametrize(
    "status,kind",
    [
        (400, NotAllowed),
        # Pulsar's answer to a known user without the permission.
        (401, AuthorizationError),
        (403, AuthorizationError),
        (404, TopicNotFound),
        (412, NotAllowed),
        (422, BrokerInvalidTopicName),
    ],
)
def test_what_cannot_pass_is_asked_once_and_says_why(
    web: WebService, status: int, kind: type[PulsarError]
) -> None:
    web.answers, web.again = [refuse(status, f"no, {SECRET} is not for you")], True
    error = refused(web.url, kind, auth=TOKEN)
    assert f"status {status}, no, *** is not for you" in str(error)
    assert len(web.asked) == 1


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    "answer",
    [
        say(401, {"servlet": "x", "message": "Authentication required", "status": "401"}),
        say(401, b"<html>Unauthorized</html>"),
        refuse(401, "Need to authenticate to perform the request"),
    ],
)
def test_credentials_that_are_not_accepted_are_asked_with_once(
    web: WebService, answer: Answer
) -> None:
    web.answers, web.again = [answer], True
    error = refused(web.url, AuthenticationError, auth=TOKEN)
    assert "authParams" in str(error)
    assert len(web.asked) == 1


@pytest.mark.fault(45)
def test_who_has_given_no_credentials_is_told_so(web: WebService) -> None:
    web.answers, web.again = [say(401, b"<html>Unauthorized</html>")], True
    error = refused(web.url, AuthenticationError)
    assert "none were given" in str(error)
    assert "expired" not in str(error)


@pytest.mark.fault(45)
def test_several_hosts_are_not_all_asked_with_credentials_that_one_refused(
    web: WebService,
) -> None:
    with WebService() as other:
        for service in (web, other):
            service.answers, service.again = [say(401, b"no")], True
        refused(f"http://{web.host},{other.host}", AuthenticationError, auth=TOKEN)
        assert len(web.asked) + len(other.asked) == 1


@pytest.mark.fault(18, 19)
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
def test_what_can_pass_is_asked_again(web: WebService, status: int) -> None:
    web.answers = [refuse(status, "not now"), say(status, b"<html>a proxy</html>")]
    with context_for(web.url) as context:
        assert broker_of(context.lookup, TOPIC).logical == "broker:6650"
    assert len(web.asked) == 3


@pytest.mark.fault(18)
def test_who_is_not_ready_is_left_for_another_host(web: WebService) -> None:
    with WebService() as other:
        other.answers, other.again = [refuse(503, "not ready")], True
        with context_for(f"http://{other.host},{web.host}") as context:
            for _ in range(3):
                assert broker_of(context.lookup, TOPIC).logical == "broker:6650"
        assert len(other.asked) <= 1
        # Where the last attempt gets no answer in time, the one before is named.
        error = refused(other.url, (ServiceNotReady, OperationTimeout), operation_timeout=0.5)
        assert "attempts" in str(error)
        assert "not ready" in str(error)


def test_of_a_schema_that_is_not_there_old_brokers_say_nothing(web: WebService) -> None:
    web.answers, web.again = [say(404, b"")], True
    with context_for(web.url) as context:
        assert latest_schemas(context.lookup, [TOPIC]) == {TOPIC: None}


@pytest.mark.fault(41)
@pytest.mark.parametrize("status", [404, 405])
@pytest.mark.parametrize(
    "body,kind",
    [
        (b"<html>Not Found</html>", "text/html"),
        (b"404 page not found", "text/plain"),
        (b'{"servlet": "x", "message": "Not Found"}', "application/json"),
        (b"Not Found", ""),
    ],
)
def test_a_server_that_is_no_web_service_of_pulsar_is_not_one_without_topics(
    web: WebService, status: int, body: bytes, kind: str
) -> None:
    typed = {"Content-Type": f"{kind}; charset=utf-8"} if kind else {}
    web.answers, web.again = [say(status, body, **typed)], True
    error = refused(web.url, RemoteProtocolError)
    told = f"(status {status}, {kind})" if kind else f"(status {status})"
    assert f"{web.host} answers HTTP, but is not Pulsar's web service {told}" in str(error)
    assert "8080" in error.remedy
    assert len(web.asked) == 1
    with context_for(web.url) as context:
        with pytest.raises(RemoteProtocolError):
            context.lookup.topics_of_namespace("public/default")
        assert isinstance(latest_schemas(context.lookup, [TOPIC])[TOPIC], RemoteProtocolError)


def test_a_broker_without_paths_for_names_with_a_cluster_may_be_one(web: WebService) -> None:
    web.answers = [say(404, {"servlet": "x", "message": "Not Found"})]
    with context_for(web.url) as context, pytest.raises(RemoteProtocolError) as caught:
        context.lookup.partitions("persistent://tenant/cluster/ns/t")
    assert "write tenant/namespace/topic" in str(caught.value)


# --- what is not believed ---------------------------------------------------------------------


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    """Answer with 100 MB."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(100_000_000))
    handler.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(100):
            handler.wfile.write(b" " * 1_000_000)


def chunked(*chunks: bytes) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        with contextlib.suppress(OSError):
            for chunk in chunks:
                handler.wfile.write(chunk)
        handler.close_connection = True

    return answer


@pytest.mark.fault(50)
@pytest.mark.parametrize(
    "answer",
    [
        endless,
        chunked(b"-1\r\n", b" " * 40_000_000),
        chunked(b"zz\r\n"),
        chunked(b"7fffffffffffffff\r\n", b" " * 40_000_000),
        say(200, b"<html>a page</html>"),
        say(200, b"[" * 60_000),
        say(200, b"\xff\xfe"),
        say(200, [1, 2]),
        say(200, {"brokerUrl": 7}),
        say(200, {"brokerUrl": "pulsar://a:1,b:2"}),
        say(200, {"brokerUrl": "http://b:1"}),
        say(200, b"{}", **{f"X-{number}": "x" for number in range(200)}),
    ],
)
def test_a_hostile_answer_is_one_error_of_our_own(web: WebService, answer: Answer) -> None:
    web.answers, web.again = [answer], True
    refused(web.url, RemoteProtocolError)
    assert len(web.asked) == 1


@pytest.mark.parametrize("count", [None, -1, 100_001, 2**70, "3", True, 1.5])
def test_impossible_numbers_of_partitions_are_not_believed(web: WebService, count: object) -> None:
    web.answers = [say(200, {"partitions": count})]
    with context_for(web.url) as context, pytest.raises(RemoteProtocolError):
        context.lookup.partitions(TOPIC)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"version": -1, "type": "AVRO"},
        {"version": 2**63, "type": "AVRO"},
        {"version": 1, "type": "MAGIC"},
        {"version": 1, "type": "AVRO", "data": "\ud800"},
        {"version": 1, "type": "AVRO", "properties": [1]},
        {"version": 1, "type": "KEY_VALUE", "data": "[]"},
        {"version": 1, "type": "KEY_VALUE", "data": "[" * 50_000},
    ],
)
def test_impossible_schemas_are_errors_of_our_own(web: WebService, schema: dict[str, Any]) -> None:
    web.schema = schema
    with context_for(web.url) as context:
        assert isinstance(latest_schemas(context.lookup, [TOPIC])[TOPIC], RemoteProtocolError)


@pytest.mark.fault(50)
def test_an_answer_byte_by_byte_ends_with_the_time_that_is_allowed(web: WebService) -> None:
    stopped = threading.Event()

    def slow(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "10000")
        handler.end_headers()
        while not stopped.wait(0.05):
            handler.wfile.write(b" ")

    web.answers, web.again = [slow], True
    started = time.monotonic()
    refused(web.url, OperationTimeout, operation_timeout=1.0)
    assert time.monotonic() - started < 15
    stopped.set()


@pytest.mark.fault(41)
@pytest.mark.parametrize("first", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\0\0\0\x05\0\0\0\x01x" * 10])
def test_what_is_no_web_service_is_named(first: bytes) -> None:
    def serve(peer: socket.socket) -> None:
        peer.recv(1024)
        peer.sendall(first)

    with listening(serve) as address:
        error = refused(f"http://{address}", RemoteProtocolError)
    assert "does not speak HTTP" in str(error)
    assert "8080" in str(error)


@pytest.mark.fault(41)
def test_the_port_of_the_binary_protocol_is_named() -> None:
    with EmbeddedBroker() as broker:
        error = refused(f"http://127.0.0.1:{broker.port}", PulsarError, operation_timeout=2.0)
    assert "6650" in str(error)


# --- TLS --------------------------------------------------------------------------------------


@pytest.mark.fault(51, 52)
def test_tls_is_checked_as_on_the_binary_port(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.client("reader")
    server = authority.server(client_authority=authority)
    with WebService(secure="pulsar+ssl://b:1", tls=server) as web:
        tls = TlsOptions(authority.file, certificate, key)
        with context_for(web.url, tls=tls) as context:
            assert broker_of(context.lookup, TOPIC).logical == "b:1"
        assert web.certificates
        files = AuthOptions("tls", certificate_file=certificate, key_file=key)
        trusting = TlsOptions(trust_certs_file=authority.file)
        with context_for(web.url, tls=trusting, auth=files) as context:
            assert broker_of(context.lookup, TOPIC).logical == "b:1"
        assert "not trusted" in str(refused(web.url, TlsError))
        count = len(web.asked)
        error = refused(web.url, TlsError, tls=trusting)
        assert "tlsCertificateFilePath" in str(error)
        assert len(web.asked) == count
    with WebService(tls=authority.server("other.example")) as web:
        assert "not for this address" in str(refused(web.url, TlsError, tls=trusting))


# --- life -------------------------------------------------------------------------------------


def http_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("pulsar-http")]


def test_nothing_is_started_before_something_is_asked(web: WebService) -> None:
    with context_for(web.url):
        assert not http_threads()
    assert not web.asked


def test_closing_ends_what_waits_and_the_threads(web: WebService) -> None:
    asked, stopped = threading.Event(), threading.Event()

    def never(handler: http.server.BaseHTTPRequestHandler) -> None:
        asked.set()
        stopped.wait(60)

    web.answers, web.again = [never], True
    options = ClientOptions(web.url)
    client = HttpClient(options, provider_for(options.auth))
    futures = [client.get("/x", 60, 1000) for _ in range(2 * THREADS)]
    assert asked.wait(30)
    client.close()
    client.close()
    for future in futures:
        assert isinstance(future.exception(30), ClosedError)
    with pytest.raises(ClosedError):
        client.get("/x", 60, 1000)
    wait_until(lambda: not http_threads())
    stopped.set()


def test_waiting_for_a_thread_takes_nothing_from_the_time_to_answer(web: WebService) -> None:
    released = threading.Event()

    def held(handler: http.server.BaseHTTPRequestHandler) -> None:
        released.wait(60)
        say(200, {})(handler)

    web.answers = [held] * THREADS
    options = ClientOptions(web.url)
    client = HttpClient(options, provider_for(options.auth))
    first = [client.get("/x", 60, 1000) for _ in range(THREADS)]
    wait_until(lambda: len(web.asked) == THREADS)
    late = client.get("/lookup/late", 1.5, 1000)
    time.sleep(2)
    released.set()
    assert late.result(30)["brokerUrl"] == "pulsar://broker:6650"
    assert all(future.result(30) == {} for future in first)
    client.close()


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), RuntimeError("bug")])
def test_whatever_is_raised_within_is_told_and_ends_no_thread(
    web: WebService, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def broken(*_: object) -> None:
        raise error

    options = ClientOptions(web.url)
    client = HttpClient(options, provider_for(options.auth))
    with monkeypatch.context() as patched:
        patched.setattr(HttpClient, "_value", broken)
        futures = [client.get("/x", 60, 1000) for _ in range(2 * THREADS)]
        assert all(isinstance(future.exception(30), ConnectionLost) for future in futures)
    assert client.get("/lookup/x", 60, 1000).result(30)["brokerUrl"] == "pulsar://broker:6650"
    client.close()
    wait_until(lambda: not http_threads())


def test_tasks_of_a_process_share_connections(web: WebService) -> None:
    options = ClientOptions(web.url)
    for _ in range(10):
        with ClientContext.shared(options) as context:
            broker_of(context.lookup, TOPIC)
    assert web.connections == 1
    shared_connections().close_unused()
    wait_until(lambda: not http_threads())


@pytest.mark.fault(75)
@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_forked_child_cannot_use_it_and_does_it_no_harm(web: WebService) -> None:
    with context_for(web.url) as context:
        broker_of(context.lookup, TOPIC)
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                try:
                    broker_of(context.lookup, TOPIC)
                except ClosedError:
                    context.close()
                    os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        broker_of(context.lookup, TOPIC)
    assert web.connections == 1


def test_an_answer_that_breaks_off_is_asked_for_again(web: WebService) -> None:
    def half(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"{")
        handler.close_connection = True

    web.answers = [half, half]
    with context_for(web.url) as context:
        assert broker_of(context.lookup, TOPIC).logical == "broker:6650"
    web.answers, web.again = [half], True
    refused(web.url, ConnectionLost, operation_timeout=0.5)
