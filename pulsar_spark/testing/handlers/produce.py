"""Commands of producers."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from pulsar_spark.errors import ChecksumMismatch, RemoteProtocolError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.protocol.frame_parts import parse_payload
from pulsar_spark.protocol.states import State
from pulsar_spark.testing import quotas
from pulsar_spark.testing.entry_log import NOWHERE
from pulsar_spark.testing.handlers.transact import check_enabled, transaction_of
from pulsar_spark.testing.producers import Producer
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.topic import Topic, message_id
from pulsar_spark.testing.topic_store import parse_topic

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session

_NONE = 2**64 - 1
_PACKAGE = "org.apache.pulsar.broker.service.BrokerServiceException"


def producer(session: Session, body: pb.CommandProducer) -> Coroutine[Any, Any, None] | None:
    """Register a producer, under its own name or a new one."""
    server = session.server
    name = parse_topic(body.topic)
    session.check_owns(str(name))
    topic = server.topics.open(name, create=True)
    if topic.terminated:
        text = f"{_PACKAGE}$TopicTerminatedException: Topic was already terminated"
        raise Refusal(pb.TopicTerminatedError, text)
    quotas.check_producer(topic)
    topic.policies.check_producer(topic, body)
    if body.initial_subscription_name:
        topic.add_subscription(body.initial_subscription_name)
    created = Producer(session, topic, body, body.producer_name or server.new_producer_name())
    if body.HasField("schema"):
        created.schema_version = topic.policies.add_schema(topic.schemas, body.schema)
    holder = topic.producers.holder(created.name)
    if holder is not None and not created.succeeds(holder):
        return _contest(created, holder)
    if holder is not None:
        _displace(holder)
    _admit(created)
    return None


async def _contest(created: Producer, holder: Producer) -> None:
    """Take a name over from a producer whose connection is dead, otherwise raise Refusal."""
    session, topic = created.session, created.topic
    if await holder.session.is_alive():
        raise Refusal(
            pb.ProducerBusy,
            f"{_PACKAGE}$NamingException: Producer with name '{created.name}' is already "
            f"connected to topic '{topic.name}'",
        )
    _displace(holder)
    # The client may have given up meanwhile.
    waits = session.core.conversation.producer(created.producer_id) is State.OPENING
    if session.open and waits and topic.producers.holder(created.name) is None:
        _admit(created)


def _displace(holder: Producer) -> None:
    holder.topic.producers.remove(holder, promote=False)
    if holder.session.producers.get(holder.producer_id) is holder:
        del holder.session.producers[holder.producer_id]


def _admit(created: Producer) -> None:
    session, topic = created.session, created.topic
    former = session.producers.pop(created.producer_id, None)
    if former is not None:
        former.topic.producers.remove(former)
    topic.producers.add(created)
    session.producers[created.producer_id] = created
    session.announce_producer(created)


def send(session: Session, body: pb.CommandSend, payload: memoryview) -> None:
    """Store an entry as it is, and send its receipt."""
    owner = session.producers.get(body.producer_id)
    if owner is None or not owner.ready:
        return
    topic = owner.topic
    if owner.fenced:
        session.server.note(f"connection {session.number}: SEND of a producer that was fenced")
        session.disconnect()
        return
    try:
        metadata = parse_payload(payload).metadata
    except ChecksumMismatch:
        raise Refusal(pb.ChecksumError, "Checksum failed on the broker") from None
    except RemoteProtocolError:
        # A real broker does not check it: consumers must cope.
        metadata = pb.MessageMetadata(num_messages_in_batch=body.num_messages)
    _check_storable(session, topic, body, len(payload))
    place = NOWHERE
    if not topic.deduplicates or _is_new(topic, owner.name, body, metadata):
        txn = transaction_of(body) if body.HasField("txnid_most_bits") else None
        place = topic.append(_kept(payload), metadata, txn)
    highest = body.highest_sequence_id if body.HasField("highest_sequence_id") else _NONE
    receipt = commands.build(
        pb.CommandSendReceipt,
        producer_id=body.producer_id,
        sequence_id=body.sequence_id,
        message_id=message_id(place),
        highest_sequence_id=highest,
    )
    session.send(receipt, topic.name)


def _check_storable(session: Session, topic: Topic, body: pb.CommandSend, size: int) -> None:
    options = session.server.options
    if body.HasField("txnid_most_bits"):
        check_enabled(session)
    usage = session.server.topics.usage
    if topic.persistent and usage.stored_bytes + size > options.memory_limit:
        raise Refusal(
            pb.PersistenceError,
            f"The embedded broker is full: it keeps at most {options.memory_limit} bytes",
        )


def _is_new(topic: Topic, name: str, body: pb.CommandSend, metadata: pb.MessageMetadata) -> bool:
    """Whether a sequence id is higher than all that this producer has stored."""
    if metadata.chunk_id + 1 < metadata.num_chunks_from_msg:
        # All chunks of a message share its sequence id: only the last one is checked.
        return True
    if body.sequence_id <= topic.sequence_ids.get(name, -1):
        return False
    highest = body.highest_sequence_id if body.HasField("highest_sequence_id") else 0
    topic.sequence_ids[name] = max(body.sequence_id, highest)
    return True


def _kept(payload: memoryview) -> Buffer:
    """Copy the entry: a small view would keep a large buffer alive."""
    whole = payload.obj
    if isinstance(whole, bytearray) and len(payload) * 2 > len(whole):
        return payload
    return bytes(payload)


def close_producer(session: Session, body: pb.CommandCloseProducer) -> None:
    """Close a producer."""
    owner = session.producers.pop(body.producer_id, None)
    session.answer(body, pb.CommandSuccess, owner.topic.name if owner else None)
    if owner is not None:
        owner.topic.producers.remove(owner)
