"""Topics filled with known messages, and readers of them, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from crc32c import crc32c

from pulsar_spark.engine.codecs import compress
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.options import ClientOptions, ReaderOptions
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.chunks import split_message
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.message_id import EARLIEST, EARLIEST_POSITION, MessageIdAdv, Position
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.actions import Action, Drop, Incoming
from pulsar_spark.testing.rules import Rule, Seen
from pulsar_spark.testing.server import Server
from pulsar_spark.testing.session import Session
from tests import brief

NOW = 1_700_000_000_000
"""When the tests' chunks were published, in milliseconds."""


class Message(NamedTuple):
    """A message by its position; `batch_index` is 0 for one outside a batch."""

    ledger_id: int
    entry_id: int
    batch_index: int
    payload: bytes


def batch_body(payloads: Iterable[bytes]) -> bytes:
    """Return the uncompressed body of a batch."""
    parts = []
    for payload in payloads:
        metadata = pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        parts += [len(metadata).to_bytes(4, "big"), metadata, payload]
    return b"".join(parts)


def stored_entry(body: bytes, *, checksum: bool = True, **fields: Any) -> bytes:
    """Return an entry as brokers store it: checksum, metadata, payload."""
    values = {"producer_name": "p", "sequence_id": 0, "publish_time": 1, **fields}
    metadata = pb.MessageMetadata(**values).SerializeToString()
    checked = len(metadata).to_bytes(4, "big") + metadata + body
    if not checksum:
        return checked
    return b"\x0e\x01" + crc32c(checked).to_bytes(4, "big") + checked


def chunks_of(payload: bytes, size: int, uuid: str, publish_time: int = NOW) -> list[bytes]:
    """Return the entries of a message that is compressed and chunked."""
    packed = bytes(compress(pb.ZLIB, payload))
    parts = split_message(packed, size)
    return [
        stored_entry(
            bytes(part),
            uuid=uuid,
            chunk_id=number,
            num_chunks_from_msg=len(parts),
            total_chunk_msg_size=len(packed),
            compression=pb.ZLIB,
            uncompressed_size=len(payload),
            publish_time=publish_time,
        )
        for number, part in enumerate(parts)
    ]


def add_interleaved(
    broker: EmbeddedBroker, topic: str, messages: list[bytes], size: int, uuid: str
) -> None:
    """Append messages of equally many chunks of `size` bytes, whose producers take turns."""
    columns = [chunks_of(body, size, f"{uuid}-{number}") for number, body in enumerate(messages)]
    for row in zip(*columns, strict=True):
        for entry in row:
            broker.append(topic, entry)


def add_batch(
    broker: EmbeddedBroker, topic: str, payloads: list[bytes], **fields: Any
) -> list[Message]:
    """Append one batch and return its messages."""
    entry = stored_entry(batch_body(payloads), num_messages_in_batch=len(payloads), **fields)
    found = broker.append(topic, entry)
    return [
        Message(found.ledger_id, found.entry_id, index, payload)
        for index, payload in enumerate(payloads)
    ]


def add_plain(broker: EmbeddedBroker, topic: str, payload: bytes, **fields: Any) -> Message:
    """Append one message outside of a batch."""
    found = broker.append(topic, stored_entry(payload, **fields))
    return Message(found.ledger_id, found.entry_id, 0, payload)


def fill(broker: EmbeddedBroker, topic: str, entries: int, batch: int = 3) -> list[Message]:
    """Create a topic of batches in three ledgers, with gaps in the entry ids."""
    broker.create_topic(topic)
    messages: list[Message] = []
    for number in range(entries):
        payloads = [b"m-%d-%d" % (number, index) for index in range(batch)]
        messages += add_batch(broker, topic, payloads)
        if number in (entries // 3, 2 * entries // 3):
            broker.roll_ledger(topic)
        elif number % 5 == 4:
            broker.skip_entries(topic, 2)
    return messages


class _NoTopic(Action):
    """Answer that the topic is empty, as brokers do to a consumer without a topic."""

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        target.send(brief.last_id_response(command.body.request_id, EARLIEST.to_pb()))


class _Nowhere(Action):
    """Accept a consumer without registering it, as a broker that is unloading the topic."""

    def __init__(self) -> None:
        self.lost: set[int] = set()

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        self.lost.add(command.body.consumer_id)
        target.send(commands.build(pb.CommandSuccess, request_id=command.body.request_id))


class _Answered(Action):
    """Answer a request without doing anything."""

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        target.send(commands.build(pb.CommandSuccess, request_id=command.body.request_id))


def pretend_empty(broker: EmbeddedBroker, times: int = 1, after: int = 0) -> None:
    """Leave the next consumers without a topic: it looks empty to them, and they get nothing.

    So does a real broker with consumers that subscribe while it unloads the topic.
    """
    nowhere = _Nowhere()

    def is_lost(seen: Seen) -> bool:
        return seen.body.consumer_id in nowhere.lost

    faults = broker.faults
    faults.on("SUBSCRIBE", nowhere, times=times, after=after)
    faults.on("GET_LAST_MESSAGE_ID", _NoTopic(), times=None, when=is_lost)
    faults.on("CLOSE_CONSUMER", _Answered(), times=None, when=is_lost)
    faults.on("FLOW", Drop(), times=None, when=is_lost)


def lose_topic(broker: EmbeddedBroker, topic: str) -> Rule:
    """Leave a topic's current consumers without a topic, as long as they are connected.

    So does a real broker with consumers that subscribe while it unloads the topic: they hold no
    subscription, the topic looks empty to them, and they are never disconnected.
    """

    def forget(server: Server) -> set[int]:
        subscriptions = server.topics.topics[topic].subscriptions.values()
        lost = [consumer for found in subscriptions for consumer in found.consumers]
        for consumer in lost:
            consumer.subscription.remove(consumer)
        return {consumer.consumer_id for consumer in lost}

    lost = broker._call(forget)
    return broker.faults.on(
        "GET_LAST_MESSAGE_ID",
        _NoTopic(),
        times=None,
        when=lambda seen: seen.body.consumer_id in lost,
    )


def unpack(entry: ReceivedEntry) -> list[Message]:
    """Return the wanted messages of an entry."""
    if entry.is_batch:
        payloads = [bytes(payload) for payload in entry.unpack().payloads()]
    else:
        payloads = [bytes(entry.payload)]
    return [
        Message(entry.ledger_id, entry.entry_id, index, payloads[index]) for index in entry.wanted
    ]


def after_last(messages: list[Message]) -> Position:
    """Return the position after the last of some batched messages."""
    last = messages[-1]
    return Position.after(MessageIdAdv(last.ledger_id, last.entry_id, -1, last.batch_index))


def quick(broker: EmbeddedBroker, **changes: Any) -> ClientOptions:
    """Return options with short waits."""
    values: dict[str, Any] = {"operation_timeout": 5.0, "connection_timeout": 5.0, **changes}
    return ClientOptions(broker.service_url, **values)


@contextmanager
def reading(
    broker: EmbeddedBroker,
    topic: str,
    start: Position = EARLIEST_POSITION,
    end: Position | None = None,
    **options: Any,
) -> Iterator[EntryReader]:
    """Open a reader with a pool of its own; close both at the end."""
    options.setdefault("poll_timeout", 10.0)
    with (
        ConnectionPool(quick(broker)) as pool,
        EntryReader(pool, topic, start, end, ReaderOptions(**options)) as reader,
    ):
        yield reader


def read_range(
    broker: EmbeddedBroker, topic: str, start: Position, end: Position, **options: Any
) -> list[Message]:
    """Return all messages of a range."""
    with reading(broker, topic, start, end, **options) as reader:
        return [message for entry in reader for message in unpack(entry)]
