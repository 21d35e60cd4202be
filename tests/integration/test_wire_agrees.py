"""Conversations, frame by frame, that go alike with the embedded and the real broker."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.ack_sets import ack_longs
from tests.integration.brokers import Broker
from tests.support.pulsar_distribution import as_embedded
from tests.support.waiting import wait_until
from tests.testing.wire_client import Received, WireClient

ASSIGN = "persistent://pulsar/system/transaction_coordinator_assign"
SUB = pb.CommandSubscribe
SUBSCRIPTION = pb.Subscription(topic="t", subscription="s")
NOBODY = {"txnid_least_bits": 77_777, "txnid_most_bits": 0}
QUIET_SECONDS = 0.5
"""How long nothing comes where nothing should."""


def connected(broker: Broker) -> WireClient:
    port = urlsplit(broker.service_url).port
    assert port is not None
    return WireClient(port)


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    made = connected(broker)
    yield made
    made.close()


@pytest.fixture
def topic(broker: Broker, client: WireClient) -> str:
    name = broker.create_topic()
    # A real broker serves a topic that was looked up.
    client.request("LOOKUP", topic=name)
    return name


def meet_coordinator(client: WireClient) -> None:
    client.request("PARTITIONED_METADATA", topic=ASSIGN)
    client.request("LOOKUP", topic=f"{ASSIGN}-partition-0")
    wait_until(
        lambda: not client.request("TC_CLIENT_CONNECT_REQUEST", tc_id=0).body.HasField("error"),
        "the coordinator",
    )


def batch(count: int) -> bytes:
    """The payload of a batch of messages of one byte."""
    single = pb.SingleMessageMetadata(payload_size=1, partition_key="k").SerializeToString()
    return b"".join(len(single).to_bytes(4, "big") + single + b"x" for _ in range(count))


def quiet(client: WireClient, *names: str) -> bool:
    """Whether no frame of these types comes for a while."""
    try:
        client.expect(*names, timeout=QUIET_SECONDS)
    except AssertionError:
        return True
    return False


def is_cut(client: WireClient) -> bool:
    """Whether the broker ends the connection."""
    try:
        client.expect("nothing")
    except AssertionError as error:
        return "closed the connection" in str(error)
    return False


def acknowledged_in_part(client: WireClient, message: Received, left: int) -> None:
    """Acknowledge a batch of six but for the bits that are left, and have it redelivered."""
    place = pb.MessageIdData()
    place.CopyFrom(message.body.message_id)
    place.batch_size = 6
    place.ack_set.extend(ack_longs(left))
    client.send("ACK", consumer_id=0, ack_type=0, message_id=[place])
    named = [message.body.message_id]
    client.send("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=0, message_ids=named)


@as_embedded
@pytest.mark.parametrize(
    "kind,counts",
    [(SUB.Shared, True), (SUB.Key_Shared, True), (SUB.Exclusive, False), (SUB.Failover, False)],
)
def test_parts_of_a_batch_that_are_acknowledged_come_again_unless_consumers_share(
    client: WireClient, topic: str, kind: int, counts: bool
) -> None:
    client.subscribe(topic, kind=kind)
    client.produce(topic)
    client.publish(batch(6), batch=6, partition_key="k")
    message = client.expect("MESSAGE")
    acknowledged_in_part(client, message, 0b101010)
    again = client.expect("MESSAGE")
    assert list(again.body.ack_set) == ([0b101010] if counts else [])
    if counts:
        assert client.request("CONSUMER_STATS", consumer_id=0).body.unackedMessages == 3
    acknowledged_in_part(client, message, 0b000010)
    again = client.expect("MESSAGE")
    assert list(again.body.ack_set) == ([0b10] if counts else [])
    # The next consumer gets what the last one has left.
    client.request("CLOSE_CONSUMER", consumer_id=0)
    client.subscribe(topic, kind=kind, consumer_id=1)
    again = client.expect("MESSAGE")
    assert list(again.body.ack_set) == ([0b10] if counts else [])


@pytest.mark.parametrize("commits", [True, False])
def test_an_abort_drops_what_has_the_transaction_in_its_metadata(
    client: WireClient, topic: str, commits: bool
) -> None:
    meet_coordinator(client)
    begun = client.request("NEW_TXN", txn_ttl_millis=60_000, tc_id=0).body
    txn = {"txnid_least_bits": begun.txnid_least_bits, "txnid_most_bits": begun.txnid_most_bits}
    client.subscribe(topic)
    client.produce(topic, txn_enabled=True)
    client.request("ADD_PARTITION_TO_TXN", partitions=[topic], **txn)
    client.publish(b"in SEND", send_fields=txn)
    client.publish(b"in both", send_fields=txn, **txn)
    client.publish(b"in metadata", **txn)
    client.publish(b"plain")
    assert quiet(client, "MESSAGE")
    client.request("END_TXN", txn_action=pb.COMMIT if commits else pb.ABORT, **txn)
    expected = [b"in SEND", b"in both", b"in metadata", b"plain"]
    if not commits:
        expected = [b"in SEND", b"plain"]
    assert [client.expect("MESSAGE").payload for _ in expected] == expected
    assert quiet(client, "MESSAGE")


def test_a_fenced_producer_is_told_nothing_and_its_next_message_ends_the_connection(
    broker: Broker, client: WireClient, topic: str
) -> None:
    client.produce(topic, producer_access_mode=pb.Exclusive)
    other = connected(broker)
    try:
        fencing = other.produce(topic, producer_access_mode=pb.ExclusiveWithFencing)
        assert fencing.name == "PRODUCER_SUCCESS"
        assert quiet(client, "CLOSE_PRODUCER", "ERROR", "SEND_ERROR")
        client.send_entry()
        assert is_cut(client)
        assert other.publish().name == "SEND_RECEIPT"
    finally:
        other.close()


def test_a_producer_that_waits_for_access_is_told_that_it_was_fenced(
    client: WireClient, topic: str
) -> None:
    client.produce(topic)
    waiting = client.ask(
        "PRODUCER", topic=topic, producer_id=1, producer_access_mode=pb.WaitForExclusive
    )
    assert not client.answer(waiting).body.producer_ready
    client.produce(topic, 2, producer_access_mode=pb.ExclusiveWithFencing)
    assert client.answer(waiting).body.error == pb.ProducerFenced


@pytest.mark.parametrize("name", ["", " "])
def test_a_subscription_without_a_name_is_refused(
    client: WireClient, topic: str, name: str
) -> None:
    refused = client.subscribe(topic, name)
    assert (refused.body.error, refused.body.message) == (
        pb.ProducerBusy,
        "Empty subscription name",
    )


def test_a_listener_that_the_brokers_do_not_have_is_refused(client: WireClient, topic: str) -> None:
    def asked() -> bool:
        # Only then does a broker own the topic, until its bundle is split or unloaded.
        client.request("LOOKUP", topic=topic)
        refused = client.request("LOOKUP", topic=topic, advertised_listener_name="nope").body
        return (refused.response, refused.error) == (failed, pb.ServiceNotReady)

    failed = pb.CommandLookupTopicResponse.Failed
    wait_until(asked, "the listener is not refused")
    found = client.request("LOOKUP", topic=topic, advertised_listener_name="").body
    assert found.response == pb.CommandLookupTopicResponse.Connect


@pytest.mark.parametrize(
    "kind,fields",
    [
        ("END_TXN", {"txn_action": pb.COMMIT}),
        ("ADD_PARTITION_TO_TXN", {"partitions": ["t"]}),
        (
            "ADD_SUBSCRIPTION_TO_TXN",
            {"subscription": [pb.Subscription(topic="t", subscription="s")]},
        ),
    ],
)
def test_errors_of_a_coordinator_name_the_transaction(
    client: WireClient, kind: str, fields: dict[str, object]
) -> None:
    meet_coordinator(client)
    for coordinator, code in ((0, pb.TransactionNotFound), (9, pb.TransactionCoordinatorNotFound)):
        wanted = {**NOBODY, "txnid_most_bits": coordinator}
        refused = client.request(kind, **fields, **wanted).body
        assert refused.error == code
        assert {name: getattr(refused, name) for name in wanted} == wanted


def test_a_coordinator_that_is_not_there_begins_no_transaction(client: WireClient) -> None:
    meet_coordinator(client)
    refused = client.request("NEW_TXN", txn_ttl_millis=1000, tc_id=9).body
    assert refused.error == pb.TransactionCoordinatorNotFound
    assert (refused.txnid_most_bits, refused.HasField("txnid_least_bits")) == (9, False)


def test_a_client_of_a_coordinator_that_is_not_there_is_accepted_by_who_would_have_it(
    client: WireClient,
) -> None:
    client.request("LOOKUP", topic=f"{ASSIGN}-partition-9")
    wait_until(
        lambda: not client.request("TC_CLIENT_CONNECT_REQUEST", tc_id=9).body.HasField("error"),
        "the owner",
    )


def test_a_question_about_the_statistics_of_an_unknown_consumer_ends_the_connection(
    client: WireClient,
) -> None:
    client.send("CONSUMER_STATS", request_id=1, consumer_id=42)
    assert is_cut(client)


@pytest.mark.parametrize(
    "kind,fields",
    [("GET_LAST_MESSAGE_ID", {}), ("UNSUBSCRIBE", {}), ("SEEK", {"message_publish_time": 1})],
)
def test_other_questions_about_an_unknown_consumer_are_refused(
    client: WireClient, kind: str, fields: dict[str, int]
) -> None:
    refused = client.request(kind, consumer_id=42, **fields)
    assert (refused.name, refused.body.error) == ("ERROR", pb.MetadataError)
