"""Policies of namespaces and topics: those that the broker acts upon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pulsar_spark.testing.namespaces import AUTO_CREATE
from pulsar_spark.testing.policies import BacklogQuota, TopicPolicies
from pulsar_spark.testing.rest import found
from pulsar_spark.testing.rest.request import Failure, RestAnswer, RestRequest
from pulsar_spark.testing.schemas import STRATEGIES

if TYPE_CHECKING:
    from pulsar_spark.testing.server import Server


_NOTHING = RestAnswer(HTTPStatus.OK)


@dataclass(frozen=True, slots=True)
class RestPolicy:
    """A policy: its setting's name, and how a body becomes a value and a value a body.

    `unset` is shown where nothing is set.
    """

    setting: str
    parse: Callable[[RestRequest], Any]
    show: Callable[[Any], Any] = lambda value: value
    unset: Any = _NOTHING


def _limit(name: str, asked: RestRequest) -> int:
    number = asked.whole()
    if number < 0:
        raise Failure(HTTPStatus.PRECONDITION_FAILED, f"{name} must be 0 or more")
    return number


def _ttl(asked: RestRequest) -> int:
    number = int(asked.query["messageTTL"]) if "messageTTL" in asked.query else asked.whole()
    if number < 0:
        text = "Invalid value for message TTL, message TTL must >= 0"
        raise Failure(HTTPStatus.PRECONDITION_FAILED, text)
    return number


def _flag(asked: RestRequest) -> bool:
    value = asked.json()
    if not isinstance(value, bool):
        raise Failure(HTTPStatus.BAD_REQUEST, "true or false is expected")
    return value


def _types(asked: RestRequest) -> tuple[str, ...]:
    value = asked.json()
    if not isinstance(value, list):
        raise Failure(HTTPStatus.BAD_REQUEST, "A list is expected")
    return tuple(map(str, value))


def _strategy(asked: RestRequest) -> str:
    value = asked.json()
    # A broker takes a name that it does not know for none.
    return value if value in STRATEGIES else "UNDEFINED"


def _creation(asked: RestRequest) -> bool | int:
    value = asked.record()
    if not value.get("allowAutoTopicCreation"):
        return False
    if value.get("topicType") != "partitioned":
        return True
    if not value.get("defaultNumPartitions"):
        raise Failure(
            HTTPStatus.PRECONDITION_FAILED,
            "Invalid configuration for autoTopicCreationOverride. the detail is "
            "[defaultNumPartitions] cannot be null when the type is partitioned.",
        )
    return int(value["defaultNumPartitions"])


def _shown_creation(value: bool | int) -> dict[str, Any]:
    shown: dict[str, Any] = {"allowAutoTopicCreation": value is not False}
    if not isinstance(value, bool):
        shown |= {"topicType": "partitioned", "defaultNumPartitions": value}
    elif value:
        shown |= {"topicType": "non-partitioned"}
    return shown


def _counted(name: str, setting: str, unset: HTTPStatus = HTTPStatus.OK) -> RestPolicy:
    return RestPolicy(setting, partial(_limit, name), unset=RestAnswer(unset))


_TTL = RestPolicy("message_ttl", _ttl)
_DEDUPLICATION = RestPolicy("deduplication", _flag)
_TYPES = RestPolicy("subscription_types", _types, list, [])

OF_NAMESPACES: dict[str, RestPolicy] = {
    "messageTTL": _TTL,
    "deduplication": _DEDUPLICATION,
    "encryptionRequired": RestPolicy("encryption_required", _flag, unset=False),
    "subscriptionTypesEnabled": _TYPES,
    "schemaCompatibilityStrategy": RestPolicy("schema_compatibility", _strategy, unset="UNDEFINED"),
    "isAllowAutoUpdateSchema": RestPolicy("auto_update_schema", _flag, unset=True),
    "schemaValidationEnforced": RestPolicy("schema_validation_enforced", _flag, unset=False),
    "autoTopicCreation": RestPolicy(AUTO_CREATE, _creation, _shown_creation),
    "autoSubscriptionCreation": RestPolicy(
        "auto_subscription_creation",
        lambda asked: bool(asked.record().get("allowAutoSubscriptionCreation")),
        lambda value: {"allowAutoSubscriptionCreation": value},
    ),
    "maxProducersPerTopic": _counted("maxProducersPerTopic", "max_producers"),
    "maxConsumersPerTopic": _counted("maxConsumersPerTopic", "max_consumers"),
    "maxSubscriptionsPerTopic": _counted("maxSubscriptionsPerTopic", "max_subscriptions"),
    "maxConsumersPerSubscription": _counted(
        "maxConsumersPerSubscription", "max_consumers_per_subscription"
    ),
}
"""Policies of a namespace, by the last part of their path."""

OF_TOPICS: dict[str, RestPolicy] = {
    "messageTTL": _TTL,
    "deduplicationEnabled": _DEDUPLICATION,
    "subscriptionTypesEnabled": _TYPES,
    "maxProducers": _counted("maxProducers", "max_producers"),
    "maxConsumers": _counted("maxConsumers", "max_consumers"),
    "maxSubscriptionsPerTopic": _counted(
        "maxSubscriptionsPerTopic", "max_subscriptions", HTTPStatus.NO_CONTENT
    ),
    "maxConsumersPerSubscription": _counted(
        "maxConsumersPerSubscription", "max_consumers_per_subscription", HTTPStatus.NO_CONTENT
    ),
}
"""Policies of a topic, by the last part of their path."""

_QUOTAS = {"destination_storage": "backlog_size", "message_age": "backlog_age"}
_LIMITS = {"destination_storage": "limitSize", "message_age": "limitTime"}


def _settings(server: Server, asked: RestRequest) -> dict[str, Any]:
    """What is set for the namespace or the topic in the path."""
    known = server.topics.namespaces
    if "topic" not in asked.named:
        return known.of_namespace(found.namespace(server, asked))
    found.parts(server, asked.topic)
    return known.of_topic(asked.topic)


def get(policy: RestPolicy, server: Server, asked: RestRequest) -> Any:
    """Show what is set."""
    value = _settings(server, asked).get(policy.setting)
    return policy.unset if value is None else policy.show(value)


def put(policy: RestPolicy, server: Server, asked: RestRequest) -> None:
    """Set it; topics obey at once."""
    _set(server, _settings(server, asked), policy.setting, policy.parse(asked))


def remove(policy: RestPolicy, server: Server, asked: RestRequest) -> None:
    """Set nothing."""
    _set(server, _settings(server, asked), policy.setting, None)


def _set(server: Server, settings: dict[str, Any], name: str, value: Any) -> None:
    try:
        TopicPolicies().with_settings({name: value} if value is not None else {})
    except ValueError as error:
        raise Failure(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from None
    settings.pop(name, None)
    if value is not None:
        settings[name] = value
    server.topics.apply_policies()


def quotas(server: Server, asked: RestRequest) -> dict[str, Any]:
    """Show the backlog quotas by their kind."""
    return _quotas(_settings(server, asked))


def _quotas(settings: dict[str, Any]) -> dict[str, Any]:
    shown = {}
    for kind, name in _QUOTAS.items():
        if (quota := settings.get(name)) is not None:
            limits = {**dict.fromkeys(_LIMITS.values(), 0), _LIMITS[kind]: int(quota.limit)}
            shown[kind] = {"limit": limits["limitSize"], **limits, "policy": quota.policy}
    return shown


def set_quota(server: Server, asked: RestRequest) -> None:
    """Set a backlog quota, of the kind in the query."""
    kind, settings, given = _kind(asked), _settings(server, asked), asked.record()
    limit = given.get(_LIMITS[kind])
    if limit is None and kind == "destination_storage":
        limit = given.get("limit")
    try:
        quota = BacklogQuota(int(limit if limit is not None else -1), str(given.get("policy")))
    except ValueError:
        raise Failure(
            HTTPStatus.BAD_REQUEST,
            f"Set namespace[{asked.namespace}] backlog quota failed because the data validation "
            "failed. the attribute policy cannot be null",
        ) from None
    # A negative limit is none.
    _set(server, settings, _QUOTAS[kind], quota if quota.limit >= 0 else None)


def remove_quota(server: Server, asked: RestRequest) -> None:
    """Remove the backlog quota of the kind in the query."""
    _set(server, _settings(server, asked), _QUOTAS[_kind(asked)], None)


def _kind(asked: RestRequest) -> str:
    kind = asked.query.get("backlogQuotaType", "destination_storage")
    if kind not in _QUOTAS:
        raise Failure(HTTPStatus.NOT_FOUND, f"{kind} is no kind of backlog quota")
    return kind


def summary(settings: dict[str, Any]) -> dict[str, Any]:
    """A namespace's settings, as a broker shows them together."""
    shown = {
        "backlog_quota_map": _quotas(settings),
        "message_ttl_in_seconds": settings.get("message_ttl"),
        "deduplicationEnabled": settings.get("deduplication"),
        "encryption_required": settings.get("encryption_required", False),
        "schema_compatibility_strategy": settings.get("schema_compatibility", "UNDEFINED"),
        "is_allow_auto_update_schema": settings.get("auto_update_schema", True),
        "schema_validation_enforced": settings.get("schema_validation_enforced", False),
        "subscription_types_enabled": list(settings.get("subscription_types", ())),
        "max_producers_per_topic": settings.get("max_producers"),
        "max_consumers_per_topic": settings.get("max_consumers"),
        "max_subscriptions_per_topic": settings.get("max_subscriptions"),
        "max_consumers_per_subscription": settings.get("max_consumers_per_subscription"),
    }
    return {name: value for name, value in shown.items() if value is not None}
