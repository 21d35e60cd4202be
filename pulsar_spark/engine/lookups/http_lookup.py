"""Service discovery by REST, for http:// and https:// service URLs, like Java's HttpLookupService.

Only lookups use REST. Clients talk to the brokers by the binary protocol, with TLS for an https://
URL, and register schemas there too.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.http_client import HttpClient
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.service import LookupService, RegisteredSchema, topic_names
from pulsar_spark.engine.operations import Operation
from pulsar_spark.errors import RemoteProtocolError, TopicNotFound
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, key_value_data, type_of_name
from pulsar_spark.protocol.topic_name import TopicName

_MIB = 1024 * 1024
_MAX_LOOKUP = 64 * 1024
_MAX_SCHEMA = 6 * _MIB
_MAX_TOPICS = 16 * _MIB
_VERSION_SIZE = 8
_MAX_VERSION = 2**63


class HttpLookupService(LookupService):
    """Asks the brokers' web service. Thread-safe."""

    def __init__(self, pool: ConnectionPool, client: HttpClient) -> None:
        super().__init__(pool)
        self._client = client

    def _broker(
        self, topic: str, deadline: Deadline, listener: str | None
    ) -> Operation[BrokerAddress]:
        asked = {} if listener is None else {"listenerName": listener}
        target = f"/lookup/v2/{'destination' if _is_legacy(topic) else 'topic'}/{_path(topic)}"
        data = yield from self._asked(target, asked, deadline, _MAX_LOOKUP)
        fields = _fields(data, "a lookup")
        host = self._pool.broker_host(
            _text(fields, "brokerUrl"), _text(fields, "brokerUrlTls"), self._client.secrets
        )
        return BrokerAddress(host, host, self._client.cluster)

    def partitions(self, topic: str, deadline: Deadline, *, create: bool = False) -> Operation[int]:
        """Return an operation that gets a topic's number of partitions."""
        target = f"{_admin(topic)}/{_path(topic)}/partitions"
        asked = {"checkAllowAutoCreation": "true" if create else "false"}
        data = yield from self._asked(target, asked, deadline, _MAX_LOOKUP)
        count = _fields(data, "the partitions of a topic").get("partitions")
        if not isinstance(count, int) or isinstance(count, bool):
            raise _unexpected("the partitions of a topic")
        return count

    def topics(self, namespace: str, deadline: Deadline, mode: int) -> Operation[list[str]]:
        """Return an operation that lists a namespace's topics."""
        # With a cluster, as in names of topics, it has three parts.
        is_legacy = namespace.count("/") > 1
        target = f"/admin/{'' if is_legacy else 'v2/'}namespaces/{quote(namespace)}/"
        target += "destinations" if is_legacy else "topics"
        asked = {"mode": pb.CommandGetTopicsOfNamespace.Mode.Name(mode)}
        try:
            data = yield from self._asked(target, asked, deadline, _MAX_TOPICS)
        except TopicNotFound:
            # As in the binary protocol: a missing namespace has no topics.
            return []
        if not isinstance(data, list):
            raise _unexpected("the topics of a namespace")
        return topic_names(name for name in data if isinstance(name, str))

    def schema(
        self, topic: str, version: bytes | None, deadline: Deadline
    ) -> Operation[RegisteredSchema | None]:
        """Return an operation that gets a version of a topic's schema, or the latest."""
        name = TopicName.parse(topic).partitioned
        # Brokers decode the name twice here, but only once elsewhere.
        local = quote(quote(name.local_name, safe=""))
        target = f"{_admin(topic)}/schemas/{name.namespace_name}/{local}/schema"
        if version is not None:
            number = int.from_bytes(version, "big")
            if len(version) != _VERSION_SIZE or number >= _MAX_VERSION:
                return None
            target += f"/{number}"
        try:
            data = yield from self._asked(target, {}, deadline, _MAX_SCHEMA)
        except TopicNotFound:
            return None
        known_as = f"{name.namespace_name}/{quote_plus(name.local_name)}"
        return _registered(_fields(data, "a schema"), known_as)

    def _asked(
        self, target: str, asked: dict[str, str], deadline: Deadline, limit: int
    ) -> Operation[Any]:
        if asked:
            target += f"?{urlencode(asked)}"
        timeout = deadline.attempt(self._pool.options.operation_timeout)
        return (yield self._client.get(target, timeout, limit))


def _is_legacy(topic: str) -> bool:
    """Whether a topic's name has a cluster in it: brokers have other paths for these."""
    return "/" in TopicName.parse(topic).namespace


def _admin(topic: str) -> str:
    return "/admin" if _is_legacy(topic) else "/admin/v2"


def _path(topic: str) -> str:
    name = TopicName.parse(topic)
    return f"{name.domain}/{name.namespace_name}/{quote(name.local_name, safe='')}"


def _fields(data: Any, what: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _unexpected(what)
    return data


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _registered(fields: dict[str, Any], name: str) -> RegisteredSchema:
    number = fields.get("version")
    kind = type_of_name(_text(fields, "type"))
    properties = fields.get("properties") or {}
    if (
        not isinstance(number, int)
        or not 0 <= number < _MAX_VERSION
        or kind is None
        or not isinstance(properties, dict)
    ):
        raise _unexpected("a schema")
    try:
        data = _text(fields, "data").encode()
        if kind == pb.Schema.KeyValue:
            data = _pair_data(data)
    except (ValueError, RecursionError):
        raise _unexpected("a schema") from None
    texts = {key: value for key, value in properties.items() if isinstance(value, str)}
    return RegisteredSchema(
        SchemaInfo(kind, name, data, texts), number.to_bytes(_VERSION_SIZE, "big")
    )


def _pair_data(data: bytes) -> bytes:
    """Convert a KEY_VALUE definition to the registry's form; REST has a JSON object of two.

    A side without a definition, such as a string, is empty text there.
    """
    both = json.loads(data)
    if not isinstance(both, dict):
        raise ValueError("no object")
    sides = [
        b"" if side == "" else json.dumps(side, separators=(",", ":"), ensure_ascii=False).encode()
        for side in (both.get("key", ""), both.get("value", ""))
    ]
    return key_value_data(*sides)


def _unexpected(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the web service answers with something that is not {what}",
        "Check that service.url names the web service of Pulsar's brokers.",
    )
