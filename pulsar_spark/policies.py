"""The policies that brokers enforce, and what their answers say about them.

A broker answers most of them with a code that it also has for other things, and only its text tells
which. Texts vary with the broker's version, so they choose nothing but words here: the class of an
error, and with it whether something is retried, depends on the code alone. A text that is not known
gets the words of its class, which name all causes.
"""

from __future__ import annotations

from typing import NamedTuple

_NEEDS = "docs/deploying.md says how many reads, streams and sinks need"


class Policy(NamedTuple):
    """A setting that an administrator knows by `name`.

    `namespace` and `topic` are the commands of pulsar-admin that set it for one of these, each
    empty if there is none. `other_name` is the setting of broker.conf, if it has another name.
    """

    name: str
    namespace: str = ""
    topic: str = ""
    other_name: str = ""

    @property
    def broker(self) -> str:
        """The setting of broker.conf."""
        return self.other_name or self.name

    @property
    def where(self) -> str:
        """Where it is set, with the commands."""
        commands = ", ".join(command for command in (self.namespace, self.topic) if command)
        places = [f"pulsar-admin {commands}"] if commands else []
        places.append(f"{self.other_name} in broker.conf" if self.other_name else "broker.conf")
        return "; ".join(places)


MAX_CONSUMERS = Policy(
    "maxConsumersPerTopic",
    "namespaces set-max-consumers-per-topic",
    "topicPolicies set-max-consumers",
)
MAX_CONSUMERS_PER_SUBSCRIPTION = Policy(
    "maxConsumersPerSubscription",
    "namespaces set-max-consumers-per-subscription",
    "topicPolicies set-max-consumers-per-subscription",
)
MAX_SUBSCRIPTIONS = Policy(
    "maxSubscriptionsPerTopic",
    "namespaces set-max-subscriptions-per-topic",
    "topicPolicies set-max-subscriptions-per-topic",
)
MAX_PRODUCERS = Policy(
    "maxProducersPerTopic",
    "namespaces set-max-producers-per-topic",
    "topicPolicies set-max-producers",
)
MAX_TOPICS = Policy("maxTopicsPerNamespace", "namespaces set-max-topics-per-namespace")
SAME_ADDRESS_CONSUMERS = Policy("maxSameAddressConsumersPerTopic")
SAME_ADDRESS_PRODUCERS = Policy("maxSameAddressProducersPerTopic")
AUTO_SUBSCRIPTION = Policy(
    "autoSubscriptionCreation",
    "namespaces set-auto-subscription-creation",
    "topicPolicies set-auto-subscription-creation",
    "allowAutoSubscriptionCreation",
)
AUTO_TOPIC = Policy(
    "autoTopicCreation", "namespaces set-auto-topic-creation", other_name="allowAutoTopicCreation"
)
ENCRYPTION = Policy(
    "encryptionRequired",
    "namespaces set-encryption-required",
    other_name="encryptionRequireOnProducer",
)
SUBSCRIPTION_TYPES = Policy(
    "subscriptionTypesEnabled",
    "namespaces set-subscription-types-enabled",
    "topicPolicies set-subscription-types-enabled",
)
SUBSCRIBE_RATE = Policy(
    "subscribeRate",
    "namespaces set-subscribe-rate",
    "topicPolicies set-subscribe-rate",
    "subscribeThrottlingRatePerConsumer",
)
SCHEMA_VALIDATION = Policy(
    "schemaValidationEnforced",
    "namespaces set-schema-validation-enforce",
    "topics set-schema-validation-enforce",
    "isSchemaValidationEnforced",
)
SCHEMA_UPDATES = Policy(
    "isAllowAutoUpdateSchema",
    "namespaces set-is-allow-auto-update-schema",
    other_name="isAllowAutoUpdateSchemaEnabled",
)
MAX_MESSAGE_SIZE = Policy("maxMessageSize", topic="topicPolicies set-max-message-size")
DELIVERY_DELAY = Policy(
    "maxDeliveryDelayInMillis",
    "namespaces set-delayed-delivery",
    "topicPolicies set-delayed-delivery",
    "delayedDeliveryMaxDelayInMillis",
)
BACKLOG_QUOTA = Policy(
    "backlogQuota",
    "namespaces set-backlog-quota",
    "topicPolicies set-backlog-quota",
    "backlogQuotaDefaultLimitBytes",
)


class Answer(NamedTuple):
    """What an answer means if its text contains `phrase`: what happened, what to do."""

    phrase: str
    what: str
    remedy: str
    policy: Policy | None = None


def _limit(phrase: str, policy: Policy, things: str, *, free: str = "") -> Answer:
    """A limit on a number of `things`; `free` says how to need fewer of them."""
    return Answer(
        phrase,
        f"the limit {policy.name} is reached",
        f"{free or f'Close other {things}'}, or raise it ({policy.where}). {_NEEDS}.",
        policy,
    )


# The numbers are those of protocol's ServerError.
_METADATA, _CONSUMER_BUSY, _PRODUCER_BUSY, _SCHEMA, _NOT_ALLOWED = 1, 5, 16, 18, 22
_QUOTA_HOLD, _QUOTA_REFUSED, _NO_TOPIC, _NO_SUBSCRIPTION = 7, 8, 11, 12

_ANSWERS = {
    _CONSUMER_BUSY: (
        _limit("topic reached max consumers limit", MAX_CONSUMERS, "consumers"),
        _limit(
            "subscription reached max consumers limit",
            MAX_CONSUMERS_PER_SUBSCRIPTION,
            "consumers of the subscription",
        ),
        _limit(
            "max same address consumers limit", SAME_ADDRESS_CONSUMERS, "consumers of this machine"
        ),
        Answer(
            "consumer is already connected",
            "another consumer holds the subscription",
            "Another query or consumer uses this subscription: give each its own name.",
        ),
        Answer(
            "different type",
            "another consumer holds the subscription, with another type",
            "Give each its own name, or subscribe with the same type.",
        ),
    ),
    _PRODUCER_BUSY: (
        _limit("max producers limit", MAX_PRODUCERS, "producers"),
        _limit(
            "max same address producers limit", SAME_ADDRESS_PRODUCERS, "producers of this machine"
        ),
        Answer(
            "exclusive producer",
            "another producer has exclusive access to the topic",
            "Close that producer, or write to another topic.",
        ),
        Answer(
            "producer with name",
            "a producer with this name is already connected to the topic",
            "Remove pulsar.producer.producerName, or give each writer its own.",
        ),
    ),
    _NOT_ALLOWED: (
        _limit(
            "maximum number of subscriptions",
            MAX_SUBSCRIPTIONS,
            "subscriptions",
            free="Remove subscriptions that nobody needs (pulsar-admin topics unsubscribe)",
        ),
        _limit(
            "maximum number of topics in namespace",
            MAX_TOPICS,
            "topics",
            free="Delete topics that nobody needs",
        ),
        Answer(
            "auto subscription creation is not allowed",
            f"the policy {AUTO_SUBSCRIPTION.name} lets no client create a subscription",
            "Create it (pulsar-admin topics create-subscription), or allow it "
            f"({AUTO_SUBSCRIPTION.where}).",
            AUTO_SUBSCRIPTION,
        ),
        Answer(
            "sub type!",
            f"the policy {SUBSCRIPTION_TYPES.name} does not allow this type of subscription",
            f"Use an allowed type, or allow this one ({SUBSCRIPTION_TYPES.where}). Spark's reads "
            "and streams, and exactly-once sinks, need Exclusive.",
            SUBSCRIPTION_TYPES,
        ),
        Answer(
            "subscription with the same name already exists",
            "a subscription of this name exists, and one of the two is not durable",
            "Give each its own subscription name.",
        ),
        Answer(
            "subscribe rate limit",
            f"the limit {SUBSCRIBE_RATE.name} is reached",
            f"Subscribe less often, or raise it ({SUBSCRIBE_RATE.where}).",
            SUBSCRIBE_RATE,
        ),
        Answer(
            "maximum message size",
            f"the limit {MAX_MESSAGE_SIZE.name} is reached",
            f"Make it smaller, compress it, or raise the limit ({MAX_MESSAGE_SIZE.where}).",
            MAX_MESSAGE_SIZE,
        ),
        Answer(
            "max allowed delivery delay",
            f"the limit {DELIVERY_DELAY.name} is reached",
            "Have it delivered earlier (__deliverAt; PulsarClient: deliver_at, deliver_after), or "
            f"raise the limit ({DELIVERY_DELAY.where}).",
            DELIVERY_DELAY,
        ),
        Answer(
            "to a shadow topic",
            "a shadow topic takes messages from its source topic only",
            "Write to the source topic (pulsar-admin topics get-shadow-source).",
        ),
    ),
    _METADATA: (
        Answer(
            "encryption is required",
            f"the policy {ENCRYPTION.name} allows no producer that does not encrypt",
            "Set pulsar.producer.encryptionKeys and pulsar.producer.cryptoPublicKeyPath (see "
            f"encryption.md), or change it ({ENCRYPTION.where}). The records of an exactly-once "
            "sink are never encrypted: keep them in another namespace (sinkStateTopic).",
            ENCRYPTION,
        ),
    ),
    _SCHEMA: (
        Answer(
            "without a schema to topics with a schema",
            f"the policy {SCHEMA_VALIDATION.name} allows no producer without the topic's schema",
            "Write with the topic's schema (valueFormat=auto; PulsarClient: schema=), or change it "
            f"({SCHEMA_VALIDATION.where}).",
            SCHEMA_VALIDATION,
        ),
        Answer(
            "schema auto updating is disabled",
            f"the policy {SCHEMA_UPDATES.name} lets no producer add a schema",
            "Add it (pulsar-admin schemas upload), write with the topic's schema, or change it "
            f"({SCHEMA_UPDATES.where}).",
            SCHEMA_UPDATES,
        ),
    ),
}


def answer_of(code: int, text: str) -> Answer | None:
    """Return what a broker's answer means, None if its text is not known."""
    lowered = text.lower()
    return next((known for known in _ANSWERS.get(code, ()) if known.phrase in lowered), None)


def no_subscription(topic: str, name: str) -> tuple[str, str]:
    """Return why SUBSCRIBE does not create a missing subscription, and what to do."""
    return (
        f"the policy {AUTO_SUBSCRIPTION.name} lets no client create {name}",
        f"Create it (pulsar-admin topics create-subscription -s {name} -m earliest {topic}) or "
        f"allow it ({AUTO_SUBSCRIPTION.where}). A stream needs the option `subscription` to use "
        "one that was created: without, each start generates another name.",
    )


def no_topic(topic: str, asked: str) -> tuple[str, str]:
    """Return why a client that asks for a missing topic does not get one, and what to do.

    `asked` is the name that it asks for: a partition's, or that of `topic` itself.
    """
    if asked != topic:
        return (
            f"{topic} may have fewer partitions, and brokers add none for a client",
            "See how many it has (pulsar-admin topics get-partitioned-topic-metadata "
            f"{topic}); update-partitioned-topic adds more.",
        )
    return (
        f"the policy {AUTO_TOPIC.name} lets no client create it",
        f"Check its name, create it (pulsar-admin topics create {topic}, or "
        f"create-partitioned-topic), or allow it ({AUTO_TOPIC.where}).",
    )


def named_policies() -> list[tuple[int, Policy]]:
    """Return all policies that errors name, with the codes that brokers answer."""
    pairs = ((code, one.policy) for code, answers in _ANSWERS.items() for one in answers)
    return [
        *((code, policy) for code, policy in pairs if policy is not None),
        (_NO_SUBSCRIPTION, AUTO_SUBSCRIPTION),
        (_NO_TOPIC, AUTO_TOPIC),
        (_QUOTA_HOLD, BACKLOG_QUOTA),
        (_QUOTA_REFUSED, BACKLOG_QUOTA),
    ]
