"""GET requests to http:// and https:// service URLs, on threads of their own.

Operations wait for the futures of `HttpClient.get`. `Transport` connects, so DNS, TLS and timeouts
are those of the binary protocol; Python's `http.client` parses. Answers have a deadline and a
size limit. Credentials go only to the hosts of the service URL: redirects to other hosts are
followed without them.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import queue
import random
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from pulsar_spark import __version__
from pulsar_spark.engine.authentication.providers import (
    AuthProvider,
    credentials,
    forms_of,
    http_headers,
    refusal_by,
)
from pulsar_spark.engine.connections.addresses import (
    ServiceUrl,
    parse_service_url,
    refuse_secret,
    too_many_redirects,
    unreachable,
)
from pulsar_spark.engine.connections.tls import tls_context
from pulsar_spark.engine.connections.transport import Transport
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.forks import fork_count, used_after_fork
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    BrokerInvalidTopicName,
    ClosedError,
    ConnectError,
    ConnectionLost,
    NotAllowed,
    OperationTimeout,
    OptionError,
    PulsarError,
    RemoteProtocolError,
    ServiceNotReady,
    TooManyRequests,
    TopicNotFound,
    UnknownServerError,
    from_server_error,
    redact,
)
from pulsar_spark.logs import get_logger

logger = get_logger(__name__)

THREADS = 8
"""How many requests of one client run at a time, each on a thread."""

MAX_KEPT = 8
"""How many idle connections a thread keeps for its next request."""

_IDLE_SECONDS = 5.0
_POLL_SLICE = 0.25
_MAX_HEADERS = 256 * 1024
_MAX_LOCATION = 8 * 1024
_MAX_ERROR_BODY = 64 * 1024
_MAX_KIND = 100
_MAX_CREDENTIALS = 8
"""How many recent credentials are searched for in answers, to redact them."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NOT_HTTP = (
    "service.url has to name the web service of the brokers, whose port is 8080 or, with TLS, "
    "8443; the port 6650 is that of pulsar:// service URLs."
)

# A server answers so where it does not have what it is asked for. Pulsar says why: {"reason": …},
# but up to 2.10 nothing of a schema that is not there.
_MISSING = frozenset({404, 405, 406})
# Paths that all brokers have; the others are for names with a cluster in them.
_KNOWN_TO_ALL = ("/lookup/v2/topic/", "/admin/v2/")

_BY_STATUS: Mapping[int, type[BrokerError]] = {
    400: NotAllowed,
    401: AuthenticationError,
    403: AuthorizationError,
    404: TopicNotFound,
    405: NotAllowed,
    406: NotAllowed,
    408: ServiceNotReady,
    # Another client is doing the same, such as creating the topic.
    409: ServiceNotReady,
    412: NotAllowed,
    422: BrokerInvalidTopicName,
    425: TooManyRequests,
    429: TooManyRequests,
    502: ServiceNotReady,
    503: ServiceNotReady,
    504: ServiceNotReady,
}


class _Request(NamedTuple):
    """A request: path and query, deadline, seconds for the exchange itself, and the answer's size
    limit.
    """

    target: str
    deadline: Deadline
    timeout: float
    limit: int
    future: Future[Any]


class _Answer(NamedTuple):
    """A host's answer, whether credentials may be sent to it, and which were."""

    host: str
    status: int
    location: str
    kind: str
    body: bytes
    trusted: bool
    sent: bytes | None = None


class HttpClient:
    """Sends GET requests to the hosts of an http(s) service URL, several at a time. Thread-safe.

    Threads start with the first request, and end when there is nothing to do. `cluster` as in
    `BrokerAddress`.
    """

    def __init__(self, options: ClientOptions, auth: AuthProvider, cluster: int = 0) -> None:
        self.cluster = cluster
        self._options = options
        self._url = parse_service_url(options.service_url)
        self._auth = auth
        self._forks = fork_count()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._threads = 0
        self._idle = 0
        self._closed = False
        # Why requests fail then.
        self._gone: PulsarError = ClosedError("the client is closed")
        self._open: set[_Connection] = set()
        # Credentials recently sent, in every form in which a host might repeat them.
        self._secrets: deque[frozenset[str | bytes]] = deque(maxlen=_MAX_CREDENTIALS)
        self._last_headers: dict[str, str] = {}
        # As with brokers: each client starts at a random host, and stays where it gets answers.
        self._hosts = list(self._url.hosts)
        random.SystemRandom().shuffle(self._hosts)

    def get(self, target: str, timeout: float, limit: int) -> Future[Any]:
        """Return the future of the answer's JSON value.

        It may take `timeout` seconds from when a thread is free, and have `limit` bytes. Fails with
        the status's error (TopicNotFound for 404), ConnectError, ConnectionLost, OperationTimeout,
        or RemoteProtocolError for an answer that is not HTTP, not JSON or too long.
        """
        if fork_count() != self._forks:
            raise used_after_fork("client")
        end = Deadline(self._options.operation_timeout)
        request = _Request(target, end, timeout, limit, Future())
        request.future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise self._gone.with_context()
            self._requests.put(request)
            start = self._idle < self._requests.qsize() and self._threads < THREADS
            self._threads += start
        if start:
            self._start_thread()
        return request.future

    def _start_thread(self) -> None:
        name = f"pulsar-http-{self._url.hosts[0]}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._threads -= 1
                alone = not self._threads
            if alone:
                self._fail_waiting(ConnectError(f"no thread could be started ({error})"))

    def close(self, error: PulsarError | None = None) -> None:
        """Close all; requests fail with ClosedError, or that error. May be called twice."""
        if fork_count() != self._forks:
            # The parent still uses the sockets: close only this process's copies.
            for connection in list(self._open):
                connection.transport.close()
            return
        with self._lock:
            self._gone = error or self._gone
            self._closed = True
            threads = self._threads
            for connection in self._open:
                connection.transport.shutdown()
        self._fail_waiting(self._gone)
        for _ in range(threads):
            self._requests.put(None)

    def _fail_waiting(self, error: PulsarError) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                if (request := self._requests.get_nowait()) is not None:
                    request.future.set_exception(error.with_context())

    # --- the threads --------------------------------------------------------------------------

    def _work(self) -> None:
        kept: dict[str, _Connection] = {}
        try:
            while (request := self._next()) is not None:
                try:
                    value = self._value(request, kept)
                except PulsarError as error:
                    closed = self._closed and not isinstance(error, ClosedError)
                    gone = self._gone.with_context() if closed else error
                    request.future.set_exception(gone)
                except BaseException:
                    # Whatever it is, who waits is told, and the thread goes on.
                    logger.exception("a lookup over %s failed by an internal error", self._scheme)
                    request.future.set_exception(ConnectionLost("an internal error, see the log"))
                else:
                    request.future.set_result(value)
                # Don't keep the last request alive while waiting for the next.
                del request
        finally:
            for host in list(kept):
                self._drop(kept, host)

    def _next(self) -> _Request | None:
        """Wait for a request; None if the thread should end."""
        with self._lock:
            self._idle += 1
        try:
            request = self._requests.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            request = None
        with self._lock:
            self._idle -= 1
            if request is None and not self._closed and not self._requests.empty():
                # A request may arrive just when the wait times out.
                with contextlib.suppress(queue.Empty):
                    request = self._requests.get_nowait()
            if request is None:
                self._threads -= 1
        return request

    @property
    def _scheme(self) -> str:
        return "https" if self._url.tls else "http"

    # --- one request --------------------------------------------------------------------------

    def _value(self, request: _Request, kept: dict[str, _Connection]) -> Any:
        """Return a request's parsed answer, after all redirects."""
        left = min(request.timeout, request.deadline.remaining())
        request = request._replace(deadline=Deadline(left))
        answer = self._first(request, kept)
        first, target = answer.host, request.target
        followed = 0
        while answer.status in _REDIRECTS:
            if followed == self._options.max_lookup_redirects:
                self._put_last(first)
                raise too_many_redirects(followed)
            followed += 1
            host, target = self._redirected(answer, target)
            answer = self._exchange(host, target, request, kept)
        return self._parsed(answer, target, request.limit)

    def _first(self, request: _Request, kept: dict[str, _Connection]) -> _Answer:
        """Send a request to a host of the service URL; try the next one if it cannot be reached."""
        with self._lock:
            hosts = list(self._hosts)
        errors: list[PulsarError] = []
        for number, host in enumerate(hosts):
            share = request.deadline.remaining() / (len(hosts) - number)
            one = request._replace(deadline=Deadline(share))
            try:
                answer = self._exchange(host, request.target, one, kept)
            except (ConnectError, ConnectionLost, OperationTimeout, RemoteProtocolError) as error:
                errors.append(error)
                self._put_last(host)
                continue
            if answer.status >= 500:
                self._put_last(host)
            return answer
        raise unreachable(errors, fails_fast=self._options.fails_fast)

    def _put_last(self, host: str) -> None:
        """Let the next request start with another host."""
        with self._lock:
            self._hosts.remove(host)
            self._hosts.append(host)

    @property
    def secrets(self) -> frozenset[str | bytes]:
        """Credentials that were sent recently, in every form in which a host might repeat them."""
        with self._lock:
            return frozenset().union(*self._secrets)

    def _redirected(self, answer: _Answer, target: str) -> tuple[str, str]:
        """Return the host and path that a redirect leads to."""
        here = f"{self._scheme}://{answer.host}"
        try:
            url = urlsplit(urljoin(here + target, answer.location[:_MAX_LOCATION]))
            refuse_secret(url.netloc, self.secrets)
            host = parse_service_url(f"{url.scheme}://{url.netloc}")
        except (ValueError, OptionError):
            host = ServiceUrl(False, ())
        if not answer.location or len(host.hosts) != 1 or not host.web:
            raise RemoteProtocolError(
                f"{answer.host} redirects the lookup to an address that is not a web address",
                "Check the advertised addresses of the brokers.",
            )
        if host.tls != self._url.tls:
            raise RemoteProtocolError(
                f"{answer.host} redirects the lookup to an address of another scheme than "
                "service.url's; connections are never downgraded from TLS to plain text",
                "Have TLS enabled on the web service of all brokers (webServicePortTls)."
                if self._url.tls
                else "Write service.url as https://host:8443.",
            )
        return host.hosts[0], url.path + (f"?{url.query}" if url.query else "")

    def _exchange(
        self, host: str, target: str, request: _Request, kept: dict[str, _Connection]
    ) -> _Answer:
        """Send a GET and return the answer, on a kept connection or a new one."""
        request.deadline.check(f"the lookup at {host}")
        headers = {
            "Accept": "application/json",
            "User-Agent": f"pulsar-spark-{__version__}",
        }
        # Names of hosts have no case.
        trusted = host.lower() in map(str.lower, self._url.hosts)
        sent = None
        if trusted:
            sent, more = self._credentials()
            headers |= more
        used = kept.get(host)
        if used is not None:
            try:
                answer = self._ask(used, target, headers, request, kept, trusted)
                return answer._replace(sent=sent)
            except ConnectionLost:
                # A server may close a kept connection at any time, even just before a request.
                if used.stream.heard:
                    raise
        connection = self._connect(host, request.deadline)
        kept[host] = connection
        if len(kept) > MAX_KEPT:
            self._drop(kept, next(iter(kept)))
        answer = self._ask(connection, target, headers, request, kept, trusted)
        return answer._replace(sent=sent)

    def _ask(
        self,
        connection: _Connection,
        target: str,
        headers: Mapping[str, str],
        request: _Request,
        kept: dict[str, _Connection],
        trusted: bool,
    ) -> _Answer:
        reusable = False
        try:
            answer, reusable = connection.get(target, headers, request, trusted)
            return answer
        finally:
            if not reusable:
                self._drop(kept, connection.host)

    def _connect(self, host: str, deadline: Deadline) -> _Connection:
        transport = Transport.connect(
            host,
            min(self._options.connection_timeout, max(deadline.remaining(), 0.001)),
            tls=tls_context(self._options),
            cancelled=lambda: self._closed,
        )
        connection = _Connection(host, transport)
        with self._lock:
            if not self._closed:
                self._open.add(connection)
                return connection
        connection.transport.close()
        raise self._gone.with_context()

    def _drop(self, kept: dict[str, _Connection], host: str) -> None:
        connection = kept.pop(host)
        with self._lock:
            self._open.discard(connection)
        connection.transport.close()

    def _credentials(self) -> tuple[bytes | None, dict[str, str]]:
        """Return credentials and the headers with them; remember them for redaction."""
        data, headers = credentials(lambda: http_headers(self._auth), self._url.hosts[0])
        with self._lock:
            if headers != self._last_headers:
                self._last_headers = headers
                forms = forms_of(data or b"", self._auth) | {*headers.values()}
                self._secrets.append(forms - {self._auth.method_name})
        return data, headers

    # --- answers ------------------------------------------------------------------------------

    def _parsed(self, answer: _Answer, target: str, limit: int) -> Any:
        """Return the JSON value of an answer to `target`; raises its status as an error."""
        if answer.status != 200:
            raise self._refusal(answer, target)
        if len(answer.body) > limit:
            host = answer.host
            raise RemoteProtocolError(f"{host} answers with more than {limit} bytes", broker=host)
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise RemoteProtocolError(
                f"{answer.host} answers with something that is not JSON",
                _NOT_HTTP,
                broker=answer.host,
            ) from None

    def _refusal(self, answer: _Answer, target: str) -> PulsarError:
        host, status = answer.host, answer.status
        if status in (401, 403) and not answer.trusted and self._auth.method_name != "none":
            return AuthenticationError(
                f"the lookup was redirected to {host}, which wants credentials (status {status}); "
                "they are only sent to the hosts in service.url",
                "Name all brokers in service.url, as https://host1:8443,host2:8443, or give the "
                "address of the binary protocol, pulsar+ssl://.",
                broker=host,
            )
        kind = _BY_STATUS.get(status, UnknownServerError)
        reason, from_pulsar = _reason(answer.body)
        if status in _MISSING and not from_pulsar and answer.body:
            return self._no_pulsar(answer, target)
        if status == 401 and from_pulsar and "authenticat" not in reason.lower():
            # The server has accepted the credentials, but this role lacks the permission.
            kind = AuthorizationError
        text = f"status {status}, {reason}" if reason else f"status {status}"
        anonymous = self._auth.method_name == "none"
        error = from_server_error(kind.code, text, self.secrets, anonymous=anonymous, broker=host)
        return refusal_by(error, self._auth, answer.sent)

    def _no_pulsar(self, answer: _Answer, target: str) -> PulsarError:
        """Return the error for a server that has no path of Pulsar's web service."""
        host, kind = answer.host, redact(answer.kind, self.secrets)[:_MAX_KIND]
        told = f"status {answer.status}" + (f", {kind}" if kind else "")
        check = "Check service.url and its port: 8080 or, with TLS, 8443."
        if not target.startswith(_KNOWN_TO_ALL):
            check += (
                " Brokers since Pulsar 4.2 do not know names with a cluster: write "
                "tenant/namespace/topic."
            )
        return RemoteProtocolError(
            f"{host} answers HTTP, but is not Pulsar's web service ({told})", check, broker=host
        )


def _reason(body: bytes) -> tuple[str, bool]:
    """Return the reason for a refusal, and whether Pulsar itself gave it."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        return str(parsed.get("reason") or parsed.get("message") or ""), "reason" in parsed
    text = body.decode("utf-8", "replace")
    # An HTML page adds nothing to the status.
    return "" if text.lstrip().startswith("<") else text, False


class _Connection:
    """A connection to a web service, for one thread."""

    def __init__(self, host: str, transport: Transport) -> None:
        self.host = host
        self.transport = transport
        self.stream = _Stream(transport)

    def get(
        self, target: str, headers: Mapping[str, str], request: _Request, trusted: bool
    ) -> tuple[_Answer, bool]:
        """Return the answer to a GET, and whether the connection can be reused."""
        stream = self.stream
        stream.begin(request.deadline, request.limit + _MAX_HEADERS)
        client = http.client.HTTPConnection(self.host)
        client.sock = stream
        client.auto_open = 0
        try:
            client.request("GET", target, headers={"Host": self.host, **headers})
            response = client.getresponse()
            limit = request.limit if response.status == 200 else _MAX_ERROR_BODY
            body = response.read(limit + 1)
            if response.length and len(body) <= limit:
                raise http.client.IncompleteRead(body)
            reusable = not response.will_close and response.isclosed()
            location = response.getheader("Location") or ""
            kind = (response.getheader("Content-Type") or "").partition(";")[0].strip()
        except ConnectionLost:
            # A server may reject our certificate after the handshake.
            self.transport.check_refusal()
            raise
        except http.client.RemoteDisconnected:
            raise self._lost("ended the connection without an answer") from None
        except (http.client.HTTPException, ValueError) as error:
            if isinstance(error, http.client.IncompleteRead) and stream.ended:
                raise self._lost("ended the connection within an answer") from None
            # Neither error quotes what was sent: it can hold credentials.
            raise RemoteProtocolError(
                f"what listens on {self.host} does not speak HTTP", _NOT_HTTP, broker=self.host
            ) from None
        return _Answer(self.host, response.status, location, kind, body, trusted), reusable

    def _lost(self, what: str) -> ConnectionLost:
        return ConnectionLost(f"{self.host} {what}", _NOT_HTTP, broker=self.host)


class _Stream(io.RawIOBase):
    """Makes a transport a socket and a file for `http.client`, with a deadline and a size limit."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._deadline = Deadline(0)
        self._allowed = 0
        self._rest = memoryview(b"")
        self.heard = False
        """Whether any byte came since the last request was sent."""
        self.ended = False

    def begin(self, deadline: Deadline, allowed: int) -> None:
        """Set the deadline and the size limit of the next request and answer."""
        self._rest = memoryview(b"")
        self._deadline = deadline
        self._allowed = allowed
        self.heard = False

    def sendall(self, data: bytes) -> None:
        """Write all of `data`."""
        rest = self._transport.send_some([data])
        while rest:
            self._transport.wait_writable(min(self._remaining(), _POLL_SLICE))
            rest = self._transport.send_some(rest)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a file that reads from the transport."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(self._receive())
        count = min(len(buffer), len(self._rest))
        memoryview(buffer)[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _receive(self) -> bytes:
        """Return some bytes, ``b""`` at the end."""
        while True:
            data = self._transport.receive(min(self._remaining(), _POLL_SLICE))
            if data is not None:
                break
        self.heard = self.heard or bool(data)
        self.ended = not data
        self._allowed -= len(data)
        if self._allowed < 0:
            raise RemoteProtocolError(
                f"{self._transport.peer} answers with more bytes than such an answer can have",
                broker=self._transport.peer,
            )
        return bytes(data)

    def _remaining(self) -> float:
        left = self._deadline.remaining()
        if not left:
            raise OperationTimeout(
                f"no whole answer came within {self._deadline.seconds:.3g} s",
                "Check that the web service of the brokers is reachable, or raise the operation "
                "timeout.",
                broker=self._transport.peer,
            )
        return left

    def close(self) -> None:
        """Do nothing: the connection's owner closes it."""
