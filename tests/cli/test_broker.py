"""``python -m pulsar_spark broker`` serves any client until it gets a signal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from pulsar_spark.cli import main as cli

SECONDS = 30.0


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pulsar_spark", "broker", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )


def service_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    found = re.search(r"pulsar://127\.0\.0\.1:\d+", process.stdout.readline())
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
