"""Producers: pending messages are bounded, and so is every wait."""

from __future__ import annotations

import threading
import time

import pytest

from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import (
    NotAllowed,
    OperationTimeout,
    PulsarError,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from tests.engine.producing import (
    TOPIC,
    Results,
    Sent,
    TopicScript,
    make,
    refuse,
    topic,
)
from tests.engine.scripted_broker import Session
from tests.outgoing import outgoing, send_batch, single
from tests.support.waiting import finish, is_in, wait_until


@pytest.mark.fault(7, 90)
def test_a_message_without_a_receipt_is_an_error_at_the_send_timeout() -> None:
    with topic() as (script, context, broker):
        script.on_send = lambda session, sent: sent.sequence_id >= 2
        results = Results()
        producer = make(context, send_timeout=1.0)
        send_batch(producer, 2, results)
        producer.send(single(b"1234", results))
        with pytest.raises(OperationTimeout) as raised:
            producer.flush()
        error = raised.value
        assert (error.topic, error.broker) == (TOPIC, broker.address)
        assert "1 messages" in error.what
        assert "from sequence id 2" in error.what
        assert "2 were before" in error.what
        assert [type(found) for found in results.errors] == [OperationTimeout]
        with pytest.raises(OperationTimeout):
            producer.close()
        assert context.budget.used == 0


@pytest.mark.fault(7)
def test_the_timeout_comes_to_an_idle_producers_callback_too() -> None:
    with topic() as (script, context, _):
        script.on_send = lambda session, sent: True
        failed = threading.Event()
        told: list[PulsarError] = []
        producer = TopicProducer(context, "t", ProducerOptions(send_timeout=0.2), told.append)
        producer.send(single(b"", lambda error, _: failed.set()))
        assert failed.wait(60)
        wait_until(lambda: told, "that it is told")
        assert [type(error) for error in told] == [OperationTimeout]


@pytest.mark.fault(7)
def test_a_sender_waits_while_too_many_messages_are_pending() -> None:
    with topic() as (script, context, _):
        held: list[tuple[Session, Sent]] = []

        def on_send(session: Session, sent: Sent) -> bool:
            held.append((session, sent))
            return True

        script.on_send = on_send
        producer = make(context, max_pending_messages=10, send_timeout=600)
        send_batch(producer, 8)
        send_batch(producer, 2)
        sender = threading.Thread(target=lambda: send_batch(producer, 5))
        sender.start()
        wait_until(lambda: len(held) == 2)
        wait_until(lambda: is_in(sender, "wait_for_room"))
        context.lookup.partitions("t")
        assert len(script.sends) == 2
        script.acknowledge(*held[0])
        finish(sender)
        wait_until(lambda: len(held) == 3)
        assert script.sequence_ids == [0, 8, 10]
        producer.abort()


@pytest.mark.fault(7)
def test_a_batch_larger_than_the_window_is_sent_alone() -> None:
    with topic() as (_, context, _):
        producer = make(context, max_pending_messages=10)
        send_batch(producer, 50)
        send_batch(producer, 1)
        producer.close()


@pytest.mark.fault(7)
def test_memory_is_bounded_over_all_producers_of_a_client() -> None:
    with topic(memory_limit=10_000) as (script, context, _):
        script.on_send = lambda session, sent: True
        first = make(context, send_timeout=5.0)
        second = make(context, send_timeout=0.3)
        first.send(single(bytes(8_500)))
        with pytest.raises(OperationTimeout, match="no room for another message") as raised:
            second.send(single(bytes(2_000)))
        assert raised.value.topic == TOPIC
        # Nothing was sent, so the producer can continue.
        second.send(single(bytes(100)))
        assert len(script.sends) <= 2


@pytest.mark.fault(7)
def test_a_peer_that_takes_no_bytes_ends_in_an_error_at_the_send_timeout() -> None:
    stop = threading.Event()
    with topic() as (script, context, _):

        def on_send(session: Session, sent: Sent) -> bool:
            stop.wait(20)
            return True

        script.on_send = on_send
        producer = make(context, send_timeout=0.5)
        began = time.monotonic()
        entries = [single(bytes(1_000_000)) for _ in range(100)]
        with pytest.raises(OperationTimeout):
            any(map(producer.send, entries))
        assert time.monotonic() - began < 10
        assert context.budget.used <= context.budget.limit
        stop.set()


@pytest.mark.fault(95)
def test_flush_can_be_given_less_time_and_the_producer_goes_on() -> None:
    with topic() as (script, context, _):
        held: list[tuple[Session, Sent]] = []

        def on_send(session: Session, sent: Sent) -> bool:
            held.append((session, sent))
            return True

        script.on_send = on_send
        producer = make(context)
        producer.send(single(b""))
        with pytest.raises(OperationTimeout, match=r"within 0\.1 s"):
            producer.flush(0.1)
        script.acknowledge(*held[0])
        producer.flush(5)


@pytest.mark.fault(89)
def test_flush_waits_for_the_very_last_receipt_and_raises_its_error() -> None:
    with topic() as (script, context, _):
        refuse(script, pb.NotAllowedError, sequence_id=99)
        producer = make(context)
        for _ in range(100):
            producer.send(single(b""))
        with pytest.raises(NotAllowed):
            producer.flush()
        assert producer.counts.acknowledged == 99


def test_a_batch_with_its_key_is_no_larger_than_the_broker_takes() -> None:
    with topic(TopicScript(max_message_size=1000)) as (script, context, _):
        producer = make(context)
        keys = ["k" * 230, "l" * 230]
        producer.send(outgoing([bytes(200), bytes(100)], keys), per_entry=2)
        producer.close()
        sizes = [sent.metadata.ByteSize() + len(sent.payload) for sent in script.sends]
        assert max(sizes) <= 1000
        assert sum(sent.command.num_messages for sent in script.sends) == 2
