"""Messages of producers are checked, stored once, and receipted in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import encode_payload_command
from pulsar_spark.testing import EmbeddedBroker
from tests.testing.wire_client import WireClient

Start = Callable[..., EmbeddedBroker]
Dial = Callable[..., WireClient]
NONE = 2**64 - 1


def test_receipts_come_in_order_with_ids(client: WireClient) -> None:
    client.produce("t")
    for _ in range(20):
        client.send_entry()
    receipts = [client.expect("SEND_RECEIPT") for _ in range(20)]
    assert [receipt.body.sequence_id for receipt in receipts] == list(range(20))
    assert [receipt.place[1] for receipt in receipts] == list(range(20))
    assert {receipt.body.highest_sequence_id for receipt in receipts} == {NONE}


def test_receipts_repeat_the_highest_sequence_id(client: WireClient) -> None:
    client.produce("t")
    receipt = client.publish(batch=5, sequence_id=10, send_fields={"highest_sequence_id": 14})
    assert (receipt.body.sequence_id, receipt.body.highest_sequence_id) == (10, 14)


@pytest.mark.fault(33)
def test_a_wrong_checksum_is_refused_and_the_producer_goes_on(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    client.produce("t")
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    frame = encode_payload_command(commands.send(0, 0, 1), metadata.SerializeToString(), b"abc")
    damaged = bytearray(b"".join(frame))
    damaged[-1] ^= 1
    client.send_bytes(bytes(damaged))
    refused = client.expect("SEND_ERROR").body
    assert (refused.error, refused.sequence_id) == (pb.ChecksumError, 0)
    assert client.publish().name == "SEND_RECEIPT"
    assert broker.stats("t").entries == 1


def test_metadata_is_not_looked_into(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t")
    frame = encode_payload_command(commands.send(0, 0, 4), b"\xff\xff\xff", b"abc")
    client.send_bytes(b"".join(frame))
    assert client.expect("SEND_RECEIPT")
    assert broker.stats("t").messages_in == 4


def test_a_full_broker_refuses_messages(start_broker: Start, dial: Dial) -> None:
    broker = start_broker(memory_limit=1000)
    client = dial(broker)
    client.produce("t")
    answers = [client.publish(bytes(400)).name for _ in range(4)]
    assert answers == ["SEND_RECEIPT", "SEND_RECEIPT", "SEND_ERROR", "SEND_ERROR"]
    assert broker.stored_bytes <= 1000
    broker.trim("t")
    assert client.publish(bytes(400)).name == "SEND_RECEIPT"
    client.produce("non-persistent://public/default/t", 1)
    assert client.publish(bytes(900), producer_id=1).name == "SEND_RECEIPT"


def test_what_an_unknown_or_waiting_producer_sends_is_lost(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    client.send_entry(producer_id=9)
    client.produce("t", 0, producer_access_mode=pb.Exclusive)
    client.produce("t", 1, producer_access_mode=pb.WaitForExclusive)
    client.send_entry(producer_id=1)
    client.nothing_came()
    assert broker.stats("t").entries == 0


def test_deduplication_keeps_each_sequence_id_once(start_broker: Start, dial: Dial) -> None:
    broker = start_broker(deduplication=True)
    client = dial(broker)
    assert client.produce("t", producer_name="p").body.last_sequence_id == -1
    client.publish(sequence_id=0)
    client.publish(sequence_id=1, batch=3, send_fields={"highest_sequence_id": 3})
    duplicate = client.publish(sequence_id=2)
    assert duplicate.place == (NONE, NONE)
    client.publish(sequence_id=4)
    assert broker.stats("t").entries == 3
    client.request("CLOSE_PRODUCER", producer_id=0)
    assert client.produce("t", producer_name="p").body.last_sequence_id == 4
    assert client.produce("t", 1, producer_name="q").body.last_sequence_id == -1


def test_deduplication_lets_all_chunks_of_a_message_pass(start_broker: Start, dial: Dial) -> None:
    broker = start_broker(deduplication=True)
    client = dial(broker)
    client.produce("t", producer_name="p")
    stored = []
    for number in (0, 1, 2, 2):
        receipt = client.publish(sequence_id=7, uuid="u", chunk_id=number, num_chunks_from_msg=3)
        stored.append(receipt.place != (NONE, NONE))
    assert stored == [True, True, True, False]
    assert client.publish(sequence_id=7).place == (NONE, NONE)


def test_without_deduplication_everything_is_kept(
    broker: EmbeddedBroker, client: WireClient
) -> None:
    client.produce("t", producer_name="p")
    for _ in range(2):
        client.publish(sequence_id=5)
    assert broker.stats("t").entries == 2
    client.request("CLOSE_PRODUCER", producer_id=0)
    assert client.produce("t", producer_name="p").body.last_sequence_id == -1


def test_an_id_can_be_used_for_another_producer(broker: EmbeddedBroker, client: WireClient) -> None:
    client.produce("t", 0)
    client.produce("other", 0)
    client.publish()
    assert broker.stats("t").producers == ()
    assert broker.stats("other").entries == 1


def test_closing_an_unknown_producer_succeeds(client: WireClient) -> None:
    assert client.request("CLOSE_PRODUCER", producer_id=77).name == "SUCCESS"


def test_topics_are_created_on_first_use_only_if_allowed(start_broker: Start, dial: Dial) -> None:
    broker = start_broker(auto_create=False)
    assert dial(broker).produce("t").body.error == pb.TopicNotFound
    assert broker.topics() == []
