"""What a subscription is made with besides plain values: the official client's policies."""

from __future__ import annotations

from pulsar_spark.client.enums import KeySharedMode
from pulsar_spark.engine.options import KeySharedRules
from pulsar_spark.errors import OptionError

Range = tuple[int, int]


class ConsumerBatchReceivePolicy:
    """When `batch_receive` returns: at a number of messages, of bytes, or after some time.

    A limit of 0 or less is none; at least one is needed. Raises OptionError.
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
    ends included). Raises OptionError for ranges that are none.
    """

    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: list[Range] | None = None,
    ) -> None:
        if key_shared_mode == KeySharedMode.Sticky and not sticky_ranges:
            raise OptionError(
                "a sticky policy has no ranges", "Give sticky_ranges: the hash slots to serve."
            )
        self._mode = KeySharedMode(int(key_shared_mode))
        sticky = self._mode == KeySharedMode.Sticky
        ranges = tuple((int(low), int(high)) for low, high in sticky_ranges or ())
        self._given = ranges
        checked = KeySharedRules(ranges, allow_out_of_order_delivery)
        self._rules = checked if sticky else KeySharedRules((), allow_out_of_order_delivery)

    @property
    def key_shared_mode(self) -> KeySharedMode:
        """Whether the broker spreads the keys, or consumers name theirs."""
        return self._mode

    @property
    def allow_out_of_order_delivery(self) -> bool:
        """Whether a key may go on at another consumer before the first one has acknowledged."""
        return self._rules.out_of_order

    @property
    def sticky_ranges(self) -> list[Range]:
        """The hash slots that were given."""
        return list(self._given)

    def rules(self) -> KeySharedRules:
        """Return it as the engine takes it."""
        return self._rules


class ConsumerDeadLetterPolicy:
    """What becomes of messages that are delivered again more than `max_redeliver_count` times.

    They go to `dead_letter_topic` (by default ``TOPIC-SUBSCRIPTION-DLQ``) and are acknowledged.
    `initial_subscription_name` is a subscription that the topic is created with. Raises
    OptionError.
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
        self._max = max_redeliver_count
        self._topic = dead_letter_topic or ""
        self._initial = initial_subscription_name or ""
        self._retry = retry_letter_topic or ""

    @property
    def max_redeliver_count(self) -> int:
        """How often a message is delivered again before it is a dead letter."""
        return self._max

    @property
    def dead_letter_topic(self) -> str:
        """The topic that was given, empty for the default."""
        return self._topic

    @property
    def initial_subscription_name(self) -> str:
        """The subscription that was given, empty for none."""
        return self._initial

    @property
    def retry_letter_topic(self) -> str:
        """The topic for messages to be consumed later, empty for the default."""
        return self._retry
