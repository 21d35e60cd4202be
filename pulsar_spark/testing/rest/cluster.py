"""The cluster, its brokers and tenants, and lookups of topics."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pulsar_spark.testing.namespaces import is_name
from pulsar_spark.testing.rest.request import Failure, RestAnswer, RestRequest, typed
from pulsar_spark.testing.topic_store import topic_name

if TYPE_CHECKING:
    from pulsar_spark.testing.server import Server

VERSION = "4.0.8"
"""The Pulsar whose answers these are."""


def health(server: Server, asked: RestRequest) -> RestAnswer:
    """Say that the broker runs."""
    return RestAnswer(HTTPStatus.OK, "ok")


def version(server: Server, asked: RestRequest) -> RestAnswer:
    """The Pulsar whose behaviour this is."""
    return RestAnswer(HTTPStatus.OK, VERSION)


def clusters(server: Server, asked: RestRequest) -> list[str]:
    """The one cluster's name."""
    return [server.options.name]


def cluster(server: Server, asked: RestRequest) -> dict[str, Any]:
    """Where the cluster is."""
    if asked.named["cluster"] != server.options.name:
        raise Failure(HTTPStatus.NOT_FOUND, "Cluster does not exist")
    rest, url = str(server.rest_url()), server.service_url()
    if server.options.tls is not None:
        return {"serviceUrlTls": rest, "brokerServiceUrlTls": url}
    return {"serviceUrl": rest, "brokerServiceUrl": url}


def brokers(server: Server, asked: RestRequest) -> list[str]:
    """The brokers by the addresses of their admin REST, which they share."""
    cluster(server, asked)
    return [str(server.rest_url()).partition("://")[2]]


def lookup(server: Server, asked: RestRequest) -> dict[str, Any]:
    """The broker that serves a topic."""
    name = asked.topic
    server.topics.namespaces.check(name)
    listener = asked.query.get("listenerName")
    if listener and listener not in server.options.listeners:
        text = f"the broker do not have {listener} listener"
        raise Failure(HTTPStatus.INTERNAL_SERVER_ERROR, text)
    url = server.service_url(server.topics.owner(str(name)))
    rest = server.rest_url()
    if server.options.tls is not None:
        return {"brokerUrlTls": url, "httpUrlTls": rest, "brokerUrlSsl": url}
    return {"brokerUrl": url, "httpUrl": rest, "nativeUrl": url, "brokerUrlSsl": ""}


def tenants(server: Server, asked: RestRequest) -> list[str]:
    """The names of the tenants."""
    return sorted(server.topics.namespaces.tenants)


def tenant(
    server: Server, asked: RestRequest, missing: str = "Tenant does not exist"
) -> dict[str, Any]:
    """A tenant's roles and clusters."""
    found = server.topics.namespaces.tenants.get(asked.named["tenant"])
    if found is None:
        raise Failure(HTTPStatus.NOT_FOUND, missing)
    return dict(found)


def create_tenant(server: Server, asked: RestRequest) -> None:
    """Create a tenant."""
    name = asked.named["tenant"]
    if not is_name(name):
        raise Failure(HTTPStatus.PRECONDITION_FAILED, "Tenant name is not valid")
    _check_info(server, asked)
    if name in server.topics.namespaces.tenants:
        raise Failure(HTTPStatus.CONFLICT, "Tenant already exist")
    _set(server, asked)


def change_tenant(server: Server, asked: RestRequest) -> None:
    """Change a tenant."""
    _check_info(server, asked)
    tenant(server, asked, f"Tenant {asked.named['tenant']} not found")
    _set(server, asked)


def _check_info(server: Server, asked: RestRequest) -> None:
    allowed: Any = None
    if asked.json() is None:
        wrong = "TenantInfo is null"
    elif (allowed := asked.record().get("allowedClusters")) is None:
        wrong = "Clusters cannot be null"
    elif not allowed:
        wrong = "Clusters cannot be empty or blank"
    elif allowed != [server.options.name]:
        wrong = "Clusters do not exist"
    else:
        return
    raise Failure(HTTPStatus.PRECONDITION_FAILED, wrong)


def _set(server: Server, asked: RestRequest) -> None:
    info = asked.record()
    roles = typed(info.get("adminRoles") or [], list)
    server.topics.namespaces.add_tenant(asked.named["tenant"], roles, info["allowedClusters"])


def delete_tenant(server: Server, asked: RestRequest) -> None:
    """Delete a tenant that has no namespaces."""
    tenant(server, asked, "Tenant doesn't exist")
    name = asked.named["tenant"]
    if server.topics.namespaces.of_tenant(name, map(topic_name, server.topics.topics)):
        raise Failure(HTTPStatus.CONFLICT, "The tenant still has active namespaces")
    del server.topics.namespaces.tenants[name]
