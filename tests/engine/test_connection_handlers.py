from __future__ import annotations

from array import array
from typing import Any

import pytest
from google.protobuf.message import Message

from pulsar_spark.engine.connections.handlers import HandlerTable
from pulsar_spark.errors import ConnectionLost, PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import MessageBlock, ReceiptBlock

T = pb.BaseCommand


class Recorder:
    """A consumer and a producer that record their events."""

    waits_for_receipts = False
    can_wait = 0

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_messages(self, block: MessageBlock) -> int:
        self.calls.append(("messages", block))
        return self.can_wait

    def on_receipts(self, receipts: array[int]) -> None:
        self.calls.append(("receipts", list(receipts)))

    def on_send_error(self, error: pb.CommandSendError) -> None:
        self.calls.append(("send_error", error))

    def on_close(self, command: Any) -> None:
        self.calls.append(("close", command))

    def on_command(self, body: Message) -> None:
        self.calls.append(("command", body))

    def on_disconnect(self, error: PulsarError) -> None:
        self.calls.append(("disconnect", error))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def block(consumer_id: int) -> MessageBlock:
    return MessageBlock(consumer_id, b"", 0, 0, 0)


def test_each_handler_gets_what_is_meant_for_it() -> None:
    table = HandlerTable()
    consumer, other, producer = Recorder(), Recorder(), Recorder()
    consumer_id, other_id = table.add_consumer(consumer), table.add_consumer(other)
    producer_id = table.add_producer(producer)
    assert len({consumer_id, other_id, producer_id}) == 3
    table.on_messages(block(consumer_id))
    table.on_command(T.ACTIVE_CONSUMER_CHANGE, pb.CommandActiveConsumerChange(consumer_id=other_id))
    table.on_receipts(ReceiptBlock(producer_id, array("q", [1, 1, 7, 8])))
    stored = pb.MessageIdData(ledgerId=2**64 - 1, entryId=9)
    receipt = pb.CommandSendReceipt(producer_id=producer_id, sequence_id=2, message_id=stored)
    table.on_command(T.SEND_RECEIPT, receipt)
    error = pb.CommandSendError(
        producer_id=producer_id, sequence_id=1, error=pb.NotAllowedError, message=""
    )
    table.on_command(T.SEND_ERROR, error)
    assert consumer.names == ["messages"]
    assert other.names == ["command"]
    assert producer.calls == [
        ("receipts", [1, 1, 7, 8]),
        ("receipts", [2, 0, -1, 9]),
        ("send_error", error),
    ]


def test_who_is_closed_hears_nothing_more_but_receipts() -> None:
    table = HandlerTable()
    consumer, producer = Recorder(), Recorder()
    consumer_id, producer_id = table.add_consumer(consumer), table.add_producer(producer)
    table.on_command(
        T.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=0)
    )
    table.on_command(
        T.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=producer_id, request_id=0)
    )
    table.on_messages(block(consumer_id))
    table.on_receipts(ReceiptBlock(producer_id, array("q", [1, 1, 7, 8])))
    assert consumer.names == ["close"]
    assert producer.names == ["close", "receipts"]
    assert table.end(ConnectionLost("gone")) == []


def test_late_receipts_reach_the_producer_that_sent_until_it_is_forgotten() -> None:
    table = HandlerTable()
    first, second = Recorder(), Recorder()
    producer_id = table.add_producer(first)
    close = pb.CommandCloseProducer(producer_id=producer_id, request_id=0)
    table.on_command(T.CLOSE_PRODUCER, close)
    # The broker closes the next one before it can send.
    table.add_producer(second, producer_id)
    table.on_command(T.CLOSE_PRODUCER, close)
    for handler in (second, first):
        table.on_receipts(ReceiptBlock(producer_id, array("q", [1, 1, 7, 8])))
        table.forget_producer(producer_id, handler)
    table.on_receipts(ReceiptBlock(producer_id, array("q", [2, 2, 7, 9])))
    assert first.names == ["close", "receipts", "receipts"]
    assert second.names == ["close"]


def test_a_producer_keeps_its_id() -> None:
    table = HandlerTable()
    assert table.add_producer(Recorder(), 77) == 77


def test_moves_of_a_topic_reach_consumers_and_producers() -> None:
    table = HandlerTable()
    consumer, producer = Recorder(), Recorder()
    kinds = pb.CommandTopicMigrated
    consumer_id, producer_id = table.add_consumer(consumer), table.add_producer(producer)
    for resource_id, kind in ((consumer_id, kinds.Consumer), (producer_id, kinds.Producer)):
        table.on_command(
            T.TOPIC_MIGRATED,
            pb.CommandTopicMigrated(resource_id=resource_id, resource_type=kind),
        )
    assert consumer.names == producer.names == ["command"]


def test_what_is_meant_for_nobody_is_dropped() -> None:
    table = HandlerTable()
    table.on_messages(block(5))
    table.on_command(T.SEND_RECEIPT, pb.CommandSendReceipt(producer_id=5, sequence_id=1))
    table.on_command(
        T.SEND_ERROR,
        pb.CommandSendError(producer_id=5, sequence_id=1, error=pb.UnknownError, message=""),
    )
    table.on_command(T.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=5, request_id=0))
    table.on_command(T.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=5, request_id=0))
    table.on_command(T.REACHED_END_OF_TOPIC, pb.CommandReachedEndOfTopic(consumer_id=5))


def test_removed_handlers_are_returned_once() -> None:
    table = HandlerTable()
    consumer, producer = Recorder(), Recorder()
    consumer_id, producer_id = table.add_consumer(consumer), table.add_producer(producer)
    assert table.remove_consumer(consumer_id) is consumer
    assert table.remove_consumer(consumer_id) is None
    table.remove_producer(producer_id)
    table.remove_producer(producer_id)
    assert table.end(ConnectionLost("gone")) == []


def test_nobody_is_added_after_the_end() -> None:
    table = HandlerTable()
    consumer = Recorder()
    table.add_consumer(consumer)
    assert table.end(ConnectionLost("gone")) == [consumer]
    with pytest.raises(ConnectionLost, match="gone"):
        table.add_producer(Recorder())
