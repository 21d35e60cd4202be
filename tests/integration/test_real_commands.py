"""The commands on a cluster, against a real broker with TLS, tokens and permissions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.client import AuthenticationToken, PulsarClient
from pulsar_spark.client.schema import StringSchema
from tests.support.java_server import free_ports
from tests.support.real_broker import OwnBroker
from tests.support.real_cluster import RealCluster
from tests.support.security import Security
from tests.support.waiting import wait_until

START = Callable[[Mapping[str, str] | None], OwnBroker]

# Brokers have loaded none of the topics when they are asked, which can take them half a minute.
PATIENCE = ("--option", "pulsar.client.operationTimeoutMs=90000")


class Commands:
    """Runs commands as a role, on a broker that asks for tokens by TLS."""

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
        """Return the status of each step; those that fail say what to do, and no secret."""
        _, text = self.run(role, "doctor", "--topic", topic, token=token)
        assert "eyJ" not in text
        steps = json.loads(text)["steps"]
        assert all(step["remedy"] for step in steps if step["status"] == "failed")
        return {step["name"]: step["status"] for step in steps}

    def traces(self) -> Any:
        """Return what of topics, subscriptions and schemas the broker has."""
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


def measure(commands: Commands) -> None:
    """Have a topic measured, which leaves no trace, and one that is made for being written to."""
    before = commands.traces()
    status, text = commands.run("reader", "bench", "--topic", "orders")
    assert status == 0
    assert [row["rows"] for row in json.loads(text)["measurements"]] == [20, 20]
    # It writes to no topic of others, and to none that does not exist.
    assert commands.run("reader", "bench", "--topic", "orders", "--write")[0] == 2
    assert commands.run("reader", "bench", "--topic", "missing", "--write")[0] == 1
    wait_until(lambda: commands.traces() == before, "a trace is left")
    own = ("bench", "--topic", "made-for-it", "--write", "--create", "--messages", "5000")
    for _ in range(2):
        status, text = commands.run("reader", *own)
        assert status == 0
        assert json.loads(text)["measurements"][0]["rows"] == 5_000
    place = "persistent/public/default/made-for-it/subscriptions"
    wait_until(lambda: commands.broker.admin("GET", place) == [], "a subscription is left")


@pytest.mark.slow
@pytest.mark.fault(45, 46, 51)
@pytest.mark.timeout(600)
def test_the_commands_on_a_real_broker(
    start_real_broker: START, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(start_real_broker, tmp_path, capsys)
    broker = commands.broker
    orders = broker.create_topic("orders", partitions=3)
    broker.admin("DELETE", "persistent/public/default/orders-partition-1")
    login = AuthenticationToken(commands.security.token())
    trust = commands.security.authority.file
    with PulsarClient(commands.url, login, tls_trust_certs_file_path=trust) as client:
        producer = client.create_producer(f"{orders}-partition-0", schema=StringSchema())
        for number in range(20):
            producer.send(f"book {number}")
    before = commands.traces()

    well = commands.examine("reader", "orders")
    assert {name for name, status in well.items() if status != "ok"} == {"retention"}
    for role, wrong in (
        ("consumer", {"write"}),
        ("producer", {"read"}),
        ("nobody", {"lookup"}),
    ):
        found = commands.examine(role, "orders")
        assert {name for name, status in found.items() if status == "failed"} == wrong, role
    found = commands.examine("reader", "missing")
    assert [name for name, status in found.items() if status == "failed"] == ["partitions"]
    found = commands.examine("reader", "missing-partition-3")
    assert [name for name, status in found.items() if status == "failed"] == ["partitions"]

    for token in ("eyJhbGciOiJIUzI1NiJ9.e30.c2ln", commands.security.token("reader", seconds=-60)):
        found = commands.examine("stranger", "orders", token)
        assert [name for name, status in found.items() if status == "failed"] == ["authenticate"]

    status, text = commands.run("reader", "peek", "--topic", "orders", "--count", "2")
    assert status == 0
    assert [json.loads(line)["value"] for line in text.splitlines()] == ["book 18", "book 19"]
    status, text = commands.run("reader", "topics")
    assert json.loads(text) == [{"topic": orders, "partitions": 3, "schema": "STRING"}]
    named = ("subscriptions", "--topic", "orders", "--subscription", "mine")
    status, text = commands.run("reader", *named, "--drop")
    assert (status, {row["state"] for row in json.loads(text)}) == (1, {"does not exist"})
    wait_until(lambda: commands.traces() == before, "a trace is left")

    broker.admin(
        "PUT",
        "persistent/public/default/orders-partition-0/subscription/mine",
        {"ledgerId": -1, "entryId": -1},
    )
    status, text = commands.run("reader", *named)
    first, *others = json.loads(text)
    assert (first["backlog"], first["state"]) == (20, "idle")
    assert {row["state"] for row in others} == {"does not exist"}
    ask_admin = ("--admin-url", broker.admin_url)
    _, text = commands.run("admin", "subscriptions", "--topic", "orders", *ask_admin)
    assert [(row["backlog"], row["state"]) for row in json.loads(text)] == [(20, "idle")]
    _, text = commands.run("admin", "doctor", "--topic", "orders", *ask_admin)
    kept = {step["name"]: step for step in json.loads(text)["steps"]}["retention"]
    assert (kept["status"], "public/default" in kept["detail"]) == ("ok", True)
    status, text = commands.run("reader", *named, "--drop")
    assert status == 0
    wait_until(lambda: commands.traces() == before, "a trace is left")
    measure(commands)


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
    assert "through the proxy" in steps["lookup"]["detail"]
    assert (steps["read"]["status"], steps["write"]["status"]) == ("ok", "ok")
    assert cli.main(["doctor", *arguments[:2], "--json", *PATIENCE]) == 0
    capsys.readouterr()
    named = ["--subscription", "none", *PATIENCE]
    assert cli.main(["subscriptions", *arguments, *named]) == 0
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"does not exist"}

    # One that may not go on to the brokers.
    helpless = real_cluster.start_proxy()
    assert cli.main(["doctor", "--service-url", helpless.service_url, *arguments[2:]]) == 1
    steps = {step["name"]: step for step in json.loads(capsys.readouterr().out)["steps"]}
    assert [name for name, step in steps.items() if step["status"] == "failed"] == ["lookup"]
    assert "proxyRoles" in steps["lookup"]["remedy"]
