"""Registers a producer at its broker, and again after each disconnect.

After each disconnect a producer gets a new session, so that late events of the old connection are
not confused with new ones: only the receipts of the session before count until there is another.
The first registration has the caller's deadline. Later ones run in the background, with growing
pauses, for as long as the producer lives: its pending messages have their own timeouts. The
broker's answer decides how messages are encoded, and tells whether messages are lost.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

from google.protobuf.message import Message

from pulsar_spark.engine.attaching import Attaching
from pulsar_spark.engine.codecs import compress, decompress
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.handlers import topic_migrated
from pulsar_spark.engine.connections.requests import Opening
from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import Operation, Within
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.inflight_window import (
    MessageCallback,
    PendingQueue,
    PendingSends,
    Taken,
    log_failure,
)
from pulsar_spark.engine.retry import can_pass
from pulsar_spark.errors import (
    BrokerError,
    ClosedError,
    DroppedAsDuplicate,
    LocalProtocolError,
    OperationTimeout,
    OptionError,
    ProducerBusy,
    ProducerFenced,
    PulsarError,
    QuotaExceeded,
    RemoteProtocolError,
    ServiceNotReady,
    TopicLost,
    TopicNotFound,
    TopicTerminated,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.policies import no_topic
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_messages import OutgoingMessages
from pulsar_spark.protocol.send_encoder import (
    BLOCK_MESSAGES,
    END_OF_IDS,
    PayloadCipher,
    SendEncoder,
    SendLimits,
    block_of,
    encode_entry,
    make_encoder,
    messages_of,
)
from pulsar_spark.protocol.topic_name import TopicName, topic_of

logger = get_logger(__name__)

_MAX_PAUSE = 60.0


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
    """A producer's registration on a connection. `open_operation` comes first, once.

    After the broker closed it, only receipts come, until `forget`.
    """

    def __init__(self, owner: SessionOwner, connection: ClientConnection) -> None:
        self._owner = owner
        self._opening = Opening(connection.abandon)
        self.connection = connection
        self.producer_id = -1
        self.error: PulsarError | None = None
        self.close_command: pb.CommandCloseProducer | None = None

    @property
    def broker(self) -> str:
        """The address of the broker."""
        return self.connection.address.logical

    def open_operation(
        self, identity: Identity, timeout: float
    ) -> Operation[pb.CommandProducerSuccess]:
        """Register with the broker, update `identity`, and return the answer.

        If another producer has exclusive access, the answer comes when it is this one's turn.
        Raises the broker's error, ConnectionLost, or OperationTimeout after `timeout` seconds;
        the broker is then told to forget the attempt.
        """
        self.producer_id = self.connection.handlers.add_producer(self, identity.producer_id)
        identity.producer_id = self.producer_id
        identity.epoch += 1
        request = self.connection.request_async(
            _producer_command(identity, self.producer_id), timeout
        )
        try:
            success: pb.CommandProducerSuccess = yield Within(self._opening.begin(request), timeout)
        except OperationTimeout:
            self.connection.forget(request)
            self.close_quietly()
            raise OperationTimeout(
                f"the broker did not accept the producer within {timeout:.3g} s",
                topic=identity.topic,
                broker=self.broker,
            ) from None
        except TopicNotFound as error:
            # PRODUCER always asks to create a missing topic.
            self.connection.handlers.remove_producer(self.producer_id)
            why, remedy = no_topic(topic_of(identity.topic), identity.topic)
            raise TopicNotFound(f"{error.what}; {why}", remedy, broker=error.broker) from error
        except BaseException as error:
            if isinstance(error, BrokerError) and self._opening.error is None:
                self.connection.handlers.remove_producer(self.producer_id)
            else:
                # The broker may register it nevertheless, on a connection that others use.
                self.connection.forget(request)
                self.close_quietly()
            raise
        identity.name = success.producer_name
        if success.HasField("topic_epoch"):
            identity.topic_epoch = success.topic_epoch
        return success

    def cancel(self, error: PulsarError) -> None:
        """Make `open_operation` raise an error instead of waiting for its answer."""
        self._opening.end(error)

    def close_operation(self, deadline: Deadline) -> Operation[None]:
        """Close the producer at the broker and wait for the answer; may raise."""
        timeout = max(deadline.remaining(), 0.001)
        try:
            yield self._request_close(timeout)
        finally:
            self.connection.handlers.remove_producer(self.producer_id)

    def close_quietly(self) -> None:
        """Close the producer at the broker, without waiting for an answer. Never raises."""
        self.connection.handlers.remove_producer(self.producer_id)
        try:
            self._request_close()
        except PulsarError as error:
            logger.debug("a producer was not closed: %s", error)

    def _request_close(self, timeout: float | None = None) -> Future[Any]:
        command = commands.request(pb.CommandCloseProducer, producer_id=self.producer_id)
        return self.connection.request_async(command, timeout)

    def forget(self) -> None:
        """Take no more receipts, which come even after the broker has closed the producer."""
        self.connection.handlers.forget_producer(self.producer_id, self)

    def hand_over(self, owner: SessionOwner) -> None:
        """Tell another owner of all events from now on; it looks at `error` then."""
        self._owner = owner

    # --- on the receive thread ----------------------------------------------------------------

    @property
    def waits_for_receipts(self) -> bool:
        """Whether the broker owes receipts."""
        return self.error is None and self._owner.waits_for_receipts

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
            self.connection.handlers.remove_producer(self.producer_id)
            self._lose(topic_migrated(self.broker))

    def on_disconnect(self, error: PulsarError) -> None:
        """The connection ended."""
        self._lose(error)

    def _lose(self, error: PulsarError) -> None:
        self.error = error
        self._opening.end(error)
        self._owner.on_lost(self, error)


class _Silent:
    """The owner of a producer that sends nothing; ignores all events."""

    waits_for_receipts = False

    def on_receipts(self, session: ProducerSession, receipts: array[int]) -> None:
        """Nothing was sent."""

    def on_send_error(self, session: ProducerSession, error: pb.CommandSendError) -> None:
        """Nothing was sent."""

    def on_lost(self, session: ProducerSession, error: PulsarError) -> None:
        """The session's waiters get the error."""
        session.forget()


@dataclass(eq=False)
class KeptRegistration(_Silent):
    """A registration that a producer has left, with what the broker's answer would be now.

    The next producer with the same `identity` goes on with it. Until then `on_ended` is told if it
    is lost.
    """

    session: ProducerSession
    success: pb.CommandProducerSuccess
    identity: Identity
    on_ended: Callable[[KeptRegistration], None]

    def on_lost(self, session: ProducerSession, error: PulsarError) -> None:
        """The broker has closed it, or the connection has ended."""
        super().on_lost(session, error)
        self.on_ended(self)

    def let_go(self) -> None:
        """Close the producer at the broker, without waiting for an answer. Never raises."""
        self.session.close_quietly()


def register_silently(
    connection: ClientConnection, identity: Identity, deadline: Deadline
) -> Operation[ProducerSession]:
    """Return an operation that registers a producer which sends nothing; the caller closes it."""
    session = ProducerSession(_Silent(), connection)
    yield from session.open_operation(identity, deadline.attempt())
    return session


def _producer_command(identity: Identity, producer_id: int) -> Callable[[int], pb.BaseCommand]:
    return commands.request(
        pb.CommandProducer,
        topic=identity.topic,
        producer_id=producer_id,
        producer_name=identity.name,
        user_provided_producer_name=identity.user_provided_name,
        epoch=identity.epoch,
        metadata=commands.key_values(identity.properties),
        schema=identity.schema,
        producer_access_mode=identity.access_mode,
        topic_epoch=identity.topic_epoch,
        txn_enabled=identity.txn_enabled,
        initial_subscription_name=identity.initial_subscription,
        encrypted=identity.encrypted,
    )


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a producer's messages are encoded, fixed while its session lasts.

    Sequence ids count up from `first` in all methods, unless messages have their own.
    """

    limits: SendLimits
    encoder: SendEncoder

    @classmethod
    def agreed(
        cls,
        session: ProducerSession,
        success: pb.CommandProducerSuccess,
        topic: TopicName,
        options: ProducerOptions,
        *,
        cipher: Callable[[], PayloadCipher] | None = None,
        txn: TxnId | None = None,
    ) -> Encoding:
        """Return the encoding for a broker that accepted the session's producer."""
        limits = SendLimits(
            producer_name=success.producer_name,
            producer_id=session.producer_id,
            max_message_size=session.connection.max_message_size,
            compression=options.compression,
            schema_version=success.schema_version,
            chunking=options.chunking_enabled and topic.is_persistent,
            chunk_size=options.chunk_max_message_size,
            topic=str(topic),
            compress=compress,
            cipher=cipher,
            txn=txn,
        )
        return cls(limits, make_encoder(limits))

    @property
    def max_payload(self) -> int:
        """Bytes that a batch without compression and key may have."""
        return max(self.limits.max_message_size - self.encoder.overhead, 1)

    def next(
        self,
        messages: OutgoingMessages,
        per_entry: int,
        start: int,
        room: int,
        first: int,
        default: MessageCallback | None = None,
        *,
        by_key: bool = False,
    ) -> Iterator[PendingSends]:
        """Yield the sends of some messages of a column: of `room` at most, or of one entry.

        Entries have `per_entry` messages, the last one the rest. What is usual goes together; else
        it is one entry, in chunks if need be: raises as `encode_entry`, and OptionError if there
        are no more sequence ids. `default` gets the result of messages that have no callbacks. With
        `by_key` an entry is one of several that were filled together: their own ids overlap, so the
        highest alone identifies it, as in Java.
        """
        entry_stop = min(start + per_entry, len(messages))
        most = max(min(room, BLOCK_MESSAGES), entry_stop - start)
        if messages.sequence_ids is None:
            most = min(most, END_OF_IDS - first)
            if most < entry_stop - start:
                raise OptionError(
                    f"the next sequence id would be {first}, and they end at {END_OF_IDS - 1}",
                    "Use another producer name, or a lower initial_sequence_id.",
                )
        by_highest = by_key and messages.sequence_ids is not None
        stop = self._block_end(messages, per_entry, start, most)
        if stop is None:
            part = messages.part(start, entry_stop)
            yield from self.entry(part, first, default, by_highest=by_highest)
            return
        part = messages.part(start, stop)
        try:
            buffers, ends = self.encoder.encode(
                part.payloads,
                part.keys,
                part.fields,
                first if part.sequence_ids is None else part.sequence_ids,
                _now(),
                per_entry,
                by_highest=by_highest,
            )
        except ValueError as error:
            raise LocalProtocolError(f"messages cannot be encoded: {error}") from None
        if len(ends) == 1:
            ends = ()
        yield PendingSends(
            buffers,
            *_ids_of(part, first, by_highest),
            len(part),
            ends=ends,
            per_entry=per_entry if ends else 0,
            callback=None if part.callbacks else default,
            callbacks=part.callbacks or (),
        )

    def _block_end(
        self, messages: OutgoingMessages, per_entry: int, start: int, most: int
    ) -> int | None:
        """Return where the messages end that are encoded together; None if `entry` must do it."""
        limits = self.limits
        entry_stop = min(start + per_entry, len(messages))
        if messages.sequence_ids is not None or limits.cipher is not None:
            most = entry_stop - start
        stop, largest = block_of(messages, per_entry, start, most, limits.largest_in_block)
        if 2 * largest > self.max_payload:
            stop = entry_stop
        if stop == entry_stop:
            # The entry repeats what it shows of its first message.
            largest += messages.size(start, start + 1) - len(messages.payloads[start])
        may_chunk = limits.chunking and largest >= limits.largest_in_block
        is_rare = limits.cipher is not None or largest > self.max_payload or may_chunk
        return None if is_rare else stop

    def entry(
        self,
        messages: OutgoingMessages,
        first: int,
        default: MessageCallback | None = None,
        *,
        by_highest: bool = False,
    ) -> Iterator[PendingSends]:
        """Yield the sends of one entry, several if it is chunked; raises as `encode_entry`."""
        callback, callbacks = default, messages.callbacks or ()
        if len(messages) == 1 and callbacks:
            # Of a message in chunks, whose id is that of two entries.
            (callback,), callbacks = callbacks, ()
        count, frames = encode_entry(messages, first, self.limits, _now(), by_highest=by_highest)
        keeps = self.limits.cipher is not None and len(messages) > 1
        ids = _ids_of(messages, first, by_highest)
        for number, buffers in enumerate(frames, 1):
            is_last = number == count
            yield PendingSends(
                buffers,
                *ids,
                len(messages) if is_last else 0,
                callback=callback if is_last and not callbacks else None,
                callbacks=callbacks,
                chunk=number - 1 if count > 1 else None,
                encrypted=messages if keeps else None,
            )

    def smaller(self, sends: PendingSends, most: int) -> tuple[list[PendingSends], int]:
        """Return a batch as several; none if its callback is for the whole.

        Each has at most `most` bytes before compression, and at most half of the batch, unless it
        is a single message; the size that was used is returned too. The last one has the memory.
        """
        default, callbacks = sends.callback, sends.callbacks
        if not callbacks and default not in (None, log_failure):
            return [], most
        if sends.encrypted is None:
            frame = b"".join(sends.unacknowledged())
            messages, by_highest = messages_of(frame, decompress)
        else:
            messages, by_highest = sends.encrypted, sends.sequence_id == sends.highest_sequence_id
        messages.callbacks = list(callbacks) or None
        most = min(most, messages.batch_size(0, len(messages)) // 2)
        smaller: list[PendingSends] = []
        start, first = 0, sends.sequence_id
        while start < len(messages):
            stop = messages.fitting(start, len(messages), most)
            part = messages.part(start, stop)
            for send in self.entry(part, first + start, default, by_highest=by_highest):
                send.deadline, send.size, send.is_part = sends.deadline, 0, True
                smaller.append(send)
            start = stop
        smaller[-1].size, smaller[-1].is_part = sends.size, sends.is_part
        return smaller, most


def _ids_of(messages: OutgoingMessages, first: int, by_highest: bool) -> tuple[int, int]:
    """Return the lowest and the highest sequence id that messages are known by."""
    own = messages.sequence_ids
    if own is None:
        return first, first + len(messages) - 1
    return own[-1] if by_highest else own[0], own[-1]


def _now() -> int:
    return int(time.time() * 1000)


class ReceiptLog:
    """What the broker has of a producer: the last stored ids, and how many were duplicates.

    With `resumes`, the producer continues under the name of an earlier one, and sends no sequence
    id that the broker already knew. Not thread-safe: its producer locks.
    """

    def __init__(self, topic: TopicName, *, resumes: bool) -> None:
        self.last_sequence_id = -1
        """The highest sequence id of the entry that was stored last; before, where ids start."""
        self.last_message_id: MessageIdAdv | None = None
        """Where the last acknowledged entry is stored."""
        self.duplicates = 0
        self.intruded = False
        """Whether another producer of this name stored messages after this one was opened."""
        self.dropped: tuple[int, int] | None = None
        """The sequence ids of messages that the broker dropped as duplicates, and never stored."""
        self._partition = topic.partition_index
        self._is_persistent = topic.is_persistent
        self._resumes = resumes
        # What the broker knew when the producer was opened, and when it registered last.
        self._known_first = -1
        self._known = -1
        # The highest sequence id of all acknowledged entries.
        self._highest = -1
        # The first entry that was stored without the oldest one that was pending then. If it is not
        # known whether that one is stored, later receipts prove nothing.
        self._ahead = -1
        self._in_doubt = False
        self._first_chunk: MessageIdAdv | None = None

    def begin(self, known: int, initial: int | None) -> int:
        """Start after `initial`, or after the last id that the broker stored before; return it."""
        self._known_first = known
        self.last_sequence_id = known if initial is None else initial
        return self.last_sequence_id

    def register(self, known: int, oldest: PendingSends | None) -> None:
        """Note the last sequence id that the broker has at a registration, -1 if it keeps none.

        `oldest` is sent next. It is dropped if the broker has a later entry, but not this one.
        """
        self._known = known
        ahead, self._ahead, self._in_doubt = self._ahead, -1, False
        if oldest is not None and oldest.sequence_id < ahead <= known:
            self.dropped = oldest.sequence_id, ahead - 1

    def was_known(self, sequence_id: int) -> bool:
        """Whether a message with this id was stored before the producer was opened."""
        return sequence_id <= self._known_first

    def add(self, taken: Taken, receipts: array[int]) -> MessageIdAdv:
        """Note the receipts of stored entries, and return the last one's id."""
        sends = taken.sends
        message_id = MessageIdAdv(receipts[-2], receipts[-1], self._partition)
        if sends.chunk == 0:
            self._first_chunk = message_id
        elif sends.chunk is not None:
            message_id = replace(message_id, first_chunk=self._first_chunk)
        known = max(self._known, self._highest)
        self.last_sequence_id, self._highest = taken.last, max(self._highest, taken.last)
        # A duplicate is acknowledged without an id.
        if min(receipts[2::4]) >= 0:
            self.last_message_id = message_id
            return message_id
        # Ids that the broker knew at the start are not sent, so another producer sent this one.
        self.intruded = self.intruded or (self._resumes and not sends.resent)
        self._note_duplicates(taken, receipts, known)
        return message_id

    def _note_duplicates(self, taken: Taken, receipts: array[int], known: int) -> None:
        """Note the receipts of entries of which the broker had some; `known` was its highest id.

        What it calls a duplicate is none if all that it had was lower: it dropped it.
        """
        each = taken.sends.per_entry or taken.messages
        left = taken.messages
        for ledger, entry in zip(receipts[2::4], receipts[3::4], strict=True):
            count = min(each, left)
            left -= count
            highest = taken.last - left
            if ledger >= 0:
                known = max(known, highest)
                self.last_message_id = MessageIdAdv(ledger, entry, self._partition)
                continue
            self.duplicates += count
            # A non-persistent topic drops messages, with such a receipt, if there are too many.
            if highest > known and self._is_persistent and self.dropped is None:
                self.dropped = max(highest - max(count, 1), known) + 1, highest

    def skip(self, sequence_id: int, ledger_id: int, pending: PendingQueue) -> None:
        """Note the receipt of an entry that came before the one of the oldest pending entry.

        Receipts for one ledger come in order: an older one that is missing will not come, unless
        its entry was sent on an earlier connection, too. But the last receipt for a ledger may come
        after those for the next ledger.
        """
        oldest, last = pending.oldest, self.last_message_id
        if ledger_id < 0 or oldest is None or oldest.sequence_id <= self._known:
            return
        if pending.follows_oldest(sequence_id) and (last is None or last.ledger_id != ledger_id):
            self._in_doubt = True
        elif not self._in_doubt and self._ahead < 0:
            self._ahead = sequence_id

    def failure(self, where: Callable[[], dict[str, Any]]) -> PulsarError | None:
        """Return the error if messages are not stored, and the broker would not take them again."""
        if self.intruded:
            return ProducerBusy(
                "the broker stored messages of this producer's name after it was opened: an "
                "earlier attempt had them under way, and some of this one's may be missing",
                "Run it again.",
                **where(),
            )
        if self.dropped is None:
            return None
        first, last = self.dropped
        ids = f"sequence id {first}" if first == last else f"sequence ids {first} to {last}"
        return DroppedAsDuplicate(
            f"the broker drops messages as duplicates that it has never stored: {ids}",
            "Write the messages again under another producer name: under a fixed one they are left "
            "out as known when the task runs again.",
            **where(),
        )


class RegistrarOwner(SessionOwner, Protocol):
    """The producer to register."""

    @property
    def is_connected(self) -> bool:
        """Whether it has a session."""

    @property
    def last_message_id(self) -> MessageIdAdv | None:
        """Where the last acknowledged entry is stored."""

    def adopt(self, session: ProducerSession, success: pb.CommandProducerSuccess) -> None:
        """Use a session from now on; raises the reason if it is lost already."""

    def give_up(self, error: PulsarError) -> None:
        """There will be no session."""

    def refuse(self, error: PulsarError) -> bool:
        """Fail what is pending, and go on; false if that ends the producer."""

    def give_way(self) -> None:
        """Another producer is in the way: end those of this process that nobody uses."""

    def time_left(self) -> float:
        """Seconds until the oldest pending message times out; the whole timeout without one."""


class Registrar(Attaching["tuple[ProducerSession, pb.CommandProducerSuccess]"]):
    """Registers one producer, with one attempt at a time.

    `trouble` is the last error of an attempt or session; the owner resets it when messages get
    through again.
    """

    _what = "producer"
    _verb = "register"

    def __init__(
        self,
        context: ClientContext,
        owner: RegistrarOwner,
        identity: Identity,
        *,
        waits_for_name: bool = True,
        stays_stored: bool = False,
        lives: bool = False,
    ) -> None:
        super().__init__(
            context.pool, identity.topic, context.timers, lives=lives, max_pause=_MAX_PAUSE
        )
        self.identity = identity
        self.trouble: PulsarError | None = None
        self._waits_for_name = waits_for_name
        self._stays_stored = stays_stored
        self._owner = owner
        # Guarded by _lock.
        self._opening: ProducerSession | None = None
        # A lost session that the broker still holds.
        self._held: ProducerSession | None = None
        self._cluster: int | None = None

    @property
    def attached(self) -> bool:
        """Whether the producer has a session."""
        return self._owner.is_connected

    def open_operation(self, deadline: Deadline) -> Operation[None]:
        """Register for the first time; retry temporary errors until the deadline.

        Raises a permanent error, or OperationTimeout with the last error as its cause.
        """
        return self._attempts(self.attach_operation, deadline)

    def take_over(self, kept: KeptRegistration) -> bool:
        """Go on with the registration that another producer has left; false if it is lost."""
        own, self.identity = self.identity, kept.identity
        kept.session.hand_over(self._owner)
        try:
            self._owner.adopt(kept.session, kept.success)
        except PulsarError:
            self.identity = own
            return False
        self._attachments += 1
        self._is_connected = True
        return True

    def reconnect(
        self, lost: ProducerSession, error: PulsarError, *, close_first: bool = False
    ) -> None:
        """Register again after `error`, which ended the session `lost`. Does not wait.

        Set `close_first` if the broker still holds the lost session.
        """
        self._note_assignment(lost)
        self._held = lost if close_first else None
        self._reattach(error)

    def stop(self) -> None:
        """Stop trying; an operation that pauses or waits for access ends."""
        self._stop()
        with self._lock:
            opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel(ClosedError("the producer is closed", topic=self.topic))

    # --- hooks --------------------------------------------------------------------------------

    def _register(
        self, connection: ClientConnection, deadline: Deadline
    ) -> Operation[tuple[ProducerSession, pb.CommandProducerSuccess]]:
        held, self._held = self._held, None
        if held is not None:
            # The broker finishes pending sends before it answers, so that no event of the old
            # session reaches the new one.
            yield from held.close_operation(deadline)
        found = yield from self._while_busy(lambda: self._open(connection, deadline), deadline)
        try:
            # Whatever happens to the topic from now on ends the session.
            yield from self._check_kept(deadline)
        except BaseException:
            found[0].close_quietly()
            raise
        return found

    def _check_kept(self, deadline: Deadline) -> Operation[None]:
        """Raise TopicLost if what was acknowledged last is gone: the topic may be another one."""
        last = self._owner.last_message_id
        if not self._stays_stored or last is None:
            return
        probe = Probe(self._pool)
        try:
            found = yield from probe.last_in_operation(self.topic, last.ledger_id, deadline)
        except TopicNotFound:
            found = None
        except PulsarError as error:
            if can_pass(error):
                raise
            # A permission or a policy forbids to ask.
            logger.info("%s: whether it is the same topic is not known: %s", self.topic, error)
            return
        if found is None:
            raise TopicLost(
                "rows that the broker had acknowledged are gone: the topic was deleted while they "
                "were written, or truncated, or retention removed them",
                "Write all rows again, as Spark does when it runs the task again.",
                topic=self.topic,
            )

    def _open(
        self, connection: ClientConnection, deadline: Deadline
    ) -> Operation[tuple[ProducerSession, pb.CommandProducerSuccess]]:
        session = ProducerSession(self._owner, connection)
        if self._cluster not in (None, connection.address.cluster):
            # Each cluster counts by itself who had exclusive access.
            self.identity.topic_epoch = None
        self._cluster = connection.address.cluster
        with self._lock:
            self._check_open()
            self._opening = session
        try:
            success = yield from session.open_operation(
                self.identity, max(deadline.remaining(), 0.001)
            )
        except ProducerBusy:
            self._owner.give_way()
            raise
        return session, success

    def _resume(self, session: tuple[ProducerSession, pb.CommandProducerSuccess]) -> None:
        self._backoff.reset()
        try:
            self._owner.adopt(*session)
        except PulsarError:
            self._note_assignment(session[0])
            raise

    def _note_assignment(self, lost: ProducerSession) -> None:
        if lost.close_command is not None:
            self._moved_to = self._pool.assigned_broker(lost.close_command, lost.connection)

    def _may_be_own(self) -> bool:
        # After the first attempt it may be this one's own, by a connection that was lost.
        return self._waits_for_name or self.identity.epoch > 0

    def _time_left(self) -> float:
        return self._owner.time_left()

    def can_pass(self, error: PulsarError) -> bool:
        """Whether another attempt may succeed: what is pending has time-outs of its own."""
        if isinstance(error, TopicTerminated | ProducerFenced):
            return False
        return isinstance(error, RemoteProtocolError) or super().can_pass(error)

    def _on_trouble(self, error: PulsarError) -> None:
        if self.was_attached:
            self.trouble = error
        if isinstance(error, QuotaExceeded):
            # It passes when somebody consumes, but its policy is to refuse what is sent now.
            self._owner.refuse(error)

    def _end_late(
        self, error: PulsarError, attempts: int, before: PulsarError | None, deadline: Deadline
    ) -> NoReturn:
        reason = before if before is not None and isinstance(error, OperationTimeout) else error
        raise OperationTimeout(
            f"no producer could be created within {deadline.seconds:g} s; "
            f"the last error was: {reason.what}",
            reason.remedy,
            topic=self.topic,
            broker=reason.broker,
        ) from reason

    def _on_ended(self, error: PulsarError) -> None:
        self._owner.give_up(error)
