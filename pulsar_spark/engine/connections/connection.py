"""A connection to one broker: a socket, its receive thread, and the requests that wait.

The receive thread connects, shakes hands, reads, answers PING, completes requests and calls the
handlers of consumers and producers. It waits for nothing but the socket. Handlers and request
callbacks run on it, so they must be quick; they may send.

`_mutex` guards the protocol core. It is never held while a handler runs or the socket is
written. The core's output goes to the `WriteQueue`, in order, before the mutex is released.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, cast

from pulsar_spark import __version__
from pulsar_spark.engine.authentication.providers import (
    AuthProvider,
    NoAuth,
    credentials,
    forms_of,
    has_others,
    refusal_by,
)
from pulsar_spark.engine.connections.addresses import BrokerAddress, parse_service_url
from pulsar_spark.engine.connections.handlers import HandlerTable
from pulsar_spark.engine.connections.requests import (
    InFlightLimit,
    Request,
    RequestTable,
    answers_to,
    asked_consumer,
    error_in,
    fail,
    naming_permission,
)
from pulsar_spark.engine.connections.tls import tls_context
from pulsar_spark.engine.connections.transport import Received, Transport, WriteQueue
from pulsar_spark.engine.connections.wrong_scheme import wrong_scheme
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.forks import fork_count, used_after_fork
from pulsar_spark.engine.gathering import put_off
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import (
    AuthenticationError,
    BrokerError,
    ClosedError,
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    PulsarError,
    RemoteProtocolError,
    UnsupportedFeature,
    from_server_error,
    redact,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.commands import CLIENT_PROTOCOL_VERSION
from pulsar_spark.protocol.connection import Connection
from pulsar_spark.protocol.events import CommandReceived, ConnectionFailed, EndOfStream, Event
from pulsar_spark.protocol.frame_parts import BODY_FIELDS
from pulsar_spark.protocol.frames import MessageBlock, ReceiptBlock, encode_command
from pulsar_spark.protocol.states import Role
from pulsar_spark.protocol.validation import ANSWERS, check_body
from pulsar_spark.protocol.versions import (
    CHECKSUMS,
    KEEP_ALIVE,
    answers_acks,
    check_speaks,
    for_peer,
    without_checksums,
)

logger = get_logger(__name__)

CLIENT_VERSION = f"pulsar-spark-{__version__}"

_T = pb.BaseCommand

_TICK = 1.0

SUSPICION = 5.0
"""A broker that owes an answer or receipt and is silent for this long gets a PING.

Brokers answer in milliseconds. An idle connection can break without notice; a PING finds that
out before the next request times out.
"""

PATIENCE = 10.0
"""If the broker stays silent for this long after such a PING, the connection is lost.

A PING of its own is no answer: a broker that reads nothing from a connection any more, because too
many messages are being written, still sends those.
"""

_PING = encode_command(commands.build(pb.CommandPing))

_MAX_LAST_READS = 64
_MAX_LOGIN_STEPS = 10
CLOSE_TIMEOUT = 2.0


class ClientConnection:
    """A connection to a broker, possibly through a proxy. `start` it once, `close` it at the end.

    All methods may be called on any thread. After a fork, the child can only drop the connection.
    Once the connection has ended, methods that send raise ConnectionLost (ClosedError after
    `close`). If the broker accepts no data for the operation timeout, they raise OperationTimeout
    and end the connection.
    """

    def __init__(
        self, address: BrokerAddress, options: ClientOptions, auth: AuthProvider | None = None
    ) -> None:
        self.address = address
        self.options = options
        # Until the broker says otherwise, assume the newest version.
        self.connected = pb.CommandConnected(
            server_version="", protocol_version=CLIENT_PROTOCOL_VERSION
        )
        self._auth = auth or NoAuth()
        self._forks = fork_count()
        self._ready: Future[ClientConnection] = Future()
        self._ready.set_running_or_notify_cancel()
        self._transport: Transport | None = None
        self._writer = WriteQueue(address.logical, options.operation_timeout)
        self.handlers = HandlerTable(self._check_process)
        """Who gets the broker's events: consumers, producers and watchers."""
        self.lookups = InFlightLimit()
        """Limits the requests about topics."""
        self.name_prefix = ""
        """What the broker wants names of subscriptions to begin with, as far as it has said so."""
        self._mutex = threading.Lock()
        # The following are guarded by _mutex.
        self._core = Connection(Role.CLIENT)
        self._requests = RequestTable(self._core.forget_request)
        self._error: PulsarError | None = None
        self._challenges = 0
        # Credentials sent to the broker, in every form in which it might repeat them.
        self._secrets: frozenset[str | bytes] = frozenset()
        # The last ones. One thread at a time asks for credentials.
        self._sent: bytes | None = None
        # The following are used by the receive thread only.
        self._login_steps = 0
        self._logged_unknown = False
        # How many bytes the next read may wait for, as the consumer of the last block said.
        self._gather = 0
        self._heard = True
        self._heard_at = self._pinged_at = 0.0
        name = f"pulsar-{address.logical}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> Future[ClientConnection]:
        """Start connecting; the future gives this connection, ConnectError or a refusal."""
        self._check_process()
        try:
            self._thread.start()
        except RuntimeError as error:
            # There is no thread that could end it.
            self._error = ConnectError(
                f"no thread could be started ({error})", broker=self.address.physical
            )
            self._ready.set_exception(self._error)
        return self._ready

    def open(self) -> ClientConnection:
        """Connect, and wait until the broker accepts; raises as `start`'s future."""
        return self.start().result()

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._error is not None or fork_count() != self._forks

    @property
    def max_message_size(self) -> int:
        """The broker's limit for metadata and payload of one message, in bytes."""
        return self._core.max_message_size

    @property
    def protocol_version(self) -> int:
        """The protocol version that both ends speak."""
        return self.connected.protocol_version

    def check_speaks(self, kind: int) -> None:
        """Raise UnsupportedFeature if the broker's version lacks a type of command."""
        check_speaks(kind, self.protocol_version)

    def _for_broker(self, command: pb.BaseCommand) -> list[pb.BaseCommand]:
        """Adapt a command to the broker's version; raises UnsupportedFeature if that is too old."""
        version = self.protocol_version
        if version >= CLIENT_PROTOCOL_VERSION:
            return [command]
        try:
            return for_peer(command, version)
        except UnsupportedFeature as error:
            raise error.with_context(broker=self.address.logical) from None

    def supports(self, feature: str) -> bool:
        """Whether the broker announced a feature flag, by its name in FeatureFlags."""
        return bool(getattr(self.connected.feature_flags, feature))

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """End the connection, and wait up to `timeout` seconds for its thread.

        Open requests and handlers get ClosedError.
        """
        if fork_count() != self._forks:
            # The parent still uses the socket: close only this process's copy.
            if self._transport is not None:
                self._transport.close()
            return
        self.end(ClosedError("the connection was closed", broker=self.address.logical))
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def end(self, error: PulsarError) -> None:
        """End the connection without waiting; open requests and handlers get the error.

        The receive thread tells them. Later errors change nothing.
        """
        with self._mutex:
            if self._error is not None:
                return
            self._error = error
        if self._transport is not None:
            self._transport.shutdown()

    # --- requests and commands ----------------------------------------------------------------

    def request(
        self, builder: Callable[[int], pb.BaseCommand], timeout: float | None = None
    ) -> Any:
        """Send the command that `builder` makes with a request id, and return the answer's body.

        Raises the broker's error, OperationTimeout after `timeout` (default: the operation
        timeout) seconds, ConnectionLost.
        """
        request = cast(Request, self.request_async(builder, timeout))
        try:
            return request.result(max(request.deadline - time.monotonic(), 0.0))
        except FutureTimeout:
            if self.forget(request):
                raise request.timeout_error(self.address.logical) from None
            return request.result()

    def request_async(
        self, builder: Callable[[int], pb.BaseCommand], timeout: float | None = None
    ) -> Future[Any]:
        """As `request`, but return a future, which holds all errors too.

        It may time out a second late.
        """
        self._check_process()
        timeout = timeout or self.options.operation_timeout
        with self._mutex:
            request_id = self._requests.next_id()
            command = builder(request_id)
            asked = asked_consumer(command)
            request = Request(request_id, command.type, timeout, asked, command)
            try:
                self._check_open()
                parts = self._for_broker(command)
                if asked is not None and not self.handlers.has_consumer(asked):
                    raise self._consumer_closed()
                self._requests.add(request)
                for part in parts:
                    self._core.send(part)
                if command.type == _T.ACK and not answers_acks(self.protocol_version):
                    self._requests.take(request_id)
                    request.set_result(None)
            except PulsarError as error:
                self._requests.take(request_id)
                request.set_exception(error)
                return request
            self._writer.put_commands(self._core.data_to_send())
        try:
            self._flush_soon()
        except PulsarError as error:
            self.abandon(request, error)
        return request

    @property
    def secrets(self) -> frozenset[str | bytes]:
        """Credentials that the broker was sent, in every form in which it might repeat them."""
        return self._secrets

    @property
    def _is_anonymous(self) -> bool:
        return self._auth.method_name == "none"

    def refusal(self, code: int, text: str | bytes, **context: Any) -> BrokerError:
        """Return the broker's error, with our credentials removed from its text."""
        context.setdefault("broker", self.address.logical)
        return from_server_error(code, text, self._secrets, anonymous=self._is_anonymous, **context)

    def forget(self, request: Future[Any]) -> bool:
        """Stop waiting for a request: a late answer is ignored. Return whether it was open."""
        with self._mutex:
            return self._requests.take(cast(Request, request).request_id) is not None

    def abandon(self, request: Future[Any], error: PulsarError) -> None:
        """Stop waiting for a request, as `forget`: if it was open, it fails with the error."""
        if not request.done() and self.forget(request):
            fail(cast(Request, request), error)

    def fail_questions(self, consumer_id: int) -> None:
        """Fail open questions about a consumer that the broker has closed, with ConnectionLost.

        `handlers` has it no more, so none is asked later.
        """
        with self._mutex:
            requests = self._requests.take_asked(consumer_id)
        for request in requests:
            fail(request, self._consumer_closed())

    def _consumer_closed(self) -> PulsarError:
        return ConnectionLost("the broker closed the consumer", broker=self.address.logical)

    def send(self, command: pb.BaseCommand) -> bool:
        """Queue a command and write what the socket accepts; never waits.

        Returns False if the command has become pointless and is not sent.
        """
        self._check_process()
        with self._mutex:
            self._check_open()
            sent = [self._core.send(part) for part in self._for_broker(command)]
            if not any(sent):
                return False
            self._writer.put_commands(self._core.data_to_send())
        self._flush_soon()
        return True

    def put_sends(self, producer_id: int, frames: Sequence[Buffer]) -> None:
        """Queue a producer's SEND frames without waiting; call `write` next.

        Those that have become pointless are dropped. Raises as `send`.
        """
        self._check_process()
        if self.protocol_version < CHECKSUMS:
            frames = [without_checksums(b"".join(frames))]
        with self._mutex:
            self._check_open()
            if self._core.send_frames(producer_id, frames):
                self._writer.put(self._core.data_to_send())

    def write(self, seconds: float | None = None) -> None:
        """Write what was queued, as much as the socket accepts without waiting.

        With `seconds`, wait so long until it has accepted all, so that a slow broker slows senders
        down; then the rest stays queued.
        """
        self._check_process()
        self._flush(None if seconds is None else Deadline(seconds))

    # --- checks and writing -------------------------------------------------------------------

    def _check_process(self) -> None:
        # Before any lock: another thread may have held it when the process forked.
        if fork_count() != self._forks:
            raise used_after_fork("connection", "client", broker=self.address.logical)

    def _check_open(self) -> None:
        if self._error is not None:
            raise _as_lost(self._error)

    def _flush_soon(self) -> None:
        """Write the queue now, or with what this thread sends next; then a failure ends it only."""
        if not put_off(self, self._flush_put_off):
            self._flush()

    def _flush_put_off(self) -> None:
        with contextlib.suppress(PulsarError):
            self._flush()

    def _flush(self, deadline: Deadline | None = None) -> None:
        """Write the queue; wait for that until `deadline`, if there is one."""
        try:
            receives = threading.current_thread() is self._thread
            if receives or deadline is None:
                self._writer.flush_now(wake=not receives)
            else:
                self._writer.flush(deadline)
        except PulsarError as error:
            self.end(error)
            raise

    # --- the receive thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._failing():
                self._receive(self._shake_hands())
            with self._failing():
                self._receive_rest()
        finally:
            self._finish()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except PulsarError as error:
            self.end(error)
        except Exception:
            logger.exception("the connection to %s ends because of an internal error", self.address)
            self.end(ConnectionLost("an internal error, see the log", broker=self.address.logical))

    def _shake_hands(self) -> Transport:
        options = self.options
        command = commands.connect(
            CLIENT_VERSION,
            auth_method_name=self._auth.method_name,
            auth_data=self._credentials(),
            proxy_to_broker_url=self.address.logical if self.address.proxied else None,
        )
        try:
            transport = Transport.connect(
                self.address.physical,
                options.connection_timeout,
                tls=tls_context(options),
                proxy=options.proxy,
                cancelled=lambda: self.closed,
            )
        except ConnectError as error:
            reset = getattr(error.__cause__, "errno", None) == errno.ECONNRESET
            if reset and parse_service_url(options.service_url).tls:
                self._check_scheme(tls=True)
            raise
        self._transport = transport
        self._writer.open(transport)
        with self._mutex:
            self._core.send(command)
            self._writer.put_commands(self._core.data_to_send())
        deadline = Deadline(options.connection_timeout)
        while not self._ready.done() and self._error is None:
            if deadline.expired():
                raise ConnectTimeout(
                    f"the broker did not answer CONNECT within {deadline.seconds:g} s",
                    "Check that service.url names a Pulsar broker or proxy.",
                    broker=self.address.physical,
                )
            try:
                self._receive_once(transport, deadline.remaining())
            except (ConnectionLost, ConnectError):
                transport.check_refusal()
                if not parse_service_url(options.service_url).tls:
                    self._check_scheme(tls=False)
                raise
        return transport

    def _check_scheme(self, *, tls: bool) -> None:
        """Raise an error if the broker ended the connection because `tls` is wrong there."""
        if self._error is None and self.options.proxy is None:
            seconds = self.options.connection_timeout
            found = wrong_scheme(self.address.physical, CLIENT_VERSION, seconds, tls=tls)
            if found is not None:
                raise found

    def _receive(self, transport: Transport) -> None:
        self._pinged_at = time.monotonic()
        tick = min(_TICK, self.options.keep_alive_interval)
        next_tick = 0.0
        while self._error is None:
            now = time.monotonic()
            if now >= next_tick:
                self._keep_alive(now)
                self._expire_requests(now)
                next_tick = now + tick
            self._receive_once(transport, next_tick - now)

    def _receive_once(self, transport: Transport, timeout: float) -> None:
        self._writer.flush_now(wake=False)
        gather, self._gather = self._gather, 0
        data = transport.receive(timeout, or_writable=self._writer.stuck, gather=gather)
        if data is None:
            return
        if not _are_pings(data):
            self._heard = True
            self._heard_at = time.monotonic()
        events = self._take(data)
        # PONG goes out before handlers run.
        self._writer.flush_now(wake=False)
        for event in events:
            self._dispatch(event)

    def _take(self, data: Received) -> list[Event]:
        with self._mutex:
            if data:
                self._core.receive_data(data)
            else:
                self._core.receive_eof()
            events = self._core.events_received()
            if answers := self._core.data_to_send():
                self._writer.put_answers(answers)
        return events

    def _receive_rest(self) -> None:
        """Handle what had come when a write found the connection broken.

        A message whose receipt is left unread is sent, and stored, a second time.
        """
        if self._transport is None or not isinstance(self._error, ConnectionLost):
            return
        for _ in range(_MAX_LAST_READS):
            if not (data := self._transport.receive(0)):
                return
            for event in self._take(data):
                self._dispatch(event)

    def _keep_alive(self, now: float) -> None:
        """Send PING at intervals and on suspicion; raise ConnectionLost if no answer comes."""
        if self.protocol_version < KEEP_ALIVE:
            return
        interval = self.options.keep_alive_interval
        suspect = now - self._heard_at >= SUSPICION and self._waits(now - SUSPICION)
        silent = now - self._pinged_at
        if not self._heard and silent >= (min(PATIENCE, interval) if suspect else interval):
            raise ConnectionLost(
                f"the broker was silent for {silent:.3g} s after a PING",
                broker=self.address.logical,
            )
        if silent < interval and not (suspect and self._heard):
            return
        self._heard = False
        self._pinged_at = now
        with self._mutex:
            self._core.send(commands.build(pb.CommandPing))
            self._writer.put_commands(self._core.data_to_send())

    def _waits(self, since: float) -> bool:
        """Whether the broker owes a receipt, or an answer to a request made by `since`."""
        with self._mutex:
            asked_at = self._requests.waiting_since
        return (asked_at is not None and asked_at <= since) or self.handlers.wait_for_receipts()

    def _expire_requests(self, now: float) -> None:
        with self._mutex:
            expired = self._requests.take_expired(now)
        for request in expired:
            request.set_exception(request.timeout_error(self.address.logical))

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, MessageBlock):
            self._gather = self.handlers.on_messages(event)
        elif isinstance(event, ReceiptBlock):
            self.handlers.on_receipts(event)
        elif isinstance(event, CommandReceived):
            if event.kind in ANSWERS:
                self._on_answer(event.kind, event.body)
            elif event.kind == _T.CONNECTED:
                self.connected = cast(pb.CommandConnected, event.body)
                self._ready.set_result(self)
            elif event.kind == _T.AUTH_CHALLENGE:
                self._on_challenge(cast(pb.CommandAuthChallenge, event.body))
            else:
                self.handlers.on_command(event.kind, event.body)
                if event.kind == _T.CLOSE_CONSUMER:
                    self.fail_questions(cast(pb.CommandCloseConsumer, event.body).consumer_id)
        elif isinstance(event, ConnectionFailed):
            raise event.error.with_context(broker=self.address.logical)
        elif isinstance(event, EndOfStream):
            kind = ConnectionLost if self._ready.done() else ConnectError
            raise kind("the broker ended the connection", broker=self.address.logical)

    def _on_answer(self, kind: int, body: Any) -> None:
        error: PulsarError | None = error_in(
            body, self.address.logical, self._secrets, anonymous=self._is_anonymous
        )
        if error is not None and not self._ready.done():
            raise refusal_by(error, self._auth, self._sent)
        if error is None:
            error = self._error_in_body(kind, body)
        with self._mutex:
            request = self._requests.get(body.request_id)
            # Pulsar's proxy answers a refused PARTITIONED_METADATA with a LOOKUP_RESPONSE.
            fits = request is not None and (kind in answers_to(request.kind) or error is not None)
            # A producer that must wait for access gets a second answer to its request.
            waits = (
                fits and error is None and kind == _T.PRODUCER_SUCCESS and not body.producer_ready
            )
            if request is not None and not waits:
                self._requests.take(body.request_id)
        if request is None:
            self._log_unknown(kind, body.request_id)
        elif not fits:
            request.set_exception(self._wrong_answer(request, kind))
        elif error is not None:
            request.set_exception(naming_permission(error, request))
        elif not waits:
            request.set_result(body)

    def _error_in_body(self, kind: int, body: Any) -> PulsarError | None:
        try:
            check_body(kind, body)
        except RemoteProtocolError as error:
            return error.with_context(broker=self.address.logical)
        return None

    def _wrong_answer(self, request: Request, kind: int) -> RemoteProtocolError:
        name = pb.BaseCommand.Type.Name(kind)
        return RemoteProtocolError(
            f"the broker answered {request.what} with {name}", broker=self.address.logical
        )

    def _log_unknown(self, kind: int, request_id: int) -> None:
        level = logging.DEBUG if self._logged_unknown else logging.WARNING
        self._logged_unknown = True
        logger.log(
            level,
            "%s: ignored %s for request %d, which is not open (any more)",
            self.address.logical,
            BODY_FIELDS[kind],
            request_id,
        )

    # --- credentials --------------------------------------------------------------------------

    def _on_challenge(self, body: pb.CommandAuthChallenge) -> None:
        method = body.challenge.auth_method_name
        if method != self._auth.method_name:
            shown = redact(method, self._secrets)[:100]
            if self._is_anonymous:
                raise self.refusal(AuthenticationError.code, f"it asks for the method {shown!r}")
            raise AuthenticationError(
                f"the broker asks for credentials of the method {shown!r}, "
                f"{self._auth.method_name!r} is configured",
                broker=self.address.logical,
            )
        if not self._ready.done():
            self._login_steps += 1
            if self._login_steps > _MAX_LOGIN_STEPS:
                raise AuthenticationError(
                    f"the broker asked for credentials more than {_MAX_LOGIN_STEPS} times",
                    broker=self.address.logical,
                )
        # Fetching credentials can take long: one thread does it, however many challenges come.
        with self._mutex:
            self._challenges += 1
            start = self._challenges == 1
        if start:
            name = f"pulsar-auth-{self.address.logical}"
            try:
                threading.Thread(target=self._refresh, name=name, daemon=True).start()
            except RuntimeError as error:
                raise ConnectionLost(
                    f"no thread could be started ({error})", broker=self.address.logical
                ) from None

    def _refresh(self) -> None:
        answered = 0
        with self._failing():
            while True:
                with self._mutex:
                    # One answer covers all challenges that came before it.
                    self._challenges -= answered
                    answered = self._challenges
                if not answered:
                    return
                if self._ready.done():
                    # Brokers ask so when they find that a token has expired.
                    has_others(self._auth, self._sent)
                data = self._credentials() or b""
                login = pb.AuthData(auth_method_name=self._auth.method_name, auth_data=data)
                self.send(
                    commands.build(
                        pb.CommandAuthResponse,
                        client_version=CLIENT_VERSION,
                        response=login,
                        protocol_version=CLIENT_PROTOCOL_VERSION,
                    )
                )

    def _credentials(self) -> bytes | None:
        data = self._sent = credentials(self._auth.auth_data, self.address.logical)
        if data:
            self._secrets |= forms_of(data, self._auth)
        return data

    # --- the end ------------------------------------------------------------------------------

    def _finish(self) -> None:
        self.end(ConnectionLost("the connection ended", broker=self.address.logical))
        error = cast(PulsarError, self._error)
        # A sender may still be inside the transport; the shutdown interrupts it.
        self._writer.close()
        if not self._ready.done():
            self._ready.set_exception(error)
        with self._mutex:
            requests = self._requests.take_all()
        for request in requests:
            fail(request, _as_lost(error))
        for handler in self.handlers.end(_as_lost(error)):
            try:
                handler.on_disconnect(_as_lost(error))
            except Exception:
                logger.exception("a handler failed when its connection ended")


def _are_pings(data: Received) -> bool:
    """Whether these bytes begin with a PING, and are nothing else."""
    return data[: len(_PING)] == _PING and not bytes(data).replace(_PING, b"")


def _as_lost(error: PulsarError) -> PulsarError:
    """Return a new error that says why the connection ended."""
    if isinstance(error, ConnectionLost | ClosedError | AuthenticationError):
        return error.with_context()
    lost = ConnectionLost(error.what, error.remedy, broker=error.broker)
    lost.__cause__ = error
    return lost
