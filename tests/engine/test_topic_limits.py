"""Topics that allow only smaller messages than their broker: batches obey, and the rest goes on."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.inflight_window import MessageCallback
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.producers.submission import Submission
from pulsar_spark.errors import (
    DroppedAsDuplicate,
    NotAllowed,
    OperationTimeout,
    PulsarError,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_messages import MessageFields, OutgoingMessages
from tests import brief
from tests.engine.producing import Results, Sent, TopicScript, payloads_of, topic, unpack
from tests.engine.scripted_broker import Session
from tests.outgoing import behind, outgoing, single
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fault(137)

# What brokers count besides metadata and payload: magic number, checksum, size of the metadata.
_HEAD = 10


class Policy(TopicScript):
    """A topic that refuses larger entries than `most`; it keeps what it stored."""

    text = "Exceed maximum message size"

    def __init__(self, most: int, partitions: int = 0) -> None:
        super().__init__(partitions)
        self.most = most
        self.stored: list[Sent] = []
        self.refused = 0
        self.on_send = self.judge
        self.hold: Callable[[Session, Sent], bool] = lambda session, sent: False

    def judge(self, session: Session, sent: Sent) -> bool:
        if self.hold(session, sent):
            return True
        size = sent.metadata.ByteSize() + len(sent.payload) + _HEAD
        command = sent.command
        if size > self.most:
            self.refused += 1
            named = max(command.sequence_id, command.highest_sequence_id or 0)
            error = brief.send_error(command.producer_id, named, pb.NotAllowedError, self.text)
            session.send(error)
            return True
        self.stored.append(sent)
        return False

    def payloads(self) -> list[bytes]:
        """Return what is stored, in order."""
        other = TopicScript()
        other.sends = self.stored
        return payloads_of(other)


def options(**changes: Any) -> ProducerOptions:
    return ProducerOptions(**{"send_timeout": 30.0, **changes})


def numbered(count: int, size: int = 100, seed: int = 0) -> list[bytes]:
    """Return distinct payloads of many sizes."""
    sizes = random.Random(seed)
    return [b"%06d" % number + b"x" * sizes.randrange(size) for number in range(count)]


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keys": {"keys": lambda count: [f"k{number % 7}" for number in range(count)]},
    "binary keys": {"keys": lambda count: [b"k%d" % (number % 7) for number in range(count)]},
    "properties": {"properties": lambda count: [{"n": str(number)} for number in range(count)]},
    "event times": {"event_times": lambda count: list(range(1, count + 1))},
    "ordering keys": {"ordering_keys": lambda count: [b"o%d" % row for row in range(count)]},
    "own ids": {"sequence_ids": lambda count: list(range(50, 50 + 3 * count, 3))},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compression", [pb.NONE, pb.ZLIB])
def test_batches_obey_and_messages_keep_their_order_and_fields(form: str, compression: int) -> None:
    script = Policy(2000)
    count = 3000
    payloads = numbered(count)
    fields = {name: make(count) for name, make in FORMS[form].items()}
    with topic(script) as (_, context, broker):
        with PartitionedProducer(context, "t", options(compression=compression)) as writer:
            for start in range(0, count, 1100):
                part = {name: column[start : start + 1100] for name, column in fields.items()}
                writer.write(outgoing(payloads[start : start + 1100], **part))
            writer.flush()
            assert writer.counts.acknowledged == writer.counts.messages == count
            assert writer.counts.duplicates == 0
        assert script.payloads() == payloads
        assert context.budget.used == 0
        assert len(broker.sessions) == 1
    # The limit is learned: nearly all batches are made small at once.
    assert script.refused < 15
    assert len(script.stored) < 10 * count * 60 // 2000
    metadata = [one for sent in script.stored for one in _messages(sent)]
    for name, column in fields.items():
        assert [_field(one, name) for one in metadata] == list(column)
    ids = [one.sequence_id for one in metadata]
    assert ids == fields.get("sequence_ids", list(range(count)))


def _messages(sent: Sent) -> Sequence[pb.SingleMessageMetadata | pb.MessageMetadata]:
    return unpack(sent) if sent.metadata.HasField("num_messages_in_batch") else [sent.metadata]


def _field(one: pb.SingleMessageMetadata | pb.MessageMetadata, name: str) -> Any:
    if name == "properties":
        return {pair.key: pair.value for pair in one.properties}
    if name == "keys":
        from base64 import b64decode

        return b64decode(one.partition_key) if one.partition_key_b64_encoded else one.partition_key
    singular = {"event_times": "event_time", "ordering_keys": "ordering_key"}
    return getattr(one, singular.get(name, "sequence_id"))


@pytest.mark.parametrize("batching_max_messages", [1000, 7])
def test_messages_sent_one_by_one_obey_too(batching_max_messages: int) -> None:
    script = Policy(600)
    payloads = numbered(500)
    chosen = options(batching_max_messages=batching_max_messages)
    outcomes: list[tuple[int, PulsarError | None, MessageIdAdv | None]] = []
    with topic(script) as (_, context, _), _client_like(context, chosen) as writer:
        for number, payload in enumerate(payloads):
            fields = {"n": "1"} if number % 50 == 3 else {}
            message = MessageFields(payload, properties=list(fields.items()))
            writer.send(message, _collect(outcomes, number))
        writer.flush()
        assert script.payloads() == payloads
    assert [number for number, _, _ in outcomes] == list(range(500))
    places = [(found.entry_id, found.batch_index) for _, _, found in outcomes if found]
    assert places == sorted(set(places))
    assert len(places) == 500


def pair(payload: bytes, callback: MessageCallback) -> Submission:
    """Return a batch of two messages, which has one callback."""
    return Submission(OutgoingMessages([payload] * 2), per_entry=2, default=callback)


def _client_like(
    context: ClientContext, chosen: ProducerOptions, **more: Any
) -> PartitionedProducer:
    """Return a writer as PulsarClient's producer has it."""
    return PartitionedProducer(context, "t", chosen, timed=True, survives_timeouts=True, **more)


def _collect(
    outcomes: list[tuple[int, PulsarError | None, MessageIdAdv | None]], number: int
) -> Callable[[PulsarError | None, MessageIdAdv | None], None]:
    return lambda error, found: outcomes.append((number, error, found))


def test_batches_of_one_key_obey_and_each_keeps_its_order() -> None:
    script = Policy(400)
    payloads = numbered(600)
    keys = [f"k{number % 5}" for number in range(600)]
    ids = list(range(10, 610))
    with topic(script) as (_, context, _):
        chosen = options(batching_by_key=True)
        with PartitionedProducer(context, "t", chosen) as writer:
            writer.write(outgoing(payloads, keys=keys, sequence_ids=ids))
            writer.write(outgoing(payloads, keys=keys))
    found: dict[str, list[bytes]] = defaultdict(list)
    entries = [sent for sent in script.stored for _ in _messages(sent)]
    for entry, payload in zip(entries, script.payloads(), strict=True):
        assert {_field(one, "keys") for one in _messages(entry)} == {entry.metadata.partition_key}
        found[entry.metadata.partition_key].append(payload)
    assert found == {
        key: [p for p, own in zip(payloads, keys, strict=True) if own == key] * 2
        for key in set(keys)
    }


def test_nothing_follows_a_batch_that_may_be_too_large_before_its_receipt() -> None:
    script = Policy(10_000)
    held: list[tuple[Session, Sent]] = []

    def hold(session: Session, sent: Sent) -> bool:
        held.append((session, sent))
        return True

    script.hold = hold
    with topic(script) as (_, context, _):
        producer = TopicProducer(context, "t", options())
        for number, size in enumerate((20, 500, 100, 500, 900, 10)):
            producer.send(OutgoingMessages([b"%d" % number * size] * 2), 2)
        # The first and third are small; the second and fifth are the largest so far.
        for shown in (2, 5, 6):
            wait_until(lambda: len(held) >= shown)  # noqa: B023
            assert [sent.sequence_id // 2 for _, sent in held] == list(range(shown))
            for session, sent in held:
                if sent not in script.stored:
                    script.stored.append(sent)
                    script.acknowledge(session, sent)
        producer.close()


def test_without_order_nothing_waits_and_what_is_refused_comes_later() -> None:
    script = Policy(1000)
    waiting = threading.Event()
    script.hold = lambda session, sent: not waiting.wait(60)
    payloads = numbered(100, 30)
    with topic(script) as (_, context, _):
        chosen = options(batching_max_messages=40)
        writer = PartitionedProducer(context, "t", chosen, in_order=False)
        # Two batches that are refused, and one that is not.
        writer.write(outgoing([p + b"x" * 20 for p in payloads[:80]]))
        writer.write(outgoing([p + b"x" * 20 for p in payloads[80:]]))
        writer.flush_batches()
        waiting.set()
        writer.close()
        assert sorted(script.payloads()) == sorted(p + b"x" * 20 for p in payloads)


# --- messages that are too large by themselves ------------------------------------------------


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("form", ["plain", "keys", "properties"])
def test_a_row_that_is_too_large_is_named_with_its_size(
    batching: bool, partitions: int, form: str
) -> None:
    script = Policy(2000, partitions)
    payloads = numbered(300)
    payloads[217] = bytes(5000)
    fields = {name: make(300) for name, make in FORMS[form].items()}
    with topic(script) as (_, context, _):
        writer = PartitionedProducer(context, "t", options(batching_enabled=batching))

        def write() -> None:
            for start in range(0, 300, 100):
                part = {name: column[start : start + 100] for name, column in fields.items()}
                rows = outgoing(payloads[start : start + 100], **part)
                writer.write(rows, behind(100 + start))
            writer.flush()

        with pytest.raises(NotAllowed, match=r"row 317: a message of 50\d\d bytes") as caught:
            write()
        assert "set-max-message-size" in caught.value.remedy
        writer.abort()
        assert context.budget.used == 0


@pytest.mark.parametrize(
    "text,advice",
    [
        ("Exceeds max allowed delivery delay of 5000 milliseconds", "set-delayed-delivery"),
        ("Cannot send messages to a shadow topic", "source topic"),
        ("in other words", "policies of the broker"),
    ],
)
def test_what_is_refused_for_another_reason_than_its_size_gets_its_own_advice(
    text: str, advice: str
) -> None:
    script = Policy(0)
    script.text = text
    with topic(script) as (_, context, _):
        writer = PartitionedProducer(context, "t", options())
        writer.write(outgoing(numbered(8)), behind(0))
        with pytest.raises(NotAllowed, match=text) as caught:
            writer.flush()
        assert advice in caught.value.remedy
        assert "smaller" not in caught.value.remedy
        writer.abort()


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("plain", [True, False])
def test_one_of_many_messages_is_refused_alone_and_the_producer_goes_on(
    batching: bool, plain: bool
) -> None:
    script = Policy(2000)
    outcomes: list[tuple[int, PulsarError | None, MessageIdAdv | None]] = []
    with topic(script) as (_, context, broker):
        writer = _client_like(context, options(batching_enabled=batching))
        for number in range(200):
            payload = b"%d" % number + b"x" * (5000 if number in (10, 11, 150) else 50)
            if plain:
                writer.send_plain(payload, None, _collect(outcomes, number))
            else:
                message = MessageFields(payload, properties=[("a", "b")])
                writer.send(message, _collect(outcomes, number))
        with pytest.raises(NotAllowed, match="a message of 50"):
            writer.flush()
        # It is told once.
        writer.flush()
        assert [number for number, _, _ in outcomes] == list(range(200))
        refused = [number for number, error, _ in outcomes if isinstance(error, NotAllowed)]
        assert refused == [10, 11, 150]
        writer.send(MessageFields(b"later"), None)
        writer.close()
        stored = [int(payload.split(b"x")[0]) for payload in script.payloads()[:-1]]
        assert stored == [number for number in range(200) if number not in refused]
        assert context.budget.used == 0
        assert len(broker.sessions) == 1


@pytest.mark.parametrize("resumes", [False, True])
def test_a_limit_that_is_lowered_behind_a_batch_fails_it_as_a_whole(resumes: bool) -> None:
    """What follows it may be stored, and sending it again would change the order."""
    script = Policy(10_000)
    with topic(script) as (_, context, _):
        chosen = options(resumes=resumes, producer_name="p" if resumes else None)
        producer = TopicProducer(context, "t", chosen)
        large = [b"x" * 1000] * 3
        producer.send(OutgoingMessages(large), 3)
        producer.flush()
        held: list[tuple[Session, Sent]] = []

        def hold(session: Session, sent: Sent) -> bool:
            held.append((session, sent))
            return True

        script.hold = hold
        producer.send(OutgoingMessages(large), 3)
        producer.send(OutgoingMessages(large[:2]), 2)
        wait_until(lambda: len(held) == 2)
        script.hold, script.most = (lambda session, sent: False), 2500
        for session, sent in held:
            if not script.judge(session, sent):
                script.acknowledge(session, sent)
        kind: type[PulsarError] = DroppedAsDuplicate if resumes else NotAllowed
        with pytest.raises(kind, match=r"a batch of 3 messages of 3.*behind it may be stored"):
            producer.flush()
        producer.abort()


def test_nothing_is_stored_behind_a_row_that_another_attempt_would_leave_out() -> None:
    script = Policy(2000)
    script.success = {"last_sequence_id": 0}
    with topic(script) as (_, context, _):
        chosen = options(resumes=True, producer_name="p", batching_enabled=False)
        writer = PartitionedProducer(context, "t", chosen)
        payloads = [b"x" * (5000 if number == 7 else 10) for number in range(20)]
        with contextlib.suppress(NotAllowed):
            writer.write(outgoing(payloads, sequence_ids=list(range(1, 21))))
        with pytest.raises(NotAllowed, match="row 7:"):
            writer.flush()
        writer.abort()
    assert [sent.sequence_id for sent in script.stored] == list(range(1, 8))


# --- what else goes wrong at the same time ----------------------------------------------------


def test_what_times_out_alone_lets_the_others_go() -> None:
    script = Policy(10_000)
    first = [True]

    def hold(session: Session, sent: Sent) -> bool:
        held, first[0] = first[0], False
        return held

    script.hold = hold
    results = Results()
    with topic(script) as (_, context, _):
        chosen = options(send_timeout=1.0)
        producer = TopicProducer(context, "t", chosen, survives_timeouts=True)
        producer.submit(pair(b"x" * 500, results))
        wait_until(lambda: not first[0])
        wait_until(lambda: bool(results.errors))
        producer.submit(pair(b"y" * 500, results))
        with pytest.raises(OperationTimeout):
            producer.flush()
        producer.flush()
        assert [len(results.errors), len(results.ids)] == [1, 1]
        producer.close()


@pytest.mark.parametrize("seed", range(6))
def test_lost_connections_and_refusals_double_and_reorder_nothing(seed: int) -> None:
    luck = random.Random(seed)
    script = Policy(luck.choice([300, 1000, 5000]))
    known: set[int] = set()
    drops = [12]

    def hold(session: Session, sent: Sent) -> bool:
        # A topic with deduplication: what was stored is not stored again.
        if sent.command.sequence_id in known:
            script.acknowledge(session, sent, duplicate=True)
            return True
        if drops[0] and luck.random() < 0.15:
            drops[0] -= 1
            if luck.random() < 0.5 and not _too_large(script, sent):
                # Stored, but the receipt is lost.
                script.stored.append(sent)
                note(sent)
            session.drop()
            return True
        if not _too_large(script, sent):
            note(sent)
        return False

    def note(sent: Sent) -> None:
        known.add(sent.sequence_id)
        last = max(sent.sequence_id, sent.command.highest_sequence_id)
        script.success = {"last_sequence_id": last}

    script.hold = hold
    payloads = numbered(2000, 60, seed)
    with (
        topic(script) as (_, context, _),
        PartitionedProducer(context, "t", options(producer_name="p")) as writer,
    ):
        at = 0
        while at < len(payloads):
            stop = at + luck.randrange(1, 700)
            keys = ["k"] * len(payloads[at:stop]) if luck.random() < 0.5 else None
            writer.write(outgoing(payloads[at:stop], keys=keys))
            at = stop
        writer.flush()
        assert writer.counts.acknowledged == 2000
    assert script.payloads() == payloads


def _too_large(script: Policy, sent: Sent) -> bool:
    return sent.metadata.ByteSize() + len(sent.payload) + _HEAD > script.most


def test_an_entry_with_one_callback_for_all_is_refused_as_a_whole() -> None:
    script = Policy(1000)
    results = Results()
    with topic(script) as (_, context, _):
        producer = TopicProducer(context, "t", options(), survives_timeouts=True)
        producer.submit(pair(b"x" * 600, results))
        producer.send(single(b"y", results))
        with pytest.raises(NotAllowed, match="a batch of 2 messages"):
            producer.flush()
        assert [len(results.errors), len(results.ids)] == [1, 1]
        producer.close()
