"""Namespaces: made, listed, deleted, unloaded."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.namespaces import is_name
from pulsar_spark.testing.rest import found, policies
from pulsar_spark.testing.rest.request import Failure, RestRequest
from pulsar_spark.testing.topic_store import topic_name

if TYPE_CHECKING:
    from pulsar_spark.testing.server import Server

_MODE = pb.CommandGetTopicsOfNamespace


def namespaces(server: Server, asked: RestRequest) -> list[str]:
    """The namespaces of a tenant."""
    known, tenant = server.topics.namespaces, asked.named["tenant"]
    listed = known.of_tenant(tenant, map(topic_name, server.topics.topics))
    if tenant not in known.tenants and not listed:
        raise Failure(HTTPStatus.NOT_FOUND, "Tenant not found")
    return listed


def create(server: Server, asked: RestRequest) -> None:
    """Create a namespace; policies in the body are set."""
    known = server.topics.namespaces
    if not is_name(asked.named["namespace"]):
        raise Failure(HTTPStatus.PRECONDITION_FAILED, "Namespace name is not valid")
    if not known.any and asked.named["tenant"] not in known.tenants:
        raise Failure(HTTPStatus.NOT_FOUND, "Tenant does not exist")
    if asked.namespace in known.settings:
        raise Failure(HTTPStatus.CONFLICT, "Namespace already exists")
    settings = policies.of_body(asked)
    known.add(asked.namespace)
    known.of_namespace(asked.namespace).update(settings)


def show(server: Server, asked: RestRequest) -> dict[str, Any]:
    """What is set for a namespace, as far as the broker acts upon it."""
    own = server.topics.namespaces.settings.get(found.namespace(server, asked), {})
    return {
        "replication_clusters": [server.options.name],
        "deleted": False,
        **policies.summary(own),
    }


def delete(server: Server, asked: RestRequest) -> None:
    """Delete a namespace, with its topics if `force` is given."""
    name = found.namespace(server, asked, f"Namespace {asked.namespace} does not exist.")
    listed = server.topics.of_namespace(name)
    if listed and not asked.flag("force"):
        raise Failure(HTTPStatus.CONFLICT, "Cannot delete non empty namespace")
    for text in listed:
        found.Control(server).delete_topic(text)
    for text in [text for text in server.topics.partitioned if _in(text, name)]:
        server.topics.delete(topic_name(text))
    server.topics.namespaces.settings.pop(name, None)


def topics(server: Server, asked: RestRequest) -> list[str]:
    """The topics of a namespace, with single partitions; `mode` is as in the protocol."""
    mode = asked.query.get("mode", "PERSISTENT")
    try:
        number = _MODE.Mode.Value(mode)
    except ValueError:
        raise Failure(HTTPStatus.BAD_REQUEST, f"{mode} is no mode") from None
    return server.topics.of_namespace(found.namespace(server, asked), number)


def topics_of_domain(server: Server, asked: RestRequest) -> list[str]:
    """The persistent or the other topics of a namespace, with single partitions."""
    mode = _MODE.PERSISTENT if asked.named["domain"] == "persistent" else _MODE.NON_PERSISTENT
    return server.topics.of_namespace(found.namespace(server, asked), mode)


def partitioned(server: Server, asked: RestRequest) -> list[str]:
    """The partitioned topics of a namespace."""
    name, domain = found.namespace(server, asked), f"{asked.named['domain']}://"
    known = server.topics.partitioned
    return sorted(text for text in known if _in(text, name) and text.startswith(domain))


def unload(server: Server, asked: RestRequest) -> None:
    """Unload all topics of a namespace."""
    name = found.namespace(server, asked, "Namespace not found")
    for text in server.topics.of_namespace(name):
        found.Control(server).unload(text)


def _in(text: str, namespace: str) -> bool:
    return topic_name(text).namespace_name == namespace
