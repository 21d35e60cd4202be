"""``python -m pulsar_spark broker`` serves any client until it gets a signal."""

from __future__ import annotations

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
from pulsar_spark.errors import AuthenticationError, OptionError
from pulsar_spark.testing.options import OPTION_NAMES
from tests.support.certificates import Authority

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
    ],
)
def test_switches_are_the_parameters_of_the_class(arguments: str, expected: dict[str, Any]) -> None:
    found = switched(*arguments.split())
    assert found == {**found, **expected}
    assert set(found) <= set(OPTION_NAMES)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--partitions 4", "--auto-create partitioned"),
        ("--tls-certificate a.pem", "--tls-certificate and --tls-key go together"),
        ("--tls-certificate none.pem --tls-key none.pem", "none.pem"),
        ("--require-token none.txt", "--require-token none.txt cannot be read"),
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
