"""The producer of one topic partition: a bounded window of SENDs, acknowledged in order.

Threads. `send`, `flush` and `close` run on the caller's thread, which does all the work of
encoding and writing. Receipts arrive on the connection's receive thread, which completes the
window and runs the callbacks of sends; a callback must be quick and must not wait for the
producer. When the broker or the connection goes away, a thread of the client's timers
registers again, with growing pauses, and writes everything that is pending once more, so a
producer whose callers do something else makes progress too. The timers also end sends
whose time is up.

Locks, taken in this order: `_order` (one sender at a time, also while it waits for room),
`_wire` (writes to the connection, so that resent messages stay before new ones),
`_window.changed` (the state; never held while anything blocks or a callback runs).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.inflight_window import InflightWindow, PendingSend, Verdict
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.outgoing import OutgoingEntry, SendLimits, encode_entry
from pulsar_spark.engine.producer_session import Identity, Registrar, Registration
from pulsar_spark.engine.retry import Deadline
from pulsar_spark.errors import (
    BrokerChecksumError,
    ClosedError,
    MessageTooLarge,
    NotAllowed,
    OperationTimeout,
    ProducerFenced,
    PulsarError,
    RemoteProtocolError,
    TopicTerminated,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import MessageId
from pulsar_spark.protocol.topic_name import TopicName

logger = logging.getLogger(__name__)

_ABORT_SECONDS = 1.0
_RESEND_GROUP = 16

# A refusal of a message that sending it again cannot change.
_FATAL_SEND_ERRORS = (TopicTerminated, NotAllowed, ProducerFenced)


@dataclass(frozen=True, slots=True)
class ProducerCounts:
    """What a producer did so far. `duplicates` are messages that the broker had already."""

    messages: int
    bytes: int
    entries: int
    acknowledged: int
    duplicates: int
    reconnects: int


class Producer:
    """Writes to one topic partition. `send` opens it; `flush` or `close` makes sure of all.

    Errors are final: once a message cannot be delivered, every later `send`, `flush` and
    `close` raises the same error. Only MessageTooLarge and InvalidRow, which are found before
    anything is sent, leave the producer usable. `on_failure` is told the final error once.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        options: ProducerOptions | None = None,
        on_failure: Callable[[PulsarError], None] | None = None,
    ) -> None:
        self._options = options or ProducerOptions()
        self._context = context
        self._topic = TopicName.parse(topic)
        self.topic = str(self._topic)
        self.partition = self._topic.partition_index
        self._on_failure = on_failure
        self._pid = os.getpid()
        self._registrar = Registrar(context, self, _identity(self.topic, self._options))
        self._limits: SendLimits | None = None
        self._order = threading.Lock()
        self._wire = threading.Lock()
        self._window = InflightWindow(
            context.budget,
            context.timers,
            max_messages=self._options.max_pending_messages,
            timeout=self._options.send_timeout,
            describe=self._where,
            trouble=lambda: self._registrar.trouble,
            give_up=self._fail,
        )
        # The following are guarded by _window.changed.
        self._opening = False
        self._failed = False
        self._registration: Registration | None = None
        self._registrations = 0
        self._next_sequence_id = 0
        self._last_sequence_id = -1
        self._last_message_id: MessageId | None = None
        self._first_chunk: MessageId | None = None
        self._duplicates = 0
        context.add(self)

    # --- what it is ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The producer's name, given by the broker unless the options name one."""
        return self._registrar.identity.name or ""

    @property
    def is_connected(self) -> bool:
        """Whether it is registered with a broker at this moment."""
        return self._registration is not None

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id known to be stored, -1 before the first."""
        return self._last_sequence_id

    @property
    def last_message_id(self) -> MessageId | None:
        """Where the last acknowledged entry is stored."""
        return self._last_message_id

    @property
    def schema_version(self) -> bytes:
        """The version of the options' schema on the topic, empty without one."""
        return b"" if self._limits is None else self._limits.schema_version

    @property
    def max_message_size(self) -> int:
        """Bytes of metadata and payload that the broker takes in one message."""
        return 0 if self._limits is None else self._limits.max_message_size

    @property
    def pending_messages(self) -> int:
        """Messages that are sent, or wait for a connection, and are not acknowledged."""
        return self._window.pending.messages

    @property
    def counts(self) -> ProducerCounts:
        """What it did so far."""
        with self._window.changed:
            return ProducerCounts(
                messages=self._window.sent_messages,
                bytes=self._window.sent_bytes,
                entries=self._window.pending.appended,
                acknowledged=self._window.acknowledged,
                duplicates=self._duplicates,
                reconnects=max(self._registrations - 1, 0),
            )

    # --- for callers --------------------------------------------------------------------------

    def open(self, timeout: float | None = None) -> Producer:
        """Register with the broker, within `timeout` (default: the operation timeout) seconds.

        Errors that can pass are retried, a name that is taken only for some seconds. Raises the
        broker's refusal, or OperationTimeout with the last trouble as its cause.
        """
        self._check_process()
        deadline = Deadline(timeout or self._context.options.operation_timeout)
        with self._window.changed:
            self._window.check()
            mine = not self._opening
            self._opening = True
            while not mine and not self._registrations:
                deadline.check(f"opening a producer on {self.topic}")
                self._window.changed.wait(deadline.remaining())
                self._window.check()
        if mine:
            try:
                self._registrar.open(deadline)
            except PulsarError as error:
                self._fail(error)
                raise
        return self

    def send(self, entry: OutgoingEntry) -> None:
        """Send an entry as soon as the window has room; `entry.callback` learns how it ends.

        Blocks while the window is full, at most for the send timeout. Raises MessageTooLarge
        or InvalidRow for an entry that cannot be sent, the final error of the producer, and
        OperationTimeout.
        """
        self.send_many((entry,))

    def send_many(self, entries: Iterable[OutgoingEntry]) -> None:
        """Send entries in order, as `send` does, but written to the connection together.

        If one raises, those before it are on their way.
        """
        self._check_process()
        # One sender at a time: sequence ids follow the order in which entries are sent.
        if not self._order.acquire(timeout=self._window.timeout):
            raise OperationTimeout(
                f"no turn to send came within {self._window.timeout:g} s", **self._where()
            )
        try:
            limits = self._limits or self._open_limits()
            self._window.check()
            upcoming = self._next_sequence_id
            group: list[PendingSend] = []
            try:
                for entry in entries:
                    first = upcoming if entry.sequence_ids is None else entry.sequence_ids[0]
                    for send in encode_entry(entry, first, limits):
                        self._make_room(send, group)
                        group.append(send)
                        upcoming = max(upcoming, send.highest_sequence_id + 1)
            finally:
                self._submit(group)
        finally:
            self._order.release()

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything that was sent before is acknowledged.

        Raises the final error of the producer, or OperationTimeout after `timeout` seconds
        (default: none but the send timeout of each message).
        """
        self._check_process()
        self._window.wait_until_acknowledged(Deadline(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Flush, then leave the broker. Raises the final error, or what `flush` raises.

        Its resources are given back in any case.
        """
        if os.getpid() != self._pid:
            return
        try:
            if self._failed or not self._window.ended:
                self.flush(timeout)
        finally:
            error = ClosedError("the producer is closed", topic=self.topic)
            self._leave(error, self._context.options.operation_timeout)

    def abort(self) -> None:
        """Leave without waiting for anything: what is pending fails with ClosedError."""
        if os.getpid() == self._pid:
            error = ClosedError("the producer was aborted", topic=self.topic)
            self._leave(error, _ABORT_SECONDS)

    # --- sending ------------------------------------------------------------------------------

    def _open_limits(self) -> SendLimits:
        self.open()
        assert self._limits is not None
        return self._limits

    def _make_room(self, send: PendingSend, group: list[PendingSend]) -> None:
        if self._window.try_reserve(send, group):
            return
        # What is waited for may be the group itself.
        self._submit(group)
        try:
            self._window.reserve(send)
        except OperationTimeout as error:
            if send.chunk:
                # Some chunks are out; a message that ends in the middle cannot be repaired.
                self._fail(error)
            raise

    def _submit(self, group: list[PendingSend]) -> None:
        """Take sends for which there is room, and write them if there is a connection."""
        sends = group.copy()
        group.clear()
        with self._wire:
            with self._window.changed:
                if self._window.ended:
                    for send in sends:
                        self._window.release(send)
                    self._window.check()
                for send in sends:
                    self._window.append(send)
                    following = send.highest_sequence_id + 1
                    self._next_sequence_id = max(self._next_sequence_id, following)
                registration = self._registration
            if registration is not None and sends:
                self._write(registration, sends)

    def _write(self, registration: Registration, sends: Sequence[PendingSend]) -> None:
        """Write to the connection; what fails stays pending and is sent again. `_wire` is held."""
        entries = [(send.command, send.metadata, send.payload) for send in sends]
        try:
            registration.connection.send_payloads(entries, timeout=self._window.timeout)
        except PulsarError as error:
            self.on_lost(registration, error)

    # --- for the registrar --------------------------------------------------------------------

    def adopt(self, registration: Registration, success: pb.CommandProducerSuccess) -> None:
        """Use a registration from now on, and send what is pending again, in order."""
        limits = SendLimits(
            producer_name=success.producer_name,
            producer_id=registration.producer_id,
            max_message_size=registration.connection.max_message_size,
            compression=self._options.compression,
            schema_version=success.schema_version,
            chunking=self._options.chunking_enabled and self._topic.is_persistent,
            chunk_size=self._options.chunk_max_message_size,
            topic=self.topic,
        )
        with self._wire:
            with self._window.changed:
                wanted = not self._window.ended
                if wanted:
                    if registration.error is not None:
                        raise registration.error.with_context()
                    if not self._registrations:
                        self._begin_sequence(success.last_sequence_id)
                    self._registrations += 1
                    self._limits = limits
                    self._registration = registration
                    self._window.changed.notify_all()
                pending = list(self._window.pending)
            if wanted:
                self._resend(registration, pending, limits.max_message_size)
        if not wanted:
            registration.close_quietly()

    def give_up(self, error: PulsarError) -> None:
        """There will be no registration: fail for good."""
        self._fail(error)

    def _resend(self, registration: Registration, pending: list[PendingSend], most: int) -> None:
        for send in pending:
            if send.size > most:
                error = MessageTooLarge(
                    f"a pending message of {send.size} bytes does not fit the topic's new "
                    f"broker, which takes {most}",
                    **self._where(),
                )
                self._fail(error)
                return
        for start in range(0, len(pending), _RESEND_GROUP):
            if self._registration is registration:
                self._write(registration, pending[start : start + _RESEND_GROUP])

    def _begin_sequence(self, last_sequence_id: int) -> None:
        initial = self._options.initial_sequence_id
        self._last_sequence_id = last_sequence_id
        self._next_sequence_id = (last_sequence_id if initial is None else initial) + 1

    # --- on the receive thread ----------------------------------------------------------------

    def on_receipt(self, registration: Registration, receipt: pb.CommandSendReceipt) -> None:
        """An entry is stored: it must be the oldest one that is pending."""
        with self._window.changed:
            if registration is not self._registration:
                return
            verdict = self._window.pending.judge(receipt.sequence_id)
            if verdict is Verdict.OLDEST:
                send = self._window.pop()
                message_id = self._note_receipt(send, receipt)
        if verdict is Verdict.AHEAD:
            # Raised on the receive thread it ends the connection, and all that is pending is sent
            # again on a new one.
            raise RemoteProtocolError(
                f"the broker acknowledged sequence id {receipt.sequence_id} before older ones",
                **self._where(),
            )
        if verdict is Verdict.OLDEST:
            self._complete(send, None, message_id)

    def _note_receipt(self, send: PendingSend, receipt: pb.CommandSendReceipt) -> MessageId:
        stored = MessageId.from_pb(receipt.message_id)
        message_id = MessageId(stored.ledger_id, stored.entry_id, self.partition)
        if send.chunk == 0:
            self._first_chunk = message_id
        elif send.chunk is not None:
            message_id = replace(message_id, first_chunk=self._first_chunk)
        self._last_sequence_id = max(self._last_sequence_id, send.highest_sequence_id)
        # A message that the broker had already is acknowledged under no id.
        if stored.ledger_id < 0:
            self._duplicates += send.num_messages
        else:
            self._last_message_id = message_id
        return message_id

    def on_send_error(self, registration: Registration, command: pb.CommandSendError) -> None:
        """An entry was refused: give up, or register again and send what is pending again."""
        with self._window.changed:
            if registration is not self._registration:
                return
            verdict = self._window.pending.judge(command.sequence_id)
        error = registration.connection.refusal(command.error, command.message, **self._where())
        if isinstance(error, _FATAL_SEND_ERRORS) or (
            isinstance(error, BrokerChecksumError) and verdict is Verdict.OLDEST
        ):
            self._fail(error)
        elif verdict is not Verdict.BEHIND:
            logger.warning("%s; the pending messages are sent again", error)
            self.on_lost(registration, error, close_first=True)

    def on_lost(
        self, registration: Registration, error: PulsarError, close_first: bool = False
    ) -> None:
        """The registration has ended: get another one."""
        with self._window.changed:
            if registration is not self._registration or self._window.ended:
                return
            self._registration = None
        error = error.with_context(**self._where(registration.broker))
        self._registrar.come_back(registration, error, close_first=close_first)

    # --- the end ------------------------------------------------------------------------------

    def on_client_closed(self) -> None:
        """The client was closed: what is pending fails, a producer with nothing to lose ends."""
        error = ClosedError("the client was closed", **self._where())
        if self.pending_messages:
            self._fail(error)
        else:
            self._end(error, failed=False)

    def _fail(self, error: PulsarError) -> None:
        ended, registration = self._end(error, failed=True)
        if not ended:
            return
        if registration is not None:
            # Saying good-bye can block, and this may be the receive thread.
            with contextlib.suppress(ClosedError):
                self._context.timers.call_later(0.0, registration.close_quietly)
        if self._on_failure is not None:
            self._on_failure(error)

    def _leave(self, error: ClosedError, timeout: float) -> None:
        registration = self._end(error, failed=False)[1]
        if registration is None:
            return
        try:
            registration.close(timeout)
        except PulsarError as trouble:
            logger.debug("the producer of %s was not closed: %s", self.topic, trouble)

    def _end(self, error: PulsarError, failed: bool) -> tuple[bool, Registration | None]:
        self._registrar.stop()
        with self._window.changed:
            unfinished = self._window.end(error)
            if unfinished is None:
                return False, None
            self._failed = failed
            registration, self._registration = self._registration, None
        self._window.wake()
        for send in unfinished:
            self._complete(send, error, None)
        return True, registration

    def _complete(
        self, send: PendingSend, error: PulsarError | None, message_id: MessageId | None
    ) -> None:
        try:
            if send.callback is not None:
                send.callback(error, message_id)
        except Exception:
            logger.exception("the callback of a send to %s failed", self.topic)
        finally:
            self._window.settle(send)

    # --- checks -------------------------------------------------------------------------------

    def _check_process(self) -> None:
        # Before any lock is touched: another thread may have held it when the process forked.
        if os.getpid() != self._pid:
            raise ClosedError(
                "the producer was made by another process and cannot be used after a fork",
                "Make a producer of its own in each process.",
                topic=self.topic,
            )

    def _where(self, broker: str | None = None) -> dict[str, Any]:
        if broker is None and (registration := self._registration) is not None:
            broker = registration.broker
        if broker is None and (trouble := self._registrar.trouble) is not None:
            broker = trouble.broker
        partition = None if self.partition < 0 else self.partition
        return {"topic": self.topic, "partition": partition, "broker": broker}


def _identity(topic: str, options: ProducerOptions) -> Identity:
    return Identity(
        topic,
        options.producer_name,
        options.producer_name is not None,
        access_mode=options.access_mode,
        schema=None if options.schema is None else options.schema.to_pb(),
        properties=options.properties,
    )
