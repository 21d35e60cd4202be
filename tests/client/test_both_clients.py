"""The official client and ours side by side, on one embedded broker: the same calls end alike."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_spark.protocol.hashing import java_string_hash
from pulsar_spark.testing import EmbeddedBroker
from tests.client.test_python_client_page import PAGE
from tests.support.java_server import free_ports
from tests.support.waiting import wait_until

pytest.importorskip("pulsar", reason="pulsar-client is not installed")


@pytest.fixture(params=["pulsar", "pulsar_spark.client"])
def module(request: pytest.FixtureRequest) -> Any:
    """The client package that the test's code uses: the official one or ours."""
    return importlib.import_module(request.param)


@pytest.fixture
def client(module: Any, broker: EmbeddedBroker) -> Iterator[Any]:
    made = module.Client(broker.service_url, operation_timeout_seconds=60)
    yield made
    made.shutdown()


def sent(producer: Any, *sequence_ids: int | None) -> list[int]:
    """Send messages with these ids, and return the last sequence id after each."""
    found = []
    for sequence_id in sequence_ids:
        producer.send(b"x", sequence_id=sequence_id)
        found.append(producer.last_sequence_id())
    return found


def test_the_last_sequence_id_is_that_of_the_last_stored_message(client: Any) -> None:
    producer = client.create_producer("t")
    assert producer.last_sequence_id() == -1
    assert sent(producer, None, None, 99, 5, 7) == [0, 1, 99, 5, 7]
    producer.close()
    assert producer.last_sequence_id() == 7


def test_before_a_message_the_last_sequence_id_is_the_initial_one(client: Any) -> None:
    producer = client.create_producer("t", initial_sequence_id=41)
    assert producer.last_sequence_id() == 41
    assert sent(producer, None, None) == [42, 43]


def test_a_batch_leaves_its_last_sequence_id(client: Any) -> None:
    producer = client.create_producer("t", initial_sequence_id=10, batching_enabled=True)
    for _ in range(5):
        producer.send_async(b"x", lambda *_: None)
    producer.flush()
    assert producer.last_sequence_id() == 15


def test_with_partitions_the_last_sequence_id_is_the_highest_of_them(
    broker: EmbeddedBroker, client: Any
) -> None:
    broker.create_topic("parts", partitions=3)
    producer = client.create_producer("parts", initial_sequence_id=10)
    assert producer.last_sequence_id() == 10
    assert sent(producer, None, None, None, None, 50, 7) == [11, 11, 11, 12, 50, 50]


def test_a_name_in_use_is_refused_at_once(module: Any, broker: EmbeddedBroker, client: Any) -> None:
    client.create_producer("t", "taken")
    asked = broker.faults.seen("PRODUCER")
    with pytest.raises(module.ProducerBusy):
        client.create_producer("t", "taken")
    assert broker.faults.seen("PRODUCER") == asked + 1


@pytest.mark.parametrize("content", ["text", 5, 1.5, bytearray(b"x"), [b"x"]])
def test_a_value_that_is_not_bytes_is_a_type_error(client: Any, content: Any) -> None:
    producer = client.create_producer("t")
    with pytest.raises(TypeError):
        producer.send(content)
    with pytest.raises(TypeError):
        producer.send_async(content, None)


def test_a_value_must_be_of_its_schemas_type(module: Any, client: Any) -> None:
    schemas = importlib.import_module(f"{module.__name__}.schema")
    records = importlib.import_module("pulsar.schema")

    class Sale(records.Record):  # type: ignore[misc, name-defined]
        item = records.String()

    for schema in (schemas.StringSchema(), schemas.JsonSchema(Sale), schemas.AvroSchema(Sale)):
        producer = client.create_producer(f"typed-{type(schema).__name__}", schema=schema)
        with pytest.raises(TypeError):
            producer.send(b"bytes")
    with pytest.raises(TypeError):
        client.create_producer("t").send(b"x", properties={"number": 5})


def parameters(theirs: Any, own: Any) -> Iterator[str]:
    """Yield the names of the parameters that a method has in both clients."""
    found = inspect.signature(own).parameters
    yield from (name for name in inspect.signature(theirs).parameters if name in found)


def calls(client: Any, module: Any, url: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The methods of one client that take arguments, each with those that it needs."""
    earliest = module.MessageId.earliest
    reader = client.create_reader("t", earliest)
    consumer = client.subscribe("t", module.__name__)
    producer = client.create_producer("t")
    return {
        "Client": (module.Client, {"service_url": url}),
        "create_producer": (client.create_producer, {"topic": "t"}),
        "create_reader": (client.create_reader, {"topic": "t", "start_message_id": earliest}),
        "create_table_view": (client.create_table_view, {"topic": "t"}),
        "subscribe": (client.subscribe, {"topic": "t", "subscription_name": "s"}),
        "get_topic_partitions": (client.get_topic_partitions, {}),
        "send": (producer.send, {"content": b"x"}),
        "send_async": (producer.send_async, {"content": b"x", "callback": None}),
        "receive": (consumer.receive, {}),
        "Consumer.seek": (consumer.seek, {}),
        "read_next": (reader.read_next, {}),
        "Reader.seek": (reader.seek, {}),
        "deserialize": (module.MessageId.deserialize, {}),
        "AuthenticationToken": (module.AuthenticationToken, {}),
        "AuthenticationTLS": (module.AuthenticationTLS, {"private_key_path": "k"}),
        "AuthenticationBasic": (module.AuthenticationBasic, {"username": "u", "password": "p"}),
        "AuthenticationOauth2": (module.AuthenticationOauth2, {}),
        "CryptoKeyReader": (module.CryptoKeyReader, {"private_key_path": "k"}),
        "FileLogger": (module.FileLogger, {"log_level": module.LoggerLevel.Info}),
    }


def raised_by(call: Any, arguments: dict[str, Any]) -> type[BaseException] | None:
    try:
        call(**arguments)
    except Exception as error:
        return type(error)
    return None


def test_an_argument_of_a_wrong_type_is_a_value_error_where_it_is_one_there() -> None:
    """Also what the official client lets pass, or raises otherwise, may be a ValueError here."""
    official, own = (importlib.import_module(name) for name in ("pulsar", "pulsar_spark.client"))
    checked, let_through = 0, []
    with EmbeddedBroker() as broker:
        url = broker.service_url
        theirs, ours = official.Client(url), own.Client(url)
        all_theirs, all_ours = calls(theirs, official, url), calls(ours, own, url)
        for method, (call, needed) in all_theirs.items():
            for name in parameters(call, all_ours[method][0]):
                wrong = {name: object()}
                if raised_by(call, {**needed, **wrong}) is not ValueError:
                    continue
                checked += 1
                found = raised_by(all_ours[method][0], {**all_ours[method][1], **wrong})
                if found is None or not issubclass(found, ValueError):
                    let_through.append((method, name, found))
        theirs.shutdown()
        ours.shutdown()
    assert let_through == []
    assert checked > 90


@pytest.mark.parametrize("properties", [{"a": None}, {None: "a"}], ids=str)
def test_a_property_that_is_none_is_refused_at_once(
    module: Any, client: Any, properties: Any
) -> None:
    producer = client.create_producer("t")
    with pytest.raises(TypeError):
        producer.send(b"x", properties=properties)
    with pytest.raises(TypeError):
        producer.send_async(b"x", None, properties=properties)
    with pytest.raises((TypeError, ValueError)):
        client.create_producer("t", properties=properties)
    with pytest.raises((TypeError, ValueError)):
        client.subscribe("t", "s", properties=properties)


@pytest.mark.parametrize("sequence_id", [-1, 2**63])
def test_a_sequence_id_out_of_range_is_refused(client: Any, sequence_id: int) -> None:
    producer = client.create_producer("t")
    with pytest.raises((ValueError, TypeError)):
        producer.send(b"x", sequence_id=sequence_id)
    producer.send(b"x")
    assert producer.last_sequence_id() == 0


def test_a_broker_that_cannot_be_reached_is_a_timeout(module: Any) -> None:
    (port,) = free_ports(1)
    client = module.Client(f"pulsar://127.0.0.1:{port}", operation_timeout_seconds=1)
    attempts: tuple[Callable[[], Any], ...] = (
        lambda: client.create_producer("t"),
        lambda: client.subscribe("t", "s"),
        lambda: client.create_reader("t", module.MessageId.earliest),
        lambda: client.get_topic_partitions("t"),
    )
    for call in attempts:
        with pytest.raises(module.Timeout):
            call()
    client.shutdown()


def test_a_send_timeout_below_zero_means_none(client: Any) -> None:
    producer = client.create_producer("t", send_timeout_millis=-1)
    producer.send(b"x")
    assert producer.last_sequence_id() == 0


def test_a_reader_that_begins_at_the_last_message_says_that_it_is_there(
    module: Any, client: Any
) -> None:
    """Ours returns it without being asked, too; see docs/python-client.md."""
    client.create_producer("t").send(b"last")
    latest = module.MessageId.latest
    reader = client.create_reader("t", latest, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert reader.read_next(60_000).data() == b"last"


def test_a_second_close_does_no_harm(module: Any, broker: EmbeddedBroker) -> None:
    """The official client raises an error."""
    is_ours = module.__name__ == "pulsar_spark.client"
    client = module.Client(broker.service_url)
    producer = client.create_producer("t")
    for one in (producer, client):
        one.close()
        with contextlib.nullcontext() if is_ours else pytest.raises(module.AlreadyClosed):
            one.close()


def test_keys_go_where_java_has_them_and_the_official_client_with_the_router_of_the_page(
    broker: EmbeddedBroker,
) -> None:
    official, own = (importlib.import_module(name) for name in ("pulsar", "pulsar_spark.client"))
    router = router_of_the_page()
    broker.create_topic("parts", partitions=4)
    keys = [*(f"key {number}" for number in range(20)), "schlüssel 😀"]

    def places(client: Any, **options: Any) -> list[int]:
        producer = client.create_producer("parts", **options)
        return [producer.send(b"x", partition_key=key).partition() for key in keys]

    theirs, ours = official.Client(broker.service_url), own.Client(broker.service_url)
    as_java = [java_string_hash(key) % 4 for key in keys]
    assert places(ours) == as_java
    assert places(theirs) != as_java
    assert places(theirs, message_router=router) == as_java
    theirs.shutdown()
    ours.shutdown()


def router_of_the_page() -> Any:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (block,) = (block for block in blocks if "def java_router" in block)
    names: dict[str, Any] = {}
    exec(compile(block, PAGE.name, "exec"), names)
    return names["java_router"]


@pytest.mark.parametrize("end", ["close", "shutdown"])
def test_behind_the_end_of_the_client_everything_is_told(
    module: Any, broker: EmbeddedBroker, end: str
) -> None:
    client = module.Client(broker.service_url, operation_timeout_seconds=60)
    producer = client.create_producer("t")
    results: list[Any] = []
    producer.send_async(b"x", lambda result, _: results.append(result))
    producer.flush()
    # The official client calls back on another thread.
    wait_until(lambda: len(results) == 1, "the callback")
    getattr(client, end)()
    producer.send_async(b"y", lambda result, _: results.append(result))
    with pytest.raises(module.AlreadyClosed):
        producer.flush()
    wait_until(lambda: len(results) == 2, "both callbacks")
    assert results == [module.Result.Ok, module.Result.AlreadyClosed]


@pytest.mark.parametrize(
    "partitions, across, most, full",
    [(0, 1, 5, 7), (2, 4, 5, 8), (2, 0, 5, 0), (2, 4, 0, 0)],
)
def test_only_partitions_share_how_many_messages_may_be_pending(
    module: Any,
    client: Any,
    broker: EmbeddedBroker,
    partitions: int,
    across: int,
    most: int,
    full: int,
) -> None:
    broker.create_topic("t", partitions=partitions)
    producer = client.create_producer(
        "t", max_pending_messages=most, max_pending_messages_across_partitions=across
    )
    broker.faults.drop("SEND", times=None)
    results: list[Any] = []
    for _ in range(12):
        producer.send_async(b"x", lambda result, _: results.append(result))
    wait_until(lambda: len(results) == full, "the callbacks of what finds no room")
    # The others wait for their receipts.
    assert results == [module.Result.ProducerQueueIsFull] * full


def test_with_no_size_for_batches_each_message_goes_alone(module: Any, client: Any) -> None:
    producer = client.create_producer(
        "t", batching_enabled=True, batching_max_allowed_size_in_bytes=0
    )
    ids: list[Any] = []
    for _ in range(3):
        producer.send_async(b"x", lambda _, message_id: ids.append(message_id))
    producer.flush()
    wait_until(lambda: len(ids) == 3, "all callbacks")
    assert [each.entry_id() for each in ids] == [0, 1, 2]


@pytest.mark.parametrize("is_pattern", [False, True], ids=["list", "pattern"])
def test_dead_letters_go_beside_the_topic_of_each(
    module: Any, client: Any, broker: EmbeddedBroker, is_pattern: bool
) -> None:
    names = [broker.create_topic("of-a"), broker.create_topic("of-b")]
    pattern = re.compile("persistent://public/default/of-[ab]")
    consumer = client.subscribe(
        pattern if is_pattern else names,
        "s",
        module.ConsumerType.Shared,
        initial_position=module.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=module.ConsumerDeadLetterPolicy(1),
    )
    for name in names:
        client.create_producer(name).send(b"x")
    for _ in range(4):
        consumer.negative_acknowledge(consumer.receive(60_000))
    for name in names:
        with contextlib.closing(
            client.create_reader(f"{name}-s-DLQ", module.MessageId.earliest)
        ) as reader:
            assert reader.read_next(60_000).properties()["REAL_TOPIC"] == name
