"""Policies of namespaces and topics: those that the broker acts upon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pulsar_spark.testing.namespaces import AUTO_CREATE
from pulsar_spark.testing.policies import BacklogQuota, Retention, TopicPolicies
from pulsar_spark.testing.rest import found
from pulsar_spark.testing.rest.request import Failure, RestAnswer, RestRequest, typed, whole
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
    number = asked.whole("messageTTL" if "messageTTL" in asked.query else None)
    if number < 0:
        text = "Invalid value for message TTL, message TTL must >= 0"
        raise Failure(HTTPStatus.PRECONDITION_FAILED, text)
    return number


def _flag(asked: RestRequest) -> bool:
    value = asked.json()
    # As Pulsar does: some clients write all values as texts.
    return value == "true" if value in ("true", "false") else typed(value, bool)


def _types(asked: RestRequest) -> tuple[str, ...]:
    return tuple(map(str, typed(asked.json(), list)))


def _strategy(asked: RestRequest) -> str:
    value = asked.json()
    # A broker takes a name that it does not know for none.
    return value if value in STRATEGIES else "UNDEFINED"


def _retention(asked: RestRequest) -> Retention:
    given, names = asked.record(), ("retentionTimeInMinutes", "retentionSizeInMB")
    found = Retention(*(typed(given.get(name), int) for name in names))
    if 0 in found and any(found):
        raise Failure(
            HTTPStatus.BAD_REQUEST,
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when "
            "one of the limits has a non-zero value. Use the value of -1 instead of 0 to ignore a "
            "specific limit. To disable retention both limits must be set to 0.",
        )
    return found


def _shown_retention(value: Retention) -> dict[str, int]:
    return {"retentionTimeInMinutes": value.minutes, "retentionSizeInMB": value.megabytes}


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
    return typed(value["defaultNumPartitions"], int)


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
_RETENTION = RestPolicy("retention", _retention, _shown_retention)
_DEDUPLICATION = RestPolicy("deduplication", _flag)
_TYPES = RestPolicy("subscription_types", _types, list, [])

STRATEGY = "schemaCompatibilityStrategy"
"""The policy that is set by PUT; others are by POST."""

OF_NAMESPACES: dict[str, RestPolicy] = {
    "messageTTL": _TTL,
    "retention": _RETENTION,
    "deduplication": _DEDUPLICATION,
    "encryptionRequired": RestPolicy("encryption_required", _flag, unset=False),
    "subscriptionTypesEnabled": _TYPES,
    STRATEGY: RestPolicy("schema_compatibility", _strategy, unset="UNDEFINED"),
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
    "retention": _RETENTION,
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


def _settings(server: Server, asked: RestRequest, *, change: bool = True) -> dict[str, Any]:
    """What is set for the namespace or the topic in the path; perhaps to change it."""
    known = server.topics.namespaces
    if "topic" not in asked.named:
        name = found.namespace(server, asked)
        return known.of_namespace(name) if change else known.settings.get(name, {})
    found.parts(server, asked.topic)
    return known.of_topic(asked.topic)


def get(policy: RestPolicy, server: Server, asked: RestRequest) -> Any:
    """Show what is set."""
    value = _settings(server, asked, change=False).get(policy.setting)
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
    return _quotas(_settings(server, asked, change=False))


def _quotas(settings: dict[str, Any]) -> dict[str, Any]:
    shown = {}
    for kind, name in _QUOTAS.items():
        if (quota := settings.get(name)) is not None:
            limits = {**dict.fromkeys(_LIMITS.values(), 0), _LIMITS[kind]: int(quota.limit)}
            shown[kind] = {"limit": limits["limitSize"], **limits, "policy": quota.policy}
    return shown


def set_quota(server: Server, asked: RestRequest) -> None:
    """Set a backlog quota, of the kind in the query."""
    kind, settings = _kind(asked), _settings(server, asked)
    quota = _quota(kind, asked.record(), asked)
    # A negative limit is none.
    _set(server, settings, _QUOTAS[kind], quota if quota.limit >= 0 else None)


def _quota(kind: str, given: dict[str, Any], asked: RestRequest) -> BacklogQuota:
    limit = given.get(_LIMITS[kind])
    if limit is None and kind == "destination_storage":
        limit = given.get("limit")
    try:
        return BacklogQuota(whole(-1 if limit is None else limit), str(given.get("policy")))
    except ValueError:
        raise Failure(
            HTTPStatus.BAD_REQUEST,
            f"Set namespace[{asked.namespace}] backlog quota failed because the data validation "
            "failed. the attribute policy cannot be null",
        ) from None


def remove_quota(server: Server, asked: RestRequest) -> None:
    """Remove the backlog quota of the kind in the query."""
    _set(server, _settings(server, asked), _QUOTAS[_kind(asked)], None)


def _kind(asked: RestRequest) -> str:
    kind = asked.query.get("backlogQuotaType", "destination_storage")
    if kind not in _QUOTAS:
        raise Failure(HTTPStatus.NOT_FOUND, f"{kind} is no kind of backlog quota")
    return kind


# The settings by their names in a namespace's policies; the type, and what is shown if unset.
_IN_POLICIES: dict[str, tuple[str, type, Any]] = {
    "message_ttl_in_seconds": ("message_ttl", int, None),
    "deduplicationEnabled": ("deduplication", bool, None),
    "encryption_required": ("encryption_required", bool, False),
    "schema_compatibility_strategy": ("schema_compatibility", str, "UNDEFINED"),
    "is_allow_auto_update_schema": ("auto_update_schema", bool, True),
    "schema_validation_enforced": ("schema_validation_enforced", bool, False),
    "subscription_types_enabled": ("subscription_types", list, []),
    "max_producers_per_topic": ("max_producers", int, None),
    "max_consumers_per_topic": ("max_consumers", int, None),
    "max_subscriptions_per_topic": ("max_subscriptions", int, None),
    "max_consumers_per_subscription": ("max_consumers_per_subscription", int, None),
}


def summary(settings: dict[str, Any]) -> dict[str, Any]:
    """A namespace's settings, as a broker shows them together."""
    shown = {name: settings.get(own, unset) for name, (own, _, unset) in _IN_POLICIES.items()}
    shown["subscription_types_enabled"] = list(shown["subscription_types_enabled"])
    shown["backlog_quota_map"] = _quotas(settings)
    return {name: value for name, value in shown.items() if value is not None}


def of_body(asked: RestRequest) -> dict[str, Any]:
    """The settings in a new namespace's policies; those that the broker lacks do not count."""
    given = {} if asked.json() is None else asked.record()
    settings: dict[str, Any] = {
        own: typed(given[name], kind)
        for name, (own, kind, unset) in _IN_POLICIES.items()
        if given.get(name) is not None and given[name] != unset
    }
    if types := settings.get("subscription_types"):
        settings["subscription_types"] = tuple(map(str, types))
    for kind, quota in typed(given.get("backlog_quota_map") or {}, dict).items():
        if kind in _QUOTAS:
            settings[_QUOTAS[kind]] = _quota(kind, typed(quota, dict), asked)
    try:
        TopicPolicies().with_settings(settings)
    except ValueError as error:
        raise Failure(HTTPStatus.BAD_REQUEST, str(error)) from None
    return settings
