"""Messages and ids as users see them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulsar_spark.client.message import Message, MessageId
from pulsar_spark.client.schema import StringSchema
from pulsar_spark.client.values import MessageValues
from pulsar_spark.errors import InvalidMessageId
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import ReceivedEntry


def message(own: pb.SingleMessageMetadata | None = None, **fields: Any) -> Message:
    """A message, in a batch if it has metadata of its own."""
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=123, partition_key="entry", event_time=9
    )
    metadata.MergeFrom(pb.MessageMetadata(**fields))
    payload = b"x"
    if own is not None:
        metadata.num_messages_in_batch = 1
        payload = len(own.SerializeToString()).to_bytes(4, "big") + own.SerializeToString() + b"x"
    entry = ReceivedEntry(metadata, payload)
    entry.topic, entry.redelivery_count = "t-partition-3", 4
    entry.ledger_id, entry.entry_id, entry.partition = 1, 2, 3
    return Message(entry, -1 if own is None else 0, MessageValues(StringSchema()))


def test_a_single_message_takes_all_from_its_entry() -> None:
    found = message()
    assert (found.data(), found.value()) == (b"x", "x")
    assert (found.partition_key(), found.event_timestamp()) == ("entry", 9)
    assert (found.publish_timestamp(), found.producer_name()) == (123, "p")
    assert (found.topic_name(), found.redelivery_count()) == ("t-partition-3", 4)
    assert found.message_id() == MessageId(3, 1, 2)
    assert found.schema_version() == ""
    assert "t-partition-3" in repr(found)


def test_a_message_of_a_batch_takes_nothing_of_its_own_from_the_entry() -> None:
    own = pb.SingleMessageMetadata(payload_size=1, ordering_key=b"\xff", null_value=True)
    own.properties.add(key="a", value="1")
    own.properties.add(key="a", value="2")
    found = message(own)
    assert (found.partition_key(), found.event_timestamp()) == ("", 0)
    assert found.properties() == {"a": "1"}
    assert found.ordering_key().encode("utf-8", "surrogateescape") == b"\xff"
    assert found.has_null_value()
    assert (found.publish_timestamp(), found.producer_name()) == (123, "p")


def test_a_schema_version_has_a_character_for_each_byte() -> None:
    found = message(schema_version=bytes(7) + b"\x80")
    assert found.schema_version().encode("latin-1") == bytes(7) + b"\x80"


def test_ids_are_ordered_equal_and_keys_of_dicts() -> None:
    ids = [
        MessageId.earliest,
        MessageId(0, 1, 1),
        MessageId(0, 1, 2, 0),
        MessageId(0, 1, 2, 1),
        MessageId(0, 2, 0),
        MessageId.latest,
    ]
    assert sorted([ids[3], ids[5], ids[0], ids[4], ids[2], ids[1]]) == ids
    assert ids[0] < ids[1] <= ids[1] < ids[2]
    assert ids[5] > ids[4] >= ids[4]
    assert len({MessageId(0, 1, 1), MessageId(0, 1, 1)}) == 1
    assert MessageId(0, 1, 1) != "1:1"


def test_ids_survive_bytes() -> None:
    found = MessageId(3, 1, 2, 4)
    assert MessageId.deserialize(found.serialize(), topic="t") == found
    assert (found.ledger_id(), found.entry_id(), found.partition()) == (1, 2, 3)
    assert found.batch_index() == 4
    assert str(found) == repr(found) == "(1,2,3,4)"
    with pytest.raises(InvalidMessageId):
        MessageId.deserialize(b"\xff")
    lost = pb.MessageIdData(ledgerId=1, entryId=2)
    lost.first_chunk_message_id.ledgerId, lost.first_chunk_message_id.entryId = 2**64 - 5, 1
    with pytest.raises(InvalidMessageId, match="-5"):
        MessageId.deserialize(lost.SerializeToString())


@pytest.mark.parametrize(
    "numbers",
    [
        *({"ledger_id": each} for each in ("12", 12.0, None, -2, 2**63, 2**64)),
        *({"entry_id": each} for each in ("3", -2, 2**63)),
        *({"partition": each} for each in ("a", 1.0, 2**31)),
        *({"batch_index": each} for each in ("a", None, 2**31)),
    ],
    ids=str,
)
def test_numbers_that_no_id_can_have_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageId, match=str(next(iter(numbers.values())))):
        MessageId(**numbers)


def test_an_id_is_made_of_any_whole_numbers() -> None:
    found = MessageId(*(np.int64(number) for number in (3, 1, 2, 4)))
    assert MessageId.deserialize(found.serialize()) == found == MessageId(3, 1, 2, 4)
