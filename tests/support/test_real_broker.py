"""Tests of the helper that runs a real broker."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.java_server import free_ports
from tests.support.pulsar_distribution import BrokerUnavailable, lock
from tests.support.real_broker import AdminError, OwnBroker, RealBroker, prepare
from tests.support.waiting import wait_until

StartBroker = Callable[[Mapping[str, str] | None], OwnBroker]
Connect = Callable[..., Any]


def read_all(client: Any, topic: str) -> list[bytes]:
    pulsar = pytest.importorskip("pulsar")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    values = []
    while reader.has_message_available():
        values.append(reader.read_next(60_000).data())
    return values


def test_serves_the_official_client_and_the_admin_rest(
    real_broker: RealBroker, official_client: Connect
) -> None:
    topic = real_broker.create_topic(real_broker.unique_topic(), partitions=3)
    client = official_client(real_broker.service_url)
    assert len(client.get_topic_partitions(topic)) == 3
    partition = f"{topic}-partition-1"
    producer = client.create_producer(partition)
    producer.send(b"one")
    real_broker.unload(partition)
    producer.send(b"two")
    assert read_all(client, partition) == [b"one", b"two"]


def test_keeps_what_is_written_to_the_default_namespace(real_broker: RealBroker) -> None:
    retention = real_broker.admin("GET", "namespaces/public/default/retention")
    assert retention == {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


def test_temporary_files_are_in_its_folder(real_broker: RealBroker) -> None:
    if not isinstance(real_broker, OwnBroker):
        pytest.skip("it was not started by the tests")
    assert list(real_broker.folder.glob("librocksdbjni*"))


def test_a_refusal_of_the_admin_rest_carries_its_status(real_broker: RealBroker) -> None:
    with pytest.raises(AdminError) as caught:
        real_broker.admin("GET", "persistent/public/default/missing/stats")
    assert caught.value.status == 404


@pytest.mark.slow
def test_data_and_address_survive_a_restart_and_a_kill(
    start_real_broker: StartBroker, official_client: Connect
) -> None:
    broker = start_real_broker(None)
    service_url = broker.service_url
    topic = broker.create_topic("kept")
    producer = official_client(service_url).create_producer(topic, send_timeout_millis=90_000)
    producer.send(b"before")
    broker.restart()
    producer.send(b"between")
    broker.kill()
    with pytest.raises((OSError, http.client.HTTPException)):
        broker.admin("GET", "clusters")
    broker.start()
    producer.send(b"after")
    assert broker.service_url == service_url
    assert read_all(official_client(service_url), topic) == [b"before", b"between", b"after"]


@pytest.mark.slow
def test_takes_other_settings_from_start_to_start(start_real_broker: StartBroker) -> None:
    def limit(broker: OwnBroker) -> str:
        return str(broker.admin("GET", "brokers/configuration/runtime")["maxMessageSize"])

    broker = start_real_broker({"maxMessageSize": "10240"})
    assert limit(broker) == "10240"
    broker.stop()
    broker.start({"maxMessageSize": "20480"})
    assert limit(broker) == "20480"


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
@pytest.mark.usefixtures("_distribution")
def test_ends_with_the_process_that_started_it() -> None:
    script = (
        "from tests.support.real_broker import OwnBroker, prepare\n"
        "broker = OwnBroker(prepare())\n"
        "broker.start()\n"
        "print(broker.pid, broker.folder, flush=True)\n"
        "input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        broker_pid, folder = process.stdout.readline().split()
        process.kill()
    wait_until(lambda: not _is_alive(int(broker_pid)), "the broker's end with its parent")
    os.utime(f"{folder}/owner", (0, 0))
    OwnBroker(prepare()).close()
    assert not os.path.exists(folder)


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_cache_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with lock(tmp_path, 1), pytest.raises(BrokerUnavailable, match="has held"):
        lock(tmp_path, 0.1).__enter__()
    with lock(tmp_path, 1):
        pass


def test_free_ports_differ() -> None:
    assert len(set(free_ports(5))) == 5
