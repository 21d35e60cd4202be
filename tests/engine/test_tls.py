"""TLS between this package and the embedded broker: what is accepted, and why others fail."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.client import AuthenticationTLS, MessageId, PulsarClient
from pulsar_spark.engine.connections import tls as tls_module
from pulsar_spark.engine.connections import transport as transport_module
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.connections.tls import tls_context, tls_identity
from pulsar_spark.engine.connections.transport import Transport
from pulsar_spark.engine.context import ClientContext, shared_connections
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.options import AuthOptions, ClientOptions, TlsOptions
from pulsar_spark.errors import (
    ConnectError,
    ConnectionLost,
    OptionError,
    PulsarError,
    TlsError,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.frames import encode_command
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.damaged_pem import damaged, shows
from tests.engine.gathering import MANY, TRICKLED, trickle
from tests.support.asking import connection_of
from tests.support.certificates import Authority, days, only_old_versions, self_signed
from tests.support.java_server import free_ports
from tests.support.waiting import finish


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def options_for(url: str, **tls: Any) -> ClientOptions:
    return ClientOptions(url, operation_timeout=20, connection_timeout=10, tls=TlsOptions(**tls))


def connect(url: str, **tls: Any) -> None:
    with ConnectionPool(options_for(url, **tls)) as pool:
        assert not pool.service().closed


def refused(url: str, **tls: Any) -> TlsError:
    """Return the error of connecting; a stream would not retry it, either."""
    with pytest.raises(TlsError) as caught:
        connect(url, **tls)
    assert not caught.value.retryable
    assert caught.value.remedy
    return caught.value


def send_and_receive(url: str, count: int, **more: Any) -> None:
    """Write and read messages of many sizes."""
    sent = [os.urandom(number * 37 % 5000) for number in range(count)]
    with PulsarClient(url, **more) as client:
        producer = client.create_producer("t", batching_enabled=True, block_if_queue_full=True)
        for body in sent:
            producer.send_async(body, None)
        producer.flush()
        reader = client.create_reader("t", MessageId.earliest)
        assert [reader.read_next(20_000).data() for _ in sent] == sent


# --- what works -------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.fault(51)
def test_messages_pass_both_ways_for_a_name_and_for_an_address(
    authority: Authority, host: str
) -> None:
    with EmbeddedBroker(tls=authority.server()) as broker:
        assert broker.service_url.startswith("pulsar+ssl://127.0.0.1:")
        url = f"pulsar+ssl://{host}:{broker.port}"
        send_and_receive(url, 2000, tls_trust_certs_file_path=authority.file)
        assert broker.internal_errors == ()


def test_a_trusted_authority_can_be_given_as_its_text(authority: Authority) -> None:
    with EmbeddedBroker(tls=authority.server()) as broker:
        connect(broker.service_url, trust_certs_file=authority.pem)
        connect(broker.service_url, trust_certs_file=f"content:{authority.pem}")


def test_redirects_between_brokers_stay_within_tls(authority: Authority) -> None:
    with EmbeddedBroker(tls=authority.server(), brokers=3) as broker:
        for number in range(8):
            broker.create_topic(f"t{number}")
        with ClientContext(
            options_for(broker.service_url, trust_certs_file=authority.file)
        ) as context:
            served = {connection_of(context.lookup, f"t{number}").address for number in range(8)}
        assert len(served) > 1


@pytest.mark.fault(52)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_shows_its_certificate(authority: Authority, version: ssl.TLSVersion) -> None:
    server = authority.server(client_authority=authority)
    server.minimum_version = server.maximum_version = version
    certificate, key = authority.client()
    seen: list[tuple[str, bytes]] = []

    def authenticate(method: str, data: bytes) -> bool:
        seen.append((method, data))
        return True

    with EmbeddedBroker(tls=server, authenticate=authenticate) as broker:
        url = broker.service_url
        connect(url, trust_certs_file=authority.file, certificate_file=certificate, key_file=key)
        contents = Path(certificate).read_text(), Path(key).read_text()
        connect(
            url, trust_certs_file=authority.file, certificate_file=contents[0], key_file=contents[1]
        )
        send_and_receive(
            url,
            10,
            authentication=AuthenticationTLS(certificate, key),
            tls_trust_certs_file_path=authority.file,
        )
    assert seen == [("none", b""), ("none", b""), ("tls", b"")]


class SniProxy:
    """Forwards connections to a local port, and records their first bytes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self.url = f"pulsar+ssl://127.0.0.1:{self._listener.getsockname()[1]}"
        self.hellos: list[bytes] = []

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.hellos.append(client.recv(4096, socket.MSG_PEEK))
            broker = socket.create_connection(("127.0.0.1", self._port))
            for source, target in ((client, broker), (broker, client)):
                thread = threading.Thread(target=self._pass, args=(source, target))
                self._threads.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with source, contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> SniProxy:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        finish(*self._threads)


@pytest.mark.fault(17, 51)
def test_an_sni_proxy_gets_the_brokers_name(authority: Authority) -> None:
    server = authority.server("broker.example", "127.0.0.1")
    tls = TlsOptions(trust_certs_file=authority.file)
    with EmbeddedBroker(tls=server) as broker, SniProxy(broker.port) as proxy:
        broker.create_topic("t")
        # A name that only the proxy could resolve.
        options = ClientOptions(
            "pulsar+ssl://broker.example:6651", tls=tls, proxy_service_url=proxy.url
        )
        with ClientContext(options) as context:
            assert context.lookup.partitions("t") == 0
            assert not connection_of(context.lookup, "t").closed
        assert b"broker.example" in proxy.hellos[0]
        # The broker's own address is reached through the proxy, too.
        assert len(proxy.hellos) == 2
        other = replace(options, service_url="pulsar+ssl://other.example:6651")
        with ConnectionPool(other) as pool, pytest.raises(TlsError, match=r"not for this host"):
            pool.service()


def test_lookups_by_rest_go_past_an_sni_proxy_as_those_of_javas_client(
    authority: Authority,
) -> None:
    tls = TlsOptions(trust_certs_file=authority.file)
    with (
        EmbeddedBroker(tls=authority.server(), rest=True) as broker,
        SniProxy(broker.port) as proxy,
    ):
        broker.create_topic("t")
        options = ClientOptions(broker.admin_url, tls=tls, proxy_service_url=proxy.url)
        with ClientContext(options) as context:
            assert context.lookup.partitions("t") == 0
            assert not proxy.hellos
            assert not connection_of(context.lookup, "t").closed
            assert len(proxy.hellos) == 1


@pytest.mark.fault(1)
def test_a_proxy_that_is_not_there_is_named() -> None:
    (port,) = free_ports(1)
    dead = f"127.0.0.1:{port}"
    options = ClientOptions(
        "pulsar+ssl://broker.example:6651", proxy_service_url=f"pulsar+ssl://{dead}"
    )
    with (
        ConnectionPool(options) as pool,
        pytest.raises(ConnectError, match=f"through the proxy {dead}.*proxyServiceUrl"),
    ):
        pool.service()


@pytest.mark.parametrize(
    "url,proxy",
    [
        ("pulsar://h", "pulsar+ssl://p:1"),
        ("pulsar+ssl://h", "p:1"),
        ("pulsar+ssl://h", "https://p:1"),
        ("pulsar+ssl://h", "pulsar+ssl://p:1,q:1"),
        ("pulsar+ssl://h", "pulsar+ssl://me:canary@p:1"),
    ],
)
def test_a_proxy_without_tls_or_with_another_address_is_refused(url: str, proxy: str) -> None:
    with pytest.raises(OptionError) as caught:
        ClientOptions(url, proxy_service_url=proxy)
    assert "canary" not in str(caught.value)


class TalkativeServer:
    """Sends an alert when a handshake fails, as Java's brokers do; asyncio's servers just close."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                self._context.wrap_socket(peer, server_side=True).close()

    def __enter__(self) -> str:
        self._thread.start()
        return f"pulsar+ssl://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        finish(self._thread)


# --- what is refused, and why -----------------------------------------------------------------


@pytest.mark.fault(51)
@pytest.mark.parametrize(
    "make,reason",
    [
        (lambda ca: ca.server("other.example"), r"not for this address: 127\.0\.0\.1"),
        (lambda ca: ca.server("other.example", common_name="127.0.0.1"), "not for this address"),
        (lambda ca: ca.server(not_after=days(-1)), "has expired"),
        (lambda ca: ca.server(not_before=days(1)), "is not valid yet"),
        (lambda ca: Authority(ca.folder).server(), "an authority that is not trusted"),
    ],
    ids=["other name", "name in the subject only", "expired", "not yet valid", "other authority"],
)
def test_a_wrong_certificate_is_refused_once_with_its_own_reason(
    authority: Authority, make: Callable[[Authority], ssl.SSLContext], reason: str
) -> None:
    trusted = authority.pem
    attempts: list[str] = []
    context = make(authority)
    context.sni_callback = lambda *_: attempts.append("hello")
    with EmbeddedBroker(tls=context) as broker:
        found = options_for(broker.service_url, trust_certs_file=trusted)
        # An operation retries temporary errors; this one is permanent.
        with pytest.raises(TlsError, match=reason) as caught, ClientContext(found) as client:
            client.lookup.partitions("t")
        assert f"127.0.0.1:{broker.port}" in str(caught.value)
        assert caught.value.remedy
        assert len(attempts) == 1
        assert broker.faults.seen("CONNECT") == 0


def test_a_name_in_the_subject_counts_if_there_is_no_other(tmp_path: Path) -> None:
    file, context = self_signed(tmp_path, "localhost", names="")
    with EmbeddedBroker(tls=context) as broker:
        connect(f"pulsar+ssl://localhost:{broker.port}", trust_certs_file=file)
        refused(f"pulsar+ssl://127.0.0.1:{broker.port}", trust_certs_file=file)
    file, context = self_signed(tmp_path, "localhost", names="DNS:other.example")
    with EmbeddedBroker(tls=context) as broker:
        refused(f"pulsar+ssl://localhost:{broker.port}", trust_certs_file=file)


@pytest.mark.fault(51)
def test_a_certificate_for_another_name_is_refused(authority: Authority) -> None:
    with EmbeddedBroker(tls=authority.server("other.example")) as broker:
        url = f"pulsar+ssl://localhost:{broker.port}"
        error = refused(url, trust_certs_file=authority.file)
        assert "none of its subject alternative names is localhost" in str(error)
        connect(url, trust_certs_file=authority.file, verify_hostname=False)


@pytest.mark.fault(51)
def test_a_self_signed_certificate_is_refused_unless_it_is_trusted(tmp_path: Path) -> None:
    certificate, context = self_signed(tmp_path)
    with EmbeddedBroker(tls=context) as broker:
        # Without given ones, the system's are trusted.
        assert "self-signed" in str(refused(broker.service_url))
        connect(broker.service_url, trust_certs_file=certificate)


@pytest.mark.fault(52)
def test_any_certificate_is_taken_only_where_that_is_asked_for_and_warned_of(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedBroker(tls=authority.server("other.example", not_after=days(-1))) as broker:
        with caplog.at_level(logging.WARNING, logger="pulsar_spark"):
            connect(broker.service_url, allow_insecure=True)
        assert "tlsAllowInsecureConnection=true" in caplog.text
        refused(broker.service_url)


def test_options_of_tls_without_tls_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    ConnectionPool(options_for("pulsar://h"))
    assert not caplog.records
    ConnectionPool(options_for("pulsar://h", trust_certs_file="/ca.pem"))
    assert "have no effect, because service.url is without TLS" in caplog.text


def test_unverified_host_names_are_warned_of(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedBroker(tls=authority.server("other.example")) as broker:
        connect(broker.service_url, trust_certs_file=authority.file, verify_hostname=False)
        assert "tlsHostnameVerificationEnable=false" in caplog.text
        # Only this check is given up.
        assert "not trusted" in str(refused(broker.service_url, verify_hostname=False))


@pytest.mark.fault(52)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_without_a_certificate_learns_that_one_is_wanted(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    server = authority.server(client_authority=authority)
    server.minimum_version = server.maximum_version = version
    with TalkativeServer(server) as url:
        error = refused(url, trust_certs_file=authority.file)
        assert "does not take our certificate, or wants one" in str(error)
        assert "tlsCertificateFilePath" in str(error)


@pytest.mark.fault(52)
def test_a_client_with_a_certificate_of_another_authority_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path)
    certificate, key = other.client()
    with TalkativeServer(authority.server(client_authority=authority)) as url:
        error = refused(
            url,
            trust_certs_file=authority.pem,
            certificate_file=certificate,
            key_file=key,
        )
        assert "does not take our certificate" in str(error)


@pytest.mark.fault(52)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_before_1_2_is_refused(authority: Authority) -> None:
    with TalkativeServer(only_old_versions(authority.server())) as url:
        error = refused(url, trust_certs_file=authority.file)
        assert "not support TLS 1.2 or later" in str(error)


@pytest.mark.fault(41)
def test_what_does_not_speak_tls_is_named(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        error = refused(f"pulsar+ssl://127.0.0.1:{listener.getsockname()[1]}")
        finish(thread)
    assert "does not speak TLS" in str(error)


@pytest.mark.fault(41)
def test_a_plain_broker_that_is_spoken_to_with_tls_ends_with_a_hint() -> None:
    with EmbeddedBroker() as broker:
        assert "Pulsar without it" in str(refused(f"pulsar+ssl://127.0.0.1:{broker.port}"))


@pytest.mark.fault(2)
def test_a_silent_handshake_ends_at_the_connect_timeout(authority: Authority) -> None:
    context = tls_context(options_for("pulsar+ssl://h", trust_certs_file=authority.file))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ConnectError, match="no answer to the TLS handshake within"):
            Transport.connect(address, 0.3, tls=context)
        with pytest.raises(ConnectError, match="closed while connecting"):
            Transport.connect(address, 60, tls=context, cancelled=lambda: True)
        assert len(os.listdir("/proc/self/fd")) <= before


# --- brokers that come and go -----------------------------------------------------------------


@pytest.mark.fault(11, 14, 15)
def test_a_stream_goes_on_where_topics_move_and_brokers_restart_with_tls(
    authority: Authority,
) -> None:
    with (
        EmbeddedBroker(tls=authority.server(), brokers=2) as broker,
        PulsarClient(broker.service_url, tls_trust_certs_file_path=authority.file) as client,
    ):
        broker.create_topic("t")
        producer = client.create_producer("t", send_timeout_millis=60_000)
        reader = client.create_reader("t", MessageId.earliest)
        for number in range(8):
            producer.send(b"%d" % number)
            assert reader.read_next(60_000).data() == b"%d" % number
            if number == 6:
                broker.restart()
            else:
                # Clients are told the new broker, or look it up.
                broker.move("t", (number + 1) % 2, assign=number % 3 != 0)
        assert broker.internal_errors == ()


# --- no way from TLS to plain -----------------------------------------------------------------


@pytest.mark.fault(53, 16)
@pytest.mark.parametrize("response", ["Connect", "Redirect"])
def test_a_lookup_that_names_only_a_plain_address_is_refused(
    authority: Authority, response: str
) -> None:
    with EmbeddedBroker() as plain, EmbeddedBroker(tls=authority.server()) as broker:
        broker.create_topic("t")
        if response == "Redirect":
            broker.faults.redirect(plain.service_url)
        else:

            def plain_only(frame: bytes) -> bytes:
                command = pb.BaseCommand.FromString(frame[8:])
                answer = command.lookupTopicResponse
                answer.brokerServiceUrl = plain.service_url
                answer.ClearField("brokerServiceUrlTls")
                return encode_command(command)

            broker.faults.rewrite("LOOKUP", plain_only)
        with (
            ClientContext(
                options_for(broker.service_url, trust_certs_file=authority.file)
            ) as context,
            pytest.raises(PulsarError, match="never downgraded from TLS to plain"),
        ):
            connection_of(context.lookup, "t")
        assert plain.connections == 0


# --- files, and what they hold ----------------------------------------------------------------


def test_files_that_cannot_be_used_are_named_with_their_option(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.client()
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    store = tmp_path / "store.jks"
    store.write_bytes(bytes.fromhex("feedfeed00000002"))
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
    other = Authority(tmp_path).client("other")[1]
    # Its key is of another kind: RSA, and not of an elliptic curve.
    rsa, _ = self_signed(tmp_path)
    rsa_key = str(tmp_path / "own.key")
    gone = str(tmp_path / "gone.pem")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"trust_certs_file": gone}, "gone.pem of pulsar.client.tlsTrustCertsFilePath.*No such"),
        ({"trust_certs_file": str(tmp_path)}, "tlsTrustCertsFilePath cannot be read"),
        ({"trust_certs_file": str(empty)}, "tlsTrustCertsFilePath is not PEM"),
        ({"trust_certs_file": str(store)}, "keytool.*openssl pkcs12"),
        ({"trust_certs_file": str(broken)}, "tlsTrustCertsFilePath has no readable certificate"),
        ({"certificate_file": gone, "key_file": key}, "tlsCertificateFilePath cannot be read"),
        ({"certificate_file": certificate, "key_file": gone}, "tlsKeyFilePath cannot be read"),
        *(
            (
                {"certificate_file": one, "key_file": another},
                "tlsKeyFilePath does not belong to the certificate in .*tlsCertificateFilePath",
            )
            for one, another in ((certificate, other), (certificate, rsa_key), (rsa, key))
        ),
        ({"certificate_file": str(broken), "key_file": key}, "cannot be used"),
    ]
    for tls, text in cases:
        with pytest.raises(TlsError, match=text):
            tls_context(options_for("pulsar+ssl://h", **tls))


@pytest.mark.parametrize("torn", [0, 1, 2, 3])
@pytest.mark.parametrize("same_kind", [True, False])
def test_files_that_are_replaced_while_they_are_read_are_read_again(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, torn: int, same_kind: bool
) -> None:
    old, _ = authority.client("old")
    if not same_kind:
        self_signed(authority.folder)
        old = str(authority.folder / "own.pem")
    certificate, key = authority.client()
    loads: list[str] = []

    class Torn(ssl.SSLContext):
        """Finds the new key beside the old certificate, the first times."""

        def load_cert_chain(self, certfile: Any, keyfile: Any = None, password: Any = None) -> None:
            loads.append(certfile)
            super().load_cert_chain(old if len(loads) <= torn else certfile, keyfile, password)

    monkeypatch.setattr(tls_module, "client_context", lambda: Torn(ssl.PROTOCOL_TLS_CLIENT))
    with EmbeddedBroker(tls=authority.server(client_authority=authority)) as broker:
        files = {"certificate_file": certificate, "key_file": key}
        if torn < 3:
            connect(broker.service_url, trust_certs_file=authority.file, **files)
        else:
            error = refused(broker.service_url, trust_certs_file=authority.file, **files)
            assert "does not belong" in str(error)
    assert len(loads) == min(torn + 1, 3)


@pytest.mark.fault(96)
@pytest.mark.parametrize("field", ["trust_certs_file", "certificate_file", "key_file"])
def test_damaged_pem_is_an_error_that_does_not_show_it(authority: Authority, field: str) -> None:
    certificate, key = authority.client()
    given = {"certificate_file": certificate, "key_file": key}
    pem = Path(key).read_text()
    for text in damaged(pem):
        with pytest.raises(TlsError, match="is neither a path nor PEM") as caught:
            tls_context(options_for("pulsar+ssl://h", **{**given, field: text}))
        assert not shows(caught.value, pem)


def test_an_encrypted_key_is_an_error_and_asks_nobody(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.client()
    locked = tmp_path / "locked.key"
    subprocess.run(
        f"openssl pkey -in {key} -aes256 -passout pass:canary -out {locked}".split(), check=True
    )
    with pytest.raises(TlsError, match="is encrypted"):
        tls_context(
            options_for("pulsar+ssl://h", certificate_file=certificate, key_file=str(locked))
        )


def test_a_connection_without_tls_reads_no_files() -> None:
    found = options_for("pulsar://h", trust_certs_file="/gone")
    assert tls_context(found) is None
    assert tls_identity(found)


@pytest.mark.fault(96)
def test_connections_are_shared_by_what_the_files_hold_now(authority: Authority) -> None:
    certificate, key = authority.client()
    with EmbeddedBroker(tls=authority.server()) as broker:
        found = options_for(
            broker.service_url,
            trust_certs_file=authority.file,
            certificate_file=certificate,
            key_file=key,
        )
        with ClientContext.shared(found) as one, ClientContext.shared(found) as other:
            assert one.pool is other.pool
            renewed = authority.client("renewed")
            os.replace(renewed[0], certificate)
            os.replace(renewed[1], key)
            with ClientContext.shared(found) as third:
                assert third.pool is not one.pool
        with_auth = ClientOptions(
            broker.service_url,
            auth=AuthOptions("tls", certificate_file=certificate, key_file=key),
            tls=TlsOptions(trust_certs_file=authority.file),
        )
        secret = Path(key).read_text().splitlines()[1]
        contents = options_for(
            "pulsar+ssl://h",
            key_file=f"content:{Path(key).read_text()}",
            certificate_file=f"content:{Path(certificate).read_text()}",
        )
        assert tls_identity(contents) != tls_identity(options_for("pulsar+ssl://h"))
        assert secret not in f"{with_auth!r} {contents!r}"
        shared_connections().close_unused()


# --- the stream of bytes ----------------------------------------------------------------------


class Pair:
    """A transport with TLS, and the blocking socket at its other end."""

    def __init__(self, authority: Authority) -> None:
        found = options_for("pulsar+ssl://h", trust_certs_file=authority.file)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            accepted: list[ssl.SSLSocket] = []

            def accept() -> None:
                peer, _ = listener.accept()
                accepted.append(authority.server().wrap_socket(peer, server_side=True))

            thread = threading.Thread(target=accept)
            thread.start()
            host, port = listener.getsockname()
            self.transport = Transport.connect(f"{host}:{port}", 10, tls=tls_context(found))
            finish(thread)
        (self.peer,) = accepted

    def close(self) -> None:
        self.transport.close()
        self.peer.close()


@pytest.fixture
def pair(authority: Authority) -> Any:
    made = Pair(authority)
    yield made
    made.close()


def receive_all(transport: Transport, size: int) -> bytes:
    found = bytearray()
    deadline = Deadline(60)
    while len(found) < size:
        # None if only records of TLS itself were received.
        data = transport.receive(deadline.remaining())
        assert data or (data is None and not deadline.expired()), f"{len(found)} of {size} came"
        found += data or b""
    return bytes(found)


def test_two_threads_can_read_and_write_at_once(pair: Pair) -> None:
    """The other end echoes everything, so both directions are always full."""
    size = 30 * 1024 * 1024
    sent = os.urandom(1024 * 1024) * (size // (1024 * 1024))

    def echo() -> None:
        left = size
        while left:
            data = pair.peer.recv(100_000)
            pair.peer.sendall(data)
            left -= len(data)

    def send() -> None:
        # Sizes below and above a record, and below and above what is encrypted at once.
        rest: list[Buffer] = []
        at = 0
        for length in (0, 1, 100, 0, 16_384, 70_000, 131_072, 400_000) * 1000:
            rest.append(memoryview(sent)[at : at + length])
            at += length
            if at >= size:
                break
        while rest:
            rest = pair.transport.send_some(rest)
            if rest:
                assert pair.transport.wait_writable(20)

    threads = [threading.Thread(target=echo), threading.Thread(target=send)]
    for thread in threads:
        thread.start()
    found = receive_all(pair.transport, size)
    finish(*threads)
    assert found == sent


def test_nothing_that_has_come_waits_for_more_to_come(pair: Pair) -> None:
    """TLS records that arrive together are all returned: the socket would not report the rest."""
    for count in (1, 3, 40):
        for _ in range(count):
            pair.peer.sendall(b"x" * 20_000)
        assert receive_all(pair.transport, count * 20_000) == b"x" * (count * 20_000)
        assert pair.transport.receive(0.01) is None


@pytest.mark.skipif(sys.platform != "linux", reason="others may not wait for many bytes")
def test_bytes_are_gathered_with_tls_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "_GATHER_TIME", 60)
    sender = trickle(pair.peer)
    found = pair.transport.receive(60, gather=len(TRICKLED))
    finish(sender)
    assert found is not None
    begin = bytes(found)
    assert len(begin) > MANY
    assert begin + receive_all(pair.transport, len(TRICKLED) - len(begin)) == TRICKLED


def test_what_the_peer_does_not_take_is_given_back_and_sent_later(pair: Pair) -> None:
    size = 64 * 1024 * 1024
    rest: list[Buffer] = [memoryview(bytes(range(256)) * (size // 256))]
    left = size + 1
    while sum(memoryview(part).nbytes for part in rest) < left:
        left = sum(memoryview(part).nbytes for part in rest)
        rest = pair.transport.send_some(rest)
        pair.transport.wait_writable(0.2)
    assert rest
    got = bytearray()

    def take() -> None:
        while len(got) < size:
            got.extend(pair.peer.recv(1 << 20))

    thread = threading.Thread(target=take)
    thread.start()
    while rest:
        rest = pair.transport.send_some(rest)
        if rest:
            assert pair.transport.wait_writable(20)
    finish(thread)
    assert bytes(got) == bytes(range(256)) * (size // 256)


@pytest.mark.parametrize("good_bye", [True, False])
def test_the_end_of_the_stream_is_empty_bytes(pair: Pair, good_bye: bool) -> None:
    pair.peer.sendall(b"last")
    if good_bye:
        pair.peer.setblocking(False)
        with pytest.raises(ssl.SSLWantReadError):
            pair.peer.unwrap()
    pair.peer.close()
    assert receive_all(pair.transport, 4) == b"last"
    assert pair.transport.receive(20) == b""
    assert pair.transport.receive(20) == b""


def test_damage_on_the_way_is_a_lost_connection(pair: Pair) -> None:
    plain = socket.socket(fileno=os.dup(pair.peer.fileno()))
    with plain:
        plain.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(ConnectionLost, match="TLS failed"):
            pair.transport.receive(20)
