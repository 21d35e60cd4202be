"""What a broker does from time to time for a topic's policies: expiry, retention, quotas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pulsar_spark.testing.cursor import Cursor
from pulsar_spark.testing.policies import BLOCKED, EVICTION, BacklogQuota
from pulsar_spark.testing.refusals import Refusal

if TYPE_CHECKING:
    from pulsar_spark.testing.topic import Topic

COMPACTION = "__compaction"
"""The subscription that keeps what is not compacted; nothing expires for it."""

_MINUTE_MS = 60_000
# A backlog that is over its quota is cut to this part of it.
_KEPT = 0.9


def enforce(topic: Topic) -> None:
    """Acknowledge what expired, delete what is not retained, act upon a quota that is exceeded."""
    ttl = topic.policies.message_ttl
    if ttl:
        topic.expire_all(_now() - ttl * 1000)
    _delete_acknowledged(topic)
    quota = next(_exceeded(topic), None)
    if quota is None:
        return
    if quota.policy != EVICTION:
        topic.close_producers()
    elif quota is topic.policies.backlog_size:
        for cursor in _durable(topic):
            _cut(topic, cursor, quota.limit * _KEPT)
    else:
        for name, found in topic.subscriptions.items():
            if found.durable and name != COMPACTION:
                topic.expire(name, _now() - int(quota.limit * 1000))


def _delete_acknowledged(topic: Topic) -> None:
    """Delete the closed ledgers that are acknowledged and beyond a limit of the retention."""
    retention = topic.policies.retention
    if retention is None:
        return
    needed = [topic.log.next_at(cursor.after_acked) for cursor in _durable(topic)]
    first = min((entry.place for entry in needed if entry is not None), default=None)
    left, start = topic.log.size, None
    for end, size, last in topic.log.closed_ledgers():
        if first is not None and first < end:
            break
        left -= size
        old = 0 <= retention.minutes * _MINUTE_MS <= _now() - last
        if not old and not 0 <= retention.megabytes * 1024**2 <= left:
            break
        start = end
    if start is not None:
        topic.trim(start)


def check_producer(topic: Topic) -> None:
    """Raise Refusal if a backlog quota keeps producers out."""
    for quota in _exceeded(topic):
        if quota.policy != EVICTION:
            raise Refusal(
                BLOCKED[quota.policy],
                "org.apache.pulsar.broker.service.BrokerServiceException$"
                "TopicBacklogQuotaExceededException: "
                "Cannot create producer on topic with backlog quota exceeded",
            )


def backlog_bytes(topic: Topic, cursor: Cursor) -> int:
    """The size of what comes after a cursor's acknowledged beginning."""
    return sum(len(entry.data) for entry in topic.log.walk(cursor.after_acked))


def backlog_of(topic: Topic) -> int:
    """The backlog in bytes of the slowest durable subscription, 0 without any."""
    slowest = min(_durable(topic), key=lambda cursor: cursor.mark_delete, default=None)
    return 0 if slowest is None else backlog_bytes(topic, slowest)


def _exceeded(topic: Topic) -> Iterator[BacklogQuota]:
    size, age = topic.policies.backlog_size, topic.policies.backlog_age
    if size is not None and backlog_of(topic) > size.limit:
        yield size
    if age is not None:
        oldest = [topic.log.next_at(cursor.after_acked) for cursor in _durable(topic)]
        before = _now() - age.limit * 1000
        if any(entry is not None and entry.publish_time < before for entry in oldest):
            yield age


def _cut(topic: Topic, cursor: Cursor, limit: float) -> None:
    """Acknowledge the oldest entries, as many as leave at least so many bytes."""
    left = backlog_bytes(topic, cursor)
    last = None
    for entry in topic.log.walk(cursor.after_acked):
        left -= len(entry.data)
        if left < limit:
            break
        last = entry.place
    if last is not None:
        cursor.ack_cumulative(last)


def _durable(topic: Topic) -> Iterator[Cursor]:
    return (found.cursor for found in topic.subscriptions.values() if found.durable)


def _now() -> int:
    return time.time_ns() // 1_000_000
