"""The official client's policies for subscriptions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pulsar_spark.client.enums import KeySharedMode, RegexSubscriptionMode, choice
from pulsar_spark.engine.lookups.topic_patterns import TopicPattern
from pulsar_spark.engine.options import KeySharedRules, RedeliveryBackoff, check_range, check_text
from pulsar_spark.errors import OptionError
from pulsar_spark.protocol.topic_name import NON_PERSISTENT, PERSISTENT, TopicName

_DOMAINS = {
    RegexSubscriptionMode.PersistentOnly: (PERSISTENT,),
    RegexSubscriptionMode.NonPersistentOnly: (NON_PERSISTENT,),
    RegexSubscriptionMode.AllTopics: (PERSISTENT, NON_PERSISTENT),
}

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics that `subscribe` was given: names, or a pattern. `title` is their common name."""

    title: str
    names: tuple[str, ...] = ()
    pattern: TopicPattern | None = None

    def with_topic(self, name: str) -> TopicSelection:
        """Return a copy with one more topic."""
        return replace(self, names=(*self.names, str(TopicName.parse(name))))

    def can_grow(self, found: Sequence[str]) -> bool:
        """Whether more topic partitions than those found may appear."""
        # A topic that is not partitioned never gets partitions.
        return self.pattern is not None or sorted(found) != sorted(self.names)


def topic_selection(topic: Any, mode: RegexSubscriptionMode) -> TopicSelection:
    """Parse the `topic` of `subscribe`; raises OptionError and InvalidTopicName."""
    if isinstance(topic, str):
        name = str(TopicName.parse(topic))
        return TopicSelection(name, (name,))
    if isinstance(topic, list):
        names = tuple(dict.fromkeys(str(TopicName.parse(one)) for one in topic))
        if not names:
            raise OptionError("the list of topics is empty")
        return TopicSelection(",".join(names), names)
    if isinstance(topic, re.Pattern):
        text = str(topic.pattern)
        domain, separator, rest = text.partition("://")
        # The mode chooses the domain; the one in the pattern is ignored.
        if separator and domain in (PERSISTENT, NON_PERSISTENT) and "://" not in rest:
            text = rest
        pattern = TopicPattern.parse(text)
        return TopicSelection(str(topic.pattern), (), replace(pattern, domains=_DOMAINS[mode]))
    raise OptionError("topic is not a name, a list of names or a compiled regular expression")


class ConsumerBatchReceivePolicy:
    """When `batch_receive` returns: after a number of messages or bytes, or after some time.

    A limit of 0 or less means no limit; at least one is needed. Raises OptionError.
    """

    def __init__(self, max_num_message: int, max_num_bytes: int, timeout_ms: int) -> None:
        if max(max_num_message, max_num_bytes, timeout_ms) <= 0:
            raise OptionError(
                "a policy of batch_receive has no limit",
                "Give at least one of max_num_message, max_num_bytes and timeout_ms.",
            )
        self.max_num_message = max_num_message
        self.max_num_bytes = max_num_bytes
        self.timeout_ms = timeout_ms


DEFAULT_BATCH = ConsumerBatchReceivePolicy(-1, 10 * 1024 * 1024, 100)


class ConsumerKeySharedPolicy:
    """How the consumers of a Key_Shared subscription share its keys.

    With KeySharedMode.Sticky a consumer serves the hash slots `sticky_ranges` (0 to 65535, both
    ends included); otherwise the broker assigns keys. With `allow_out_of_order_delivery` another
    consumer may get a key's messages before the first one has acknowledged its own. Raises
    OptionError for invalid ranges.
    """

    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: list[Range] | None = None,
    ) -> None:
        self.key_shared_mode = choice(KeySharedMode, key_shared_mode, "key_shared_mode")
        sticky = self.key_shared_mode == KeySharedMode.Sticky
        if sticky and not sticky_ranges:
            raise OptionError(
                "a sticky policy has no ranges", "Give sticky_ranges: the hash slots to serve."
            )
        self.allow_out_of_order_delivery = allow_out_of_order_delivery
        ranges = tuple((int(low), int(high)) for low, high in sticky_ranges or ())
        self.sticky_ranges = list(ranges)
        checked = KeySharedRules(ranges, allow_out_of_order_delivery)
        # In the engine's form.
        self._rules = checked if sticky else KeySharedRules((), allow_out_of_order_delivery)


class MultiplierRedeliveryBackoff:
    """How long to wait before each redelivery: the pauses grow, as in Java's class of this name.

    Raises OptionError for values out of range.
    """

    def __init__(
        self, min_delay_ms: int = 1000, max_delay_ms: int = 60_000, multiplier: float = 2.0
    ) -> None:
        check_range("min_delay_ms", min_delay_ms, 0)
        check_range("max_delay_ms", max_delay_ms, 0)
        check_range("multiplier", multiplier, 1)
        # In the engine's form.
        self._backoff = RedeliveryBackoff(min_delay_ms / 1000, max_delay_ms / 1000, multiplier)


class ConsumerDeadLetterPolicy:
    """Where messages go that were redelivered more than `max_redeliver_count` times.

    They go to `dead_letter_topic` (default ``TOPIC-SUBSCRIPTION-DLQ``, of each message's own topic
    unless the consumer has `enable_retry`: then of its first topic) and are acknowledged.
    `initial_subscription_name` names a subscription to create together with that topic. Names that
    were not given are empty. Raises OptionError.
    """

    def __init__(
        self,
        max_redeliver_count: int,
        dead_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
        *,
        retry_letter_topic: str | None = None,
    ) -> None:
        if max_redeliver_count < 1:
            raise OptionError(
                f"max_redeliver_count is {max_redeliver_count}, it must be at least 1"
            )
        check_text("dead_letter_topic", dead_letter_topic)
        check_text("initial_subscription_name", initial_subscription_name)
        check_text("retry_letter_topic", retry_letter_topic)
        self.max_redeliver_count = max_redeliver_count
        self.dead_letter_topic = dead_letter_topic or ""
        self.initial_subscription_name = initial_subscription_name or ""
        self.retry_letter_topic = retry_letter_topic or ""
