"""Connections: entries that are written together arrive one by one, in order."""

from __future__ import annotations

import pytest

from pulsar_spark.engine.producer_session import Identity, Registration
from pulsar_spark.errors import ClosedError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from tests.engine.producing import NO_ID, TOPIC, topic
from tests.engine.test_producer_session import Owner

Entry = tuple[pb.BaseCommand, bytes, bytes]


def entries(producer_id: int, count: int) -> list[Entry]:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    return [
        (commands.send(producer_id, number), metadata.SerializeToString(), b"%d" % number)
        for number in range(count)
    ]


def test_entries_that_are_sent_together_arrive_in_order() -> None:
    with topic() as (script, context, _):
        connection = context.connection_for("t", 5)
        registration = Registration(Owner(), connection)
        registration.open(Identity(TOPIC, None, user_provided_name=False), 5)
        assert connection.send_payloads(entries(registration.producer_id, 100))
        assert connection.send_payload(*entries(registration.producer_id, 1)[0])
        script.wait_for(lambda: len(script.sends) == 101)
        assert script.sequence_ids == [*range(100), 0]
        assert [sent.payload for sent in script.sends][99] == b"99"


def test_entries_of_a_producer_that_is_gone_are_pointless() -> None:
    with topic() as (script, context, _):
        connection = context.connection_for("t", 5)
        owner = Owner()
        registration = Registration(owner, connection)
        registration.open(Identity(TOPIC, None, user_provided_name=False), 5)
        script.producers[0][0].send(commands.close_producer(registration.producer_id, NO_ID))
        assert owner.changed.wait(5)
        assert not connection.send_payloads(entries(registration.producer_id, 2))
        connection.close()
        with pytest.raises(ClosedError):
            connection.send_payloads(entries(registration.producer_id, 2))
