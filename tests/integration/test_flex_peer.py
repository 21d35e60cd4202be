"""pulsar-flex, a client for Node.js, and the embedded broker understand each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pulsar_spark.client import ConsumerType, InitialPosition, PulsarClient, Timeout
from pulsar_spark.testing import EmbeddedBroker
from tests.support.pulsar_distribution import cache_folder

_PACKAGE = "pulsar-flex@1.1.1"
_PROGRAM = Path(__file__).with_name("flex_peer.js")
_SECONDS = 240.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def modules() -> Path:
    """The folder of Node's modules, with pulsar-flex; fetched once."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("pulsar-flex needs Node.js and npm, which are not installed")
    folder = cache_folder() / _PACKAGE
    found = folder / "node_modules"
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", _PACKAGE]
        done = subprocess.run(
            [*install, "--prefix", str(folder)],
            check=False, capture_output=True, text=True, timeout=_SECONDS,
        )  # fmt: skip
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            pytest.skip(f"npm cannot install {_PACKAGE}: {done.stderr[-300:]}")
    return found


def flex(modules: Path, broker: EmbeddedBroker, topic: str, what: str, given: object) -> str:
    """Run the program; return what it printed."""
    host = broker.service_url.removeprefix("pulsar://")
    done = subprocess.run(
        ["node", str(_PROGRAM), host, topic, what],
        input=json.dumps(given), env={**os.environ, "NODE_PATH": str(modules)},
        check=False, capture_output=True, text=True, timeout=_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def message(number: int) -> dict[str, Any]:
    return {"payload": f"row {number} ä", "properties": {"number": str(number)}}


def test_we_read_what_pulsar_flex_wrote(modules: Path) -> None:
    wanted = [message(number) for number in range(25)]
    with EmbeddedBroker() as broker, PulsarClient(broker.service_url) as client:
        topic = broker.create_topic("t")
        reader = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
        given = {"single": wanted[:20], "batch": wanted[20:]}
        flex(modules, broker, topic, "write", given)
        found = [reader.receive(10_000) for _ in wanted]
    assert [
        {"payload": each.data().decode(), "properties": each.properties()} for each in found
    ] == wanted


@pytest.mark.parametrize("batching", [False, True])
def test_pulsar_flex_reads_and_acknowledges_what_we_wrote(modules: Path, batching: bool) -> None:
    wanted = [message(number) for number in range(60)]
    with EmbeddedBroker() as broker, PulsarClient(broker.service_url) as client:
        topic = broker.create_topic("t")
        client.subscribe(topic, "flex", ConsumerType.Shared).close()
        producer = client.create_producer(
            topic, batching_enabled=batching, batching_max_publish_delay_ms=1_000
        )
        for each in wanted:
            producer.send_async(each["payload"].encode(), None, properties=each["properties"])
        producer.flush()
        found = json.loads(flex(modules, broker, topic, "read", len(wanted)))
        assert found == wanted
        # Nothing is left for whoever comes next.
        again = client.subscribe(topic, "flex", ConsumerType.Shared)
        with pytest.raises(Timeout):
            again.receive(500)
