"""`PulsarClient`: a client with the methods of the official Python package.

Code written for either client runs on the other. Where the official client raises its own
exceptions, this one raises those of `pulsar_spark.errors`. Features that are missing raise
UnsupportedFeature.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import logging
import re
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pulsar_spark.client.arguments import check_event_listener, check_type, checked_arguments
from pulsar_spark.client.authentication import Authentication
from pulsar_spark.client.callbacks import CallbackThread, call_logged
from pulsar_spark.client.consumer import (
    ConsumerEventListener,
    MessageListener,
    PulsarConsumer,
)
from pulsar_spark.client.consumer_policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    MultiplierRedeliveryBackoff,
    TopicSelection,
    topic_selection,
)
from pulsar_spark.client.dead_letters import MAX_RECONSUME_TIMES, DeadLetterProducers
from pulsar_spark.client.encryption import encryption_options
from pulsar_spark.client.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)
from pulsar_spark.client.exceptions import Interrupted, interruptible
from pulsar_spark.client.loggers import ConsoleLogger, FileLogger
from pulsar_spark.client.message import MessageId
from pulsar_spark.client.parameters import (
    consumer_options,
    producer_options,
    reader_options,
)
from pulsar_spark.client.producer import MessageRouter, PulsarProducer
from pulsar_spark.client.reader import PulsarReader, ReaderListener
from pulsar_spark.client.schema import BytesSchema, check_schema
from pulsar_spark.client.service_info import (
    AutoClusterFailover,
    Failover,
    ServiceInfo,
    ServiceInfoProvider,
)
from pulsar_spark.client.table_view import TableView
from pulsar_spark.client.transaction import Transaction
from pulsar_spark.client.values import MessageValues
from pulsar_spark.engine import memory
from pulsar_spark.engine import transactions as engine
from pulsar_spark.engine.closing import Closing, weakly
from pulsar_spark.engine.connections.connection import CLOSE_TIMEOUT
from pulsar_spark.engine.consumers.chunk_fetcher import FetchOn
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.encryption import KeyReader
from pulsar_spark.engine.lookups.topic_discovery import TopicDiscovery
from pulsar_spark.engine.operations import Steps, in_steps
from pulsar_spark.engine.options import (
    ClientOptions,
    TlsOptions,
    check_range,
)
from pulsar_spark.engine.producers.partitioned_producer import PartitionedProducer
from pulsar_spark.errors import ClosedError, OptionError, PulsarError, UnsupportedFeature
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.topic_name import TopicName

logger = get_logger(__name__)

T = TypeVar("T")

_Made = PulsarConsumer | PulsarProducer | PulsarReader

_BYTES = BytesSchema()


class PulsarClient(Closing):
    """A client of a Pulsar cluster, which creates producers, consumers and readers.

    A context manager. It connects when a connection is first needed. It accepts and ignores
    parameters that have no meaning here (`io_threads`, `concurrent_lookup_requests`,
    `log_conf_file_path`, `stats_interval_in_seconds`, `use_tls`, `logger`). TLS connections verify
    host names unless `tls_validate_hostname` is False. With `keep_freed_memory` the whole process
    keeps up to 32 MiB of freed memory: receiving takes up to a tenth less CPU. A client that is
    dropped together with its producers, consumers and readers is closed in the background, with a
    ResourceWarning. With an AutoClusterFailover or a ServiceInfoProvider instead of a service URL
    it may switch to another cluster.
    """

    def __init__(
        self,
        service_url: str | AutoClusterFailover | ServiceInfoProvider,
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
        logger: logging.Logger | ConsoleLogger | FileLogger | None = None,
        connection_timeout_ms: float = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        *,
        keep_freed_memory: bool = False,
    ) -> None:
        checked_arguments(locals(), PulsarClient.__init__)
        check_type((str, AutoClusterFailover, ServiceInfoProvider), service_url, "service_url")
        if (tls_certificate_file_path is None) != (tls_private_key_file_path is None):
            raise OptionError(
                "tls_certificate_file_path and tls_private_key_file_path are needed together",
                "They may name the same file.",
            )
        self._provider: ServiceInfoProvider | None = None
        if isinstance(service_url, str):
            info = ServiceInfo(service_url, authentication, tls_trust_certs_file_path)
        else:
            if authentication is not None or tls_trust_certs_file_path is not None:
                raise OptionError(
                    "authentication and tls_trust_certs_file_path belong to each ServiceInfo here"
                )
            self._provider = (
                Failover(service_url, connection_timeout_ms / 1000)
                if isinstance(service_url, AutoClusterFailover)
                else service_url
            )
            info = self._provider.initial_service_info()
            check_type(ServiceInfo, info, "what initial_service_info returns")
        # Held during a switch, and by nobody else.
        self._switching = threading.Lock()
        self._service_info = info
        options = ClientOptions(
            info.service_url,
            operation_timeout=operation_timeout_seconds,
            connection_timeout=connection_timeout_ms / 1000,
            listener_name=listener_name,
            auth=info.auth,
            tls=TlsOptions(
                trust_certs_file=info.tls_trust_certs_file_path,
                certificate_file=tls_certificate_file_path,
                key_file=tls_private_key_file_path,
                allow_insecure=tls_allow_insecure_connection,
                verify_hostname=tls_validate_hostname,
            ),
            fails_fast=True,
        )
        if isinstance(self._provider, Failover):
            # An error in one of them would be found when it is needed.
            for each in self._provider.service_infos:
                _at(each, options)
        if keep_freed_memory:
            memory.keep_freed_memory()
        self._context = ClientContext(options)
        self._receiver_budget = memory.ReceiverBudget(options.memory_limit)
        self._callbacks = CallbackThread()
        self._listener_threads = [
            CallbackThread(f"pulsar-spark-listeners-{number}")
            for number in range(max(message_listener_threads, 1))
        ]
        self._listeners = itertools.cycle(self._listener_threads)
        # Where missing chunks are fetched, if not on the thread that receives.
        self._fetch_on: FetchOn | None = None
        self._lock = threading.Lock()
        # What is open, by its class, in the order in which it is closed. Guarded by _lock.
        self._made: dict[type[_Made], set[_Made]] = {
            kind: set() for kind in (PulsarConsumer, PulsarProducer, PulsarReader)
        }
        if self._provider is not None:
            self._provider.initialize(weakly(self._switch_to))

    @interruptible
    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Any = _BYTES,
        initial_sequence_id: int | None = None,
        send_timeout_millis: float = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = False,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: float = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: dict[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | Sequence[str] | None = None,
        crypto_key_reader: KeyReader | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: MessageRouter | None = None,
        *,
        auto_update_partitions_interval_seconds: float = 60,
    ) -> PulsarProducer:
        """Create a producer on a topic, with all of its partitions.

        Keys are routed by JavaStringHash, as in the Java client. A send timeout of 0 or less means
        none. Messages are encrypted for the names in `encryption_key`. New partitions are looked
        for every `auto_update_partitions_interval_seconds`, never if that is 0. Raises the broker's
        error (ProducerBusy at once if another producer has the name), OptionError for invalid or
        contradictory values, CryptoError for keys that cannot be used.
        """
        given = checked_arguments(locals(), PulsarClient.create_producer)
        return self._finish(self._creating_producer(given))

    def _creating_producer(self, given: Any) -> Steps[PulsarProducer]:
        if given.batching_enabled and given.chunking_enabled:
            raise OptionError("batching and chunking of messages cannot be enabled together")
        encryption = encryption_options(given.encryption_key, given.crypto_key_reader)
        schema = check_schema(given.schema, writing=True)
        partitions = yield from self._context.asking_partitions(given.topic)
        options = producer_options(given, partitions, schema, encryption)
        writer = PartitionedProducer(
            self._context,
            given.topic,
            options,
            partitions=partitions,
            timed=True,
            survives_timeouts=True,
        )
        try:
            yield from writer.opening(first_only=given.lazy_start_partitioned_producers)
        except BaseException:
            yield from writer.aborting()
            raise
        growth = self._growth_of(
            writer.topic,
            partitions,
            given.auto_update_partitions_interval_seconds,
            lambda found: writer.grow(len(found)),
        )
        producer = PulsarProducer(
            writer,
            self._callbacks,
            schema,
            options,
            given.block_if_queue_full,
            given.message_router,
            self._forget,
            growth,
        )
        self._keep(producer)
        return producer

    @interruptible
    def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Any = _BYTES,
        reader_listener: ReaderListener | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: KeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        auto_update_partitions_interval_seconds: float = 60,
    ) -> PulsarReader:
        """Create a reader of a topic, with all of its partitions.

        It starts after `start_message_id`, or at that message if `start_message_id_inclusive`. It
        acknowledges nothing and leaves no subscription. The broker may create a missing topic,
        as its policy says. New partitions are read from their beginning; they are looked for every
        `auto_update_partitions_interval_seconds`, never if that is 0. Raises the broker's error;
        with FAIL, EncryptedMessage for a message that cannot be decrypted.
        """
        given = checked_arguments(locals(), PulsarClient.create_reader)
        return self._finish(self._creating_reader(given))

    def _creating_reader(self, given: Any) -> Steps[PulsarReader]:
        name = TopicName.parse(given.topic)
        if not name.is_persistent:
            raise UnsupportedFeature(
                "a non-persistent topic keeps nothing that could be read from a position",
                "Get what comes from now on with subscribe.",
                topic=str(name),
            )
        options, schema = reader_options(given)
        names = yield from self._asking_names(given.topic)
        # What refuses it is told now: later it waits until that has passed.
        yield from self._context.attaching_once(names, options)
        reader = PulsarReader(
            self._context,
            str(name),
            names,
            MessageValues(schema, self._context.lookup),
            options,
            self._receiver_budget,
            inclusive=given.start_message_id_inclusive,
            on_close=self._forget,
        )
        yield from reader._starting(given.start_message_id)
        reader.follow(
            self._growth_of(
                str(name),
                len(names) if names != [str(name)] else 0,
                given.auto_update_partitions_interval_seconds,
                weakly(reader.on_topics),
            )
        )
        self._keep(reader)
        if given.reader_listener is not None:
            reader.listen(given.reader_listener)
        return reader

    @interruptible
    def subscribe(
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Any = _BYTES,
        message_listener: MessageListener | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: float | None = None,
        broker_consumer_stats_cache_time_ms: float = 30000,
        negative_ack_redelivery_delay_ms: float = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        pattern_auto_discovery_period: float = 60,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: KeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        ack_receipt_enabled: bool = False,
        priority_level: int = 0,
        subscription_properties: dict[str, str] | None = None,
        durable: bool = True,
        start_message_id: MessageId | None = None,
        start_message_rollback_seconds: int | None = None,
        negative_ack_redelivery_backoff: MultiplierRedeliveryBackoff | None = None,
        consumer_event_listener: ConsumerEventListener | None = None,
        discard_corrupt_messages: bool = False,
        auto_update_partitions_interval_seconds: float = 60,
        enable_retry: bool = False,
    ) -> PulsarConsumer:
        """Subscribe to a topic, several topics, or all that match a pattern, with all partitions.

        A pattern matches whole full names; tenant and namespace are taken literally. Topics and
        partitions found later are read from their beginning.
        Parameters that the official client lacks are named as in Java's. With
        `ack_receipt_enabled`, each acknowledgement waits for the broker. A subscription that is not
        `durable` ends with its consumer; it starts after `start_message_id`, or at messages
        published that many seconds ago. `discard_corrupt_messages` acknowledges messages that
        cannot be read, and tells the broker why. Raises the broker's error, and OptionError for
        invalid values.
        """
        given = checked_arguments(locals(), PulsarClient.subscribe)
        if consumer_event_listener is not None:
            check_event_listener(consumer_event_listener)
        return self._finish(self._subscribing(given))

    def _subscribing(self, given: Any) -> Steps[PulsarConsumer]:
        options, schema = consumer_options(given)
        wanted = topic_selection(given.topic, given.regex_subscription_mode)
        values = MessageValues(schema, self._context.lookup)
        dead_letters = self._dead_letters(given, wanted, values)
        if dead_letters is not None and given.enable_retry:
            wanted = wanted.with_topic(dead_letters.retry_topic)
        consumer = PulsarConsumer(
            self._context,
            wanted.title,
            options,
            values,
            given,
            dead_letters,
            self._fetch_on,
            self._receiver_budget,
            next(self._listeners),
            self._forget,
        )
        period: float = given.pattern_auto_discovery_period
        if wanted.pattern is None:
            period = given.auto_update_partitions_interval_seconds
        discovery = TopicDiscovery(
            self._context, wanted.names, wanted.pattern, period, weakly(consumer.on_topics)
        )
        if wanted.pattern is None:
            found = []
            for name in wanted.names:
                found += yield from self._asking_names(name)
            if options.receiver_queue_size == 0 and len(found) > 1:
                raise OptionError("without a receiver queue a consumer has one topic partition")
        else:
            found = sorted((yield from discovery.finding()))
        self._keep(consumer)
        yield from consumer._opening(found, discovery if wanted.can_grow(found) else None)
        return consumer

    @interruptible
    def create_table_view(
        self,
        topic: str,
        subscription_name: str | None = None,
        schema: Any = _BYTES,
        *,
        auto_update_partitions_interval_seconds: float = 60,
    ) -> TableView:
        """Read a topic to where it ends now; return the latest value of each key, kept up to date.

        On a compacted topic it reads the compacted view. Follows new partitions, and raises, as
        `create_reader`.
        """
        checked_arguments(locals(), PulsarClient.create_table_view)
        checked = check_schema(schema)
        reader = self.create_reader(
            topic,
            MessageId.earliest,
            checked,
            subscription_role_prefix=subscription_name,
            is_read_compacted=True,
            auto_update_partitions_interval_seconds=auto_update_partitions_interval_seconds,
        )
        values = MessageValues(checked, self._context.lookup)
        view = TableView(reader, topic, subscription_name, values)
        try:
            view.load()
        except BaseException:
            view.close()
            raise
        return view

    def new_transaction(self, timeout_millis: int = 60_000) -> Transaction:
        """Begin a transaction, which is aborted after `timeout_millis` unless it has ended.

        Raises UnsupportedFeature if the brokers do not support transactions.
        """
        check_type(int, timeout_millis, "timeout_millis")
        check_range("timeout_millis", timeout_millis, 1, 2**63 - 1)
        seconds = self._context.options.operation_timeout
        return Transaction(
            engine.ClientTransaction(self._context.coordinators, timeout_millis / 1000, seconds),
            self,
        )

    @interruptible
    def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the full names of a topic's partitions, or of the topic if it has none."""
        check_type(str, topic, "topic")
        return self._finish(self._asking_names(topic))

    def _asking_names(self, topic: str) -> Steps[list[str]]:
        name = TopicName.parse(topic)
        count = yield from self._context.asking_partitions(topic)
        return name.partitions(count)

    def _finish(self, steps: Steps[T]) -> T:
        """Take the steps that the caller has asked for; subclasses may do so later."""
        self._begin_checks()
        return in_steps(steps)

    def _begin_checks(self) -> None:
        if isinstance(self._provider, Failover):
            self._provider.begin()

    def get_service_info(self) -> ServiceInfo:
        """Return the cluster that the client uses now."""
        return self._service_info

    def _switch_to(self, info: ServiceInfo) -> None:
        """Use another cluster from now on; called by the provider, on any thread."""
        check_type(ServiceInfo, info, "the service info")
        options = _at(info, self._context.options)
        with self._switching, contextlib.suppress(ClosedError):
            if options != self._context.options:
                self._context.switch_to(options)
            self._service_info = info

    @interruptible
    def close(self) -> None:
        """Close all consumers, producers and readers, then the connections. May be called twice.

        Producers tell their callbacks which messages could not be delivered; this only logs them.
        """
        in_steps(self._ending(flushes=True))

    def __del__(self) -> None:
        # A constructor that raised leaves no context; a fork and the interpreter's end no threads.
        context = getattr(self, "_context", None)
        if context is None or context.closed or not context.pool.used or sys.is_finalizing():
            return
        # Not here: whoever dropped it, or collects garbage for others, may hold any of the locks.
        # And by a bare thread, because starting another one takes a lock as well.
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(_shut_down, (self,))
        warnings.warn(
            f"a client of {context.options.service_url} was dropped and is closed; "
            "call its close(), or use it in a with block",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def _give_up(self) -> None:
        self.shutdown()

    @interruptible
    def shutdown(self) -> None:
        """Close everything without waiting for pending operations."""
        in_steps(self._ending())

    def _ending(self, *, flushes: bool = False, waits: bool = True) -> Steps[None]:
        """Return steps that close consumers, producers and readers, then what they share.

        If it `flushes`, the caller's thread waits for the messages of producers; if it `waits`, for
        the threads of the client. An error of one keeps no other open.
        """
        with self._lock:
            made = [one for kind in self._made.values() for one in kind]
        failed: Exception | None = None
        try:
            for one in made:
                try:
                    yield from _closing(one, flushes=flushes)
                except Interrupted:
                    raise
                except Exception as error:
                    failed = failed or error
        except BaseException:
            # What is left leaves as well, without waiting for messages that have no receipt.
            yield from self._ending(waits=waits)
            raise
        self._release(waits=waits)
        if failed is not None:
            raise failed

    def _release(self, *, waits: bool) -> None:
        """End what is shared; unless it `waits`, its threads end by themselves."""
        with self._switching:
            provider, self._provider = self._provider, None
        if provider is not None:
            call_logged("closing the provider of service infos", provider.close)
        self._context.close(CLOSE_TIMEOUT if waits else 0.0)
        for thread in (self._callbacks, *self._listener_threads):
            thread.close() if waits else thread.close(0.0)

    def _growth_of(
        self,
        topic: str,
        partitions: int,
        period: float,
        on_found: Callable[[set[str]], None],
    ) -> TopicDiscovery | None:
        """Look for new partitions of a topic from now on, if it can get any."""
        if not partitions or period <= 0:
            return None
        growth = TopicDiscovery(self._context, [topic], None, period, on_found)
        growth.begin(now=False)
        return growth

    def _keep(self, made: _Made) -> None:
        with self._lock:
            self._made[type(made)].add(made)

    def _forget(self, made: _Made) -> None:
        with self._lock:
            self._made[type(made)].discard(made)

    def _dead_letters(
        self, given: Any, wanted: TopicSelection, values: MessageValues
    ) -> DeadLetterProducers | None:
        policy, retry = given.dead_letter_policy, given.enable_retry
        if policy is None and retry:
            policy = ConsumerDeadLetterPolicy(MAX_RECONSUME_TIMES)
        if policy is None:
            return None
        named = policy.dead_letter_topic and policy.retry_letter_topic
        if retry and not wanted.names and not named:
            raise OptionError(
                "with a pattern and enable_retry, the dead-letter and retry topics need names"
            )
        return DeadLetterProducers(
            self._context,
            wanted.names,
            given.subscription_name,
            policy,
            values,
            retries=retry,
        )


def _closing(one: _Made, *, flushes: bool) -> Steps[None]:
    if not isinstance(one, PulsarProducer):
        yield from one._closing()
    elif flushes:
        _close_logged(one)
    else:
        yield from one._aborting()


def _close_logged(producer: PulsarProducer) -> None:
    try:
        producer.close()
    except Interrupted:
        raise
    except PulsarError as error:
        logger.warning("a producer was closed with messages undelivered: %s", error)


def _shut_down(client: PulsarClient) -> None:
    # What is closed asks on which thread it is, which must be one that the interpreter knows.
    with contextlib.suppress(RuntimeError):
        threading.Thread(
            target=client.shutdown, name="pulsar-spark-dropped-client", daemon=True
        ).start()


def _at(info: ServiceInfo, options: ClientOptions) -> ClientOptions:
    """Return the options for a cluster; raises OptionError if they cannot connect to it."""
    return replace(
        options,
        service_url=info.service_url,
        auth=info.auth,
        tls=replace(options.tls, trust_certs_file=info.tls_trust_certs_file_path),
    )


# The official client's name.
Client = PulsarClient
