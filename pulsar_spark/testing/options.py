"""Options of an embedded broker."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from pulsar_spark.errors import OptionError
from pulsar_spark.protocol.commands import CLIENT_PROTOCOL_VERSION
from pulsar_spark.protocol.frames import DEFAULT_MAX_MESSAGE_SIZE
from pulsar_spark.testing.policies import TopicPolicies

HOST = "127.0.0.1"
"""The only address that an embedded broker listens on: it is not built for security."""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The settings of one embedded broker; times in seconds, sizes in bytes.

    Raises OptionError for invalid values.
    """

    port: int = 0
    brokers: int = 1
    name: str = "standalone"
    auto_create: bool | int = True
    namespaces: tuple[str, ...] | None = None
    max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE
    max_entries_per_ledger: int = 50_000
    memory_limit: int = 2 * 1024**3
    expose_entry_metadata: bool = False
    batch_index_ack: bool = False
    listeners: tuple[str, ...] = ()
    deduplication: bool = False
    transactions: bool = True
    precise_flow: bool = False
    max_unacked_messages: int = 50_000
    keep_alive_interval: float = 30.0
    liveness_timeout: float = 5.0
    failover_delay: float = 0.0
    protocol_version: int = CLIENT_PROTOCOL_VERSION
    tls: ssl.SSLContext | None = None
    authenticate: Callable[[str, bytes], bool] | None = None
    rest: bool | int = False
    policies: TopicPolicies = field(default_factory=TopicPolicies)
    policy_check_interval: float = 1.0

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                raise OptionError(f"{name} is {value}", f"Give a value from {low} to {high}.")

    def accepts(self, method: str, credentials: bytes) -> bool:
        """Whether a client with these credentials may connect."""
        return self.authenticate is None or self.authenticate(method, credentials)

    @property
    def rest_port(self) -> int | None:
        """The port of the admin REST: 0 for any free one, None without it."""
        if isinstance(self.rest, bool):
            return 0 if self.rest else None
        return self.rest


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("port", 0, 65535),
    ("brokers", 1, 128),
    ("auto_create", 0, 10_000),
    ("max_message_size", 1, 256 * 1024**2),
    ("max_entries_per_ledger", 1, 2**31),
    ("memory_limit", 1, 2**40),
    ("max_unacked_messages", 1, 2**31),
    ("keep_alive_interval", 0.01, 3600),
    ("liveness_timeout", 0.01, 3600),
    ("failover_delay", 0, 3600),
    ("rest", 0, 65535),
    ("policy_check_interval", 0.01, 3600),
    ("protocol_version", 0, CLIENT_PROTOCOL_VERSION),
)

OPTION_NAMES = tuple(one.name for one in fields(BrokerOptions))
