"""Acknowledgements of one consumer, many of which are sent in one command.

A batch's entry is acknowledged when all its messages are; or, with batch index acknowledgements,
by the bits of the messages that are not. Acknowledgements that were not sent before a disconnect
are sent after it; messages redelivered meanwhile are recognised as acknowledged.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

from pulsar_spark.engine.options import ConsumerOptions
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import (
    ChecksumMismatch,
    ClosedError,
    ConnectionLost,
    CorruptBatch,
    DecompressionError,
    EncryptedMessage,
    OptionError,
    PulsarError,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.ack_sets import MAX_BATCH, ack_longs, bits_from
from pulsar_spark.protocol.message_id import MessageIdAdv, Position

EntryKey: TypeAlias = "tuple[int, int]"
"""Ledger and entry."""

MAX_PARTIAL = 100_000
"""How many partly acknowledged batches are remembered; beyond that the oldest is forgotten."""

# So many forgotten entries may be in an order, besides as many as there are others.
_MAX_FORGOTTEN = 64

SendAck: TypeAlias = "Callable[[Ack], Future[Any] | bool]"
"""Sends an acknowledgement: returns false if it cannot now, a future if receipts are on."""


_Errors = pb.CommandAck
_VALIDATION_ERRORS: tuple[tuple[type[PulsarError], int], ...] = (
    (ChecksumMismatch, _Errors.ChecksumMismatch),
    (DecompressionError, _Errors.DecompressionError),
    (EncryptedMessage, _Errors.DecryptionError),
    (CorruptBatch, _Errors.BatchDeSerializeError),
)
"""The reason sent to the broker when an unreadable entry is acknowledged."""


@dataclass(frozen=True, slots=True)
class Ack:
    """What one ACK command says."""

    message_ids: Sequence[pb.MessageIdData]
    cumulative: bool = False
    receipt: bool = False
    properties: Mapping[str, int] | None = None
    validation_error: int | None = None


def validation_error(error: PulsarError) -> int:
    """Return the reason to send to the broker for an entry with this error."""
    found = (code for kind, code in _VALIDATION_ERRORS if isinstance(error, kind))
    return next(found, _Errors.BatchDeSerializeError)


class EntryOrder:
    """Finds which entries of a book are before a position, without a look at the others.

    Its owner adds each entry that is new in the book; what has left the book does not count.
    """

    def __init__(self, book: Collection[EntryKey]) -> None:
        self._book = book
        # A heap, in which entries may be that have left the book.
        self._keys: list[EntryKey] = []

    def add(self, key: EntryKey) -> None:
        """An entry is in the book that was not there before."""
        heapq.heappush(self._keys, key)
        if len(self._keys) > 2 * len(self._book) + _MAX_FORGOTTEN:
            self._keys = sorted(self._book)

    def take_before(self, position: Position) -> set[EntryKey]:
        """Return the entries before a position's; the owner takes them out of the book."""
        found: set[EntryKey] = set()
        while self._keys and self._keys[0] < position[:2]:
            found.add(heapq.heappop(self._keys))
        return {key for key in found if key in self._book}


class AckTracker:
    """What a consumer has acknowledged and its broker does not know yet. Thread-safe.

    `send` is called with a lock held, and must not wait. A receipt is a future: it fails with the
    broker's error, or with ConnectionLost if nobody knows whether the broker has the
    acknowledgement; after `close` that is ClosedError.
    """

    def __init__(self, options: ConsumerOptions, timers: Timers, send: SendAck) -> None:
        self._options = options
        self._timers = timers
        self._send = send
        self._lock = threading.Lock()
        # The following are guarded by _lock. Bits of a batch's unacknowledged messages:
        self._partial: OrderedDict[EntryKey, int] = OrderedDict()
        self._partial_order = EntryOrder(self._partial)
        # Bits that transactions have acknowledged of batches of which more is left.
        self._in_transactions: OrderedDict[EntryKey, int] = OrderedDict()
        # To be sent: an entry's remaining bits, 0 if all are acknowledged.
        self._pending: dict[EntryKey, tuple[int, int]] = {}
        # Properties of some of these, which are sent in commands of their own.
        self._noted: dict[EntryKey, Mapping[str, int]] = {}
        # No entry after this one was acknowledged.
        self._highest: EntryKey = (-1, -1)
        self._upto: Position | None = None
        self._upto_id: pb.MessageIdData | None = None
        self._upto_noted: Mapping[str, int] | None = None
        self._waiting: list[Future[None]] = []
        self._waiting_upto: list[Future[None]] = []
        self._timed = False
        self._closed = False

    # --- acknowledging ------------------------------------------------------------------------

    def begin(
        self,
        key: EntryKey,
        left: int,
        chunks: Iterable[EntryKey] = (),
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        """Store which of an entry's messages have to be acknowledged.

        Without any, the entry is acknowledged at once; `chunks` are as in `acknowledge`. Nothing
        happens if the entry is not current, because of a seek.
        """
        with self._lock:
            if not is_current():
                return
            self._keep_partial(key, left)
            if not left:
                self._pending.update(dict.fromkeys((key, *chunks), (0, 0)))
                self._highest = max(self._highest, key)
                self._flush()

    def acknowledge(
        self,
        message_id: MessageIdAdv,
        chunks: Iterable[EntryKey] = (),
        properties: Mapping[str, int] | None = None,
    ) -> tuple[bool, Future[None] | None]:
        """Acknowledge one message; `chunks` are the entries of a chunked one.

        With `properties` it is sent at once. Returns whether its entry is complete, maybe with what
        transactions have acknowledged, and a receipt if those are on. Raises OptionError for an id
        without its batch's size.
        """
        key = (message_id.ledger_id, message_id.entry_id)
        with self._lock:
            in_transactions = self._in_transactions.get(key, 0)
            left = self._take_from_batch(key, message_id)
            rest = left & ~in_transactions
            # The last one sends what a transaction does not: nothing else would.
            if rest and not self._options.batch_index_acks:
                return False, _done() if self._options.ack_receipts else None
            self._pending[key] = (left, message_id.batch_size)
            if key > self._highest:
                self._highest = key
            for chunk in chunks:
                self._pending[chunk] = (0, 0)
            if properties:
                self._noted.update(dict.fromkeys((key, *chunks), properties))
            receipt = self._receipt(self._waiting)
            full = len(self._pending) >= self._options.ack_group_size
            if full or receipt is not None or properties or not self._options.ack_delay:
                self._flush()
            else:
                self._be_timed()
        return not rest, receipt

    def acknowledged_in_transaction(self, message_id: MessageIdAdv, *, cumulative: bool) -> bool:
        """A transaction acknowledges a message, or with `cumulative` all of its batch up to it.

        Returns whether nothing is left of its entry.
        """
        key, index = (message_id.ledger_id, message_id.entry_id), message_id.batch_index
        with self._lock:
            if index < 0:
                return True
            done = (1 << index + 1) - 1 if cumulative else 1 << index
            done |= self._in_transactions.pop(key, 0)
            if not self._left_of_batch(key, message_id.batch_size) & ~done:
                return True
            self._in_transactions[key] = done
            self._highest = max(self._highest, key)
            if len(self._in_transactions) > MAX_PARTIAL:
                self._in_transactions.popitem(last=False)
        return False

    def comes_again(self, key: EntryKey) -> None:
        """An entry was delivered: transactions that acknowledged messages of it were aborted."""
        if self._in_transactions:
            with self._lock:
                self._in_transactions.pop(key, None)

    def acknowledge_upto(
        self, message_id: MessageIdAdv, properties: Mapping[str, int] | None = None
    ) -> tuple[bool, Future[None] | None]:
        """Acknowledge a message and all before it.

        Takes `properties` and returns as `acknowledge`. An id without its batch's size acknowledges
        what is before the batch.
        """
        with self._lock:
            position, left = self._take_upto(message_id)
            if self._upto is None or position > self._upto:
                size = message_id.batch_size if self._options.batch_index_acks else 0
                self._upto = position
                self._highest = max(self._highest, position[:2])
                self._upto_id = cumulative_ack(position, size, left)
                self._upto_noted = properties
            receipt = self._receipt(self._waiting_upto)
            if receipt is not None or properties or not self._options.ack_delay:
                self._flush()
            else:
                self._be_timed()
        return position[:2] > (message_id.ledger_id, message_id.entry_id), receipt

    def _take_upto(self, message_id: MessageIdAdv) -> tuple[Position, int]:
        """Acknowledge all of a batch up to a message.

        Returns the position up to which everything is acknowledged, and the bits of the rest of the
        batch. Messages behind this one may be acknowledged already, even all.
        """
        ledger_id, entry_id = message_id.ledger_id, message_id.entry_id
        if message_id.batch_index < 0:
            return Position.after(message_id), 0
        if not message_id.batch_size:
            return Position(ledger_id, entry_id), 0
        left = self._take_from_batch((ledger_id, entry_id), message_id, upto=True)
        if not left:
            return Position(ledger_id, entry_id + 1), 0
        return Position(ledger_id, entry_id, message_id.batch_index + 1), left

    def _take_from_batch(
        self, key: EntryKey, message_id: MessageIdAdv, *, upto: bool = False
    ) -> int:
        """Acknowledge a message of a batch, or all `upto` it; return the batch's remaining bits."""
        index, size = message_id.batch_index, message_id.batch_size
        if index < 0:
            return 0
        _check_batch(message_id)
        left = self._left_of_batch(key, size)
        left &= bits_from(index + 1, size) if upto else ~(1 << index)
        self._keep_partial(key, left)
        return left

    def _left_of_batch(self, key: EntryKey, size: int) -> int:
        left = self._partial.get(key)
        if left is None:
            # All of it may be acknowledged, and not be sent yet.
            left = self._pending[key][0] if key in self._pending else bits_from(0, size)
        return left

    def _keep_partial(self, key: EntryKey, left: int) -> None:
        is_new = key not in self._partial
        if not left:
            self._partial.pop(key, None)
            self._in_transactions.pop(key, None)
            return
        self._partial[key] = left
        self._partial.move_to_end(key)
        if is_new:
            self._partial_order.add(key)
        if len(self._partial) > MAX_PARTIAL:
            self._partial.popitem(last=False)

    def _receipt(self, waiting: list[Future[None]]) -> Future[None] | None:
        if not self._options.ack_receipts:
            return None
        receipt: Future[None] = Future()
        waiting.append(receipt)
        return receipt

    # --- queries ------------------------------------------------------------------------------

    def may_know(self, key: EntryKey) -> bool:
        """Whether `left_of` or `comes_again` may change this entry or a later one."""
        return key <= self._highest and bool(
            self._pending or self._upto is not None or self._in_transactions
        )

    def left_of(self, key: EntryKey, bits: int) -> int:
        """Return an entry's bits without those that are acknowledged and not sent yet."""
        if not self._pending and self._upto is None:
            return bits
        with self._lock:
            if (found := self._pending.get(key)) is not None:
                bits &= found[0]
            if self._upto is not None and (*key, 0) < self._upto:
                done = self._upto.batch_index if key == self._upto[:2] else bits.bit_length()
                bits = bits >> done << done
            return bits

    def is_done(self, message_id: MessageIdAdv) -> bool:
        """Whether a message is acknowledged while others of its batch are not."""
        key, index = (message_id.ledger_id, message_id.entry_id), max(message_id.batch_index, 0)
        left = self._partial.get(key, -1) & ~self._in_transactions.get(key, 0)
        return not left >> index & 1

    # --- sending ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what was acknowledged, if the consumer is attached; never waits."""
        with self._lock:
            self._flush()

    def clear(self) -> None:
        """Forget everything: the consumer continues elsewhere."""
        with self._lock:
            self._partial.clear()
            self._in_transactions.clear()
            self._pending.clear()
            self._noted.clear()
            self._upto = self._upto_id = self._upto_noted = None
            self._complete(self._take_waiting(), None)

    def close(self) -> None:
        """Send what can be sent; fail the receipts that will not come, now and from now on."""
        with self._lock:
            self._closed = True
            self._flush()

    def _take_waiting(self) -> list[Future[None]]:
        waiting = [*self._waiting, *self._waiting_upto]
        self._waiting, self._waiting_upto = [], []
        return waiting

    def _be_timed(self) -> None:
        if not self._timed:
            self._timed = True
            with contextlib.suppress(ClosedError):
                self._timers.after(self._options.ack_delay, self._on_time)

    def _on_time(self) -> None:
        with self._lock:
            self._timed = False
            self._flush()

    def _flush(self) -> None:
        self._send_all()
        if self._closed:
            self._complete(self._take_waiting(), _left())

    def _send_all(self) -> None:
        upto = [] if self._upto_id is None else [self._upto_id]
        if self._upto is not None and self._send_group(
            upto, self._waiting_upto, self._upto_noted, cumulative=True
        ):
            for key in self._partial_order.take_before(self._upto):
                del self._partial[key]
                self._in_transactions.pop(key, None)
            self._upto = self._upto_id = self._upto_noted = None
            self._waiting_upto = []
        # Those before it are sent, too: brokers refuse a position that is behind the topic's end,
        # without telling anybody.
        while self._pending:
            keys, noted = self._next_group()
            ids = [_entry_id(key, *self._pending[key]) for key in keys]
            # Answers come in order: the last group's answer covers them all.
            is_last = len(keys) == len(self._pending)
            waiting = self._waiting if is_last else []
            if not self._send_group(ids, waiting, noted, cumulative=False):
                return
            for key in keys:
                del self._pending[key]
                self._noted.pop(key, None)
        self._waiting = []

    def _next_group(self) -> tuple[list[EntryKey], Mapping[str, int] | None]:
        """Return what goes out in one command next, and what the broker is to keep with it."""
        noted = self._noted.get(next(iter(self._pending)))
        same = itertools.takewhile(lambda key: self._noted.get(key) is noted, self._pending)
        keys = same if self._noted else self._pending
        # In order, as a broker passes over what follows an entry that is behind the topic's end.
        return sorted(itertools.islice(keys, self._options.ack_group_size)), noted

    def _send_group(
        self,
        ids: list[pb.MessageIdData],
        waiting: list[Future[None]],
        properties: Mapping[str, int] | None,
        *,
        cumulative: bool,
    ) -> bool:
        if not ids:
            self._complete(waiting, None)
            return True
        receipt = bool(waiting)
        answer = self._send(Ack(ids, cumulative=cumulative, receipt=receipt, properties=properties))
        if isinstance(answer, Future):
            answer.add_done_callback(lambda done: self._on_answer(waiting, done.exception()))
        return answer is not False

    def _on_answer(self, waiting: list[Future[None]], error: BaseException | None) -> None:
        """Pass on an answer; a closed consumer was not lost, but left."""
        is_over = self._closed and isinstance(error, ConnectionLost)
        self._complete(waiting, _left() if is_over else error)

    @staticmethod
    def _complete(waiting: list[Future[None]], error: BaseException | None) -> None:
        for receipt in waiting:
            if error is None:
                receipt.set_result(None)
            else:
                receipt.set_exception(error)


def _left() -> PulsarError:
    return ClosedError("the consumer is closed")


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _check_batch(message_id: MessageIdAdv) -> None:
    """Raise OptionError for a batched message's id without the batch's size."""
    if message_id.batch_index >= 0 and not (
        message_id.batch_index < message_id.batch_size <= MAX_BATCH
    ):
        raise OptionError(
            "the message id does not say how many messages its batch has",
            "Acknowledge the message, or the id that it gave.",
            message_id=message_id,
        )


def _entry_id(key: EntryKey, left: int, size: int) -> pb.MessageIdData:
    # A third of the time that arguments by name take.
    data = pb.MessageIdData()
    data.ledgerId, data.entryId = key
    if left:
        data.batch_size = size
        data.ack_set.extend(ack_longs(left))
    return data


def cumulative_ack(
    position: Position, batch_size: int = 0, left: int = 0
) -> pb.MessageIdData | None:
    """Return the id that acknowledges everything before `position`, None if there is none.

    `batch_size` is the number of messages of the entry that contains the position, 0 if
    unknown: then that entry is not acknowledged in part. `left` has the bits of those that are not
    acknowledged, if some behind the position are.
    """
    ledger_id, entry_id, done = position
    if ledger_id < 0:
        return None
    if done and done < batch_size <= MAX_BATCH:
        data = MessageIdAdv(ledger_id, entry_id, -1, done - 1, batch_size).to_pb()
        # Brokers replace what they know of a batch by this.
        data.ack_set.extend(ack_longs(left or bits_from(done, batch_size)))
        return data
    if done and done >= batch_size > 0:
        return MessageIdAdv(ledger_id, entry_id).to_pb()
    # At a ledger's start it is -1, and brokers acknowledge all earlier ledgers.
    return MessageIdAdv(ledger_id, max(entry_id - 1, -1)).to_pb()


def part_of_batch(message_id: MessageIdAdv, *, cumulative: bool) -> pb.MessageIdData:
    """Return an id for one message of a batch, or with `cumulative` for all up to it."""
    _check_batch(message_id)
    index, size = message_id.batch_index, message_id.batch_size
    left = bits_from(index + 1, size) if cumulative else bits_from(0, size) & ~(1 << index)
    data = MessageIdAdv(
        message_id.ledger_id, message_id.entry_id, message_id.partition, index, size
    ).to_pb()
    data.ack_set.extend(ack_longs(left))
    return data
