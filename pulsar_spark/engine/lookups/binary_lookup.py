"""Service discovery by the binary protocol: sends the requests of `Lookup` as commands.

Pulsar binary protocol, "Service discovery". Each operation is one attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_spark.engine.connections.addresses import BrokerAddress, too_many_redirects
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.service import (
    ANY_DOMAIN,
    LookupService,
    RegisteredSchema,
    topic_names,
)
from pulsar_spark.engine.operations import Operation
from pulsar_spark.errors import TopicNotFound
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.protocol.versions import BINARY_LOOKUP, TOPICS_OF_NAMESPACE

WITHOUT_CREATION = "supports_get_partitioned_metadata_without_auto_creation"
"""Brokers with this feature return a topic's partitions without creating the topic."""

_LookupType = pb.CommandLookupTopicResponse


class BinaryLookupService(LookupService):
    """Sends requests over a pool's connections. Thread-safe."""

    def _broker(
        self, topic: str, deadline: Deadline, listener: str | None
    ) -> Operation[BrokerAddress]:
        connection = yield from self._pool.service_operation(deadline)
        if connection.protocol_version < BINARY_LOOKUP:
            # With several brokers, an http:// service URL finds the right one.
            return connection.address
        with self._pool.asking(connection):
            return (yield from self._followed(connection, topic, deadline, listener))

    def _followed(
        self, connection: ClientConnection, topic: str, deadline: Deadline, listener: str | None
    ) -> Operation[BrokerAddress]:
        """Ask for a topic's broker, and those that the answers lead to."""
        options = self._pool.options
        authoritative = False
        for _ in range(options.max_lookup_redirects + 1):
            builder = commands.request(
                pb.CommandLookupTopic,
                topic=topic,
                authoritative=authoritative,
                advertised_listener_name=listener,
            )
            answer: pb.CommandLookupTopicResponse
            answer = yield from self._asked(connection, builder, deadline)
            host = self._named_host(connection, answer)
            if answer.response == _LookupType.Connect:
                through = connection.address.physical
                physical = through if answer.proxy_through_service_url else host
                return BrokerAddress(host, physical, connection.address.cluster)
            authoritative = answer.authoritative
            next_one = BrokerAddress(host, host, connection.address.cluster)
            connection = yield self._pool.get_async(next_one)
        raise too_many_redirects(options.max_lookup_redirects)

    def _named_host(
        self, connection: ClientConnection, answer: pb.CommandLookupTopicResponse
    ) -> str:
        if answer.response == _LookupType.Failed:
            raise connection.refusal(0, answer.message)
        return self._pool.broker_host(
            answer.brokerServiceUrl,
            answer.brokerServiceUrlTls,
            connection.secrets,
            proxied=answer.proxy_through_service_url and answer.response == _LookupType.Connect,
        )

    def partitions(self, topic: str, deadline: Deadline, *, create: bool = False) -> Operation[int]:
        """Return an operation that gets a topic's number of partitions."""
        connection = yield from self._pool.service_operation(deadline)
        version = connection.protocol_version
        if version < BINARY_LOOKUP:
            return 0
        can_list = version >= TOPICS_OF_NAMESPACE
        if not create and can_list and not connection.supports(WITHOUT_CREATION):
            name = TopicName.parse(topic)
            names = yield from self.topics(name.namespace_name, deadline, ANY_DOMAIN)
            if str(name) not in names and str(name.partitioned) not in names:
                raise TopicNotFound("the topic does not exist")
        command = commands.request(
            pb.CommandPartitionedTopicMetadata, topic=topic, metadata_auto_creation_enabled=create
        )
        with self._pool.asking(connection):
            answer: pb.CommandPartitionedTopicMetadataResponse = yield from self._asked(
                connection, command, deadline
            )
            if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
                raise connection.refusal(0, answer.message)
        return answer.partitions

    def topics(self, namespace: str, deadline: Deadline, mode: int) -> Operation[list[str]]:
        """Return an operation that lists a namespace's topics."""
        connection = yield from self._pool.service_operation(deadline)
        command = commands.request(pb.CommandGetTopicsOfNamespace, namespace=namespace, mode=mode)
        with self._pool.asking(connection):
            answer: pb.CommandGetTopicsOfNamespaceResponse = yield from self._asked(
                connection, command, deadline
            )
        return topic_names(answer.topics)

    def schema(
        self, topic: str, version: bytes | None, deadline: Deadline
    ) -> Operation[RegisteredSchema | None]:
        """Return an operation that gets a version of a topic's schema, or the latest."""
        connection = yield from self._pool.service_operation(deadline)
        command = commands.request(pb.CommandGetSchema, topic=topic, schema_version=version)
        try:
            with self._pool.asking(connection):
                answer: pb.CommandGetSchemaResponse = yield from self._asked(
                    connection, command, deadline
                )
        except TopicNotFound:
            # The topic has no schema, or not this version of it.
            return None
        if not answer.HasField("schema"):
            return None
        return RegisteredSchema(SchemaInfo.from_pb(answer.schema), answer.schema_version)

    def _asked(
        self,
        connection: ClientConnection,
        builder: Callable[[int], pb.BaseCommand],
        deadline: Deadline,
    ) -> Operation[Any]:
        turn = connection.lookups.take()
        try:
            if turn is not None:
                yield turn
            timeout = deadline.attempt(self._pool.options.operation_timeout)
            return (yield connection.request_async(builder, timeout))
        finally:
            connection.lookups.give_back(turn)
