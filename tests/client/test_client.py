"""`PulsarClient`: what it creates, what it rejects, and how it closes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import pulsar_spark.client as package
from pulsar_spark.client import (
    AuthenticationToken,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    MessageId,
    MultiplierRedeliveryBackoff,
    PulsarClient,
    Result,
    StringSchema,
)
from pulsar_spark.errors import (
    AuthorizationError,
    ClosedError,
    InvalidTopicName,
    OptionError,
    TopicNotFound,
)
from pulsar_spark.testing import EmbeddedBroker
from tests.support.waiting import finish, wait_until


def test_the_package_gives_what_users_need_by_name() -> None:
    for name in package.__all__:
        assert isinstance(getattr(package, name), type)
    assert {*package.__all__, "exceptions", "schema"} <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = package.Nothing


def test_nothing_is_connected_or_started_by_making_one() -> None:
    before = threading.active_count()
    with PulsarClient("pulsar://127.0.0.1:1"):
        assert threading.active_count() <= before


@pytest.mark.parametrize(
    "arguments",
    [
        {"service_url": "nonsense"},
        {"service_url": "pulsar://h", "operation_timeout_seconds": 0},
        {"service_url": "pulsar://h", "connection_timeout_ms": -1},
        {"service_url": "pulsar://h", "authentication": "token:abc"},
    ],
)
def test_options_are_checked_at_once(arguments: dict[str, object]) -> None:
    with pytest.raises(OptionError) as raised:
        PulsarClient(**arguments)  # type: ignore[arg-type]
    assert "abc" not in str(raised.value)


def test_what_cannot_be_is_said_before_anything_is_sent() -> None:
    with PulsarClient("pulsar://127.0.0.1:1") as client:
        calls: tuple[Callable[[], object], ...] = (
            lambda: client.create_reader("t", MessageId.earliest, schema=object()),
            lambda: client.create_table_view("t", schema=object()),
            lambda: client.create_producer("t", schema=object()),
        )
        for call in calls:
            with pytest.raises(OptionError, match=r"builtins\.object"):
                call()
        with pytest.raises(OptionError):
            client.create_producer("t", batching_enabled=True, chunking_enabled=True)
        with pytest.raises(OptionError):
            client.create_reader("t", "earliest")  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="CryptoKeyReader"):
            client.create_reader(
                "t",
                MessageId.earliest,
                crypto_key_reader=object(),  # type: ignore[arg-type]
            )
        with pytest.raises(InvalidTopicName):
            client.get_topic_partitions("a/b")


@pytest.mark.parametrize(
    "make",
    [
        lambda client: client.create_producer("t"),
        lambda client: client.create_producer("t-partition-3"),
        lambda client: client.create_reader("t", MessageId.earliest),
        lambda client: client.create_table_view("t"),
        lambda client: client.subscribe("t", "s"),
        lambda client: client.subscribe(["t", "other"], "s"),
    ],
)
def test_where_topics_are_not_created_a_missing_one_is_told_at_once(
    make: Callable[[PulsarClient], object],
) -> None:
    with EmbeddedBroker(auto_create=False) as broker:
        # Attempts until the timeout would outlast the test.
        client = PulsarClient(broker.service_url, operation_timeout_seconds=3600)
        with client, pytest.raises(TopicNotFound):
            make(client)


def test_topics_are_created_as_the_broker_wants_them() -> None:
    with EmbeddedBroker(auto_create=3) as broker, PulsarClient(broker.service_url) as client:
        producer = client.create_producer("t")
        assert len({producer.send(b"%d" % n).partition() for n in range(6)}) == 3
        assert len(client.get_topic_partitions("t")) == 3


def test_a_refusal_leaves_no_producer_behind() -> None:
    with EmbeddedBroker() as broker, PulsarClient(broker.service_url) as client:
        topic = broker.create_topic("refused", partitions=4)
        name = f"{topic}-partition-2"
        broker.faults.error(
            "PRODUCER", "AuthorizationError", when=lambda seen: seen.body.topic == name
        )
        with pytest.raises(AuthorizationError):
            client.create_producer("refused")
        client.create_producer("refused", "taken").close()


def test_lazy_producers_open_when_they_are_needed() -> None:
    with EmbeddedBroker() as broker, PulsarClient(broker.service_url) as client:
        broker.create_topic("lazy", partitions=5)
        producer = client.create_producer("lazy", lazy_start_partitioned_producers=True)
        assert broker.faults.seen("PRODUCER") == 1
        for number in range(5):
            producer.send(b"%d" % number)
        assert broker.faults.seen("PRODUCER") == 5


def test_close_delivers_what_waits_and_ends_everything() -> None:
    with EmbeddedBroker() as broker:
        before = threading.active_count()
        client = PulsarClient(broker.service_url)
        results: list[Result] = []
        producer = client.create_producer(
            "t", batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        reader = client.create_reader("t", MessageId.earliest)
        producer.send_async(b"x", lambda result, _: results.append(result))
        client.close()
        client.close()
        assert results == [Result.Ok]
        with pytest.raises(ClosedError):
            producer.send(b"x")
        with pytest.raises(ClosedError):
            reader.read_next()
        with pytest.raises(ClosedError):
            client.create_producer("t")
        assert threading.active_count() <= before


def test_an_error_in_the_callers_code_is_what_is_raised() -> None:
    results: list[Result] = []

    def run() -> None:
        with EmbeddedBroker() as broker, PulsarClient(broker.service_url) as client:
            producer = client.create_producer("t")
            broker.faults.drop("SEND_RECEIPT")
            producer.send_async(b"x", lambda result, _: results.append(result))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert results == [Result.AlreadyClosed]


def test_undelivered_messages_are_logged_when_the_client_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with EmbeddedBroker() as broker:
        client = PulsarClient(broker.service_url)
        producer = client.create_producer("t", send_timeout_millis=100)
        with broker.faults.drop("SEND_RECEIPT"):
            producer.send_async(b"x", None)
            client.close()
    assert "undelivered" in caplog.text


@pytest.mark.parametrize("bad", [-1, True, 2**63, 2**64, "now", 1.5])
def test_seek_names_a_time_that_is_none(broker: EmbeddedBroker, bad: Any) -> None:
    broker.create_topic("t")
    with PulsarClient(broker.service_url) as client:
        shown = "a time in milliseconds" if isinstance(bad, str | float) else str(bad)
        for seek in (
            client.subscribe("t", "s").seek,
            client.create_reader("t", MessageId.earliest).seek,
        ):
            with pytest.raises(ValueError, match=shown):
                seek(bad)
            seek(2**63 - 1)
    assert broker.faults.seen("SEEK") > 0


@pytest.mark.parametrize(
    "name, bad",
    [
        ("priority_level", 2**31),
        ("start_message_rollback_seconds", 2**63),
    ],
)
def test_numbers_that_no_command_has_are_refused(
    broker: EmbeddedBroker, name: str, bad: int
) -> None:
    with PulsarClient(broker.service_url) as client, pytest.raises(ValueError, match=str(bad)):
        client.subscribe("t", "s", durable=False, **{name: bad})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make, name, bad",
    [
        *(
            ("client", name, bad)
            for name in ("operation_timeout_seconds", "connection_timeout_ms")
            for bad in (-1, 0, math.nan)
        ),
        ("producer", "max_pending_messages", -1),
        ("producer", "max_pending_messages_across_partitions", -1),
        ("producer", "batching_max_messages", 0),
        ("producer", "batching_max_allowed_size_in_bytes", -1),
        ("producer", "batching_max_publish_delay_ms", -1),
        ("producer", "batching_max_publish_delay_ms", math.nan),
        ("producer", "send_timeout_millis", math.nan),
        ("reader", "receiver_queue_size", -1),
        ("consumer", "receiver_queue_size", -1),
        ("consumer", "negative_ack_redelivery_delay_ms", -1),
        ("consumer", "unacked_messages_timeout_ms", math.nan),
        ("consumer", "unacked_messages_timeout_ms", -1),
        ("consumer", "start_message_rollback_seconds", -1),
        ("consumer", "priority_level", -1),
        ("producer", "auto_update_partitions_interval_seconds", -1),
        ("reader", "auto_update_partitions_interval_seconds", math.nan),
        ("consumer", "auto_update_partitions_interval_seconds", -1),
        ("consumer", "pattern_auto_discovery_period", math.nan),
        ("client", "message_listener_threads", -1),
        ("backoff", "min_delay_ms", -1),
        ("backoff", "max_delay_ms", math.nan),
        ("backoff", "multiplier", 0.5),
    ],
)
def test_a_number_out_of_range_is_told_with_the_arguments_name_and_unit(
    broker: EmbeddedBroker, make: str, name: str, bad: float
) -> None:
    broker.create_topic("t")
    url = broker.service_url
    with PulsarClient(url) as client:
        calls: dict[str, Callable[..., object]] = {
            "client": partial(PulsarClient, url),
            "producer": partial(client.create_producer, "t"),
            "reader": partial(client.create_reader, "t", MessageId.earliest),
            "consumer": partial(client.subscribe, "t", "s", durable=False),
            "backoff": MultiplierRedeliveryBackoff,
        }
        with pytest.raises(ValueError, match=f"^{name} is {bad}, it must be at least"):
            calls[make](**{name: bad})


@pytest.mark.parametrize(
    "make, name, bad",
    [
        ("producer", "compression_type", 1.5),
        ("producer", "access_mode", 1.0),
        ("producer", "batching_type", True),
        ("producer", "message_routing_mode", "1"),
        ("producer", "batching_max_messages", True),
        ("producer", "batching_max_publish_delay_ms", True),
        ("reader", "crypto_failure_action", 1.5),
        ("reader", "receiver_queue_size", True),
        ("consumer", "consumer_type", 1.5),
        ("consumer", "initial_position", 1.5),
        ("consumer", "priority_level", True),
        ("consumer", "consumer_event_listener", 5),
        ("consumer", "message_listener", 5),
        ("client", "operation_timeout_seconds", True),
        ("client", "message_listener_threads", 1001),
        ("policy", "key_shared_mode", 0.5),
        ("client", "listener_name", "\ud800"),
        ("producer", "producer_name", "\ud800"),
        ("producer", "encryption_key", "\ud800"),
        ("producer", "encryption_key", ["k", "\ud800"]),
        ("reader", "reader_name", "\ud800"),
        ("reader", "subscription_role_prefix", "\ud800"),
        ("consumer", "consumer_name", "\ud800"),
        ("subscription", "subscription_name", "\ud800"),
        ("table view", "subscription_name", "\ud800"),
        *(
            ("dead letters", name, bad)
            for name in ("dead_letter_topic", "retry_letter_topic", "initial_subscription_name")
            for bad in ("\ud800", 5)
        ),
    ],
)
def test_what_is_no_enum_number_listener_or_name_is_refused_by_its_name(
    broker: EmbeddedBroker, make: str, name: str, bad: Any
) -> None:
    broker.create_topic("t")
    with PulsarClient(broker.service_url) as client:
        calls: dict[str, Callable[..., object]] = {
            "client": partial(PulsarClient, broker.service_url),
            "producer": partial(client.create_producer, "t"),
            "reader": partial(client.create_reader, "t", MessageId.earliest),
            "consumer": partial(client.subscribe, "t", "s"),
            "policy": ConsumerKeySharedPolicy,
            "subscription": partial(client.subscribe, "t"),
            "table view": partial(client.create_table_view, "t"),
            "dead letters": partial(ConsumerDeadLetterPolicy, 1),
        }
        with pytest.raises(ValueError, match=f"^{name} is "):
            calls[make](**{name: bad})


def test_a_wait_and_a_transaction_last_for_a_number_of_milliseconds(
    broker: EmbeddedBroker,
) -> None:
    with PulsarClient(broker.service_url) as client:
        for wrong in (math.nan, True):
            with pytest.raises(ValueError, match="timeout_millis is "):
                client.subscribe("t", str(wrong)).receive(wrong)  # type: ignore[arg-type]
        for timeout in (0, 2**63, True):
            with pytest.raises(ValueError, match="timeout_millis is "):
                client.new_transaction(timeout)


@pytest.mark.parametrize("name", ["tls_private_key_file_path", "tls_certificate_file_path"])
def test_half_of_a_certificate_is_told_by_the_arguments_names(name: str) -> None:
    both = "^tls_certificate_file_path and tls_private_key_file_path are needed together"
    with pytest.raises(ValueError, match=both):
        PulsarClient("pulsar+ssl://h:6651", **{name: "/file"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "partitions, across, most, accepted",
    [(0, 1, 5, 5), (0, 0, 5, 5), (2, 4, 5, 4), (2, 4, 1, 2), (2, 0, 5, 12), (2, 4, 0, 12)],
)
def test_partitions_share_how_many_messages_may_be_pending(
    broker: EmbeddedBroker, partitions: int, across: int, most: int, accepted: int
) -> None:
    broker.create_topic("t", partitions=partitions)
    results: list[Result] = []
    with PulsarClient(broker.service_url) as client:
        producer = client.create_producer(
            "t", max_pending_messages=most, max_pending_messages_across_partitions=across
        )
        broker.faults.drop("SEND", times=None)
        for _ in range(12):
            producer.send_async(b"x", lambda result, _: results.append(result))
        client.shutdown()
    assert results.count(Result.AlreadyClosed) == accepted
    assert results.count(Result.ProducerQueueIsFull) == 12 - accepted


def test_no_size_for_batches_means_that_each_message_goes_alone(broker: EmbeddedBroker) -> None:
    ids: list[MessageId] = []
    with PulsarClient(broker.service_url) as client:
        producer = client.create_producer(
            "t", batching_enabled=True, batching_max_allowed_size_in_bytes=0
        )
        for value in (b"", b"x", b"y" * 1000):
            producer.send_async(value, lambda _, message_id: ids.append(message_id))
        producer.flush()
        assert [each.entry_id() for each in ids] == [0, 1, 2]
        for name in (
            "batching_max_allowed_size_in_bytes",
            "max_pending_messages_across_partitions",
        ):
            with pytest.raises(ValueError, match=f"{name} is -1"):
                client.create_producer("t", **{name: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["close", "shutdown"])
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batching"])
def test_after_the_client_a_producer_answers_at_once(
    broker: EmbeddedBroker, end: str, batching: bool
) -> None:
    client = PulsarClient(broker.service_url)
    producer = client.create_producer("t", batching_enabled=batching)
    results: list[Result] = []
    producer.send_async(b"before", lambda result, _: results.append(result))
    producer.flush()
    getattr(client, end)()
    producer.send_async(b"after", lambda result, _: results.append(result))
    producer.send_async(b"after", lambda result, _: results.append(result), sequence_id=5)
    # A wait for a thread that has ended would last for as long as the send timeout.
    begun = time.monotonic()
    with pytest.raises(ClosedError):
        producer.flush()
    producer.close()
    producer.close()
    assert time.monotonic() - begun < 30
    assert results == [Result.Ok, Result.AlreadyClosed, Result.AlreadyClosed]


@pytest.mark.parametrize("end", ["close", "shutdown"])
@pytest.mark.parametrize("batching", [False, True] * 3)
def test_what_is_sent_while_the_client_is_closed_is_told_once(
    broker: EmbeddedBroker, end: str, batching: bool
) -> None:
    client = PulsarClient(broker.service_url)
    producer = client.create_producer(
        "t", batching_enabled=batching, block_if_queue_full=True, max_pending_messages=20
    )
    told: list[list[int]] = [[], [], []]
    sent = [0, 0, 0]
    closed = threading.Event()

    def note(of: int, number: int, result: Result, message_id: MessageId) -> None:
        told[of].append(number)

    def send(of: int) -> None:
        after = 0
        while after < 3:
            # Some are sent behind the end, too.
            after += closed.is_set()
            producer.send_async(b"x", partial(note, of, sent[of]))
            sent[of] += 1

    threads = [threading.Thread(target=send, args=(of,)) for of in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(len(each) > 5 for each in told), "the first callbacks")
    getattr(client, end)()
    closed.set()
    finish(*threads)
    wait_until(lambda: [len(each) for each in told] == sent, "all callbacks")
    assert [sorted(each) for each in told] == [list(range(count)) for count in sent]


@pytest.mark.fault(96)
def test_a_token_is_not_shown() -> None:
    client = PulsarClient("pulsar://h", AuthenticationToken("secret"))
    assert "secret" not in repr(vars(client))


def test_text_is_written_with_its_schema() -> None:
    with EmbeddedBroker() as broker, PulsarClient(broker.service_url) as client:
        producer = client.create_producer("t", schema=StringSchema())
        producer.send("größer")
        reader = client.create_reader("t", MessageId.earliest, schema=StringSchema())
        assert reader.read_next(60_000).value() == "größer"
