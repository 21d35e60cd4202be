"""Credentials for a broker that checks them: accepted, rejected, and renewed while in use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.client import MessageId, PulsarClient
from pulsar_spark.client.authentication import Authentication
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import AuthOptions, ClientOptions, ProducerOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.errors import AuthenticationError, AuthorizationError, PulsarError
from pulsar_spark.testing import EmbeddedBroker
from tests import brief
from tests.support.waiting import wait_until

SECRET = "canary-51c2"


class Guard:
    """Accepts the credentials in `valid`, and records all that were given."""

    def __init__(self, *valid: tuple[str, bytes]) -> None:
        self.valid = set(valid)
        self.given: list[tuple[str, bytes]] = []

    def __call__(self, method: str, data: bytes) -> bool:
        self.given.append((method, data))
        return (method, data) in self.valid


@pytest.fixture
def guard() -> Guard:
    return Guard(("token", b"good"), ("basic", b"me:good"))


@pytest.fixture
def broker(guard: Guard) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(authenticate=guard) as running:
        running.create_topic("t")
        yield running
        assert running.internal_errors == ()


def options(broker: EmbeddedBroker, auth: AuthOptions, **more: Any) -> ClientOptions:
    return ClientOptions(broker.service_url, operation_timeout=60, auth=auth, **more)


def challenge(broker: EmbeddedBroker) -> None:
    broker.faults.inject(brief.auth_challenge("b", "token"))


@pytest.mark.parametrize(
    "auth",
    [AuthOptions("token", token="good"), AuthOptions("basic", username="me", password="good")],
)
def test_good_credentials_are_accepted(broker: EmbeddedBroker, auth: AuthOptions) -> None:
    with ClientContext(options(broker, auth)) as context:
        assert context.lookup.partitions("t") == 0


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    "auth",
    [
        AuthOptions(),
        AuthOptions("token", token=SECRET),
        AuthOptions("basic", username="me", password=SECRET),
    ],
    ids=["no token", "wrong token", "wrong password"],
)
@pytest.mark.parametrize("action", ["look up", "produce", "consume"])
def test_refused_credentials_are_one_attempt_and_one_error_that_names_the_remedy(
    broker: EmbeddedBroker,
    guard: Guard,
    auth: AuthOptions,
    action: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with ClientContext(options(broker, auth)) as context:
        actions: dict[str, Callable[[], object]] = {
            "look up": lambda: context.lookup.partitions("t"),
            "produce": lambda: TopicProducer(context, "t", ProducerOptions()).open(),
            "consume": lambda: context.lookup.last_message_id("t"),
        }
        with pytest.raises(AuthenticationError) as caught:
            actions[action]()
    assert len(guard.given) == 1
    text = str(caught.value)
    assert "pulsar.client.authParams" in text
    anonymous = auth.method == "none"
    assert ("none were given" in text, "a token may have expired" in text) == (
        anonymous,
        not anonymous,
    )
    assert broker.service_url.removeprefix("pulsar://") in text
    chain: list[BaseException | None] = [caught.value]
    while chain[-1] is not None:
        assert SECRET not in f"{chain[-1]!r} {chain[-1]}"
        chain.append(chain[-1].__cause__ or chain[-1].__context__)
    assert SECRET not in caplog.text


@pytest.mark.fault(45)
def test_several_hosts_are_not_all_asked_with_credentials_that_one_refused(
    broker: EmbeddedBroker, guard: Guard
) -> None:
    with EmbeddedBroker(authenticate=guard) as other:
        url = f"{broker.service_url},127.0.0.1:{other.port}"
        found = ClientOptions(url, auth=AuthOptions("token", token=SECRET))
        with ClientContext(found) as context, pytest.raises(AuthenticationError):
            context.lookup.partitions("t")
        assert len(guard.given) == 1


@pytest.mark.fault(46)
@pytest.mark.parametrize(
    "command,permission,actions",
    [
        ("LOOKUP", "produce or consume", "produce,consume"),
        ("PARTITIONED_METADATA", "produce or consume", "produce,consume"),
        ("PRODUCER", "produce", "produce"),
        ("SUBSCRIBE", "consume", "consume"),
    ],
)
def test_a_role_without_permission_learns_which_it_lacks_on_which_topic(
    command: str, permission: str, actions: str
) -> None:
    with EmbeddedBroker() as broker, PulsarClient(broker.service_url) as pulsar:
        broker.create_topic("t")
        broker.faults.error(command, "AuthorizationError", "not for you", times=None)
        opened: dict[str, Callable[[], object]] = {
            "SUBSCRIBE": lambda: pulsar.create_reader("t", MessageId.earliest),
            "LOOKUP": lambda: pulsar.create_producer("t"),
            "PARTITIONED_METADATA": lambda: pulsar.get_topic_partitions("t"),
            "PRODUCER": lambda: pulsar.create_producer("t"),
        }
        with pytest.raises(AuthorizationError, match="not for you") as caught:
            opened[command]()
        assert f"the permission to {permission} (" in str(caught.value)
        granting = "pulsar-admin namespaces grant-permission public/default --role ROLE --actions"
        assert f"({granting} {actions})" in str(caught.value)
        assert caught.value.topic in ("t", "persistent://public/default/t")
        assert broker.faults.seen(command) == 1


def client(broker: EmbeddedBroker, place: str) -> PulsarClient:
    return PulsarClient(broker.service_url, Authentication("token", place))


@pytest.mark.fault(47)
@pytest.mark.parametrize("place", ["file", "environment"])
def test_a_stream_goes_on_through_the_rotation_of_its_token(
    broker: EmbeddedBroker,
    guard: Guard,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    def write(token: str) -> None:
        file.write_text(token)
        monkeypatch.setenv("PULSAR_TOKEN", token)

    file = tmp_path / "token"
    write("good")
    given = f"file://{file}" if place == "file" else "env:PULSAR_TOKEN"
    with client(broker, given) as pulsar:
        producer = pulsar.create_producer("t")
        reader = pulsar.create_reader("t", MessageId.earliest)
        for number in range(3):
            producer.send(b"%d" % number)
            assert reader.read_next(20_000).data() == b"%d" % number
            write(f"better-{number}")
            guard.valid = {("token", b"better-%d" % number)}
            challenge(broker)
            wait_until(lambda n=number: guard.given[-1][1] == b"better-%d" % n)  # type: ignore[misc]
        # All of it on one connection.
        assert broker.faults.seen("CONNECT") == 1
        assert broker.faults.seen("AUTH_RESPONSE") == 3


@pytest.mark.fault(48)
def test_a_token_that_nobody_renews_ends_a_stream_with_one_clear_error(
    broker: EmbeddedBroker, guard: Guard, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("good")
    with client(broker, f"file://{file}") as pulsar:
        producer = pulsar.create_producer("t", send_timeout_millis=60_000)
        reader = pulsar.create_reader("t", MessageId.earliest)
        producer.send(b"1")
        assert reader.read_next(20_000).data() == b"1"
        guard.valid = set()
        challenge(broker)
        with pytest.raises(AuthenticationError):
            reader.read_next(60_000)
        with pytest.raises(PulsarError) as caught:
            producer.send(b"2")
        assert isinstance(caught.value, AuthenticationError)
        # The answer to the challenge, and the attempts of reader and producer.
        assert len(guard.given) <= 4
