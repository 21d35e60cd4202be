"""Requests that are made in a row are written together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.connections.transport import Transport
from pulsar_spark.engine.gathering import gathered, put_off
from pulsar_spark.engine.lookups.lookup import Extent, Lookup
from pulsar_spark.errors import ConnectionLost
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.blocks import Buffer
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.topics import quick
from tests.support.asking import broker_of, connection_of

TOPIC = "persistent://public/default/t"


@pytest.mark.parametrize("count", [1, 10, 100, 1000])
def test_a_question_about_many_partitions_takes_few_writes(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    writes = 0
    send_some = Transport.send_some

    def counted(self: Transport, buffers: Sequence[Buffer]) -> list[Buffer]:
        nonlocal writes
        writes += 1
        return send_some(self, buffers)

    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic("t", count)
        lookup = Lookup(pool)
        topics = [f"{TOPIC}-partition-{number}" for number in range(count)]
        broker_of(lookup, topics[0])
        # All answers are there before any of them is looked at.
        broker.faults.delay("LOOKUP_RESPONSE", 0.2, hold=True, times=None)
        monkeypatch.setattr(Transport, "send_some", counted)
        found = lookup.ask_many(topics, lookup.broker_operation)
    assert not any(isinstance(answer, Exception) for answer in found.values())
    # Lookups have a limit of 64 at a time.
    assert writes <= 2 + count // 8


def test_what_is_asked_when_the_connection_breaks_fails() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic("t", 20)
        lookup = Lookup(pool)
        topics = [f"{TOPIC}-partition-{number}" for number in range(20)]
        extents = lookup.extents(topics)
        assert all(isinstance(found, Extent) for found in extents.values())
        connection = connection_of(lookup, topics[0])
        with gathered():
            answer = connection.request_async(
                commands.request(pb.CommandLookupTopic, topic=topics[0])
            )
            broker.faults.disconnect()
            connection.close()
        with pytest.raises(Exception, match="connection"):
            answer.result(30)
        # And the next ones are asked on another connection.
        assert all(isinstance(found, Extent) for found in lookup.extents(topics).values())


def test_nothing_is_put_off_elsewhere() -> None:
    done: list[int] = []
    assert not put_off(done, lambda: done.append(0))
    with gathered():
        with gathered():
            assert put_off(done, lambda: done.append(1))
            assert put_off(done, lambda: done.append(2))
        assert done == []
    assert done == [1]
    with suppress(ConnectionLost), gathered():
        put_off(done, lambda: done.append(3))
        raise ConnectionLost("it broke")
    assert done == [1, 3]
