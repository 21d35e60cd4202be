"""Producers: a waiting sender blocks nobody else, and every wait ends."""

from __future__ import annotations

import inspect
import random
import threading
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pulsar_spark.engine import attaching
from pulsar_spark.engine import deadline as deadlines
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import Operation
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers import inflight_window
from pulsar_spark.engine.producers.batch_accumulator import BatchAccumulator
from pulsar_spark.engine.producers.inflight_window import InflightWindow
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.producers.producer_session import Registrar
from pulsar_spark.engine.retry import Backoff
from pulsar_spark.errors import ClosedError, OperationTimeout, PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import encode_payload_command
from pulsar_spark.protocol.outgoing_messages import MessageFields, OutgoingMessages
from tests import brief
from tests.engine.producing import Results, Sent, TopicScript, make, payloads_of, topic
from tests.engine.scripted_broker import ScriptedBroker, Session
from tests.outgoing import outgoing, single
from tests.support.waiting import Clock, finish, is_in, wait_until

MIB = 1024 * 1024


class Raised(threading.Thread):
    """A thread that calls a function and keeps its error."""

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        super().__init__(daemon=True)
        self.error: PulsarError | None = None
        self._call = partial(function, *args)
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except PulsarError as error:
            self.error = error


def send_and_flush(producer: TopicProducer) -> None:
    producer.send(single(b"x"))
    producer.flush()


def options(**changes: Any) -> ProducerOptions:
    return ProducerOptions(**{"send_timeout": 60.0, **changes})


# --- turns ----------------------------------------------------------------------------------


@pytest.mark.fault(7, 103)
def test_a_producer_whose_time_is_up_fails_no_other_on_its_connection() -> None:
    reads = threading.Event()
    with topic() as (script, context, broker):

        def on_send(session: Session, sent: Sent) -> bool:
            reads.wait(60)
            return False

        patient = make(context, send_timeout=60.0).open()
        hasty = make(context, send_timeout=0.5).open()
        script.on_send = on_send
        first = Raised(patient.send, OutgoingMessages([bytes(MIB)] * 32))
        wait_until(lambda: patient.pending_messages > 0)
        late = Raised(send_and_flush, hasty)
        finish(late)
        assert isinstance(late.error, OperationTimeout)
        assert first.is_alive()
        reads.set()
        finish(first)
        patient.flush()
        assert first.error is None
        assert patient.counts.acknowledged == 32
        assert patient.counts.reconnects == 0
        assert len(broker.sessions) == 1


@pytest.mark.fault(7, 103)
def test_a_sender_that_waits_for_its_turn_in_vain_fails_alone() -> None:
    with topic() as (script, context, _):
        held: list[tuple[Session, Sent]] = []

        def on_send(session: Session, sent: Sent) -> bool:
            held.append((session, sent))
            return True

        script.on_send = on_send
        producer = make(context, send_timeout=600.0, max_pending_messages=1)
        producer.send(single(b"1"))
        wait_until(lambda: bool(held))
        first = Raised(producer.send, OutgoingMessages([b"x"] * 5))
        # It has the turn, and patience.
        wait_until(lambda: is_in(first, "wait_for_room"))
        wait_until(lambda: producer._window._room_at >= 0)
        producer._window.timeout = 0.2
        second = Raised(producer.send, single(b"mine"))
        finish(second)
        assert isinstance(second.error, OperationTimeout)
        assert first.is_alive()
        producer._window.timeout = 600.0
        script.on_send = None
        for session, sent in held:
            script.acknowledge(session, sent)
        finish(first)
        assert first.error is None
        producer.send(single(b"2"))
        producer.close()


# --- timers and the receive thread ----------------------------------------------------------


@pytest.mark.fault(12, 104)
def test_batches_that_are_due_do_not_keep_full_partitions_from_coming_back() -> None:
    partitions = 8
    with topic(TopicScript(partitions=partitions)) as (script, context, broker):
        # The first broker takes everything, and acknowledges nothing.
        script.on_send = lambda session, sent: session.number == 0
        results = Results()
        chosen = options(
            send_timeout=15.0,
            batching_max_messages=1000,
            batching_max_delay=0.01,
            max_pending_messages=1,
        )
        writer = PartitionedProducer(context, "t", chosen, timed=True)
        for partition in range(partitions):
            writer.send(MessageFields(b"in flight"), results, partition, at_once=True)
        wait_until(lambda: len(script.sends) == partitions)
        for partition in range(partitions):
            writer.send(MessageFields(b"due"), results, partition)
        # More than the delay of the batches, so that all of them are due.
        wait_until(lambda: not writer._timers)
        time.sleep(0.1)
        broker.sessions[0].drop()
        wait_until(lambda: len(results.ids) + len(results.errors) == 2 * partitions)
        assert not results.errors
        assert sorted(payloads_of(script)).count(b"due") == partitions
        writer.close()


@pytest.mark.fault(104)
def test_a_batch_that_is_due_is_sent_by_the_receipt_that_makes_room() -> None:
    with topic() as (script, context, _):
        held: list[tuple[Session, Sent]] = []

        def on_send(session: Session, sent: Sent) -> bool:
            if not held:
                held.append((session, sent))
                return True
            return False

        script.on_send = on_send
        results = Results()
        chosen = options(batching_max_delay=0.01, max_pending_messages=2)
        writer = PartitionedProducer(context, "t", chosen, timed=True)
        writer.send(MessageFields(b"1"), results, at_once=True)
        writer.send(MessageFields(b"2"), results)
        writer.send(MessageFields(b"3"), results)
        wait_until(lambda: not writer._timers)
        wait_until(lambda: held)
        assert payloads_of(script) == [b"1"]
        script.acknowledge(*held[0])
        wait_until(lambda: len(results.ids) == 3)
        assert payloads_of(script) == [b"1", b"2", b"3"]
        writer.close()


@pytest.mark.fault(7, 104)
def test_large_batches_that_are_due_never_hold_up_the_timers() -> None:
    reads = threading.Event()
    with topic(operation_timeout=60.0, memory_limit=256 * MIB) as (script, context, _):
        chosen = options(
            batching_max_delay=0.01, batching_max_bytes=4 * MIB, batching_max_messages=10**6
        )
        writer = PartitionedProducer(context, "t", chosen, timed=True).open()

        def on_send(session: Session, sent: Sent) -> bool:
            reads.wait(60)
            return False

        script.on_send = on_send
        (producer,) = writer.producers
        results = Results()
        for number in range(60):
            while producer.pending_messages < number:
                time.sleep(0.001)
            # Timers send each batch; together they are far more than the socket takes.
            writer.send(MessageFields(bytes(MIB)), results)
        fired = threading.Event()
        context.timers.after(0.0, fired.set)
        assert fired.wait(20)
        reads.set()
        writer.flush()
        assert len(results.ids) == 60
        writer.close()


@pytest.mark.fault(104)
def test_a_partition_that_is_not_open_yet_is_opened_for_a_batch_that_is_due() -> None:
    with topic(TopicScript(partitions=2)) as (script, context, _):
        results = Results()
        chosen = options(batching_max_delay=0.01)
        writer = PartitionedProducer(context, "t", chosen, timed=True)
        writer.send(MessageFields(b"1"), results, 1)
        wait_until(lambda: bool(results.ids))
        assert [command.topic[-1] for _, command in script.producers] == ["1"]
        writer.close()


@pytest.mark.fault(104)
def test_room_that_comes_while_a_batch_is_tried_in_vain_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the look at the room and the end of the turn is no time for anything else."""
    with topic() as (script, context, _):
        held: list[tuple[Session, Sent]] = []

        def hold(session: Session, sent: Sent) -> bool:
            held.append((session, sent))
            return True

        script.on_send = hold
        chosen = options(max_pending_messages=1)
        producer = TopicProducer(context, "t", chosen).open()
        made = BatchAccumulator(producer, chosen)
        producer.send(single(b"1"))
        wait_until(lambda: held)
        has_room = InflightWindow.has_room
        receivers: list[threading.Thread] = []

        def look(window: InflightWindow, messages: int) -> bool:
            found = has_room(window, messages)
            if not found and not receivers:
                script.on_send = None
                script.acknowledge(*held[0])
                receivers.append(threading.Thread(target=producer.send_due))
                receivers[0].start()
            return found

        monkeypatch.setattr(InflightWindow, "has_room", look)
        made.add(b"2")
        made.trigger_flush()
        finish(*receivers)
        wait_until(lambda: payloads_of(script) == [b"1", b"2"])
        producer.close()


@pytest.mark.fault(104)
def test_who_aborts_does_not_wait_behind_a_sender_that_waits_for_room() -> None:
    with topic() as (script, context, _):
        script.on_send = lambda session, sent: True
        results = Results()
        writer = PartitionedProducer(context, "t", options(max_pending_messages=1))
        writer.send(MessageFields(b"1"), results, at_once=True)
        sender = Raised(lambda: writer.send(MessageFields(b"2"), None, at_once=True))
        (producer,) = writer.producers
        wait_until(lambda: producer.waiting.is_sending)
        aborting = Raised(writer.abort)
        finish(aborting, sender, seconds=20)
        assert isinstance(sender.error, ClosedError)
        assert [type(error) for error in results.errors] == [ClosedError]


@pytest.mark.fault(104)
def test_opening_many_partitions_ends_when_the_client_is_closed() -> None:
    with topic(TopicScript(partitions=20), operation_timeout=60.0) as (script, context, _):
        script.on_producer = lambda session, command: True
        writer = PartitionedProducer(context, "t", options())
        opening = Raised(writer.open)
        wait_until(lambda: len(script.producers) == 20)
        context.close()
        finish(opening, seconds=20)
        assert isinstance(opening.error, ClosedError)


@pytest.mark.fault(104)
def test_a_client_that_is_closed_while_it_opens_leaves_nothing_on_a_shared_connection() -> None:
    script = TopicScript(partitions=3)
    with ScriptedBroker(script) as broker:
        script.on_producer = lambda session, command: True
        context = ClientContext.shared(broker.options(operation_timeout=60.0))
        writer = PartitionedProducer(context, "t", options())
        opening = Raised(writer.open)
        wait_until(lambda: len(script.producers) == 3)
        context.close()
        finish(opening, seconds=20)
        assert isinstance(opening.error, ClosedError)
        ids = {command.producer_id for _, command in script.producers}
        wait_until(lambda: set(script.closed) == ids)


@pytest.mark.fault(104)
def test_leaving_many_partitions_ends_where_the_broker_does_not_answer() -> None:
    def mute(session: Session, event: Any) -> bool:
        return getattr(event, "kind", None) == pb.BaseCommand.CLOSE_PRODUCER or script(
            session, event
        )

    script = TopicScript(partitions=20)
    with topic(script, operation_timeout=0.5) as (_, context, broker):
        broker.script = mute
        writer = PartitionedProducer(context, "t", options(batching_max_messages=1))
        writer.write(outgoing([b"x"] * 40))
        closing = Raised(writer.close)
        finish(closing, seconds=20)
        assert closing.error is None


# --- coming back ----------------------------------------------------------------------------


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that moves on by each pause of a registration, which does not wait."""
    clock = Clock()

    def wait(registrar: Registrar, seconds: float) -> Operation[None]:
        clock.advance(seconds)
        yield from ()

    monkeypatch.setattr(Registrar, "_wait", wait)
    monkeypatch.setattr(
        attaching, "Backoff", lambda maximum: Backoff(maximum=maximum, rng=_Longest())
    )
    for module in (inflight_window, deadlines):
        monkeypatch.setattr(module, "time", clock)
    return clock


class _Longest(random.Random):
    def random(self) -> float:
        return 0.0


@pytest.mark.fault(1, 105)
def test_a_broker_that_comes_back_late_still_finds_messages_whose_time_is_not_up(
    passing: Clock,
) -> None:
    """With doubled pauses the last attempt would be at 51 s, and the next after the end."""
    with topic() as (script, context, _):
        lost_at: list[float] = []

        def on_send(session: Session, sent: Sent) -> bool:
            if lost_at:
                return False
            lost_at.append(passing.monotonic())
            session.drop()
            return True

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            # As its timer would.
            producer._window.expire()
            away = bool(lost_at) and passing.monotonic() - lost_at[0] < 52
            if away:
                session.send(brief.error(command.request_id, pb.ServiceNotReady, "away"))
            return away

        producer = make(context, send_timeout=60)
        script.on_send, script.on_producer = on_send, on_producer
        producer.send(single(b"x"))
        producer.close()
        assert producer.counts.acknowledged == 1


@pytest.mark.fault(1, 105)
def test_a_first_attempt_is_made_again_while_there_is_time(passing: Clock) -> None:
    with topic(operation_timeout=60) as (script, context, _):
        began = passing.monotonic()

        def on_producer(session: Session, command: pb.CommandProducer) -> bool:
            away = passing.monotonic() - began < 52
            if away:
                session.send(brief.error(command.request_id, pb.ServiceNotReady, "away"))
            return away

        script.on_producer = on_producer
        make(context).open()


# --- memory ---------------------------------------------------------------------------------


@pytest.mark.fault(91, 106)
def test_the_budget_counts_what_small_messages_really_hold() -> None:
    limit = 2 * MIB
    with topic(memory_limit=limit) as (script, context, _):
        script.on_send = lambda session, sent: True
        producer = make(context, send_timeout=60.0).open()
        script.sends = _Forgetful()
        sent = 0
        tracemalloc.start()
        try:
            while context.budget.used < limit - 1000:
                producer.send(single(b"%d" % sent))
                sent += 1
            snapshot = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
        assert sent < limit / 365
        # The test's broker, in this process, uses the decoder in frames.py.
        own = [
            tracemalloc.Filter(True, f"*/pulsar_spark/{path}")
            for path in ("engine/*", "protocol/outgoing_messages.py", "protocol/send_encoder.py")
        ]
        lines, first = inspect.getsourcelines(encode_payload_command)
        own += [
            tracemalloc.Filter(True, "*/protocol/frames.py", lineno)
            for lineno in range(first, first + len(lines))
        ]
        held = sum(trace.size for trace in snapshot.filter_traces(own).traces)
        assert sent * 300 < held < limit
        producer.abort()


@pytest.mark.fault(91, 106)
def test_batches_in_the_making_are_part_of_the_budget() -> None:
    limit = 200_000
    partitions = 20
    with topic(TopicScript(partitions=partitions), memory_limit=limit) as (script, context, _):
        seen: list[int] = []

        def on_send(session: Session, sent: Sent) -> bool:
            seen.append(context.budget.used)
            return False

        script.on_send = on_send
        writer = PartitionedProducer(context, "t", options(batching_max_messages=100_000))
        for number in range(2000):
            properties = [("name", "x" * 50), ("other", "y" * 50)]
            message = MessageFields(b"small", f"key-{number}", properties=properties)
            writer.send(message)
            assert context.budget.used <= limit
        writer.close()
        assert len(payloads_of(script)) == 2000
        assert max(seen) <= limit
        assert context.budget.used == 0


@pytest.mark.fault(106)
def test_a_writer_that_needs_memory_has_the_batches_of_others_sent() -> None:
    with topic(memory_limit=100_000) as (script, context, _):
        first = PartitionedProducer(context, "a", options())
        second = PartitionedProducer(context, "b", options(send_timeout=20.0))
        results = Results()
        first.open()
        for _ in range(80):
            first.send(MessageFields(bytes(500)), results)
        assert not script.sends
        # Nobody flushes the first one, and nothing else would be acknowledged.
        second.send(MessageFields(bytes(60_000)), results, at_once=True)
        wait_until(lambda: len(results.ids) == 81)
        first.abort()
        second.abort()


# --- going on -------------------------------------------------------------------------------


@pytest.mark.fault(90, 107)
def test_a_producer_with_goes_on_loses_only_the_message_that_timed_out() -> None:
    with topic() as (script, context, _):
        script.on_send = lambda session, sent: sent.sequence_id == 0
        results = Results()
        producer = TopicProducer(
            context, "t", ProducerOptions(send_timeout=1.5), survives_timeouts=True
        )
        producer.send(single(b"lost", results))
        with pytest.raises(OperationTimeout):
            producer.flush()
        assert [type(error) for error in results.errors] == [OperationTimeout]
        producer.send(single(b"next", results))
        producer.flush()
        assert [found.entry_id for found in results.ids if found] == [0]
        assert script.sequence_ids == [0, 1]
        # A late receipt has no effect.
        session = script.producers[0][0]
        script.acknowledge(session, script.sends[0])
        producer.send(single(b"last", results))
        producer.close()
        assert len(results.ids) == 2
        assert producer.counts.reconnects == 0
        assert context.budget.used == 0


@pytest.mark.fault(107)
def test_of_a_message_in_chunks_all_that_is_left_fails_with_the_first_late_one() -> None:
    script = TopicScript(max_message_size=1000)
    with topic(script) as (_, context, _):
        script.on_send = lambda session, sent: sent.sequence_id == 0
        results = Results()
        chosen = ProducerOptions(send_timeout=1.5, chunking_enabled=True, batching_enabled=False)
        producer = TopicProducer(context, "t", chosen, survives_timeouts=True)
        producer.send(single(bytes(5000), results))
        with pytest.raises(OperationTimeout):
            producer.flush()
        assert len(results.errors) == 1
        producer.send(single(b"next", results))
        producer.close()
        assert len(results.ids) == 1
        assert context.budget.used == 0


class _Forgetful(list[Sent]):
    def append(self, sent: Sent) -> None:
        """Keep nothing."""
