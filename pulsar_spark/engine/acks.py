"""What an acknowledgement names: from a position to the ids and bits of ACK.

Pulsar binary protocol, "Acks". An acknowledgement of everything before a position names the last
entry that is done. Of a batch of which a part is done it carries an `ack_set`, in which the bits
of the messages that are *not* done are set; brokers that keep no such bits stay before the batch.
"""

from __future__ import annotations

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import MessageId, Position

_LONG_BITS = 64
# A batch has at most so many messages: no number of bits is made from what a peer says.
_MAX_BATCH = 1 << 20


def ack_set(first: int, size: int) -> list[int]:
    """Return the ack_set of a batch of `size` messages of which those before `first` are done.

    Signed longs of a little-endian bit set, as on the wire.
    """
    bits = ((1 << size) - 1) & ~((1 << first) - 1)
    words: list[int] = []
    while bits:
        word = bits & ((1 << _LONG_BITS) - 1)
        words.append(word - (1 << _LONG_BITS) if word >> (_LONG_BITS - 1) else word)
        bits >>= _LONG_BITS
    return words


def cumulative_ack(position: Position, batch_size: int = 0) -> pb.MessageIdData | None:
    """Return the id that acknowledges everything before `position`, None if it cannot be named.

    `batch_size` is the number of messages of the entry that the position lies in, 0 where it is
    not known: without it that entry is left alone until all of it is done.
    """
    ledger_id, entry_id, done = position
    if ledger_id < 0:
        return None
    if done and done < batch_size <= _MAX_BATCH:
        data = MessageId(ledger_id, entry_id, -1, done - 1, batch_size).to_pb()
        data.ack_set.extend(ack_set(done, batch_size))
        return data
    if done and done >= batch_size > 0:
        return MessageId(ledger_id, entry_id).to_pb()
    # What lies in earlier ledgers only has no entry here that could be named.
    return MessageId(ledger_id, entry_id - 1).to_pb() if entry_id > 0 else None


def acknowledged_up_to(marked: pb.MessageIdData) -> Position:
    """Return the position behind the last entry that a subscription is done with.

    `marked` is the mark-delete position that a broker tells; its entry is -1 at the beginning of
    a ledger.
    """
    done = MessageId.from_pb(marked)
    return Position(done.ledger_id, done.entry_id + 1)
