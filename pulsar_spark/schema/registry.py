"""The schemas of topics, as the brokers' registry has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pulsar_spark.client.backoff import Deadline
from pulsar_spark.client.lookup import Lookup
from pulsar_spark.client.pipeline import Job, retrying, run_many
from pulsar_spark.errors import PulsarError, TopicNotFound
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo


def latest_schemas(
    lookup: Lookup, topics: Sequence[str]
) -> dict[str, SchemaInfo | PulsarError | None]:
    """Return the latest schema of each topic, None for one without, or why it is not known.

    All are asked for at once. A topic that does not exist has no schema either.
    """

    def factory(topic: str) -> Callable[[Deadline], Job[SchemaInfo | None]]:
        return lambda deadline: retrying(lambda end: _job(lookup, topic, end), deadline)

    timeout = lookup.pool.options.operation_timeout
    results = run_many([factory(topic) for topic in topics], timeout)
    return {
        topic: result.with_context(topic=topic) if isinstance(result, PulsarError) else result
        for topic, result in zip(topics, results, strict=True)
    }


def _job(lookup: Lookup, topic: str, deadline: Deadline) -> Job[SchemaInfo | None]:
    connection = yield from lookup.pool.service_job()
    try:
        answer: pb.CommandGetSchemaResponse = yield connection.request_async(
            lambda request_id: commands.get_schema(topic, request_id), deadline.remaining()
        )
    except TopicNotFound:
        # Brokers answer so for a topic without a schema.
        return None
    return SchemaInfo.from_pb(answer.schema) if answer.HasField("schema") else None
