"""GETs for service discovery over http:// and https://, on threads of their own.

Operations wait for the futures that `HttpClient.get` returns. `Transport` connects, so that names,
TLS and time limits are those of the binary protocol; Python's `http.client` does the parsing. An
answer is read within a deadline and a bound, whoever sends it. Credentials go to the hosts of the
service URL alone: a redirect to another one is followed without them.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import logging
import os
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
)
from pulsar_spark.engine.connections.addresses import ServiceUrl, parse_service_url, unreachable
from pulsar_spark.engine.connections.tls import tls_context
from pulsar_spark.engine.connections.transport import Transport
from pulsar_spark.engine.lookups.lookup import too_many_redirects
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.retry import Deadline
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
)

logger = logging.getLogger(__name__)

THREADS = 8
"""Requests of one client that are under way at a time, and the threads for them."""

MAX_KEPT = 8
"""Connections that one thread keeps for its next request."""

_IDLE_SECONDS = 5.0
_POLL_SLICE = 0.25
_MAX_HEADERS = 256 * 1024
_MAX_LOCATION = 8 * 1024
_MAX_ERROR_BODY = 64 * 1024
_MAX_TOLD = 8
"""Credentials, the latest, that are looked for in what hosts answer: those under way and more."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NOT_HTTP = (
    "service.url has to name the web service of the brokers, whose port is 8080 or, with TLS, "
    "8443; the port 6650 is that of pulsar:// service URLs."
)

_BY_STATUS: Mapping[int, type[BrokerError]] = {
    400: NotAllowed,
    401: AuthenticationError,
    403: AuthorizationError,
    404: TopicNotFound,
    405: NotAllowed,
    406: NotAllowed,
    408: ServiceNotReady,
    # Somebody else is at it, such as another client that has the same topic created.
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
    """What is asked for: path and query; until when; how many seconds the asking itself may take;
    how long the answer may be.
    """

    target: str
    deadline: Deadline
    timeout: float
    limit: int
    future: Future[Any]


class _Answer(NamedTuple):
    """What a host said, and whether it was given credentials."""

    host: str
    status: int
    location: str
    body: bytes
    trusted: bool


class HttpClient:
    """Asks the hosts of an http(s) service URL, several things at a time. Thread-safe.

    No thread is started before something is asked, and each ends when there is nothing to do.
    """

    def __init__(self, options: ClientOptions, auth: AuthProvider) -> None:
        self._options = options
        self._url = parse_service_url(options.service_url)
        self._auth = auth
        self._pid = os.getpid()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._threads = 0
        self._idle = 0
        self._closed = False
        self._open: set[_Connection] = set()
        # What hosts were told of late, in every form in which they might say it again.
        self._secrets: deque[frozenset[str | bytes]] = deque(maxlen=_MAX_TOLD)
        self._told: dict[str, str] = {}
        # As with brokers: clients spread over the hosts, and stay where they were answered.
        self._hosts = list(self._url.hosts)
        random.shuffle(self._hosts)

    def get(self, target: str, timeout: float, limit: int) -> Future[Any]:
        """Return the future of the JSON value that is answered.

        It may take `timeout` seconds, from when a thread is free for it, and have `limit` bytes.
        Fails with the error that the status stands for
        (TopicNotFound for 404), ConnectError, ConnectionLost, RemoteProtocolError for what is not
        HTTP, not JSON or too long, and OperationTimeout.
        """
        if os.getpid() != self._pid:
            raise ClosedError(
                "the client was made by another process and cannot be used after a fork",
                "Make a client of its own in each process.",
            )
        end = Deadline(self._options.operation_timeout)
        request = _Request(target, end, timeout, limit, Future())
        request.future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
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

    def close(self) -> None:
        """End all connections; what was asked fails with ClosedError. May be called twice."""
        if os.getpid() != self._pid:
            # The parent uses the sockets: only this process's ends of them are given back.
            for connection in list(self._open):
                connection.transport.close()
            return
        with self._lock:
            self._closed = True
            threads = self._threads
            for connection in self._open:
                connection.transport.shutdown()
        self._fail_waiting(ClosedError("the client is closed"))
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
                    gone = ClosedError("the client is closed") if closed else error
                    request.future.set_exception(gone)
                except Exception:
                    logger.exception("a lookup over %s failed by an internal error", self._scheme)
                    request.future.set_exception(ConnectionLost("an internal error, see the log"))
                else:
                    request.future.set_result(value)
                # What is done is not held while there is nothing to do.
                del request
        finally:
            for host in list(kept):
                self._drop(kept, host)

    def _next(self) -> _Request | None:
        """Wait for a request; None where the thread is to end."""
        with self._lock:
            self._idle += 1
        try:
            request = self._requests.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            request = None
        with self._lock:
            self._idle -= 1
            if request is None and not self._closed and not self._requests.empty():
                # It came just when the waiting was over.
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
        """Return the parsed answer to a request, wherever it leads."""
        left = min(request.timeout, request.deadline.remaining())
        request = request._replace(deadline=Deadline(left))
        answer = self._first(request, kept)
        target = request.target
        followed = 0
        while answer.status in _REDIRECTS:
            if followed == self._options.max_lookup_redirects:
                raise too_many_redirects(followed)
            followed += 1
            host, target = self._redirected(answer, target)
            answer = self._exchange(host, target, request, kept)
        return self._parsed(answer, request.limit)

    def _first(self, request: _Request, kept: dict[str, _Connection]) -> _Answer:
        """Ask a host of the service URL, and the next one where there is none to ask."""
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
        raise unreachable(errors)

    def _put_last(self, host: str) -> None:
        """Have whoever comes next begin with another host."""
        with self._lock:
            self._hosts.remove(host)
            self._hosts.append(host)

    def _redirected(self, answer: _Answer, target: str) -> tuple[str, str]:
        """Return the host and the target that an answer leads to."""
        here = f"{self._scheme}://{answer.host}"
        try:
            url = urlsplit(urljoin(here + target, answer.location[:_MAX_LOCATION]))
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
        """Send a GET and return the answer, on a connection that is there or on a new one."""
        request.deadline.check(f"the lookup at {host}")
        headers = {
            "Accept": "application/json",
            "User-Agent": f"pulsar-spark-{__version__}",
        }
        trusted = host in self._url.hosts
        if trusted:
            headers |= self._credentials()
        used = kept.get(host)
        if used is not None:
            try:
                return self._ask(used, target, headers, request, kept, trusted)
            except ConnectionLost:
                # A server ends a connection whenever it likes, just before a request too.
                if used.heard:
                    raise
        connection = self._connect(host, request.deadline)
        kept[host] = connection
        if len(kept) > MAX_KEPT:
            self._drop(kept, next(iter(kept)))
        return self._ask(connection, target, headers, request, kept, trusted)

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
        connection.close()
        raise ClosedError("the client is closed")

    def _drop(self, kept: dict[str, _Connection], host: str) -> None:
        connection = kept.pop(host)
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _credentials(self) -> dict[str, str]:
        """Return the headers that log in, and remember what must not be shown."""
        data, headers = credentials(lambda: http_headers(self._auth), self._url.hosts[0])
        with self._lock:
            if headers != self._told:
                self._told = headers
                forms = forms_of(data or b"", self._auth.method_name) | {*headers.values()}
                self._secrets.append(forms - {self._auth.method_name})
        return headers

    # --- answers ------------------------------------------------------------------------------

    def _parsed(self, answer: _Answer, limit: int) -> Any:
        """Return the JSON value of an answer; raises the error that its status stands for."""
        if answer.status != 200:
            raise self._refusal(answer)
        if len(answer.body) > limit:
            raise _too_long(answer.host, limit)
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise RemoteProtocolError(
                f"{answer.host} answers with something that is not JSON",
                _NOT_HTTP,
                broker=answer.host,
            ) from None

    def _refusal(self, answer: _Answer) -> PulsarError:
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
        if status == 401 and from_pulsar and "authenticat" not in reason.lower():
            # So it answers a role that may not do this; who is let in is decided before.
            kind = AuthorizationError
        text = f"status {status}, {reason}" if reason else f"status {status}"
        with self._lock:
            secrets = frozenset().union(*self._secrets)
        return from_server_error(kind.code, text, secrets, broker=host)


def _reason(body: bytes) -> tuple[str, bool]:
    """Return what is said of a refusal, and whether it is Pulsar's own code that says it."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        text = str(parsed.get("reason") or parsed.get("message") or "")
        return " ".join(text.split()), "reason" in parsed
    text = body.decode("utf-8", "replace")
    # A page for people says nothing that the status does not.
    return "" if text.lstrip().startswith("<") else " ".join(text.split()), False


def _too_long(host: str, limit: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"{host} answers with more than {limit} bytes", broker=host)


class _Connection:
    """A connection to a web service, for one thread. `heard`: of the last request, any byte."""

    def __init__(self, host: str, transport: Transport) -> None:
        self.host = host
        self.transport = transport
        self._stream = _Stream(transport)

    @property
    def heard(self) -> bool:
        """Whether anything came since the last request was sent."""
        return self._stream.heard

    def get(
        self, target: str, headers: Mapping[str, str], request: _Request, trusted: bool
    ) -> tuple[_Answer, bool]:
        """Return the answer to a GET, and whether the connection can take another."""
        stream = self._stream
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
        except ConnectionLost:
            # That our certificate is not taken can be said after the handshake.
            self.transport.check_refusal()
            raise
        except http.client.RemoteDisconnected:
            raise self._lost("ended the connection without an answer") from None
        except (http.client.HTTPException, ValueError) as error:
            if isinstance(error, http.client.IncompleteRead) and stream.ended:
                raise self._lost("ended the connection within an answer") from None
            # Neither kind shows what was sent: it can hold credentials.
            raise RemoteProtocolError(
                f"what listens on {self.host} does not speak HTTP", _NOT_HTTP, broker=self.host
            ) from None
        return _Answer(self.host, response.status, location, body, trusted), reusable

    def _lost(self, what: str) -> ConnectionLost:
        return ConnectionLost(f"{self.host} {what}", _NOT_HTTP, broker=self.host)

    def close(self) -> None:
        """Give the socket back."""
        self.transport.close()


class _Stream:
    """A transport as `http.client` wants its sockets, under a deadline and a bound."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._deadline = Deadline(0)
        self._allowed = 0
        self.heard = False
        self.ended = False

    def begin(self, deadline: Deadline, allowed: int) -> None:
        """Have the next request and its answer be done by a deadline, in so many bytes."""
        self._deadline = deadline
        self._allowed = allowed
        self.heard = False

    def sendall(self, data: bytes) -> None:
        """Write it all."""
        rest = self._transport.send_some([data])
        while rest:
            self._transport.wait_writable(min(self._remaining(), _POLL_SLICE))
            rest = self._transport.send_some(rest)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a file of what comes, whose end is not that of the connection."""
        return io.BufferedReader(_Incoming(self))

    def receive(self) -> bytes:
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
        return data

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
        """Nothing: whoever has the connection closes it."""


class _Incoming(io.RawIOBase):
    """What comes on a stream, for a buffered file of one answer."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(self._stream.receive())
        view = memoryview(buffer)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
