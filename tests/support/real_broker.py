"""A real Pulsar, started and stopped by the tests: RocksDB metadata, bookie, broker in one JVM.

It takes about 3 s and 260 MB. The broker is on loopback only, on ports of its own, in a working
folder of its own; nothing of it is left when it is closed, or when the tests are killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.support.pulsar_distribution import BrokerUnavailable, Distribution, lock, obtain

START_SECONDS = 90.0
STOP_SECONDS = 30.0

# Both ends of a connection are on this machine: a port that the system also hands out to outgoing
# connections can be taken, even by the client that tries to reach the stopped broker on it.
_PORTS = range(20000, 32000)

_JVM_FLAGS = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:MaxDirectMemorySize=256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util.zip=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.platform=ALL-UNNAMED",
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dlog4j.shutdownHookEnabled=false",
    "-Dlog4j2.is.webapp=false",
    "-Dbookkeeper.metadata.bookie.drivers="
    "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
    "-Dbookkeeper.metadata.client.drivers="
    "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
)

_CONF = {
    "clusterName": "standalone",
    "advertisedAddress": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerCacheSizeMB": "32",
    "loadBalancerEnabled": "false",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
    "webSocketServiceEnabled": "false",
    "transactionCoordinatorEnabled": "true",
    "brokerShutdownTimeoutMs": "5000",
    "forceDeleteNamespaceAllowed": "true",
    "forceDeleteTenantAllowed": "true",
    # What a test writes stays, also while nobody is connected to its topic.
    "brokerDeleteInactiveTopicsEnabled": "false",
    "journalSyncData": "false",
    "journalMaxGroupWaitMSec": "1",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
    # As in Pulsar's own configuration: what the broker takes, the bookie has to take in its frame.
    "nettyMaxFrameSizeBytes": "5253120",
    "allowLoopback": "true",
    "listeningInterface": "lo" if sys.platform == "linux" else "lo0",
    # Despite its name this makes the bookie take the port it is given.
    "allowEphemeralPorts": "true",
    "numIOThreads": "2",
    "numHttpServerThreads": "8",
    "numOrderedExecutorThreads": "2",
}

# Pulsar's own defaults are a heap and direct memory of 2 GB and a fifth of it as cache, of which it
# forgets what is older than a second. Then each entry is fetched from the bookie, at 40 µs of CPU,
# and nothing is measured but that. Here what was written stays in memory, as long as a durable
# subscription has a consumer and counts as one that keeps up.
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

_LOG4J = """\
appender.file.type=File
appender.file.name=file
appender.file.fileName={folder}/broker.log
appender.file.immediateFlush=true
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{{HH:mm:ss.SSS}} [%t] %-5level %c{{1.}} - %msg%n
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
"""

_FOLDER_PREFIX = "pulsar-spark-broker-"

_KEEP_ALL = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


class AdminError(Exception):
    """The admin REST refused; `status` is the HTTP status."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: {status} {body[:500]}")
        self.status = status


class RealBroker:
    """A broker that runs already, reached by its two addresses; it cannot be started or stopped.

    Tests that would do so are skipped. `admin_url` may be empty: then tests that need the admin
    REST are skipped too.
    """

    def __init__(self, service_url: str, admin_url: str) -> None:
        self.service_url = service_url
        self.admin_url = admin_url

    def admin(self, method: str, path: str, body: Any = None, *, timeout: float = 30.0) -> Any:
        """Call the admin REST and return its answer, parsed if it is JSON, else as text.

        `path` is relative to /admin/v2/ unless it starts with a slash. Raises AdminError.
        """
        if not self.admin_url:
            pytest.skip("PULSAR_SPARK_TEST_ADMIN_URL does not name the broker's admin REST")
        url = urlsplit(self.admin_url)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=timeout)
        target = path if path.startswith("/") else f"/admin/v2/{path}"
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, target, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
        finally:
            connection.close()
        if response.status >= 300:
            raise AdminError(method, path, response.status, text)
        try:
            return json.loads(text)
        except ValueError:
            return text

    def unique_topic(self, prefix: str = "t") -> str:
        """Return a full topic name that no other test uses. It is not created."""
        return f"persistent://public/default/{prefix}-{uuid.uuid4().hex[:12]}"

    def create_topic(self, name: str, partitions: int = 0) -> str:
        """Create a topic, partitioned unless `partitions` is 0, and return its full name."""
        full = name if "://" in name else f"persistent://public/default/{name}"
        if partitions:
            self.admin("PUT", f"{_rest_path(full)}/partitions", partitions)
        else:
            self.admin("PUT", _rest_path(full))
        return full

    def unload(self, topic: str) -> None:
        """Make the broker let go of a topic, which closes all that is open on it."""
        self.admin("PUT", f"{_rest_path(topic)}/unload")

    def start(self, extra: Mapping[str, str] | None = None) -> None:
        """Start it, with these settings of broker.conf on top of what it had."""
        pytest.skip("the tests may not start or stop the broker of PULSAR_SPARK_TEST_URL")

    def stop(self) -> None:
        """Let it shut down in good order; data, ports and settings stay for the next start."""
        pytest.skip("the tests may not start or stop the broker of PULSAR_SPARK_TEST_URL")

    def kill(self) -> None:
        """Stop it the hard way; data, ports and settings stay for the next start."""
        self.stop()

    def restart(self) -> None:
        """Stop it and start it again on the same ports."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the process: connections stay open, nothing answers."""
        self.stop()

    def resume(self) -> None:
        """Let a frozen process go on."""
        self.stop()

    def close(self) -> None:
        """Stop it, if the tests started it, and remove its data."""


class OwnBroker(RealBroker):
    """A broker process of the tests' own; `start` before use, `close` at the end."""

    def __init__(
        self,
        distribution: Distribution,
        extra: Mapping[str, str] | None = None,
        *,
        for_speed: bool = False,
    ) -> None:
        """Prepare a broker that is small and starts fast, or one that has what makes it fast."""
        super().__init__("", "")
        _remove_abandoned_folders()
        self.folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
        self._owner = open(self.folder / "owner", "w")  # noqa: SIM115 - held until `close`
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        self._distribution = distribution
        self._conf = {**_CONF, **(_CONF_FOR_SPEED if for_speed else {}), **(extra or {})}
        self._jvm_flags = [*_JVM_FLAGS, *(_JVM_FLAGS_FOR_SPEED if for_speed else ())]
        self._archive_flag = f"-XX:SharedArchiveFile={distribution.archive}"
        self._process: subprocess.Popen[bytes] | None = None
        self._bookie_port = 0

    @property
    def pid(self) -> int:
        """Process id of the broker. Raises RuntimeError while it does not run."""
        if self._process is None:
            raise RuntimeError("the broker does not run")
        return self._process.pid

    def start(self, extra: Mapping[str, str] | None = None) -> None:
        """Start it and return when topics can be used. Raises BrokerUnavailable."""
        if self._process is not None:
            raise RuntimeError("the broker runs already")
        self._conf.update(extra or {})
        first = not self.service_url
        for attempts_left in (2, 1, 0):
            if first:
                # Someone else may take a port between our choice and the broker's use of it.
                self._choose_ports()
            try:
                self._launch()
                break
            except BrokerUnavailable:
                self.stop()
                if not attempts_left:
                    raise
        if first:
            self.admin("POST", "namespaces/public/default/retention", _KEEP_ALL)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(STOP_SECONDS)
        self._process = None

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._owner.close()

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of what the broker wrote, for error messages."""
        text = ""
        for name in ("broker.log", "console.log"):
            path = self.folder / name
            if path.exists():
                text += "".join(path.read_text("utf-8", "replace").splitlines(True)[-lines:])
        return text

    def _choose_ports(self) -> None:
        service, admin, self._bookie_port = free_ports(3)
        self._conf.update(brokerServicePort=str(service), webServicePort=str(admin))
        self.service_url = f"pulsar://127.0.0.1:{service}"
        self.admin_url = f"http://127.0.0.1:{admin}"

    def _launch(self) -> None:
        conf = self.folder / "standalone.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in self._conf.items()))
        log4j = self.folder / "log4j2.properties"
        log4j.write_text(_LOG4J.format(folder=self.folder))
        command = [
            *_parent_death_signal(),
            self._distribution.java,
            *self._jvm_flags,
            self._archive_flag,
            f"-Dlog4j.configurationFile={log4j}",
            f"-Dpulsar.config.file={conf}",
            # Native libraries are unpacked there, and a kill leaves them.
            f"-Djava.io.tmpdir={self.folder}",
            "-cp",
            f"{self._distribution.lib}/*",
            "org.apache.pulsar.PulsarStandaloneStarter",
            *("-c", str(conf)),
            *("--metadata-dir", str(self.folder / "metadata")),
            *("--bookkeeper-dir", str(self.folder / "bookkeeper")),
            *("--bookkeeper-port", str(self._bookie_port)),
            *("-nfw", "-nss"),
        ]
        log = self.folder / "broker.log"
        log_start = log.stat().st_size if log.exists() else 0
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PULSAR_")}
        with open(self.folder / "console.log", "ab") as console:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
            )
        self._wait_until_ready(time.monotonic() + START_SECONDS)
        self._check_bookie(log, log_start)

    def _wait_until_ready(self, deadline: float) -> None:
        """The broker's port opens long before its default namespace exists: wait for that."""
        assert self._process is not None
        while True:
            if self._process.poll() is not None:
                raise BrokerUnavailable(f"the broker ended by itself:\n{self.log_tail()}")
            try:
                self.admin("GET", "namespaces/public/default", timeout=5.0)
                return
            except (AdminError, OSError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(
                        f"the broker was not ready in {START_SECONDS:.0f} s:\n{self.log_tail()}"
                    ) from None
            time.sleep(0.05)

    def _check_bookie(self, log: Path, log_start: int) -> None:
        """See that the bookie has found its place. Raises BrokerUnavailable.

        After a kill, the bookie's registration of the run before is still there. Taking it over,
        4.0.8 sometimes falls into deleting and renewing its own for many seconds, hundreds of
        times a second, in which no topic can be opened. A stop in good order cleans up.
        """
        with open(log, "rb") as file:
            file.seek(log_start)
            text = file.read()
        if text.count(b"Lock on resource /ledgers/available/") > 10:
            raise BrokerUnavailable("the bookie did not come to rest")


def prepare() -> Distribution:
    """Return all that is needed to start brokers fast; the first call on a machine takes long.

    Raises BrokerUnavailable.
    """
    distribution = obtain()
    if not distribution.archive.exists():
        with lock(distribution.archive.parent, START_SECONDS * 2):
            if not distribution.archive.exists():
                _write_archive(distribution)
    return distribution


def running_broker() -> RealBroker | None:
    """Return the broker that PULSAR_SPARK_TEST_URL names, if it names one."""
    service_url = os.environ.get("PULSAR_SPARK_TEST_URL")
    if not service_url:
        return None
    return RealBroker(service_url, os.environ.get("PULSAR_SPARK_TEST_ADMIN_URL", ""))


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that are free now and that no outgoing connection will get."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise BrokerUnavailable("there are no free ports")


def _remove_abandoned_folders() -> None:
    """Remove working folders of tests that were killed: nobody holds their `owner` file."""
    for owner in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*/owner"):
        with contextlib.suppress(OSError), open(owner) as file:
            # A new one may not be held yet.
            if time.time() - os.fstat(file.fileno()).st_mtime > 60:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)


def _write_archive(distribution: Distribution) -> None:
    """Run a broker once for the JVM to write down the classes it loads.

    Without the archive a broker starts just as well, only slower: so failing here is no failure.
    """
    part = distribution.archive.with_suffix(".part")
    broker = OwnBroker(distribution)
    broker._archive_flag = f"-XX:ArchiveClassesAtExit={part}"
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


def _parent_death_signal() -> list[str]:
    """Have the system end the broker when the tests are killed, where it can.

    The parent, to the system, is the thread that starts the process. Only the main thread is
    sure to live as long as the tests do.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None or threading.current_thread() is not threading.main_thread():
        return []
    return [setpriv, "--pdeathsig", "TERM"]


def _rest_path(topic: str) -> str:
    full = topic if "://" in topic else f"persistent://public/default/{topic}"
    domain, _, rest = full.partition("://")
    tenant, namespace, local = rest.split("/", 2)
    return f"{domain}/{tenant}/{namespace}/{quote(local, safe='')}"
