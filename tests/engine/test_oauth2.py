"""Tokens of an OAuth2 issuer, a server of this test, and what issuers can do wrong."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.engine.authentication import oauth2 as module
from pulsar_spark.engine.authentication.oauth2 import OAuth2Auth
from pulsar_spark.engine.authentication.providers import provider_for
from pulsar_spark.engine.context import ClientContext, shared_connections
from pulsar_spark.engine.options import AuthOptions, ClientOptions, OAuth2Options
from pulsar_spark.errors import (
    AuthenticationError,
    IssuerUnreachable,
    MissingDependency,
    OptionError,
    PulsarError,
    TlsError,
)
from pulsar_spark.testing import EmbeddedBroker
from tests import brief
from tests.support.certificates import Authority, days
from tests.support.issuer import Answer, Issuer, say
from tests.support.waiting import PATIENCE, finish, wait_until

SECRET = "canary-4e0d"
KEY = json.dumps({"type": "client_credentials", "client_id": "me", "client_secret": SECRET})


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a token may take long; tests of the timeout set a short one."""
    monkeypatch.setattr(module, "_TIMEOUT", PATIENCE)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def issuer(authority: Authority) -> Iterator[Issuer]:
    with Issuer(authority) as running:
        yield running


@pytest.fixture
def auth(issuer: Issuer, authority: Authority) -> OAuth2Auth:
    return made(issuer, authority)


def made(issuer: Issuer, authority: Authority | None, **changes: Any) -> OAuth2Auth:
    given: dict[str, Any] = {
        "private_key": KEY,
        "trust_certs_file": authority.file if authority else None,
        **changes,
    }
    provider = provider_for(AuthOptions("oauth2", oauth2=OAuth2Options(issuer.url, **given)))
    assert isinstance(provider, OAuth2Auth)
    return provider


def refused(auth: OAuth2Auth, kind: type[PulsarError], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        auth.auth_data()
    assert type(caught.value) is kind
    assert caught.value.remedy
    assert SECRET not in f"{caught.value!r} {caught.value} {auth!r}"


def test_a_token_is_asked_for_with_the_clients_credentials(
    issuer: Issuer, authority: Authority
) -> None:
    auth = made(issuer, authority, audience="urn:pulsar", scope="read write")
    assert (auth.method_name, auth.auth_data()) == ("token", b"token-1")
    assert issuer.paths == ["/.well-known/openid-configuration"]
    assert issuer.asked == [
        {
            "grant_type": ["client_credentials"],
            "client_id": ["me"],
            "client_secret": [SECRET],
            "audience": ["urn:pulsar"],
            "scope": ["read write"],
        }
    ]


def test_the_key_comes_in_all_forms_of_java(
    issuer: Issuer, authority: Authority, tmp_path: Path
) -> None:
    file = tmp_path / "a key.json"
    file.write_text(KEY)
    coded = base64.b64encode(KEY.encode()).decode()
    for key in (
        str(file),
        f"file://{file}".replace(" ", "%20"),
        f"data:application/json;base64,{coded}",
        KEY,
    ):
        assert made(issuer, authority, private_key=key).auth_data()
    made(issuer, authority, private_key=None, client_id="me", client_secret=SECRET).auth_data()
    assert {asked["client_secret"][0] for asked in issuer.asked} == {SECRET}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which tokens are renewed."""
    now = [1000.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])

    monkeypatch.setattr(module, "time", Clock)
    return now


def test_a_token_is_kept_and_renewed_before_it_expires(
    issuer: Issuer, auth: OAuth2Auth, clock: list[float]
) -> None:
    issuer.expires_in = 1000
    assert {auth.auth_data() for _ in range(5)} == {b"token-1"}
    clock[0] += 1000 - 61
    assert auth.auth_data() == b"token-1"
    clock[0] += 2
    assert auth.auth_data() == b"token-2"
    # A tenth of the lifetime of short-lived ones.
    issuer.expires_in = 10
    clock[0] += 1000
    assert auth.auth_data() == b"token-3"
    clock[0] += 8.9
    assert auth.auth_data() == b"token-3"
    clock[0] += 0.2
    assert auth.auth_data() == b"token-4"


@pytest.mark.fault(50)
@pytest.mark.parametrize("lifetime", [10, 100, 1000])
def test_a_token_is_used_until_it_expires_while_the_issuer_cannot_be_asked(
    issuer: Issuer,
    auth: OAuth2Auth,
    clock: list[float],
    lifetime: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    issuer.expires_in = lifetime
    start = clock[0]
    assert auth.auth_data() == b"token-1"
    issuer.on_token = say(503, {})
    margin = min(60, lifetime // 10)
    clock[0] = start + lifetime - margin
    for _ in range(margin * 10):
        assert auth.auth_data() == b"token-1"
        clock[0] += 0.09
    # The issuer hears of it at intervals, and so does the log.
    attempts = len(issuer.asked) - 1
    assert 1 <= attempts <= 1 + margin / 5
    assert len(caplog.messages) == attempts
    assert "status 503" in caplog.text
    clock[0] = start + lifetime
    refused(auth, IssuerUnreachable, "status 503")
    issuer.on_token = None
    assert auth.auth_data() == f"token-{len(issuer.asked)}".encode() != b"token-1"


def test_an_issuer_that_can_be_asked_again_replaces_the_token_that_was_kept(
    issuer: Issuer, auth: OAuth2Auth, clock: list[float]
) -> None:
    issuer.expires_in = 100
    auth.auth_data()
    issuer.on_token = say(503, {})
    clock[0] += 91
    assert auth.auth_data() == b"token-1"
    issuer.on_token = None
    clock[0] += 4.9
    assert auth.auth_data() == b"token-1"
    clock[0] += 0.2
    assert auth.auth_data() == b"token-3"


@pytest.mark.fault(48, 50)
def test_neither_a_refused_token_nor_that_of_a_refused_client_is_kept(
    issuer: Issuer, auth: OAuth2Auth, clock: list[float]
) -> None:
    issuer.expires_in = 100
    auth.auth_data()
    clock[0] += 91
    issuer.on_token = say(401, {"error": "invalid_client"})
    refused(auth, AuthenticationError, "invalid_client")
    issuer.on_token = say(503, {})
    assert auth.auth_data() == b"token-1"
    assert auth.refused(b"token-1")
    refused(auth, IssuerUnreachable, "status 503")


@pytest.mark.fault(48)
def test_a_refused_token_is_replaced_once_and_not_too_often(
    issuer: Issuer, auth: OAuth2Auth, clock: list[float]
) -> None:
    assert auth.auth_data() == b"token-1"
    # A new one would be no better so soon.
    assert not auth.refused(b"token-1")
    assert auth.auth_data() == b"token-1"
    clock[0] += 5
    for _ in range(100):
        assert auth.refused(b"token-1")
    for _ in range(100):
        assert auth.auth_data() == b"token-2"
        # Others were refused with the old one: there is a new one already.
        assert auth.refused(b"token-1")
    # Of a broker that refuses all, the issuer hears at intervals.
    for _ in range(100):
        auth.refused(auth.auth_data() or b"")
        clock[0] += 0.5
    assert len(issuer.asked) <= 2 + 100 * 0.5 / 5


def test_many_threads_ask_once(issuer: Issuer, auth: OAuth2Auth) -> None:
    found: list[bytes | None] = []
    threads = [threading.Thread(target=lambda: found.append(auth.auth_data())) for _ in range(10)]
    for thread in threads:
        thread.start()
    finish(*threads)
    assert found == [b"token-1"] * 10


@pytest.mark.parametrize("expires_in", [None, [], -5, "30", 10**400])
def test_an_odd_lifetime_is_survived(issuer: Issuer, auth: OAuth2Auth, expires_in: object) -> None:
    issuer.expires_in = expires_in
    assert auth.auth_data() == b"token-1"


@pytest.mark.fault(50)
@pytest.mark.parametrize(
    "certificate,trusted",
    [
        ({"names": ("other.example",)}, True),
        ({"not_after": days(-1)}, True),
        ({}, False),
    ],
    ids=["other host", "expired", "other authority"],
)
def test_the_issuers_certificate_is_always_checked(
    authority: Authority, certificate: dict[str, Any], trusted: bool
) -> None:
    with Issuer(authority, **certificate) as issuer:
        auth = made(issuer, authority if trusted else None)
        refused(auth, TlsError, r"certificate of 127\.0\.0\.1:\d+ is not accepted")
        assert not issuer.asked


@pytest.mark.fault(50)
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_credentials_go_to_no_redirect(issuer: Issuer, auth: OAuth2Auth, status: int) -> None:
    with Issuer(None) as other:
        issuer.on_token = say(status, {}, Location=f"{other.url}/token")
        refused(auth, AuthenticationError, "answers by a redirect")
        issuer.on_discovery = say(status, {}, Location=f"{other.url}/x")
        refused(auth, AuthenticationError, "answers by a redirect")
        assert not other.asked + other.paths
        assert len(issuer.asked) == 1


@pytest.mark.fault(50)
@pytest.mark.parametrize(
    "answer,kind,text",
    [
        (say(500, {}), IssuerUnreachable, "status 500"),
        (say(429, {}), IssuerUnreachable, "status 429"),
        (
            say(401, {"error": "invalid_client", "error_description": f"not {SECRET}"}),
            AuthenticationError,
            "status 401, invalid_client",
        ),
        (say(400, {"error": SECRET}), AuthenticationError, r"\(status 400\)"),
        (say(200, b"<html>"), IssuerUnreachable, "not JSON.*maintenance"),
        (say(200, b""), IssuerUnreachable, "not JSON"),
        (say(200, b"[" * 500_000), IssuerUnreachable, "not JSON"),
        (say(200, [1]), AuthenticationError, "127.0.0.1"),
        (say(200, {}), AuthenticationError, "no access_token"),
        (say(200, {"access_token": 5}), AuthenticationError, "no access_token"),
        (say(200, {"access_token": "t", "expires_in": "soon"}), AuthenticationError, "not JSON of"),
        (say(200, {"access_token": "t", "expires_in": [1]}), AuthenticationError, "not JSON of"),
        (say(200, b'{"access_token": "t", "expires_in": 1e999}'), AuthenticationError, "not JSON"),
        (say(200, {"error": SECRET}), AuthenticationError, "refuses to give a token"),
        (say(200, b" " * 2_000_000), AuthenticationError, "more than 1048576 bytes"),
    ],
)
def test_an_issuer_that_does_wrong_ends_in_one_clear_error(
    issuer: Issuer, auth: OAuth2Auth, answer: Answer, kind: type[PulsarError], text: str
) -> None:
    issuer.on_token = answer
    refused(auth, kind, text)
    assert len(issuer.asked) == 1


@pytest.mark.fault(50)
@pytest.mark.parametrize(
    "answer", [say(404, b"<html>"), say(403, {}), say(200, b"<html>"), say(200, [1])]
)
def test_an_address_that_is_not_an_issuers_is_named_as_such(
    issuer: Issuer, auth: OAuth2Auth, answer: Answer
) -> None:
    issuer.on_discovery = answer
    refused(auth, AuthenticationError, r"publishes no .*openid-configuration.*Check issuerUrl")


@pytest.mark.fault(50)
@pytest.mark.parametrize("at", ["on_token", "on_discovery"])
def test_a_page_of_an_issuer_that_gave_a_token_before_passes(
    issuer: Issuer, auth: OAuth2Auth, at: str
) -> None:
    issuer.expires_in = 0
    auth.auth_data()
    setattr(issuer, at, say(200, b"<html>We are back soon"))
    refused(auth, IssuerUnreachable, "not JSON.*maintenance")
    setattr(issuer, at, None)
    assert auth.auth_data()


@pytest.mark.fault(50)
@pytest.mark.parametrize("endpoint", [None, 5, "http://example.com/token", "https://u:p@h/t", "x"])
def test_no_credentials_go_to_an_invalid_endpoint(
    issuer: Issuer, auth: OAuth2Auth, endpoint: object
) -> None:
    issuer.on_discovery = say(200, {"token_endpoint": endpoint})
    with pytest.raises((AuthenticationError, OptionError), match="token_endpoint"):
        auth.auth_data()


def packed(times: int, size: int) -> bytes:
    data = b" " * size
    for _ in range(times):
        data = gzip.compress(data)
    return data


@pytest.mark.fault(146)
@pytest.mark.parametrize("at", ["on_token", "on_discovery"])
@pytest.mark.parametrize(
    "answer",
    [
        say(200, packed(3, 10_000_000), **{"Content-Encoding": "gzip, gzip, gzip"}),
        say(200, packed(1, 100_000_000), **{"Content-Encoding": "GZip"}),
        say(401, packed(1, 10_000_000), **{"Content-Encoding": "identity, gzip"}),
        say(200, zlib.compress(b"{}"), **{"Content-Encoding": "deflate"}),
        say(200, b"{}", **{"Content-Encoding": "br"}),
        say(200, b"{}", **{"Content-Encoding": "unheard-of"}),
    ],
)
def test_an_encoded_answer_is_refused_and_not_decoded(
    issuer: Issuer, auth: OAuth2Auth, answer: Answer, at: str
) -> None:
    setattr(issuer, at, answer)
    tracemalloc.start()
    try:
        refused(auth, AuthenticationError, "Content-Encoding")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert {heard["Accept-Encoding"] for heard in issuer.headers} == {"identity"}


@pytest.mark.fault(146)
def test_an_answer_in_chunks_is_read_and_its_lines_are_bounded(
    issuer: Issuer, auth: OAuth2Auth
) -> None:
    def in_chunks(handler: BaseHTTPRequestHandler, extension: Iterable[bytes] = ()) -> None:
        body = json.dumps({"access_token": "t", "expires_in": 0}).encode()
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x" % len(body))
        for part in extension:
            handler.wfile.write(part)
        handler.wfile.write(b"\r\n%b\r\n0\r\n\r\n" % body)

    issuer.on_token = in_chunks
    assert auth.auth_data() == b"t"
    issuer.on_token = lambda handler: in_chunks(handler, [b";", *[b"x" * 500_000] * 100])
    tracemalloc.start()
    try:
        refused(auth, IssuerUnreachable, "cannot be asked")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    """A proxy that the environment names for everything."""
    with Issuer(None) as running:
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, running.url)
            monkeypatch.setenv(name.lower(), running.url)
        yield running


@pytest.mark.fault(147)
@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.0.0.53", "127.255.255.254", "[::1]"]
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_local_issuer_is_asked_without_a_proxy(proxy: Issuer, scheme: str, host: str) -> None:
    auth = OAuth2Auth(OAuth2Options(f"{scheme}://{host}:9", private_key=KEY))
    refused(auth, IssuerUnreachable, "cannot be asked")
    assert proxy.headers == []


@pytest.mark.fault(147)
def test_a_local_issuer_that_is_there_gives_its_own_token(proxy: Issuer) -> None:
    with Issuer(None) as issuer:
        assert made(issuer, None).auth_data() == b"token-1"
    assert proxy.headers == []


@pytest.mark.fault(147)
def test_a_proxy_sees_of_another_issuer_only_its_name(proxy: Issuer) -> None:
    auth = OAuth2Auth(OAuth2Options("https://issuer.invalid", private_key=KEY))
    refused(auth, IssuerUnreachable, "cannot be asked")
    assert set(proxy.paths) == {"issuer.invalid:443"}
    assert not proxy.asked
    assert SECRET not in " ".join(map(str, proxy.headers))


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "http://", "nothing"])
def test_a_proxy_that_cannot_be_used_is_said(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    auth = OAuth2Auth(OAuth2Options("https://issuer.invalid", private_key=KEY))
    with pytest.raises(PulsarError, match="cannot be asked"):
        auth.auth_data()


@pytest.mark.fault(147)
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
        "http://0.0.0.0",
        "http://2130706433",
        "http://localhost@example.com",
        "http://128.0.0.1",
        "http://[::2]",
    ],
)
def test_a_host_that_only_looks_local_is_another_one(url: str) -> None:
    with pytest.raises(OptionError, match="https://"):
        OAuth2Auth(OAuth2Options(url, private_key=KEY))


@pytest.mark.fault(147)
def test_an_issuer_with_tls_names_no_endpoint_without(issuer: Issuer, auth: OAuth2Auth) -> None:
    issuer.on_discovery = say(200, {"token_endpoint": "http://localhost:9/token"})
    with pytest.raises(OptionError, match="token_endpoint"):
        auth.auth_data()


@pytest.mark.fault(97)
def test_an_endpoint_that_repeats_the_secret_is_neither_shown_nor_asked(
    issuer: Issuer, auth: OAuth2Auth
) -> None:
    issuer.on_discovery = say(200, {"token_endpoint": f"https://{SECRET}.example.com/token"})
    refused(auth, AuthenticationError, "contains the client's secret")


def test_passwords_for_other_purposes_are_not_sent(
    issuer: Issuer, auth: OAuth2Auth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login me password other-canary\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    auth.auth_data()
    assert {heard["Authorization"] for heard in issuer.headers} == {None}


BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n"


@pytest.mark.fault(50)
@pytest.mark.parametrize("at", ["on_token", "on_discovery"])
@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize(
    "begin,drip",
    [(b"", b""), (b"HTTP/1.1 200 OK\r\nX-A: ", b"a"), (BODY, b""), (BODY, b" ")],
    ids=["silent", "head drips", "body stops", "body drips"],
)
def test_a_slow_issuer_is_given_up_and_nothing_is_left_of_the_attempt(
    authority: Authority,
    at: str,
    tls: bool,
    begin: bytes,
    drip: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", 0.4)
    released = threading.Event()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(begin)
        while not released.wait(0.05):
            handler.wfile.write(drip)

    with Issuer(authority if tls else None) as issuer:
        setattr(issuer, at, slow)
        auth = made(issuer, authority)
        started = time.monotonic()
        refused(auth, IssuerUnreachable, "127.0.0.1")
        assert time.monotonic() - started < 20
        # While the issuer still drips.
        wait_until(lambda: not asking(issuer.url), "the end of the thread")
        released.set()


def asking(url: str) -> list[threading.Thread]:
    name = f"pulsar-oauth2-{url.rpartition('/')[2]}"
    return [thread for thread in threading.enumerate() if thread.name == name]


@pytest.fixture
def drip() -> Iterator[Answer]:
    """An answer without end, byte by byte."""
    released = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        while not released.wait(0.05):
            handler.wfile.write(b"a")

    yield answer
    released.set()


@pytest.mark.fault(50)
@pytest.mark.parametrize("tls", [True, False])
def test_an_attempt_that_connects_only_after_it_was_given_up_ends(
    authority: Authority, drip: Answer, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", 0.4)
    given_up = threading.Event()
    resolve = socket.getaddrinfo

    def late(*args: Any, **more: Any) -> Any:
        if threading.current_thread().name.startswith("pulsar-oauth2-"):
            given_up.wait(60)
        return resolve(*args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", late)
    with Issuer(authority if tls else None) as issuer:
        issuer.on_discovery = drip
        refused(made(issuer, authority), IssuerUnreachable, "within")
        given_up.set()
        wait_until(lambda: not asking(issuer.url), "the end of the thread")


@pytest.mark.fault(50)
def test_nothing_is_left_of_an_attempt_through_a_slow_proxy(
    proxy: Issuer, drip: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", 0.4)
    proxy.on_connect = drip
    url = "https://issuer.invalid"
    refused(OAuth2Auth(OAuth2Options(url, private_key=KEY)), IssuerUnreachable, "issuer.invalid")
    wait_until(lambda: not asking(url), "the end of the thread")


@pytest.mark.fault(50)
def test_who_waited_for_an_issuer_that_is_given_up_gets_its_error(
    issuer: Issuer, auth: OAuth2Auth, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[object] = []

    class Lock:
        inner = threading.Lock()

        def __enter__(self) -> None:
            came.append(self)
            self.inner.acquire()

        def __exit__(self, *_: object) -> None:
            self.inner.release()

    monkeypatch.setattr(auth, "_lock", Lock())
    asked, released = threading.Event(), threading.Event()
    errors: list[PulsarError] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.set()
        released.wait(60)
        say(500, {})(handler)

    def wants() -> None:
        with pytest.raises(IssuerUnreachable) as caught:
            auth.auth_data()
        errors.append(caught.value)

    issuer.on_token = answer
    threads = [threading.Thread(target=wants) for _ in range(5)]
    threads[0].start()
    assert asked.wait(60)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(came) == 5)
    released.set()
    finish(*threads)
    assert (len(issuer.asked), len({id(error) for error in errors})) == (1, 5)
    # Who comes later asks for itself.
    issuer.on_token = None
    assert auth.auth_data() == b"token-2"


@pytest.mark.fault(50)
def test_an_issuer_that_is_not_there_can_be_asked_again(authority: Authority) -> None:
    with Issuer(authority) as issuer:
        auth = made(issuer, authority)
    refused(auth, IssuerUnreachable, "cannot be asked")


def test_packages_that_are_missing_are_named(
    auth: OAuth2Auth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "authlib.integrations.requests_client", None)
    refused(auth, MissingDependency, "authlib and requests")


@pytest.mark.parametrize("url", ["http://example.com", "https://me:pw@h", "ftp://h", "no url", ""])
def test_an_issuer_without_tls_or_with_a_password_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="https://") as caught:
        OAuth2Auth(OAuth2Options(url, private_key=KEY))
    assert "pw" not in str(caught.value)


@pytest.mark.fault(48, 96)
@pytest.mark.parametrize(
    "key",
    [
        "/no/such/file",
        f"data:,{SECRET}",
        "data:;base64,!",
        f'{{"client_secret": "{SECRET}"}}',
        f"{{{SECRET}",
        json.dumps({"client_id": "me", "client_secret": f"{SECRET}\ud800"}),
    ],
)
def test_a_key_that_cannot_be_used_is_an_error_without_it(
    issuer: Issuer, authority: Authority, key: str
) -> None:
    refused(made(issuer, authority, private_key=key), AuthenticationError, "key .*of OAuth2")
    assert not issuer.asked


@pytest.mark.fault(47)
def test_a_broker_is_given_tokens_of_the_issuer_and_new_ones_in_mid_stream(
    issuer: Issuer, authority: Authority
) -> None:
    issuer.expires_in = 0
    given: list[bytes] = []

    def authenticate(method: str, data: bytes) -> bool:
        given.append(data)
        return method == "token" and data == f"token-{len(issuer.asked)}".encode()

    auth = AuthOptions(
        "oauth2",
        oauth2=OAuth2Options(issuer.url, private_key=KEY, trust_certs_file=authority.file),
    )
    with EmbeddedBroker(authenticate=authenticate) as broker:
        broker.create_topic("t")
        found = ClientOptions(broker.service_url, auth=auth)
        with ClientContext.shared(found) as context, ClientContext.shared(found) as other:
            # Tokens change, but the connections remain the same user's.
            assert context.pool is other.pool
            assert context.lookup.partitions("t") == 0
            broker.faults.inject(brief.auth_challenge("b", "token"))
            wait_until(lambda: given == [b"token-1", b"token-2"])
            assert context.lookup.partitions("t") == 0
            assert broker.faults.seen("CONNECT") == 1
        shared_connections().close_unused()


def logged_in(url: str, issuer: Issuer) -> ClientContext:
    auth = AuthOptions("oauth2", oauth2=OAuth2Options(issuer.url, private_key=KEY))
    return ClientContext(ClientOptions(url, auth=auth, operation_timeout=20.0))


@pytest.mark.fault(48)
def test_a_token_that_the_broker_finds_expired_earlier_is_replaced(clock: list[float]) -> None:
    with Issuer(None) as issuer:
        given: list[bytes] = []

        def authenticate(_: str, data: bytes) -> bool:
            given.append(data)
            return data == f"token-{len(issuer.asked)}".encode()

        with (
            EmbeddedBroker(authenticate=authenticate) as broker,
            logged_in(broker.service_url, issuer) as context,
        ):
            broker.create_topic("t")
            assert context.lookup.partitions("t") == 0
            clock[0] += 6
            broker.faults.inject(brief.auth_challenge("b", "token"))
            wait_until(lambda: given == [b"token-1", b"token-2"])
            assert broker.faults.seen("CONNECT") == 1


@pytest.mark.fault(45, 48)
@pytest.mark.parametrize("web", [False, True], ids=["binary", "REST"])
def test_revoked_tokens_are_replaced_within_the_operation(clock: list[float], web: bool) -> None:
    valid = {b"token-1"}
    with (
        Issuer(None) as issuer,
        EmbeddedBroker(authenticate=lambda _, data: data in valid, rest=web) as broker,
        logged_in(broker.admin_url if web else broker.service_url, issuer) as context,
    ):
        broker.create_topic("t")
        assert context.lookup.partitions("t") == 0
        valid.clear()
        valid.add(b"token-2")
        clock[0] += 6
        broker.faults.disconnect()
        assert context.lookup.partitions("t") == 0
        assert len(issuer.asked) == 2
        # What no token helps is an error at once.
        valid.clear()
        broker.faults.disconnect()
        for _ in range(3):
            with pytest.raises(AuthenticationError):
                context.lookup.partitions("t")
        assert len(issuer.asked) == 2


@pytest.mark.fault(45, 50)
def test_an_issuer_that_refuses_is_asked_once(issuer: Issuer, authority: Authority) -> None:
    issuer.on_token = say(401, {"error": "invalid_client"})
    auth = AuthOptions(
        "oauth2",
        oauth2=OAuth2Options(issuer.url, private_key=KEY, trust_certs_file=authority.file),
    )
    with EmbeddedBroker() as broker:
        found = ClientOptions(broker.service_url, auth=auth)
        with ClientContext(found) as context, pytest.raises(AuthenticationError):
            context.lookup.partitions("t")
        assert len(issuer.asked) == 1
        assert broker.faults.seen("CONNECT") == 0
