"""Options of the client, of readers and of producers: plain data that Spark can pickle.

Times are seconds, sizes are bytes. Values are checked when an object is created. No `repr` shows a
secret.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from pulsar_spark.engine.connections.addresses import parse_service_url
from pulsar_spark.engine.pem import BEGIN, pem_content, shown_pem
from pulsar_spark.errors import OptionError, redact
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import LATEST_POSITION, Position
from pulsar_spark.protocol.validation import is_unicode

if TYPE_CHECKING:
    from pulsar_spark.engine.encryption import EncryptionOptions, KeyReader
    from pulsar_spark.protocol.schema_info import SchemaInfo

MIB = 1024 * 1024

KEY_SLOTS = 1 << 16
"""Number of hash slots for the keys of a Key_Shared subscription."""


def check_range(name: str, value: float, lowest: float, highest: float | None = None) -> None:
    """Raise OptionError for a value that is out of range, or no number at all."""
    if value < lowest or value != value:
        raise OptionError(f"{name} is {value}, it must be at least {lowest}")
    if highest is not None and value > highest:
        raise OptionError(f"{name} is {value}, it must be at most {highest}")


def check_text(name: str, value: str | None) -> None:
    """Raise OptionError for what is neither None nor text that commands can have."""
    if value is not None and not is_unicode(value):
        raise OptionError(f"{name} is {value!r}, it must be text that UTF-8 can express")


def _check_range(owner: object, lowest: float, *names: str, highest: float | None = None) -> None:
    for name in names:
        check_range(name, getattr(owner, name), lowest, highest)


def _masked(secret: str | None) -> str:
    return "None" if secret is None else "'***'"


def _secret(shown: Callable[[Any], str] = _masked) -> Any:
    """Return an optional field that a `repr` by `_shown_fields` shows in this way."""
    return field(default=None, metadata={"shown": shown})


def _shown_fields(options: Any) -> str:
    shown = (
        f"{one.name}={one.metadata.get('shown', repr)(getattr(options, one.name))}"
        for one in fields(options)
        if one.repr
    )
    return f"{type(options).__name__}({', '.join(shown)})"


def _check_pem(certificate: str | None, key: str | None, trusted: str | None = None) -> None:
    for value in (certificate, key, trusted):
        text = None if value is None else pem_content(value)
        if text is not None and BEGIN not in text:
            raise OptionError("what follows content: is not PEM", f"It begins with {BEGIN}…")
    if (certificate is None) != (key is None):
        given, missing = ("key", "certificate") if certificate is None else ("certificate", "key")
        raise OptionError(
            f"a {given} for TLS is given, and no {missing}",
            "Set both pulsar.client.tlsCertificateFilePath and pulsar.client.tlsKeyFilePath; they "
            "may name the same file.",
        )


@dataclass(frozen=True, slots=True, repr=False)
class OAuth2Options:
    """Where to get tokens, and the credentials: a key, or a client's id and secret.

    `private_key` is JSON, a ``data:`` URL or a file, which is read for every token. The issuer's
    certificate is verified with the system's authorities and `trust_certs_file`.
    """

    issuer_url: str = field(repr=False)
    private_key: str | None = _secret()
    client_id: str | None = None
    client_secret: str | None = _secret()
    audience: str | None = None
    scope: str | None = None
    trust_certs_file: str | None = field(default=None, repr=False)

    __repr__ = _shown_fields


@dataclass(frozen=True, slots=True, repr=False)
class AuthOptions:
    """How to log in: `method` is ``none``, ``token``, ``basic``, ``tls``, ``oauth2`` or
    ``plugin``.

    A token is text, or a file or environment variable that is read each time it is needed, or a
    function that is called each time. `tls` uses the certificate given here, otherwise the one in
    TlsOptions. `plugin` is a user's class ``module:Class``, which gets `plugin_params`. Brokers
    know ``basic`` under its name, or under `method_name`.
    """

    method: str = "none"
    token: str | None = _secret()
    token_file: str | None = _secret(lambda path: repr(path and redact(path)))
    username: str | None = None
    password: str | None = _secret()
    token_variable: str | None = None
    certificate_file: str | None = _secret(shown_pem)
    key_file: str | None = _secret()
    plugin: str | None = None
    plugin_params: str | None = _secret()
    oauth2: OAuth2Options | None = None
    token_supplier: Callable[[], str] | None = field(default=None, repr=False)
    method_name: str | None = None

    __repr__ = _shown_fields


@dataclass(frozen=True, slots=True, repr=False)
class TlsOptions:
    """Certificates and checks of TLS connections.

    Each file is a path, read for each connection, or PEM text, with or without ``content:`` before
    it. By default the system's authorities are trusted.
    """

    trust_certs_file: str | None = _secret(shown_pem)
    certificate_file: str | None = _secret(shown_pem)
    key_file: str | None = _secret()
    allow_insecure: bool = False
    verify_hostname: bool = True

    __repr__ = _shown_fields


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How to connect to a cluster.

    `operation_timeout` limits every request with its retries, `connection_timeout` one attempt to
    connect. `keep_alive_interval` is the time between PINGs, `memory_limit` the limit for
    producers' unacknowledged messages. With `fails_fast`, a first attempt is not repeated if no
    host of the service URL answers at all, or if the issuer of tokens cannot be asked. Raises
    OptionError for invalid values.
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
    proxy_service_url: str | None = None
    fails_fast: bool = False

    def __post_init__(self) -> None:
        url = parse_service_url(self.service_url)
        if self.proxy_service_url is not None:
            self._check_proxy(self.proxy_service_url, url.tls)
        _check_pem(self.auth.certificate_file, self.auth.key_file)
        _check_pem(self.tls.certificate_file, self.tls.key_file, self.tls.trust_certs_file)
        if self.auth.method == "tls":
            if not url.tls:
                raise OptionError(
                    "authentication by tls needs a TLS connection",
                    "Write the address as pulsar+ssl://host:6651 in service.url.",
                )
            self._check_certificate()
        _check_range(self, 0.001, "operation_timeout", "connection_timeout", "keep_alive_interval")
        _check_range(self, 0, "max_lookup_redirects")
        _check_range(self, 1, "memory_limit")
        check_text("the listener's name", self.listener_name)

    def _check_proxy(self, text: str, tls: bool) -> None:
        try:
            url = parse_service_url(text)
        except OptionError:
            url = None
        if url is None or url.web or len(url.hosts) != 1:
            raise OptionError(
                "pulsar.client.proxyServiceUrl is not the address of a proxy",
                "Write pulsar+ssl://host:4443.",
            )
        if not tls:
            raise OptionError(
                "an SNI proxy needs TLS connections to the brokers",
                "Write the brokers' address as pulsar+ssl://host:6651 in service.url.",
            )

    def _check_certificate(self) -> None:
        given = self.auth.certificate_file, self.auth.key_file
        other = self.tls.certificate_file, self.tls.key_file
        if given == other == (None, None):
            raise OptionError(
                "authentication by tls needs a certificate and its key",
                "Set pulsar.client.tlsCertificateFilePath and pulsar.client.tlsKeyFilePath.",
            )
        if given != other and (None, None) not in (given, other):
            raise OptionError(
                "authParams and tlsCertificateFilePath or tlsKeyFilePath differ",
                "Name the certificate and its key once.",
            )

    @property
    def proxy(self) -> str | None:
        """The proxy in front of the brokers, as ``host:port``.

        It learns the broker's name from the TLS handshake (SNI).
        """
        if self.proxy_service_url is None:
            return None
        return parse_service_url(self.proxy_service_url).hosts[0]

    @property
    def tls_in_use(self) -> TlsOptions:
        """The TLS options, with the login certificate if there is one."""
        if self.auth.certificate_file is None:
            return self.tls
        return replace(
            self.tls,
            certificate_file=self.auth.certificate_file,
            key_file=self.auth.key_file,
        )


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """How a reader fetches.

    It holds at most `memory_budget` bytes of undecoded entries and incomplete chunked messages. It
    first requests `receiver_queue_size` messages; with `auto_scale` then as many as fit into the
    budget at their observed size. It fails without progress for `poll_timeout`. An incomplete
    chunked message is an error, or with `skip_incomplete` is counted and skipped. `crypto_keys`
    decrypt messages; `crypto_failure_action` says what happens to others: ``FAIL``, ``DISCARD``
    (counted) or ``CONSUME`` (returned encrypted). The broker compares `schema` with the topic's.
    """

    receiver_queue_size: int = 1000
    auto_scale: bool = True
    memory_budget: int = 64 * MIB
    read_compacted: bool = False
    poll_timeout: float = 120.0
    skip_incomplete: bool = False
    subscription_prefix: str = "pulsar-spark-reader"
    crypto_keys: KeyReader | None = None
    crypto_failure_action: str = "FAIL"
    schema: SchemaInfo | None = None

    def __post_init__(self) -> None:
        _check_range(self, 1, "receiver_queue_size", "memory_budget")
        _check_range(self, 0.001, "poll_timeout")
        if self.crypto_failure_action not in ("FAIL", "DISCARD", "CONSUME"):
            raise OptionError("crypto_failure_action is none of FAIL, DISCARD and CONSUME")
        if not self.subscription_prefix:
            raise OptionError("subscription_prefix is empty")


@dataclass(frozen=True, slots=True)
class KeySharedRules:
    """How a Key_Shared consumer gets keys: fixed hash slots, or the broker's choice.

    `ranges` are slots from 0 to 65535, both ends included; without any, the broker splits.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    out_of_order: bool = False

    def __post_init__(self) -> None:
        last = -1
        for low, high in sorted(self.ranges):
            if not 0 <= low <= high < KEY_SLOTS:
                raise OptionError(
                    f"the range {low} to {high} is none of the {KEY_SLOTS} hash slots",
                    f"A range is from a lower to a higher slot, from 0 to {KEY_SLOTS - 1}.",
                )
            if low <= last:
                raise OptionError(f"two ranges of hash slots overlap at {low}")
            last = high


@dataclass(frozen=True, slots=True)
class RedeliveryBackoff:
    """Pauses before redelivery: `first` seconds, each `factor` times longer, up to `most`."""

    first: float = 1.0
    most: float = 60.0
    factor: float = 2.0

    def __post_init__(self) -> None:
        _check_range(self, 0, "first", "most")
        _check_range(self, 1, "factor")

    def delay(self, redeliveries: int) -> float:
        """Return the pause for a message that was redelivered so many times."""
        return min(self.first * self.factor ** min(max(redeliveries, 0), 64), self.most)


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer subscribes, fetches, acknowledges and redelivers.

    `kind` is a SubType of the protocol. A new subscription starts at `initial` (an
    InitialPosition), a non-durable one at `start`, or at messages published `start_age` seconds
    ago. With `receiver_queue_size` 0 messages are fetched one by one on request.

    Acknowledgements wait up to `ack_delay` to be sent together, at most `ack_group_size`. With
    `ack_receipts` the broker confirms them; with `batch_index_acks` parts of batches are
    acknowledged. A message is redelivered `nack_delay` (or as `nack_backoff` says) after a
    negative acknowledgement, and `ack_timeout` after it was received, 0 for never. An unreadable
    message is an error, or with `discard_corrupt` is acknowledged and skipped. If a message cannot
    be decrypted, `crypto_failure_action` decides (FAIL: it is withheld, DISCARD, CONSUME). Of more
    than `max_chunked` unfinished chunked messages the oldest is acknowledged; 0 is for none ever.
    """

    subscription: str
    kind: int = pb.CommandSubscribe.Exclusive
    consumer_name: str | None = None
    durable: bool = True
    start: Position = LATEST_POSITION
    start_age: int | None = None
    start_inclusive: bool = False
    initial: int = pb.CommandSubscribe.Latest
    receiver_queue_size: int = 1000
    read_compacted: bool = False
    properties: tuple[tuple[str, str], ...] = ()
    subscription_properties: tuple[tuple[str, str], ...] = ()
    priority_level: int = 0
    replicated: bool = False
    key_shared: KeySharedRules | None = None
    schema: SchemaInfo | None = None
    ack_delay: float = 0.1
    ack_group_size: int = 1000
    ack_receipts: bool = False
    batch_index_acks: bool = False
    nack_delay: float = 60.0
    nack_backoff: RedeliveryBackoff | None = None
    ack_timeout: float = 0.0
    discard_corrupt: bool = False
    max_chunked: int = 0
    crypto_keys: KeyReader | None = None
    crypto_failure_action: str = "FAIL"

    def __post_init__(self) -> None:
        if not self.subscription:
            raise OptionError("the name of the subscription is empty")
        check_text("the name of the subscription", self.subscription)
        check_text("the consumer's name", self.consumer_name)
        _check_range(self, 0, "receiver_queue_size", "ack_delay", "nack_delay", "ack_timeout")
        _check_range(self, 1, "ack_group_size")
        _check_range(self, 0, "priority_level", highest=2**31 - 1)
        if self.start_age is not None:
            _check_range(self, 0, "start_age", highest=2**63 - 1)
        if self.read_compacted and self.shared:
            raise OptionError(
                "a compacted topic is read by one consumer at a time",
                "Subscribe as Exclusive or Failover.",
            )
        if self.key_shared is not None and self.kind != pb.CommandSubscribe.Key_Shared:
            raise OptionError("key_shared_policy is for Key_Shared subscriptions only")

    @property
    def shared(self) -> bool:
        """Whether several consumers share the messages and acknowledge them one by one."""
        return self.kind in (pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared)


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer batches, compresses and routes.

    `compression` is a CompressionType, `access_mode` a ProducerAccessMode of the protocol. A batch
    waits up to `batching_max_delay` for more messages; with `batching_by_key` each key has its own
    batch. `routing_mode` is ``RoundRobinPartition`` or ``SinglePartition``, `hashing_scheme`
    ``JavaStringHash`` or ``Murmur3_32Hash``. With `max_pending_messages` 0 only the client's memory
    limit applies. A topic created for the producer gets `initial_subscription`. With `resumes`,
    messages with their own sequence ids go to the same partitions in every run, and ids that the
    broker already has from `producer_name` are not sent again. With `txn_enabled` the broker
    expects messages of transactions. With `waits_for_name` a name in use is tried again for some
    seconds: it may be an earlier attempt's, whose end the broker has not noticed. With
    `stays_stored` it ends with TopicLost if its last acknowledged entry is gone when it registers
    again, as after the topic was deleted; otherwise it goes on, like the official client's.
    """

    compression: int = pb.NONE
    batching_enabled: bool = True
    batching_max_messages: int = 1000
    batching_max_bytes: int = 128 * 1024
    batching_max_delay: float = 0.01
    batching_by_key: bool = False
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
    encryption: EncryptionOptions | None = None
    initial_subscription: str | None = None
    resumes: bool = False
    txn_enabled: bool = False
    waits_for_name: bool = True
    stays_stored: bool = False

    def __post_init__(self) -> None:
        _check_range(self, 1, "batching_max_messages", "batching_max_bytes")
        _check_range(self, 0, "batching_max_delay", "send_timeout", "max_pending_messages")
        _check_range(self, 0, "chunk_max_message_size")
        initial = -1 if self.initial_sequence_id is None else self.initial_sequence_id
        if not -1 <= initial < 2**63:
            raise OptionError(f"initial_sequence_id is {initial}, it must be from 0 to {2**63 - 1}")
        if self.compression not in pb.CompressionType.values():
            raise OptionError(f"compression {self.compression} is not known")
        if self.access_mode not in pb.ProducerAccessMode.values():
            raise OptionError(f"access_mode {self.access_mode} is not known")
        if self.hashing_scheme not in ("JavaStringHash", "Murmur3_32Hash"):
            raise OptionError("hashing_scheme is neither JavaStringHash nor Murmur3_32Hash")
        if self.routing_mode not in ("RoundRobinPartition", "SinglePartition"):
            raise OptionError("routing_mode is neither RoundRobinPartition nor SinglePartition")
