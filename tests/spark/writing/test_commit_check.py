"""What is committed can be read, though a coordinator forgets to tell a topic."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import AuthorizationError, TornBatch
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.topic import Topic
from tests.integration.sink_job import TASKS, Sink, rows, whole
from tests.spark.writing.test_exactly_once import TOPIC, broker, seen, sink, written

__all__ = ["broker", "sink"]

Ends = Callable[[Topic, TxnId, bool], None]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Ends], None]:
    """Have a function write the first markers of the test's topic, one for each task."""
    original = Topic.end_transaction

    def install(ends: Ends) -> None:
        left = [TASKS]

        def end_transaction(topic: Topic, txn: TxnId, *, commit: bool) -> None:
            if topic.name == TOPIC and left[0]:
                left[0] -= 1
                ends(topic, txn, commit)
            else:
                original(topic, txn, commit=commit)

        monkeypatch.setattr(Topic, "end_transaction", end_transaction)

    return install


def forget(topic: Topic, txn: TxnId, commit: bool) -> None:
    """Write none, as a coordinator that takes a topic on the move for a deleted one."""


@pytest.mark.fault(14, 80)
def test_markers_that_the_coordinator_left_out_are_written_again(
    broker: EmbeddedBroker, sink: Sink, marker: Callable[[Ends], None]
) -> None:
    messages = written(sink, 0)
    marker(forget)
    sink.writer().commit(list(messages), 0)
    assert seen(broker) == Counter(whole(0))
    told = [command.body for command in broker.faults.log("END_TXN_ON_PARTITION")]
    assert {(TxnId(body.txnid_most_bits, body.txnid_least_bits), body.topic) for body in told} == {
        (message.txn, TOPIC) for message in messages
    }
    assert {body.txn_action for body in told} == {pb.COMMIT}
    assert len({body.request_id for body in told}) == TASKS
    # Brokers abort open transactions up to this number, and refuse the command without it.
    assert {body.txnid_least_bits_of_low_watermark for body in told} == {2**64 - 1}


def test_a_decision_that_another_driver_carries_out_is_checked_too(
    broker: EmbeddedBroker, sink: Sink, marker: Callable[[Ends], None]
) -> None:
    messages = written(sink, 0)
    refused = broker.faults.error("END_TXN_ON_PARTITION", pb.AuthorizationError, times=None)
    silent = broker.faults.error("END_TXN", pb.AuthorizationError, times=None)
    with refused, silent, pytest.raises(AuthorizationError):
        sink.writer().commit(list(messages), 0)
    marker(forget)
    sink.run(0)
    assert seen(broker) == Counter(whole(0))


def test_a_committed_transaction_that_a_topic_has_dropped_tears_the_batch(
    broker: EmbeddedBroker, sink: Sink, marker: Callable[[Ends], None]
) -> None:
    """As the low watermark of a later transaction does to one whose marker is missing."""
    messages = written(sink, 0)
    original = Topic.end_transaction
    marker(lambda topic, txn, commit: original(topic, txn, commit=txn != messages[0].txn))
    for _ in range(2):
        with pytest.raises(TornBatch, match=rf"batch 0 torn: .* wrote to {TOPIC}"):
            sink.writer().commit(list(messages), 0)
    assert seen(broker) == Counter(whole(0)) - Counter(rows(0, 0))


@pytest.mark.slow
def test_a_marker_that_the_broker_refuses_is_told_with_the_next_batch(
    broker: EmbeddedBroker,
    sink: Sink,
    marker: Callable[[Ends], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    messages = written(sink, 0)
    marker(forget)
    refused = broker.faults.error(
        "END_TXN_ON_PARTITION", pb.NotAllowedError, "only superusers", times=None
    )
    with refused:
        sink.writer().commit(list(messages), 0)
        assert not warnings_in(caplog)
        sink.run(1)
    told = [text for text in warnings_in(caplog) if "batch 0 is committed, but readers" in text]
    assert len(told) == 1
    assert "only superusers" in told[0]
    sink.run(2)
    assert seen(broker) == Counter(whole(0) + whole(1) + whole(2))


def test_rows_that_are_dropped_later_fail_the_next_batch(
    broker: EmbeddedBroker, sink: Sink, marker: Callable[[Ends], None]
) -> None:
    messages = written(sink, 0)
    marker(forget)
    with broker.faults.error("END_TXN_ON_PARTITION", pb.NotAllowedError, times=None):
        sink.writer().commit(list(messages), 0)
    # As the low watermark of a later transaction does.
    with ClientContext(ClientOptions(broker.service_url)) as context:
        for txn in [message.txn for message in messages if message.txn]:
            context.lookup.connection(TOPIC).request(
                partial(commands.end_txn_on_partition, txn=txn, topic=TOPIC, action=pb.ABORT)
            )
    for _ in range(2):
        with pytest.raises(TornBatch, match="batch 0 torn"):
            sink.run(1)
    assert seen(broker) == Counter(whole(1))


def test_the_open_transaction_of_another_writer_holds_no_commit_up(
    broker: EmbeddedBroker, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    with PulsarClient(broker.service_url) as client:
        other = client.new_transaction(60_000)
        client.create_producer(TOPIC).send(b"other", txn=other)
        sink.run(0)
        assert not seen(broker)
        other.commit()
    assert seen(broker) == Counter([*whole(0), "other"])
    assert not warnings_in(caplog)


def test_a_role_that_may_not_read_is_told_and_writes_all_the_same(
    broker: EmbeddedBroker, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    messages = written(sink, 0)
    with broker.faults.error("SUBSCRIBE", pb.AuthorizationError, topic="t", times=None):
        sink.writer().commit(list(messages), 0)
    assert "whether readers see it is unknown" in caplog.text
    assert seen(broker) == Counter(whole(0))


def test_a_topic_that_was_deleted_meanwhile_tears_nothing(
    broker: EmbeddedBroker, sink: Sink
) -> None:
    messages = written(sink, 0)
    broker.delete_topic("t")
    sink.writer().commit(list(messages), 0)
