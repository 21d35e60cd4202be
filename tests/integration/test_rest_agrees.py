"""The embedded broker's admin REST answers as that of a real broker."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pulsar_spark.client import (
    CompressionType,
    ConsumerType,
    InitialPosition,
    PulsarClient,
    StringSchema,
)
from pulsar_spark.errors import IncompatibleSchema
from pulsar_spark.testing import EmbeddedBroker, TopicPolicies
from tests.integration.brokers import Broker, Embedded, Real
from tests.support.pulsar_distribution import as_embedded
from tests.support.real_broker import rest_path
from tests.support.waiting import wait_until

pytestmark = as_embedded

RECEIVE_MS = 60_000
# Lines with a group, a request, its body, and what Pulsar 4.0.8 answers: a status, and the answer,
# of an object the fields that matter, null where it does not matter. {tenant} is a new tenant for
# each group: all groups but the first have it from the beginning, those after the second also its
# namespace n.
_DATA = Path(__file__).parents[1] / "data" / "rest_requests.jsonl"
ROWS = [json.loads(line) for line in _DATA.read_text("utf-8").splitlines()]
GROUPS = list(dict.fromkeys(row[0] for row in ROWS))
CLUSTER = {"adminRoles": [], "allowedClusters": ["standalone"]}


@pytest.fixture
def strict(broker: Broker) -> Iterator[Broker]:
    """A real broker, or an embedded one that has no more namespaces than a new real one."""
    if isinstance(broker, Real):
        yield broker
        return
    with EmbeddedBroker(rest=True, namespaces=("public/default",)) as own:
        yield Embedded(own)
        assert own.internal_errors == ()


def agrees(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(name in found and agrees(value, found[name]) for name, value in wanted.items())
    return bool(wanted == found)


def named(value: Any, tenant: str) -> Any:
    """Fill in the tenant in a text, and in all texts in a value."""
    if isinstance(value, str):
        return value.replace("{tenant}", tenant)
    if isinstance(value, list):
        return [named(one, tenant) for one in value]
    if isinstance(value, dict):
        return {named(key, tenant): named(one, tenant) for key, one in value.items()}
    return value


@pytest.mark.parametrize("group", GROUPS)
def test_each_request_is_answered_as_pulsar_does(strict: Broker, group: str) -> None:
    tenant = f"t{uuid.uuid4().hex[:12]}"
    if group != "tenants":
        assert strict.ask("PUT", f"tenants/{tenant}", CLUSTER)[0] == 204
    if group not in ("tenants", "namespaces"):
        assert strict.ask("PUT", f"namespaces/{tenant}/n")[0] == 204
    for _, request, body, status, answer in (row for row in ROWS if row[0] == group):
        method, path = named(request, tenant).split(" ")
        found = strict.ask(method, path, body)
        assert found[0] == status, (method, path, body, found)
        if answer is not None:
            assert agrees(named(answer, tenant), found[1]), (method, path, body, found)


def topic_stats(broker: Broker, topic: str) -> Any:
    status, found = broker.ask("GET", f"{rest_path(topic)}/stats")
    assert status == 200
    return found


def test_clients_are_shown_and_keep_a_topic_from_being_deleted(
    broker: Broker, client: PulsarClient, topic: str
) -> None:
    path = rest_path(topic)
    consumer = client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        consumer_name="c",
        properties={"team": "a"},
        receiver_queue_size=10,
        initial_position=InitialPosition.Earliest,
    )
    producer = client.create_producer(topic, "p", properties={"team": "b"})
    for number in range(5):
        producer.send(b"%d" % number)
    for _ in range(2):
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
    wait_until(
        lambda: topic_stats(broker, topic)["subscriptions"]["s"]["msgBacklog"] == 3,
        "they are not acknowledged",
    )
    found = topic_stats(broker, topic)
    assert found["msgInCounter"] == 5
    assert found["storageSize"] == found["backlogSize"] // 3 * 5 > 0
    (publisher,) = found["publishers"]
    assert agrees(
        {"producerName": "p", "accessMode": "Shared", "metadata": {"team": "b"}}, publisher
    )
    assert publisher["address"].startswith("/127.0.0.1:")
    assert publisher["clientVersion"].startswith("pulsar-spark")
    subscription = found["subscriptions"]["s"]
    assert agrees({"type": "Shared", "isDurable": True, "unackedMessages": 3}, subscription)
    (shown,) = subscription["consumers"]
    assert agrees({"consumerName": "c", "metadata": {"team": "a"}, "unackedMessages": 3}, shown)
    assert shown["clientVersion"] == publisher["clientVersion"]
    internal = broker.ask("GET", f"{path}/internalStats")[1]
    assert internal["numberOfEntries"] == 5
    ledger = internal["lastConfirmedEntry"].partition(":")[0]
    assert internal["lastConfirmedEntry"] == f"{ledger}:4"
    assert internal["cursors"]["s"]["markDeletePosition"] == f"{ledger}:1"
    for request, reason in (
        (path, "Topic has 2 connected producers/consumers"),
        (f"{path}/subscription/s", "Subscription has active connected consumers"),
    ):
        assert broker.ask("DELETE", request) == (412, {"reason": reason})
    # A consumer that is disconnected comes back, and makes its subscription again.
    assert broker.ask("DELETE", f"{path}/subscription/s?force=true")[0] == 204
    client.close()
    wait_until(
        lambda: broker.ask("DELETE", f"{path}/subscription/s")[0] in (204, 404),
        "the consumer does not leave",
    )
    assert broker.ask("GET", f"{path}/subscriptions") == (200, [])


def test_a_subscription_is_moved_by_requests(
    broker: Broker, client: PulsarClient, topic: str
) -> None:
    path = f"{rest_path(topic)}/subscription/s"
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    with client.create_producer(topic, batching_enabled=False) as producer:
        ids = [producer.send(b"%d" % number) for number in range(6)]

    def first() -> bytes | None:
        with client.subscribe(topic, "s") as consumer:
            return consumer.receive(RECEIVE_MS).data()

    def backlog() -> int:
        return int(topic_stats(broker, topic)["subscriptions"]["s"]["msgBacklog"])

    assert broker.ask("POST", f"{path}/skip/2") == (204, None)
    assert (backlog(), first()) == (4, b"2")
    fifth = {"ledgerId": ids[4].ledger_id(), "entryId": ids[4].entry_id(), "partitionIndex": -1}
    assert broker.ask("POST", f"{path}/resetcursor", fifth) == (204, None)
    assert (backlog(), first()) == (2, b"4")
    assert broker.ask("POST", f"{path}/resetcursor/0") == (204, None)
    assert (backlog(), first()) == (6, b"0")
    assert broker.ask("POST", f"{path}/skip_all") == (204, None)
    assert backlog() == 0
    assert broker.ask("POST", f"{path}/expireMessages/1")[0] == 409


def test_a_terminated_topic_tells_its_last_message(
    broker: Broker, client: PulsarClient, topic: str
) -> None:
    with client.create_producer(topic) as producer:
        sent = producer.send(b"last")
    last = {"ledgerId": sent.ledger_id(), "entryId": sent.entry_id(), "partitionIndex": -1}
    for method, request in (("GET", "lastMessageId"), ("POST", "terminate"), ("POST", "terminate")):
        status, found = broker.ask(method, f"{rest_path(topic)}/{request}")
        assert status == 200
        assert agrees(last, found)


def test_a_client_finds_everything_by_http(broker: Broker, topic: str) -> None:
    with PulsarClient(broker.admin_url) as client:
        partitioned = broker.create_topic(partitions=2)
        assert len(client.get_topic_partitions(partitioned)) == 2
        with client.create_producer(topic) as producer:
            producer.send(b"found")
        consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
        assert consumer.receive(RECEIVE_MS).data() == b"found"


def test_policies_of_schemas_are_obeyed(broker: Broker, client: PulsarClient) -> None:
    fixed = broker.create_limited_topic(TopicPolicies(auto_update_schema=False))
    with pytest.raises(IncompatibleSchema, match="schema auto updating is disabled"):
        client.create_producer(fixed, schema=StringSchema())
    tenant, namespace, local = rest_path(fixed).split("/")[1:]
    text = {"type": "STRING", "schema": "", "properties": {}}
    added = broker.ask("POST", f"schemas/{tenant}/{namespace}/{local}/schema", text)
    assert added == (200, {"version": {"version": 0}})
    client.create_producer(fixed, schema=StringSchema())
    enforced = broker.create_limited_topic(TopicPolicies(schema_validation_enforced=True))
    client.create_producer(enforced)
    client.create_producer(enforced, schema=StringSchema())
    with pytest.raises(IncompatibleSchema, match="SchemaValidationEnforced"):
        client.create_producer(enforced)


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "int"}
LONG = {"name": "a", "type": "long"}


@pytest.mark.parametrize(
    "strategy,taken",
    [
        ("FULL", ["new with a default"]),
        ("BACKWARD", ["new with a default", "wider", "fewer"]),
        ("FORWARD", ["new with a default", "new"]),
        ("ALWAYS_COMPATIBLE", ["new with a default", "new", "wider", "fewer", "another type"]),
        ("ALWAYS_INCOMPATIBLE", []),
    ],
)
def test_strategies_take_the_same_schemas(broker: Broker, strategy: str, taken: list[str]) -> None:
    namespace = broker.create_namespace()
    asked = broker.ask("PUT", f"namespaces/{namespace}/schemaCompatibilityStrategy", strategy)
    assert asked == (204, None)
    changes: dict[str, list[dict[str, Any]] | None] = {
        "new with a default": [A, {**B, "default": 0}],
        "new": [A, B],
        "wider": [LONG],
        "fewer": [],
        "another type": None,
    }
    found: list[str] = []
    for number, (what, fields) in enumerate(changes.items()):
        path = f"schemas/{namespace}/t-{number}/schema"
        assert broker.ask("POST", path, avro([A]))[0] == 200
        status, _ = broker.ask("POST", path, avro(fields))
        assert status in (200, 409)
        if status == 200:
            found.append(what)
    assert found == taken


def avro(fields: list[dict[str, Any]] | None) -> dict[str, Any]:
    """A schema of a record as a request has it, or of numbers for None."""
    if fields is None:
        return {"type": "INT64", "schema": "", "properties": {}}
    record = json.dumps({"type": "record", "name": "R", "fields": fields})
    return {"type": "AVRO", "schema": record, "properties": {}}


SHOWN = ("Message-ID", "PROPERTY", "publish-time", "event-time", "producer-name", "sequence-id")


def test_single_messages_are_shown(broker: Broker, client: PulsarClient, topic: str) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    zlib = CompressionType.ZLib
    with client.create_producer(topic, "p", compression_type=zlib) as producer:
        producer.send(b"first")
        sent = producer.send(b"second", properties={"a": "b"}, event_timestamp=5)
    place = f"{sent.ledger_id()}/entry/{sent.entry_id()}"
    host = urlsplit(broker.admin_url).netloc
    found = []
    for request in (f"ledger/{place}", "subscription/s/position/2"):
        with closing(HTTPConnection(host, timeout=60)) as http:
            http.request("GET", f"/admin/v2/{rest_path(topic)}/{request}")
            answer = http.getresponse()
            shown = {name: answer.getheader(f"X-Pulsar-{name}") for name in SHOWN}
            found.append((answer.status, answer.read(), shown))
    assert found[0] == found[1]
    status, body, shown = found[0]
    assert (status, body) == (200, b"second")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,3}Z", shown["publish-time"] or "")
    assert shown == {
        "Message-ID": f"{sent.ledger_id()}:{sent.entry_id()}",
        "PROPERTY": '{"a":"b"}',
        "publish-time": shown["publish-time"],
        "event-time": "1970-01-01T00:00:00.005Z",
        "producer-name": "p",
        "sequence-id": "1",
    }
    missing = broker.ask("GET", f"{rest_path(topic)}/ledger/0/entry/0")
    assert missing == (404, {"reason": "Message id not found"})
    missing = broker.ask("GET", f"{rest_path(topic)}/subscription/s/position/3")
    assert missing == (404, {"reason": "Message not found"})
