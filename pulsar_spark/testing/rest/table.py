"""The table of requests: method and path → function.

A function gets the server and the request, and returns what the answer has: None for nothing, or a
value for JSON. It raises Failure or Refusal to refuse the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pulsar_spark.testing.rest import (
    cluster,
    messages,
    namespaces,
    policies,
    schemas,
    stats,
    subscriptions,
    topics,
)
from pulsar_spark.testing.rest.request import Failure, RestRequest

if TYPE_CHECKING:
    from pulsar_spark.testing.server import Server

Handler = Callable[["Server", RestRequest], Any]

_ADMIN = "admin/v2"
_NAMESPACE = f"{_ADMIN}/namespaces/{{tenant}}/{{namespace}}"
_DOMAIN = f"{_ADMIN}/{{domain}}/{{tenant}}/{{namespace}}"
_TOPIC = f"{_DOMAIN}/{{topic}}"
_SUBSCRIPTION = f"{_TOPIC}/subscription/{{subscription}}"
_SCHEMAS = f"{_ADMIN}/schemas/{{tenant}}/{{namespace}}/{{topic}}"
_DOMAINS = ("persistent", "non-persistent")

ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", f"{_ADMIN}/brokers/health"): cluster.health,
    ("GET", f"{_ADMIN}/brokers/ready"): cluster.health,
    ("GET", f"{_ADMIN}/brokers/version"): cluster.version,
    ("GET", f"{_ADMIN}/brokers/{{cluster}}"): cluster.brokers,
    ("GET", f"{_ADMIN}/clusters"): cluster.clusters,
    ("GET", f"{_ADMIN}/clusters/{{cluster}}"): cluster.cluster,
    ("GET", "lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"): cluster.lookup,
    ("GET", f"{_ADMIN}/tenants"): cluster.tenants,
    ("GET", f"{_ADMIN}/tenants/{{tenant}}"): cluster.tenant,
    ("PUT", f"{_ADMIN}/tenants/{{tenant}}"): cluster.create_tenant,
    ("POST", f"{_ADMIN}/tenants/{{tenant}}"): cluster.change_tenant,
    ("DELETE", f"{_ADMIN}/tenants/{{tenant}}"): cluster.delete_tenant,
    ("GET", f"{_ADMIN}/namespaces/{{tenant}}"): namespaces.namespaces,
    ("GET", _NAMESPACE): namespaces.show,
    ("PUT", _NAMESPACE): namespaces.create,
    ("DELETE", _NAMESPACE): namespaces.delete,
    ("GET", f"{_NAMESPACE}/topics"): namespaces.topics,
    ("PUT", f"{_NAMESPACE}/unload"): namespaces.unload,
    ("GET", _DOMAIN): namespaces.topics_of_domain,
    ("GET", f"{_DOMAIN}/partitioned"): namespaces.partitioned,
    ("PUT", _TOPIC): topics.create,
    ("DELETE", _TOPIC): topics.delete,
    ("GET", f"{_TOPIC}/partitions"): topics.partitions,
    ("PUT", f"{_TOPIC}/partitions"): topics.create_partitioned,
    ("POST", f"{_TOPIC}/partitions"): topics.grow,
    ("DELETE", f"{_TOPIC}/partitions"): topics.delete_partitioned,
    ("PUT", f"{_TOPIC}/unload"): topics.unload,
    ("DELETE", f"{_TOPIC}/truncate"): topics.truncate,
    ("POST", f"{_TOPIC}/terminate"): topics.terminate,
    ("POST", f"{_TOPIC}/terminate/partitions"): topics.terminate_partitions,
    ("GET", f"{_TOPIC}/lastMessageId"): topics.last_message_id,
    ("GET", f"{_TOPIC}/messageid/{{timestamp}}"): topics.message_id_at,
    ("GET", f"{_TOPIC}/ledger/{{ledger}}/entry/{{entry}}"): messages.stored,
    ("GET", f"{_SUBSCRIPTION}/position/{{number}}"): messages.next_of,
    ("PUT", f"{_TOPIC}/compaction"): topics.compact,
    ("GET", f"{_TOPIC}/compaction"): topics.compaction,
    ("GET", f"{_TOPIC}/stats"): stats.stats,
    ("GET", f"{_TOPIC}/partitioned-stats"): stats.partitioned_stats,
    ("GET", f"{_TOPIC}/internalStats"): stats.internal_stats,
    ("GET", f"{_TOPIC}/partitioned-internalStats"): stats.partitioned_internal_stats,
    ("GET", f"{_TOPIC}/subscriptions"): subscriptions.subscriptions,
    ("POST", f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}"): subscriptions.expire_all,
    ("PUT", _SUBSCRIPTION): subscriptions.create,
    ("DELETE", _SUBSCRIPTION): subscriptions.delete,
    ("POST", f"{_SUBSCRIPTION}/skip/{{count}}"): subscriptions.skip,
    ("POST", f"{_SUBSCRIPTION}/skip_all"): subscriptions.skip_all,
    ("POST", f"{_SUBSCRIPTION}/resetcursor"): subscriptions.reset_to_id,
    ("POST", f"{_SUBSCRIPTION}/resetcursor/{{timestamp}}"): subscriptions.reset_to_time,
    ("POST", f"{_SUBSCRIPTION}/expireMessages/{{seconds}}"): subscriptions.expire,
    ("GET", f"{_SCHEMAS}/schema"): schemas.latest,
    ("POST", f"{_SCHEMAS}/schema"): schemas.store,
    ("DELETE", f"{_SCHEMAS}/schema"): schemas.delete,
    ("GET", f"{_SCHEMAS}/schema/{{version}}"): schemas.version,
    ("GET", f"{_SCHEMAS}/schemas"): schemas.versions,
    ("POST", f"{_SCHEMAS}/version"): schemas.find,
    ("POST", f"{_SCHEMAS}/compatibility"): schemas.compatibility,
}
for _place, _policies in ((_NAMESPACE, policies.OF_NAMESPACES), (_TOPIC, policies.OF_TOPICS)):
    ROUTES["GET", f"{_place}/backlogQuotaMap"] = policies.quotas
    ROUTES["POST", f"{_place}/backlogQuota"] = policies.set_quota
    ROUTES["DELETE", f"{_place}/backlogQuota"] = policies.remove_quota
    for _name, _policy in _policies.items():
        ROUTES["GET", f"{_place}/{_name}"] = partial(policies.get, _policy)
        _change = "PUT" if _name == policies.STRATEGY else "POST"
        ROUTES[_change, f"{_place}/{_name}"] = partial(policies.put, _policy)
        ROUTES["DELETE", f"{_place}/{_name}"] = partial(policies.remove, _policy)

_BY_LENGTH: dict[int, list[tuple[str, list[str], Handler]]] = {}
for (_method, _path), _handler in ROUTES.items():
    _parts = _path.split("/")
    _BY_LENGTH.setdefault(len(_parts), []).append((_method, _parts, _handler))


def handler_of(asked: RestRequest) -> tuple[Handler, RestRequest]:
    """Return the function for a request, and the request with the named parts of its path.

    Raises Failure for a request that the broker does not have.
    """
    other_method = False
    for method, parts, handler in _BY_LENGTH.get(len(asked.path), ()):
        named = _matched(parts, asked.path)
        if named is None:
            continue
        if method == asked.method:
            return handler, replace(asked, named=named)
        other_method = True
    if other_method:
        raise Failure(HTTPStatus.METHOD_NOT_ALLOWED, f"{asked.method} is not allowed here")
    status = HTTPStatus.NOT_IMPLEMENTED if asked.path[0] == "admin" else HTTPStatus.NOT_FOUND
    shown = "/".join(asked.path)[:200]
    raise Failure(status, f"The embedded broker does not have {asked.method} /{shown}")


def _matched(parts: list[str], path: tuple[str, ...]) -> dict[str, str] | None:
    """Return the named parts of a path, None if it is another one."""
    named = {}
    for part, given in zip(parts, path, strict=True):
        if not part.startswith("{"):
            if part != given:
                return None
        elif not given or (part == "{domain}" and given not in _DOMAINS):
            return None
        else:
            named[part[1:-1]] = given
    return named
