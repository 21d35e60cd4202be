"""The policies of a topic that an embedded broker enforces, with the answers of a real one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.refusals import Refusal

if TYPE_CHECKING:
    from pulsar_spark.testing.topic import Topic

_S = pb.CommandSubscribe
_ALL_TYPES = tuple(_S.SubType.keys())


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """What a topic allows. A limit of 0 is none; types are names such as "Exclusive".

    Consumers and subscriptions count whether they are durable or not.
    """

    max_consumers: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions: int = 0
    max_producers: int = 0
    auto_subscription_creation: bool = True
    subscription_types: Collection[str] = _ALL_TYPES
    encryption_required: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown type of subscription."""
        for name in self.subscription_types:
            _S.SubType.Value(name)

    def check_subscribe(self, topic: Topic, body: pb.CommandSubscribe) -> None:
        """Raise Refusal if the topic does not allow this consumer, or its subscription."""
        existing = topic.subscriptions.get(body.subscription)
        connected = sum(len(found.consumers) for found in topic.subscriptions.values())
        if _is_reached(self.max_consumers, connected):
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


def _is_reached(limit: int, number: int) -> bool:
    return 0 < limit <= number
