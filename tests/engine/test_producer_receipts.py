"""Producers: every receipt and every send error is for the oldest send, or a loss."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from pulsar_spark.engine.producers.inflight_window import InflightWindow
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.producers.producer_session import ProducerSession
from pulsar_spark.errors import (
    BrokerChecksumError,
    DroppedAsDuplicate,
    NotAllowed,
    OperationTimeout,
    ProducerBusy,
    PulsarError,
    ServiceNotReady,
    TopicTerminated,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_messages import MessageFields, OutgoingMessages, encode_fields
from tests import brief
from tests.engine.producing import (
    NO_ID,
    Results,
    Sent,
    TopicScript,
    connection_for,
    make,
    refuse,
    topic,
)
from tests.engine.scripted_broker import Session
from tests.outgoing import send_batch, single
from tests.support.waiting import wait_until


@pytest.mark.fault(87)
def test_a_receipt_ahead_of_the_oldest_send_has_all_sent_again() -> None:
    with topic() as (script, context, _):

        def on_send(session: Session, sent: Sent) -> bool:
            if session.number == 0 and sent.sequence_id == 1:
                script.acknowledge(session, sent)
            return session.number == 0

        script.on_send = on_send
        results = Results()
        producer = make(context)
        for _ in range(3):
            producer.send(single(b"", results))
        producer.flush()
        assert len(results.ids) == 3
        assert [sent.sequence_id for sent in script.sends if sent.session == 1] == [0, 1, 2]
        assert producer.counts.reconnects == 1


def close_and_acknowledge(
    script: TopicScript,
    stored: Sequence[int],
    *,
    known: int = -1,
    at: int = 2,
    refuses: bool = False,
) -> None:
    """Close the producer at its message `at`, and acknowledge some messages after that.

    When it registers again, the broker knows its messages up to the id `known`. With `refuses`, the
    broker first refuses that message.
    """

    def on_send(session: Session, sent: Sent) -> bool:
        if len(script.producers) > 1:
            return False
        if sent.sequence_id == at:
            producer_id = sent.command.producer_id
            if refuses:
                session.send(brief.send_error(producer_id, at, pb.PersistenceError, "fenced"))
            session.send(brief.close_producer(producer_id, NO_ID))
            for number in stored:
                script.acknowledge(session, script.sends[number])
        return True

    def on_producer(session: Session, command: pb.CommandProducer) -> bool:
        last = known if len(script.producers) > 1 else -1
        script.let_in(session, command, last_sequence_id=last)
        return True

    script.on_send, script.on_producer = on_send, on_producer


@pytest.mark.fault(14, 87)
@pytest.mark.parametrize("refuses", [False, True])
def test_what_was_stored_when_the_broker_closed_the_producer_is_not_sent_again(
    refuses: bool,
) -> None:
    with topic() as (script, context, broker):
        close_and_acknowledge(script, [0, 1], refuses=refuses)
        results = Results()
        producer = make(context)
        for _ in range(3):
            producer.send(single(b"", results))
        producer.close()
        assert script.sequence_ids == [0, 1, 2, 2]
        assert results.ids == [MessageIdAdv(7, 0), MessageIdAdv(7, 1), MessageIdAdv(7, 2)]
        assert producer.counts.duplicates == 0
        assert len(broker.sessions) == 1


@pytest.mark.fault(14, 87)
def test_receipts_count_between_attempts_to_register_again() -> None:
    """So a receipt that comes after the next one was never sent."""
    with topic() as (script, context, _):
        close_and_acknowledge(script, [])

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            attempt = len(script.producers) - 2
            if attempt == 0:
                session.send(brief.error(command.request_id, pb.ServiceNotReady, "not yet"))
            if attempt >= 0:
                script.acknowledge(session, script.sends[attempt])
            if attempt != 0:
                script.let_in(session, command, last_sequence_id=1 if attempt > 0 else -1)
            return True

        script.on_producer = on_producer
        producer = make(context)
        for _ in range(3):
            producer.send(single(b""))
        producer.close()
        assert script.sequence_ids == [0, 1, 2, 2]
        assert connection_for(context).handlers._closed_producers == {}


@pytest.mark.fault(14, 87)
def test_a_producer_that_ends_while_it_is_closed_waits_for_no_receipts() -> None:
    with topic() as (script, context, _):
        close_and_acknowledge(script, [])
        script.on_producer = lambda session, command: len(script.producers) > 1
        producer = make(context)
        for _ in range(3):
            producer.send(single(b""))
        wait_until(lambda: len(script.producers) == 2)
        handlers = connection_for(context).handlers
        assert len(handlers._closed_producers) == 1
        producer.abort()
        assert handlers._closed_producers == {}


@pytest.mark.fault(14, 87)
@pytest.mark.parametrize(
    "known,stored,again",
    [
        pytest.param(2, [2], None, id="two are missing"),
        pytest.param(2, [0, 2], None, id="one of the same ledger is missing"),
        pytest.param(2, [1], [0, 1, 2], id="one is missing, perhaps the last of its ledger"),
        pytest.param(1, [2], [0, 1, 2], id="the broker has lost the later one as well"),
        pytest.param(-1, [2], [0, 1, 2], id="without deduplication"),
        pytest.param(2, [1, 0, 1], [2], id="the missing one comes later"),
        pytest.param(2, [1, 2, 0], [1, 2], id="the missing one comes last"),
        pytest.param(2, [1, 2], [0, 1, 2], id="the missing one does not come in time"),
    ],
)
def test_a_later_message_that_is_stored_without_earlier_ones_is_a_loss_with_deduplication(
    known: int, stored: list[int], again: list[int] | None
) -> None:
    """Pulsar 4.0.8 does so if a topic is unloaded while it begins a ledger."""
    with topic() as (script, context, _):
        close_and_acknowledge(script, stored, known=known)
        producer = make(context)
        for _ in range(3):
            producer.send(single(b""))
        if again is None:
            with pytest.raises(DroppedAsDuplicate, match=r"never stored: sequence ids? [01]\b"):
                producer.close()
        else:
            producer.close()
        assert script.sequence_ids == [0, 1, 2, *(again or [])]


@pytest.mark.fault(14, 87)
def test_the_error_of_a_loss_names_only_what_is_not_stored() -> None:
    with topic() as (script, context, _):
        close_and_acknowledge(script, [0, 2, 3, 4], known=4, at=4)
        producer = make(context)
        for _ in range(5):
            producer.send(single(b""))
        with pytest.raises(DroppedAsDuplicate, match=r"never stored: sequence id 1\b"):
            producer.close()


@pytest.mark.fault(14, 87)
def test_what_was_on_its_way_into_storage_when_the_connection_ended_is_not_lost() -> None:
    """The broker counts it as known, and refuses it until it knows whether it was stored."""
    with topic() as (script, context, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            attempts = len(script.producers)
            script.let_in(session, command, last_sequence_id=(-1, 1, 2)[attempts - 1])
            return True

        def on_send(session: Session, sent: Sent) -> bool:
            attempts = len(script.producers)
            if attempts == 1:
                if sent.sequence_id == 0:
                    script.acknowledge(session, sent)
                elif sent.sequence_id == 2:
                    session.drop()
            elif attempts == 2 and sent.sequence_id == 1:
                producer_id = sent.command.producer_id
                session.send(brief.send_error(producer_id, 1, pb.PersistenceError, "unknown"))
            else:
                script.acknowledge(session, sent, duplicate=attempts > 2)
            return True

        script.on_producer, script.on_send = on_producer, on_send
        producer = make(context)
        producer.send(single(b""))
        producer.flush()
        for _ in range(2):
            producer.send(single(b""))
        producer.close()
        assert script.sequence_ids == [0, 1, 2, 1, 2, 1, 2]
        assert producer.counts.acknowledged == 3


@pytest.mark.fault(87)
def test_ids_that_do_not_grow_are_sent_again_if_the_broker_cannot_tell_whether_it_has_them() -> (
    None
):
    """While a higher id is being stored, it knows of no lower one whether that is a duplicate."""
    with topic() as (script, context, _):

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            known = -1 if len(script.producers) == 1 else 5
            script.let_in(session, command, last_sequence_id=known)
            return True

        def on_send(session: Session, sent: Sent) -> bool:
            if len(script.producers) > 1:
                script.acknowledge(session, sent, duplicate=True)
            elif sent.sequence_id == 3:
                producer_id = sent.command.producer_id
                session.send(brief.send_error(producer_id, 3, pb.UnknownError, "cannot tell"))
            return True

        script.on_producer, script.on_send = on_producer, on_send
        producer = make(context)
        for own_id in (5, 3):
            producer.send(single(b"", sequence_id=own_id))
        producer.close()
        assert script.sequence_ids == [5, 3, 5, 3]
        assert producer.counts.duplicates == 2


@pytest.mark.fault(14, 21, 87)
def test_a_loss_is_noticed_after_a_registration_that_ended_at_once_as_well() -> None:
    with topic() as (script, context, _):
        close_and_acknowledge(script, [2], known=2)
        let_in = script.on_producer
        script.on_producer = lambda session, command: len(script.producers) > 1
        producer = make(context)
        for _ in range(3):
            producer.send(single(b""))
        wait_until(lambda: len(script.producers) == 2)
        ended = ProducerSession(producer, connection_for(context))
        ended.producer_id = script.sends[0].command.producer_id
        ended.error = ServiceNotReady("closed again")
        success = pb.CommandProducerSuccess(request_id=0, producer_name="p", last_sequence_id=2)
        with pytest.raises(ServiceNotReady):
            producer.adopt(ended, success)
        assert let_in is not None
        let_in(*script.producers[1])
        with pytest.raises(DroppedAsDuplicate):
            producer.close()


@pytest.mark.fault(14, 39, 87)
def test_a_late_receipt_of_one_chunk_does_not_count_for_another() -> None:
    """They have the same sequence id."""
    with topic(TopicScript(max_message_size=1000)) as (script, context, _):

        def on_send(session: Session, sent: Sent) -> bool:
            if len(script.producers) > 1:
                return False
            if sent.metadata.chunk_id == 1:
                session.send(brief.close_producer(sent.command.producer_id, NO_ID))
                script.acknowledge(session, sent)
            return True

        script.on_send = on_send
        producer = make(context, chunking_enabled=True)
        producer.send(single(bytes(1500)))
        producer.close()
        assert [sent.metadata.chunk_id for sent in script.sends] == [0, 1, 0, 1]


def drop_as_duplicates(script: TopicScript, *sequence_ids: int) -> None:
    """Acknowledge everything, the messages with these ids as duplicates."""

    def on_send(session: Session, sent: Sent) -> bool:
        script.acknowledge(session, sent, duplicate=sent.sequence_id in sequence_ids)
        return True

    script.on_send = on_send


@pytest.mark.fault(13, 87)
def test_lower_ids_than_one_that_was_stored_are_duplicates() -> None:
    with topic() as (script, context, _):
        drop_as_duplicates(script, 50, 51)
        producer = make(context)
        for number in (100, 50, 51):
            producer.send(single(b"", sequence_id=number))
            producer.flush()
        producer.close()
        assert producer.counts.duplicates == 2


@pytest.mark.fault(13, 87)
def test_a_message_that_the_broker_did_not_know_cannot_be_a_duplicate() -> None:
    with topic() as (script, context, _):
        drop_as_duplicates(script, 0, 30)
        script.success = {"last_sequence_id": 9}
        producer = make(context, initial_sequence_id=-1)
        for count in (10, 10, 10):
            send_batch(producer, count)
        producer.flush()
        assert producer.counts.duplicates == 10
        results = Results()
        send_batch(producer, 10, results)
        with pytest.raises(DroppedAsDuplicate, match="sequence ids 30 to 39"):
            producer.flush()
        assert [type(error) for error in results.errors] == [DroppedAsDuplicate]
        assert results.ids == []


@pytest.mark.fault(13, 87)
def test_a_batch_that_the_broker_knows_in_part_is_a_loss_of_the_rest() -> None:
    with topic() as (script, context, _):
        drop_as_duplicates(script, 0)
        script.success = {"last_sequence_id": 9}
        producer = make(context, initial_sequence_id=-1)
        send_batch(producer, 20)
        with pytest.raises(DroppedAsDuplicate, match="sequence ids 10 to 19"):
            producer.close()


@pytest.mark.fault(13, 87)
def test_a_flush_that_waits_for_the_last_receipt_is_told_of_a_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushed = threading.Event()
    finish = InflightWindow.finish

    def finish_and_let_flush(window: InflightWindow, *arguments: Any) -> None:
        finish(window, *arguments)
        flushed.wait(1.0)

    monkeypatch.setattr(InflightWindow, "finish", finish_and_let_flush)
    with topic() as (script, context, _):
        drop_as_duplicates(script, 0)
        producer = make(context)
        producer.send(single(b""))
        with pytest.raises(DroppedAsDuplicate):
            producer.flush()
        flushed.set()


@pytest.mark.fault(87)
def test_a_non_persistent_topic_may_drop_messages() -> None:
    """It does if there are too many at once, and nothing of it is stored anyway."""
    with topic() as (script, context, _):
        drop_as_duplicates(script, 1)
        producer = TopicProducer(context, "non-persistent://public/default/t")
        for _ in range(3):
            producer.send(single(b""))
        producer.close()
        assert producer.counts.acknowledged == 3


@pytest.mark.fault(13, 87)
def test_an_earlier_attempts_messages_in_flight_fail_a_resuming_producer() -> None:
    with topic() as (script, context, _):
        drop_as_duplicates(script, 12)
        script.success = {"last_sequence_id": 11}
        producer = make(context, resumes=True, producer_name="job")
        assert [producer.has_sent(number) for number in (10, 11, 12)] == [True, True, False]
        producer.send(single(b"", sequence_id=12))
        with pytest.raises(ProducerBusy, match="earlier attempt"):
            producer.flush()


@pytest.mark.parametrize("way", ["column", "batches", "messages"])
def test_receipts_that_come_at_once_have_nothing_sent_twice(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Before the sender knows how many messages it has sent."""
    admit = TopicProducer._admit

    def admit_and_wait(producer: TopicProducer, *args: Any, **rest: Any) -> None:
        admit(producer, *args, **rest)
        producer._write_queued()
        wait_until(lambda: not producer.pending_messages)
        # A sender that counted the remaining ones would never end.
        assert producer.counts.messages <= 500

    monkeypatch.setattr(TopicProducer, "_admit", admit_and_wait)
    payloads = [b"%d" % number for number in range(500)]
    with topic() as (script, context, _):
        producer = make(context, max_pending_messages=100)
        if way == "messages":
            _, fields = encode_fields(MessageFields(b"", properties=[("a", "b")]))
            producer.send(OutgoingMessages(payloads, None, [fields] * 500))
        else:
            producer.send(OutgoingMessages(payloads), 1 if way == "column" else 10)
        producer.close()
        assert producer.counts.acknowledged == 500
        ids = [sent.sequence_id for sent in script.sends]
        assert ids == list(range(0, 500, 10 if way == "batches" else 1))


@pytest.mark.fault(13, 87)
def test_what_was_sent_again_after_a_disconnect_may_be_known() -> None:
    with topic() as (script, context, _):

        def on_send(session: Session, sent: Sent) -> bool:
            if session.number == 0:
                session.drop()
            else:
                script.acknowledge(session, sent, duplicate=True)
            return True

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            script.let_in(session, command, last_sequence_id=11 + session.number)
            return True

        script.on_send, script.on_producer = on_send, on_producer
        producer = make(context, resumes=True, producer_name="job")
        producer.send(single(b"", sequence_id=12))
        producer.flush()
        assert producer.counts.duplicates == 1


@pytest.mark.fault(87)
def test_a_receipt_that_comes_twice_is_ignored() -> None:
    with topic() as (script, context, broker):

        def on_send(session: Session, sent: Sent) -> bool:
            script.acknowledge(session, sent)
            return False

        script.on_send = on_send
        results = Results()
        producer = make(context)
        for _ in range(3):
            producer.send(single(b"", results))
            producer.flush()
        producer.close()
        assert [found.entry_id for found in results.ids if found] == [0, 2, 4]
        assert len(broker.sessions) == 1


@pytest.mark.fault(87)
def test_a_receipt_can_name_a_batch_by_its_highest_id() -> None:
    with topic() as (script, context, _):

        def on_send(session: Session, sent: Sent) -> bool:
            stored = pb.MessageIdData(ledgerId=1, entryId=2)
            session.send(brief.send_receipt(sent.command.producer_id, 9, stored))
            return True

        script.on_send = on_send
        producer = make(context)
        send_batch(producer, 10)
        producer.flush(5)
        assert producer.last_message_id == MessageIdAdv(1, 2)


@pytest.mark.fault(13, 87)
def test_duplicates_are_acknowledged_and_counted_apart() -> None:
    with topic() as (script, context, _):
        drop_as_duplicates(script, 0)
        script.success = {"last_sequence_id": 9}
        results = Results()
        producer = make(context, initial_sequence_id=-1)
        send_batch(producer, 10, results)
        send_batch(producer, 3, results)
        producer.close()
        assert results.ids == [MessageIdAdv(-1, -1), MessageIdAdv(7, 0)]
        assert producer.counts.duplicates == 10
        assert producer.counts.acknowledged == 13
        assert producer.last_message_id == MessageIdAdv(7, 0)


@pytest.mark.fault(24, 42)
def test_receipts_and_errors_for_an_unknown_producer_are_ignored() -> None:
    with topic() as (script, context, broker):

        def on_send(session: Session, sent: Sent) -> bool:
            stored = pb.MessageIdData(ledgerId=1, entryId=2)
            session.send_unchecked(brief.send_receipt(987_654, 0, stored))
            session.send_unchecked(brief.send_error(987_654, 0, pb.UnknownError, "?"))
            return False

        script.on_send = on_send
        producer = make(context)
        producer.send(single(b""))
        producer.close()
        assert len(broker.sessions) == 1


@pytest.mark.fault(56, 87)
@pytest.mark.parametrize(
    "code,kind",
    [
        (pb.TopicTerminatedError, TopicTerminated),
        (pb.NotAllowedError, NotAllowed),
        (pb.ChecksumError, BrokerChecksumError),
    ],
)
def test_a_refusal_that_will_not_change_is_final(code: int, kind: type[PulsarError]) -> None:
    with topic() as (script, context, broker):
        refuse(script, code)
        results = Results()
        producer = make(context)
        # The refusal may come between two of them.
        with contextlib.suppress(kind):
            for _ in range(3):
                producer.send(single(b"", results))
        with pytest.raises(kind, match=r"no.*persistent://public/default/t") as raised:
            producer.flush()
        assert raised.value.broker == broker.address
        assert [found.entry_id for found in results.ids if found] == [0]
        assert all(isinstance(error, kind) for error in results.errors)
        with pytest.raises(kind):
            producer.flush()
        with pytest.raises(kind):
            producer.close()
        with pytest.raises(kind):
            producer.send(single(b""))
        assert len(broker.sessions) == 1
        assert context.budget.used == 0


@pytest.mark.fault(87)
@pytest.mark.parametrize("code", [pb.PersistenceError, pb.UnknownError, pb.ServiceNotReady, 77])
def test_another_refusal_is_followed_by_a_new_registration_and_all_again(code: int) -> None:
    with topic() as (script, context, broker):
        refuse(script, code if code != 77 else pb.MetadataError, times=2)
        results = Results()
        producer = make(context)
        for _ in range(3):
            producer.send(single(b"", results))
        producer.flush()
        assert len(results.ids) == 3
        ids = [found.entry_id for found in results.ids if found]
        assert ids == sorted(ids)
        # The connection is kept: others may use it.
        assert len(broker.sessions) == 1
        assert len(script.closed) == producer.counts.reconnects == 2
        epochs = [command.epoch for _, command in script.producers]
        assert epochs == [0, 1, 2]


@pytest.mark.fault(87)
def test_a_refusal_that_does_not_pass_ends_at_the_send_timeout() -> None:
    with topic() as (script, context, _):
        refuse(script, pb.PersistenceError)
        producer = make(context, send_timeout=1.5)
        producer.send(single(b"1"))
        producer.send(single(b"2"))
        began = time.monotonic()
        with pytest.raises(OperationTimeout, match=r"1 messages.*1 were before.*BookKeeper"):
            producer.flush()
        assert time.monotonic() - began < 15


@pytest.mark.fault(87)
def test_a_refusal_of_what_is_acknowledged_is_ignored() -> None:
    with topic() as (script, context, broker):

        def on_send(session: Session, sent: Sent) -> bool:
            if sent.sequence_id == 1:
                producer_id = sent.command.producer_id
                for code in (pb.ChecksumError, pb.PersistenceError):
                    session.send(brief.send_error(producer_id, 0, code, "late"))
            return False

        script.on_send = on_send
        producer = make(context)
        for _ in range(2):
            producer.send(single(b""))
        producer.close()
        assert len(script.producers) == 1
        assert len(broker.sessions) == 1
