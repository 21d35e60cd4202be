"""The producer of one topic partition: a bounded window of SENDs, acknowledged in order.

Threads. `send…`, `flush` and `close` run on the caller's thread, which encodes and writes. Receipts
arrive on the connection's receive thread, which completes the window and runs the callbacks of
sends; a callback must be quick and must not wait for the producer. After a disconnect, an
operation in the background registers the producer again, with growing pauses, and resends
everything pending, even if no caller waits. A timer fails sends whose time is up. Neither the
receive thread nor the timers wait for a sender: they use `try_send`, and whoever makes room or ends
its turn calls `on_room`.

Locks, taken in this order: `_order` (one sender at a time, also while it waits for room),
`_window.changed` (the state, and the order of what is queued on the connection; never held while
anything blocks or a callback runs).
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeAlias

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.encryption import Encryptor
from pulsar_spark.engine.forks import fork_count
from pulsar_spark.engine.operations import Operation, Within, run, start
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.inflight_window import (
    Acknowledged,
    InflightWindow,
    MessageCallback,
    PendingSends,
    ProducerCounts,
    ReceiptVerdict,
)
from pulsar_spark.engine.producers.producer_session import (
    Encoding,
    Identity,
    ProducerSession,
    ReceiptLog,
    Registrar,
    entry_of,
)
from pulsar_spark.engine.producers.send_gate import RefusedEntry, SendGate
from pulsar_spark.engine.retry import Deadline
from pulsar_spark.errors import (
    BrokerChecksumError,
    ClosedError,
    DroppedAsDuplicate,
    MessageTooLarge,
    NotAllowed,
    OperationTimeout,
    ProducerFenced,
    PulsarError,
    RemoteProtocolError,
    TopicTerminated,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_batches import MessageFields, UniformMessages
from pulsar_spark.protocol.send_encoder import BLOCK_BYTES
from pulsar_spark.protocol.sends import OutgoingEntry, single_entry
from pulsar_spark.protocol.topic_name import TopicName

logger = get_logger(__name__)

Held: TypeAlias = "tuple[int, int]"
"""Bytes that are reserved for messages, and the number of those messages."""

_ABORT_SECONDS = 1.0

# Errors that resending the message cannot change.
_FATAL_SEND_ERRORS = (TopicTerminated, ProducerFenced)
_SMALLER = (
    "Make it smaller, compress it, or raise the topic's policy maxMessageSize (pulsar-admin "
    "topicPolicies set-max-message-size)."
)


class TopicProducer:
    """Writes to one topic partition. `send` opens it; `flush` or `close` waits for receipts.

    Errors are permanent: once a message cannot be delivered, every later `send`, `flush` and
    `close` raises the same error. After MessageTooLarge and InvalidRow, which are raised before
    anything is sent, the producer can be used again. With `survives_timeouts`, a message that times
    out, or that is refused, also by a backlog quota, fails alone, and `flush` raises that once.
    `on_failure` gets the permanent error once. Errors about the n-th message that was sent begin
    with `name_of(n)`.

    Batches that the topic's policy does not allow are divided. Messages keep their order, unless
    `in_order` is False: then nothing waits for receipts.

    With `txn` all messages are of that transaction. Then entries whose receipts were lost with the
    session are not resent, unless the topic deduplicates: ConnectionLost. They can be stored, and
    the transaction would hold them twice.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        options: ProducerOptions | None = None,
        on_failure: Callable[[PulsarError], None] | None = None,
        *,
        survives_timeouts: bool = False,
        in_order: bool = True,
        name_of: Callable[[int], str] = lambda number: "",
        txn: TxnId | None = None,
    ) -> None:
        self._txn = txn
        self._name_of = name_of
        self._options = options or ProducerOptions()
        self._context = context
        self.budget = context.budget
        """The memory budget shared with the client's other producers."""
        self._topic = TopicName.parse(topic)
        self.topic = str(self._topic)
        self.partition = self._topic.partition_index
        self._on_failure = on_failure
        self._forks = fork_count()
        identity = Identity.of(self.topic, self._options)
        waits = self._options.waits_for_name
        self._registrar = Registrar(
            context, self, identity, waits_for_name=waits, lives=survives_timeouts
        )
        encryption = self._options.encryption
        self._encryptor = None if encryption is None else Encryptor(encryption)
        self._encoding: Encoding | None = None
        self._opened: Future[None] = Future()
        self._order = threading.Lock()
        self._window = InflightWindow(
            context.budget,
            context.timers,
            max_messages=self._options.max_pending_messages,
            timeout=self._options.send_timeout,
            describe=self._where,
            trouble=lambda: self._registrar.trouble,
            give_up=self._fail,
            survives_timeouts=survives_timeouts,
            on_expired=self._on_expired,
            on_room=self._call_on_room,
        )
        self._gate = SendGate(
            self._window.pending, in_order=in_order, guards_all=self._options.resumes
        )
        self.on_room: Callable[[], object] | None = None
        """Called, on any thread, when a failed `try_send` may succeed now."""
        self._wanted = False
        # The thread whose turn it is, unless it does not wait.
        self._sender: int | None = None
        # Bytes queued on the connection and not written; for the sender whose turn it is.
        self._unwritten = 0
        # The following are guarded by _window.changed.
        self._opening = False
        self._failed = False
        self._session: ProducerSession | None = None
        # The one before, until there is another: its last receipts may still come.
        self._lost_session: ProducerSession | None = None
        self._sessions = 0
        self._next_sequence_id = 0
        self._receipt_log = ReceiptLog(self._topic, resumes=self._options.resumes)
        context.add(self)

    # --- attributes ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The producer's name: from the options, otherwise from the broker."""
        return self._registrar.identity.name or ""

    @property
    def topic_epoch(self) -> int:
        """How often exclusive access to the topic has changed, as the broker said; -1 if never."""
        epoch = self._registrar.identity.topic_epoch
        return -1 if epoch is None else epoch

    @property
    def is_connected(self) -> bool:
        """Whether it is registered with a broker at this moment."""
        return self._session is not None

    @property
    def last_sequence_id(self) -> int:
        """That of the message that was stored last, by an earlier producer of the name, too.

        Before any, it is the options' initial one, or -1.
        """
        return self._receipt_log.last_sequence_id

    @property
    def last_message_id(self) -> MessageIdAdv | None:
        """Where the last acknowledged entry is stored."""
        return self._receipt_log.last_message_id

    @property
    def schema_version(self) -> bytes:
        """The version of the options' schema on the topic, empty without a schema."""
        return b"" if self._encoding is None else self._encoding.limits.schema_version

    @property
    def max_message_size(self) -> int:
        """The broker's limit for metadata and payload of one message, in bytes."""
        return 0 if self._encoding is None else self._encoding.limits.max_message_size

    @property
    def max_payload(self) -> int:
        """The maximum size of a batch without compression and key; 0 before it is open."""
        if self._encoding is None:
            return 0
        return min(self._encoding.max_payload, self._gate.most_bytes)

    @property
    def has_refused(self) -> bool:
        """Whether the broker refused an entry; smaller ones may wait in its place."""
        return self._gate.has_refused

    @property
    def acknowledged(self) -> int:
        """The number of messages that are stored."""
        return self._window.acknowledged

    @property
    def pending_messages(self) -> int:
        """Messages sent or waiting for a connection, and not acknowledged."""
        return self._window.pending.messages

    def is_busy(self, messages: int) -> bool:
        """Whether something is under way, and there is room for so many messages besides."""
        return len(self._window.pending) > 0 and messages < self._window.room()

    @property
    def counts(self) -> ProducerCounts:
        """The producer's counters."""
        with self._window.changed:
            return ProducerCounts(
                messages=self._window.sent_messages,
                bytes=self._window.sent_bytes,
                entries=self._window.pending.entries,
                acknowledged=self._window.acknowledged,
                duplicates=self._receipt_log.duplicates,
                reconnects=max(self._sessions - 1, 0),
            )

    # --- for callers --------------------------------------------------------------------------

    def open(self, timeout: float | None = None) -> TopicProducer:
        """Register with the broker, within `timeout` (default: the operation timeout) seconds.

        Temporary errors are retried, a name in use only for some seconds, or not at all without
        the option `waits_for_name`. Raises the broker's error, or OperationTimeout with the last
        error as its cause.
        """
        self._check_process()
        seconds = timeout or self._context.options.operation_timeout
        deadline = Deadline(seconds)
        # The operation times out earlier, with a clearer error.
        run(lambda _: self.open_operation(deadline), seconds + 1.0)
        return self

    def open_operation(self, deadline: Deadline) -> Operation[None]:
        """Return the operation that `open` runs."""
        with self._window.changed:
            self._window.check()
            mine = not self._opening
            self._opening = True
            if not mine and self._sessions:
                return
        if not mine:
            yield Within(self._opened, deadline.remaining())
            return
        try:
            yield from self._registrar.open_operation(deadline)
        except PulsarError as error:
            self._fail(error)
            raise
        except BaseException:
            with self._window.changed:
                self._opening = False
            raise

    def send(self, entry: OutgoingEntry) -> None:
        """Send an entry once the window has room; `entry.callback` gets the result.

        Blocks while the window is full, as long as receipts arrive within the send timeout. Raises
        MessageTooLarge or InvalidRow for an entry that cannot be sent, the producer's permanent
        error, and OperationTimeout.
        """
        with self.turn():
            self._send(entry)

    def send_column(self, messages: UniformMessages, per_entry: int = 1, start: int = 0) -> int:
        """Send a column of messages in batches of `per_entry` (1: without batches), as `send`.

        Returns the index of the next message: the column's end, or a message that is too large; if
        that is the one at `start`, raises MessageTooLarge.
        """
        at = start
        with self.turn():
            while at < len(messages):
                try:
                    at = self._send_block(messages, per_entry, at)
                except MessageTooLarge:
                    if at == start:
                        raise
                    break
        return at

    def send_block(
        self, messages: UniformMessages, per_entry: int, callback: MessageCallback | None
    ) -> int:
        """Send as many messages of a column as go together, as `send_column`; return how many.

        What is raised is about the first of them, and no callback was told. `callback` learns how
        messages without callbacks of their own end.
        """
        with self.turn():
            return self._send_block(messages, per_entry, 0, callback)

    def send_messages(
        self,
        messages: Sequence[MessageFields],
        start: int = 0,
        callbacks: Sequence[MessageCallback | None] = (),
    ) -> int:
        """Send messages with fields, each without a batch, as `send_column` does a column.

        Returns the index of the next message; raises only for the one at `start`. `callbacks` are
        those of all messages, or of the first ones.
        """
        with self.turn():
            self._make_room(1)
            sends = self._message_block(messages, start, callbacks)
            if sends is None:
                callback = next(iter(callbacks[start : start + 1]), None)
                self._send(single_entry(messages[start], callback))
                return start + 1
            self._reserve(sends.size)
            return start + self._submit([sends])

    def _message_block(
        self,
        messages: Sequence[MessageFields],
        start: int,
        callbacks: Sequence[MessageCallback | None],
    ) -> PendingSends | None:
        """Return the sends of messages without a batch; None if the first one is unusual."""
        assert self._encoding is not None
        first, room = self._next_sequence_id, self._window.room()
        return self._encoding.messages(messages, start, room, first, callbacks)

    def try_send(self, entries: Iterable[OutgoingEntry], held: Held) -> int:
        """Send entries as long as none has to wait; return how many messages were sent.

        If not all, there was no room, another sender has the turn, or the producer is not open yet:
        `on_room` is called later. Raises as `send`, for the first one only. What is `held` for
        messages that are sent is released. For timers and the receive thread.
        """

        def sends() -> Iterator[list[PendingSends]]:
            for entry in entries:
                if not self._window.has_room(entry.count):
                    return
                yield list(self._encoded(entry))

        return self._try(sends(), held)

    def try_send_messages(
        self,
        messages: Sequence[MessageFields],
        callbacks: Sequence[MessageCallback | None] = (),
        held: Held = (0, 1),
    ) -> int:
        """As `send_messages`, for as many messages as possible without waiting; as `try_send`."""

        def sends() -> Iterator[list[PendingSends]]:
            if not self._window.has_room(1):
                return
            if (sends := self._message_block(messages, 0, callbacks)) is not None:
                yield [sends]
            else:
                yield list(self._encoded(single_entry(messages[0], next(iter(callbacks), None))))

        return self._try(sends(), held)

    def try_send_block(
        self,
        messages: UniformMessages,
        per_entry: int,
        callback: MessageCallback | None,
        held: Held,
    ) -> int:
        """As `send_block`, for as many messages as possible without waiting; as `try_send`."""
        first = min(per_entry, len(messages))

        def sends() -> Iterator[list[PendingSends]]:
            assert self._encoding is not None
            if not self._window.has_room(first):
                return
            room, following = self._window.room(), self._next_sequence_id
            sends = self._encoding.block(messages, per_entry, 0, room, following, callback)
            if sends is not None:
                yield [sends]
            else:
                yield list(self._encoded(entry_of(messages.part(0, first), callback)))

        return self._try(sends(), held)

    def _try(self, sends: Iterator[list[PendingSends]], held: Held) -> int:
        """Send what `sends` has room for, without waiting; return how many messages were sent.

        Raises only if none was.
        """
        self._wanted = True
        if not self._order.acquire(blocking=False):
            return 0
        sent = 0
        try:
            self._window.check()
            if self._encoding is None:
                self._open_in_background()
                return 0
            for own in sends:
                stop = sent + sum(send.num_messages for send in own)
                part = held[0] * stop // held[1] - held[0] * sent // held[1]
                self._window.release(part - sum(send.size for send in own))
                try:
                    self._submit(own, wait=False)
                except PulsarError:
                    # What was reserved is the caller's still.
                    self._window.release(-part)
                    raise
                sent = stop
        except PulsarError:
            if not sent:
                raise
        finally:
            self._unwritten = 0
            if sent and (session := self._session) is not None:
                self._write(session, wait=False)
            self._order.release()
        return sent

    def reserve(self, size: int) -> None:
        """Reserve memory for messages of a later `send`; waits for it.

        Raises OperationTimeout, or the permanent error.
        """
        self._window.reserve(size)

    def has_sent(self, sequence_id: int) -> bool:
        """Whether a producer of this name sent a message before this one was opened.

        If so, it counts as an acknowledged duplicate. Opens the producer; raises as `open`.
        """
        if self._encoding is None:
            self.open()
        if not self._receipt_log.was_known(sequence_id):
            return False
        with self._window.changed:
            self._receipt_log.duplicates += 1
            self._window.sent_messages += 1
            self._window.acknowledged += 1
        return True

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged.

        Raises the producer's permanent error, or OperationTimeout after `timeout` seconds
        (default: only each message's send timeout).
        """
        self._check_process()
        self._window.wait_until_acknowledged(Deadline(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Flush, then leave the broker in any case. Raises the permanent error, or as `flush`."""
        if fork_count() != self._forks:
            return
        try:
            with self._window.changed:
                is_closed = self._window.ended and not self._failed
            if not is_closed:
                self.flush(timeout)
        finally:
            run(self.close_operation, self._context.options.operation_timeout)

    def close_operation(self, deadline: Deadline) -> Operation[None]:
        """Return an operation that leaves the broker; it never raises."""
        return self._leave(ClosedError("the producer is closed", topic=self.topic), deadline)

    def abort(self) -> None:
        """Leave without waiting: pending messages fail with ClosedError."""
        if fork_count() == self._forks:
            run(self.abort_operation, _ABORT_SECONDS)

    def abort_operation(self, deadline: Deadline) -> Operation[None]:
        """Return the operation that `abort` runs."""
        return self._leave(ClosedError("the producer was aborted", topic=self.topic), deadline)

    # --- sending ------------------------------------------------------------------------------

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let one sender in at a time: sequence ids follow the order of sending.

        A thread that waits too long fails alone; raises as `send`. What is sent inside, also by
        methods that take a turn of their own, is written together at the end.
        """
        if self._sender == threading.get_ident():
            yield
            return
        self._check_process()
        if not self._order.acquire(timeout=min(self._window.timeout, threading.TIMEOUT_MAX)):
            raise OperationTimeout(
                f"the message could not be sent within {self._window.timeout:g} s", **self._where()
            )
        try:
            if self._encoding is None:
                self.open()
            self._window.check()
            self._sender = threading.get_ident()
            try:
                yield
            finally:
                self._sender = None
                self._write_queued()
        finally:
            self._order.release()
            self._call_on_room()

    def _send(self, entry: OutgoingEntry) -> None:
        for send in self._encoded(entry):
            try:
                self._make_room(send.num_messages)
                self._reserve(send.size)
            except OperationTimeout as error:
                if send.chunk and not self._window.survives_timeouts:
                    # Some chunks were sent; the message cannot be completed any more.
                    self._fail(error)
                raise
            self._submit([send])

    def _encoded(self, entry: OutgoingEntry) -> Iterator[PendingSends]:
        assert self._encoding is not None
        return self._encoding.entry(entry, self._next_sequence_id)

    def _send_block(
        self,
        messages: UniformMessages,
        per_entry: int,
        start: int,
        callback: MessageCallback | None = None,
    ) -> int:
        """Send some messages of a column; return the index of the next one."""
        entry_stop = min(start + per_entry, len(messages))
        self._make_room(entry_stop - start)
        assert self._encoding is not None
        room, first = self._window.room(), self._next_sequence_id
        sends = self._encoding.block(messages, per_entry, start, room, first, callback)
        if sends is None:
            return self._send_carefully(messages, start, entry_stop, callback)
        self._reserve(sends.size)
        return start + self._submit([sends])

    def _send_carefully(
        self,
        messages: UniformMessages,
        start: int,
        stop: int,
        callback: MessageCallback | None,
    ) -> int:
        """Send as many messages as fit into one entry; return the next one's index.

        Raises MessageTooLarge if even the first one alone is too large.
        """
        while True:
            part = messages.part(start, stop)
            try:
                self._send(entry_of(part, callback))
                return stop
            except MessageTooLarge:
                if len(part) == 1:
                    raise
                stop = start + len(part) // 2

    def _make_room(self, messages: int) -> None:
        if self._window.has_room(messages):
            return
        # The awaited receipts may depend on frames that are still queued.
        self._write_queued()
        self._window.wait_for_room(messages)

    def _reserve(self, size: int) -> None:
        if not self._window.budget.try_reserve(size):
            self._write_queued()
            self._window.reserve(size)

    def _submit(self, sends: Sequence[PendingSends], *, wait: bool = True) -> int:
        """Append sends, for which there is room, and queue them if there is a connection.

        Returns the number of their messages, which receipts then take away from the sends.
        """
        messages = sum(send.num_messages for send in sends)
        window = self._window
        with window.changed:
            if window.ended or (sends[0].sequence_id == window.broken_message and sends[0].chunk):
                for send in sends:
                    window.release(send.size)
                window.check()
                raise OperationTimeout(
                    "the first chunks of the message were not acknowledged in time",
                    **self._where(),
                )
            for send in sends:
                window.append(send)
                self._next_sequence_id = max(self._next_sequence_id, send.highest_sequence_id + 1)
                self._gate.add(send)
            self._queue()
        if wait and self._unwritten >= BLOCK_BYTES:
            self._write_queued()
        return messages

    def _queue(self) -> None:
        """Queue the frames that may go on the connection. `changed` is held."""
        session = self._session
        while session is not None and (send := self._gate.next()) is not None:
            try:
                session.connection.put_sends(session.producer_id, send.unacknowledged())
            except PulsarError:
                # The session is told that the connection ended, and everything is resent.
                return
            self._unwritten += send.length

    def _write_queued(self) -> None:
        self._unwritten, unwritten = 0, self._unwritten
        if unwritten and (session := self._session) is not None:
            self._write(session, wait=True)

    def _write(self, session: ProducerSession, *, wait: bool) -> None:
        """Write to the connection; sends that fail stay pending and are resent."""
        try:
            if wait:
                session.connection.write(self._window.timeout)
            else:
                session.connection.write_now()
        except PulsarError as error:
            # If it only timed out waiting for its turn, other threads write its bytes.
            if session.connection.closed:
                self.on_lost(session, error)

    def _open_in_background(self) -> None:
        with self._window.changed:
            if self._opening:
                return
        start(self.open_operation, self._context.options.operation_timeout, self._context.timers)

    def _call_on_room(self) -> None:
        if self._wanted and self.on_room is not None:
            self._wanted = False
            self.on_room()

    # --- for the registrar --------------------------------------------------------------------

    def adopt(self, session: ProducerSession, success: pb.CommandProducerSuccess) -> None:
        """Use a session from now on, and resend pending messages in order."""
        cipher = None if self._encryptor is None else self._encryptor.data_key
        encoding = Encoding.agreed(
            session, success, self._topic, self._options, cipher=cipher, txn=self._txn
        )
        with self._window.changed:
            if session.error is not None and not self._window.ended:
                raise session.error.with_context()
            error = self._check_stored(success.last_sequence_id)
            wanted = not self._window.ended and error is None
            if wanted:
                if not self._sessions:
                    self._begin_sequence(success.last_sequence_id)
                self._sessions += 1
                self._encoding = encoding
                self._session = session
                self._forget_lost()
                error = self._window.too_large(encoding.limits.max_message_size)
                self._gate.restart(encoding)
                if error is None:
                    self._queue()
                self._window.changed.notify_all()
        if not wanted:
            session.close_quietly()
        if error is not None:
            self._fail(error)
        elif wanted:
            self._write(session, wait=False)
            if not self._opened.done():
                self._opened.set_result(None)
            self._call_on_room()

    def _forget_lost(self) -> None:
        lost, self._lost_session = self._lost_session, None
        if lost is not None:
            lost.forget()

    def _check_stored(self, last_sequence_id: int) -> PulsarError | None:
        """Return the error if pending entries cannot be sent again.

        A broker that deduplicates knows the last sequence id of this producer, and drops what it
        has. Without that, entries of a transaction may be stored already, without a receipt.
        """
        self._receipt_log.register(last_sequence_id, self._window.pending.oldest)
        if (failure := self._receipt_log.failure(self._where)) is not None:
            return failure
        if self._txn is None or not self._sessions or last_sequence_id >= 0:
            return None
        return self._window.lost_receipts(self._txn) if len(self._window.pending) else None

    def give_up(self, error: PulsarError) -> None:
        """There will be no session: fail permanently."""
        self._fail(error)

    def refuse(self, error: PulsarError) -> bool:
        """Fail what is pending, and go on; false if that ends the producer."""
        return self._window.refuse(error.with_context(**self._where()))

    @property
    def waits_for_receipts(self) -> bool:
        """Whether the broker owes receipts."""
        return len(self._window.pending) > 0

    def time_left(self) -> float:
        """Seconds until the oldest pending message times out; the whole timeout without one."""
        return self._window.time_left()

    def _begin_sequence(self, last_sequence_id: int) -> None:
        initial = self._options.initial_sequence_id
        self._next_sequence_id = self._receipt_log.begin(last_sequence_id, initial) + 1

    # --- on the receive thread ----------------------------------------------------------------

    def on_receipts(self, session: ProducerSession, receipts: array[int]) -> None:
        """Entries are stored: they must be the oldest pending ones, in order."""
        with self._window.changed:
            # What the broker had under way when it closed the producer counts until the next one.
            is_open = session is self._session
            if not is_open and self._session is not None:
                return
            done, ahead, may_go = self._take(receipts, is_open)
            refusal = self._first_refusal()
            failure = self._receipt_log.failure(self._where) or refusal
            if may_go and failure is None:
                self._queue()
        if is_open:
            self._registrar.trouble = None
        # Before a flush can see that everything is acknowledged.
        if failure is not None:
            self._fail(failure)
        self._window.finish(done, None if refusal is failure else failure)
        if ahead is not None and is_open:
            # It ends the connection, and everything pending is resent on a new one.
            raise RemoteProtocolError(
                f"the broker acknowledged sequence id {ahead} before older ones", **self._where()
            )
        if may_go:
            self._write(session, wait=False)

    def _take(
        self, receipts: array[int], is_open: bool
    ) -> tuple[list[Acknowledged | PendingSends], int | None, bool]:
        """Take off what receipts say is stored, and refused sends that are oldest then.

        Also returns the sequence id of a receipt that is ahead of older ones, and whether more may
        go. `changed` is held.
        """
        done: list[Acknowledged | PendingSends] = []
        ids = receipts[0::4]
        ahead = None
        may_go = False
        at = 0
        while at < len(ids):
            if not is_open and self._window.pending.next_is_chunk:
                # Chunks of a message have one sequence id: what is pending is sent again.
                break
            count, taken = self._window.take(ids[at:] if at else ids)
            if taken is not None:
                stored = receipts[4 * at : 4 * (at + count)]
                message_id = self._receipt_log.add(taken, stored)
                if taken.ends or taken.callbacks:
                    done.append((taken, stored, message_id))
                if taken.ends:
                    may_go = self._gate.acknowledged(taken.sends) or may_go
                    done += self._window.take_refused()
            elif not count:
                ahead = ids[at]
                self._receipt_log.skip(ahead, receipts[4 * at + 2], self._window.pending)
                if is_open:
                    break
            at += max(count, 1)
        return done, ahead, may_go

    def on_send_error(self, session: ProducerSession, command: pb.CommandSendError) -> None:
        """The broker refused an entry: divide it, give up, or register again and resend."""
        with self._window.changed:
            if session is not self._session:
                return
            verdict = self._window.pending.judge(command.sequence_id)
        error = session.connection.refusal(command.error, command.message, **self._where())
        if isinstance(error, NotAllowed):
            self._on_refusal(session, command.sequence_id, error)
        elif isinstance(error, _FATAL_SEND_ERRORS) or (
            isinstance(error, BrokerChecksumError) and verdict is ReceiptVerdict.OLDEST
        ):
            self._fail(error)
        elif verdict is not ReceiptVerdict.BEHIND:
            logger.warning("%s; the pending messages are sent again", error)
            self.on_lost(session, error, close_first=True)

    def _on_refusal(self, session: ProducerSession, sequence_id: int, error: PulsarError) -> None:
        """The broker does not take an entry: try smaller ones, else its messages have failed."""
        with self._window.changed:
            found = self._gate.refuse(sequence_id)
            if found is None:
                return
            if not found.is_divided:
                found.sends.refused = self._refused(found, error)
                if self._window.survives_timeouts:
                    self._gate.drop(found.sends)
            failure, refused = self._first_refusal(), self._window.take_refused()
            if failure is None:
                self._queue()
        if failure is not None:
            self._fail(failure)
        self._write(session, wait=False)
        self._window.finish(refused)

    def _refused(self, found: RefusedEntry, error: PulsarError) -> PulsarError:
        """Return the error for the messages of an entry that the broker does not take."""
        count = found.sends.num_messages
        what = "a message" if count == 1 else f"a batch of {count} messages"
        what = f"{what} of {found.size} bytes was refused: {error.what}"
        if found.is_last:
            return NotAllowed(what, _SMALLER, **self._where())
        what += ". Messages behind it may be stored"
        if not self._options.resumes:
            return NotAllowed(what, _SMALLER, **self._where())
        return DroppedAsDuplicate(
            f"{what}, so its own are left out as known when they are sent again",
            "Write the messages again under another producer name.",
            **self._where(),
        )

    def _first_refusal(self) -> PulsarError | None:
        """Return the error if what is acknowledged next was refused. `changed` is held."""
        oldest = self._window.pending.oldest
        if oldest is None or (error := oldest.refused) is None or self._window.survives_timeouts:
            return None
        name = self._name_of(self._window.acknowledged)
        named = type(error)(f"{name}: {error.what}" if name else error.what, error.remedy)
        return named.with_context(**self._where())

    def _on_expired(self, lost: Sequence[PendingSends]) -> None:
        """Sends have timed out: others may go."""
        with self._window.changed:
            for send in lost:
                self._gate.drop(send)
            self._queue()
        if (session := self._session) is not None:
            self._write(session, wait=False)

    def on_lost(
        self, session: ProducerSession, error: PulsarError, close_first: bool = False
    ) -> None:
        """The session has ended: get another one."""
        with self._window.changed:
            if session is not self._session or self._window.ended:
                # The broker may close a producer after a refusal, and acknowledge entries then.
                if session is not self._lost_session:
                    session.forget()
                return
            self._session, self._lost_session = None, session
        error = error.with_context(**self._where(session.broker))
        self._registrar.reconnect(session, error, close_first=close_first)

    # --- the end ------------------------------------------------------------------------------

    def on_client_closed(self) -> None:
        """The client was closed: fail what is pending, end if nothing is."""
        error = ClosedError("the client was closed", **self._where())
        if self.pending_messages:
            self._fail(error)
        elif (session := self._end(error, failed=False)[1]) is not None:
            # The connection may live on without this client.
            session.close_quietly()

    def _fail(self, error: PulsarError) -> None:
        ended, session = self._end(error, failed=True)
        if not ended:
            return
        if session is not None:
            session.close_quietly()
        if self._on_failure is not None:
            self._on_failure(error)

    def _leave(self, error: ClosedError, deadline: Deadline) -> Operation[None]:
        session = self._end(error, failed=False)[1]
        if session is None:
            return
        try:
            yield from session.close_operation(deadline)
        except PulsarError as trouble:
            logger.debug("the producer of %s was not closed: %s", self.topic, trouble)

    def _end(self, error: PulsarError, failed: bool) -> tuple[bool, ProducerSession | None]:
        self._registrar.stop()
        with self._window.changed:
            unfinished = self._window.end(error)
            if unfinished is None:
                return False, None
            self._failed = failed
            self._gate.clear()
            session, self._session = self._session, None
            self._forget_lost()
            opening = not self._opened.done()
        self._window.wake()
        if opening:
            self._opened.set_exception(error.with_context())
        self._window.finish(unfinished, error)
        return True, session

    # --- checks -------------------------------------------------------------------------------

    def _check_process(self) -> None:
        # Before any lock: another thread may have held it when the process forked.
        if fork_count() != self._forks:
            raise ClosedError(
                "the producer was made by another process and cannot be used after a fork",
                "Make a producer of its own in each process.",
                topic=self.topic,
            )

    def _where(self, broker: str | None = None) -> dict[str, Any]:
        if broker is None and (session := self._session) is not None:
            broker = session.broker
        if broker is None and (trouble := self._registrar.trouble) is not None:
            broker = trouble.broker
        partition = None if self.partition < 0 else self.partition
        return {"topic": self.topic, "partition": partition, "broker": broker}
