"""Options of the client, of readers and of producers: plain data that Spark can pickle.

Times are seconds, sizes are bytes. Values are checked once, when an object is made. No `repr`
shows a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pulsar_spark.engine.addresses import parse_service_url
from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_spark.protocol.schema_info import SchemaInfo

MIB = 1024 * 1024


def _check_range(owner: object, lowest: float, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if value < lowest or value != value:
            raise OptionError(f"{name} is {value}, it must be at least {lowest}")


def is_unicode(text: str) -> bool:
    """Whether a text can be sent; one with a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(secret: str | None) -> str:
    return "None" if secret is None else "'***'"


@dataclass(frozen=True, slots=True, repr=False)
class AuthOptions:
    """How to log in: `method` is ``none``, ``token`` or ``basic``.

    A token is given as text, or as a file that is read again whenever it is needed.
    """

    method: str = "none"
    token: str | None = None
    token_file: str | None = None
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return (
            f"AuthOptions(method={self.method!r}, token={_shown(self.token)}, "
            f"token_file={self.token_file!r}, username={self.username!r}, "
            f"password={_shown(self.password)})"
        )


@dataclass(frozen=True, slots=True, repr=False)
class TlsOptions:
    """Certificates and checks of TLS connections."""

    trust_certs_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    allow_insecure: bool = False
    verify_hostname: bool = True

    def __repr__(self) -> str:
        return (
            f"TlsOptions(trust_certs_file={self.trust_certs_file!r}, "
            f"certificate_file={self.certificate_file!r}, key_file={_shown(self.key_file)}, "
            f"allow_insecure={self.allow_insecure}, verify_hostname={self.verify_hostname})"
        )


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What a connection to a cluster needs.

    `operation_timeout` bounds every request with its retries, `connection_timeout` one attempt
    to connect, `keep_alive_interval` is the time between PINGs, `memory_limit` what producers
    may hold unsent. Raises OptionError for values out of range.
    """

    service_url: str
    operation_timeout: float = 30.0
    connection_timeout: float = 10.0
    keep_alive_interval: float = 30.0
    max_lookup_redirects: int = 20
    listener_name: str | None = None
    auth: AuthOptions = field(default_factory=AuthOptions)
    tls: TlsOptions = field(default_factory=TlsOptions)
    memory_limit: int = 64 * MIB

    def __post_init__(self) -> None:
        parse_service_url(self.service_url)
        _check_range(self, 0.001, "operation_timeout", "connection_timeout", "keep_alive_interval")
        _check_range(self, 0, "max_lookup_redirects")
        _check_range(self, 1, "memory_limit")
        if self.listener_name is not None and not is_unicode(self.listener_name):
            raise OptionError("listener_name holds characters that are not Unicode")


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """How a reader fetches.

    It holds at most `memory_budget` bytes of undecoded entries. `receiver_queue_size` is how
    many messages it asks for at first; with `auto_scale` it goes on to as many as the budget
    allows for their observed size. Without progress for `poll_timeout` it fails. A message in
    chunks that the topic does not hold all of is an error, or with `skip_incomplete` counted
    and left out.
    """

    receiver_queue_size: int = 1000
    auto_scale: bool = True
    memory_budget: int = 64 * MIB
    read_compacted: bool = False
    poll_timeout: float = 120.0
    skip_incomplete: bool = False
    subscription_prefix: str = "pulsar-spark-reader"

    def __post_init__(self) -> None:
        _check_range(self, 1, "receiver_queue_size", "memory_budget")
        _check_range(self, 0.001, "poll_timeout")
        if not self.subscription_prefix:
            raise OptionError("subscription_prefix is empty")


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer batches, compresses and routes.

    `compression` is a CompressionType, `access_mode` a ProducerAccessMode of the protocol.
    `batching_max_delay` is how long a batch waits for more messages. `routing_mode` is
    ``RoundRobinPartition`` or ``SinglePartition``, `hashing_scheme` ``JavaStringHash`` or
    ``Murmur3_32Hash``. `max_pending_messages` 0 leaves the bound to the client's memory limit.
    """

    compression: int = pb.NONE
    batching_enabled: bool = True
    batching_max_messages: int = 1000
    batching_max_bytes: int = 128 * 1024
    batching_max_delay: float = 0.01
    send_timeout: float = 30.0
    max_pending_messages: int = 0
    hashing_scheme: str = "JavaStringHash"
    routing_mode: str = "RoundRobinPartition"
    producer_name: str | None = None
    initial_sequence_id: int | None = None
    access_mode: int = pb.Shared
    chunking_enabled: bool = False
    chunk_max_message_size: int = 0
    schema: SchemaInfo | None = None
    properties: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        _check_range(self, 1, "batching_max_messages", "batching_max_bytes")
        _check_range(self, 0, "batching_max_delay", "send_timeout", "max_pending_messages")
        _check_range(self, 0, "chunk_max_message_size")
        if self.compression not in pb.CompressionType.values():
            raise OptionError(f"compression {self.compression} is not known")
        if self.access_mode not in pb.ProducerAccessMode.values():
            raise OptionError(f"access_mode {self.access_mode} is not known")
        if self.hashing_scheme not in ("JavaStringHash", "Murmur3_32Hash"):
            raise OptionError("hashing_scheme is neither JavaStringHash nor Murmur3_32Hash")
        if self.routing_mode not in ("RoundRobinPartition", "SinglePartition"):
            raise OptionError("routing_mode is neither RoundRobinPartition nor SinglePartition")
