"""Registers a producer at its broker, and again after each disconnect.

After each disconnect a producer gets a new session, so that late events of the old connection are
not confused with new ones. The first registration has the caller's deadline. Later ones run in the
background, with growing pauses, for as long as the producer lives: its pending messages have their
own timeouts.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import Message

from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.handlers import topic_migrated
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import Operation, Within, run, start
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.retry import Backoff, Deadline
from pulsar_spark.errors import (
    ClosedError,
    ConnectionLost,
    OperationTimeout,
    ProducerBusy,
    PulsarError,
    ServiceNotReady,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb

logger = logging.getLogger(__name__)

BUSY_SECONDS = 15.0
"""How long to retry a producer name in use: a broker may not have noticed a dead connection yet."""

_BUSY_PAUSE = 1.5
# Make an attempt before this part of the remaining time is over, so that a broker that recovers
# late still gets messages before they time out.
_PART_OF_TIME_LEFT = 0.25
_LEAST_PAUSE = 0.1
# A producer retries as long as it lives.
_FOR_LIFE = 1e9


@dataclass(slots=True)
class Identity:
    """A producer's fields of PRODUCER; the broker's answers are kept for the next registration.

    A name chosen by the broker is repeated, so that messages before and after a reconnect have the
    same name. `epoch` grows with every attempt: only a higher one may take over from the producer's
    own earlier session.
    """

    topic: str
    name: str | None
    user_provided_name: bool
    access_mode: int = pb.Shared
    schema: pb.Schema | None = None
    properties: tuple[tuple[str, str], ...] = ()
    producer_id: int | None = None
    epoch: int = -1
    topic_epoch: int | None = None
    txn_enabled: bool = False
    encrypted: bool = False
    initial_subscription: str | None = None

    @classmethod
    def of(cls, topic: str, options: ProducerOptions) -> Identity:
        """Return the identity of a producer that was never registered."""
        return cls(
            topic,
            options.producer_name,
            options.producer_name is not None,
            access_mode=options.access_mode,
            schema=None if options.schema is None else options.schema.to_pb(),
            properties=options.properties,
            txn_enabled=options.txn_enabled,
            encrypted=options.encryption is not None,
            initial_subscription=options.initial_subscription,
        )


class SessionOwner(Protocol):
    """Gets a session's events, on the connection's receive thread."""

    @property
    def waits_for_receipts(self) -> bool:
        """Whether the broker owes receipts."""

    def on_receipts(self, session: ProducerSession, receipts: array[int]) -> None:
        """Entries are stored: sequence id, highest sequence id, ledger and entry of each."""

    def on_send_error(self, session: ProducerSession, error: pb.CommandSendError) -> None:
        """The broker refused an entry."""

    def on_lost(self, session: ProducerSession, error: PulsarError) -> None:
        """The session has ended: `session.close_command` is set if the broker closed it."""


class ProducerSession:
    """A producer's registration on a connection. `open` it once; after `on_lost` it is useless."""

    def __init__(self, owner: SessionOwner, connection: ClientConnection) -> None:
        self._owner = owner
        self._answer: Future[pb.CommandProducerSuccess] = Future()
        self._settling = threading.Lock()
        self.connection = connection
        self.producer_id = -1
        self.error: PulsarError | None = None
        self.close_command: pb.CommandCloseProducer | None = None

    @property
    def broker(self) -> str:
        """The address of the broker."""
        return self.connection.address.logical

    def open(self, identity: Identity, timeout: float) -> pb.CommandProducerSuccess:
        """Do `open_operation` on the caller's thread."""
        # The operation times out earlier, with a clearer error.
        return run(lambda _: self.open_operation(identity, timeout), 2 * timeout)

    def open_operation(
        self, identity: Identity, timeout: float
    ) -> Operation[pb.CommandProducerSuccess]:
        """Register with the broker, update `identity`, and return the answer.

        If another producer has exclusive access, the answer comes when it is this one's turn.
        Raises the broker's error, ConnectionLost, or OperationTimeout after `timeout` seconds;
        the broker is then told to forget the attempt.
        """
        self.producer_id = self.connection.add_producer(self, identity.producer_id)
        identity.producer_id = self.producer_id
        identity.epoch += 1
        request = self.connection.request_async(
            lambda request_id: _producer_command(identity, self.producer_id, request_id), timeout
        )
        request.add_done_callback(self._on_answer)
        try:
            success: pb.CommandProducerSuccess = yield Within(self._answer, timeout)
        except OperationTimeout:
            self.connection.forget(request)
            self.close_quietly()
            raise OperationTimeout(
                f"the broker did not accept the producer within {timeout:.3g} s",
                topic=identity.topic,
                broker=self.broker,
            ) from None
        except BaseException:
            if self.connection.forget(request):
                # The broker may register it nevertheless, on a connection that others use.
                self.close_quietly()
            else:
                self.connection.remove_producer(self.producer_id)
            raise
        identity.name = success.producer_name
        if success.HasField("topic_epoch"):
            identity.topic_epoch = success.topic_epoch
        return success

    def cancel(self, error: PulsarError) -> None:
        """Make `open_operation` raise an error instead of waiting for its answer."""
        self._settle(error=error)

    def close(self, timeout: float) -> None:
        """Do `close_operation` on the caller's thread."""
        run(self.close_operation, timeout)

    def close_operation(self, deadline: Deadline) -> Operation[None]:
        """Close the producer at the broker and wait for the answer; may raise."""
        timeout = max(deadline.remaining(), 0.001)
        try:
            yield self.connection.request_async(
                lambda request_id: commands.close_producer(self.producer_id, request_id), timeout
            )
        finally:
            self.connection.remove_producer(self.producer_id)

    def close_quietly(self) -> None:
        """Close the producer at the broker, without waiting for an answer. Never raises."""
        self.connection.remove_producer(self.producer_id)
        try:
            self.connection.request_async(
                lambda request_id: commands.close_producer(self.producer_id, request_id)
            )
        except PulsarError as error:
            logger.debug("a producer was not closed: %s", error)

    # --- on the receive thread ----------------------------------------------------------------

    @property
    def waits_for_receipts(self) -> bool:
        """Whether the broker owes receipts."""
        return self._owner.waits_for_receipts

    def on_receipts(self, receipts: array[int]) -> None:
        """Entries are stored: sequence id, highest sequence id, ledger and entry of each."""
        self._owner.on_receipts(self, receipts)

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """The broker refused an entry."""
        self._owner.on_send_error(self, error)

    def on_close(self, command: pb.CommandCloseProducer) -> None:
        """The broker closed the producer, usually because the topic moves."""
        self.close_command = command
        self._lose(ServiceNotReady("the broker closed the producer", broker=self.broker))

    def on_command(self, body: Message) -> None:
        """The topic moved to another cluster: writing to the old one would lose messages."""
        if isinstance(body, pb.CommandTopicMigrated):
            self.connection.remove_producer(self.producer_id)
            self._lose(topic_migrated(self.broker))

    def on_disconnect(self, error: PulsarError) -> None:
        """The connection ended."""
        self._lose(error)

    def _lose(self, error: PulsarError) -> None:
        self.error = error
        self._settle(error=error)
        self._owner.on_lost(self, error)

    def _on_answer(self, request: Future[Any]) -> None:
        error = request.exception()
        if error is None:
            self._settle(success=request.result())
        elif isinstance(error, PulsarError):
            self._settle(error=error)
        else:
            self._settle(error=ConnectionLost(f"PRODUCER failed: {error}", broker=self.broker))

    def _settle(
        self,
        success: pb.CommandProducerSuccess | None = None,
        error: PulsarError | None = None,
    ) -> None:
        # The answer and the producer's loss can come on different threads.
        with self._settling:
            if self._answer.done():
                return
            settled = self._answer.set_running_or_notify_cancel()
        if settled and success is not None:
            self._answer.set_result(success)
        elif settled and error is not None:
            self._answer.set_exception(error.with_context())


def _producer_command(identity: Identity, producer_id: int, request_id: int) -> pb.BaseCommand:
    return commands.producer(
        identity.topic,
        producer_id,
        request_id,
        producer_name=identity.name,
        user_provided_producer_name=identity.user_provided_name,
        epoch=identity.epoch,
        metadata=dict(identity.properties),
        schema=identity.schema,
        access_mode=identity.access_mode,
        topic_epoch=identity.topic_epoch,
        txn_enabled=identity.txn_enabled,
        initial_subscription_name=identity.initial_subscription,
        encrypted=identity.encrypted,
    )


class RegistrarOwner(SessionOwner, Protocol):
    """The producer to register."""

    def adopt(self, session: ProducerSession, success: pb.CommandProducerSuccess) -> None:
        """Use a session from now on; raises the reason if it is lost already."""

    def give_up(self, error: PulsarError) -> None:
        """There will be no session."""

    def time_left(self) -> float:
        """Seconds until the oldest pending message times out; the whole timeout without one."""


class Registrar:
    """Registers one producer, with one attempt at a time.

    `trouble` is the last error of an attempt or session; the owner resets it when messages get
    through again.
    """

    def __init__(
        self,
        context: ClientContext,
        owner: RegistrarOwner,
        identity: Identity,
        *,
        waits_for_name: bool = True,
    ) -> None:
        self.identity = identity
        self._waits_for_name = waits_for_name
        self.trouble: PulsarError | None = None
        self._context = context
        self._owner = owner
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._stopped = False
        self._pausing: Future[None] | None = None
        self._opening: ProducerSession | None = None
        # The following are used by the current attempt only.
        self._backoff = Backoff()
        self._busy_until: float | None = None
        self._assigned: BrokerAddress | None = None

    def stop(self) -> None:
        """Stop trying; an operation that pauses or waits for access ends."""
        with self._lock:
            self._stopped = True
            pausing, self._pausing = self._pausing, None
            opening, self._opening = self._opening, None
        if pausing is not None:
            pausing.set_result(None)
        if opening is not None:
            opening.cancel(self._closed())

    def open_operation(self, deadline: Deadline) -> Operation[None]:
        """Register for the first time; retry temporary errors until the deadline.

        Raises a permanent error, or OperationTimeout with the last error as its cause.
        """
        while not self._stopped:
            try:
                yield from self._register(deadline)
                return
            except PulsarError as error:
                trouble = error.with_context(topic=self.identity.topic)
            if self._is_others_name(trouble) or not self._may_pass(trouble):
                raise trouble
            delay = self._pause(trouble, deadline.remaining())
            if deadline.remaining() <= delay:
                raise OperationTimeout(
                    f"no producer could be created within {deadline.seconds:g} s; "
                    f"the last error was: {trouble.what}",
                    topic=self.identity.topic,
                    broker=trouble.broker,
                ) from trouble
            yield from self._wait(delay)
        raise self._closed()

    def _closed(self) -> ClosedError:
        return ClosedError("the producer was closed", topic=self.identity.topic)

    def reconnect(
        self, lost: ProducerSession, error: PulsarError, *, close_first: bool = False
    ) -> None:
        """Register again after `error`, which ended the session `lost`. Does not wait.

        Set `close_first` if the broker still holds the lost session.
        """
        self._note_assignment(lost)
        reconnecting = start(
            lambda _: self._reconnect_operation(lost if close_first else None, error),
            _FOR_LIFE,
            self._context.timers,
        )
        reconnecting.add_done_callback(self._on_reconnected)

    def _on_reconnected(self, reconnecting: Future[None]) -> None:
        error = reconnecting.exception()
        if isinstance(error, PulsarError):
            self._owner.give_up(error)
        elif error is not None:
            logger.error("a producer could not be opened again", exc_info=error)
            self._owner.give_up(ConnectionLost(f"an internal error, see the log: {error!r}"))

    def _reconnect_operation(
        self, closing: ProducerSession | None, error: PulsarError
    ) -> Operation[None]:
        """Register again, with any number of attempts; raises permanent errors."""
        while True:
            self.trouble = error
            if not self._may_pass(error):
                raise error
            yield from self._wait(self._pause(error, self._owner.time_left()))
            if self._stopped:
                return
            deadline = Deadline(self._context.options.operation_timeout)
            try:
                if closing is not None:
                    # The broker finishes pending sends before it answers, so that no event of the
                    # old session reaches the new one.
                    closed, closing = closing, None
                    yield from closed.close_operation(deadline)
                yield from self._register(deadline)
                return
            except PulsarError as trouble:
                error = trouble.with_context(topic=self.identity.topic)
                logger.info("a producer was not registered: %s", error)

    def _wait(self, seconds: float) -> Operation[None]:
        with self._lock:
            if self._stopped:
                return
            pausing: Future[None] = Future()
            self._pausing = pausing
        try:
            yield Within(pausing, seconds)
        except OperationTimeout:
            return
        finally:
            with self._lock:
                self._pausing = None

    def _note_assignment(self, lost: ProducerSession) -> None:
        command = lost.close_command
        if command is not None:
            self._assigned = self._context.assigned_broker(command, lost.connection)

    def _register(self, deadline: Deadline) -> Operation[None]:
        assigned, self._assigned = self._assigned, None
        connection: ClientConnection
        if assigned is not None:
            connection = yield self._context.pool.get_async(assigned)
        else:
            lookup = self._context.lookup
            connection = yield from lookup.connection_operation(self.identity.topic, deadline)
        session = ProducerSession(self._owner, connection)
        with self._lock:
            if self._stopped:
                raise self._closed()
            self._opening = session
        timeout = max(deadline.remaining(), 0.001)
        success = yield from session.open_operation(self.identity, timeout)
        self._backoff.reset()
        self._busy_until = None
        try:
            self._owner.adopt(session, success)
        except PulsarError:
            self._note_assignment(session)
            raise

    def _is_others_name(self, error: PulsarError) -> bool:
        """Whether the name is another producer's, and is not waited for.

        After the first attempt it may be this one's own, by a connection that was lost.
        """
        first = not self.identity.epoch
        return isinstance(error, ProducerBusy) and first and not self._waits_for_name

    def _may_pass(self, error: PulsarError) -> bool:
        """Whether another attempt can succeed; also limits how long a name may be in use."""
        if isinstance(error, ProducerBusy):
            now = time.monotonic()
            if self._busy_until is None:
                self._busy_until = now + BUSY_SECONDS
            return now < self._busy_until
        self._busy_until = None
        if isinstance(error, ClosedError):
            # A closed connection can be replaced, a closed client cannot.
            return not self._context.closed
        return error.retryable or isinstance(error, OperationTimeout)

    def _pause(self, error: PulsarError, time_left: float) -> float:
        delay = self._backoff.next()
        if self._assigned is not None:
            return 0.0
        delay = min(delay, max(time_left * _PART_OF_TIME_LEFT, _LEAST_PAUSE))
        # Retry a name in use before its time is up, whatever the backoff says.
        return min(delay, _BUSY_PAUSE) if isinstance(error, ProducerBusy) else delay
