"""Checks topics without a trace: which brokers serve them, permissions, schemas.

Lookups do not create topics, and only existing partitions are touched. Reading is tried with a
non-durable subscription, writing with a producer that sends nothing and brings the topic's own
schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pulsar_spark.cli.doctor.credentials import granting
from pulsar_spark.cli.doctor.steps import NAME_ONE, Finding, Skipped, counted
from pulsar_spark.engine.authentication.providers import AuthProvider
from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.consumers.probe import Held, Probe
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.binary_lookup import WITHOUT_CREATION
from pulsar_spark.engine.operations import Operation
from pulsar_spark.engine.producers.producer_session import Identity, register_silently
from pulsar_spark.errors import (
    AuthorizationError,
    ConnectError,
    ConnectionLost,
    ProducerBusy,
    ProducerFenced,
    PulsarError,
    TlsError,
    TopicNotFound,
    listed,
)
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import TopicName, topic_of
from pulsar_spark.schema.registry import latest_schemas
from pulsar_spark.spark.missing_topic import with_near_topics

_MAX_LOOKED_AT = 100
# Either of these permissions is enough to look a topic up.
_EITHER = "produce,consume"
_CREATE = (
    "Check the name, tenant and namespace, or create the topic (pulsar-admin topics create, "
    "create-partitioned-topic)."
)
_ADVERTISED = (
    "A client connects to the address that the broker advertises: make it advertise one that "
    "this machine can reach (advertisedAddress, or advertisedListeners with "
    "pulsar.client.listenerName), or set service.url to a Pulsar proxy."
)
_BEHIND = (
    "The proxy cannot reach the broker; its log says why. It needs its own credentials for the "
    "brokers (brokerClientAuthenticationParameters), the brokers must know its role (proxyRoles), "
    "and its configuration must allow their ports (brokerProxyAllowedTargetPorts)."
)


class Topics:
    """Topics by their full names; without any, the steps are skipped.

    `connect` returns the client to use. `brokers` are those that serve the topics, once they are
    looked up. `state_topic` is where an exactly-once sink was told to keep its records.
    """

    def __init__(
        self,
        connect: Callable[[], ClientContext],
        names: Sequence[str],
        auth: AuthProvider,
        state_topic: str | None = None,
    ) -> None:
        self.brokers: list[BrokerAddress] = []
        self._connect = connect
        self._names = list(names)
        self._auth = auth
        self._state_topic = state_topic
        # What the steps find: partitions, existing ones, readable ones, and schemas.
        self._counts: dict[str, int | PulsarError] = {}
        self._existing: list[str] = []
        self._readable: set[str] = set()
        self._schemas: dict[str, SchemaInfo | PulsarError | None] = {}

    @property
    def _client(self) -> ClientContext:
        return self._connect()

    def lookup(self) -> Finding:
        """Look up the topics' brokers, and connect to them."""
        self._need_names()
        lookup = self._client.lookup
        # Partitions come first: brokers serve partitions, not topics.
        self._counts = lookup.partitions_many(self._names)
        names = _spread(
            [
                partition
                for topic, count in self._counts.items()
                for partition in TopicName.parse(topic).partitions(
                    0 if isinstance(count, PulsarError) else count
                )
            ]
        )
        try:
            found = self._good(lookup.ask_many(names, lookup.broker_operation).values())
        except (ConnectError, ConnectionLost) as error:
            raise _of_a_broker(error, _ADVERTISED) from error
        addresses: dict[BrokerAddress, None] = dict.fromkeys(found)
        for address in addresses:
            try:
                self._client.pool.get(address)
            except (ConnectError, ConnectionLost) as error:
                remedy = _BEHIND if address.proxied else _ADVERTISED
                raise _of_a_broker(error, remedy) from error
        self.brokers = list(addresses)
        shown = listed(address.logical for address in addresses)
        through = " through service.url" if any(address.proxied for address in addresses) else ""
        return Finding(f"{counted(len(names), 'topic partition')}, served by {shown}{through}")

    def partitions(self) -> Finding:
        """Get the number of partitions."""
        self._need_names()
        for topic, count in self._counts.items():
            if isinstance(count, TopicNotFound):
                found = with_near_topics(self._client.lookup, count, topic)
                raise TopicNotFound(f"{topic} does not exist", f"{found.remedy} {_CREATE}")
        counts = dict(zip(self._counts, self._good(self._counts.values()), strict=True))
        partitions = [
            name
            for topic, count in counts.items()
            for name in TopicName.parse(topic).partitions(count)
        ]
        looked_at = _spread(partitions)
        answers = self._client.lookup.partitions_many(looked_at)
        # Brokers create a partition when it is first used.
        self._existing = [
            name for name in looked_at if not isinstance(answers[name], TopicNotFound)
        ]
        described = (
            f"{topic} has {counted(count, 'partition')}" if count else f"{topic} is not partitioned"
            for topic, count in counts.items()
        )
        unused = len(looked_at) - len(self._existing)
        more = f"; {counted(unused, 'partition')} not used yet" if unused else ""
        if len(looked_at) < len(partitions):
            more += f"; {len(looked_at)} of them, spread over all, are looked at"
        return Finding(listed(described) + more)

    def read(self) -> Finding:
        """Check whether they may be read, and whether open transactions hold messages back."""
        from pulsar_spark.spark.offsets import entry_end

        names = [name for name in self._touchable() if TopicName.parse(name).is_persistent]
        if not names:
            raise Skipped("a non-persistent topic stores no messages for Spark to read")
        results = self._client.lookup.last_message_ids(names)
        results = {
            name: result
            for name, result in results.items()
            if not isinstance(result, TopicNotFound) or TopicName.parse(name).partition_index < 0
        }
        last: list[MessageIdAdv] = self._good(results.values(), "consume")
        self._readable.update(results)
        filled = sum(message.entry_id >= 0 for message in last)
        told = f"may consume; {filled} of {counted(len(last), 'topic partition')} hold messages"
        ends = [(name, entry_end(end)) for name, end in zip(results, last, strict=True)]
        # These partitions answered a moment ago, so an error now says nothing about the topic.
        found = Probe(self._client.pool).held_back(ends)
        held = {
            name: one for (name, _), one in zip(ends, found, strict=True) if isinstance(one, Held)
        }
        if not held:
            return Finding(told)
        told += f"; {listed(f'{name}: {one}' for name, one in held.items())}"
        hidden = [name for name, one in held.items() if not one.readable]
        if not hidden:
            return Finding(told)
        from pulsar_spark.cli.doctor.holders import holders_of

        return Finding(told, holders_of(self._client, hidden, self._state_topic))

    def write(self) -> Finding:
        """Check whether they may be written to; sends nothing."""
        names = self._touchable()
        client = self._client
        if not client.pool.get(self.brokers[0]).supports(WITHOUT_CREATION):
            # Such a broker does not list existing partitions; those that could be read exist.
            names = [name for name in names if name in self._readable]
            if not names:
                raise Skipped("not tried: on this broker it might create a topic")
        schemas = self._latest_schemas()

        def attempt(topic: str, deadline: Deadline) -> Operation[None]:
            return self._register(topic, schemas[topic_of(topic)], deadline)

        results = client.lookup.ask_many(names, attempt)
        self._good(results.values(), "produce")
        return Finding(f"may produce to {counted(len(names), 'topic partition')}; nothing was sent")

    def check_records(self, topic: str) -> None:
        """Check whether an exactly-once sink may keep its records in a topic.

        If it does not exist, only whether topics of its namespace may be looked up.
        """
        from pulsar_spark.spark.writing.fenced_topic import partitioned

        lookup = self._client.lookup
        self._good(lookup.ask_many([topic], lookup.broker_operation).values())
        (count,) = lookup.partitions_many([topic]).values()
        if isinstance(count, TopicNotFound):
            return
        self._good([count])
        if count:
            raise partitioned(topic, "the sink's records")
        self._good(lookup.last_message_ids([topic]).values(), "consume")
        self._good(lookup.ask_many([topic], self._register_beside).values(), "produce")

    def _register_beside(self, topic: str, deadline: Deadline) -> Operation[None]:
        """Return an operation as `_register`, on a topic that another producer may have alone."""
        try:
            yield from self._register(topic, None, deadline)
        except (ProducerBusy, ProducerFenced):
            # A broker looks at permissions first: this role has them.
            return

    def _register(
        self, topic: str, schema: SchemaInfo | PulsarError | None, deadline: Deadline
    ) -> Operation[None]:
        """Return an operation that registers a shared producer without a name."""
        connection = yield from self._client.lookup.connection_operation(topic, deadline)
        known = schema.to_pb() if isinstance(schema, SchemaInfo) else None
        identity = Identity(topic, None, False, schema=known)
        session = yield from register_silently(connection, identity, deadline)
        yield from session.close_operation(deadline)

    def schema(self) -> Finding:
        """Get their schemas, and the columns these give."""
        from pulsar_spark.spark.value_types import value_type

        schemas = self._latest_schemas()
        self._good(schemas.values())
        described: list[str] = []
        for topic, schema in schemas.items():
            assert not isinstance(schema, PulsarError)
            if schema is None:
                described.append(f"{topic} has none: values are bytes")
                continue
            columns = value_type({topic: schema}, allow_different=False).fields.simpleString()
            name = f" {schema.name!r}" if schema.name else ""
            described.append(f"{topic} has {schema.type_name}{name}: {columns}")
        return Finding(listed(described))

    def _latest_schemas(self) -> dict[str, SchemaInfo | PulsarError | None]:
        self._need_names()
        if not self._schemas:
            owners = dict.fromkeys(topic_of(name) for name in self._names)
            self._schemas = latest_schemas(self._client.lookup, list(owners))
        return self._schemas

    def _good(self, results: Iterable[Any], actions: str = _EITHER) -> list[Any]:
        """Return the results; if there are errors, raise the first one, which says how many.

        `actions` are the permissions that the requests needed.
        """
        results = list(results)
        errors = [result for result in results if isinstance(result, PulsarError)]
        if not errors:
            return results
        first = errors[0]
        where = f"{first.topic}: {first.what}" if first.topic else first.what
        if len(errors) > 1:
            where += f" (and {len(errors) - 1} more)"
        remedy = first.remedy
        if type(first) is AuthorizationError:
            namespace = TopicName.parse(first.topic or self._names[0]).namespace_name
            remedy = granting(self._auth, namespace, actions)
        raise type(first)(where, remedy)

    def _need_names(self) -> None:
        if not self._names:
            raise Skipped("no topic was given", NAME_ONE)

    def _touchable(self) -> list[str]:
        self._need_names()
        if not self._existing:
            raise Skipped("not tried: no partition exists yet, and trying would create one")
        return self._existing


def _of_a_broker(error: PulsarError, remedy: str) -> PulsarError:
    """Return the error of a connection to a broker that a lookup named.

    At that point the hosts of the service URL were reached.
    """
    told = error.remedy if isinstance(error, TlsError) else remedy
    return type(error)(f"a topic's broker: {error.what}", told)


def _spread(names: list[str]) -> list[str]:
    """Return a sample of names: not all of thousands of partitions need be loaded for this."""
    if len(names) <= _MAX_LOOKED_AT:
        return names
    return [names[index * len(names) // _MAX_LOOKED_AT] for index in range(_MAX_LOOKED_AT)]
