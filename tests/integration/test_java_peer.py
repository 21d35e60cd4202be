"""The Java client and ours understand each other."""

from __future__ import annotations

import base64
import random
from collections import defaultdict
from collections.abc import Iterator

import pytest

from pulsar_spark.engine.consumers.reader import EntryReader
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.options import ProducerOptions, ReaderOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.protocol.batches import message_key
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from tests.integration.brokers import Broker
from tests.integration.java_peer import JavaContent, JavaPeer
from tests.integration.messages import (
    CODECS,
    TEXTS,
    Row,
    clustered,
    connected,
    parts,
    random_payload,
    read_rows,
    rows_of,
)
from tests.outgoing import outgoing

pytestmark = pytest.mark.real_broker


@pytest.fixture(scope="module")
def java(request: pytest.FixtureRequest) -> Iterator[JavaPeer]:
    peer = JavaPeer(request.getfixturevalue("_distribution"))
    yield peer
    peer.close()


def contents(seed: int, count: int) -> list[JavaContent]:
    """Return messages of all kinds."""
    rng = random.Random(seed)

    def content() -> JavaContent:
        if rng.random() < 0.3:
            return JavaContent(random_payload(rng))
        key = rng.choice((rng.choice(TEXTS), rng.randbytes(rng.randrange(20)), None))
        names = rng.sample(TEXTS, rng.choice((0, 0, 1, 3)))
        return JavaContent(
            None if rng.random() < 0.05 else random_payload(rng),
            key,
            rng.choice((None, b"", b"\xff\x00", b"text")),
            tuple(sorted((name, rng.choice(TEXTS)) for name in names)),
            rng.choice((0, 1, 1_600_000_000_123, 2**62)),
        )

    return [content() for _ in range(count)]


def java_content(row: Row) -> JavaContent:
    """Return a message that we read in Java's form."""
    fields = row.fields
    key: str | bytes | None = row.content.key
    if row.key_is_base64:
        key = message_key(fields)
    return JavaContent(
        row.content.payload,
        key,
        fields.ordering_key if fields.HasField("ordering_key") else None,
        row.content.properties,
        row.content.event_time,
    )


def write(broker: Broker, topic: str, sent: list[JavaContent], **options: object) -> None:
    columns = outgoing(
        [content.value for content in sent],
        [content.key for content in sent],
        ordering_keys=[content.ordering_key for content in sent],
        event_times=[content.event_time for content in sent],
        properties=[content.properties for content in sent],
    )
    settings = ProducerOptions(**options)  # type: ignore[arg-type]
    with clustered(broker) as context, PartitionedProducer(context, topic, settings) as writer:
        writer.write(columns)


@pytest.mark.fault(95)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("batching, count", [(True, 2000), (False, 300)])
def test_what_java_wrote_we_read(
    broker: Broker, java: JavaPeer, codec: str, batching: bool, count: int
) -> None:
    topic = broker.create_topic()
    sent = contents(count, count)
    ids = java.write(broker, topic, sent, batching=batching, codec=codec)
    rows = read_rows(broker, topic)
    assert [java_content(row) for row in rows] == sent
    assert [row.sequence_id for row in rows] == list(range(count))
    assert [parts(row.message_id) for row in rows] == [parts(found) for found in ids]
    theirs = java.read(broker, topic, count)
    assert [row.entry.publish_time for row in rows] == [found.publish_time for found in theirs]
    assert [row.entry.producer_name for row in rows] == [found.producer for found in theirs]


@pytest.mark.fault(95)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("batching, count", [(True, 2000), (False, 300)])
def test_what_we_wrote_java_reads(
    broker: Broker, java: JavaPeer, codec: str, batching: bool, count: int
) -> None:
    topic = broker.create_topic()
    sent = contents(count + 1, count)
    write(broker, topic, sent, batching_enabled=batching, compression=CODECS[codec])
    theirs = java.read(broker, topic, count)
    assert [found.content for found in theirs] == sent
    assert [found.sequence_id for found in theirs] == list(range(count))
    rows = read_rows(broker, topic)
    assert [parts(found.message_id) for found in theirs] == [parts(row.message_id) for row in rows]


@pytest.mark.parametrize("codec", ["NONE", "ZLIB", "SNAPPY"])
def test_chunks_in_both_directions(broker: Broker, java: JavaPeer, codec: str) -> None:
    rng = random.Random(3)
    sent = [JavaContent(rng.randbytes(size), "k") for size in (10, 6_000_000, 11, 11_000_000)]
    theirs, ours = broker.create_topic(), broker.create_topic()
    ids = java.write(broker, theirs, sent, batching=False, chunking=True, codec=codec)
    rows = read_rows(broker, theirs)
    assert [java_content(row) for row in rows] == sent
    assert [parts(row.message_id) for row in rows] == [parts(found) for found in ids]
    assert [row.received.first_chunk for row in rows] == [found.first_chunk for found in ids]
    write(
        broker,
        ours,
        sent,
        batching_enabled=False,
        chunking_enabled=True,
        compression=CODECS[codec],
    )
    read = java.read(broker, ours, len(sent))
    assert [found.content for found in read] == sent
    starts = [row.received.first_chunk for row in read_rows(broker, ours)]
    assert [found.message_id.first_chunk for found in read] == starts


@pytest.mark.parametrize("hashing", ["JavaStringHash", "Murmur3_32Hash"])
def test_a_key_goes_where_java_sends_it(broker: Broker, java: JavaPeer, hashing: str) -> None:
    rng = random.Random(4)
    keys: list[str | bytes] = [*TEXTS, *(f"user-{number}" for number in range(100))]
    keys += [rng.randbytes(rng.randrange(12)) for _ in range(100)]
    keys += ["".join(map(chr, rng.choices(range(1, 0xD000), k=5))) for _ in range(100)]
    keys += ["".join(map(chr, rng.choices(range(0x10000, 0x10FFFF), k=3))) for _ in range(100)]
    sent = [JavaContent(b"%d" % number, key) for number, key in enumerate(keys)]
    places: list[dict[bytes | None, int]] = []
    for by in (java.write, write):
        topic = broker.create_topic(partitions=7)
        if by is write:
            write(broker, topic, sent, hashing_scheme=hashing)
        else:
            java.write(broker, topic, sent, hashing=hashing)
        found = {
            row.content.payload: number
            for number, name in enumerate(broker.partitions_of(topic, 7))
            for row in read_rows(broker, name)
        }
        places.append(found)
    assert places[0] == places[1]
    assert len(set(places[0].values())) == 7
    assert len(places[0]) == len(keys)


def test_messages_without_a_key_keep_their_order_by_partition(
    broker: Broker, java: JavaPeer
) -> None:
    topic = broker.create_topic(partitions=3)
    sent = [JavaContent(b"%d" % number) for number in range(3000)]
    write(broker, topic, sent, batching_max_messages=50)
    by_partition = defaultdict(list)
    for found in java.read(broker, topic, 3000):
        by_partition[found.topic].append(int(found.content.value or b""))
    assert set(by_partition) == set(broker.partitions_of(topic, 3))
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())


@pytest.mark.fault(61)
def test_transactions_show_what_was_committed_and_nothing_else(
    broker: Broker, java: JavaPeer
) -> None:
    topic = broker.create_topic()
    expected: list[bytes | None] = []
    number = 0
    for fate in ("plain", "commit", "abort", "commit", "plain", "abort"):
        sent = [JavaContent(b"%d" % (number + index)) for index in range(10)]
        number += 10
        java.write(broker, topic, sent, transaction=None if fate == "plain" else fate)
        if fate != "abort":
            expected += [content.value for content in sent]
    # The topic ends with aborted messages and markers: no range waits for them.
    for end in (None, Position(2**62, 0)):
        rows = read_rows(broker, topic, end=end)
        assert [row.content.payload for row in rows] == expected
    with connected(broker) as pool:
        last = Lookup(pool).last_message_id(topic)
    assert Position.after(rows[-1].message_id) <= Position.after(last)
    middle = Position.before(rows[15].message_id)
    found = read_rows(broker, topic, end=middle) + read_rows(broker, topic, start=middle)
    assert [row.content.payload for row in found] == expected


@pytest.mark.fault(84)
def test_an_open_transaction_holds_back_what_follows(broker: Broker, java: JavaPeer) -> None:
    topic = broker.create_topic()
    java.write(broker, topic, [JavaContent(b"before")])
    java.write(broker, topic, [JavaContent(b"open")], transaction="leave")
    java.write(broker, topic, [JavaContent(b"behind")])
    assert [row.content.payload for row in read_rows(broker, topic)] == [b"before"]
    with (
        connected(broker) as pool,
        EntryReader(
            pool, topic, EARLIEST_POSITION, options=ReaderOptions(poll_timeout=60.0)
        ) as reader,
    ):
        first = reader.next_entry(60.0)
        assert first is not None
        assert [row.content.payload for row in rows_of(first)] == [b"before"]
        assert reader.next_entry(1.0) is None


def test_keys_of_bytes_are_the_same_to_both(broker: Broker, java: JavaPeer) -> None:
    topic = broker.create_topic()
    keys = [b"", b"\0", b"\xff", b"text", bytes(range(256))]
    sent = [JavaContent(b"x", key) for key in keys]
    java.write(broker, topic, sent)
    write(broker, topic, sent)
    rows = read_rows(broker, topic)
    assert [message_key(row.fields) for row in rows] == keys * 2
    assert [row.content.key for row in rows] == [base64.b64encode(k).decode() for k in keys] * 2
    assert [found.content.key for found in java.read(broker, topic, 10)] == keys * 2
