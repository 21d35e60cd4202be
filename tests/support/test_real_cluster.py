"""Tests of the helper that runs a real cluster."""

from __future__ import annotations

import os
import signal

import pytest

from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.topic_name import TopicName
from tests.support.asking import broker_of
from tests.support.real_cluster import ClusterBroker, RealCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def ask(broker: ClusterBroker, topic: str) -> pb.CommandLookupTopicResponse:
    """Return one broker's answer to one LOOKUP."""
    with ConnectionPool(ClientOptions(broker.service_url)) as pool:
        answer: pb.CommandLookupTopicResponse = pool.service().request(
            commands.request(pb.CommandLookupTopic, topic=topic)
        )
    return answer


def new_topics(cluster: RealCluster) -> list[str]:
    """Return names of topics that no broker serves yet, spread over many bundles."""
    topic = TopicName.parse(cluster.unique_topic())
    namespace = f"public/{topic.local_name}"
    cluster.admin("PUT", f"namespaces/{namespace}", {"bundles": {"numBundles": 64}})
    return [f"persistent://{namespace}/{number}" for number in range(8)]


def test_a_broker_redirects_topics_that_nobody_serves_yet(real_cluster: RealCluster) -> None:
    """Whoever gets a topic: it has one owner, and the others send clients away.

    The leader, one of the two, decides; it may give all topics to itself, or none.
    """
    kind = pb.CommandLookupTopicResponse
    topics = new_topics(real_cluster)
    (first, second) = real_cluster.brokers
    answers = [ask(first, topic) for topic in topics[:4]]
    answers += [ask(second, topic) for topic in topics[4:]]
    assert kind.Redirect in {answer.response for answer in answers}
    assert not any(answer.proxy_through_service_url for answer in answers)


@pytest.mark.fault(16)
@pytest.mark.parametrize("by_rest", [False, True])
def test_lookups_follow_redirects_and_moves_whichever_broker_is_asked(
    real_cluster: RealCluster, by_rest: bool
) -> None:
    for number, topic in enumerate(new_topics(real_cluster)):
        for broker in (real_cluster.brokers[number % 2], real_cluster.brokers[1 - number % 2]):
            url = broker.admin_url if by_rest else broker.service_url
            with ConnectionPool(ClientOptions(url)) as pool:
                found = broker_of(Lookup(pool), topic)
            host = real_cluster.owner(topic).service_url.removeprefix("pulsar://")
            assert found == BrokerAddress(host, host)
    other = real_cluster.other(real_cluster.owner(topic))
    real_cluster.move(topic, other)
    host = other.service_url.removeprefix("pulsar://")
    with ConnectionPool(ClientOptions(real_cluster.service_url)) as pool:
        assert broker_of(Lookup(pool), topic) == BrokerAddress(host, host)


def test_a_broker_that_ended_by_itself_is_started_again(real_cluster: RealCluster) -> None:
    topic = real_cluster.create_topic(real_cluster.unique_topic())
    ended = real_cluster.owner(topic)
    os.kill(ended.server.pid, signal.SIGKILL)
    wait_until(lambda: not ended.server.running, "the broker ended")
    real_cluster.restore()
    assert ended.answers("brokers/ready")


def test_a_broker_that_ends_while_it_starts_is_started_again(real_cluster: RealCluster) -> None:
    starting = real_cluster.brokers[0]
    starting.kill()
    starting.launch()
    os.kill(starting.server.pid, signal.SIGKILL)
    starting.wait_until_ready()
