"""Registers schemas, which the package's producers do when they open."""

from __future__ import annotations

from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import Operation
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo


def register_schema(lookup: Lookup, topic: str, schema: SchemaInfo) -> bytes:
    """Register a schema for a topic, or find the same one, and return its version.

    `topic` is a topic or a partition, which has its topic's schema. Raises IncompatibleSchema if
    the namespace's compatibility strategy forbids it, TopicNotFound, and other errors of the
    broker.
    """

    def operation(name: str, deadline: Deadline) -> Operation[bytes]:
        connection = yield from lookup.connection_operation(name, deadline)
        answer: pb.CommandGetOrCreateSchemaResponse = yield connection.request_async(
            commands.request(pb.CommandGetOrCreateSchema, topic=name, schema=schema.to_pb()),
            deadline.attempt(),
        )
        return answer.schema_version

    return lookup.ask(topic, operation)
