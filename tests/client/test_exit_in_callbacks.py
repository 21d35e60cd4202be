"""Users' functions that raise anything, SystemExit too, end no thread of the client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pulsar_spark.client import (
    AuthenticationToken,
    ConsumerType,
    CryptoKeyReader,
    EncryptionKeyInfo,
    InitialPosition,
    MessageId,
    PulsarClient,
    Result,
)
from pulsar_spark.engine import encryption
from pulsar_spark.engine.connections.http_client import THREADS
from pulsar_spark.errors import AuthenticationError, EncryptedMessage
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.test_encryption import RSA, private_pem, public_pem
from tests.support.waiting import wait_until

RECEIVE_MS = 60_000
ERRORS = [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), RuntimeError("bug")]


class Failing:
    """A callback that raises at every second call, and records the last argument of the others."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls = 0
        self.told: list[Any] = []

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        if self.calls % 2:
            raise self.error
        self.told.append(arguments[-1])


@pytest.fixture(params=ERRORS, ids=lambda error: type(error).__name__)
def failing(request: pytest.FixtureRequest) -> Failing:
    return Failing(request.param)


@pytest.fixture(autouse=True)
def closed(client: PulsarClient) -> Iterator[None]:
    """The client's threads end when it is closed, and `close` does not wait for a dead one."""
    yield
    threads = [client._callbacks, *client._listener_threads]
    assert all(one._thread is None or one._thread.is_alive() for one in threads)


@pytest.mark.fault(191)
@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
def test_callbacks_of_sends_may_raise_anything(
    client: PulsarClient, failing: Failing, batching: bool, caplog: pytest.LogCaptureFixture
) -> None:
    producer = client.create_producer("t", batching_enabled=batching)
    for _ in range(10):
        producer.send_async(b"x", failing)
    producer.flush()
    assert len(failing.told) == 5
    for _ in range(2):
        producer.send_async(b"x", failing)
    producer.close()
    assert failing.calls == 12
    assert "the callback of a message failed" in caplog.text


@pytest.mark.fault(191)
def test_callbacks_of_failed_sends_may_raise_anything(
    broker: EmbeddedBroker, client: PulsarClient, failing: Failing
) -> None:
    producer = client.create_producer("t", send_timeout_millis=500)
    broker.faults.drop("SEND_RECEIPT", times=None)
    for _ in range(10):
        producer.send_async(b"x", failing)
    wait_until(lambda: failing.calls == 10, "all callbacks")


def all_are_heard(client: PulsarClient, topic: str, failing: Failing, number: int) -> None:
    """Send so many messages; a listener gets each of them."""
    producer = client.create_producer(topic)
    for _ in range(number):
        producer.send(b"x")
    wait_until(lambda: failing.calls == number, "all messages")


@pytest.mark.fault(191)
@pytest.mark.parametrize("kind", list(ConsumerType), ids=lambda kind: kind.name)
def test_message_listeners_may_raise_anything(
    client: PulsarClient, failing: Failing, kind: ConsumerType
) -> None:
    client.subscribe("t", "s", kind, message_listener=failing)
    all_are_heard(client, "t", failing, 10)


@pytest.mark.fault(191)
def test_callbacks_of_receive_async_may_raise_anything(
    client: PulsarClient, failing: Failing
) -> None:
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t")
    for _ in range(6):
        consumer.receive_async(failing)
        producer.send(b"x")
    wait_until(lambda: failing.calls == 6, "all messages")
    for _ in range(2):
        consumer.receive_async(failing)
    consumer.close()
    wait_until(lambda: failing.calls == 8, "all callbacks")


@pytest.mark.fault(191)
def test_event_listeners_may_raise_anything(client: PulsarClient, failing: Failing) -> None:
    class Events:
        became_active = became_inactive = failing

    client.subscribe("t", "s", ConsumerType.Failover, consumer_event_listener=Events())
    with client.subscribe("t", "s", ConsumerType.Failover, consumer_event_listener=Events()):
        wait_until(lambda: failing.calls >= 2, "both consumers are told")
    producer = client.create_producer("t")
    producer.send_async(b"x", failing)
    producer.send_async(b"x", failing)
    producer.flush()


@pytest.mark.fault(191)
def test_an_event_listener_may_lack_a_method(client: PulsarClient) -> None:
    class Events:
        def became_inactive(self, consumer: object, partition: int) -> None:
            """The consumer becomes active."""

    consumer = client.subscribe(
        "t",
        "s",
        ConsumerType.Failover,
        consumer_event_listener=Events(),  # type: ignore[arg-type]
    )
    client.create_producer("t").send(b"x")
    assert consumer.receive(RECEIVE_MS).data() == b"x"


@pytest.mark.fault(191)
@pytest.mark.parametrize("partitions", [0, 2])
def test_listeners_of_readers_may_raise_anything(
    broker: EmbeddedBroker, client: PulsarClient, failing: Failing, partitions: int
) -> None:
    topic = broker.create_topic("t", partitions)
    client.create_reader(topic, MessageId.earliest, reader_listener=failing)
    all_are_heard(client, topic, failing, 6)


@pytest.mark.fault(191)
def test_listeners_of_table_views_may_raise_anything(
    client: PulsarClient, failing: Failing
) -> None:
    view = client.create_table_view("t")
    view.for_each_and_listen(failing)
    others = Failing(failing.error)
    view.for_each_and_listen(others)
    producer = client.create_producer("t")
    for number in range(6):
        producer.send(b"%d" % number, partition_key="k")
    wait_until(lambda: others.calls == 6, "all changes")
    assert failing.told == [b"1", b"3", b"5"]
    assert view.get("k") == b"5"


@pytest.mark.fault(191)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_function_for_tokens_may_raise_anything(
    broker: EmbeddedBroker, error: BaseException
) -> None:
    errors = [error]

    def token() -> str:
        if errors:
            raise errors.pop()
        return "token"

    with PulsarClient(broker.service_url, AuthenticationToken(token)) as client:
        with pytest.raises(AuthenticationError, match=type(error).__name__):
            client.create_producer("t")
        client.create_producer("t").send(b"x")


@pytest.mark.fault(191)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_function_for_tokens_of_rest_may_raise_anything(error: BaseException) -> None:
    errors = [error] * (THREADS + 1)

    def token() -> str:
        if errors:
            raise errors.pop()
        return "token"

    with (
        EmbeddedBroker(rest=True) as broker,
        PulsarClient(broker.admin_url, AuthenticationToken(token)) as client,
    ):
        broker.create_topic("t")
        while errors:
            with pytest.raises(AuthenticationError, match=type(error).__name__):
                client.get_topic_partitions("t")
        assert client.get_topic_partitions("t")


class Keys(CryptoKeyReader):
    """Raises what is in `errors`, then returns the keys."""

    def __init__(self) -> None:
        super().__init__(public_pem(RSA), private_pem(RSA))
        self.errors: list[BaseException] = []

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        if self.errors:
            raise self.errors.pop()
        return super().get_public_key(key_name, metadata)

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        if self.errors:
            raise self.errors.pop()
        return super().get_private_key(key_name, metadata)


@pytest.mark.fault(191)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_reader_of_public_keys_may_raise_anything_on_the_thread_of_the_timers(
    client: PulsarClient, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "_MAX_MESSAGES_OF_A_KEY", 1)
    keys = Keys()
    producer = client.create_producer(
        "t", batching_enabled=True, encryption_key="k", crypto_key_reader=keys
    )
    told: list[Result] = []
    producer.send(b"a new key for each entry from now on")
    keys.errors.append(error)
    producer.send_async(b"x", lambda result, _: told.append(result))
    wait_until(lambda: len(told) == 1, "its callback")
    producer.send_async(b"x", lambda result, _: told.append(result))
    wait_until(lambda: len(told) == 2, "its callback")
    assert told == [Result.CryptoError, Result.Ok]


# KeyboardInterrupt is left alone where the program's own thread is the one that calls.
OTHERS = [error for error in ERRORS if not isinstance(error, KeyboardInterrupt)]


@pytest.mark.fault(191)
@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_reader_of_private_keys_may_raise_anything(
    broker: EmbeddedBroker,
    client: PulsarClient,
    error: BaseException,
    partitions: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = broker.create_topic("t", partitions)
    keys = Keys()
    producer = client.create_producer(topic, encryption_key="k", crypto_key_reader=keys)
    producer.send(b"x", partition_key="k")
    client.create_producer(topic).send(b"y", partition_key="k")
    keys.errors.append(error)
    consumer = client.subscribe(
        topic, "s", initial_position=InitialPosition.Earliest, crypto_key_reader=keys
    )
    assert consumer.receive(RECEIVE_MS).data() == b"y"
    assert any("withheld" in line and type(error).__name__ in line for line in caplog.messages)
    keys.errors.append(error)
    reader = client.create_reader(topic, MessageId.earliest, crypto_key_reader=keys)
    with pytest.raises(EncryptedMessage, match=type(error).__name__):
        reader.read_next(RECEIVE_MS)
