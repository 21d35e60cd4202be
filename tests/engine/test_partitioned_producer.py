"""Topic writers: each message to its partition, in order; closed only when all are stored."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_spark.engine import forks
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.engine.producers.routing import PartitionRouter
from pulsar_spark.errors import (
    ClosedError,
    InvalidRow,
    MessageTooLarge,
    NotAllowed,
    OperationTimeout,
    TopicNotFound,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.outgoing_messages import MessageFields
from tests import brief
from tests.engine.producing import TOPIC, Results, Sent, TopicScript, payloads_of, topic, unpack
from tests.engine.scripted_broker import Session
from tests.outgoing import behind, messages_in, outgoing
from tests.support.waiting import wait_until


def options(**changes: Any) -> ProducerOptions:
    return ProducerOptions(**{"send_timeout": 10.0, **changes})


def by_partition(script: TopicScript) -> dict[int, list[bytes]]:
    """Return the payloads of each partition, in order."""
    partition_of = {
        command.producer_id: int(command.topic.rpartition("-")[2])
        for _, command in script.producers
    }
    found: dict[int, list[bytes]] = {}
    all_sends = script.sends
    for sent in all_sends:
        script.sends = [sent]
        payloads = found.setdefault(partition_of[sent.command.producer_id], [])
        payloads += payloads_of(script)
    script.sends = all_sends
    return found


def test_a_topic_without_partitions_is_written_as_it_is() -> None:
    with topic() as (script, context, _):
        with PartitionedProducer(context, "t", options()) as writer:
            writer.write(outgoing([b"%d" % number for number in range(2500)]))
        assert {command.topic for _, command in script.producers} == {TOPIC}
        assert payloads_of(script) == [b"%d" % number for number in range(2500)]
        assert [sent.command.num_messages for sent in script.sends] == [1000, 1000, 500]
        assert writer.counts.acknowledged == writer.counts.messages == 2500
        assert list(writer.last_message_ids) == [TOPIC]


def test_a_single_partition_is_written_as_it_is_named() -> None:
    with topic(TopicScript(partitions=4)) as (script, context, _):
        with PartitionedProducer(context, "t-partition-2", options()) as writer:
            writer.write(outgoing([b"1"], keys=["any"]))
        assert {command.topic for _, command in script.producers} == {f"{TOPIC}-partition-2"}


def test_messages_without_a_key_go_batch_by_batch_to_all_partitions() -> None:
    with topic(TopicScript(partitions=3)) as (script, context, _):
        with PartitionedProducer(context, "t", options(batching_max_messages=10)) as writer:
            writer.write(outgoing([b"%d" % number for number in range(30)]))
        assert [sent.command.num_messages for sent in script.sends] == [10, 10, 10]
        assert sorted(by_partition(script)) == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 3, 10, 500, 1000])
@pytest.mark.parametrize("gap", [False, True])
def test_without_batching_each_partition_has_one_message_in_turn(count: int, gap: bool) -> None:
    payloads: list[bytes | None] = [b"%d" % number for number in range(count)]
    if gap:
        payloads[count // 2] = None
    with topic(TopicScript(partitions=3)) as (script, context, _):
        with PartitionedProducer(context, "t", options(batching_enabled=False)) as writer:
            first = writer._router.current
            writer.write(outgoing(payloads))
        expected: dict[int, list[bytes]] = {}
        for number, payload in enumerate(payloads):
            expected.setdefault((first + number) % 3, []).append(payload or b"")
        assert by_partition(script) == expected
        assert not any(sent.metadata.HasField("num_messages_in_batch") for sent in script.sends)


def test_without_batching_a_single_partition_gets_all_in_order() -> None:
    chosen = options(batching_enabled=False, routing_mode="SinglePartition")
    payloads = [b"%d" % number for number in range(300)]
    with topic(TopicScript(partitions=3)) as (script, context, _):
        with PartitionedProducer(context, "t", chosen) as writer:
            writer.write(outgoing(payloads))
        assert list(by_partition(script).values()) == [payloads]


def test_single_partition_mode_writes_to_one() -> None:
    with topic(TopicScript(partitions=3)) as (script, context, _):
        single = options(batching_max_messages=10, routing_mode="SinglePartition")
        with PartitionedProducer(context, "t", single) as writer:
            writer.write(outgoing([b""] * 30))
        assert len(by_partition(script)) == 1
        assert len(script.producers) == 1


@pytest.mark.parametrize("scheme", ["JavaStringHash", "Murmur3_32Hash"])
@pytest.mark.parametrize("rich", [False, True])
def test_keys_go_to_their_partitions_in_order(scheme: str, rich: bool) -> None:
    keys = [f"key-{number % 37}" for number in range(1000)]
    payloads = [b"%d" % number for number in range(1000)]
    router = PartitionRouter(4, hashing_scheme=scheme)
    expected: dict[int, list[bytes]] = {}
    for key, payload in zip(keys, payloads, strict=True):
        expected.setdefault(router.partition_of(key.encode()), []).append(payload)
    with topic(TopicScript(partitions=4)) as (script, context, _):
        small = options(batching_max_messages=50, hashing_scheme=scheme)
        with PartitionedProducer(context, "t", small) as writer:
            times = [5] * 1000 if rich else None
            writer.write(outgoing(payloads, keys=keys, event_times=times))
        assert by_partition(script) == expected


@pytest.mark.fault(95)
def test_columns_with_gaps_keep_their_order() -> None:
    payloads = [None if number % 7 == 3 else b"%d" % number for number in range(3000)]
    with topic() as (script, context, _):
        with PartitionedProducer(context, "t", options()) as writer:
            writer.write(outgoing(payloads))
        assert payloads_of(script) == [payload or b"" for payload in payloads]
        nulls = [meta.null_value for sent in script.sends for meta in unpack(sent)]
        assert nulls == [payload is None for payload in payloads]


@pytest.mark.fault(95)
@pytest.mark.parametrize(
    "keys", [["a", None, "b"], ["a", b"\xff", "b"], ["a", "b", "c"], ["", "", ""], ["", None, b""]]
)
@pytest.mark.parametrize("payloads", [[b"1", b"2", b"3"], [b"1", None, b""]])
def test_keys_of_all_kinds_arrive(keys: list[Any], payloads: list[bytes | None]) -> None:
    with topic() as (script, context, _):
        with PartitionedProducer(context, "t", options()) as writer:
            writer.write(outgoing(payloads, keys=keys))
        (sent,) = script.sends
        found = unpack(sent)
        for meta, key, payload in zip(found, keys, payloads, strict=True):
            assert meta.HasField("partition_key") == (key is not None)
            assert meta.partition_key_b64_encoded == isinstance(key, bytes)
            assert meta.null_value == (payload is None)
            if isinstance(key, str):
                assert meta.partition_key == key


def test_messages_can_be_given_one_by_one_and_to_a_partition() -> None:
    with topic(TopicScript(partitions=3)) as (script, context, _):
        results = Results()
        with PartitionedProducer(context, "t", options()) as writer:
            writer.send(MessageFields(b"x", "apple"), results)
            writer.send(MessageFields(b"y"), results, partition=1)
        partition = PartitionRouter(3).partition_of(b"apple")
        assert partition != 1
        assert by_partition(script) == {partition: [b"x"], 1: [b"y"]}
        found = sorted(message_id.partition for message_id in results.ids if message_id)
        assert found == sorted([partition, 1])


def test_a_batch_that_is_not_full_is_sent_after_a_while_if_asked() -> None:
    with topic() as (script, context, _):
        writer = PartitionedProducer(context, "t", options(batching_max_delay=0.02), timed=True)
        stored = threading.Event()
        writer.send(MessageFields(b"x"), lambda error, message_id: stored.set())
        assert stored.wait(5)
        stored.clear()
        writer.send(MessageFields(b"y"), lambda error, message_id: stored.set())
        assert stored.wait(5)
        writer.close()
        assert len(script.sends) == 2


def test_a_batch_waits_for_flush_otherwise() -> None:
    with topic() as (script, context, _):
        writer = PartitionedProducer(context, "t", options(batching_max_delay=0.0))
        writer.open()
        writer.send(MessageFields(b"x"))
        # A timer of the batch would have been earlier, and what it sends is before a question.
        later = threading.Event()
        context.timers.after(0.01, later.set)
        assert later.wait(60)
        context.lookup.partitions("t")
        assert not script.sends
        writer.flush()
        assert len(script.sends) == 1
        writer.close()


def test_producers_are_opened_when_a_first_message_goes_there() -> None:
    with topic(TopicScript(partitions=10)) as (script, context, _):
        with PartitionedProducer(context, "t", options()) as writer:
            writer.write(outgoing([b"1"], keys=["a"]))
        assert len(script.producers) == 1


def test_all_producers_can_be_opened_at_once() -> None:
    with topic(TopicScript(partitions=30)) as (script, context, _):
        with PartitionedProducer(context, "t", options()) as writer:
            writer.open()
            assert len(writer.producers) == 30
            assert len(script.producers) == 30
        wait_until(lambda: len(script.closed) == 30)


def test_what_keeps_one_producer_from_opening_is_raised() -> None:
    script = TopicScript(partitions=5)

    def on_producer(session: Session, command: pb.CommandProducer) -> bool:
        if not command.topic.endswith("-3"):
            return False
        session.send(brief.error(command.request_id, pb.TopicNotFound, "gone"))
        return True

    script.on_producer = on_producer
    with topic(script) as (_, context, _):
        writer = PartitionedProducer(context, "t", options())
        with pytest.raises(TopicNotFound, match="partition-3"):
            writer.open()
        with pytest.raises(TopicNotFound):
            writer.write(outgoing([b""]))
        with pytest.raises(TopicNotFound):
            writer.close()


def test_many_open_batches_share_half_of_the_memory() -> None:
    with topic(TopicScript(partitions=4), memory_limit=80_000) as (script, context, _):
        with PartitionedProducer(context, "t", options()) as writer:
            writer.write(outgoing([bytes(1000)] * 100, keys=[str(k) for k in range(100)]))
        assert max(len(sent.payload) for sent in script.sends) <= 10_000


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.fault(86)
@pytest.mark.parametrize("keys", [None, ["k"] * 6, [None, "k"] * 3])
@pytest.mark.parametrize("partitions", [0, 3])
def test_a_message_that_is_too_large_is_named_by_its_row(keys: Any, partitions: int) -> None:
    payloads = [b"1", b"2", b"3", b"4", bytes(300_000), b"6"]
    script = TopicScript(partitions, max_message_size=200_000)
    with topic(script) as (_, context, broker):
        writer = PartitionedProducer(context, "t", options())
        columns = outgoing(payloads, keys=keys)
        with pytest.raises(MessageTooLarge, match=r"row 1004: .* 300\d\d\d bytes") as raised:
            writer.write(columns, behind(1000))
        assert raised.value.topic is not None
        writer.close()
        assert len(broker.sessions) == 1
        assert b"1" in payloads_of(script)


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"properties": [("a", "\ud800")]},
        {"key": "\ud800"},
        {"event_time": -1},
        {"event_time": 2**63},
        {"deliver_at": -1},
    ],
)
@pytest.mark.parametrize("partitions", [0, 3])
def test_a_message_that_cannot_be_sent_is_refused_and_the_next_one_goes(
    batching: bool, fields: dict[str, Any], partitions: int
) -> None:
    with topic(TopicScript(partitions)) as (script, context, _):
        results = Results()
        with PartitionedProducer(context, "t", options(batching_enabled=batching)) as writer:
            writer.send(MessageFields(b"1"), results)
            with pytest.raises(InvalidRow):
                writer.send(MessageFields(b"2", **fields), results)
            writer.send(MessageFields(b"3"), results)
        assert sorted(payloads_of(script)) == [b"1", b"3"]
        assert (len(results.ids), results.errors) == (2, [])


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("bad", [-5, 2**63, 2**70])
def test_an_id_that_no_message_can_have_is_an_error_and_later_messages_are_sent(
    batching: bool, bad: int
) -> None:
    with topic() as (script, context, _):
        writer = PartitionedProducer(context, "t", options(batching_enabled=batching))
        with pytest.raises(InvalidRow, match="no sequence id"):
            writer.send(MessageFields(b"bad", sequence_id=bad), at_once=True)
        writer.send(MessageFields(b"good", sequence_id=7))
        writer.close()
        assert payloads_of(script) == [b"good"]


@pytest.mark.fault(89)
def test_the_first_final_error_is_the_writers() -> None:
    script = TopicScript(partitions=4)
    with topic(script) as (_, context, _):

        def on_send(session: Session, sent: Sent) -> bool:
            if payloads_of(script)[-1] != b"last":
                return False
            producer_id, sequence_id = sent.command.producer_id, sent.sequence_id
            session.send(brief.send_error(producer_id, sequence_id, pb.NotAllowedError, "denied"))
            return True

        script.on_send = on_send
        writer = PartitionedProducer(context, "t", options(batching_enabled=False))
        keys = [str(number) for number in range(50)]
        writer.write(outgoing([b"x"] * 49 + [b"last"], keys=keys))
        with pytest.raises(NotAllowed, match="denied"):
            writer.flush()
        with pytest.raises(NotAllowed):
            writer.write(outgoing([b"x"]))
        with pytest.raises(NotAllowed):
            writer.send(MessageFields(b"x"))
        with pytest.raises(NotAllowed):
            writer.close()
        assert context.budget.used == 0


def test_flush_can_be_given_less_time() -> None:
    with topic() as (script, context, _):
        script.on_send = lambda session, sent: True
        writer = PartitionedProducer(context, "t", options())
        writer.write(outgoing([b"x"]))
        with pytest.raises(OperationTimeout):
            writer.flush(0.1)
        writer.abort()
        with pytest.raises(ClosedError):
            writer.write(outgoing([b"x"]))


def test_an_error_in_the_callers_code_leaves_without_waiting() -> None:
    with topic() as (script, context, _):
        script.on_send = lambda session, sent: True
        results = Results()

        def write() -> None:
            with PartitionedProducer(context, "t", options()) as writer:
                writer.write(outgoing([b"x"] * 5000))
                writer.send(MessageFields(b"y"), results)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write()
        assert [type(error) for error in results.errors] == [ClosedError]
        assert context.budget.used == 0


def test_what_is_added_while_others_are_told_of_the_end_is_told_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with topic() as (_, context, _):
        writer = PartitionedProducer(context, "t", options(), timed=True)
        writer.open()
        batcher = writer._batcher(0)
        producer = batcher.producer
        producer.abort()
        end_turn, results = producer._end_turn, Results()

        def late() -> None:
            if len(results.errors) == 1:
                batcher.add(b"y", callback=results)
                batcher.trigger_flush()
            end_turn()

        monkeypatch.setattr(producer, "_end_turn", late)
        batcher.add(b"x", callback=results)
        batcher.trigger_flush()
        assert [type(error) for error in results.errors] == [ClosedError] * 2


def test_close_may_be_called_twice() -> None:
    with topic() as (_, context, _):
        writer = PartitionedProducer(context, "t", options())
        writer.write(outgoing([b"x"]))
        writer.close()
        writer.close()
        with pytest.raises(ClosedError):
            writer.flush()


@pytest.mark.fault(75)
def test_the_error_in_a_forked_child_says_to_create_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with topic() as (_, context, _):
        writer = PartitionedProducer(context, "t", options())
        writer.write(outgoing([b"x"]))
        with monkeypatch.context() as patched:
            patched.setattr(forks, "_counted", [forks.fork_count() + 1])
            with pytest.raises(ClosedError, match="fork"):
                writer.write(outgoing([b"x"]))
            with pytest.raises(ClosedError, match="fork"):
                writer.producers[0].flush()
            writer.producers[0].close()
        writer.close()


@pytest.mark.parametrize("partitions", [0, 3])
def test_columns_of_everything_arrive(partitions: int) -> None:
    columns = outgoing(
        [b"1", None, b"3"],
        keys=["k", b"\xff", None],
        ordering_keys=[None, b"o", b""],
        event_times=[None, 5, None],
        properties=[None, {"a": "b"}, [("c", "1"), ("c", "2")]],
        deliver_at=[None, 9, None],
        null_keys=[False, False, True],
        sequence_ids=[6, 7, 8],
    )
    with topic(TopicScript(partitions)) as (script, context, _):
        with PartitionedProducer(context, "t", options(batching_enabled=False)) as writer:
            writer.write(columns)
        first, second, third = sorted(script.sends, key=lambda sent: sent.sequence_id)
        assert [sent.sequence_id for sent in (first, second, third)] == [6, 7, 8]
        assert [sent.payload for sent in (first, second, third)] == [b"1", b"", b"3"]
        for sent in script.sends:
            for name in ("sequence_id", "publish_time", "producer_name"):
                sent.metadata.ClearField(name)
        wanted = pb.MessageMetadata
        pair = pb.KeyValue
        assert first.metadata == wanted(partition_key="k")
        assert second.metadata == wanted(
            partition_key="/w==",
            partition_key_b64_encoded=True,
            ordering_key=b"o",
            event_time=5,
            properties=[pair(key="a", value="b")],
            deliver_at_time=9,
            null_value=True,
        )
        assert third.metadata == wanted(
            ordering_key=b"",
            properties=[pair(key="c", value="1"), pair(key="c", value="2")],
            null_partition_key=True,
        )


@pytest.mark.fault(95)
@pytest.mark.parametrize("partitions", [0, 3])
def test_a_gap_far_into_a_column_makes_no_message_come_twice(partitions: int) -> None:
    payloads: list[bytes | None] = [b"%d" % number for number in range(6000)]
    payloads[5000] = None
    with topic(TopicScript(partitions=partitions)) as (script, context, _):
        with PartitionedProducer(context, "t", options(batching_enabled=False)) as writer:
            writer.write(outgoing(payloads))
        assert sorted(payloads_of(script)) == sorted(payload or b"" for payload in payloads)


@pytest.mark.parametrize("batching", [False, True])
def test_rows_with_fields_keep_them_and_their_order(batching: bool) -> None:
    count = 2500
    columns = outgoing(
        [None if number % 9 == 1 else b"%d" % number for number in range(count)],
        keys=[None if number % 5 == 1 else f"k{number}" for number in range(count)],
        event_times=[number or None for number in range(count)],
        properties=[{"n": str(number)} for number in range(count)],
        # A message with a delivery time is sent alone, in its order.
        deliver_at=[2**41 if number in (0, 1000, 1001) else None for number in range(count)],
    )
    with topic() as (script, context, _):
        with PartitionedProducer(context, "t", options(batching_enabled=batching)) as writer:
            writer.write(columns)
        assert payloads_of(script) == [payload or b"" for payload in columns.payloads]
        if batching:
            return
        for number, sent in enumerate(script.sends):
            meta = sent.metadata
            assert meta.sequence_id == number
            assert meta.event_time == number
            assert [(pair.key, pair.value) for pair in meta.properties] == [("n", str(number))]
            assert meta.HasField("partition_key") == (number % 5 != 1)
            assert meta.null_value == (number % 9 == 1)
            assert bool(meta.deliver_at_time) == (number in (0, 1000, 1001))


@pytest.mark.fault(95)
@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("keyed", ["none", "some", "all"])
@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("batching,most", [(False, 1), (True, 2), (True, 7), (True, 1000)])
def test_columns_are_sent_as_their_messages_are_one_by_one(
    partitions: int, keyed: str, batching: bool, most: int, by_key: bool
) -> None:
    chosen = options(batching_enabled=batching, batching_max_messages=most, batching_by_key=by_key)
    _are_sent_alike(partitions, keyed, chosen)


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("keyed", ["none", "some", "all"])
@pytest.mark.parametrize("others", [{"compression": pb.LZ4}, {"chunking_enabled": True}])
def test_columns_without_batches_are_sent_as_their_messages_are_one_by_one(
    partitions: int, keyed: str, others: dict[str, Any]
) -> None:
    _are_sent_alike(partitions, keyed, options(batching_enabled=False, **others))


def _are_sent_alike(partitions: int, keyed: str, chosen: ProducerOptions) -> None:
    sizes = [40_000 if number == 50 else number % 5 for number in range(300)]
    payloads: list[bytes | None] = [bytes(size) for size in sizes]
    keys: list[str | None] | None = [f"k{number % 40}" for number in range(300)]
    if keyed != "all":
        keys = [None if number % 3 else f"k{number}" for number in range(300)]
    if keyed == "none":
        keys = None
    properties = [[("n", str(number))] * (number % 3) for number in range(300)]
    columns = outgoing(payloads, keys, properties=properties, event_times=range(300))

    def one_by_one(writer: PartitionedProducer) -> None:
        for message in messages_in(columns):
            writer.send(message)

    found = []
    ways: list[Callable[[PartitionedProducer], None]] = [
        lambda made: made.write(columns),
        one_by_one,
    ]
    for write in ways:
        with topic(TopicScript(partitions=partitions)) as (script, context, _):
            with PartitionedProducer(context, "t", chosen) as writer:
                write(writer)
                # Messages of other kinds follow those that wait in a batch.
                writer.write(outgoing([b"plain"] * 3, ["k1"] * 3 if keys else None))
                writer.send(MessageFields(b"last", "k1"))
                write(writer)
            sent = _messages(script)
            if chosen.batching_by_key:
                # Each key's messages keep their order.
                sent.sort(key=lambda message: message[-1])
            found.append(sorted(sent) if partitions else sent)
    assert found[0] == found[1]
    assert len(found[0]) == 604


def _messages(script: TopicScript) -> list[tuple[bytes, list[tuple[str, str]], int, str]]:
    found = []
    for sent in script.sends:
        metadata: Any = [sent.metadata]
        if sent.metadata.HasField("num_messages_in_batch"):
            metadata = unpack(sent)
            assert sent.metadata.partition_key == metadata[0].partition_key
        own = TopicScript()
        own.sends = [sent]
        found += [
            (
                payload,
                [(pair.key, pair.value) for pair in meta.properties],
                meta.event_time,
                meta.partition_key,
            )
            for payload, meta in zip(payloads_of(own), metadata, strict=True)
        ]
    return found


@pytest.mark.parametrize("batching", [False, True])
def test_a_message_with_fields_that_is_too_large_is_named(batching: bool) -> None:
    payloads: list[bytes | None] = [bytes(5000) if row == 30 else b"x" for row in range(50)]
    with topic(TopicScript(max_message_size=1000)) as (script, context, _):
        chosen = options(batching_enabled=batching, batching_max_messages=10)
        writer = PartitionedProducer(context, "t", chosen)
        with pytest.raises(MessageTooLarge, match="row 130"):
            writer.write(outgoing(payloads, event_times=[1] * 50), behind(100))
        # Written, and received a little later.
        wait_until(lambda: len(payloads_of(script)) >= 30)
        assert len(payloads_of(script)) == 30
        writer.abort()


@pytest.mark.fault(86)
@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("batching", [False, True])
def test_the_row_of_a_column_that_is_too_large_is_named_wherever_it_is(
    partitions: int, keyed: bool, batching: bool
) -> None:
    payloads = [b"%d" % number for number in range(100)]
    payloads[70] = bytes(5000)
    keys = [f"key-{number}" for number in range(100)] if keyed else None
    script = TopicScript(partitions=partitions, max_message_size=1000)
    with topic(script) as (_, context, _):
        # The options allow larger batches than the broker.
        writer = PartitionedProducer(context, "t", options(batching_enabled=batching))
        writer.write(outgoing([b"before"] * 3, keys=["a", "b", "c"] if keyed else None))
        with pytest.raises(MessageTooLarge, match="row 170:"):
            writer.write(outgoing(payloads, keys=keys), behind(100))
        writer.abort()
