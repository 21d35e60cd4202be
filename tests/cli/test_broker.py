"""``python -m pulsar_spark broker`` serves any client until it gets a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.cli import broker as module
from pulsar_spark.cli import main as cli
from pulsar_spark.client import AuthenticationToken, PulsarClient
from pulsar_spark.errors import AuthenticationError, OptionError, PulsarError
from pulsar_spark.testing import BacklogQuota, TopicPolicies
from pulsar_spark.testing.options import OPTION_NAMES
from pulsar_spark.testing.policies import NAMES
from tests.support.certificates import Authority
from tests.support.real_broker import ask

SECONDS = 30.0


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pulsar_spark", "broker", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )


def service_url(process: subprocess.Popen[str], scheme: str = "pulsar") -> str:
    assert process.stdout is not None
    found = re.search(
        scheme.replace("+", "\\+") + r"://127\.0\.0\.1:\d+", process.stdout.readline()
    )
    assert found is not None
    return found.group()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_client_is_served_until_a_signal_ends_it(
    number: signal.Signals,
) -> None:
    pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")
    process = start("--port", "0", "--topic", "orders:3", "--topic", "plain")
    try:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(service_url(process), logger=logger)
        assert len(client.get_topic_partitions("orders")) == 3
        producer = client.create_producer("plain")
        producer.send(b"hello")
        reader = client.create_reader("plain", pulsar.MessageId.earliest)
        assert reader.read_next(60_000).data() == b"hello"
        client.close()
        process.send_signal(number)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def test_what_reads_a_topic_names_the_one_that_was_created() -> None:
    process = start("--port", "0", "--topic", "orders:3", "--topic", "plain")
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        assert '.option("topic", "orders").load()' in lines[3]
    finally:
        process.kill()
        process.communicate()


def test_a_port_that_is_taken_is_named_with_the_way_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        try:
            assert cli.main(["broker", "--port", str(port)]) == 1
        finally:
            signal.signal(signal.SIGTERM, before[0])
            signal.signal(signal.SIGINT, before[1])
    error = capsys.readouterr().err
    assert str(port) in error
    assert "another port" in error


@pytest.mark.parametrize(
    "topic", ["orders:x", "orders:", "persistent://public/default/orders:-1", "orders:10001"]
)
def test_what_is_no_number_of_partitions_does_not_become_a_part_of_the_name(
    topic: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert cli.main(["broker", "--port", "0", "--topic", topic]) == 2
    told = capsys.readouterr().err
    assert "the part after ':' is not a number of partitions" in told
    assert f"{topic}:0" in told


@pytest.mark.parametrize(
    "text,expected",
    [
        ("orders", ("orders", 0)),
        ("orders:3", ("orders", 3)),
        ("a:b:0", ("a:b", 0)),
        ("persistent://a/b/c", ("persistent://a/b/c", 0)),
        ("persistent://a/b/c:2", ("persistent://a/b/c", 2)),
    ],
)
def test_a_topic_may_have_its_number_of_partitions(text: str, expected: tuple[str, int]) -> None:
    assert module._topic(text) == expected


def of(**policies: Any) -> TopicPolicies:
    return TopicPolicies(**policies)


def switched(*arguments: str) -> dict[str, Any]:
    parser = cli.parser()
    return module._settings(parser.parse_args(["broker", "--port", "0", *arguments]))


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ("", {"auto_create": True, "brokers": 1, "transactions": True}),
        ("--auto-create no", {"auto_create": False}),
        ("--auto-create partitioned --partitions 4", {"auto_create": 4}),
        ("--brokers 3 --deduplication", {"brokers": 3, "deduplication": True}),
        ("--namespace a/b --namespace c/d", {"namespaces": ("a/b", "c/d")}),
        ("--batch-index-ack --precise-flow", {"batch_index_ack": True, "precise_flow": True}),
        ("--no-transactions", {"transactions": False}),
        ("--expose-entry-metadata", {"expose_entry_metadata": True}),
        ("--max-message-size 5000", {"max_message_size": 5000}),
        ("--memory-limit 5000 --max-entries-per-ledger 3", {"memory_limit": 5000}),
        ("--keep-alive-interval 0.5", {"keep_alive_interval": 0.5}),
        ("--listener a --listener b", {"listeners": ("a", "b")}),
        ("--rest", {"rest": 8080}),
        ("--rest 0", {"rest": 0}),
        ("", {"policies": TopicPolicies()}),
        ("--max-producers 2 --message-ttl 9", {"policies": of(max_producers=2, message_ttl=9)}),
        ("--backlog-size 9", {"policies": of(backlog_size=BacklogQuota(9))}),
        (
            "--backlog-age 9 --backlog-policy producer_exception",
            {"policies": of(backlog_age=BacklogQuota(9, "producer_exception"))},
        ),
        ("--subscription-type Shared", {"policies": of(subscription_types=("Shared",))}),
        (
            "--no-auto-subscriptions --encryption-required",
            {"policies": of(auto_subscription_creation=False, encryption_required=True)},
        ),
        (
            "--schema-compatibility FORWARD --no-schema-updates --schema-validation-enforced",
            {
                "policies": of(
                    schema_compatibility="FORWARD",
                    auto_update_schema=False,
                    schema_validation_enforced=True,
                )
            },
        ),
    ],
)
def test_switches_are_the_parameters_of_the_class(arguments: str, expected: dict[str, Any]) -> None:
    found = switched(*arguments.split())
    assert found == {**found, **expected}
    assert set(found) <= set(OPTION_NAMES)


def test_every_parameter_has_a_switch() -> None:
    given = switched(
        *("--namespace", "a/b", "--rest", "--listener", "l", "--require-token", __file__),
        *(word for name in (*module._NUMBERS, *module._SECONDS) for word in (f"--{name}", "1")),
    )
    # The cluster's name is fixed, a dead client is not worth a switch, --tls… needs files.
    assert set(OPTION_NAMES) - set(given) == {"name", "liveness_timeout", "tls"}
    policies = {*module._LIMITS, *module._QUOTAS, "subscription-types", "schema-compatibility"}
    known = {name.replace("-", "_") for name in policies}
    # These are switches without values; deduplication is a parameter of the class; a command's
    # broker is not meant to lose messages before it stops.
    assert set(NAMES) - known == {
        *("auto_subscription_creation", "encryption_required", "auto_update_schema"),
        *("schema_validation_enforced", "deduplication", "retention"),
    }


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--partitions 4", "--auto-create partitioned"),
        ("--tls-certificate a.pem", "--tls-certificate and --tls-key go together"),
        ("--tls-certificate none.pem --tls-key none.pem", "none.pem"),
        ("--require-token none.txt", "--require-token none.txt cannot be read"),
        ("--backlog-policy producer_exception", "--backlog-size or --backlog-age"),
        ("--backlog-size 1 --backlog-policy none", "producer_request_hold"),
        ("--subscription-type Sharded", "none of Exclusive, Shared, Failover, Key_Shared"),
        ("--schema-compatibility NONE", "FULL_TRANSITIVE"),
    ],
)
def test_switches_that_do_not_fit_are_an_error(arguments: str, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        switched(*arguments.split())
    assert message in str(raised.value)


def test_a_broker_with_tls_and_a_token_takes_those_who_have_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.host("broker")
    token = tmp_path / "token"
    token.write_text("a-secret\n")
    process = start(
        *("--port", "0", "--topic", "orders", "--require-token", str(token)),
        *("--tls-certificate", certificate, "--tls-key", key),
    )
    try:
        url = service_url(process, "pulsar+ssl")

        def connected(token: str) -> PulsarClient:
            login = AuthenticationToken(token)
            return PulsarClient(url, login, tls_trust_certs_file_path=authority.file)

        with (
            connected("a-secret") as client,
            client.create_producer("orders") as producer,
        ):
            producer.send(b"hello")
        with connected("another") as other, pytest.raises(AuthenticationError):
            other.create_producer("orders")
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)


def test_a_command_manages_the_broker_through_its_admin_rest() -> None:
    process = start("--port", "0", "--rest", "0", "--max-producers", "1", "--json")
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        made = ask(told["admin_url"], "PUT", "persistent/public/default/orders/partitions", 3)
        assert made == (204, None)
        with PulsarClient(told["service_url"], operation_timeout_seconds=5) as client:
            assert len(client.get_topic_partitions("orders")) == 3
            client.create_producer("plain")
            with pytest.raises(PulsarError, match="max producers limit"):
                client.create_producer("plain")
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)
