"""`PulsarClient`: a small blocking client with the methods of the official Python package.

Code that is written for one runs on the other; where the official client raises its own
exceptions, this one raises those of `pulsar_spark.errors`. What is not built yet raises
UnsupportedFeature.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn

from pulsar_spark.client.authentication import Authentication
from pulsar_spark.client.callbacks import CallbackThread
from pulsar_spark.client.encryption import encryption_options, key_reader
from pulsar_spark.client.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    PartitionsRoutingMode,
    ProducerAccessMode,
)
from pulsar_spark.client.message import MessageId
from pulsar_spark.client.producer import MessageRouter, PulsarProducer, SendingRules
from pulsar_spark.client.reader import PulsarReader, ReaderListener
from pulsar_spark.client.schemas import check_schema
from pulsar_spark.client.transaction import Transaction
from pulsar_spark.engine import transactions as engine
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.encryption import KeyReader
from pulsar_spark.engine.options import (
    AuthOptions,
    ClientOptions,
    ProducerOptions,
    ReaderOptions,
    TlsOptions,
)
from pulsar_spark.engine.partitioned_producer import PartitionedProducer
from pulsar_spark.engine.receiver_queue import ReceiverBudget
from pulsar_spark.engine.routing import ROUND_ROBIN, SINGLE_PARTITION
from pulsar_spark.errors import OptionError, PulsarError, UnsupportedFeature
from pulsar_spark.protocol.topic_name import TopicName

logger = logging.getLogger(__name__)

_ROUTING = {
    PartitionsRoutingMode.UseSinglePartition: SINGLE_PARTITION,
    PartitionsRoutingMode.RoundRobinDistribution: ROUND_ROBIN,
    PartitionsRoutingMode.CustomPartition: ROUND_ROBIN,
}


class PulsarClient:
    """A connection to a Pulsar cluster, from which producers and readers are made.

    A context manager. Nothing is connected before it is needed. Parameters that have no meaning
    here (`io_threads`, `message_listener_threads`, `concurrent_lookup_requests`,
    `log_conf_file_path`, `stats_interval_in_seconds`, `use_tls`, `logger`) are taken and
    ignored. Host names of TLS connections are checked unless `tls_validate_hostname` is False.
    """

    def __init__(
        self,
        service_url: str,
        authentication: Authentication | None = None,
        operation_timeout_seconds: float = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = True,
        logger: Any = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
    ) -> None:
        if authentication is not None and not isinstance(authentication, Authentication):
            raise OptionError("authentication is not one of this package's Authentication classes")
        options = ClientOptions(
            service_url,
            operation_timeout=operation_timeout_seconds,
            connection_timeout=connection_timeout_ms / 1000,
            listener_name=listener_name,
            auth=AuthOptions() if authentication is None else authentication.options,
            tls=TlsOptions(
                trust_certs_file=tls_trust_certs_file_path,
                certificate_file=tls_certificate_file_path,
                key_file=tls_private_key_file_path,
                allow_insecure=tls_allow_insecure_connection,
                verify_hostname=tls_validate_hostname,
            ),
        )
        self._context = ClientContext(options)
        self._receiver_budget = ReceiverBudget(options.memory_limit)
        self._callbacks = CallbackThread()
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._producers: set[PulsarProducer] = set()
        self._readers: set[PulsarReader] = set()

    def __enter__(self) -> PulsarClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.shutdown()

    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Any = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = False,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: dict[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | Sequence[str] | None = None,
        crypto_key_reader: KeyReader | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: MessageRouter | None = None,
    ) -> PulsarProducer:
        """Open a producer on a topic, or on all partitions of one.

        Keys are routed by JavaStringHash, as by Java's client. Messages are encrypted for the
        names in `encryption_key`. Raises what the broker refuses with, OptionError for values out
        of range or that contradict each other, CryptoError for keys that cannot be used.
        """
        if batching_enabled and chunking_enabled:
            raise OptionError("batching and chunking of messages cannot be enabled together")
        encryption = encryption_options(encryption_key, crypto_key_reader)
        checked = check_schema(schema)
        partitions = self._context.partitions_for_writing(topic)
        across = max(max_pending_messages_across_partitions // max(partitions, 1), 1)
        most = min(max_pending_messages, across)
        options = ProducerOptions(
            compression=int(compression_type),
            batching_enabled=batching_enabled,
            batching_max_messages=batching_max_messages,
            batching_max_bytes=batching_max_allowed_size_in_bytes,
            batching_max_delay=batching_max_publish_delay_ms / 1000,
            batching_by_key=BatchingType(int(batching_type)) is BatchingType.KeyBased,
            send_timeout=send_timeout_millis / 1000,
            max_pending_messages=most,
            routing_mode=_ROUTING[PartitionsRoutingMode(int(message_routing_mode))],
            producer_name=producer_name or None,
            initial_sequence_id=initial_sequence_id,
            access_mode=int(access_mode),
            chunking_enabled=chunking_enabled,
            schema=checked.schema_info(),
            properties=tuple((properties or {}).items()),
            encryption=encryption,
        )
        writer = PartitionedProducer(
            self._context, topic, options, partitions=partitions, timed=True, goes_on=True
        )
        rules = SendingRules(
            send_timeout=options.send_timeout or 86_400.0,
            max_pending_messages=most,
            block_if_queue_full=block_if_queue_full,
            router=message_router,
        )
        try:
            writer.open(first_only=lazy_start_partitioned_producers)
        except PulsarError:
            writer.abort()
            raise
        producer = PulsarProducer(writer, self._callbacks, checked, rules, self._forget_producer)
        with self._lock:
            self._producers.add(producer)
        return producer

    def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Any = None,
        reader_listener: ReaderListener | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: KeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    ) -> PulsarReader:
        """Open a reader of a topic, or of all partitions of one.

        It begins behind `start_message_id`, or with that message if
        `start_message_id_inclusive`. Nothing is acknowledged, and no subscription stays. Raises
        what the broker refuses with; a topic that is missing is created where the broker's
        policy is to do so. With FAIL, a message that cannot be decrypted is EncryptedMessage.
        """
        if not isinstance(start_message_id, MessageId):
            raise OptionError("start_message_id is not a MessageId of this package")
        keys = key_reader(crypto_key_reader)
        names = self.get_topic_partitions(topic)
        if len(names) == 1:
            self._context.create_if_missing(names[0])
        options = ReaderOptions(
            receiver_queue_size=max(receiver_queue_size, 1),
            read_compacted=is_read_compacted,
            subscription_prefix=subscription_role_prefix or "reader",
            crypto_keys=keys,
            crypto_failure_action=ConsumerCryptoFailureAction(crypto_failure_action).name,
        )
        reader = PulsarReader(
            self._context,
            str(TopicName.parse(topic)),
            names,
            start_message_id,
            check_schema(schema),
            options,
            self._receiver_budget,
            inclusive=start_message_id_inclusive,
            on_close=self._forget_reader,
        )
        with self._lock:
            self._readers.add(reader)
        if reader_listener is not None:
            reader.listen(reader_listener)
        return reader

    def subscribe(self, topic: Any, subscription_name: str, *args: Any, **kwargs: Any) -> NoReturn:
        """Not built yet: raises UnsupportedFeature."""
        _unsupported("subscribing a consumer", "Read with create_reader.")

    def create_table_view(self, topic: str, *args: Any, **kwargs: Any) -> NoReturn:
        """Not built yet: raises UnsupportedFeature."""
        _unsupported("a table view")

    def new_transaction(self, timeout_millis: int = 60_000) -> Transaction:
        """Begin a transaction, which is aborted after `timeout_millis` unless it is ended.

        Raises UnsupportedFeature where the brokers have no transactions.
        """
        if timeout_millis <= 0:
            raise OptionError("timeout_millis must be more than 0")
        seconds = self._context.options.operation_timeout
        return Transaction(
            engine.Transaction(self._context.coordinators, timeout_millis / 1000, seconds)
        )

    def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the full names of a topic's partitions, or of the topic if it has none."""
        name = TopicName.parse(topic)
        count = self._context.partitions_for_writing(topic)
        if not count:
            return [str(name)]
        return [str(name.partition(index)) for index in range(count)]

    def close(self) -> None:
        """Close all producers and readers, then the connections. May be called twice.

        What a producer could not deliver was told to its callbacks; here it is only logged.
        """
        with self._lock:
            producers, readers = list(self._producers), list(self._readers)
        for producer in producers:
            try:
                producer.close()
            except PulsarError as error:
                logger.warning("a producer was closed with messages undelivered: %s", error)
        for reader in readers:
            reader.close()
        self._context.close()
        self._callbacks.close()

    def shutdown(self) -> None:
        """Close everything without waiting for what is under way."""
        with self._lock:
            producers, readers = list(self._producers), list(self._readers)
        for producer in producers:
            producer.abort()
        for reader in readers:
            reader.close()
        self._context.close()
        self._callbacks.close()

    def _forget_producer(self, producer: PulsarProducer) -> None:
        with self._lock:
            self._producers.discard(producer)

    def _forget_reader(self, reader: PulsarReader) -> None:
        with self._lock:
            self._readers.discard(reader)


def _unsupported(what: str, remedy: str = "") -> NoReturn:
    raise UnsupportedFeature(f"{what} is not supported yet", remedy)
