"""Finds out which topics are terminated: they refuse every producer.

No command asks for it, and a consumer is told only when it has received all. So a producer
registers, which sends nothing, and leaves. PRODUCER creates a missing topic: ask only about topics
that exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import Operation, run_many
from pulsar_spark.engine.producers.producer_session import Identity, register_silently
from pulsar_spark.engine.retry import can_pass, retried
from pulsar_spark.errors import (
    BrokerError,
    IncompatibleSchema,
    QuotaExceeded,
    QuotaExceededHold,
    TopicTerminated,
)
from pulsar_spark.protocol.schema_info import SchemaInfo

# A topic that does not answer is no reason to wait longer.
_SECONDS = 10.0


def terminated_topics(pool: ConnectionPool, topics: Sequence[str]) -> set[str]:
    """Return those of these topic partitions that are terminated.

    If a policy, a permission or an error keeps the producer out, the topic is taken for open.
    """
    lookup = Lookup(pool)
    attempts = [retried(partial(_attempt, lookup, topic)) for topic in topics]
    answers = run_many(attempts, min(_SECONDS, pool.options.operation_timeout))
    return {topic for topic, answer in zip(topics, answers, strict=True) if answer is True}


def _attempt(
    lookup: Lookup, topic: str, deadline: Deadline, schema: SchemaInfo | None = None
) -> Operation[bool]:
    connection = yield from lookup.connection_operation(topic, deadline)
    # A topic that requires encryption refuses others.
    identity = Identity(topic, None, user_provided_name=False, encrypted=True)
    identity.schema = None if schema is None else schema.to_pb()
    try:
        session = yield from register_silently(connection, identity, deadline)
    except TopicTerminated:
        return True
    except IncompatibleSchema:
        # A policy can require the topic's schema.
        found = None if schema else (yield from lookup.schema_operation(topic, None, deadline))
        return found is not None and (yield from _attempt(lookup, topic, deadline, found.schema))
    except BrokerError as error:
        if can_pass(error) and not isinstance(error, QuotaExceeded | QuotaExceededHold):
            raise
        return False
    session.close_quietly()
    return False
