"""A real Pulsar, started and stopped by the tests: RocksDB metadata, bookie, broker in one JVM.

It takes about 3 s and 260 MB. The broker is on loopback only, on its own ports, in its own folder.
Nothing of it is left when it is closed, or when the tests are killed.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.support.java_server import START_SECONDS, JavaServer, WorkingFolder, free_ports
from tests.support.pulsar_distribution import (
    VERSION,
    BrokerUnavailable,
    Distribution,
    lock,
    obtain,
)
from tests.support.waiting import wait_until

# When it loads a topic, Pulsar reads the namespace's transaction snapshots, in one of as many
# threads as there are cores. They share one reader: if two of them see the same new snapshot, or a
# deleted topic's tombstone, one gets it, and the other waits 30 s for the next one, while its topic
# answers nothing. A single thread avoids that. Before 4.0 the threads also have other work, which
# would delay reading.
_RECOVERY: dict[str, str] = (
    {} if VERSION.startswith("3.") else {"numTransactionReplayThreadPoolSize": "1"}
)

BROKER_CONF = {
    **_RECOVERY,
    "clusterName": "standalone",
    "advertisedAddress": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "loadBalancerEnabled": "false",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
    "webSocketServiceEnabled": "false",
    "transactionCoordinatorEnabled": "true",
    "brokerShutdownTimeoutMs": "5000",
    "forceDeleteNamespaceAllowed": "true",
    "forceDeleteTenantAllowed": "true",
    # Messages of tests stay, even if nobody is connected to their topic.
    "brokerDeleteInactiveTopicsEnabled": "false",
    "journalSyncData": "false",
    "journalMaxGroupWaitMSec": "1",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
    # As in Pulsar's own configuration: the bookie's frames must fit the broker's largest messages.
    "nettyMaxFrameSizeBytes": "5253120",
    "allowLoopback": "true",
    "listeningInterface": "lo" if sys.platform == "linux" else "lo0",
    # Despite its name this makes the bookie use the given port.
    "allowEphemeralPorts": "true",
    "numIOThreads": "2",
    "numHttpServerThreads": "8",
    "numOrderedExecutorThreads": "2",
}

# A bookie that runs out of direct memory ends, and the broker goes on without it. By default all of
# these together may take more than there is: on a slow machine messages wait in each of them.
_JVM_FLAGS_OF_TESTS = ("-XX:MaxDirectMemorySize=512m",)
_CONF_OF_TESTS = {
    "managedLedgerCacheSizeMB": "32",
    "maxMessagePublishBufferSizeInMB": "64",
    "dbStorage_writeCacheMaxSizeMb": "64",
    "dbStorage_readAheadCacheMaxSizeMb": "32",
}

# Pulsar's defaults are a heap and direct memory of 2 GB, and a fifth of it as a cache, from which
# entries are dropped after a second. Then each entry is fetched from the bookie, at 40 µs of CPU,
# and a benchmark measures only that. Here written entries stay in memory, as long as a durable
# subscription has a consumer that counts as keeping up.
_JVM_FLAGS_FOR_SPEED = (
    "-Xms2g",
    "-Xmx4g",
    "-XX:MaxDirectMemorySize=2g",
    "-XX:TieredStopAtLevel=4",
)
_CONF_FOR_SPEED = {
    "managedLedgerCacheSizeMB": "1024",
    "managedLedgerCacheEvictionTimeThresholdMillis": "3600000",
    "managedLedgerCursorBackloggedThreshold": "1000000000",
}
MEMORY_FOR_SPEED = "4 GB of heap, 2 GB of direct memory and 1 GB of managed-ledger cache"
"""What a broker for speed has, in words for those who publish what they measured with it."""

KEEP_ALL = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


class AdminError(Exception):
    """An error of the admin REST; `status` is the HTTP status."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: {status} {body[:500]}")
        self.status = status


class RealBroker:
    """A running broker, given by its two addresses; it cannot be started or stopped.

    Tests that would do so are skipped. If `admin_url` is empty, tests that need the admin REST are
    skipped, too.
    """

    def __init__(self, service_url: str, admin_url: str) -> None:
        self.service_url = service_url
        self.admin_url = admin_url

    def admin(self, method: str, path: str, body: Any = None, *, timeout: float = 60.0) -> Any:
        """Call the admin REST and return its answer, parsed if it is JSON, else as text.

        `path` is relative to /admin/v2/ unless it starts with a slash. Raises AdminError.
        """
        if not self.admin_url:
            pytest.skip("PULSAR_SPARK_TEST_ADMIN_URL does not name the broker's admin REST")
        data = None if body is None else json.dumps(body)
        target = path if path.startswith("/") else f"/admin/v2/{path}"
        url = self.admin_url + target
        for _ in range(5):
            status, text, elsewhere = _request(method, url, data, timeout)
            if status != 307:
                break
            # Only one of several brokers handles requests that concern all of them.
            url = elsewhere
        if status >= 300:
            raise AdminError(method, path, status, text)
        try:
            return json.loads(text)
        except ValueError:
            return text

    @property
    def version(self) -> tuple[int, ...]:
        """The numeric part of its Pulsar version."""
        text = str(self.admin("GET", "brokers/version"))
        return tuple(int(part) for part in re.findall(r"\d+", text)[:3])

    def answers(self, path: str) -> bool:
        """Whether a GET to the admin REST succeeds."""
        try:
            self.admin("GET", path, timeout=5.0)
        except (AdminError, OSError, http.client.HTTPException):
            return False
        return True

    def unique_topic(self, prefix: str = "t") -> str:
        """Return a full topic name that no other test uses. It is not created."""
        return f"persistent://public/default/{prefix}-{uuid.uuid4().hex[:12]}"

    def create_topic(self, name: str, partitions: int = 0) -> str:
        """Create a topic, partitioned unless `partitions` is 0, and return its full name."""
        full = name if "://" in name else f"persistent://public/default/{name}"
        if partitions:
            self.admin("PUT", f"{rest_path(full)}/partitions", partitions)
        else:
            self.admin("PUT", rest_path(full))
        return full

    def unload(self, topic: str) -> None:
        """Unload a topic, which closes its producers and consumers.

        If it was unloaded while it began a ledger, Pulsar 4.0.8 may go on writing to it, and cannot
        load it until that ends.
        """

        def unloaded() -> bool:
            try:
                self.admin("PUT", f"{rest_path(topic)}/unload")
            except AdminError as error:
                if "BadVersionException" not in str(error):
                    raise
                return False
            return True

        wait_until(unloaded, f"{topic} cannot be unloaded")

    def start(self, extra: Mapping[str, str] | None = None) -> None:
        """Start it, with these settings of broker.conf in addition to earlier ones."""
        pytest.skip("the tests may not start or stop the broker of PULSAR_SPARK_TEST_URL")

    def stop(self) -> None:
        """Shut it down cleanly; data, ports and settings stay for the next start."""
        pytest.skip("the tests may not start or stop the broker of PULSAR_SPARK_TEST_URL")

    def kill(self) -> None:
        """Kill it; data, ports and settings stay for the next start."""
        self.stop()

    def restart(self) -> None:
        """Stop it and start it again on the same ports."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the process: connections stay open, nothing answers."""
        self.stop()

    def resume(self) -> None:
        """Resume a frozen process."""
        self.stop()

    def close(self) -> None:
        """Stop it, if the tests started it, and remove its data."""


class ServerBroker(RealBroker):
    """A broker that runs in the tests' own process `server`."""

    server: JavaServer

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.kill()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()


class OwnBroker(ServerBroker):
    """A broker process of the tests' own; `start` before use, `close` at the end."""

    def __init__(
        self,
        distribution: Distribution,
        extra: Mapping[str, str] | None = None,
        *,
        for_speed: bool = False,
    ) -> None:
        """Prepare a broker that is small and starts fast, or with `for_speed` a fast one."""
        super().__init__("", "")
        self._working_folder = WorkingFolder()
        self.folder = self._working_folder.path
        purpose = _CONF_FOR_SPEED if for_speed else _CONF_OF_TESTS
        self._conf = {**BROKER_CONF, **purpose, **(extra or {})}
        self._bookie_port = 0
        conf = str(self.folder / "standalone.conf")
        self.server = JavaServer(
            distribution,
            self.folder,
            "org.apache.pulsar.PulsarStandaloneStarter",
            [
                *("-c", conf),
                *("--metadata-dir", str(self.folder / "metadata")),
                *("--bookkeeper-dir", str(self.folder / "bookkeeper")),
                *("-nfw", "-nss"),
            ],
            [
                f"-Dpulsar.config.file={conf}",
                *(_JVM_FLAGS_FOR_SPEED if for_speed else _JVM_FLAGS_OF_TESTS),
            ],
        )

    @property
    def pid(self) -> int:
        """Process id of the broker. Raises RuntimeError while it does not run."""
        return self.server.pid

    def start(self, extra: Mapping[str, str] | None = None) -> None:
        """Start it and return when topics can be used. Raises BrokerUnavailable."""
        self._conf.update(extra or {})
        first = not self.service_url
        for attempts_left in (2, 1, 0):
            if first:
                # Someone else may take a port before the broker uses it.
                self._choose_ports()
            try:
                self._launch()
                break
            except BrokerUnavailable:
                self.stop()
                if not attempts_left:
                    raise
        if first:
            self.admin("POST", "namespaces/public/default/retention", KEEP_ALL)

    def close(self) -> None:
        self.kill()
        self._working_folder.close()

    def _choose_ports(self) -> None:
        service, admin, self._bookie_port = free_ports(3)
        self._conf.update(brokerServicePort=str(service), webServicePort=str(admin))
        self.service_url = f"pulsar://127.0.0.1:{service}"
        self.admin_url = f"http://127.0.0.1:{admin}"

    def _launch(self) -> None:
        self.server.write_conf("standalone.conf", self._conf)
        log = self.server.log
        log_start = log.stat().st_size if log.exists() else 0
        self.server.launch("--bookkeeper-port", str(self._bookie_port))
        # The broker's port opens long before its default namespace exists.
        self.server.wait_until(lambda: self.answers("namespaces/public/default"))
        self._check_bookie(log_start)

    def _check_bookie(self, log_start: int) -> None:
        """Check that the bookie is registered. Raises BrokerUnavailable.

        After a kill, the bookie's registration from the last run is still there. When 4.0.8 takes
        it over, it sometimes deletes and renews its own hundreds of times a second, for many
        seconds in which no topic can be opened. A clean stop removes it.
        """
        with open(self.server.log, "rb") as file:
            file.seek(log_start)
            text = file.read()
        if text.count(b"Lock on resource /ledgers/available/") > 10:
            raise BrokerUnavailable("the bookie did not come to rest")


def prepare() -> Distribution:
    """Return everything needed to start brokers fast; the first call on a machine takes long.

    Raises BrokerUnavailable.
    """
    distribution = obtain()
    if not distribution.archive.exists():
        with lock(distribution.archive.parent, START_SECONDS * 2):
            if not distribution.archive.exists():
                _write_archive(distribution)
    return distribution


def running_broker() -> RealBroker | None:
    """Return the broker of PULSAR_SPARK_TEST_URL, if that is set."""
    service_url = os.environ.get("PULSAR_SPARK_TEST_URL")
    if not service_url:
        return None
    return RealBroker(service_url, os.environ.get("PULSAR_SPARK_TEST_ADMIN_URL", ""))


def _write_archive(distribution: Distribution) -> None:
    """Run a broker once, so that the JVM records the classes that it loads.

    Failures are ignored: without the archive a broker only starts more slowly.
    """
    part = distribution.archive.with_suffix(".part")
    broker = OwnBroker(distribution)
    broker.server.archive_flag = f"-XX:ArchiveClassesAtExit={part}"
    try:
        broker.start()
        broker.create_topic("archive")
        broker.admin("GET", "brokers/health")
        broker.stop()
        if part.exists():
            os.rename(part, distribution.archive)
    finally:
        broker.close()
        part.unlink(missing_ok=True)


def _request(method: str, url: str, data: str | None, timeout: float) -> tuple[int, str, str]:
    """Return status, text and location of an HTTP answer."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    try:
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request(method, target, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
        return response.status, text, response.getheader("Location", "")
    finally:
        connection.close()


def ask(admin_url: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request to an admin REST; returns its status and its answer, None if it is no JSON.

    `path` as for `RealBroker.admin`.
    """
    if not admin_url:
        pytest.skip("PULSAR_SPARK_TEST_ADMIN_URL does not name the broker's admin REST")
    data = None if body is None else json.dumps(body)
    target = path if path.startswith("/") else f"/admin/v2/{path}"
    status, text, _ = _request(method, admin_url + target, data, 60.0)
    try:
        return status, json.loads(text)
    except ValueError:
        return status, None


def rest_path(topic: str) -> str:
    """Return the path of a topic in the admin REST."""
    full = topic if "://" in topic else f"persistent://public/default/{topic}"
    domain, _, rest = full.partition("://")
    tenant, namespace, local = rest.split("/", 2)
    return f"{domain}/{tenant}/{namespace}/{quote(local, safe='')}"
