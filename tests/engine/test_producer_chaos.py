"""Producers and a broker that does all it may: nothing is lost, reordered or reported twice."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import pytest

from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.outgoing_messages import MessageFields
from tests import brief
from tests.engine.producing import NO_ID, Sent, TopicScript, payloads_of, topic
from tests.engine.scripted_broker import Session
from tests.outgoing import outgoing


class Chaos:
    """Answers SENDs late, in turn, or not at all; closes producers and connections in between.

    It keeps the first message of each sequence id, like a broker that deduplicates, and ignores
    messages after a gap within a producer's session.
    """

    def __init__(self, script: TopicScript, seed: int) -> None:
        self.rng = random.Random(seed)
        self.script = script
        self.troubles = 12
        self.stored: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.refused: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    def on_send(self, session: Session, sent: Sent) -> bool:
        with self._lock:
            producer_id = sent.command.producer_id
            life = (session.number, self._lives(session, producer_id))
            if (producer_id, hash(life)) in self.refused:
                return True
            trouble = self.rng.random()
            if self.troubles and trouble < 0.05:
                self.troubles -= 1
                # The rest of this session is neither stored nor acknowledged.
                self.refused.add((producer_id, hash(life)))
                if trouble < 0.015:
                    session.drop()
                elif trouble < 0.03:
                    session.send(brief.close_producer(producer_id, NO_ID))
                else:
                    session.send(
                        brief.send_error(
                            producer_id, sent.sequence_id, pb.PersistenceError, "chaos"
                        )
                    )
                return True
            mine = self.stored[producer_id]
            duplicate = sent.sequence_id in mine
            if duplicate:
                assert mine[sent.sequence_id] == sent.payload
            else:
                assert not mine or sent.sequence_id > max(mine)
                mine[sent.sequence_id] = sent.payload
            self.script.acknowledge(session, sent, duplicate=duplicate)
            return True

    def on_producer(self, session: Session, command: pb.CommandProducer) -> bool:
        with self._lock:
            last = max(self.stored[command.producer_id], default=-1)
            self.script.let_in(session, command, last_sequence_id=last)
            return True

    def _lives(self, session: Session, producer_id: int) -> int:
        return sum(command.producer_id == producer_id for _, command in self.script.producers)


class Outcome:
    """The result that each message's callback got."""

    def __init__(self) -> None:
        self.told: dict[bytes, list[PulsarError | None]] = defaultdict(list)

    def callback(self, payload: bytes):  # type: ignore[no-untyped-def]
        def tell(error: PulsarError | None, message_id: MessageIdAdv | None) -> None:
            self.told[payload].append(error)

        return tell


@pytest.mark.fault(11, 12, 14, 87)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("batching", [False, True])
def test_whatever_the_broker_does_each_message_is_stored_once_and_told_once(
    seed: int, batching: bool
) -> None:
    rng = random.Random(seed)
    script = TopicScript(partitions=3)
    with topic(script) as (_, context, _):
        chaos = Chaos(script, seed)
        script.on_send, script.on_producer = chaos.on_send, chaos.on_producer
        options = ProducerOptions(
            send_timeout=60.0,
            batching_enabled=batching,
            batching_max_messages=rng.choice([2, 10, 1000]),
            batching_max_delay=0.002,
            max_pending_messages=rng.choice([0, 5, 200]),
        )
        outcome = Outcome()
        sent: list[bytes] = []
        writer = PartitionedProducer(context, "t", options, timed=True)
        for round_ in range(15):
            part = [b"%d-%d" % (round_, number) for number in range(rng.choice([1, 20, 150]))]
            sent += part
            kind = rng.random()
            if kind < 0.3:
                for payload in part:
                    writer.send(MessageFields(payload), outcome.callback(payload))
            elif kind < 0.5:
                writer.write(outgoing(part, event_times=[1] * len(part)))
            elif kind < 0.7:
                writer.write(outgoing(part, keys=[payload.decode() for payload in part]))
            else:
                writer.write(outgoing(part))
            if rng.random() < 0.2:
                writer.flush()
        writer.close()
        counts = writer.counts
        assert counts.acknowledged == counts.messages == len(sent)
        assert all(told == [None] for told in outcome.told.values())
        firsts = {(s.command.producer_id, s.sequence_id): s for s in script.sends}
        script.sends = [
            firsts[producer_id, sequence_id]
            for producer_id, stored in chaos.stored.items()
            for sequence_id in stored
        ]
        assert sorted(payloads_of(script)) == sorted(sent)
        assert context.budget.used == 0
