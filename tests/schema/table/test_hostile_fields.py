"""Metadata that is valid protobuf but makes no sense, up to columns and to `Message`."""

from __future__ import annotations

import random
from contextlib import suppress

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError

from pulsar_spark.client.message import Message
from pulsar_spark.client.schema import BytesSchema
from pulsar_spark.client.values import MessageValues
from pulsar_spark.engine.consumers.entries import EntryDecoder
from pulsar_spark.errors import CorruptMessage, EncryptedMessage, PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import Frame, ReceivedEntry
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from pulsar_spark.schema.table import names
from pulsar_spark.schema.table.metadata_columns import SOURCES
from pulsar_spark.schema.table.record_batches import Projection, RecordBatchBuilder
from tests.protocol import hostile
from tests.schema.table.entries import batches_of

TOPIC = "persistent://public/default/t-partition-3"
SINGLE, WHOLE = pb.SingleMessageMetadata.DESCRIPTOR, pb.MessageMetadata.DESCRIPTOR
TYPES = {names.VALUE: pa.binary(), **{name: kind for name, (_, kind) in SOURCES.items()}}


def entry_bytes(rng: random.Random) -> bytes:
    """Return a stored entry, valid on the whole, with extreme values in any field."""
    parts = []
    count = rng.randint(0, 3)
    for _ in range(count):
        own = hostile.fields(rng, SINGLE, 3)
        payload = rng.choice(hostile.TEXTS)
        own += pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        parts.append(len(own).to_bytes(4, "big") + own + payload)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    data = metadata.SerializeToString() + hostile.fields(rng, WHOLE, 3)
    if count:
        data += pb.MessageMetadata(num_messages_in_batch=count).SerializePartialToString()
    stored = len(data).to_bytes(4, "big") + data + b"".join(parts)
    if rng.random() < 0.5:
        stamp = hostile.fields(rng, pb.BrokerEntryMetadata.DESCRIPTOR)
        stored = b"\x0e\x02" + len(stamp).to_bytes(4, "big") + stamp + stored
    return stored


def received(rng: random.Random, stored: bytes) -> Frame:
    message_id = pb.MessageIdData(ledgerId=5, entryId=7)
    with suppress(DecodeError):
        message_id.MergeFromString(hostile.fields(rng, pb.MessageIdData.DESCRIPTOR, 1))
    command = pb.CommandMessage(consumer_id=1, message_id=message_id)
    if rng.random() < 0.5:
        command.redelivery_count = rng.choice([0, 2**31 - 1, 2**31, 2**32 - 1])
    return frame_of(command, stored)


def frame_of(command: pb.CommandMessage, stored: bytes) -> Frame:
    base = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=command)
    return Frame(base, memoryview(stored))


def look_at(entry: ReceivedEntry) -> None:
    """Call all accessors of a `Message`."""
    message = Message(entry, -1, MessageValues(BytesSchema()))
    for text in (message.producer_name(), message.partition_key(), *message.properties().values()):
        text.encode()
    for name in dir(message):
        if not name.startswith("_") and name != "value":
            repr(getattr(message, name)())
    message.message_id().serialize()


@pytest.mark.fault(30, 31, 94, 95)
@pytest.mark.parametrize(
    "cases", [3_000, pytest.param(40_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_hostile_fields_become_rows_or_an_error_of_our_own(cases: int) -> None:
    rng = random.Random(cases)
    schema = pa.schema(TYPES)
    rows = 0
    for _ in range(cases):
        message = received(rng, entry_bytes(rng))
        try:
            entry = EntryDecoder(TOPIC, EARLIEST_POSITION, None, 2**20).decode(message)
            if entry is None:
                continue
            look_at(entry)
            builder = RecordBatchBuilder(schema, Projection(tuple(TYPES)), TOPIC, 3)
            batches = batches_of(builder, entry)
        except (CorruptMessage, EncryptedMessage):
            continue
        for batch in batches:
            batch.validate(full=True)
            rows += batch.num_rows
    assert rows > cases // 5


@pytest.mark.fault(30)
@pytest.mark.parametrize("field", ["ledgerId", "entryId"])
@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
def test_an_id_that_no_message_has_is_damage_and_no_end(field: str, value: int) -> None:
    message_id = pb.MessageIdData(ledgerId=5, entryId=7)
    setattr(message_id, field, value)
    command = pb.CommandMessage(consumer_id=1, message_id=message_id)
    decoder = EntryDecoder(TOPIC, EARLIEST_POSITION, None, 1000)
    with pytest.raises(PulsarError, match="is not a valid position of a message"):
        decoder.decode(frame_of(command, b""))
    assert not decoder.finished
