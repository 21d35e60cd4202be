"""The broker itself, on its own thread: listeners, sessions, topics."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Coroutine
from itertools import chain, count, cycle, islice
from typing import Any

from pulsar_spark.errors import ConnectError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import encode_command
from pulsar_spark.testing.faults import Faults
from pulsar_spark.testing.options import HOST, BrokerOptions
from pulsar_spark.testing.quotas import enforce
from pulsar_spark.testing.rest.connection import RestConnection
from pulsar_spark.testing.session import Session
from pulsar_spark.testing.topic_store import TopicStore
from pulsar_spark.testing.transactions import Coordinator

_log = get_logger(__name__)

_BACKLOG = 1024
# Ports that no operating system uses for outgoing connections: while the broker is down, a client
# that reconnects could be assigned the broker's own port, and so connect to itself.
_OWN_PORTS = range(20_000, 32_000)
# What clients of this process remember of a broker must never be taken for the next broker's.
_next_ports = cycle(random.Random().sample(_OWN_PORTS, len(_OWN_PORTS)))
_ATTEMPTS = 20
_STOP_TIMEOUT = 5.0
_ACCEPTING_TURNS = 4
# How many errors and notes are kept.
_MAX_KEPT = 1000


class Server:
    """Everything on the broker's thread; `loop` is that thread's.

    There is one listener per broker in the options; all serve the same topics. The last listener
    is that of the admin REST, if there is one.
    """

    def __init__(
        self, options: BrokerOptions, loop: asyncio.AbstractEventLoop, faults: Faults
    ) -> None:
        self.options = options
        self.loop = loop
        self.faults = faults
        self.topics = TopicStore(options, loop)
        self.coordinator = Coordinator(loop, self.topics.topics.get)
        self.sessions: set[Session] = set()
        self.rest_connections: set[RestConnection] = set()
        self.reading = True
        self.internal_errors: list[Exception] = []
        self.notes: list[str] = []
        self.ports: list[int] = []
        self._listeners: list[asyncio.Server | None] = []
        self._tasks: set[asyncio.Task[None]] = set()
        loop.set_exception_handler(self._on_loop_error)
        # The numbers of connections, and those in the names of producers that bring none.
        self.session_numbers = count(1)
        self._producer_numbers = count()

    # --- listening ---

    async def start_listening(self) -> None:
        """Open the listeners; raises ConnectError if a port is not available."""
        self.ports = [self.options.port] + [0] * (self.options.brokers - 1)
        if self.options.rest_port is not None:
            self.ports.append(self.options.rest_port)
        self._listeners = [None] * len(self.ports)
        await self.listen()
        self._check_policies()

    async def listen(self) -> None:
        """Listen on all ports that are closed now."""
        for number, listener in enumerate(self._listeners):
            if listener is None:
                self._listeners[number] = await self._open(number)

    async def _open(self, number: int) -> asyncio.Server:
        port = self.ports[number]
        # If these are all in use, any port will do.
        candidates = (port,) if port else chain(islice(_next_ports, _ATTEMPTS), (0,))
        failure: OSError | None = None
        for candidate in candidates:
            try:
                listener = await self._bind(number, candidate)
            except OSError as error:
                failure = error
                continue
            self.ports[number] = listener.sockets[0].getsockname()[1]
            return listener
        raise ConnectError(
            f"the embedded broker cannot listen on {HOST}:{port}: {failure}",
            "Choose another port, or 0 for any free one.",
        )

    async def _bind(self, number: int, port: int) -> asyncio.Server:
        return await self.loop.create_server(
            lambda: self._connection(number),
            HOST,
            port,
            family=socket.AF_INET,
            backlog=_BACKLOG,
            reuse_address=True,
            ssl=self.options.tls,
        )

    def _connection(self, number: int) -> Session | RestConnection:
        return Session(self, number) if number < self.options.brokers else RestConnection(self)

    async def refuse(self) -> None:
        """Close the listeners: the operating system refuses new connections."""
        closing = [listener for listener in self._listeners if listener is not None]
        self._listeners = [None] * len(self._listeners)
        # A connection accepted in this turn becomes a session some turns later. If its listener
        # were closed by then, asyncio would leave its socket open.
        for listener in closing:
            for accepting in listener.sockets:
                self.loop.remove_reader(accepting.fileno())
        for _ in range(_ACCEPTING_TURNS):
            await asyncio.sleep(0)
        for listener in closing:
            listener.close()
        # The loop closes sockets on its next turn.
        await asyncio.sleep(0)

    def service_url(self, number: int = 0) -> str:
        """The URL of one of the brokers."""
        scheme = "pulsar" if self.options.tls is None else "pulsar+ssl"
        return f"{scheme}://{HOST}:{self.ports[number]}"

    def rest_url(self) -> str | None:
        """The URL of the admin REST, None without it."""
        scheme = "http" if self.options.tls is None else "https"
        with_rest = len(self.ports) > self.options.brokers
        return f"{scheme}://{HOST}:{self.ports[-1]}" if with_rest else None

    def listener_of(self, address: str, default: int) -> int:
        """The number of the broker at ``host:port``."""
        port = address.rpartition(":")[2]
        numbers = (number for number, known in enumerate(self.ports) if port == str(known))
        return next(numbers, default)

    # --- sessions ---

    def session_opened(self, session: Session) -> None:
        """Register a connection."""
        self.sessions.add(session)
        if not self.reading:
            # The transport only starts reading after this, so it cannot be paused yet.
            self.loop.call_soon(lambda: session.set_reading(self.reading))

    def new_producer_name(self) -> str:
        """Return a name for a producer without one."""
        return f"{self.options.name}-0-{next(self._producer_numbers)}"

    def set_reading(self, reading: bool) -> None:
        """Read from all connections, or from none."""
        self.reading = reading
        for session in self.sessions:
            session.set_reading(reading)

    def disconnect_all(self, *, reset: bool = False) -> int:
        """Close all connections; returns how many."""
        sessions = list(self.sessions)
        for connection in [*sessions, *self.rest_connections]:
            connection.disconnect(reset=reset)
        return len(sessions)

    def inject(self, data: bytes | pb.BaseCommand, connection: int | None) -> int:
        """Send unsolicited bytes or a command, bypassing the protocol's rules."""
        frame = data if isinstance(data, bytes) else encode_command(data)
        chosen = [s for s in self.sessions if connection in (None, s.number)]
        for session in chosen:
            session.flush()
            session.transmit(frame)
        return len(chosen)

    # --- policies ---

    def _check_policies(self) -> None:
        self.loop.call_later(self.options.policy_check_interval, self._check_policies)
        for topic in list(self.topics.topics.values()):
            if topic.policies.needs_checks:
                enforce(topic)

    # --- tasks and notes ---

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def note_internal_error(self, error: Exception) -> None:
        """Record an error of the embedded broker itself."""
        if len(self.internal_errors) < _MAX_KEPT:
            self.internal_errors.append(error)

    def note(self, text: str, error: BaseException | None = None) -> None:
        """Record a note for analysing a failed test."""
        _log.debug("%s", text, exc_info=error)
        if len(self.notes) < _MAX_KEPT:
            self.notes.append(text)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record an uncaught exception: from a delivery, a timer, a callback."""
        error = context.get("exception")
        if isinstance(error, Exception):
            self.note_internal_error(error)
        self.note(str(context.get("message")), error)

    async def close(self) -> None:
        """Close listeners and connections, and wait until they are gone."""
        await self.refuse()
        for task in list(self._tasks):
            task.cancel()
        deadline = time.monotonic() + _STOP_TIMEOUT
        for connection in [*self.sessions, *self.rest_connections]:
            connection.abort()
        while time.monotonic() < deadline:
            if not (self.sessions or self.rest_connections or self._tasks):
                break
            await asyncio.sleep(0.001)
