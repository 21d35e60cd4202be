"""A client that switches to another cluster: all goes on there, and nothing is taken along."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pulsar_spark.client as pulsar
import pulsar_spark.client.asyncio as async_pulsar
from pulsar_spark.client import (
    AuthenticationToken,
    AutoClusterFailover,
    ConsumerType,
    InitialPosition,
    MessageId,
    PulsarClient,
    ServiceInfo,
    ServiceInfoProvider,
)
from pulsar_spark.engine.retry import Backoff
from pulsar_spark.errors import ConnectionLost, OptionError
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.producing import Sent, TopicScript
from tests.engine.scripted_broker import ScriptedBroker, Session
from tests.support.asking import broker_of
from tests.support.waiting import wait_until

MS = 30_000
TOPIC = "persistent://public/default/t"


class Provider(ServiceInfoProvider):
    """Begins with one cluster; a test calls `switch`."""

    def __init__(self, info: Any) -> None:
        self.info = info
        self.switch: Callable[[Any], None]
        self.closed = 0

    def initial_service_info(self) -> ServiceInfo:
        return self.info  # type: ignore[no-any-return]

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        self.switch = on_service_info_update

    def close(self) -> None:
        self.closed += 1


class Cluster:
    """A broker that lets in whoever has its own token, and keeps the ones that it was shown."""

    def __init__(self, token: str) -> None:
        self.shown: set[bytes] = set()
        self._token = token
        self.broker = EmbeddedBroker(authenticate=self._authenticate)

    def _authenticate(self, method: str, data: bytes) -> bool:
        self.shown.add(data)
        return data == self._token.encode()

    @property
    def info(self) -> ServiceInfo:
        return ServiceInfo(self.broker.service_url, AuthenticationToken(self._token))


@pytest.fixture
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    first, second = Cluster("secret of the first"), Cluster("secret of the second")
    with first.broker, second.broker:
        yield first, second
        assert first.shown <= {b"secret of the first"}
        assert second.shown <= {b"secret of the second"}


@pytest.fixture
def provider(clusters: tuple[Cluster, Cluster]) -> Provider:
    return Provider(clusters[0].info)


@pytest.fixture
def client(provider: Provider) -> Iterator[PulsarClient]:
    with PulsarClient(provider) as made:
        yield made


def client_of(cluster: Cluster) -> PulsarClient:
    """A client that stays at a cluster."""
    return PulsarClient(Provider(cluster.info))


def test_producers_and_consumers_go_on_in_the_other_cluster(
    clusters: tuple[Cluster, Cluster], provider: Provider, client: PulsarClient
) -> None:
    _, second = clusters
    producer = client.create_producer("t")
    consumer = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
    producer.send(b"here")
    consumer.acknowledge(consumer.receive(MS))
    provider.switch(second.info)
    assert client.get_service_info().service_url == second.broker.service_url
    producer.send(b"there")
    assert consumer.receive(MS).data() == b"there"
    with client_of(second) as other:
        reader = other.create_reader("t", MessageId.earliest)
        assert reader.read_next(MS).data() == b"there"
        assert not reader.has_message_available()


def test_what_has_no_receipt_is_sent_to_the_other_cluster(
    clusters: tuple[Cluster, Cluster], provider: Provider, client: PulsarClient
) -> None:
    producer = client.create_producer(
        "t", batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    sent: list[Any] = []
    for number in range(3):
        producer.send_async(b"%d" % number, lambda result, _: sent.append(result))
    provider.switch(clusters[1].info)
    producer.flush()
    assert sent == [pulsar.Result.Ok] * 3
    with client_of(clusters[1]) as other:
        reader = other.create_reader("t", MessageId.earliest)
        assert [reader.read_next(MS).data() for _ in range(3)] == [b"0", b"1", b"2"]


def test_new_ones_are_made_in_the_other_cluster(
    clusters: tuple[Cluster, Cluster], provider: Provider, client: PulsarClient
) -> None:
    clusters[1].broker.create_topic("parts", partitions=3)
    client.create_producer("t")
    provider.switch(clusters[1].info)
    assert len(client.get_topic_partitions("parts")) == 3


@pytest.mark.parametrize("delivered_again", [False, True])
def test_messages_of_one_cluster_are_not_acknowledged_in_the_other(
    clusters: tuple[Cluster, Cluster],
    provider: Provider,
    client: PulsarClient,
    delivered_again: bool,
) -> None:
    """Both clusters give their messages the same ids."""
    options: dict[str, Any] = {
        "consumer_type": ConsumerType.Shared,
        "initial_position": InitialPosition.Earliest,
    }
    ids = set()
    for cluster in clusters:
        with client_of(cluster) as other:
            producer = other.create_producer("t")
            ids |= {producer.send(b"%d" % number) for number in range(3)}
    assert len(ids) == 3
    consumer = client.subscribe("t", "s", **options)
    messages = [consumer.receive(MS) for _ in range(3)]
    # One acknowledgement waits to be sent, the others come too late.
    consumer.acknowledge(messages[0])
    provider.switch(clusters[1].info)
    if delivered_again:
        assert {consumer.receive(MS).data() for _ in range(3)} == {b"0", b"1", b"2"}
    consumer.acknowledge(messages[1])
    consumer.acknowledge(messages[2].message_id())
    consumer.negative_acknowledge(messages[2])
    consumer.close()
    again = client.subscribe("t", "s", **options)
    found = [again.receive(MS) for _ in range(3)]
    assert {message.data() for message in found} == {b"0", b"1", b"2"}
    for message in found:
        again.acknowledge(message)
    again.close()
    last = client.subscribe("t", "s", **options)
    with pytest.raises(pulsar.Timeout):
        last.receive(200)


def test_cumulative_acknowledgements_stay_in_their_cluster(
    clusters: tuple[Cluster, Cluster], provider: Provider, client: PulsarClient
) -> None:
    for cluster in clusters:
        with client_of(cluster) as other:
            producer = other.create_producer("t")
            for number in range(3):
                producer.send(b"%d" % number)
    earliest = InitialPosition.Earliest
    consumer = client.subscribe("t", "s", initial_position=earliest)
    messages = [consumer.receive(MS) for _ in range(3)]
    provider.switch(clusters[1].info)
    assert consumer.receive(MS).data() == b"0"
    consumer.acknowledge_cumulative(messages[2])
    consumer.close()
    again = client.subscribe("t", "s", initial_position=earliest)
    assert again.receive(MS).data() == b"0"


def test_what_has_a_position_begins_again_in_the_other_cluster(
    clusters: tuple[Cluster, Cluster], provider: Provider, client: PulsarClient
) -> None:
    first, second = clusters
    with client_of(first) as other:
        producer = other.create_producer("t", properties={"a": "b"})
        for number in range(9):
            producer.send(b"first %d" % number, partition_key=f"{number}")
    with client_of(second) as other:
        producer = other.create_producer("t")
        for number in range(3):
            producer.send(b"second %d" % number, partition_key=f"{number}")
    reader = client.create_reader("t", MessageId.earliest)
    passing = client.subscribe("t", "p", durable=False, start_message_id=MessageId.earliest)
    view = client.create_table_view("t")
    assert [reader.read_next(MS).data() for _ in range(9)][-1] == b"first 8"
    assert [passing.receive(MS).data() for _ in range(9)][-1] == b"first 8"
    provider.switch(second.info)
    assert [reader.read_next(MS).data() for _ in range(3)] == [b"second %d" % n for n in range(3)]
    assert not reader.has_message_available()
    assert [passing.receive(MS).data() for _ in range(3)] == [b"second %d" % n for n in range(3)]
    wait_until(lambda: view.get("2") == b"second 2", "the view does not follow")
    assert view.get("8") == b"first 8"


def test_a_reader_waits_for_its_topic_in_the_other_cluster(
    clusters: tuple[Cluster, Cluster], provider: Provider, client: PulsarClient
) -> None:
    reader = client.create_reader("t", MessageId.earliest)
    provider.switch(clusters[1].info)
    with pytest.raises(pulsar.Timeout):
        reader.read_next(500)
    with client_of(clusters[1]) as other:
        other.create_producer("t").send(b"there")
    assert reader.read_next(MS).data() == b"there"


def test_who_waits_before_the_next_attempt_makes_it_at_the_switch(
    clusters: tuple[Cluster, Cluster], provider: Provider, client: PulsarClient
) -> None:
    first, second = clusters
    second.broker.create_topic("t")
    consumer = client.subscribe("t", "s")
    (attaching,) = consumer._consumers
    attaching._backoff = Backoff(600, 600)
    first.broker.stop()
    wait_until(lambda: attaching._pauses, "it makes no pause")
    provider.switch(second.info)
    wait_until(consumer.is_connected, "it waits")


def test_asyncio_clients_switch_as_well(
    clusters: tuple[Cluster, Cluster], provider: Provider
) -> None:
    async def body() -> list[bytes]:
        client = async_pulsar.Client(provider)
        producer = await client.create_producer("t")
        consumer = await client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
        reader = await client.create_reader("t", MessageId.latest)
        waits = [asyncio.ensure_future(call) for call in (consumer.receive(), reader.read_next())]
        await asyncio.sleep(0)
        provider.switch(clusters[1].info)
        await producer.send(b"there")
        found = [message.data() for message in await asyncio.gather(*waits)]
        await client.close()
        return found

    assert asyncio.run(asyncio.wait_for(body(), 60)) == [b"there"] * 2
    assert provider.closed == 1


def test_a_client_switches_back_and_forth(
    clusters: tuple[Cluster, Cluster], provider: Provider, client: PulsarClient
) -> None:
    producer = client.create_producer("t")
    for number in range(6):
        producer.send(b"%d" % number)
        provider.switch(clusters[(number + 1) % 2].info)
    for at, cluster in enumerate(clusters):
        with client_of(cluster) as other:
            reader = other.create_reader("t", MessageId.earliest)
            found = [reader.read_next(MS).data() for _ in range(3)]
        assert found == [b"%d" % number for number in range(at, 6, 2)]


def test_the_same_service_info_changes_nothing(
    provider: Provider, client: PulsarClient, clusters: tuple[Cluster, Cluster]
) -> None:
    client.create_producer("t")
    before = client._context.pool.connections
    provider.switch(clusters[0].info)
    assert client._context.pool.connections == before


def test_a_provider_is_closed_once_and_heard_no_more(
    clusters: tuple[Cluster, Cluster], provider: Provider
) -> None:
    client = PulsarClient(provider)
    client.create_producer("t")
    client.close()
    client.close()
    assert provider.closed == 1
    provider.switch(clusters[1].info)
    with pytest.raises(pulsar.AlreadyClosed):
        client.create_producer("t")


def test_what_a_provider_gives_is_checked(
    clusters: tuple[Cluster, Cluster], provider: Provider, client: PulsarClient
) -> None:
    with pytest.raises(OptionError, match="service info"):
        provider.switch("pulsar://other")
    tls = pulsar.AuthenticationTLS("a.pem", "b.pem")
    with pytest.raises(OptionError, match="TLS"):
        provider.switch(ServiceInfo("pulsar://other", tls))
    # It goes on where it was.
    client.create_producer("t").send(b"x")
    with pytest.raises(OptionError, match="initial_service_info"):
        PulsarClient(Provider("pulsar://other"))


def test_what_belongs_to_a_service_info_is_refused_beside_a_provider(provider: Provider) -> None:
    failover = AutoClusterFailover(provider.info, [ServiceInfo("pulsar://other")])
    for given in (provider, failover):
        with pytest.raises(OptionError, match="ServiceInfo"):
            PulsarClient(given, authentication=AuthenticationToken("x"))
        with pytest.raises(OptionError, match="ServiceInfo"):
            PulsarClient(given, tls_trust_certs_file_path="ca.pem")
    with pytest.raises(OptionError, match="service_url"):
        PulsarClient(3)  # type: ignore[arg-type]


def test_a_cluster_that_cannot_be_connected_to_is_refused_before_it_is_needed() -> None:
    wrong = ServiceInfo("pulsar://plain", pulsar.AuthenticationTLS("a.pem", "b.pem"))
    with pytest.raises(OptionError, match="TLS"):
        PulsarClient(AutoClusterFailover(ServiceInfo("pulsar://host"), [wrong]))


def test_a_service_info_shows_no_secret() -> None:
    info = ServiceInfo("pulsar+ssl://host:6651", AuthenticationToken("secret"), "ca.pem")
    failover = AutoClusterFailover(info, [info])
    for shown in (repr(info), str(info), repr(failover)):
        assert "secret" not in shown
        assert "pulsar+ssl://host:6651" in shown
    assert (info.use_tls, info.tls_trust_certs_file_path) == (True, "ca.pem")
    assert PulsarClient("pulsar://host").get_service_info().service_url == "pulsar://host"


@pytest.mark.parametrize(
    "make",
    [
        lambda info: ServiceInfo(None),  # type: ignore[arg-type]
        lambda info: ServiceInfo("ftp://host"),
        lambda info: ServiceInfo("pulsar://host", authentication="token"),  # type: ignore[arg-type]
        lambda info: ServiceInfo("pulsar://host", tls_trust_certs_file_path=5),  # type: ignore[arg-type]
        lambda info: AutoClusterFailover("pulsar://host", [info]),  # type: ignore[arg-type]
        lambda info: AutoClusterFailover(info, info),
        lambda info: AutoClusterFailover(info, []),
        lambda info: AutoClusterFailover(info, ["pulsar://host"]),  # type: ignore[list-item]
        lambda info: AutoClusterFailover(info, [info], check_interval_ms=0),
        lambda info: AutoClusterFailover(info, [info], check_interval_ms=10**12),
        lambda info: AutoClusterFailover(info, [info], failover_threshold=0),
        lambda info: AutoClusterFailover(info, [info], switch_back_threshold=-1),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(make: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError):
        make(ServiceInfo("pulsar://host"))


def test_an_address_of_one_cluster_is_not_connected_to_for_another(
    clusters: tuple[Cluster, Cluster], provider: Provider, client: PulsarClient
) -> None:
    """It would get the other one's credentials."""
    pool = client._context.pool
    address = broker_of(client._context.lookup, TOPIC)
    provider.switch(clusters[1].info)
    with pytest.raises(ConnectionLost, match="switched"):
        pool.get_async(address)
    assert broker_of(client._context.lookup, TOPIC).cluster == 1


def test_a_lookup_by_http_goes_on_in_the_other_cluster(clusters: tuple[Cluster, Cluster]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        provider = Provider(ServiceInfo(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        with PulsarClient(provider) as client, ThreadPoolExecutor(1) as pool:
            making = pool.submit(client.create_producer, "t")
            # It asks, and gets no answer.
            with silent.accept()[0]:
                provider.switch(clusters[1].info)
                making.result(60).send(b"x")


def test_exclusive_producers_are_let_in_by_the_other_cluster(
    clusters: tuple[Cluster, Cluster], provider: Provider, client: PulsarClient
) -> None:
    exclusive = pulsar.ProducerAccessMode.Exclusive
    for _ in range(3):
        client.create_producer("t", access_mode=exclusive).close()
    producer = client.create_producer("t", access_mode=exclusive)
    provider.switch(clusters[1].info)
    producer.send(b"x")
    provider.switch(clusters[0].info)
    producer.send(b"y")


def test_a_message_whose_chunks_would_be_in_two_clusters_fails(
    clusters: tuple[Cluster, Cluster],
) -> None:
    script = TopicScript(max_message_size=10_000)
    arrived = threading.Event()

    def on_send(session: Session, sent: Sent) -> bool:
        # The first chunk is stored; the rest has no receipt.
        if sent.metadata.chunk_id:
            arrived.set()
        return bool(sent.metadata.chunk_id)

    script.on_send = on_send
    with ScriptedBroker(script) as first:
        provider = Provider(ServiceInfo(f"pulsar://{first.address}"))
        with PulsarClient(provider) as client, ThreadPoolExecutor(1) as pool:
            producer = client.create_producer("t", chunking_enabled=True)
            sending = pool.submit(producer.send, os.urandom(30_000))
            assert arrived.wait(60)
            (sends,) = producer._writer.producers
            wait_until(lambda: sends.last_message_id is not None, "no chunk has a receipt")
            provider.switch(clusters[1].info)
            with pytest.raises(pulsar.PulsarException, match="chunks"):
                sending.result(60)
            producer.send(b"behind")
    with client_of(clusters[1]) as other:
        reader = other.create_reader("t", MessageId.earliest)
        assert reader.read_next(MS).data() == b"behind"


# --- failover ---------------------------------------------------------------------------------


def failing_over(*urls: str, **rules: Any) -> PulsarClient:
    primary, *secondary = map(ServiceInfo, urls)
    given = AutoClusterFailover(primary, secondary, check_interval_ms=20, **rules)
    return PulsarClient(given, connection_timeout_ms=2000)


def uses(client: PulsarClient, url: str) -> Callable[[], bool]:
    return lambda: client.get_service_info().service_url == url


def test_a_client_fails_over_and_comes_back() -> None:
    first = EmbeddedBroker().start()
    port = first.port
    with EmbeddedBroker() as second, failing_over(first.service_url, second.service_url) as client:
        producer = client.create_producer("t")
        consumer = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
        producer.send(b"first")
        consumer.acknowledge(consumer.receive(MS))
        first.stop()
        wait_until(uses(client, second.service_url), "it does not fail over")
        producer.send(b"second")
        assert consumer.receive(MS).data() == b"second"
        with EmbeddedBroker(port=port) as back:
            wait_until(uses(client, back.service_url), "it does not come back")
            producer.send(b"third")
            assert consumer.receive(MS).data() == b"third"


def test_the_first_cluster_that_can_be_reached_is_used() -> None:
    with EmbeddedBroker() as one, EmbeddedBroker() as another:
        gone = [one.service_url, another.service_url]
    with (
        EmbeddedBroker() as there,
        failing_over(*gone, there.service_url, failover_threshold=3) as client,
    ):
        assert uses(client, gone[0])()
        producer = client.create_producer("t")
        assert uses(client, there.service_url)()
        producer.send(b"x")


def test_nothing_is_checked_before_the_client_is_used_or_after_it_is_closed() -> None:
    def checks() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "pulsar-spark-failover"]

    with EmbeddedBroker() as first, EmbeddedBroker() as second:
        client = failing_over(first.service_url, second.service_url)
        assert not checks()
        client.get_topic_partitions("t")
        assert len(checks()) == 1
        client.close()
        wait_until(lambda: not checks(), "a thread is left")


def test_a_dropped_client_checks_no_more() -> None:
    def checks() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "pulsar-spark-failover"]

    with EmbeddedBroker() as first, EmbeddedBroker() as second:
        client = failing_over(first.service_url, second.service_url)
        client.create_producer("t")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del client
            gc.collect()
            wait_until(lambda: not checks(), "a thread is left")


def test_many_switches_leave_nothing(
    clusters: tuple[Cluster, Cluster], provider: Provider, client: PulsarClient
) -> None:
    producer = client.create_producer("t")
    producer.send(b"x")
    before = threading.active_count()
    for number in range(100):
        provider.switch(clusters[(number + 1) % 2].info)
    producer.send(b"y")
    wait_until(lambda: len(client._context.pool.connections) <= 2, "connections are left")
    wait_until(lambda: threading.active_count() <= before + 2, "threads are left")
