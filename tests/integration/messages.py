"""Messages to send, and those that clients read, in one form that can be compared."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from pulsar_spark.client import MessageId, PulsarClient
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.options import ClientOptions, ReaderOptions
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import ReceivedEntry
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, MessageIdAdv, Position
from pulsar_spark.protocol.outgoing_messages import MessageFields
from tests.integration.brokers import Broker
from tests.support.waiting import wait_until

RECEIVE_MS = 60_000

CODECS = {"NONE": pb.NONE, "LZ4": pb.LZ4, "ZLIB": pb.ZLIB, "ZSTD": pb.ZSTD, "SNAPPY": pb.SNAPPY}

# Empty, with a NUL, from inside and outside of the basic plane, with combining marks, long.
TEXTS = ("plain", "", "a\0b", "ключ", "鍵", "🐟🐠", "e\u0301", "\x7f\x80\u2028", "x" * 300)


def readable(url: str, topic: str) -> Counter[str]:
    """Return the readable messages of a topic, as text."""
    with PulsarClient(url) as client, client.create_reader(topic, MessageId.earliest) as reader:
        found: Counter[str] = Counter()
        while reader.has_message_available():
            found[reader.read_next(timeout_millis=RECEIVE_MS).data().decode()] += 1
        return found


class Content(NamedTuple):
    """A message to send: payload None is a null value, None is no key or ordering key."""

    payload: bytes | None
    key: str | None = None
    ordering_key: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    event_time: int = 0

    def fields(self) -> MessageFields:
        """Return it in the form of our producers."""
        ordering_key = None if self.ordering_key is None else self.ordering_key.encode()
        return MessageFields(
            self.payload,
            self.key,
            ordering_key=ordering_key,
            properties=self.properties,
            event_time=self.event_time,
        )

    def seen_officially(self) -> Content:
        """Return it in the form of `official_content`."""
        return self._replace(key=self.key or None, ordering_key=self.ordering_key or None)

    def arguments(self) -> dict[str, Any]:
        """Return all but the payload as the official producer's arguments."""
        return {
            "partition_key": self.key,
            "ordering_key": self.ordering_key,
            "properties": dict(self.properties),
            "event_timestamp": self.event_time or None,
        }


class Row(NamedTuple):
    """A message as we read it; `fields` is its own metadata, `entry` its entry's."""

    content: Content
    key_is_base64: bool
    sequence_id: int
    message_id: MessageIdAdv
    entry: pb.MessageMetadata
    fields: pb.MessageMetadata | pb.SingleMessageMetadata
    received: ReceivedEntry


def random_contents(seed: int, count: int, *, empty_keys: bool = False) -> list[Content]:
    """Return messages of all kinds; with empty keys only on request.

    To the official client an empty key is no key.
    """
    rng = random.Random(seed)

    def key() -> str | None:
        found = rng.choice(TEXTS)
        return found if found or empty_keys else None

    return [
        Content(
            None if rng.random() < 0.02 else random_payload(rng),
            key(),
            key(),
            _random_properties(rng),
            rng.choice((0, 1, 1_600_000_000_123, 2**62)),
        )
        if rng.random() < 0.7
        else Content(random_payload(rng))
        for _ in range(count)
    ]


def random_payload(rng: random.Random) -> bytes:
    """Return a payload, mostly short, sometimes empty or of some kilobytes."""
    size = rng.choice((0, 1, 7, 20, 50, 100, 127, 128, 300, 300, 300, 4000))
    if rng.random() < 0.5:
        return rng.randbytes(size)
    return (b"%d," % rng.randrange(1000)) * (size // 4)


def _random_properties(rng: random.Random) -> tuple[tuple[str, str], ...]:
    names = rng.sample(TEXTS, rng.choice((0, 0, 1, 3)))
    return tuple(sorted((name, rng.choice(TEXTS)) for name in names))


# --- ours -----------------------------------------------------------------------------------


def options(broker: Broker, **changes: Any) -> ClientOptions:
    """Return options for a broker, with timeouts for a busy machine."""
    return ClientOptions(broker.service_url, **{"operation_timeout": 60.0, **changes})


@contextmanager
def connected(broker: Broker, **changes: Any) -> Iterator[ConnectionPool]:
    """Open connections to a broker."""
    with ConnectionPool(options(broker, **changes)) as pool:
        yield pool


@contextmanager
def clustered(broker: Broker, **changes: Any) -> Iterator[ClientContext]:
    """Open a client context, which producers need."""
    with ClientContext(options(broker, **changes)) as context:
        yield context


def end_of(broker: Broker, topic: str) -> Position:
    """Return the position after the last message of a plain topic or a partition."""
    with connected(broker) as pool:
        return Position.after(Lookup(pool).last_message_id(topic))


def read_entries(
    broker: Broker,
    topic: str,
    start: Position = EARLIEST_POSITION,
    end: Position | None = None,
    **changes: Any,
) -> list[ReceivedEntry]:
    """Return a range's entries, by default up to the current last message."""
    end = end_of(broker, topic) if end is None else end
    settings = ReaderOptions(**{"poll_timeout": 60.0, **changes})
    with (
        connected(broker) as pool,
        EntryReader(pool, topic, start, end, settings) as reader,
    ):
        return list(reader)


def read_rows(
    broker: Broker,
    topic: str,
    start: Position = EARLIEST_POSITION,
    end: Position | None = None,
    **changes: Any,
) -> list[Row]:
    """Return the messages of `read_entries`."""
    entries = read_entries(broker, topic, start, end, **changes)
    return [row for entry in entries for row in rows_of(entry)]


def rows_of(entry: ReceivedEntry) -> Iterator[Row]:
    """Yield the wanted messages of an entry."""
    if not entry.is_batch:
        yield _row(entry, -1, bytes(entry.payload), entry.metadata)
        return
    batch = entry.unpack()
    payloads, metadata = batch.payloads(), batch.metadata()
    for index in entry.wanted:
        if index in batch.compacted:
            continue
        yield _row(entry, index, bytes(payloads[index]), metadata[index])


def _row(
    entry: ReceivedEntry,
    index: int,
    payload: bytes,
    fields: pb.MessageMetadata | pb.SingleMessageMetadata,
) -> Row:
    # The official client gives text: bytes that are not UTF-8 become lone surrogates.
    ordering_key = fields.ordering_key.decode("utf-8", "surrogateescape")
    content = Content(
        None if fields.null_value else payload,
        fields.partition_key if fields.HasField("partition_key") else None,
        ordering_key if fields.HasField("ordering_key") else None,
        tuple(sorted((pair.key, pair.value) for pair in fields.properties)),
        fields.event_time,
    )
    return Row(
        content,
        fields.partition_key_b64_encoded,
        fields.sequence_id,
        MessageIdAdv(entry.ledger_id, entry.entry_id, entry.partition, index),
        entry.metadata,
        fields,
        entry,
    )


# --- the official client's ------------------------------------------------------------------


def official_write(producer: Any, contents: Iterable[Content]) -> list[Any]:
    """Send messages with an official producer; return their official ids, in order."""
    pulsar = pytest.importorskip("pulsar")
    results: list[Any] = []
    sent = 0
    for content in contents:
        # An exception in a callback would end the process.
        producer.send_async(
            content.payload, lambda *result: results.append(result), **content.arguments()
        )
        sent += 1
    producer.flush()
    # A flush can end before the last callbacks have run.
    wait_until(lambda: len(results) == sent, "a result for every message")
    assert {result for result, _ in results} <= {pulsar.Result.Ok}
    return [message_id for _, message_id in results]


def official_read(client: Any, topic: str, count: int) -> list[Any]:
    """Return the first `count` messages of a plain topic or partition; there must be no more."""
    pulsar = pytest.importorskip("pulsar")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    try:
        messages = [reader.read_next(RECEIVE_MS) for _ in range(count)]
        assert not reader.has_message_available()
    finally:
        reader.close()
    return messages


def official_content(message: Any) -> Content:
    """Return messages as the official client shows them: empty keys are no keys."""
    return Content(
        None if message.has_null_value() else message.data(),
        message.partition_key() or None,
        message.ordering_key() or None,
        tuple(sorted(message.properties().items())),
        message.event_timestamp(),
    )


def place(message_id: Any) -> tuple[int, int, int, int]:
    """Return the parts of an official client's message id."""
    return (
        message_id.ledger_id(),
        message_id.entry_id(),
        message_id.partition(),
        message_id.batch_index(),
    )


def parts(message_id: MessageIdAdv) -> tuple[int, int, int, int]:
    """Return the parts of one of our message ids, in the same order."""
    return (
        message_id.ledger_id,
        message_id.entry_id,
        message_id.partition,
        message_id.batch_index,
    )
