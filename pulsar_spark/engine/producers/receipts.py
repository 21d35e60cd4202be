"""What the receipts of one producer say: the ids of stored messages, duplicates, and intruders."""

from __future__ import annotations

from array import array
from dataclasses import replace

from pulsar_spark.engine.producers.inflight_window import Taken
from pulsar_spark.protocol.message_id import MessageIdAdv


class ReceiptLog:
    """The last stored ids of a producer, and how many of its messages were duplicates.

    With `resumes`, the producer continues under the name of an earlier one, and sends no sequence
    id that the broker already knew. Not thread-safe: its producer locks.
    """

    def __init__(self, partition: int, *, resumes: bool) -> None:
        self.last_sequence_id = -1
        """The highest sequence id of the entry that was stored last; before, where ids start."""
        self.last_message_id: MessageIdAdv | None = None
        """Where the last acknowledged entry is stored."""
        self.duplicates = 0
        self.intruded = False
        """Whether another producer of this name stored messages after this one was opened."""
        self._partition = partition
        self._resumes = resumes
        self._known_sequence_id = -1
        self._first_chunk: MessageIdAdv | None = None

    def begin(self, known: int, initial: int | None) -> int:
        """Start after `initial`, or after the last id that the broker stored before; return it."""
        self._known_sequence_id = known
        self.last_sequence_id = known if initial is None else initial
        return self.last_sequence_id

    def was_known(self, sequence_id: int) -> bool:
        """Whether a message with this id was stored before the producer was opened."""
        return sequence_id <= self._known_sequence_id

    def add(self, taken: Taken, receipts: array[int]) -> MessageIdAdv:
        """Note the receipts of stored entries, and return the last one's id."""
        sends = taken.sends
        message_id = MessageIdAdv(receipts[-2], receipts[-1], self._partition)
        if sends.chunk == 0:
            self._first_chunk = message_id
        elif sends.chunk is not None:
            message_id = replace(message_id, first_chunk=self._first_chunk)
        self.last_sequence_id = taken.last
        # A duplicate is acknowledged without an id.
        if min(receipts[2::4]) >= 0:
            self.last_message_id = message_id
            return message_id
        # Ids that the broker knew at the start are not sent, so another producer sent this one.
        self.intruded = self.intruded or (self._resumes and not sends.resent)
        duplicates, stored = taken.split(receipts)
        self.duplicates += duplicates
        if stored is not None:
            self.last_message_id = MessageIdAdv(*stored, self._partition)
        return message_id
