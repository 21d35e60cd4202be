"""OAuth2 tokens by client credentials (RFC 6749, section 4.4).

Requests go to the issuer over TLS, and its certificate is always verified; only on this machine may
they go without, and then never through a proxy. Redirects are errors, so that credentials never
reach another host. Answers are not decompressed: a few bytes can decompress to any size.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from pulsar_spark.engine.connections.tls import client_context, load_trusted
from pulsar_spark.engine.deadline import Deadline, call_apart
from pulsar_spark.engine.options import OAuth2Options
from pulsar_spark.errors import (
    AuthenticationError,
    IssuerUnreachable,
    MissingDependency,
    OptionError,
    PulsarError,
    TlsError,
    holds_secret,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.validation import is_unicode

if TYPE_CHECKING:
    import requests

logger = get_logger(__name__)

_WELL_KNOWN = "/.well-known/openid-configuration"
_TIMEOUT = 8.0
"""Timeout in seconds for getting a token, including discovery."""
_MAX_BODY = 1024 * 1024
_MAX_KEY = 1024 * 1024
_CHUNK = 1024
_LIFETIME = 60.0
"""Lifetime of a token whose issuer does not state one."""
_MARGIN = 60.0
"""A token is replaced this many seconds before it expires, or a tenth of its lifetime before."""
_PAUSE = 5.0
"""A token that is refused is replaced no sooner after it was asked for, in seconds.

A broker that takes no token at all must not make its clients besiege the issuer. Nor is an issuer
that cannot be asked tried again sooner, while there is a token that has not expired.
"""

_CREDENTIALS = (
    "Check the credentials, audience and scope of pulsar.client.authParams with the issuer."
)
_NO_METADATA = f"publishes no {_WELL_KNOWN}"
_ISSUER = "Check issuerUrl in pulsar.client.authParams: issuers publish it below that URL."
_REACH = "Check the issuer's URL, and that this machine can reach it."


def oauth2_options(fields: Mapping[str, str], trusted: str | None = None) -> OAuth2Options | None:
    """Read the options from Java's or Python's parameter names; None if some are missing.

    `trusted` verifies the issuer's certificate if the parameters name no certificate.
    """

    def field(java: str, python: str) -> str | None:
        return fields.get(java) or fields.get(python)

    issuer = field("issuerUrl", "issuer_url")
    key = field("privateKey", "private_key")
    client, secret = field("clientId", "client_id"), field("clientSecret", "client_secret")
    kind = fields.get("type", "client_credentials")
    if not issuer or not (key or (client and secret)) or kind != "client_credentials":
        return None
    return OAuth2Options(
        issuer,
        private_key=key,
        client_id=None if key else client,
        client_secret=None if key else secret,
        audience=fields.get("audience"),
        scope=fields.get("scope"),
        trust_certs_file=field("trustCertsFilePath", "trust_certs_file_path") or trusted,
    )


class OAuth2Auth:
    """Log in with an issuer's token, which is fetched when needed and then cached."""

    method_name = "token"

    def __init__(self, options: OAuth2Options) -> None:
        _check_url("issuerUrl", options.issuer_url)
        self._options = options
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._token = b""
        self._asked_at = self._renew_at = self._expires_at = 0.0
        self._failure: PulsarError | None = None

    def __repr__(self) -> str:
        return f"OAuth2Auth({self._options!r})"

    def identity(self) -> bytes:
        """Return a digest of the current credentials; raises AuthenticationError."""
        return hashlib.sha256(json.dumps(self._client(), sort_keys=True).encode()).digest()

    def auth_data(self) -> bytes | None:
        """Return a token that has not expired.

        Raises AuthenticationError if the issuer refuses, TlsError if it is not trusted,
        IssuerUnreachable if it cannot be asked now.
        """
        known = self._failure
        with self._lock:
            if time.monotonic() >= self._renew_at:
                if self._failure is not None and self._failure is not known:
                    # While this thread waited: each waiting for a time-out of its own takes long.
                    raise self._failure.with_context()
                self._renew()
            return self._token

    def _renew(self) -> None:
        """Replace the token, or keep one that has not expired if the issuer cannot be asked now."""
        asked = time.monotonic()
        try:
            self._token, lifetime = self._fetch_in_time()
        except PulsarError as error:
            left = self._expires_at - time.monotonic()
            if error.retryable and left > 0:
                logger.warning("the OAuth2 token expires in %.0f s: %s", left, error)
                self._renew_at = time.monotonic() + min(_PAUSE, left)
                return
            self._failure = error.with_context()
            raise
        self._asked_at = asked
        self._expires_at = asked + lifetime
        self._renew_at = self._expires_at - min(_MARGIN, lifetime / 10)

    def refused(self, token: bytes) -> bool:
        """Drop a token that a broker did not take; whether `auth_data` has another one now.

        The broker's clock may be ahead, or the token may have been revoked.
        """
        with self._lock:
            if token == self._token:
                self._expires_at = 0.0
                self._renew_at = min(self._renew_at, self._asked_at + _PAUSE)
            return token != self._token or time.monotonic() >= self._renew_at

    def _client(self) -> tuple[str, str]:
        """Return the client's id and secret."""
        options = self._options
        if options.client_id is not None and options.client_secret is not None:
            return options.client_id, options.client_secret
        fields = _key(options.private_key or "")
        client, secret = fields.get("client_id"), fields.get("client_secret")
        if not (isinstance(client, str) and isinstance(secret, str) and client and secret):
            raise AuthenticationError(
                "the key of OAuth2 has no client_id or no client_secret",
                'It is JSON: {"type": "client_credentials", "client_id": …, "client_secret": …}.',
            )
        if not is_unicode(client) or not is_unicode(secret):
            raise AuthenticationError(
                "the key of OAuth2 contains characters that are not Unicode",
                "Take it as the issuer gives it.",
            )
        return client, secret

    def _fetch_in_time(self) -> tuple[bytes, float]:
        """As `_fetch`; raises IssuerUnreachable if it takes too long."""
        # On a busy machine the first import takes seconds, which are not the issuer's.
        _import_packages()
        host = _host(self._options.issuer_url)
        sockets = _Sockets()
        fetch = partial(self._fetch, Deadline(_TIMEOUT), sockets)
        try:
            # Timeouts of HTTP clients apply to each read: an issuer that sends byte by byte would
            # never exceed one.
            return call_apart(fetch, _TIMEOUT + 0.1, f"pulsar-oauth2-{host}")
        except FutureTimeout:
            raise _too_slow(host) from None
        finally:
            sockets.end()

    def _fetch(self, deadline: Deadline, sockets: _Sockets) -> tuple[bytes, float]:
        """Return a new token and its lifetime in seconds."""
        client, secret = self._client()
        with _session(self._options, client, secret, deadline, sockets) as session:
            endpoint = self._endpoint(session, deadline, secret)
            wanted = {"audience": self._options.audience} if self._options.audience else {}
            answer = _asked(
                endpoint,
                lambda: session.fetch_token(
                    endpoint,
                    grant_type="client_credentials",
                    timeout=max(deadline.remaining(), 0.001),
                    allow_redirects=False,
                    **wanted,
                ),
            )
        token, lifetime = answer.get("access_token"), answer.get("expires_in", _LIFETIME)
        if not token or not is_unicode(token):
            raise AuthenticationError(f"{_host(endpoint)} gave no access_token", _CREDENTIALS)
        try:
            seconds = max(float(lifetime), 0.0)
        except (TypeError, ValueError, OverflowError):
            seconds = _LIFETIME
        return token.encode(), seconds

    def _endpoint(self, session: Any, deadline: Deadline, secret: str) -> str:
        """Return the token URL that the issuer publishes."""
        url = self._options.issuer_url.rstrip("/") + _WELL_KNOWN
        metadata = _asked(
            url,
            lambda: session.get(
                url,
                withhold_token=True,
                timeout=max(deadline.remaining(), 0.001),
                allow_redirects=False,
            ).json(),
            _NO_METADATA,
            _ISSUER,
            # If it gave a token before, the URL is right.
            passes=bool(self._token),
        )
        endpoint = metadata.get("token_endpoint")
        if not isinstance(endpoint, str):
            raise AuthenticationError(f"{_host(url)} names no token_endpoint", _REACH)
        _check_url("token_endpoint", endpoint, plain=urlsplit(url).scheme == "http")
        if holds_secret(endpoint, (secret,)):
            raise AuthenticationError(
                f"{_host(url)} names a token_endpoint that contains the client's secret",
                "Ask who runs the issuer, and change the secret.",
            )
        return endpoint


def _check_url(what: str, url: str, *, plain: bool = True) -> None:
    """Raise OptionError for a URL that is not safe for secrets; `plain` allows http:// here."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        secret = parts.username is not None or parts.password is not None
    except ValueError:
        host, secret = "", True
    schemes = ("https", "http") if plain and _is_here(host) else ("https",)
    if not host or secret or parts.scheme not in schemes:
        raise OptionError(
            f"{what} of OAuth2 is not an https:// URL without a password",
            "Credentials are sent there: http:// is taken on this machine alone.",
        )


def _is_here(host: str) -> bool:
    """Whether a host is this machine by its name, whoever is asked."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _key(value: str) -> dict[str, Any]:
    """Return the key: JSON text, a ``data:`` URL with it, or a file, as path or ``file://``."""
    value = value.strip()
    try:
        if value.startswith("{"):
            data = value.encode()
        elif value.startswith("data:"):
            kind, _, text = value.partition(",")
            data = unquote_to_bytes(text)
            if kind.endswith(";base64"):
                data = base64.b64decode(data)
        else:
            path = unquote(urlsplit(value).path) if value.startswith("file:") else value
            with Path(path).open("rb") as file:
                data = file.read(_MAX_KEY)
    except OSError as error:
        raise AuthenticationError(
            f"the key file of OAuth2 cannot be read: {error.strerror}",
            "It has to be a file on every machine that reads or writes messages: put it there, or "
            "give the key as JSON or as a data: URL.",
        ) from None
    except ValueError:
        data = b""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise AuthenticationError(
            "the key of OAuth2 is not JSON",
            'It is {"type": "client_credentials", "client_id": …, "client_secret": …}.',
        )
    return fields


# --- requests to the issuer -------------------------------------------------------------------


def _import_packages() -> None:
    """Import the packages that ask the issuer; raises MissingDependency."""
    try:
        import authlib.integrations.requests_client  # noqa: F401 - `_session` uses it
    except ImportError:
        raise MissingDependency(
            "OAuth2 needs the packages authlib and requests",
            "Install pulsar-spark[oauth2] on every machine.",
        ) from None


class _Sockets:
    """The sockets of one attempt, by which another thread ends it: that wakes who reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._sockets: list[socket.socket] = []
        self._ended = False

    def noted(self, kind: Any) -> Any:
        """Return a class of urllib3's connections as `kind`, which `end` ends."""

        def connect(connection: Any) -> socket.socket:
            sock: socket.socket = kind._new_conn(connection)
            self._add(sock)
            return sock

        return type(kind.__name__, (kind,), {"_new_conn": connect})

    def _add(self, sock: socket.socket) -> None:
        # TLS takes the socket itself over, and its owner closes it at any time.
        copy = sock.dup()
        with self._lock:
            self._sockets.append(copy)
            ended = self._ended
        if ended:
            self.end()

    def end(self) -> None:
        """End all connections, and those that are made from now on."""
        with self._lock:
            self._ended = True
            sockets, self._sockets = self._sockets, []
        for sock in sockets:
            # The other side may have ended it. Only reading ends: a socket that is not connected
            # any more is one that TLS takes over without a handshake.
            with sock, contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RD)


def _session(
    options: OAuth2Options, client: str, secret: str, deadline: Deadline, sockets: _Sockets
) -> Any:
    """Return a session that verifies certificates, follows no redirects and limits answers.

    It uses `sockets`. Raises TlsError.
    """
    from authlib.integrations.requests_client import OAuth2Session
    from requests.adapters import HTTPAdapter

    context = client_context()
    context.load_default_certs()
    if options.trust_certs_file is not None:
        load_trusted(context, options.trust_certs_file)

    class Adapter(HTTPAdapter):
        """One request and its bounded answer, wherever authlib or requests would send it."""

        def init_poolmanager(self, *args: Any, **more: Any) -> None:
            super().init_poolmanager(*args, ssl_context=context, **more)

        def proxy_manager_for(self, proxy: str, **more: Any) -> Any:
            return super().proxy_manager_for(proxy, ssl_context=context, **more)

        def get_connection_with_tls_context(self, *args: Any, **more: Any) -> Any:
            pool: Any = super().get_connection_with_tls_context(*args, **more)
            pool.ConnectionCls = sockets.noted(type(pool).ConnectionCls)
            return pool

        def send(self, request: Any, *args: Any, **more: Any) -> requests.Response:
            _check_url("issuerUrl", request.url)
            if _is_here(urlsplit(request.url).hostname or ""):
                # A proxy's own machine is another one, and without TLS it would see the secret.
                more["proxies"] = {}
            request.headers["Accept-Encoding"] = "identity"
            # The secret is in the body; this would be one for another purpose, from ~/.netrc.
            request.headers.pop("Authorization", None)
            response = super().send(request, *args, **{**more, "stream": True})
            _check_answer(response, deadline)
            return response

    # Sent in the body, as Java's client does.
    session = OAuth2Session(
        client,
        secret,
        token_endpoint_auth_method="client_secret_post",
        scope=options.scope,
    )
    session.mount("https://", Adapter())
    session.mount("http://", Adapter())
    return session


def _check_answer(response: requests.Response, deadline: Deadline) -> None:
    """Read an answer within its limits; raise its status as an error, without its text."""
    host, status = _host(response.url), response.status_code
    try:
        body = _body(response, deadline)
    except BaseException:
        # Its connection is in no pool that is closed.
        response.close()
        raise
    response._content = body
    if 300 <= status < 400:
        raise AuthenticationError(
            f"{host} answers by a redirect ({status}), and credentials are never sent to a "
            "redirect",
            "Give the issuer's own address as issuerUrl.",
        )
    if status in (408, 425, 429) or status >= 500:
        raise IssuerUnreachable(f"{host} answers with status {status}", "Try again later.")
    if status >= 400 and response.request.method == "GET":
        raise AuthenticationError(f"{host} {_NO_METADATA} (status {status})", _ISSUER)
    if status >= 400:
        raise AuthenticationError(
            f"{host} refuses to give a token (status {status}{_code(body)})", _CREDENTIALS
        )
    try:
        response.json()
    except (ValueError, RecursionError):
        raise _NotJsonError from None


def _body(response: requests.Response, deadline: Deadline) -> bytes:
    """Return an answer's body; raises AuthenticationError if it is encoded or too long."""
    host = _host(response.url)
    if response.raw.headers.get("Content-Encoding", "").strip().lower() not in ("", "identity"):
        raise AuthenticationError(
            f"{host} answers with a Content-Encoding, although it was asked for none", _REACH
        )
    body = bytearray()
    # Not `stream`, which reads lines of any length between chunks.
    while part := _read(response):
        body += part
        if len(body) > _MAX_BODY:
            raise AuthenticationError(f"{host} answers with more than {_MAX_BODY} bytes", _REACH)
        if deadline.expired():
            raise _too_slow(host)
    return bytes(body)


class _NotJsonError(Exception):
    """A successful answer is not JSON."""


def _read(response: requests.Response) -> bytes:
    """Return the next bytes of the body as they came; raises as requests does."""
    from requests import ConnectionError
    from urllib3.exceptions import HTTPError

    try:
        part: bytes = response.raw.read(_CHUNK, decode_content=False)
    except HTTPError as error:
        raise ConnectionError(error) from None
    return part


def _too_slow(host: str) -> IssuerUnreachable:
    return IssuerUnreachable(f"{host} gave no whole answer within {_TIMEOUT:g} s", _REACH)


def _code(body: bytes) -> str:
    """Return RFC 6749's error code from an answer; free text could repeat secrets."""
    try:
        code = json.loads(body).get("error")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return f", {code}" if code in _CODES else ""


_CODES = frozenset(
    {
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
        "access_denied",
        "invalid_target",
    }
)


def _asked(
    url: str,
    ask: Any,
    unfit: str = "answers with something that is not JSON of a token",
    remedy: str = _CREDENTIALS,
    *,
    passes: bool = True,
) -> dict[str, Any]:
    """Return the JSON object of an answer; raises only errors of this package.

    `unfit` and `remedy` are for an answer that is none. It `passes` if it is not even JSON.
    """
    import requests
    from authlib.integrations.base_client.errors import OAuthError

    try:
        answer = ask()
    except requests.exceptions.SSLError as error:
        why = _tls_reason(error)
        raise TlsError(
            f"the certificate of {_host(url)} is not accepted ({why})",
            "Set trustCertsFilePath in authParams to the PEM certificates of its authority.",
        ) from None
    except _NotJsonError:
        if passes:
            raise IssuerUnreachable(
                f"the OAuth2 issuer {_host(url)} answers with something that is not JSON",
                "It may be a page for the time of maintenance: try again later.",
            ) from None
        what = unfit
    except OAuthError:
        what = "refuses to give a token"
    except (ValueError, TypeError, OverflowError) as error:
        what = unfit
        if isinstance(error, requests.exceptions.RequestException):
            # A proxy's URL in the environment, of a kind that requests does not know.
            what = f"cannot be asked ({type(error).__name__}; is HTTPS_PROXY right?)"
            remedy = _REACH
    except requests.exceptions.RequestException as error:
        raise IssuerUnreachable(
            f"the OAuth2 issuer {_host(url)} cannot be asked ({type(error).__name__})", _REACH
        ) from None
    else:
        if isinstance(answer, dict):
            return answer
        what = unfit
    raise AuthenticationError(f"the OAuth2 issuer {_host(url)} {what}", remedy)


def _tls_reason(error: BaseException) -> str:
    """Return OpenSSL's reason, which is at the end of a chain of errors."""
    seen: BaseException | None = error
    for _ in range(10):
        if isinstance(seen, ssl.SSLCertVerificationError):
            return seen.verify_message
        inner = getattr(seen, "reason", None) or (seen.args[0] if seen and seen.args else None)
        seen = inner if isinstance(inner, BaseException) else None
    return "TLS failed"


def _host(url: str) -> str:
    """Return host and port only: the rest of a URL can hold secrets."""
    try:
        parts = urlsplit(url)
        return parts.netloc.rpartition("@")[2]
    except ValueError:
        return "the issuer"
