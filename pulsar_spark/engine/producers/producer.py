"""The producer of one topic partition: what waits to be sent, and a bounded window of SENDs.

Threads. `send`, `submit`, `drain`, `flush` and `close` run on the caller's thread. All that is sent
waits in one queue, and one thread at a time sends from it: it encodes and writes without the lock.
Receipts arrive on the connection's receive thread, which completes the window and runs the
callbacks of sends; a callback must be quick and must not wait for the producer. After a disconnect,
an operation in the background registers the producer again, with growing pauses, and resends
everything pending, even if no caller waits. A timer fails sends whose time is up. Neither the
receive thread nor the timers wait for a sender: they call `send_due`, as does whoever makes room or
ends its turn.

One lock, `changed`, guards all: what waits, whose turn it is to send, the window, the session, and
the order of what is queued on the connection. It is never held while anything blocks or calls back,
nor while anything is encoded, but for a batch that the broker refused and that is divided.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline, at_a_time
from pulsar_spark.engine.encryption import Encryptor
from pulsar_spark.engine.forks import fork_count, used_after_fork
from pulsar_spark.engine.keeping import Kept
from pulsar_spark.engine.operations import Operation, Within, run, start
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.inflight_window import (
    Acknowledged,
    InflightWindow,
    PendingSends,
    ProducerCounts,
    ReceiptVerdict,
    tell_failed,
)
from pulsar_spark.engine.producers.producer_session import (
    Encoding,
    Identity,
    KeptRegistration,
    ProducerSession,
    ReceiptLog,
    Registrar,
)
from pulsar_spark.engine.producers.send_gate import RefusedEntry, SendGate
from pulsar_spark.engine.producers.send_queue import SendQueue
from pulsar_spark.engine.producers.submission import Submission
from pulsar_spark.errors import (
    BrokerChecksumError,
    ClosedError,
    ConnectionLost,
    DroppedAsDuplicate,
    MessageTooLarge,
    NotAllowed,
    OperationTimeout,
    OptionError,
    ProducerFenced,
    PulsarError,
    RemoteProtocolError,
    TopicLost,
    TopicTerminated,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_messages import OutgoingMessages
from pulsar_spark.protocol.send_encoder import BLOCK_BYTES
from pulsar_spark.protocol.topic_name import TopicName

logger = get_logger(__name__)

_ABORT_SECONDS = 1.0
# Whoever waits for another thread, which ends by itself, looks so often.
_LOOK_AGAIN = 1.0

# Errors that resending the message cannot change.
_FATAL_SEND_ERRORS = (TopicTerminated, ProducerFenced)


class TopicProducer:
    """Writes to one topic partition. `send` opens it; `flush` or `close` waits for receipts.

    Errors are permanent: once a message cannot be delivered, every later `send`, `flush` and
    `close` raises the same error. After MessageTooLarge, which is raised before anything is sent,
    the producer can be used again. With `survives_timeouts`, a message that times out, or that is
    refused, also by a backlog quota, fails alone, and `flush` raises that once. `on_failure` gets
    the permanent error once, with the lock held. Errors about the n-th message that was sent begin
    with `name_of(n)`.

    Batches that the topic's policy does not allow are divided. Messages keep their order, unless
    `in_order` is False: then nothing waits for receipts.

    With `keep_as` a producer that is closed leaves its registration to the next one of this process
    with equal options and an equal `keep_as`, if it has no name, access or transaction of its own.
    That one goes on with its name and its sequence ids.

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
        keep_as: Hashable = None,
    ) -> None:
        self._txn = txn
        self._name_of = name_of
        self._options = options or ProducerOptions()
        self._context = context
        self._keep_as = keep_as
        self.budget = context.budget
        """The memory budget shared with the client's other producers."""
        self._topic = TopicName.parse(topic)
        self.topic = str(self._topic)
        self.partition = self._topic.partition_index
        self._on_failure = on_failure
        self._forks = fork_count()
        identity = Identity.of(self.topic, self._options)
        self._registrar = Registrar(
            context,
            self,
            identity,
            waits_for_name=self._options.waits_for_name,
            stays_stored=self._options.stays_stored and self._topic.is_persistent,
            lives=survives_timeouts,
        )
        encryption = self._options.encryption
        self._encryptor = None if encryption is None else Encryptor(encryption)
        self._encoding: Encoding | None = None
        # The version of the schema that was encoded last.
        self._encoded_as: bytes | None = None
        # The broker's last answer.
        self._success: pb.CommandProducerSuccess | None = None
        self._opened: Future[None] = Future()
        self._window = InflightWindow(
            context.budget,
            context.timers,
            max_messages=self._options.max_pending_messages,
            timeout=self._options.send_timeout,
            describe=self._where,
            trouble=lambda: self._registrar.trouble,
            give_up=self.give_up,
            survives_timeouts=survives_timeouts,
            on_expired=self._on_expired,
            on_room=self.send_due,
        )
        self.lock, self.changed = self._window.lock, self._window.changed
        """The lock, and the condition of it that something has changed."""
        self._gate = SendGate(
            self._window.pending, in_order=in_order, guards_all=self._options.resumes
        )
        # The following are guarded by `changed`.
        self.waiting = SendQueue(self._window)
        """What is not sent yet."""
        # Bytes queued on the connection and not written; for the thread that sends.
        self._unwritten = 0
        self._opening = False
        self._failed = False
        # Whether it ended with all that it was given stored.
        self._is_clean = False
        self._session: ProducerSession | None = None
        # The one before, until there is another: its last receipts may still come.
        self._lost_session: ProducerSession | None = None
        self._cluster: int | None = None
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
    def has_ended(self) -> bool:
        """Whether it was closed, or has failed: nothing more is sent."""
        return self._window.ended

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
        pending = self._window.pending.messages
        return 0 < pending < self._window.max_messages - messages

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
            if not self._take_over():
                yield from self._registrar.open_operation(deadline)
        except PulsarError as error:
            self.give_up(error)
            raise
        except BaseException:
            with self._window.changed:
                self._opening = False
            raise

    def send(self, messages: OutgoingMessages, per_entry: int = 1) -> None:
        """Send columns of messages in batches of `per_entry` (1: without batches).

        Their turn comes after all that waits. Blocks while the window is full, as long as receipts
        arrive within the send timeout; then their callbacks get the result, or the error. Without
        callbacks raises MessageTooLarge, the producer's permanent error, and OperationTimeout.
        """
        self.submit(Submission(messages, per_entry=per_entry))

    def send_soon(self, messages: OutgoingMessages) -> None:
        """As `send`, as soon as there is room: never blocks.

        Raises ProducerQueueFull if there is no memory for them. Callbacks get other errors.
        """
        self._check_process()
        size = messages.size(0, len(messages))
        if not self.budget.try_reserve(size):
            self.make_due()
            raise self.budget.full(self.topic)
        submission = Submission(messages, per_entry=1)
        submission.owned, submission.held = False, size
        with self.changed:
            self.waiting.add(submission)
        self.make_due(only_full=True)

    def submit(self, submission: Submission) -> None:
        """As `send`; after an error `submission.failed_at` says how many messages were sent."""
        self._check_process()
        with self.changed:
            self.waiting.add(submission)
        try:
            self.drain(submission)
        finally:
            with self.changed:
                # Nobody waits for it any more.
                submission.owned = False
                if not submission.is_begun:
                    self.waiting.forget(submission)

    def drain(self, last: Submission | None = None, *, takes_turns: bool = True) -> bool:
        """Send all complete entries that wait now, up to and including `last`.

        Blocks as `send`. Raises its error, or one that no callback got. Without `takes_turns`
        returns false at once if another thread sends; that one goes on with these then.
        """
        mine, target = False, 0
        with self.changed:
            if last is None:
                last = self.waiting.last
            if last is not None and last.sealed:
                target = last.sent + last.sealed
                if self.waiting.is_sending and not takes_turns:
                    self.waiting.full_due = True
                    return False
                mine = self._wait_for_turn(last, target)
                self.waiting.is_sending = self.waiting.is_sending or mine
        if last is not None and mine:
            self._drain(last, target)
        error = None if last is None else last.error
        if error is None:
            error = self.waiting.hear()
        if error is not None:
            raise error.with_context()
        return True

    def _wait_for_turn(self, last: Submission, target: int) -> bool:
        """Wait until no other thread sends; false if nothing is left to send then."""
        until = time.monotonic() + self._window.timeout
        while self.waiting.is_sending and last.sent < target:
            left = until - time.monotonic()
            # What another thread has begun to send ends with it.
            if left <= 0 and not last.is_begun:
                raise OperationTimeout(
                    f"the message could not be sent within {self._window.timeout:g} s",
                    **self._where(),
                )
            self.changed.wait(at_a_time(left if left > 0 else _LOOK_AGAIN))
        return last.sent < target

    def _drain(self, last: Submission, target: int) -> None:
        """Send until `last` has sent so many messages; it is this thread's turn."""
        try:
            if self._encoding is None:
                self.open()
            while last.sent < target:
                self._send_next(waits=True)
        except PulsarError as error:
            # What is before it is older, and lacks the same.
            while last.sent < target:
                self._drop_first(error, whole=True)
        finally:
            self._write_queued()
            self._end_turn()
            self.send_due()

    def _end_turn(self) -> None:
        with self.changed:
            self.waiting.is_sending, self._unwritten = False, 0
            self.changed.notify_all()

    def make_due(self, *, only_full: bool = False) -> None:
        """Send all that waits, or its complete entries, as soon as there is room.

        Does not block: for timers and the receive thread.
        """
        with self.changed:
            self.waiting.full_due = True
            self.waiting.due = self.waiting.due or not only_full
        self.send_due()

    def send_due(self) -> None:
        """Send what is due, as far as there is room, unless another thread sends: it does then."""
        if not self.waiting.full_due:
            return
        if self._encoding is None and not self._window.ended:
            self._open_in_background()
            return
        mine = False
        try:
            while self._may_send(mine):
                mine = True
                self._send_next(waits=False)
        except PulsarError as error:
            while self.waiting.messages:
                self._drop_first(error, whole=True)
            self._end_turn()
            # Whoever has added more meanwhile found that this thread sends.
            self.send_due()
        except BaseException:
            self._end_turn()
            raise
        if mine and (session := self._session) is not None:
            self._write(session, wait=False)

    def _may_send(self, mine: bool) -> bool:
        """Whether to send, without waiting, what waits first; takes or ends this thread's turn."""
        with self.changed:
            if self.waiting.is_sending and not mine:
                return False
            if may_send := self.waiting.may_send_due():
                self.waiting.is_sending = True
            elif mine:
                self._end_turn()
            return may_send

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
        closed = ClosedError("the producer is closed", topic=self.topic)
        return self._leave(closed, deadline, keeps=True)

    def abort(self) -> None:
        """Leave without waiting: pending messages fail with ClosedError."""
        if fork_count() == self._forks:
            run(self.abort_operation, _ABORT_SECONDS)

    def abort_operation(self, deadline: Deadline) -> Operation[None]:
        """Return the operation that `abort` runs."""
        return self._leave(ClosedError("the producer was aborted", topic=self.topic), deadline)

    # --- sending ------------------------------------------------------------------------------

    def _send_next(self, *, waits: bool) -> None:
        """Send some of what waits first, or tell why it cannot be; it is this thread's turn."""
        window = self._window
        with self.changed:
            window.check()
            submission = self.waiting.submissions[0]
            submission.is_begun = submission.owned
            count = submission.next_count
            sends = self._encoded(submission) if window.has_room(count) else None
        if sends is None:
            if waits:
                self._make_room(count)
            return
        try:
            self._admit_all(submission, sends, waits=waits)
        except (MessageTooLarge, OptionError) as error:
            # A batch may not fit, or reach beyond the last sequence id, though its messages do not.
            with self.changed:
                is_divided = submission.divide()
            if not is_divided:
                self._drop_first(error)

    def _encoded(self, submission: Submission) -> Iterator[PendingSends]:
        """Return the sends of what comes next, encoded when they are asked for."""
        encoding = self._encoding
        assert encoding is not None
        self._encoded_as = self.schema_version
        messages, start, per_entry = submission.next()
        return encoding.next(
            messages,
            per_entry,
            start,
            self._window.room(),
            self._next_sequence_id,
            submission.default,
            by_key=submission.by_key,
        )

    def _admit_all(
        self, submission: Submission, sends: Iterator[PendingSends], *, waits: bool
    ) -> None:
        """Move messages into the window: the chunks of one, or others at once."""
        for send in sends:
            try:
                if waits:
                    self._make_room(send.num_messages)
                if not send.chunk:
                    with self.changed:
                        freed = submission.give_back(max(send.num_messages, 1))
                    self.budget.release(freed)
                self._admit(submission, send, waits=waits)
            except OperationTimeout as error:
                if not send.chunk:
                    raise
                if not self._window.survives_timeouts:
                    # Some chunks were sent; the message cannot be completed any more.
                    self.give_up(error)
                    raise
                self._drop_first(error)
                return

    def _admit(self, submission: Submission, send: PendingSends, *, waits: bool) -> None:
        """As `_admit_all`, for one block of sends, for which there is room; queue its frames."""
        window = self._window
        if waits:
            self._reserve(send.size)
        else:
            self.budget.release(-send.size)
        with self.changed:
            is_rest = send.chunk and send.sequence_id == window.broken_message
            if window.ended or is_rest:
                self.budget.release(send.size)
                window.check()
                raise OperationTimeout(
                    "the first chunks of the message were not acknowledged in time",
                    **self._where(),
                )
            self.waiting.take(submission, send.num_messages)
            window.append(send)
            self._next_sequence_id = max(self._next_sequence_id, send.highest_sequence_id + 1)
            self._gate.add(send)
            lost = self._take_stale()
            self._put_sends()
        if lost:
            window.finish(lost)
        if waits and self._unwritten >= BLOCK_BYTES:
            self._write_queued()

    def _make_room(self, messages: int) -> None:
        if not self._window.has_room(messages):
            # The awaited receipts may depend on frames that are still queued.
            self._write_queued()
            self._window.wait_for_room(messages)

    def _reserve(self, size: int) -> None:
        if not self._window.budget.try_reserve(size):
            self._write_queued()
            self._window.reserve(size)

    def _drop_first(self, error: PulsarError, *, whole: bool = False) -> None:
        """Fail the next entry of what waits first, or the whole of it."""
        with self.changed:
            callbacks = self.waiting.drop_first(error, whole=whole)
        tell_failed(callbacks, error)

    def _put_sends(self) -> None:
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
            session.connection.write(self._window.timeout if wait else None)
        except PulsarError as error:
            # If it only timed out waiting for its turn, other threads write its bytes.
            if session.connection.closed:
                self.on_lost(session, error)

    def _open_in_background(self) -> None:
        with self._window.changed:
            if self._opening:
                return
        start(self.open_operation, self._context.options.operation_timeout, self._context.timers)

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
            lost = self._enter(session.connection.address.cluster) if wanted else []
            if wanted:
                if not self._sessions:
                    self._begin_sequence(success.last_sequence_id)
                self._sessions += 1
                self._encoding = encoding
                self._success = success
                self._session = session
                self._forget_lost()
                lost += self._take_stale()
                error = self._window.too_large(encoding.limits.max_message_size)
                self._gate.restart(encoding)
                if error is None:
                    self._put_sends()
                self._window.changed.notify_all()
        if not wanted:
            session.close_quietly()
        if lost:
            self._window.finish(lost)
        if error is not None:
            self.give_up(error)
        elif wanted:
            self._write(session, wait=False)
            if not self._opened.done():
                self._opened.set_result(None)
            self.send_due()

    def _enter(self, cluster: int) -> list[PendingSends]:
        """Register at a cluster; return sends that cannot go there. `changed` is held.

        Chunks of one message in two clusters are a message in none.
        """
        before, self._cluster = self._cluster, cluster
        if before in (None, cluster):
            return []
        error = ConnectionLost(
            "the client switched to another cluster when some chunks of the message were stored",
            "Send it again.",
            **self._where(),
        )
        return self._dropped(self._window.take_begun(error), error)

    def _take_stale(self) -> list[PendingSends]:
        """Remove what is pending if it has another version of the schema than the topic has now.

        Readers would decode it by the schema that has that version now. `changed` is held.
        """
        if self._encoded_as in (None, self.schema_version):
            return []
        error = TopicLost(
            "the version of the schema changed before the message was stored: the topic was "
            "deleted and made again, or its schema was",
            "Send it again.",
            **self._where(),
        )
        return self._dropped(self._window.take_all(error), error)

    def _dropped(self, lost: list[PendingSends], error: PulsarError) -> list[PendingSends]:
        """Forget sends that were removed; `finish` tells their error. `changed` is held."""
        for send in lost:
            send.refused = error
            self._gate.drop(send)
        return lost

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
                self._put_sends()
        if is_open:
            self._registrar.trouble = None
        # Before a flush can see that everything is acknowledged.
        if failure is not None:
            self.give_up(failure)
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
            pending = self._window.pending
            verdict = pending.judge(command.sequence_id)
            is_over = verdict is ReceiptVerdict.BEHIND and not pending.holds(command.sequence_id)
        error = session.connection.refusal(command.error, command.message, **self._where())
        if isinstance(error, NotAllowed):
            self._on_refusal(session, command.sequence_id, error)
        elif isinstance(error, BrokerChecksumError) and self._window.survives_timeouts:
            self._on_damage(session, command.sequence_id, error)
        elif isinstance(error, _FATAL_SEND_ERRORS) or (
            isinstance(error, BrokerChecksumError) and verdict is ReceiptVerdict.OLDEST
        ):
            self.give_up(error)
        elif not is_over:
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
                self._put_sends()
        if failure is not None:
            self.give_up(failure)
        self._write(session, wait=False)
        self._window.finish(refused)

    def _on_damage(self, session: ProducerSession, sequence_id: int, error: PulsarError) -> None:
        """An entry reached the broker damaged: its messages alone have failed."""
        with self._window.changed:
            sends = self._window.pending.isolate(sequence_id)
            if sends is None:
                return
            sends.refused = error
            self._gate.drop(sends)
            refused = self._window.take_refused()
            self._put_sends()
        self._write(session, wait=False)
        self._window.finish(refused)

    def _refused(self, found: RefusedEntry, error: PulsarError) -> PulsarError:
        """Return the error for the messages of an entry that the broker does not take."""
        count = found.sends.num_messages
        what = "a message" if count == 1 else f"a batch of {count} messages"
        what = f"{what} of {found.size} bytes was refused: {error.what}"
        if not found.is_last:
            what += ". Messages behind it may be stored"
            if self._options.resumes:
                return DroppedAsDuplicate(
                    f"{what}, so its own are left out as known when they are sent again",
                    "Write the messages again under another producer name.",
                    **self._where(),
                )
        return NotAllowed(what, error.remedy, **self._where())

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
            self._put_sends()
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
            self.give_up(error)
        elif (session := self._end(error, failed=False)) is not None:
            # The connection may live on without this client.
            session.close_quietly()

    def give_up(self, error: PulsarError) -> None:
        """Fail permanently, such as when there will be no session."""
        if (session := self._end(error, failed=True)) is not None:
            session.close_quietly()

    def _leave(
        self, error: ClosedError, deadline: Deadline, *, keeps: bool = False
    ) -> Operation[None]:
        session = self._end(error, failed=False)
        if session is None or (keeps and self._keep(session)):
            return
        try:
            yield from session.close_operation(deadline)
        except PulsarError as trouble:
            logger.debug("the producer of %s was not closed: %s", self.topic, trouble)

    # --- keeping ------------------------------------------------------------------------------

    @property
    def _kept_by(self) -> tuple[Kept, Hashable] | None:
        """Where registrations are kept, and all that shapes this producer's; None if it is not."""
        kept, options = self._context.kept, self._options
        is_plain = (
            self._txn is None
            and not options.txn_enabled
            and options.producer_name is None
            and options.access_mode == pb.Shared
            and options.initial_sequence_id is None
        )
        if kept is None or self._keep_as is None or not is_plain:
            return None
        return kept, (self.topic, options, self._keep_as)

    def give_way(self) -> None:
        """Let go of what this process keeps of the topic: it is in this producer's way."""
        if (kept := self._context.kept) is not None:
            kept.let_go(lambda key: isinstance(key, tuple) and key[0] == self.topic)

    def _take_over(self) -> bool:
        """Go on with a registration that was left, if there is one."""
        if (found := self._kept_by) is None:
            return False
        kept, key = found
        while isinstance(left := kept.take(key), KeptRegistration):
            if self._registrar.take_over(left):
                return True
        return False

    def _keep(self, session: ProducerSession) -> bool:
        """Leave the session of this producer, which has ended, to the next one, if it is clean."""
        if (found := self._kept_by) is None or not self._is_clean or self._success is None:
            return False
        kept, key = found
        success = pb.CommandProducerSuccess()
        success.CopyFrom(self._success)
        success.last_sequence_id = self._next_sequence_id - 1
        left = KeptRegistration(
            session, success, self._registrar.identity, lambda ended: kept.drop(key, ended)
        )
        session.hand_over(left)
        kept.keep(key, left)
        if session.error is not None:
            # It may have been lost before there was somebody to tell.
            left.on_lost(session, session.error)
        return True

    def _end(self, error: PulsarError, failed: bool) -> ProducerSession | None:
        """End; return the session that is to be left."""
        self._registrar.stop()
        with self._window.changed:
            unfinished = self._window.end(error)
            if unfinished is None:
                return None
            self._failed = failed
            if failed and self._on_failure is not None:
                # Before anybody can see that it has ended.
                self._on_failure(error)
            self._is_clean = not (failed or unfinished or self.waiting.messages)
            self._gate.clear()
            session, self._session = self._session, None
            self._forget_lost()
            opening = not self._opened.done()
            callbacks = self.waiting.drop_all(error)
        self.budget.wake()
        if opening:
            self._opened.set_exception(error.with_context())
        self._window.finish(unfinished, error)
        for told in callbacks:
            tell_failed(told, error)
        return session

    # --- checks -------------------------------------------------------------------------------

    def _check_process(self) -> None:
        # Before any lock: another thread may have held it when the process forked.
        if fork_count() != self._forks:
            raise used_after_fork("producer", topic=self.topic)

    def _where(self, broker: str | None = None) -> dict[str, Any]:
        if broker is None and (session := self._session) is not None:
            broker = session.broker
        if broker is None and (trouble := self._registrar.trouble) is not None:
            broker = trouble.broker
        partition = None if self.partition < 0 else self.partition
        return {"topic": self.topic, "partition": partition, "broker": broker}
