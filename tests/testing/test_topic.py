"""A topic stores messages and delivers them to its subscriptions."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pulsar_spark.errors import TopicNotFound
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.topic import message_id, place_of
from tests.testing.wire_client import LATEST, WireClient, id_of

Start = Callable[..., EmbeddedBroker]
Dial = Callable[..., WireClient]

NON_PERSISTENT = "non-persistent://public/default/t"


def test_minus_one_is_the_largest_number_on_the_wire() -> None:
    assert place_of(message_id((-1, -1))) == (-1, -1)
    assert message_id((-1, 3)).ledgerId == 2**64 - 1


def test_entries_are_kept_as_they_came(client: WireClient) -> None:
    client.produce("t")
    client.publish(b"plain", partition_key="k")
    client.publish(b"batch", batch=5)
    client.publish(b"no checksum", checksum=False)
    client.subscribe("t")
    plain, batch, bare = client.messages(3)
    assert plain.entry.metadata.partition_key == "k"
    assert plain.entry.checksum is not None
    assert batch.entry.metadata.num_messages_in_batch == 5
    assert bare.entry.checksum is None
    assert [plain.payload, batch.payload, bare.payload] == [b"plain", b"batch", b"no checksum"]


@pytest.mark.parametrize("exposed", [True, False])
def test_entry_metadata_is_exposed_on_demand(
    start_broker: Start, dial: Dial, exposed: bool
) -> None:
    client = dial(start_broker(expose_entry_metadata=exposed))
    client.produce("t")
    for batch in (None, 3, 2):
        client.publish(batch=batch)
    client.subscribe("t")
    entries = [message.entry for message in client.messages(3)]
    metadata = [entry.broker_entry_metadata for entry in entries]
    if exposed:
        assert [each.index for each in metadata if each is not None] == [0, 3, 5]
        assert all(each and each.broker_timestamp > 1_700_000_000_000 for each in metadata)
    else:
        assert metadata == [None, None, None]


def test_entry_metadata_is_not_sent_to_clients_that_do_not_know_it(
    start_broker: Start, dial: Dial
) -> None:
    broker = start_broker(expose_entry_metadata=True)
    for options in ({"version": 17}, {"feature_flags": pb.FeatureFlags()}):
        client = dial(broker, **options)
        client.produce("t", 1)
        client.publish(producer_id=1)
        client.read("t", LATEST, kind=pb.CommandSubscribe.Exclusive)
        client.publish(producer_id=1)
        entry = client.messages(1)[0].entry
        assert entry.broker_entry_metadata is None
        client.close()


@pytest.mark.fault(62)
@pytest.mark.parametrize(
    "start,initial,expected",
    [
        ((0, 2), "latest", [2, 3, 4]),
        ((0, 4), "latest", [4]),
        ((0, 5), "latest", []),
        ((0, 100), "latest", []),
        ((0, 100), "earliest", [0, 1, 2, 3, 4]),
        ((-1, 0), "latest", [0, 1, 2, 3, 4]),
        ((7, 0), "latest", []),
    ],
)
def test_a_reader_starts_at_the_entry_it_names(
    client: WireClient, start: tuple[int, int], initial: str, expected: list[int]
) -> None:
    client.produce("t")
    places = [client.publish().place for _ in range(5)]
    ledger = places[0][0]
    client.read("t", id_of((ledger + start[0], start[1])), earliest=initial == "earliest")
    assert [message.place[1] for message in client.messages(len(expected))] == expected
    client.nothing_came()
    client.publish(b"new")
    assert client.payloads(1) == [b"new"]


def test_a_start_behind_the_end_of_a_ledger_is_that_of_the_next(
    start_broker: Start, dial: Dial
) -> None:
    client = dial(start_broker(max_entries_per_ledger=2))
    client.produce("t")
    places = [client.publish().place for _ in range(4)]
    for entry_id in (2, 1000):
        consumer_id = entry_id
        client.read("t", id_of((places[0][0], entry_id)), consumer_id=consumer_id, permits=1)
        assert client.messages(1, consumer_id)[0].place == places[2]
        client.request("CLOSE_CONSUMER", consumer_id=consumer_id)


def test_a_reader_can_start_some_seconds_back(client: WireClient) -> None:
    client.produce("t")
    now = int(time.time() * 1000)
    for age in (100_000, 50_000, 1_000):
        client.publish(f"{age}".encode(), publish_time=now - age)
    client.read("t", start_message_rollback_duration_sec=60)
    assert client.payloads(2) == [b"50000", b"1000"]


def test_initial_position_counts_once(client: WireClient) -> None:
    client.produce("t")
    client.publish(b"old")
    client.subscribe("t", earliest=False)
    client.publish(b"new")
    assert client.payloads(1) == [b"new"]
    client.request("CLOSE_CONSUMER", consumer_id=0)
    client.subscribe("t", earliest=True)
    assert client.payloads(1) == [b"new"]


def test_non_durable_subscriptions_end_with_their_consumer(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    client.read("t")
    assert [each.durable for each in broker.subscriptions("t").values()] == [False]
    client.request("CLOSE_CONSUMER", consumer_id=0)
    assert broker.subscriptions("t") == {}


def test_non_persistent_topics_deliver_to_who_is_there(client: WireClient) -> None:
    client.produce(NON_PERSISTENT)
    assert client.publish(b"lost").place == (0, 0)
    client.subscribe(NON_PERSISTENT, permits=1)
    client.publish(b"kept")
    client.publish(b"no permit left")
    assert client.payloads(1) == [b"kept"]
    client.nothing_came()


def test_termination_ends_writing_and_tells_readers(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    client.produce("t")
    client.publish(b"last")
    client.subscribe("t")
    message = client.messages(1)[0]
    broker.terminate_topic("t")
    client.expect("CLOSE_PRODUCER")
    client.nothing_came()
    refused = client.produce("t")
    assert refused.body.error == pb.TopicTerminatedError
    client.ack(message)
    assert client.expect("REACHED_END_OF_TOPIC").body.consumer_id == 0
    client.subscribe("t", "late", consumer_id=1, earliest=False)
    assert client.expect("REACHED_END_OF_TOPIC").body.consumer_id == 1
    client.nothing_came()


@pytest.mark.fault(63)
def test_trimming_moves_the_first_message(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    places = [client.publish(f"{n}".encode()).place for n in range(4)]
    client.subscribe("t", "behind", permits=0)
    broker.trim("t", before=MessageIdAdv(*places[2]))
    assert broker.subscriptions("t")["behind"].backlog == 2
    client.read("t", id_of(places[0]), consumer_id=1)
    assert client.payloads(2, 1) == [b"2", b"3"]
    broker.trim("t")
    last = client.request("GET_LAST_MESSAGE_ID", consumer_id=1)
    assert place_of(last.body.last_message_id) == (-1, -1)


def test_gaps_in_entry_ids_are_jumped_over(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    first = client.publish(b"a").place
    broker.skip_entries("t", 3)
    assert client.publish(b"b").place == (first[0], first[1] + 4)
    client.read("t", id_of((first[0], first[1] + 2)))
    assert client.payloads(1) == [b"b"]


def test_deleted_topics_send_their_clients_away(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    client.subscribe("t")
    broker.delete_topic("t")
    client.expect("CLOSE_PRODUCER")
    client.expect("CLOSE_CONSUMER")
    with pytest.raises(TopicNotFound):
        broker.stats("t")
    refused = client.request(
        "PARTITIONED_METADATA", topic="t", metadata_auto_creation_enabled=False
    )
    assert refused.body.error == pb.TopicNotFound


def test_inactive_topics_can_be_collected(broker: EmbeddedBroker, client: WireClient) -> None:
    for name in ("idle", "held", "written"):
        broker.create_topic(name)
    client.subscribe("held")
    client.produce("written")
    assert broker.collect_inactive() == ["persistent://public/default/idle"]
    assert len(broker.topics()) == 2
