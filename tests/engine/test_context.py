"""What readers and producers share: opened lazily, with assigned brokers, closed together."""

from __future__ import annotations

import pickle
import threading

import pytest

from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions, ProducerOptions
from pulsar_spark.errors import AuthorizationError, ClosedError, TopicNotFound
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.events import CommandReceived, Event
from tests.engine.producing import TOPIC, TopicScript, connection_for, topic
from tests.engine.scripted_broker import ScriptedBroker, Session

OLD = BrokerAddress("old:6650", "old:6650")


def connected_to(address: BrokerAddress) -> ClientConnection:
    return ClientConnection(address, ClientOptions("pulsar://h:1"))


def test_nothing_is_connected_or_started_by_making_one() -> None:
    before = threading.active_count()
    with ClientContext(ClientOptions("pulsar://127.0.0.1:1")) as context:
        assert threading.active_count() <= before
        assert not context.pool.connections


def test_it_may_be_closed_twice() -> None:
    context = ClientContext(ClientOptions("pulsar://127.0.0.1:1"))
    context.close()
    context.close()
    assert context.closed


@pytest.mark.fault(98)
def test_options_are_plain_data() -> None:
    options = ClientOptions("pulsar://h:1"), ProducerOptions(properties=(("a", "b"),))
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_connection_is_the_topics_brokers() -> None:
    with topic() as (_, context, broker):
        connection = connection_for(context)
        assert connection.address == broker.broker


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    "url,tls_url,expected",
    [
        ("pulsar://new:6650", "", "new:6650"),
        ("pulsar://new", "pulsar+ssl://new:6651", "new:6650"),
        ("", "pulsar+ssl://new:6651", None),
        ("pulsar+ssl://new:6651", "", None),
        ("http://new:8080", "", None),
        ("", "", None),
    ],
)
def test_an_assigned_broker_is_of_the_service_urls_scheme(
    url: str, tls_url: str, expected: str | None
) -> None:
    command = pb.CommandCloseProducer(
        producer_id=1,
        request_id=2,
        assignedBrokerServiceUrl=url,
        assignedBrokerServiceUrlTls=tls_url,
    )
    with ClientContext(ClientOptions("pulsar://h:1")) as context:
        found = context.pool.assigned_broker(command, connected_to(OLD))
    assert found == (None if expected is None else BrokerAddress(expected, expected))


@pytest.mark.fault(17)
def test_an_assigned_broker_is_reached_through_the_same_proxy() -> None:
    command = pb.CommandCloseProducer(
        producer_id=1, request_id=2, assignedBrokerServiceUrl="pulsar://new:6650"
    )
    with ClientContext(ClientOptions("pulsar://h:1")) as context:
        found = context.pool.assigned_broker(
            command, connected_to(BrokerAddress("old:6650", "proxy:6650"))
        )
    assert found == BrokerAddress("new:6650", "proxy:6650")


def test_partitions_are_asked_for_so_that_the_broker_may_create_the_topic() -> None:
    with topic(TopicScript(partitions=5)) as (_, context, broker):
        assert context.partitions_for_writing("t") == 5
        (command,) = broker.commands(pb.BaseCommand.PARTITIONED_METADATA)
        assert command.topic == TOPIC
        assert command.metadata_auto_creation_enabled


def test_a_partition_has_no_partitions() -> None:
    with topic(TopicScript(partitions=5)) as (_, context, broker):
        assert context.partitions_for_writing("t-partition-2") == 0
        assert not broker.sessions


@pytest.mark.parametrize("code", [pb.TopicNotFound, pb.AuthorizationError])
def test_a_missing_topic_may_still_be_created_by_its_producer(code: int) -> None:
    def script(session: Session, event: Event) -> bool:
        if not isinstance(event, CommandReceived):
            return False
        if event.kind != pb.BaseCommand.PARTITIONED_METADATA or event.request_id is None:
            return False
        session.send(
            commands.build(
                pb.CommandPartitionedTopicMetadataResponse,
                request_id=event.request_id,
                response=pb.CommandPartitionedTopicMetadataResponse.Failed,
                error=code,
                message="no",
            )
        )
        return True

    with ScriptedBroker(script) as broker, ClientContext(broker.options()) as context:
        if code == pb.TopicNotFound:
            assert context.partitions_for_writing("t") == 0
        else:
            with pytest.raises(AuthorizationError) as raised:
                context.partitions_for_writing("t")
            assert raised.value.topic == "t"
    assert TopicNotFound.code == pb.TopicNotFound


def test_members_learn_of_the_end_and_none_joins_after_it() -> None:
    told: list[str] = []

    class Member:
        def on_client_closed(self) -> None:
            told.append("closed")

    member, gone = Member(), Member()
    context = ClientContext(ClientOptions("pulsar://127.0.0.1:1"))
    context.add(member)
    context.add(gone)
    del gone
    context.close()
    assert told == ["closed"]
    with pytest.raises(ClosedError):
        context.add(member)
