"""EmbeddedBroker: a broker inside a test's process."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from pulsar_spark.errors import ClosedError, LocalProtocolError, OperationTimeout
from pulsar_spark.protocol.commands import CLIENT_PROTOCOL_VERSION
from pulsar_spark.protocol.frames import DEFAULT_MAX_MESSAGE_SIZE
from pulsar_spark.testing.faults import Faults
from pulsar_spark.testing.options import OPTION_NAMES, BrokerOptions
from pulsar_spark.testing.policies import TopicPolicies
from pulsar_spark.testing.server import Server
from pulsar_spark.testing.topic_control import TopicControl, translated

T = TypeVar("T")

# How long one call on the broker's thread may take; it never blocks.
_CALL_TIMEOUT = 60.0
_WAIT_STEP = 0.2


class EmbeddedBroker(TopicControl):
    """An in-memory broker that speaks Pulsar's binary protocol on 127.0.0.1.

    Use it as a context manager, or with `start` and `stop`. Any Pulsar client can connect. All
    methods can be called from any thread. Messages are kept, even acknowledged ones, until the
    topic is deleted or trimmed, or its policies have a retention, up to `memory_limit` bytes.

    port: 0 for any free one. auto_create: True creates topics on first use, a number creates them
    with that many partitions, False creates none. namespaces: the existing ones, or None for all.
    brokers: with 2 or more, topics are spread over that many ports; a broker that does not own a
    topic redirects to the owner. expose_entry_metadata: send the broker's timestamp and index with
    each entry. batch_index_ack: acknowledgements inside a batch count on each kind of subscription,
    and are stored. As on a broker with default settings, they count on Shared and Key_Shared
    subscriptions only otherwise, as long as the topic is loaded, and with `transactions`.
    listeners: names of listeners that lookups may ask for. transactions: whether there is a
    transaction coordinator. precise_flow: permits allow entries by the average number of messages
    per entry, instead of one entry per permit. protocol_version: the newest supported version; like
    an old broker it closes the connection of a client that sends newer commands, and sends none
    itself. tls: a server context with its certificate: the broker then accepts only TLS.
    authenticate: called on the broker's thread with a client's authentication method and
    credentials; returns whether to accept the client. rest: True for an admin REST at any free
    port, or its port; see `admin_url`. policies: what topics have to obey for which nothing else is
    set. policy_check_interval: how often backlog quotas and the time to live are looked at. Times
    in seconds, sizes in bytes. Raises OptionError for invalid values.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        auto_create: bool | int = True,
        namespaces: tuple[str, ...] | None = None,
        brokers: int = 1,
        max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE,
        max_entries_per_ledger: int = 50_000,
        memory_limit: int = 2 * 1024**3,
        expose_entry_metadata: bool = False,
        batch_index_ack: bool = False,
        listeners: tuple[str, ...] = (),
        deduplication: bool = False,
        transactions: bool = True,
        precise_flow: bool = False,
        max_unacked_messages: int = 50_000,
        keep_alive_interval: float = 30.0,
        liveness_timeout: float = 5.0,
        failover_delay: float = 0.0,
        protocol_version: int = CLIENT_PROTOCOL_VERSION,
        tls: ssl.SSLContext | None = None,
        authenticate: Callable[[str, bytes], bool] | None = None,
        rest: bool | int = False,
        policies: TopicPolicies | None = None,
        policy_check_interval: float = 1.0,
    ) -> None:
        given = locals()
        chosen = {name: given[name] for name in OPTION_NAMES if given.get(name) is not None}
        self.options = BrokerOptions(**chosen)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._stopped = threading.Event()

    # --- life ---

    def start(self) -> EmbeddedBroker:
        """Listen; returns the broker itself. Raises ConnectError if the port is not available."""
        if self._thread is not None:
            raise LocalProtocolError("the embedded broker was started before", "Make a new one.")
        loop = asyncio.SelectorEventLoop()
        self._loop = loop
        self._server = Server(self.options, loop, Faults(self))
        self._thread = threading.Thread(
            target=self._run, name="pulsar-embedded-broker", daemon=True
        )
        self._thread.start()
        try:
            self._wait_for(self._server.start_listening())
        except BaseException:
            self.stop()
            raise
        return self

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def stop(self) -> None:
        """Close all connections and end the broker's thread; its data is lost."""
        if self._on_thread():
            raise LocalProtocolError("stop() waits: it cannot be called on the broker's thread")
        loop, thread, server = self._loop, self._thread, self._server
        if loop is None or thread is None or server is None or self._stopped.is_set():
            return
        try:
            self._wait_for(server.close())
        finally:
            self._stopped.set()
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_CALL_TIMEOUT)

    def __enter__(self) -> EmbeddedBroker:
        return self.start() if self._thread is None else self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the broker stops, at most `timeout` seconds; returns whether it has."""
        if timeout is not None:
            return self._stopped.wait(timeout)
        # Short waits, so that signals such as Ctrl-C are noticed on every platform.
        while not self._stopped.wait(_WAIT_STEP):
            pass
        return True

    def run_forever(self) -> None:
        """Serve, started if necessary, until another thread calls `stop` or Ctrl-C is pressed."""
        if self._thread is None:
            self.start()
        try:
            self.wait()
        except KeyboardInterrupt:
            pass
        finally:
            self.stop()

    # --- calls onto the broker's thread ---

    def _parts(self) -> tuple[asyncio.AbstractEventLoop, Server]:
        if self._loop is None or self._server is None or self._stopped.is_set():
            raise ClosedError("the embedded broker is not running", "Use it as a context manager.")
        return self._loop, self._server

    def _on_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _call(self, function: Callable[[Server], T]) -> T:
        """Run a function on the broker's thread and return its result."""
        loop, server = self._parts()
        if self._on_thread():
            return translated(function, server)
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(translated(function, server))
            except BaseException as error:
                result.set_exception(error)

        loop.call_soon_threadsafe(run)
        return self._result(result)

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        assert loop is not None
        return self._result(asyncio.run_coroutine_threadsafe(work, loop))

    @staticmethod
    def _result(future: Future[T]) -> T:
        try:
            return future.result(_CALL_TIMEOUT)
        except FutureTimeoutError:
            raise OperationTimeout("the embedded broker does not answer") from None

    def _listen(self, listening: bool) -> None:
        """Accept new connections, or refuse them."""
        server = self._parts()[1]
        self._wait_for(server.listen() if listening else server.refuse())

    # --- addresses and records ---

    @property
    def service_url(self) -> str:
        """Where clients find the broker: ``pulsar://127.0.0.1:<port>``, ``pulsar+ssl://…``."""
        return self._parts()[1].service_url()

    @property
    def service_urls(self) -> tuple[str, ...]:
        """The URLs of all brokers."""
        server = self._parts()[1]
        return tuple(server.service_url(number) for number in range(self.options.brokers))

    @property
    def admin_url(self) -> str:
        """The URL of the admin REST: ``http://127.0.0.1:<port>``, ``https://…`` with TLS.

        It answers a part of Pulsar's paths below ``/admin/v2``, and lookups, to clients that
        `authenticate` accepts. Raises LocalProtocolError without `rest`.
        """
        url = self._parts()[1].rest_url()
        if url is None:
            raise LocalProtocolError("this broker has no admin REST", "Start it with rest=True.")
        return url

    @property
    def port(self) -> int:
        """The port of `service_url`."""
        return self._parts()[1].ports[0]

    @property
    def faults(self) -> Faults:
        """Fault injection, and the record of received commands."""
        if self._server is None:
            raise ClosedError("the embedded broker is not running", "Use it as a context manager.")
        return self._server.faults

    @property
    def internal_errors(self) -> tuple[Exception, ...]:
        """Errors of the embedded broker itself; a test may require that there are none."""
        return tuple(self._server.internal_errors) if self._server is not None else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks, such as why connections were closed."""
        return tuple(self._server.notes) if self._server is not None else ()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return self._call(lambda server: len(server.sessions))

    @property
    def clients(self) -> int:
        """How many producers and consumers are open, on all connections."""
        return self._call(
            lambda server: sum(
                len(session.producers) + len(session.consumers) for session in server.sessions
            )
        )

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait to be read by clients."""
        return self._call(lambda server: sum(session.buffered for session in server.sessions))

    @property
    def stored_bytes(self) -> int:
        """Size of all stored entries."""
        return self._call(lambda server: server.topics.usage.stored_bytes)

    def restart(self, down_for: float = 0.0) -> None:
        """Drop all connections, as in a crash, and restart with the same data and port.

        Durable subscriptions stay; every topic continues in a new ledger.
        """
        if self._on_thread():
            raise LocalProtocolError("restart() waits: it cannot be called on the broker's thread")
        self._wait_for(self._restart(down_for))

    async def _restart(self, down_for: float) -> None:
        server = self._parts()[1]
        await server.refuse()
        server.disconnect_all(reset=True)
        # Clients see the disconnect on the loop's next turn.
        await asyncio.sleep(down_for)
        for topic in server.topics.topics.values():
            topic.log.roll()
            topic.forget_connections()
        await server.listen()
