"""The commands on a cluster, against a real broker with TLS, tokens and permissions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.client import AuthenticationToken, PulsarClient
from pulsar_spark.client.schema import AvroSchema, StringSchema
from pulsar_spark.protocol.message_id import EARLIEST_POSITION
from pulsar_spark.spark.streaming.stream_offset import StreamOffset
from tests.support.java_server import free_ports
from tests.support.real_broker import OwnBroker
from tests.support.real_cluster import RealCluster
from tests.support.security import Security
from tests.support.waiting import wait_until

START = Callable[[Mapping[str, str] | None], OwnBroker]

# Brokers have loaded none of the topics when they are asked, which can take them half a minute.
PATIENCE = ("--option", "pulsar.client.operationTimeoutMs=90000")


RECORD = {"type": "record", "name": "Sent", "fields": [{"name": "id", "type": "long"}]}


class Commands:
    """Runs commands as a role, on a broker that requires TLS and tokens."""

    def __init__(self, start: START, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.security = Security(folder)
        (port,) = free_ports(1)
        self.url = f"pulsar+ssl://localhost:{port}"
        self.broker = start({**self.security.broker_settings, "brokerServicePortTls": str(port)})
        for role, actions in (
            ("reader", ["produce", "consume"]),
            ("consumer", ["consume"]),
            ("producer", ["produce"]),
        ):
            self.broker.admin("POST", f"namespaces/public/default/permissions/{role}", actions)
        self._folder = folder
        self._capsys = capsys

    def run(
        self, role: str, command: str, *arguments: str, token: str | None = None
    ) -> tuple[int, str]:
        file = self._folder / f"{role}.token"
        file.write_text(token or self.security.token(role))
        trust = f"pulsar.client.tlsTrustCertsFilePath={self.security.authority.file}"
        given = ["--service-url", self.url, "--token-file", str(file), "--option", trust, *PATIENCE]
        status = cli.main([command, *given, "--json", *arguments])
        return status, self._capsys.readouterr().out

    def examine(self, role: str, topic: str, token: str | None = None) -> dict[str, str]:
        """Return each step's status; failed steps have a remedy, and no output has a secret."""
        _, text = self.run(role, "doctor", "--topic", topic, token=token)
        assert "eyJ" not in text
        steps = json.loads(text)["steps"]
        assert all(step["remedy"] for step in steps if step["status"] == "failed")
        return {step["name"]: step["status"] for step in steps}

    def traces(self) -> Any:
        """Return the topics, subscriptions, message counts and schemas on the broker."""
        admin = self.broker.admin
        topics = admin("GET", "persistent/public/default")
        return [
            (
                name,
                admin("GET", f"persistent/{path}/subscriptions"),
                admin("GET", f"persistent/{path}/stats")["msgInCounter"],
                admin("GET", f"persistent/{path}/internalStats").get("schemaLedgers"),
            )
            for name in sorted(topics)
            for path in [name.partition("://")[2]]
        ]

    def expect_traces(self, before: Any) -> None:
        """Wait until the broker has the same topics, subscriptions and schemas as before."""
        wait_until(lambda: self.traces() == before, "a trace is left")


def failed(found: Mapping[str, str]) -> list[str]:
    return [name for name, status in found.items() if status == "failed"]


def store_orders(commands: Commands) -> str:
    """Create the topic `orders`, which lacks a partition, with 20 messages; return its name."""
    orders = commands.broker.create_topic("orders", partitions=3)
    commands.broker.admin("DELETE", "persistent/public/default/orders-partition-1")
    login = AuthenticationToken(commands.security.token())
    trust = commands.security.authority.file
    with PulsarClient(commands.url, login, tls_trust_certs_file_path=trust) as client:
        producer = client.create_producer(f"{orders}-partition-0", schema=StringSchema())
        for number in range(20):
            producer.send(f"book {number}")
    return orders


def check_doctor(commands: Commands) -> None:
    """The doctor names the step that a role, a topic or a token fails."""
    well = commands.examine("reader", "orders")
    not_looked_at = {name for name, status in well.items() if status != "ok"}
    assert not_looked_at == {"retention", "transactions"}
    assert not failed(well)
    for role, step in (("consumer", "write"), ("producer", "read"), ("nobody", "lookup")):
        assert failed(commands.examine(role, "orders")) == [step], role
    for topic in ("missing", "missing-partition-3"):
        assert failed(commands.examine("reader", topic)) == ["partitions"]
    for token in ("eyJhbGciOiJIUzI1NiJ9.e30.c2ln", commands.security.token("reader", seconds=-60)):
        assert failed(commands.examine("stranger", "orders", token)) == ["authenticate"]


def check_peek_and_topics(commands: Commands, orders: str) -> None:
    status, text = commands.run("reader", "peek", "--topic", "orders", "--count", "2")
    assert status == 0
    assert [json.loads(line)["value"] for line in text.splitlines()] == ["book 18", "book 19"]
    _, text = commands.run("reader", "topics")
    assert json.loads(text) == [{"topic": orders, "partitions": 3, "schema": "STRING"}]


def check_subscriptions(commands: Commands) -> None:
    """A subscription is shown with its backlog, and dropped; a missing one is reported."""
    named = ("subscriptions", "--topic", "orders", "--subscription", "mine")
    before = commands.traces()
    status, text = commands.run("reader", *named, "--drop")
    assert (status, {row["state"] for row in json.loads(text)}) == (1, {"does not exist"})
    commands.expect_traces(before)
    commands.broker.admin(
        "PUT",
        "persistent/public/default/orders-partition-0/subscription/mine",
        {"ledgerId": -1, "entryId": -1},
    )
    _, text = commands.run("reader", *named)
    first, *others = json.loads(text)
    assert (first["backlog"], first["state"]) == (20, "idle")
    assert {row["state"] for row in others} == {"does not exist"}
    ask_admin = ("--admin-url", commands.broker.admin_url)
    _, text = commands.run("admin", "subscriptions", "--topic", "orders", *ask_admin)
    assert [(row["backlog"], row["state"]) for row in json.loads(text)] == [(20, "idle")]
    assert commands.run("reader", *named, "--drop")[0] == 0


def check_retention(commands: Commands) -> None:
    """With the admin REST, the doctor reports the namespace's retention, too."""
    ask_admin = ("--admin-url", commands.broker.admin_url)
    _, text = commands.run("admin", "doctor", "--topic", "orders", *ask_admin)
    kept = {step["name"]: step for step in json.loads(text)["steps"]}["retention"]
    assert (kept["status"], "public/default" in kept["detail"]) == ("ok", True)


def check_bench(commands: Commands) -> None:
    """A topic is measured without a trace; only a topic made for it is written to."""
    before = commands.traces()
    status, text = commands.run("reader", "bench", "--topic", "orders")
    assert status == 0
    assert [row["rows"] for row in json.loads(text)["measurements"]] == [20, 20]
    # It writes neither to topics of others nor to missing ones.
    assert commands.run("reader", "bench", "--topic", "orders", "--write")[0] == 2
    assert commands.run("reader", "bench", "--topic", "missing", "--write")[0] == 1
    commands.expect_traces(before)
    own = ("bench", "--topic", "made-for-it", "--write", "--create", "--messages", "5000")
    for _ in range(2):
        status, text = commands.run("reader", *own)
        assert status == 0
        assert json.loads(text)["measurements"][0]["rows"] == 5_000
    place = "persistent/public/default/made-for-it/subscriptions"
    wait_until(lambda: commands.broker.admin("GET", place) == [], "a subscription is left")


def check_send_schema_and_lag(commands: Commands, folder: Path) -> None:
    """Messages are sent by the topic's schema; a checkpoint before them lags by their number."""
    topic = commands.broker.create_topic("sent", partitions=0)
    login = AuthenticationToken(commands.security.token())
    trust = commands.security.authority.file
    with PulsarClient(commands.url, login, tls_trust_certs_file_path=trust) as client:
        client.create_producer(topic, schema=AvroSchema(None, RECORD))
    _, text = commands.run("reader", "schema", "sent")
    assert json.loads(text)["columns"] == [{"name": "id", "type": "bigint"}]
    values = [part for number in range(3) for part in ("--message", json.dumps({"id": number}))]
    status, text = commands.run("reader", "send", "sent", *values)
    assert (status, json.loads(text)["messages"]) == (0, 3)
    _, text = commands.run("reader", "peek", "--topic", "sent")
    assert [json.loads(line)["id"] for line in text.splitlines()] == [0, 1, 2]
    offset = StreamOffset("none", {topic: EARLIEST_POSITION})
    for name, content in (
        ("offsets", f"v1\n{{}}\n{json.dumps(offset.to_json())}"),
        ("commits", ""),
    ):
        (folder / name).mkdir()
        (folder / name / "0").write_text(content)
    _, text = commands.run("reader", "lag", "--checkpoint", str(folder))
    (row,) = json.loads(text)
    assert (row["partition"], row["messages"]) == (topic, 3)
    assert row["bytes"] > 0
    assert 0 < row["seconds"] < 600


def check_what_the_doctor_tells_of_tokens_and_permissions(commands: Commands) -> None:
    _, text = commands.run("consumer", "doctor", "--topic", "orders")
    steps = {step["name"]: step for step in json.loads(text)["steps"]}
    assert (
        "accepted the connection with the token of role consumer" in steps["authenticate"]["detail"]
    )
    granting = "grant-permission public/default --role consumer --actions produce"
    assert steps["write"]["remedy"].endswith(granting)
    granting = "grant-permission pulsar/system --role consumer --actions produce,consume"
    assert steps["transactions"]["status"] == "skipped"
    assert steps["transactions"]["remedy"].endswith(granting)
    needed = ("--option", "deliveryGuarantee=exactly-once")
    _, text = commands.run("consumer", "doctor", "--topic", "orders", *needed)
    steps = {step["name"]: step for step in json.loads(text)["steps"]}
    assert steps["transactions"]["status"] == "failed"
    assert steps["transactions"]["remedy"].endswith(granting)
    assert "Pulsar Server " in steps["handshake"]["detail"]
    expired = commands.security.token("reader", seconds=-60)
    _, text = commands.run("stranger", "doctor", "--topic", "orders", token=expired)
    steps = {step["name"]: step for step in json.loads(text)["steps"]}
    assert "The token of role reader expired at" in steps["authenticate"]["remedy"]


@pytest.mark.slow
@pytest.mark.fault(45, 46, 51)
@pytest.mark.timeout(600)
def test_the_commands_on_a_real_broker(
    start_real_broker: START, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(start_real_broker, tmp_path, capsys)
    orders = store_orders(commands)
    before = commands.traces()
    check_doctor(commands)
    check_peek_and_topics(commands, orders)
    commands.expect_traces(before)
    check_subscriptions(commands)
    check_retention(commands)
    commands.expect_traces(before)
    check_bench(commands)
    check_send_schema_and_lag(commands, tmp_path)
    check_what_the_doctor_tells_of_tokens_and_permissions(commands)


@pytest.mark.slow
@pytest.mark.fault(17)
@pytest.mark.timeout(600)
def test_the_commands_through_a_proxy(
    real_cluster: RealCluster, cluster_security: Security, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy = real_cluster.start_proxy(
        {
            **cluster_security.token_settings,
            **cluster_security.own_login("proxy"),
            "anonymousUserRole": "admin",
        }
    )
    topic = real_cluster.create_topic(real_cluster.unique_topic(), partitions=4)
    arguments = ["--service-url", proxy.service_url, "--topic", topic, "--json"]
    assert cli.main(["doctor", *arguments, *PATIENCE]) == 0
    steps = {step["name"]: step for step in json.loads(capsys.readouterr().out)["steps"]}
    assert "through service.url" in steps["lookup"]["detail"]
    assert (steps["read"]["status"], steps["write"]["status"]) == ("ok", "ok")
    assert cli.main(["doctor", *arguments[:2], "--json", *PATIENCE]) == 0
    capsys.readouterr()
    named = ["--subscription", "none", *PATIENCE]
    assert cli.main(["subscriptions", *arguments, *named]) == 0
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"does not exist"}

    # A proxy that brokers do not accept.
    helpless = real_cluster.start_proxy()
    assert cli.main(["doctor", "--service-url", helpless.service_url, *arguments[2:]]) == 1
    steps = {step["name"]: step for step in json.loads(capsys.readouterr().out)["steps"]}
    assert [name for name, step in steps.items() if step["status"] == "failed"] == ["lookup"]
    assert "proxyRoles" in steps["lookup"]["remedy"]
