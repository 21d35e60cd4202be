"""Streams without Spark on any broker: queries step by step, and writers of given entries."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.protocol.outgoing_messages import MessageFields
from pulsar_spark.spark.options.stream import Caps
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from tests.integration.brokers import Broker, Embedded, Real
from tests.integration.messages import clustered
from tests.spark.streams import NO_CAPS, Make, Query, queries
from tests.support.real_broker import AdminError, rest_path
from tests.support.waiting import wait_until

POINTS = ("started", "decided", "logged", "planned", "half read", "read", "committed")
"""Where a query can be killed, in the order of a batch."""


class Feed:
    """Writes unique, numbered payloads in entries of given sizes."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._numbers = itertools.count()

    def __call__(self, topic: str, sizes: Iterable[int]) -> list[bytes]:
        """Store an entry for each size, 0 for a message outside a batch; returns the payloads."""
        written: list[bytes] = []
        for batched, group in itertools.groupby(sizes, bool):
            options = ProducerOptions(
                batching_enabled=batched, batching_max_messages=100_000, batching_max_delay=60.0
            )
            with PartitionedProducer(self._context, topic, options) as writer:
                for size in group:
                    payloads = [b"m%d" % next(self._numbers) for _ in range(size or 1)]
                    for payload in payloads:
                        writer.send(MessageFields(payload))
                    writer.flush()
                    written += payloads
        return written


@contextmanager
def feeding(broker: Broker) -> Iterator[Feed]:
    """Open a feed."""
    with clustered(broker) as context:
        yield Feed(context)


@contextmanager
def streaming(broker: Broker) -> Iterator[Make]:
    """Make queries on a broker, closed at the end."""
    with queries(broker.service_url) as make:
        yield make


def backlog(broker: Broker, topic: str, subscription: str) -> int:
    """Return a subscription's backlog in entries, -1 if it does not exist."""
    if isinstance(broker, Embedded):
        view = broker.own.subscriptions(topic).get(subscription)
        return -1 if view is None else view.backlog
    assert isinstance(broker, Real)
    stats = broker.own.admin("GET", f"{rest_path(topic)}/stats?getPreciseBacklog=true")
    found: dict[str, Any] = stats["subscriptions"]
    return int(found[subscription]["msgBacklog"]) if subscription in found else -1


def drained(broker: Broker, query: Query, *topics: str) -> None:
    """Let an idle query run until the topics' backlogs are zero."""
    assert query.batch() == []
    name = query.start().subscription
    for topic in topics:
        wait_until(lambda t=topic: backlog(broker, t, name) == 0, f"{topic} has a backlog")  # type: ignore[misc]


def remove_subscription(broker: Broker, topic: str, subscription: str) -> None:
    """Remove a subscription as an administrator does, even if it is in use.

    One that is being made as its consumer comes back, and refused, may be gone at that moment.
    """
    if isinstance(broker, Real):
        path = f"{rest_path(topic)}/subscription/{subscription}?force=true"
        try:
            broker.own.admin("DELETE", path)
        except AdminError as error:
            if error.status != 404 or subscription in broker.subscriptions(topic):
                raise
        return
    assert isinstance(broker, Embedded)
    broker.own.remove_subscription(topic, subscription)


def in_order(values: Sequence[bytes]) -> bool:
    """Whether payloads of a feed are in the order in which they were written."""
    numbers = [int(value[1:]) for value in values]
    return numbers == sorted(numbers)


@dataclass
class Checkpoint:
    """Spark's two logs of a query, and a sink keyed by batch ids."""

    offsets: dict[int, str] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    sink: dict[int, list[bytes]] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The last planned batch, -1 before the first one."""
        return max(self.offsets, default=-1)

    def end_of(self, batch: int) -> StreamOffset | None:
        """Return the end of a batch."""
        text = self.offsets.get(batch)
        return None if text is None else StreamOffset.from_json(json.loads(text))

    @property
    def values(self) -> list[bytes]:
        """Everything in the sink."""
        return [value for _, values in sorted(self.sink.items()) for value in values]


def run_query(query: Query, checkpoint: Checkpoint, until: str = "", caps: Caps = NO_CAPS) -> bool:
    """Do what Spark does when it starts a query, for one batch; returns whether there was one.

    A batch that was not committed is repeated first. The new one stops at one of POINTS.
    """
    source = query.source
    last = checkpoint.last
    end = checkpoint.end_of(last)
    if end is not None:
        source.learn(end)
        if last not in checkpoint.committed:
            before = checkpoint.end_of(last - 1) or source.initial()
            _run_batch(query, checkpoint, last, before, "")
    start = end or source.initial()
    if until == "started":
        return True
    end = source.latest(start, caps)
    if end == start:
        return False
    if until != "decided":
        checkpoint.offsets[last + 1] = json.dumps(end.to_json())
        if checkpoint.committed:
            source.commit(start)
        _run_batch(query, checkpoint, last + 1, start, until)
    return True


def _run_batch(
    query: Query, checkpoint: Checkpoint, batch: int, start: StreamOffset, until: str
) -> None:
    if until == "logged":
        return
    end = checkpoint.end_of(batch)
    assert end is not None
    planned = query.source.plan(start, end)
    if until == "planned":
        return
    if until == "half read":
        query.values(planned[: len(planned) // 2])
        return
    checkpoint.sink[batch] = query.values(planned)
    if until != "read":
        checkpoint.committed.add(batch)
