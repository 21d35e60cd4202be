from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable

import pytest

from pulsar_spark.engine import deadline as deadlines
from pulsar_spark.engine.connections.addresses import BrokerAddress
from pulsar_spark.engine.connections.pool import ConnectionPool
from pulsar_spark.engine.connections.requests import MAX_IN_FLIGHT
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import (
    AuthorizationError,
    BrokerUnreachable,
    ConnectError,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
    ServiceNotReady,
    TopicNotFound,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.events import CommandReceived, Event
from pulsar_spark.protocol.message_id import EARLIEST, MessageIdAdv
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.schema.registry import latest_schema
from pulsar_spark.testing import EmbeddedBroker
from tests import brief
from tests.engine.scripted_broker import ScriptedBroker, Session, T
from tests.engine.test_connection import kind_of, request_of
from tests.engine.topics import add_batch, add_plain, fill, pretend_empty, quick
from tests.support.asking import broker_of, connection_of
from tests.support.java_server import free_ports
from tests.support.waiting import finish, wait_until

TOPIC = "persistent://public/default/t"
LookupType = pb.CommandLookupTopicResponse


def answering(
    kind: int, answer: Callable[[Session, int], pb.BaseCommand | None]
) -> Callable[[Session, Event], bool]:
    """Return a script that answers one type of request, unless the answer is None."""

    def script(session: Session, event: Event) -> bool:
        if kind_of(event) != kind:
            return False
        command = answer(session, request_of(event))
        if command is None:
            return False
        session.send(command)
        return True

    return script


def partition(number: int) -> str:
    return f"{TOPIC}-partition-{number}"


# --- brokers ----------------------------------------------------------------------------------


def test_a_lookup_gives_the_broker_that_is_named() -> None:
    with ScriptedBroker() as broker, ConnectionPool(broker.options()) as pool:
        assert broker_of(Lookup(pool), TOPIC) == broker.broker
        (asked,) = broker.commands(T.LOOKUP)
        assert (asked.topic, asked.authoritative) == (TOPIC, False)


@pytest.mark.fault(17)
def test_behind_a_proxy_the_socket_goes_where_the_lookup_went() -> None:
    def answer(session: Session, request_id: int) -> pb.BaseCommand:
        return brief.lookup_response(
            request_id,
            LookupType.Connect,
            brokerServiceUrl="pulsar://inner:6650",
            proxy_through_service_url=True,
        )

    with (
        ScriptedBroker(answering(T.LOOKUP, answer)) as broker,
        ConnectionPool(broker.options()) as pool,
    ):
        assert broker_of(Lookup(pool), TOPIC) == BrokerAddress("inner:6650", broker.address)
        connection_of(Lookup(pool), TOPIC)
        assert broker.commands(T.CONNECT)[1].proxy_to_broker_url == "inner:6650"


@pytest.mark.fault(17)
@pytest.mark.parametrize("scheme", ["pulsar", "pulsar+ssl"])
def test_how_the_proxy_reaches_its_brokers_is_its_own_matter(scheme: str) -> None:
    """Pulsar's proxy gives one address, with its own scheme, as both URLs."""

    def answer(session: Session, request_id: int) -> pb.BaseCommand:
        return brief.lookup_response(
            request_id,
            LookupType.Connect,
            brokerServiceUrl=f"{scheme}://inner:6650",
            brokerServiceUrlTls=f"{scheme}://inner:6650",
            proxy_through_service_url=True,
        )

    with (
        ScriptedBroker(answering(T.LOOKUP, answer)) as broker,
        ConnectionPool(broker.options()) as pool,
    ):
        assert broker_of(Lookup(pool), TOPIC) == BrokerAddress("inner:6650", broker.address)


@pytest.mark.fault(17)
def test_a_broker_that_is_its_own_proxy_has_one_connection() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        connection = connection_of(Lookup(pool), TOPIC)
        assert connection is pool.service()
        assert len(pool.connections) == 1


def test_redirects_are_followed_and_carry_authoritative_on() -> None:
    with ScriptedBroker() as owner:

        def answer(session: Session, request_id: int) -> pb.BaseCommand:
            return brief.lookup_response(
                request_id,
                LookupType.Redirect,
                brokerServiceUrl=f"pulsar://{owner.address}",
                authoritative=True,
            )

        with (
            ScriptedBroker(answering(T.LOOKUP, answer)) as broker,
            ConnectionPool(broker.options()) as pool,
        ):
            assert broker_of(Lookup(pool), TOPIC) == owner.broker
            assert [asked.authoritative for asked in owner.commands(T.LOOKUP)] == [True]


def test_several_brokers_share_a_partitioned_topic() -> None:
    with EmbeddedBroker(brokers=2) as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC, partitions=8)
        lookup = Lookup(pool)
        found = {broker_of(lookup, partition(number)) for number in range(8)}
        assert {f"pulsar://{address.logical}" for address in found} == set(broker.service_urls)


@pytest.mark.fault(16)
def test_endless_redirects_are_an_error_after_twenty() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.faults.redirect(broker.service_url, times=None)
        with pytest.raises(RemoteProtocolError, match=r"too many redirects \(20\)") as caught:
            broker_of(Lookup(pool), TOPIC)
        assert caught.value.topic == TOPIC
        assert broker.faults.seen("LOOKUP") == 21


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    "url", [None, "http://127.0.0.1:8080", "pulsar+ssl://127.0.0.1:6651", "nonsense", "pulsar://"]
)
def test_a_lookup_that_leads_elsewhere_than_to_a_plain_broker_is_refused(url: str | None) -> None:
    def answer(session: Session, request_id: int) -> pb.BaseCommand:
        return brief.lookup_response(request_id, LookupType.Redirect, brokerServiceUrl=url)

    with (
        ScriptedBroker(answering(T.LOOKUP, answer)) as broker,
        ConnectionPool(broker.options()) as pool,
        pytest.raises(RemoteProtocolError),
    ):
        broker_of(Lookup(pool), TOPIC)


@pytest.mark.fault(18, 19)
@pytest.mark.parametrize(
    "code", [pb.ServiceNotReady, pb.MetadataError, pb.PersistenceError, pb.TooManyRequests]
)
def test_what_can_pass_is_asked_again_on_the_same_connection(code: int) -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.faults.error("LOOKUP", code, times=3)
        connection = pool.service()
        broker_of(Lookup(pool), TOPIC)
        asked = [seen.at for seen in broker.faults.log("LOOKUP")]
        gaps = [after - before for before, after in itertools.pairwise(asked)]
        for gap, least in zip(gaps, (0.09, 0.18, 0.36), strict=True):
            assert gap >= least
        assert pool.service() is connection
        assert not connection.closed


@pytest.mark.fault(18)
def test_a_permission_that_the_broker_could_not_check_is_asked_for_again() -> None:
    """Brokers say this when their metadata store does not answer, with a permanent error's code."""
    text = "Exception occurred while trying to authorize lookup"
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.faults.error("LOOKUP", "AuthorizationError", text, times=2)
        broker_of(Lookup(pool), TOPIC)
        assert broker.faults.seen("LOOKUP") == 3


def test_what_cannot_pass_is_asked_once() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.faults.error("LOOKUP", "AuthorizationError", "not for you", times=None)
        with pytest.raises(AuthorizationError, match="not for you") as caught:
            broker_of(Lookup(pool), TOPIC)
        assert caught.value.topic == TOPIC
        assert broker.faults.seen("LOOKUP") == 1


def test_what_does_not_pass_is_raised_at_the_operation_timeout() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker, operation_timeout=0.5)) as pool:
        broker.faults.error("LOOKUP", "ServiceNotReady", times=None)
        started = time.monotonic()
        with pytest.raises(ServiceNotReady, match="attempts"):
            broker_of(Lookup(pool), TOPIC)
        assert time.monotonic() - started < 15


def test_a_lookup_without_an_answer_is_a_timeout_with_the_topic() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker, operation_timeout=0.3)) as pool:
        broker.faults.drop("LOOKUP", times=None)
        with pytest.raises(OperationTimeout) as caught:
            broker_of(Lookup(pool), TOPIC)
        assert caught.value.topic == TOPIC


@pytest.mark.fault(1)
def test_a_broker_that_comes_up_late_is_found() -> None:
    (port,) = free_ports(1)
    started = threading.Event()
    with ConnectionPool(ClientOptions(f"pulsar://127.0.0.1:{port}")) as pool:

        def bring_up() -> None:
            with EmbeddedBroker(port):
                started.wait(60)

        late = threading.Timer(1.0, bring_up)
        late.start()
        assert broker_of(Lookup(pool), TOPIC).logical == f"127.0.0.1:{port}"
        started.set()
        late.join()


@pytest.mark.fault(1)
def test_a_broker_that_stays_down_is_named_at_the_operation_timeout() -> None:
    # Bound but not listening: nobody else gets the port meanwhile.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ClientOptions(f"pulsar://{address}", operation_timeout=3.0)
        with ConnectionPool(options) as pool, pytest.raises(ConnectError, match=address):
            broker_of(Lookup(pool), TOPIC)


def test_the_listener_name_is_passed_on() -> None:
    with (
        ScriptedBroker() as broker,
        ConnectionPool(broker.options(listener_name="external")) as pool,
    ):
        broker_of(Lookup(pool), TOPIC)
        assert broker.commands(T.LOOKUP)[0].advertised_listener_name == "external"


def test_a_listener_that_brokers_do_not_have_is_told_by_both_names_of_the_option() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        options = ClientOptions(broker.service_url, listener_name="nope", operation_timeout=3.0)
        with ConnectionPool(options) as pool, pytest.raises(BrokerUnreachable) as caught:
            broker_of(Lookup(pool), TOPIC)
    assert "pulsar.client.listenerName" in str(caught.value)
    assert "listener_name of PulsarClient" in str(caught.value)


@pytest.mark.fault(10)
@pytest.mark.parametrize("code", ["TooManyRequests", "ServiceNotReady"])
def test_a_listener_is_not_called_missing_because_a_broker_has_no_time(code: str) -> None:
    with EmbeddedBroker(listeners=("internal",)) as broker:
        broker.create_topic(TOPIC)
        asked = itertools.count()
        broker.faults.error("LOOKUP", code, times=2, when=lambda _: next(asked) % 2 == 0)
        options = ClientOptions(broker.service_url, listener_name="internal")
        with ConnectionPool(options) as pool:
            assert broker_of(Lookup(pool), TOPIC).logical in broker.service_url


# --- several hosts ----------------------------------------------------------------------------

_QUESTIONS: dict[str, Callable[[Lookup], object]] = {
    "LOOKUP": lambda lookup: broker_of(lookup, TOPIC),
    "PARTITIONED_METADATA": lambda lookup: lookup.partitions(TOPIC),
    "GET_TOPICS_OF_NAMESPACE": lambda lookup: lookup.topics_of_namespace("public/default"),
    "GET_SCHEMA": lambda lookup: latest_schema(lookup, TOPIC),
}


@pytest.mark.fault(3)
@pytest.mark.parametrize("question", _QUESTIONS)
@pytest.mark.parametrize("what", ["silent", "ServiceNotReady", "TooManyRequests"])
def test_after_a_host_that_cannot_answer_another_one_is_asked(
    monkeypatch: pytest.MonkeyPatch, what: str, question: str
) -> None:
    monkeypatch.setattr(deadlines, "ATTEMPT_SECONDS", 0.2)
    with EmbeddedBroker() as sick, EmbeddedBroker() as other:
        if what == "silent":
            sick.faults.drop(question, times=None)
        else:
            sick.faults.error(question, what, times=None)
        other.create_topic(TOPIC)
        hosts = [broker.service_url.removeprefix("pulsar://") for broker in (sick, other)]
        with ConnectionPool(ClientOptions(f"pulsar://{','.join(hosts)}")) as pool:
            pool._hosts = list(hosts)
            for _ in range(3):
                _QUESTIONS[question](Lookup(pool))
        assert sick.faults.seen(question) == 1
        assert other.faults.seen(question) == 3


@pytest.mark.fault(3, 16)
def test_after_a_host_that_redirects_without_end_another_one_is_asked() -> None:
    with EmbeddedBroker() as sick, EmbeddedBroker() as other:
        sick.faults.redirect(sick.service_url, times=None)
        other.create_topic(TOPIC)
        hosts = [broker.service_url.removeprefix("pulsar://") for broker in (sick, other)]
        with ConnectionPool(ClientOptions(f"pulsar://{','.join(hosts)}")) as pool:
            pool._hosts = list(hosts)
            with pytest.raises(RemoteProtocolError, match="too many redirects"):
                broker_of(Lookup(pool), TOPIC)
            assert broker_of(Lookup(pool), TOPIC).logical == hosts[1]


@pytest.mark.fault(3)
def test_a_topic_that_is_missing_is_no_reason_to_ask_another_host() -> None:
    with EmbeddedBroker() as one, EmbeddedBroker() as other:
        hosts = [broker.service_url.removeprefix("pulsar://") for broker in (one, other)]
        with ConnectionPool(ClientOptions(f"pulsar://{','.join(hosts)}")) as pool:
            pool._hosts = list(hosts)
            with pytest.raises(TopicNotFound):
                Lookup(pool).partitions(TOPIC)
            assert pool._hosts == hosts


# --- partitions and topics --------------------------------------------------------------------


def test_partitions_are_counted_and_nothing_is_created() -> None:
    with EmbeddedBroker(auto_create=4) as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic("many", partitions=3)
        broker.create_topic("plain")
        lookup = Lookup(pool)
        assert lookup.partitions("persistent://public/default/many") == 3
        assert lookup.partitions("persistent://public/default/plain") == 0
        before = broker.topics()
        with pytest.raises(TopicNotFound) as caught:
            lookup.partitions(TOPIC)
        assert caught.value.topic == TOPIC
        assert broker.topics() == before


def test_partitions_of_many_topics_are_asked_at_once() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        names = [broker.create_topic(f"t-{number}", number % 3) for number in range(200)]
        found = Lookup(pool).partitions_many([*names, TOPIC])
        assert [found[name] for name in names] == [number % 3 for number in range(200)]
        assert isinstance(found[TOPIC], TopicNotFound)


@pytest.mark.parametrize("exists", [True, False])
def test_brokers_without_the_feature_are_asked_for_the_namespace_first(exists: bool) -> None:
    def script(session: Session, event: Event) -> bool:
        if kind_of(event) == T.CONNECT:
            session.send(brief.connected("old broker"))
            return True
        if kind_of(event) == T.GET_TOPICS_OF_NAMESPACE:
            names = [partition(0), partition(1)] if exists else []
            session.send(
                commands.build(
                    pb.CommandGetTopicsOfNamespaceResponse,
                    request_id=request_of(event),
                    topics=names,
                )
            )
            return True
        if kind_of(event) == T.PARTITIONED_METADATA:
            session.send(brief.partitions_response(request_of(event), partitions=2))
            return True
        return False

    with ScriptedBroker(script) as broker, ConnectionPool(broker.options()) as pool:
        if exists:
            assert Lookup(pool).partitions(TOPIC) == 2
        else:
            with pytest.raises(TopicNotFound):
                Lookup(pool).partitions(TOPIC)
            assert not broker.commands(T.PARTITIONED_METADATA)


def test_topics_of_a_namespace_are_listed_without_their_partitions() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic("b", partitions=3)
        broker.create_topic("a")
        broker.create_topic("public/other/c")
        lookup = Lookup(pool)
        both = ["persistent://public/default/a", "persistent://public/default/b"]
        assert lookup.topics_of_namespace("public/default") == both
        assert lookup.topics_of_namespace("public/empty") == []


def test_a_name_that_is_no_topic_hides_no_other() -> None:
    def answer(session: Session, request_id: int) -> pb.BaseCommand:
        return commands.build(
            pb.CommandGetTopicsOfNamespaceResponse,
            request_id=request_id,
            topics=["nonsense://", TOPIC],
        )

    with (
        ScriptedBroker(answering(T.GET_TOPICS_OF_NAMESPACE, answer)) as broker,
        ConnectionPool(broker.options()) as pool,
    ):
        assert Lookup(pool).topics_of_namespace("public/default") == [TOPIC]


# --- last ids ---------------------------------------------------------------------------------


@pytest.mark.fault(63)
def test_last_message_ids_of_batches_plain_messages_and_empty_topics() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        batched, plain, empty = (broker.create_topic(name) for name in ("b", "p", "e"))
        last = add_batch(broker, batched, [b"1", b"2", b"3"])[-1]
        single = add_plain(broker, plain, b"x")
        found = Lookup(pool).last_message_ids([batched, plain, empty, TOPIC + "-missing"])
        assert found[batched] == MessageIdAdv(last.ledger_id, last.entry_id, -1, 2)
        assert found[plain] == MessageIdAdv(single.ledger_id, single.entry_id)
        assert found[empty] == EARLIEST


def test_asking_for_last_ids_neither_creates_topics_nor_leaves_subscriptions() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        lookup = Lookup(pool)
        assert lookup.last_message_id(TOPIC) == EARLIEST
        with pytest.raises(TopicNotFound):
            lookup.last_message_id("persistent://public/default/missing")
        assert broker.topics() == [TOPIC]
        wait_until(lambda: not broker.subscriptions(TOPIC))
        subscribe = broker.faults.log("SUBSCRIBE")[0].body
        assert subscribe.topic == TOPIC
        assert not subscribe.durable
        assert not subscribe.force_topic_creation


def test_a_thousand_partitions_are_asked_in_seconds() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(ClientOptions(broker.service_url)) as pool:
        broker.create_topic(TOPIC, partitions=1000)
        names = [partition(number) for number in range(1000)]
        add_plain(broker, names[7], b"x")
        # CPU time, also of the broker's thread: others may use the machine meanwhile.
        started = time.process_time()
        found = Lookup(pool).last_message_ids(names)
        assert time.process_time() - started < 20
        assert list(found) == names
        assert found.pop(names[7]) != MessageIdAdv(-1, -1, 7)
        for name, value in found.items():
            assert value == MessageIdAdv(-1, -1, TopicName.parse(name).partition_index)
        # Those that report to be empty are verified.
        assert broker.faults.seen("SUBSCRIBE") == 1999
        wait_until(lambda: broker.faults.seen("CLOSE_CONSUMER") == 1000)


@pytest.mark.fault(10)
def test_a_broker_is_asked_no_more_than_64_questions_at_a_time() -> None:
    held: list[tuple[Session, CommandReceived]] = []
    most = 0
    asked = 0

    def script(session: Session, event: Event) -> bool:
        nonlocal most, asked
        if kind_of(event) not in (T.LOOKUP, T.PARTITIONED_METADATA):
            return False
        assert isinstance(event, CommandReceived)
        held.append((session, event))
        asked += 1
        most = max(most, len(held))
        if len(held) >= MAX_IN_FLIGHT or asked > 960:
            for waiting, one in held:
                broker.answer(waiting, one)
            held.clear()
        return True

    with ScriptedBroker(script) as broker, ConnectionPool(broker.options()) as pool:
        # Two lookups of one pool, as in two tasks of a worker, share the limit.
        first, second = Lookup(pool), Lookup(pool)
        topics = [partition(number) for number in range(512)]
        counts: dict[str, int | PulsarError] = {}
        other = threading.Thread(target=lambda: counts.update(second.partitions_many(topics)))
        other.start()
        found = first.ask_many(topics, first.broker_operation)
        finish(other)
        assert all(value == broker.broker for value in found.values())
        assert set(counts.values()) == {0}
        assert most == MAX_IN_FLIGHT


def test_who_gives_up_waiting_for_a_turn_leaves_it_to_others() -> None:
    def script(session: Session, event: Event) -> bool:
        return kind_of(event) == T.LOOKUP and "lost" in event.body.topic  # type: ignore[union-attr]

    with (
        ScriptedBroker(script) as broker,
        ConnectionPool(broker.options(operation_timeout=0.5)) as pool,
    ):
        lookup = Lookup(pool)
        lost = [f"{TOPIC}-lost-{number}" for number in range(3 * MAX_IN_FLIGHT)]
        found = lookup.ask_many(lost, lookup.broker_operation)
        assert all(isinstance(error, OperationTimeout) for error in found.values())
        assert broker_of(lookup, TOPIC) == broker.broker


@pytest.mark.fault(14, 21)
def test_an_unload_or_a_lost_connection_on_the_way_is_survived() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        last = add_plain(broker, TOPIC, b"x")
        broker.faults.close("GET_LAST_MESSAGE_ID", times=2)
        assert Lookup(pool).last_message_id(TOPIC) == MessageIdAdv(last.ledger_id, last.entry_id)
        wait_until(lambda: not broker.subscriptions(TOPIC))


@pytest.mark.fault(14)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_that_a_topic_is_empty_is_believed_of_no_consumer_that_the_broker_lost(times: int) -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        last = fill(broker, TOPIC, 3)[-1]
        pretend_empty(broker, times)
        found = Lookup(pool).last_message_id(TOPIC)
        assert found == MessageIdAdv(last.ledger_id, last.entry_id, -1, last.batch_index)
        wait_until(lambda: not broker.subscriptions(TOPIC))


def test_that_a_topic_is_empty_is_made_sure_of_by_one_question() -> None:
    with EmbeddedBroker() as broker, ConnectionPool(quick(broker)) as pool:
        broker.create_topic(TOPIC)
        assert Lookup(pool).last_message_id(TOPIC) == EARLIEST
        assert broker.faults.seen("SUBSCRIBE") == 2
        wait_until(lambda: not broker.subscriptions(TOPIC))
