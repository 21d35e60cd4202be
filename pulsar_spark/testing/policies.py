"""The policies of a topic that an embedded broker enforces, with the answers of a real one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.schemas import STRATEGIES, SchemaHistory

if TYPE_CHECKING:
    from pulsar_spark.testing.topic import Topic

_S = pb.CommandSubscribe
_ALL_TYPES = tuple(_S.SubType.keys())

HOLD, EXCEPTION, EVICTION = QUOTA_POLICIES = (
    "producer_request_hold",
    "producer_exception",
    "consumer_backlog_eviction",
)
BLOCKED = {
    HOLD: pb.ProducerBlockedQuotaExceededError,
    EXCEPTION: pb.ProducerBlockedQuotaExceededException,
}
"""The errors of producers that a quota's policy keeps out."""


_UNTYPED = (
    "Producers cannot connect or send message without a schema to topics with a schema"
    "when SchemaValidationEnforced is enabled"
)


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """How much of a topic durable subscriptions may leave unacknowledged.

    `limit` is in bytes or seconds. Beyond it, the `policy` closes producers and refuses new ones
    ("producer_request_hold", "producer_exception"), or acknowledges the oldest messages
    ("consumer_backlog_eviction").
    """

    limit: float
    policy: str = HOLD

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown policy."""
        if self.policy not in QUOTA_POLICIES:
            raise ValueError(f"{self.policy!r} is none of {', '.join(QUOTA_POLICIES)}")


class Retention(NamedTuple):
    """How long a topic keeps what all durable subscriptions have acknowledged, and how much of it.

    Both limits count, -1 is none: only where neither is exceeded it stays. Closed ledgers are
    deleted as a whole.
    """

    minutes: int
    megabytes: int


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """What a topic allows. A limit of 0 is none; types are names such as "Exclusive".

    Consumers and subscriptions count whether they are durable or not. `deduplication` is the
    broker's for None. `backlog_size` is a quota in bytes, `backlog_age` one in seconds since the
    oldest message was published, `message_ttl` a time in seconds after which messages are
    acknowledged. Without a `retention` all messages are kept. They are looked at from time to time,
    see EmbeddedBroker's `policy_check_interval`. `schema_compatibility` names a strategy, such as
    "FULL".
    """

    max_consumers: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions: int = 0
    max_producers: int = 0
    auto_subscription_creation: bool = True
    subscription_types: Collection[str] = _ALL_TYPES
    encryption_required: bool = False
    deduplication: bool | None = None
    backlog_size: BacklogQuota | None = None
    backlog_age: BacklogQuota | None = None
    message_ttl: int = 0
    retention: Retention | None = None
    schema_compatibility: str = "FULL"
    auto_update_schema: bool = True
    schema_validation_enforced: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown type of subscription, or strategy of schemas."""
        for name in self.subscription_types:
            if name not in _ALL_TYPES:
                raise ValueError(f"{name!r} is none of {', '.join(_ALL_TYPES)}")
        if self.schema_compatibility not in STRATEGIES:
            raise ValueError(f"{self.schema_compatibility!r} is none of {', '.join(STRATEGIES)}")

    @property
    def needs_checks(self) -> bool:
        """Whether there is something to look at from time to time."""
        return bool(
            self.message_ttl or self.backlog_size or self.backlog_age or self.retention is not None
        )

    def with_settings(self, *settings: dict[str, Any]) -> TopicPolicies:
        """These policies with other values for some; names that are no policies do not count."""
        known = {name: value for one in settings for name, value in one.items() if name in NAMES}
        return replace(self, **known) if known else self

    def check_subscribe(self, topic: Topic, body: pb.CommandSubscribe) -> None:
        """Raise Refusal if the topic does not allow this consumer, or its subscription."""
        existing = topic.subscriptions.get(body.subscription)
        if _is_reached(self.max_consumers, len(topic.consumers)):
            raise Refusal(pb.ConsumerBusy, "Topic reached max consumers limit")
        if existing is None and body.durable and not self.auto_subscription_creation:
            raise Refusal(pb.SubscriptionNotFound, "Subscription does not exist")
        kind = _S.SubType.Name(body.subType)
        if kind not in self.subscription_types:
            text = f"Topic[{{{topic.name}}}] doesn't support {kind} sub type!"
            raise Refusal(pb.NotAllowedError, text)
        if existing is None:
            self.check_new_subscription(topic)
        elif body.subType != _S.Exclusive and _is_reached(
            self.max_consumers_per_subscription, len(existing.consumers)
        ):
            raise Refusal(pb.ConsumerBusy, "Subscription reached max consumers limit")

    def check_new_subscription(self, topic: Topic) -> None:
        """Raise Refusal if the topic has as many subscriptions as it may have."""
        if _is_reached(self.max_subscriptions, len(topic.subscriptions)):
            text = f"Exceed the maximum number of subscriptions of the topic: {topic.name}"
            raise Refusal(pb.NotAllowedError, text)

    def add_schema(self, history: SchemaHistory, schema: pb.Schema) -> bytes:
        """As `SchemaHistory.add`, with what is allowed here."""
        return history.add(schema, self.schema_compatibility, update=self.auto_update_schema)

    def check_producer(self, topic: Topic, body: pb.CommandProducer) -> None:
        """Raise Refusal if the topic does not allow this producer, or its initial subscription."""
        if self.encryption_required and not body.encrypted:
            raise Refusal(pb.MetadataError, f"Encryption is required in {topic.name}")
        if _is_reached(self.max_producers, len(topic.producers)):
            text = f"Topic '{topic.name}' reached max producers limit"
            raise Refusal(pb.ProducerBusy, text)
        if body.initial_subscription_name and (
            body.initial_subscription_name not in topic.subscriptions
        ):
            if not self.auto_subscription_creation:
                raise Refusal(
                    pb.NotAllowedError,
                    "Could not create the initial subscription due to the auto subscription "
                    "creation is not allowed.",
                )
            self.check_new_subscription(topic)
        if self.schema_validation_enforced and not body.HasField("schema") and len(topic.schemas):
            raise Refusal(pb.IncompatibleSchema, _UNTYPED)


NAMES = tuple(field.name for field in fields(TopicPolicies))


def _is_reached(limit: int, number: int) -> bool:
    return 0 < limit <= number
