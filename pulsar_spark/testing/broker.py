"""EmbeddedBroker: a broker inside the process of a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import Any, TypeVar

from pulsar_spark.errors import (
    ClosedError,
    LocalProtocolError,
    OperationTimeout,
    TopicNotFound,
    from_server_error,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import DEFAULT_MAX_MESSAGE_SIZE, parse_payload
from pulsar_spark.protocol.message_id import MessageId, Position
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.testing.faults import Faults
from pulsar_spark.testing.options import BrokerOptions
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.server import Server
from pulsar_spark.testing.topic import Topic
from pulsar_spark.testing.views import (
    SubscriptionView,
    TopicView,
    subscription_view,
    topic_view,
)

T = TypeVar("T")

# How long the broker's thread may take for one call; it does nothing that blocks.
_CALL_TIMEOUT = 60.0
_WAIT_STEP = 0.2


class EmbeddedBroker:
    """An in-memory broker that speaks Pulsar's binary protocol on 127.0.0.1.

    Used as a context manager, or by `start` and `stop`. Any Pulsar client can talk to it. All
    methods can be called from any thread. What is published is kept until the topic is deleted
    or trimmed, whatever is acknowledged, up to `memory_limit` bytes.

    port: 0 for any free one. auto_create: True for plain topics on first use, a number for topics
    with that many partitions, False for none. namespaces: those that exist, or None for all.
    brokers: with 2 or more, topics are spread over that many ports; a broker that does not own a
    topic redirects to the owner. expose_entry_metadata: broker timestamp and index with each
    entry. batch_index_ack: acknowledgements inside a batch count, as they do not on a broker with
    default settings. precise_flow: permits buy entries by the average messages per entry, instead
    of one per permit.
    Times in seconds, sizes in bytes. Raises OptionError for values out of range.
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
        deduplication: bool = False,
        precise_flow: bool = False,
        max_unacked_messages: int = 50_000,
        keep_alive_interval: float = 30.0,
        liveness_timeout: float = 5.0,
        failover_delay: float = 0.0,
    ) -> None:
        self.options = BrokerOptions(
            port=port,
            auto_create=auto_create,
            namespaces=namespaces,
            brokers=brokers,
            max_message_size=max_message_size,
            max_entries_per_ledger=max_entries_per_ledger,
            memory_limit=memory_limit,
            expose_entry_metadata=expose_entry_metadata,
            batch_index_ack=batch_index_ack,
            deduplication=deduplication,
            precise_flow=precise_flow,
            max_unacked_messages=max_unacked_messages,
            keep_alive_interval=keep_alive_interval,
            liveness_timeout=liveness_timeout,
            failover_delay=failover_delay,
        )
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._stopped = threading.Event()

    # --- life ---

    def start(self) -> EmbeddedBroker:
        """Listen; returns the broker itself. Raises ConnectError if the port cannot be had."""
        if self._thread is not None:
            raise LocalProtocolError("the embedded broker was started before", "Make a new one.")
        loop = asyncio.SelectorEventLoop()
        self._loop = loop
        self._server = Server(self.options, loop, _Host(self))
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
        """Close all connections and end the broker's thread; what it stored is gone."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the broker is stopped, at most `timeout` seconds; returns whether it is."""
        if timeout is not None:
            return self._stopped.wait(timeout)
        # In steps, so that a signal such as Ctrl-C is noticed on every platform.
        while not self._stopped.wait(_WAIT_STEP):
            pass
        return True

    def run_forever(self) -> None:
        """Serve, started if need be, until another thread calls `stop` or Ctrl-C is pressed."""
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
        """Run a function on the broker's thread and return what it returns."""
        loop, server = self._parts()
        if self._on_thread():
            return _translated(function, server)
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(_translated(function, server))
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

    # --- addresses and records ---

    @property
    def service_url(self) -> str:
        """Where clients find the broker: ``pulsar://127.0.0.1:<port>``."""
        return self._parts()[1].service_url()

    @property
    def service_urls(self) -> tuple[str, ...]:
        """The URLs of all brokers, where there are several."""
        server = self._parts()[1]
        return tuple(server.service_url(number) for number in range(self.options.brokers))

    @property
    def port(self) -> int:
        """The port of `service_url`."""
        return self._parts()[1].ports[0]

    @property
    def faults(self) -> Faults:
        """The faults that can be set, and the record of what clients asked."""
        if self._server is None:
            raise ClosedError("the embedded broker is not running", "Use it as a context manager.")
        return self._server.faults

    @property
    def internal_errors(self) -> tuple[Exception, ...]:
        """Mistakes of the embedded broker itself; a test may want to see none."""
        return tuple(self._server.internal_errors) if self._server is not None else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks, such as why connections were closed."""
        return tuple(self._server.notes) if self._server is not None else ()

    # --- topics ---

    def create_topic(self, name: str, partitions: int = 0, *, ledger_id: int | None = None) -> str:
        """Create a topic, plain or with partitions; returns its full name.

        `ledger_id` is that of its first ledger. Raises NotAllowed if it exists.
        """
        parsed = TopicName.parse(name)
        self._call(lambda server: server.topics.create(parsed, partitions, ledger_id))
        return str(parsed)

    def add_partitions(self, name: str, partitions: int) -> None:
        """Let a partitioned topic have `partitions` partitions in all."""
        parsed = TopicName.parse(name)
        self._call(lambda server: server.topics.add_partitions(parsed, partitions))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its partitions, subscriptions and schemas; clients are sent away."""

        def delete(server: Server) -> None:
            topics = self._topics_of(server, name)
            for topic in topics:
                topic.close_producers()
                topic.close_consumers()
            server.topics.delete(TopicName.parse(name))

        self._call(delete)

    def terminate_topic(self, name: str) -> None:
        """Take no more messages on a topic; consumers learn that it ends."""
        self._for_each(name, lambda topic: topic.terminate())

    def unload(self, name: str, assigned_broker_url: str | None = None) -> None:
        """Send a topic's clients away; they may come again at once. It goes on in a new ledger."""

        def unload(topic: Topic) -> None:
            topic.close_producers(assigned_broker_url)
            topic.close_consumers(assigned_broker_url)
            topic.roll()

        self._for_each(name, unload)

    def move(self, name: str, broker: int, *, assign: bool = True) -> None:
        """Let another of the brokers serve a topic; with `assign` its clients are told which."""

        def move(server: Server) -> None:
            url = server.service_url(broker) if assign else None
            for topic in self._topics_of(server, name):
                server.topics.move(topic.name, broker)
                topic.close_producers(url)
                topic.close_consumers(url)

        self._call(move)

    def roll_ledger(self, name: str) -> None:
        """Close a topic's ledger: the next entry has id 0 in a new one."""
        self._for_each(name, lambda topic: topic.roll())

    def skip_entries(self, name: str, count: int = 1) -> None:
        """Use up entry ids without messages, as transaction markers do."""
        self._for_each(name, lambda topic: topic.log.skip(count))

    def trim(self, name: str, before: MessageId | Position | None = None) -> None:
        """Drop a topic's entries before a position (all for None), as retention does."""

        def trim(topic: Topic) -> None:
            topic.trim(topic.log.end_place() if start is None else (start[0], start[1]))

        start = Position.before(before) if isinstance(before, MessageId) else before
        self._for_each(name, trim)

    def collect_inactive(self) -> list[str]:
        """Delete the topics that have neither producers nor subscriptions; returns their names."""

        def collect(server: Server) -> list[str]:
            gone = [name for name, topic in server.topics.topics.items() if topic.is_inactive]
            for name in gone:
                server.topics.delete(TopicName.parse(name))
            return gone

        return self._call(collect)

    def append(self, name: str, entry: bytes, *, messages: int | None = None) -> MessageId:
        """Store an entry without a producer: what follows the command of a SEND, as it is.

        The topic, or partition, has to exist. Raises CorruptMessage or RemoteProtocolError for
        damaged bytes, unless `messages` says as how many messages they are to count.
        """
        if messages is None:
            metadata = parse_payload(memoryview(entry)).metadata
        else:
            metadata = pb.MessageMetadata(num_messages_in_batch=messages)

        def append(topic: Topic) -> MessageId:
            ledger_id, entry_id = topic.append(entry, metadata)
            return MessageId(ledger_id, entry_id, topic.partition)

        return self._call(lambda server: append(self._one(server, name)))

    def topics(self) -> list[str]:
        """The full names of all topics, partitions each by itself."""
        return self._call(lambda server: sorted(server.topics.topics))

    def stats(self, name: str) -> TopicView:
        """What is stored in a plain topic or one partition, and who is connected to it."""
        return self._call(lambda server: topic_view(self._one(server, name)))

    def subscriptions(self, name: str) -> dict[str, SubscriptionView]:
        """The subscriptions of a plain topic or one partition, by name."""
        return self._call(
            lambda server: {
                found.name: subscription_view(found)
                for found in self._one(server, name).subscriptions.values()
            }
        )

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return self._call(lambda server: len(server.sessions))

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait in the broker for clients to read them."""
        return self._call(lambda server: sum(session.buffered for session in server.sessions))

    @property
    def stored_bytes(self) -> int:
        """Bytes of all entries that are kept."""
        return self._call(lambda server: server.topics.usage.stored_bytes)

    def restart(self, down_for: float = 0.0) -> None:
        """Drop every connection as a crash does, and come back with the same data and port.

        Durable subscriptions stay; every topic goes on in a new ledger.
        """
        if self._on_thread():
            raise LocalProtocolError("restart() waits: it cannot be called on the broker's thread")
        self._wait_for(self._restart(down_for))

    async def _restart(self, down_for: float) -> None:
        server = self._parts()[1]
        await server.refuse()
        server.disconnect_all(reset=True)
        # Clients are told of the loss on the next turn of the loop.
        await asyncio.sleep(down_for)
        for topic in server.topics.topics.values():
            topic.roll()
            topic.forget_connections()
        await server.listen()

    # --- finding topics ---

    def _for_each(self, name: str, function: Callable[[Topic], object]) -> None:
        def run(server: Server) -> None:
            for topic in self._topics_of(server, name):
                function(topic)

        self._call(run)

    @staticmethod
    def _topics_of(server: Server, name: str) -> list[Topic]:
        found = server.topics.parts(TopicName.parse(name))
        if not found:
            raise TopicNotFound("the embedded broker has no such topic", topic=name)
        return found

    def _one(self, server: Server, name: str) -> Topic:
        found = self._topics_of(server, name)
        if len(found) != 1 or found[0].name != str(TopicName.parse(name)):
            raise TopicNotFound(
                "this is a partitioned topic", "Name one partition of it.", topic=name
            )
        return found[0]


class _Host:
    """The broker's part in faults, from any thread."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker

    def unload(self, topic: str, assigned_broker_url: str | None = None) -> None:
        self._broker.unload(topic, assigned_broker_url)

    def close_clients(
        self, topic: str, *, producers: bool, consumers: bool, assigned_broker_url: str | None
    ) -> int:
        def close(server: Server) -> int:
            count = 0
            for found in server.topics.parts(TopicName.parse(topic)):
                if producers:
                    count += found.close_producers(assigned_broker_url)
                if consumers:
                    count += found.close_consumers(assigned_broker_url)
            return count

        return self._broker._call(close)

    def disconnect_all(self, *, reset: bool) -> int:
        return self._broker._call(lambda server: server.disconnect_all(reset=reset))

    def set_listening(self, listening: bool) -> None:
        server = self._broker._parts()[1]
        self._broker._wait_for(server.listen() if listening else server.refuse())

    def set_reading(self, reading: bool) -> None:
        self._broker._call(lambda server: server.set_reading(reading))

    def inject(self, data: bytes | pb.BaseCommand, connection: int | None) -> int:
        return self._broker._call(lambda server: server.inject(data, connection))


def _translated(function: Callable[[Server], T], server: Server) -> T:
    """Call a function; a refusal becomes the error that a client would get."""
    try:
        return function(server)
    except Refusal as refusal:
        raise from_server_error(refusal.code, refusal.message) from None
