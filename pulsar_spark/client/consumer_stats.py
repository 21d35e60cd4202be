"""A consumer's statistics from its brokers: `get_broker_consumer_stats`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_spark.protocol import pulsar_api_pb2 as pb


@dataclass(frozen=True, slots=True)
class BrokerConsumerStats:
    """A consumer's statistics: sums over its partitions, rates per second."""

    msg_rate_out: float
    msg_throughput_out: float
    msg_rate_redeliver: float
    msg_rate_expired: float
    consumer_name: str
    available_permits: int
    unacked_messages: int
    blocked_consumer_on_unacked_msgs: bool
    address: str
    connected_since: str
    type: str
    msg_backlog: int


def sum_of(found: Sequence[pb.CommandConsumerStatsResponse]) -> BrokerConsumerStats:
    """Add up the statistics of a consumer's topic partitions."""
    first = found[0]
    return BrokerConsumerStats(
        sum(one.msgRateOut for one in found),
        sum(one.msgThroughputOut for one in found),
        sum(one.msgRateRedeliver for one in found),
        sum(one.msgRateExpired for one in found),
        first.consumerName,
        sum(one.availablePermits for one in found),
        sum(one.unackedMessages for one in found),
        any(one.blockedConsumerOnUnackedMsgs for one in found),
        first.address,
        first.connectedSince,
        first.type,
        sum(one.msgBacklog for one in found),
    )
