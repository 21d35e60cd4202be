"""Producers: turns, order, sequence ids, and closing."""

from __future__ import annotations

import logging
import threading

import pytest

from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import (
    ClosedError,
    MessageTooLarge,
    OperationTimeout,
    PulsarError,
)
from pulsar_spark.protocol.message_id import MessageIdAdv
from tests.engine.producing import (
    Results,
    TopicScript,
    make,
    topic,
    unpack,
)
from tests.outgoing import send_batch, single
from tests.support.waiting import wait_until


def test_messages_are_acknowledged_in_order() -> None:
    with topic() as (script, context, _):
        results = Results()
        producer = make(context)
        for number in range(3):
            producer.send(single(b"message %d" % number, results))
        producer.flush()
        assert results.ids == [MessageIdAdv(7, entry) for entry in range(3)]
        assert [sent.payload for sent in script.sends] == [b"message 0", b"message 1", b"message 2"]
        assert script.sequence_ids == [0, 1, 2]
        assert producer.last_sequence_id == 2
        assert producer.last_message_id == MessageIdAdv(7, 2)
        assert producer.pending_messages == 0
        assert context.budget.used == 0
        producer.close()
        assert script.closed == [script.producers[0][1].producer_id]


def test_a_batch_says_its_highest_sequence_id_twice() -> None:
    with topic() as (script, context, _):
        producer = make(context)
        send_batch(producer, 10)
        send_batch(producer, 5)
        producer.close()
        first, second = script.sends
        assert (first.command.num_messages, first.command.highest_sequence_id) == (10, 9)
        assert (first.metadata.num_messages_in_batch, first.metadata.highest_sequence_id) == (10, 9)
        assert [meta.sequence_id for meta in unpack(first)] == list(range(10))
        assert (second.sequence_id, second.command.highest_sequence_id) == (10, 14)
        assert [meta.sequence_id for meta in unpack(second)] == list(range(10, 15))
        assert producer.last_sequence_id == 14
        assert producer.counts.messages == producer.counts.acknowledged == 15


def test_sequence_ids_go_on_from_what_the_broker_knows_of_the_name() -> None:
    with topic() as (script, context, _):
        script.success = {"last_sequence_id": 41}
        producer = make(context, producer_name="mine")
        producer.open()
        assert producer.last_sequence_id == 41
        producer.send(single(b""))
        producer.close()
        assert script.sequence_ids == [42]


def test_sequence_ids_start_after_the_given_one() -> None:
    with topic() as (script, context, _):
        script.success = {"last_sequence_id": 41}
        producer = make(context, initial_sequence_id=99)
        producer.send(single(b""))
        producer.send(single(b"", sequence_id=200))
        producer.send(single(b""))
        producer.close()
        assert script.sequence_ids == [100, 200, 201]


def test_the_partition_is_part_of_a_message_id() -> None:
    with topic() as (_, context, _):
        results = Results()
        producer = TopicProducer(context, "t-partition-3")
        producer.send(single(b"", results))
        producer.close()
        assert results.ids == [MessageIdAdv(7, 0, partition=3)]


def test_nothing_is_connected_before_it_is_needed() -> None:
    with topic() as (_, context, broker):
        make(context).close()
        assert not broker.sessions


# --- threads, ends --------------------------------------------------------------------------


def test_entries_are_sent_one_after_the_other() -> None:
    with topic() as (script, context, _):
        results = Results()
        producer = make(context)
        chosen = single(b"chosen", results, sequence_id=50)
        producer.send(single(b"1", results))
        send_batch(producer, 3, results)
        producer.send(chosen)
        send_batch(producer, 2, results)
        producer.close()
        assert script.sequence_ids == [0, 1, 50, 51]
        assert [meta.sequence_id for meta in unpack(script.sends[3])] == [51, 52]
        assert [found.entry_id for found in results.ids if found] == [0, 1, 2, 3]


def test_what_comes_before_and_after_an_entry_that_cannot_be_sent_is_sent() -> None:
    script = TopicScript(max_message_size=500)
    with topic(script) as (_, context, _):
        producer = make(context)
        producer.send(single(b"1"))
        with pytest.raises(MessageTooLarge):
            producer.send(single(bytes(1000)))
        producer.send(single(b"3"))
        producer.close()
        assert [sent.payload for sent in script.sends] == [b"1", b"3"]
        assert script.sequence_ids == [0, 1]
        assert context.budget.used == 0


@pytest.mark.parametrize("most,memory_limit", [(5, 64_000), (0, 500)])
def test_more_entries_than_the_window_holds_go_through_it(most: int, memory_limit: int) -> None:
    with topic(memory_limit=memory_limit) as (script, context, _):
        producer = make(context, max_pending_messages=most)
        for _ in range(40):
            producer.send(single(bytes(50)))
        producer.close()
        assert script.sequence_ids == list(range(40))
        assert context.budget.used == 0


def test_many_threads_can_send_and_ids_stay_in_order() -> None:
    with topic() as (script, context, _):
        producer = make(context)

        def send_many() -> None:
            for _ in range(50):
                send_batch(producer, 3)

        threads = [threading.Thread(target=send_many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        producer.close()
        assert script.sequence_ids == list(range(0, 600, 3))


def test_a_failing_callback_does_not_harm_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    def fail(error: PulsarError | None, message_id: MessageIdAdv | None) -> None:
        raise RuntimeError("a callback's own fault")

    with topic() as (_, context, _):
        results = Results()
        producer = make(context)
        producer.send(single(b"", fail))
        send_batch(producer, 2, fail)
        producer.send(single(b"", results))
        producer.close()
        assert len(results.ids) == 1
        assert "the callback of a message failed" in caplog.text
        assert "the callback of a send to" in caplog.text


def test_a_closed_producer_refuses_messages() -> None:
    with topic() as (_, context, _):
        producer = make(context)
        producer.send(single(b""))
        producer.close()
        producer.close()
        assert not producer.is_connected
        with pytest.raises(ClosedError, match="the producer is closed"):
            producer.send(single(b""))
        with pytest.raises(ClosedError):
            producer.flush()
        with pytest.raises(ClosedError):
            producer.open()


def test_an_aborted_producer_tells_the_callbacks_of_what_was_pending() -> None:
    with topic() as (script, context, _):
        script.on_send = lambda session, sent: True
        results = Results()
        producer = make(context)
        producer.send(single(b"", results))
        producer.abort()
        assert [type(error) for error in results.errors] == [ClosedError]
        wait_until(lambda: bool(script.closed))


def test_the_end_of_the_client_ends_its_producers() -> None:
    with topic() as (script, context, _):
        script.on_send = lambda session, sent: True
        producer = make(context)
        producer.send(single(b""))
        context.close()
        with pytest.raises(ClosedError):
            producer.flush()


def test_close_raises_what_could_not_be_delivered_and_leaves_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with topic() as (script, context, _):
        script.on_send = lambda session, sent: True
        producer = make(context, send_timeout=0.2)
        producer.send(single(b""))
        with pytest.raises(OperationTimeout):
            producer.close()
        wait_until(lambda: bool(script.closed))
        with pytest.raises(OperationTimeout):
            producer.close()
