"""A consumer's session: subscribe, confirm, requests, and close whatever comes between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.consumers.consumer_session import (
    ConsumerSession,
    SubscribeRequest,
    probe_request,
    unique_name,
)
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import Operation, run
from pulsar_spark.errors import (
    AuthorizationError,
    ClosedError,
    ConnectionLost,
    ConsumerBusy,
    PulsarError,
    TopicNotFound,
)
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.rules import Rule, Seen
from tests.engine.scripted_broker import ScriptedBroker, T
from tests.engine.test_connection import connected
from tests.engine.topics import add_batch, lose_topic, pretend_empty, quick
from tests.support.asking import connection_of
from tests.support.waiting import wait_until

TOPIC = "persistent://public/default/t"


def request(name: str | None = None) -> SubscribeRequest:
    return SubscribeRequest(TOPIC, name or unique_name("test"), EARLIEST_POSITION)


def subscribe(session: ConsumerSession, seconds: float = 5.0) -> None:
    run(session.subscribe, seconds)


def confirm(session: ConsumerSession) -> None:
    run(session.confirm, 5.0)


def test_names_are_unique() -> None:
    assert len({unique_name("x") for _ in range(100)}) == 100


def test_a_session_is_asked_and_leaves_nothing_behind() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        for number in range(3):
            add_batch(broker, TOPIC, [b"%d" % number])
        with ConsumerSession(connection_of(Lookup(pool), TOPIC), request("mine")) as session:
            subscribe(session)
            assert list(broker.subscriptions(TOPIC)) == ["mine"]
            assert not broker.subscriptions(TOPIC)["mine"].durable
            last = session.last_message_id(Deadline(5)).result(5)
            assert last.last_message_id.entryId == 2
            assert session.stats(Deadline(5)).result(5).msgBacklog == 3
        assert session.ended
        wait_until(lambda: not broker.subscriptions(TOPIC))
        session.close()
        assert broker.faults.seen("CLOSE_CONSUMER") == 1


def test_a_durable_subscription_stays() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        durable = SubscribeRequest(TOPIC, "mine", None)
        with ConsumerSession(connection_of(Lookup(pool), TOPIC), durable) as session:
            subscribe(session)
        wait_until(lambda: not broker.subscriptions(TOPIC)["mine"].consumers)
        assert broker.subscriptions(TOPIC)["mine"].durable


def test_a_refusal_leaves_no_consumer_to_close() -> None:
    with (
        EmbeddedBroker(auto_create=False) as broker,
        ConnectionPool(quick(broker)) as pool,
        ConsumerSession(pool.service(), request()) as session,
    ):
        with pytest.raises(TopicNotFound):
            subscribe(session)
        session.close()
        assert broker.faults.seen("CLOSE_CONSUMER") == 0


@pytest.mark.fault(25)
def test_after_a_timeout_the_consumer_is_closed_all_the_same() -> None:
    with ScriptedBroker(lambda s, e: getattr(e, "kind", 0) == T.SUBSCRIBE) as broker:
        connection = connected(broker)
        with ConsumerSession(connection, request()) as session, pytest.raises(PulsarError):
            subscribe(session, 0.05)
        wait_until(lambda: len(broker.commands(T.CLOSE_CONSUMER)) == 1)
        connection.close()


@pytest.mark.fault(25)
def test_a_session_that_is_closed_while_it_subscribes_ends_at_once_and_leaves_nothing() -> None:
    asked = threading.Event()

    def script(session: Any, event: Any) -> bool:
        if getattr(event, "kind", 0) == T.SUBSCRIBE:
            asked.set()
            return True
        return False

    with ScriptedBroker(script) as broker:
        connection = connected(broker)
        session = ConsumerSession(connection, request())
        errors: list[BaseException] = []

        def begin() -> None:
            try:
                subscribe(session, 60.0)
            except PulsarError as error:
                errors.append(error)

        thread = threading.Thread(target=begin)
        thread.start()
        assert asked.wait(10)
        session.close()
        thread.join(10)
        assert not thread.is_alive()
        assert [type(error) for error in errors] == [ClosedError]
        wait_until(lambda: len(broker.commands(T.CLOSE_CONSUMER)) == 1)
        connection.close()


def test_a_session_that_is_over_does_not_begin() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        session = ConsumerSession(connection_of(Lookup(pool), TOPIC), request())
        session.close()
        with pytest.raises(ConnectionLost):
            subscribe(session)
        assert broker.faults.seen("SUBSCRIBE") == 0


@pytest.mark.fault(15)
@pytest.mark.parametrize("trouble", ["unload", "disconnect"])
def test_a_session_ends_with_what_the_broker_knows_of_it(trouble: str) -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        with ConsumerSession(connection_of(Lookup(pool), TOPIC), request()) as session:
            subscribe(session)
            if trouble == "unload":
                broker.unload(TOPIC)
            else:
                broker.faults.disconnect()
            wait_until(lambda: session.ended)
            error = session.last_message_id(Deadline(5)).exception(5)
            assert isinstance(error, PulsarError)
            assert error.retryable
        # The broker's own, if any; the client sends none.
        assert broker.faults.seen("CLOSE_CONSUMER") == (trouble == "unload")


# --- whether the broker knows the consumer ------------------------------------------------------


@pytest.mark.fault(14)
@pytest.mark.parametrize("durable", [False, True])
def test_a_consumer_that_the_broker_holds_is_confirmed(durable: bool) -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        wanted = SubscribeRequest(TOPIC, "mine", None if durable else EARLIEST_POSITION)
        with ConsumerSession(connection_of(Lookup(pool), TOPIC), wanted) as session:
            subscribe(session)
            confirm(session)
            assert not session.ended
            assert len(broker.subscriptions(TOPIC)["mine"].consumers) == 1
            other = ConsumerSession(session.connection, wanted)
            with other, pytest.raises(ConsumerBusy):
                subscribe(other)


@pytest.mark.fault(14)
@pytest.mark.parametrize("durable", [False, True])
def test_a_consumer_without_a_topic_is_recognised(durable: bool) -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        wanted = SubscribeRequest(TOPIC, "mine", None if durable else EARLIEST_POSITION)
        with ConsumerSession(connection_of(Lookup(pool), TOPIC), wanted) as session:
            subscribe(session)
            lose_topic(broker, TOPIC)
            with pytest.raises(ConnectionLost, match="unloaded the topic"):
                confirm(session)
            # The subscription is free for the next consumer.
            with ConsumerSession(session.connection, wanted) as other:
                subscribe(other)


def test_a_topic_that_is_gone_is_no_confirmation() -> None:
    with EmbeddedBroker(auto_create=False) as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        connection = connection_of(Lookup(pool), TOPIC)
        pretend_empty(broker)
        with ConsumerSession(connection, request()) as session:
            subscribe(session)
            broker.delete_topic(TOPIC)
            with pytest.raises(TopicNotFound):
                confirm(session)


def test_sessions_subscribe_in_one_operation() -> None:
    def both(deadline: Deadline) -> Operation[int]:
        for _ in range(2):
            connection = yield from Lookup(pool).connection_operation(TOPIC, deadline)
            with ConsumerSession(connection, request()) as session:
                yield from session.subscribe(deadline)
                yield session.stats(deadline)
        return 2

    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        assert run(both, 5.0) == 2


# --- names that have to begin with the role -----------------------------------------------------

WANTED = (
    "Failed to create consumer - The subscription name needs to be prefixed by the authentication "
    "role, like {}-xxxx for topic: " + TOPIC
)


@contextmanager
def prefixed(broker: EmbeddedBroker, *roles: str) -> Iterator[Rule]:
    """Refuse names that do not begin with a role; the last one is asked for again and again."""
    asked: list[str] = []

    def refuses(seen: Seen) -> bool:
        role = roles[min(len(asked), len(roles) - 1)]
        if seen.body.subscription.startswith(f"{role}-"):
            return False
        asked.append(role)
        return True

    text = WANTED.format(roles[0])
    with broker.faults.error(
        "SUBSCRIBE", "AuthorizationError", text, times=None, when=refuses
    ) as rule:
        yield rule


@pytest.mark.fault(46)
def test_names_that_nobody_else_uses_begin_with_the_role_if_the_broker_wants_it() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        for number in range(3):
            broker.create_topic(f"{TOPIC}{number}")
        lookup = Lookup(pool)
        with prefixed(broker, "a.role") as refused:
            for number in range(3):
                assert lookup.last_message_id(f"{TOPIC}{number}").entry_id == -1
        # The connection remembers it.
        assert refused.hits == 1


@pytest.mark.fault(46)
def test_a_name_that_was_given_is_not_changed_and_the_error_says_how_it_has_to_begin() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        with (
            prefixed(broker, "role") as refused,
            ConsumerSession(connection_of(Lookup(pool), TOPIC), request("mine")) as session,
            pytest.raises(AuthorizationError, match=r"'role-'.*subscriptionPrefix.*public/default"),
        ):
            subscribe(session)
        assert refused.hits == 1


@pytest.mark.fault(46)
def test_a_broker_that_refuses_every_name_is_not_asked_without_end() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        wanted = probe_request(TOPIC, EARLIEST_POSITION)
        with (
            prefixed(broker, "role", "other") as refused,
            ConsumerSession(connection_of(Lookup(pool), TOPIC), wanted) as session,
            pytest.raises(AuthorizationError),
        ):
            subscribe(session)
        assert refused.hits == 2
