"""The consumer of one topic partition on a user's subscription of any type.

Delivered entries are queued undecoded, within permits and memory, and decoded one by one when they
are taken. After a disconnect the consumer reattaches in the background and drops its queue, because
the broker redelivers everything unacknowledged. The same happens after a seek, and after a request
to redeliver everything. Entries taken before have an old `generation` and must not be returned.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from google.protobuf.message import Message

from pulsar_spark.engine.attaching import FOREVER
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.consumers.acknowledgments import (
    Ack,
    AckTracker,
    EntryKey,
    part_of_batch,
    validation_error,
)
from pulsar_spark.engine.consumers.attachment import AttachedConsumer, Attachment, is_refusal
from pulsar_spark.engine.consumers.chunk_fetcher import BeingFetched, ChunkFetcher, FetchOn
from pulsar_spark.engine.consumers.consumer_session import SubscribeRequest
from pulsar_spark.engine.consumers.delivery import Delivery, DeliveryQueue, cost_of
from pulsar_spark.engine.consumers.entries import EntryDecoder
from pulsar_spark.engine.consumers.inbox import Inbox
from pulsar_spark.engine.consumers.outstanding import OutstandingEntries
from pulsar_spark.engine.consumers.rows import ReceivedRows, RowDecoder
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.encryption import Decryptor
from pulsar_spark.engine.memory import ReceiverBudget
from pulsar_spark.engine.operations import Operation
from pulsar_spark.engine.options import ConsumerOptions
from pulsar_spark.engine.retry import can_pass, retrying
from pulsar_spark.engine.timers import Timer
from pulsar_spark.errors import (
    ClosedError,
    CorruptBatch,
    CorruptMessage,
    EncryptedMessage,
    IncompleteMessage,
    MessageTooLarge,
    MetadataError,
    PulsarError,
    RemoteProtocolError,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.ack_sets import MAX_BATCH, ack_longs, bits_from
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.frame_parts import Frame, ReceivedEntry
from pulsar_spark.protocol.frames import MessageBlock
from pulsar_spark.protocol.message_id import (
    EARLIEST_POSITION,
    LATEST_POSITION,
    MessageIdAdv,
    Position,
    as_signed_int,
)
from pulsar_spark.protocol.topic_name import TopicName

logger = get_logger(__name__)

_MAX_REDELIVERED = 1000
# Numbers are Java's, and go as the unsigned ones with the same bits.
_UNSIGNED = 2**64 - 1
# Errors of an entry, which will be the same the next time.
_UNREADABLE = (CorruptMessage, IncompleteMessage, MessageTooLarge)
# After chunks could not be fetched, try again.
_FETCH_AGAIN_SECONDS = 1.0
# So often it is logged that messages cannot be decrypted.
_WARN_SECONDS = 60.0


class DeadLetterRouter(Protocol):
    """Sends entries to the dead-letter topic instead of having them redelivered again."""

    def route(self, consumer: TopicConsumer, keys: list[EntryKey]) -> list[EntryKey]:
        """Of entries due for redelivery, take those that are dead letters; return the others.

        Never waits.
        """

    def forget(self, consumer: TopicConsumer, key: EntryKey) -> None:
        """An entry was acknowledged."""

    def forget_all(self, consumer: TopicConsumer) -> None:
        """The subscription was moved: deliveries are counted anew."""

    def may_be_last(self, rows: ReceivedRows) -> bool:
        """Whether some of these messages may be on their last delivery."""


class TopicConsumer(AttachedConsumer):
    """A consumer of one topic partition. `open` it once, and close it at the end.

    `inbox` is told of deliveries, and of an error that ends the consumer. `on_active` is called, on
    the receive thread, when a Failover consumer becomes active or inactive. `dead_letter_router`
    takes entries that were delivered too often. With `fetch_on`, `take` does not wait for chunks.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        options: ConsumerOptions,
        inbox: Inbox,
        budget: ReceiverBudget,
        *,
        queue_size: int | None = None,
        create: bool = False,
        on_active: Callable[[TopicConsumer, bool], None] | None = None,
        dead_letter_router: DeadLetterRouter | None = None,
        fetch_on: FetchOn | None = None,
    ) -> None:
        super().__init__(context, topic, lives=True)
        self.options = options
        name = TopicName.parse(topic)
        self.partition = name.partition_index
        self._keeps = name.is_persistent
        self._inbox = inbox
        self._budget = budget
        self._create = create
        self._on_active = on_active
        self._dead_letter_router = dead_letter_router
        self.acks = AckTracker(options, context.timers, self._send_ack)
        self._outstanding = OutstandingEntries(
            options,
            context.timers,
            self.acks,
            self._on_due,
            None if dead_letter_router is None else partial(dead_letter_router.forget, self),
        )
        # The following are guarded by _lock.
        size = options.receiver_queue_size if queue_size is None else queue_size
        self._queue = DeliveryQueue(size, budget)
        # What a new attachment requests at first.
        self._first_permits = 0
        self.end_reached = False
        # How often redelivery of everything was requested, and the epoch of current deliveries.
        self._epoch = 0
        self._epoch_seen = 0
        self._seeking = False
        self._budgeted = False
        # Keeps the timers' thread: when it is needed, no new thread may be possible.
        self._kept_timer: Timer | None = None
        # The cluster of what is known of the topic.
        self._cluster = context.pool.cluster
        # Where a non-durable subscription continues, and what a seek skips, see `_left_out`.
        self._resume_at = options.start
        # Where the current subscription started: skip what is before it in the same entry.
        self._floor = EARLIEST_POSITION
        self._sought: tuple[EntryKey, EntryKey, int] | None = None
        # Used by the receiving thread only: the current generation's decoders, and up to where
        # entries of a block must be decoded one by one.
        self._decoder_of = 0
        self._decoder = self._new_decoder()
        self._row_decoder = self._new_row_decoder(size)
        self._chunk_fetcher = ChunkFetcher(
            context, topic, options, budget, fetch_on, lambda: inbox.put(self)
        )
        # How many messages no key decrypts, and when to log the next one.
        self._withheld = 0
        self._warn_at = 0.0

    # --- attaching ----------------------------------------------------------------------------

    def open_operation(self, deadline: Deadline) -> Operation[None]:
        """Return an operation that subscribes for the first time; raises the broker's error."""
        with self._lock:
            if not self._budgeted:
                self._budgeted = True
                self._budget.join()
        try:
            if self._kept_timer is None:
                self._kept_timer = self._context.timers.after(FOREVER, lambda: None)
            yield from self._attempts(self.attach_operation, deadline)
        except BaseException:
            self.close()
            raise

    def _may_be_own(self) -> bool:
        return self.was_attached

    def _subscribe_request(
        self, connection: ClientConnection, deadline: Deadline
    ) -> Operation[SubscribeRequest]:
        options = self.options
        self._enter(connection.address.cluster)
        age = None
        if not options.durable:
            age = options.start_age if self._resume_at == options.start else None
            if age is None and self._resume_at == LATEST_POSITION:
                # From here on "latest" is a fixed position: a reconnect loses nothing.
                last = yield from self._context.lookup.last_message_id_operation(
                    self.topic, deadline
                )
                self._resume_at = Position.after(last)
        with self._lock:
            if not options.durable and age is None:
                self._floor = self._resume_at
            resume = EARLIEST_POSITION if age is not None else Position(*self._resume_at[:2])
            return SubscribeRequest(
                self.topic,
                options.subscription,
                None if options.durable else resume,
                initial=options.initial,
                read_compacted=options.read_compacted,
                create=self._create and not self.was_attached,
                options=options,
                epoch=None if options.shared else self._epoch,
                age=age,
            )

    def _enter(self, cluster: int) -> None:
        """Attach to a cluster: positions and acknowledgements of another one mean nothing there."""
        if cluster != self._cluster:
            self._forget_outstanding()
            self._resume_at, self._sought = EARLIEST_POSITION, None
        self._cluster = cluster

    def _is_elsewhere(self, message_id: MessageIdAdv) -> bool:
        """Whether a message came from another cluster, which delivers it again if it must."""
        return message_id.cluster not in (None, self._cluster)

    def _on_subscribed(self, attachment: Attachment) -> None:
        self._forget_queue()
        # Now, so that whoever asks for a message meanwhile knows what is requested.
        self._first_permits = self._queue.begin(attachment.connection.max_message_size)
        # Deliveries from now on belong to this epoch.
        self._epoch_seen = self._epoch

    def _on_attached(self, attachment: Attachment) -> None:
        # Before anything is delivered, so that acknowledged messages do not come again.
        self.acks.flush()
        self._flow(attachment, self._first_permits)

    def _on_lost(self) -> None:
        with self._lock:
            self._forget_queue()
            seeking = self._seeking
        if not seeking:
            self._reattach()

    def _on_ended(self, error: PulsarError) -> None:
        super()._on_ended(error)
        self._inbox.fail(error)

    # --- deliveries ---------------------------------------------------------------------------

    def on_delivered(self, attachment: Attachment, block: MessageBlock) -> None:
        """Queue entries; without room for them, detach and reattach."""
        block = block.alone()
        with self._lock:
            if attachment is not self._attachment:
                return
            has_room = self._queue.put(block)
        if has_room:
            self._inbox.put(self)
        else:
            logger.info(
                "%s: the broker sent more than the memory limit allows; subscribing again",
                self.topic,
            )
            self._give_up(attachment)

    def on_notification(self, attachment: Attachment, body: Message) -> None:
        """Handle the topic's end, and changes of the active consumer."""
        if isinstance(body, pb.CommandReachedEndOfTopic):
            self.end_reached = True
            self._inbox.put(self)
        elif isinstance(body, pb.CommandActiveConsumerChange):
            if self._on_active is not None:
                self._on_active(self, body.is_active)
        else:
            super().on_notification(attachment, body)

    @property
    def _is_exclusive(self) -> bool:
        return self.options.kind == pb.CommandSubscribe.Exclusive

    @property
    def generation(self) -> int:
        """Counts how often everything was redelivered."""
        return self._queue.generation

    @property
    def has_more(self) -> bool:
        """Whether an entry can be taken."""
        return self._queue.has_more

    def take(self) -> Delivery | None:
        """Take the next entry, None if there is none now.

        Raises CorruptMessage once for an entry that cannot be read. One that cannot be decrypted
        stays unacknowledged, and is left out with a line in the log.
        """
        if self._chunk_fetcher.is_busy:
            return None
        with contextlib.suppress(BeingFetched):
            return self._take_next()
        return None

    def _take_next(self) -> Delivery | None:
        while True:
            with self._lock:
                found, generation = self._queue.peek(), self._queue.generation
            if found is None:
                return None
            if self._decoder_of != generation:
                self._begin_decoding(generation)
            delivery = self._take_rows(*found, generation) or self._take(*found, generation)
            if delivery is not None:
                return delivery

    def _take_rows(self, block: MessageBlock, at: int, generation: int) -> Delivery | None:
        """Take usual entries of a block; None if the one at `at` has to be opened."""
        if self._epoch != self._epoch_seen or not self._row_decoder.suits(block, at):
            return None
        is_within = self._row_decoder.is_within(block, at)
        rows, progress = self._row_decoder.take(block, at, self._floor)
        end = progress.at
        if rows is None:
            return None
        if not is_within and self._may_leave_out(rows):
            self._row_decoder.leave(block, end)
            return None
        with self._lock:
            counts = self._queue.take(generation, end, rows.rows)
            rows.cluster = self._cluster
        return Delivery(self, rows, 0, generation, rows.rows, rows.held) if counts else None

    def _may_leave_out(self, rows: ReceivedRows) -> bool:
        """Whether some of these messages may be acknowledged already, or dead letters."""
        first = rows.first
        return (
            self.acks.may_know(first)
            or (self._sought is not None and first <= self._sought[1])
            or (self._dead_letter_router is not None and self._dead_letter_router.may_be_last(rows))
        )

    def _take(self, block: MessageBlock, at: int, generation: int) -> Delivery | None:
        """Take the entry whose frame is at `at` of a block; None if all of it is skipped."""
        size = len(block.data) // block.count
        end = block.end(at)
        try:
            frame = block.frame(at)[0]
        except RemoteProtocolError as error:
            self._drop(generation, end, 1, size)
            raise CorruptMessage(error.what, topic=self.topic) from error
        command = frame.command.message
        key = (command.message_id.ledgerId, command.message_id.entryId)
        if command.HasField("consumer_epoch"):
            if command.consumer_epoch < self._epoch:
                self._drop(generation, end, cost_of(frame), size)
                return None
            self._epoch_seen = self._epoch
        try:
            entry = self._decode(frame, key)
            left = 0 if entry is None else self._left_of(entry, key)
        except PulsarError as error:
            if can_pass(error, lives=True) or isinstance(error, ClosedError):
                # Its chunks could not be fetched now: the entry stays the next one.
                self._try_again_soon(error)
                raise
            self._drop(generation, end, cost_of(frame), size)
            if self._may_be_discarded(key, error):
                return None
            if isinstance(error, EncryptedMessage):
                self._withhold(error)
                return None
            raise
        cost = self._decoder.messages
        if entry is not None:
            cost = cost if entry.left is None else entry.left.bit_count()
            left = self._begin(entry, key, left, generation)
        if entry is None or not left:
            self._drop(generation, end, cost, size)
            return None
        with self._lock:
            counts = self._queue.take(generation, end, cost)
            entry.cluster = self._cluster
        return Delivery(self, entry, left, generation, cost, size) if counts else None

    def _begin(self, entry: ReceivedEntry, key: EntryKey, left: int, generation: int) -> int:
        """Remember what of an entry has to be acknowledged; return the bits of what is wanted.

        `left` has the bits of messages that are neither acknowledged nor removed by compaction.
        """
        self.acks.comes_again(key)
        wanted = left & self._behind_sought(key, entry, generation)
        chunks = [(found.ledger_id, found.entry_id) for found in entry.chunk_ids]
        if chunks and wanted:
            self._outstanding.chunked(key, entry.chunk_ids)
        if self._is_exclusive:
            # Otherwise another consumer may want what is before.
            left = wanted
        if self._keeps and left != bits_from(0, entry.wanted.stop):
            # A seek first starts a new generation, and then forgets what is acknowledged.
            self.acks.begin(key, left, chunks, lambda: generation == self._queue.generation)
        return wanted

    def _behind_sought(self, key: EntryKey, entry: ReceivedEntry, generation: int) -> int:
        """Return the bits of an entry's messages that are not before what was sought."""
        stop = entry.wanted.stop
        bits = bits_from(0, stop)
        if self._sought is None:
            return bits
        start, sought, first = self._sought
        # A batch that stays encrypted is one message, wherever in it the sought one is.
        if key == sought and not entry.undecrypted:
            bits = bits_from(min(first, stop), stop)
        if key < start or (not bits and self._is_exclusive):
            # Somebody else has moved the subscription; or will have when the entry comes again,
            # as it is acknowledged.
            with self._lock:
                if generation == self._queue.generation:
                    self._sought = None
        return bits

    def _decode(self, frame: Frame, key: EntryKey) -> ReceivedEntry | None:
        entry = self._decoder.decode(frame)
        if self._decoder.discarded:
            # As the options say.
            self.discard(key, EncryptedMessage("it cannot be decrypted", topic=self.topic))
        if (chunk := self._decoder.last_chunk) is None:
            return entry
        entry = self._chunk_fetcher.find(chunk, self._decoder)
        if entry is None:
            # The last chunk came twice, and the message has the other one.
            self.acks.acknowledge(MessageIdAdv(*key))
        else:
            entry.redelivery_count = as_signed_int(frame.command.message.redelivery_count)
        return entry

    def _may_be_discarded(self, key: EntryKey, error: PulsarError) -> bool:
        """Discard an entry that cannot be read, if the options say so; otherwise it stays."""
        if self.options.discard_corrupt and isinstance(error, _UNREADABLE):
            self.discard(key, error)
            return True
        self._outstanding.unreadable(key)
        return False

    def _withhold(self, error: EncryptedMessage) -> None:
        """Log that a message is not given to the user, at most once a minute."""
        self._withheld += 1
        now = time.monotonic()
        if now < self._warn_at:
            return
        self._warn_at = now + _WARN_SECONDS
        logger.error(
            "%s: messages that no key decrypts are withheld, and stay unacknowledged (%d until "
            "now): %s",
            self.topic,
            self._withheld,
            error,
        )

    def _try_again_soon(self, error: PulsarError) -> None:
        """Have those who wait try again to fetch the chunks of a message."""
        if self._closed:
            return
        logger.warning("%s: the chunks of a message cannot be fetched now: %s", self.topic, error)
        with contextlib.suppress(ClosedError):
            self._context.timers.after(_FETCH_AGAIN_SECONDS, lambda: self._inbox.put(self))

    def _drop(self, generation: int, end: int, messages: int, size: int) -> None:
        """Skip an entry that ends at `end` of its block."""
        with self._lock:
            counts = self._queue.take(generation, end, messages)
        if counts:
            self.give_back(generation, messages, size)

    def finish(self, delivery: Delivery) -> None:
        """All messages of a delivery were returned."""
        self.give_back(delivery.generation, delivery.cost, delivery.size)

    def _left_of(self, entry: ReceivedEntry, key: EntryKey) -> int:
        """Return the bits of an entry's messages that are still to be acknowledged."""
        stop = entry.wanted.stop
        if stop > MAX_BATCH:
            raise CorruptBatch(
                f"a batch of {stop} messages", topic=self.topic, message_id=f"{key[0]}:{key[1]}"
            )
        left = bits_from(entry.wanted.start, stop)
        if entry.left is not None and entry.is_batch:
            left &= entry.left
        if self.options.read_compacted and entry.is_batch:
            try:
                left &= ~sum(1 << index for index in entry.unpack().compacted)
            except CorruptMessage as error:
                place = f"{key[0]}:{key[1]}"
                raise error.with_context(topic=self.topic, message_id=place) from error.__cause__
        # All entries of a non-persistent topic have the same id.
        return self.acks.left_of(key, left) if self._keeps else left

    def _new_row_decoder(self, queue_size: int) -> RowDecoder:
        # Send permits in portions, before all messages are returned.
        most = queue_size // 10
        return RowDecoder(self.topic, self.partition, most, max(self._budget.total, 1))

    def _new_decoder(self) -> EntryDecoder:
        limit = max(self._budget.total, 1)
        decryptor = Decryptor(self.options.crypto_keys, self.options.crypto_failure_action)
        most = self.options.max_chunked
        return EntryDecoder(
            self.topic,
            self._floor,
            None,
            limit,
            decryptor=decryptor,
            in_order=False,
            max_chunked=most,
            on_given_up=self._give_up_chunks if most else None,
            memory=self._budget.chunks,
        )

    def _begin_decoding(self, generation: int) -> None:
        """Forget the unfinished messages of an earlier generation: their chunks come again."""
        self._decoder.close()
        self._decoder, self._decoder_of = self._new_decoder(), generation
        if self._closed:
            self._decoder.close()

    def _give_up_chunks(self, ids: tuple[MessageIdAdv, ...]) -> None:
        """Acknowledge the chunks of a message that did not become complete, as the options say."""
        logger.warning(
            "%s: %d chunks from %s on are acknowledged; their message is incomplete",
            self.topic,
            len(ids),
            ids[0],
        )
        for found in ids:
            self.acks.acknowledge(MessageIdAdv(found.ledger_id, found.entry_id))

    def discard(self, key: EntryKey, error: PulsarError) -> None:
        """Acknowledge an unreadable entry with the reason, and log it."""
        logger.warning("%s: an entry is acknowledged and skipped: %s", self.topic, error)
        self._send_ack(Ack(_data_of((key,)), validation_error=validation_error(error)))

    # --- permits ------------------------------------------------------------------------------

    def give_back(self, generation: int, messages: int, size: int) -> None:
        """Messages were returned or dropped; sends permits when it is time."""
        with self._lock:
            attachment = self._current()
            permits = self._queue.give_back(generation, messages, size)
        self._flow(attachment, permits)

    def pull(self) -> None:
        """Request one message, with queue size 0, unless one is already requested."""
        with self._lock:
            permits = self._queue.pull()
            attachment = self._current()
        self._flow(attachment, permits)

    def _flow(self, attachment: Attachment | None, permits: int) -> None:
        if permits and attachment is not None:
            with contextlib.suppress(PulsarError):
                attachment.flow(permits)

    def track(self, message_id: MessageIdAdv) -> None:
        """A message was returned to the user: remember it until it is acknowledged."""
        self._outstanding.given((message_id.ledger_id, message_id.entry_id))
        if not self.options.durable:
            self._resume_at = Position.after(message_id)

    @property
    def tracks_messages(self) -> bool:
        """Whether `track` must be called."""
        return self._keeps and (bool(self.options.ack_timeout) or not self.options.durable)

    def _forget_queue(self) -> int:
        """Drop everything queued or taken; return its permits. Called with _lock held."""
        self.end_reached = False
        return self._queue.forget()

    def _forget_outstanding(self) -> None:
        """Forget what was returned, acknowledged and refused: the subscription was moved."""
        self._outstanding.clear()
        if self._dead_letter_router is not None:
            self._dead_letter_router.forget_all(self)

    # --- acknowledging ------------------------------------------------------------------------

    def acknowledge(
        self, message_id: MessageIdAdv, properties: Mapping[str, int] | None = None
    ) -> Future[None] | None:
        """Acknowledge a message; raises and returns as `AckTracker.acknowledge`.

        Brokers ignore acknowledgements on non-persistent topics: nothing is sent. Nor is it for a
        message of another cluster, before the client switched to this one, or an id that names no
        message.
        """
        if not message_id.names_message or not self._keeps or self._is_elsewhere(message_id):
            return None
        return self._outstanding.acknowledge(message_id, properties)

    def acknowledge_upto(
        self, message_id: MessageIdAdv, properties: Mapping[str, int] | None = None
    ) -> Future[None] | None:
        """Acknowledge a message and all before it; as `AckTracker.acknowledge_upto`."""
        if not self._keeps or self._is_elsewhere(message_id):
            return None
        return self._outstanding.acknowledge_upto(message_id, properties)

    def acknowledge_in_operation(
        self, txn: TxnId, message_id: MessageIdAdv, deadline: Deadline, *, cumulative: bool
    ) -> Operation[None]:
        """Return an operation that acknowledges within a transaction, once attached; one attempt.

        The transaction knows the subscription already. Raises the broker's error, such as
        TransactionConflict for a message that another transaction has acknowledged.
        """
        # Only this is repeated: an acknowledgement without an answer may be stored.
        attachment = yield from retrying(self.attach_operation, deadline)
        key = (message_id.ledger_id, message_id.entry_id)
        if message_id.batch_index >= 0:
            ids = [part_of_batch(message_id, cumulative=cumulative)]
        else:
            ids = _data_of((key,) if cumulative else self._outstanding.entries_of(key))
        yield from self._ask(
            attachment,
            pb.CommandAck,
            deadline,
            ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
            message_id=ids,
            **commands.txn_fields(txn),
        )
        self._outstanding.acknowledged_in_transaction(message_id, cumulative=cumulative)

    def negative_acknowledge(self, message_id: MessageIdAdv, redeliveries: int = 0) -> None:
        """Have a message's entry redelivered, after the delay in the options.

        Raises UnsupportedFeature if the broker is too old. Non-persistent topics redeliver nothing.
        """
        if not message_id.names_message or not self._keeps or self._is_elsewhere(message_id):
            return
        attachment = self._current()
        if attachment is not None:
            # Check now: after the delay nobody could be told of the error.
            attachment.connection.check_speaks(pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        self._outstanding.refuse((message_id.ledger_id, message_id.entry_id), redeliveries)

    def _send_ack(self, ack: Ack) -> Future[Any] | bool:
        attachment = self._current()
        if attachment is None:
            return False
        connection = attachment.connection

        def command(request_id: int | None = None) -> pb.BaseCommand:
            return commands.build(
                pb.CommandAck,
                consumer_id=attachment.consumer_id,
                ack_type=pb.CommandAck.Cumulative if ack.cumulative else pb.CommandAck.Individual,
                message_id=ack.message_ids,
                request_id=request_id,
                properties=[
                    pb.KeyLongValue(key=key, value=value & _UNSIGNED)
                    for key, value in (ack.properties or {}).items()
                ],
                validation_error=ack.validation_error,
            )

        if ack.receipt:
            return connection.request_async(command)
        try:
            return connection.send(command())
        except PulsarError:
            return False

    # --- redelivery ---------------------------------------------------------------------------

    def _on_due(self, keys: list[EntryKey]) -> None:
        if self._dead_letter_router is not None:
            keys = self._dead_letter_router.route(self, keys)
        if keys:
            self.redeliver(keys)

    def redeliver(self, keys: list[EntryKey]) -> None:
        """Have entries redelivered; all entries, unless the subscription is shared."""
        if not self.options.shared:
            self.redeliver_all()
            return
        self.acks.flush()
        attachment = self._current()
        if attachment is None:
            # They are redelivered after reattaching anyway.
            return
        wanted = [found for key in keys for found in self._outstanding.entries_of(key)]
        for first in range(0, len(wanted), _MAX_REDELIVERED):
            some = wanted[first : first + _MAX_REDELIVERED]
            with contextlib.suppress(PulsarError):
                _ask_again(attachment, message_ids=_data_of(some))

    def redeliver_all(self) -> None:
        """Have all unacknowledged messages redelivered; never waits or raises."""
        self.acks.flush()
        self._outstanding.redelivered()
        with self._lock:
            attachment = self._current()
            dropped = self._forget_queue()
            if not self.options.shared:
                self._epoch += 1
            epoch = None if self.options.shared else self._epoch
        if attachment is None:
            return
        with contextlib.suppress(PulsarError):
            _ask_again(attachment, consumer_epoch=epoch)
            with self._lock:
                permits = self._queue.dropped(dropped)
            if permits:
                attachment.flow(permits)

    # --- questions and seek -------------------------------------------------------------------

    def seek_operation(self, target: MessageIdAdv | int, deadline: Deadline) -> Operation[None]:
        """Return an operation that moves the subscription and reattaches; one attempt.

        `target` is a message or a publish time in milliseconds. The message itself is delivered too
        if the options' start is inclusive.
        """
        attachment = yield from self.attach_operation(deadline)
        self.acks.flush()
        with self._lock:
            self._seeking = True
        try:
            yield from self._ask(
                attachment,
                pb.CommandSeek,
                deadline,
                message_id=None if isinstance(target, int) else _seek_id(target),
                message_publish_time=target if isinstance(target, int) else None,
            )
            with self._lock:
                self._forget_queue()
                self._sought = None if isinstance(target, int) else self._left_out(target)
                self._resume_at = EARLIEST_POSITION
            self._forget_outstanding()
            self._give_up(attachment)
            yield from self.attach_operation(deadline)
        finally:
            with self._lock:
                self._seeking = False
            if not self.attached:
                self._reattach()

    def _left_out(self, target: MessageIdAdv) -> tuple[EntryKey, EntryKey, int] | None:
        """Return where deliveries begin after a seek, an entry, and an index.

        Messages of that entry before that index are skipped.
        """
        if target.ledger_id < 0 or target.ledger_id == LATEST_POSITION.ledger_id:
            return None
        first = target.first_chunk or target
        start = (first.ledger_id, first.entry_id)
        if self.options.start_inclusive:
            return start, start, max(target.batch_index, 0)
        key = (target.ledger_id, target.entry_id)
        return start, key, target.batch_index + 1 if target.batch_index >= 0 else MAX_BATCH

    def last_id_operation(self, deadline: Deadline) -> Operation[MessageIdAdv]:
        """Return an operation for the topic's last message; one attempt."""
        attachment = yield from self.attach_operation(deadline)
        answer = yield from self._ask(attachment, pb.CommandGetLastMessageId, deadline)
        return MessageIdAdv.from_pb(answer.last_message_id)

    def stats_operation(self, deadline: Deadline) -> Operation[pb.CommandConsumerStatsResponse]:
        """Return an operation for the broker's statistics of the consumer; one attempt."""
        attachment = yield from self.attach_operation(deadline)
        found: pb.CommandConsumerStatsResponse = yield from self._ask(
            attachment, pb.CommandConsumerStats, deadline
        )
        return found

    def unsubscribe_operation(self, force: bool, deadline: Deadline) -> Operation[None]:
        """Return an operation that removes the subscription and ends the consumer; one attempt.

        With `force`, other connected consumers are disconnected. That there are others is final;
        the consumer goes on.
        """
        attachment = yield from self.attach_operation(deadline)
        with self._lock:
            self._seeking = True
        try:
            yield from self._ask(attachment, pb.CommandUnsubscribe, deadline, force=force or None)
        except BaseException as error:
            if isinstance(error, MetadataError) and is_refusal(error):
                error.retryable = False
            with self._lock:
                self._seeking = False
            if not self.attached:
                self._reattach()
            raise
        self.close()
        # Those that it got after this question have no answer.
        attachment.connection.fail_questions(attachment.consumer_id)

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> Future[Any] | None:
        """Send pending acknowledgements and leave; a durable subscription stays."""
        try:
            self._outstanding.close()
        finally:
            left = self._leave()
        return left

    def _leave(self) -> Future[Any] | None:
        with self._lock:
            self._forget_queue()
            # A receiving thread looks at it after it has made a decoder.
            self._closed = True
        self._decoder.close()
        self._chunk_fetcher.close()
        with self._lock:
            budgeted, self._budgeted = self._budgeted, False
            kept, self._kept_timer = self._kept_timer, None
        if kept is not None:
            kept.cancel()
        if budgeted:
            self._budget.leave()
        return super().close()


def _data_of(entries: Iterable[EntryKey]) -> list[pb.MessageIdData]:
    return [pb.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in entries]


def _ask_again(attachment: Attachment, **fields: Any) -> None:
    """Have the broker deliver some or all unacknowledged messages again; raises ConnectionLost."""
    kind: Callable[..., Message] = pb.CommandRedeliverUnacknowledgedMessages
    command = commands.build(kind, consumer_id=attachment.consumer_id, **fields)
    attachment.connection.send(command)


def _seek_id(target: MessageIdAdv) -> pb.MessageIdData:
    first = target.first_chunk or target
    data = MessageIdAdv(first.ledger_id, first.entry_id, target.partition).to_pb()
    if 0 < target.batch_index < target.batch_size <= MAX_BATCH:
        data.ack_set.extend(ack_longs(bits_from(target.batch_index, target.batch_size)))
    return data
