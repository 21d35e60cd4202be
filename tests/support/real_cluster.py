"""A real Pulsar of several brokers: ZooKeeper, a bookie, two brokers, and proxies on demand.

It takes some ten seconds to start, and 800 MB. Everything is on loopback, in one working folder.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tests.support.java_server import JavaServer, WorkingFolder, free_ports
from tests.support.pulsar_distribution import BrokerUnavailable, Distribution
from tests.support.real_broker import (
    BROKER_CONF,
    KEEP_ALL,
    AdminError,
    RealBroker,
    ServerBroker,
    rest_path,
)
from tests.support.waiting import wait_until

T = TypeVar("T")

_SMALL = ("-Xms32m", "-Xmx128m", "-XX:MaxDirectMemorySize=256m")
_BUNDLES = 8
# The admin REST's answers while topics move between brokers, or brokers start and stop: it belongs
# to another broker, it moved again, or its owner is unknown.
_PASSING = {307, 409, 412, 500, 503}

_STORES = {
    "journalSyncData": "false",
    "journalMaxGroupWaitMSec": "1",
    "ledgerStorageClass": BROKER_CONF["ledgerStorageClass"],
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
    "nettyMaxFrameSizeBytes": BROKER_CONF["nettyMaxFrameSizeBytes"],
    "allowLoopback": "true",
    "advertisedAddress": "127.0.0.1",
    "autoRecoveryDaemonEnabled": "false",
    "dbStorage_writeCacheMaxSizeMb": "32",
    "dbStorage_readAheadCacheMaxSizeMb": "32",
    "dbStorage_rocksDB_blockCacheSize": "8388608",
    "statsProviderClass": "org.apache.bookkeeper.stats.NullStatsProvider",
}

_BROKERS = {
    "clusterName": "c1",
    # After this time, the other broker can take the topics of a killed broker, or of one that gets
    # no CPU time for as long, which must not happen by itself.
    "metadataStoreSessionTimeoutMillis": "6000",
    "loadBalancerEnabled": "true",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
    # Only tests move topics.
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
}


class ClusterBroker(ServerBroker):
    """One broker of a cluster, in a JVM of its own."""

    def __init__(
        self, distribution: Distribution, folder: WorkingFolder, number: int, conf: dict[str, str]
    ) -> None:
        service, admin = free_ports(2)
        super().__init__(f"pulsar://127.0.0.1:{service}", f"http://127.0.0.1:{admin}")
        self.id = f"127.0.0.1:{admin}"
        self._conf = conf | {"brokerServicePort": str(service), "webServicePort": str(admin)}
        place = folder.path / f"broker-{number}"
        arguments = ["--broker-conf", str(place / "broker.conf")]
        main = "org.apache.pulsar.PulsarBrokerStarter"
        self.server = JavaServer(distribution, place, main, arguments)

    def launch(self) -> None:
        """Start it, and do not wait for it."""
        self.server.write_conf("broker.conf", self._conf)
        self.server.launch()

    def wait_until_ready(self) -> None:
        """Wait until it serves topics, and start it again if it ends. Raises BrokerUnavailable.

        A broker that took the place of a killed one has ended by itself. The session of the killed
        one may have ended while this one took over its locks.
        """
        for attempts_left in (2, 1, 0):
            try:
                self.server.wait_until(lambda: self.answers("brokers/ready"))
                break
            except BrokerUnavailable as error:
                if self.server.running or not attempts_left:
                    raise
                print(f"broker {self.id} is started again: {error}")
                self.launch()

    def start(self, extra: Mapping[str, str] | None = None) -> None:
        self._conf.update(extra or {})
        self.launch()
        self.wait_until_ready()


class RealCluster(RealBroker):
    """Two brokers and what they need; `start` before use, `close` at the end.

    The service URL names both brokers; admin requests go to a running one.
    """

    def __init__(self, distribution: Distribution, extra: Mapping[str, str] | None = None) -> None:
        """`extra` are further settings of the brokers."""
        self._distribution = distribution
        self._folder = WorkingFolder()
        self._servers: list[JavaServer] = []
        (self._zookeeper_port, bookie_port) = free_ports(2)
        store = f"zk:127.0.0.1:{self._zookeeper_port}"
        self._stores = {"metadataStoreUrl": store, "configurationMetadataStoreUrl": store}
        self._bookie_conf = _STORES | {
            "bookiePort": str(bookie_port),
            "metadataServiceUri": f"metadata-store:{store}",
        }
        conf = BROKER_CONF | _BROKERS | self._stores | dict(extra or {})
        self.brokers = [
            ClusterBroker(distribution, self._folder, number, conf) for number in range(2)
        ]
        hosts = ",".join(broker.service_url.removeprefix("pulsar://") for broker in self.brokers)
        super().__init__(f"pulsar://{hosts}", self.brokers[0].admin_url)

    # --- life ---------------------------------------------------------------------------------

    def start(self, extra: Mapping[str, str] | None = None) -> None:
        """Start it and return when topics can be used. Raises BrokerUnavailable."""
        self._start_zookeeper()
        self._write_metadata()
        bookie = self._add("bookie", "org.apache.bookkeeper.server.Main", "--conf", "bk.conf")
        port = int(self._bookie_conf["bookiePort"])
        self._bookie_conf |= {
            "journalDirectory": str(bookie.folder / "journal"),
            "ledgerDirectories": str(bookie.folder / "ledgers"),
        }
        bookie.write_conf("bk.conf", self._bookie_conf)
        bookie.launch()
        bookie.wait_until(lambda: _is_open(port))
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_until_ready()
        self._wait_until_both_are_there()
        self.admin("POST", "namespaces/public/default/retention", KEEP_ALL)

    def _start_zookeeper(self) -> None:
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        server = self._add("zookeeper", main, "zoo.cfg")
        settings = {
            # Sessions expire after whole ticks, and may last up to 20 ticks.
            "tickTime": 1000,
            "dataDir": server.folder / "data",
            "clientPort": self._zookeeper_port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "forceSync": "no",
            "maxClientCnxns": 0,
        }
        server.write_conf("zoo.cfg", settings)
        server.launch()
        server.wait_until(lambda: _is_open(self._zookeeper_port))

    def _write_metadata(self) -> None:
        store = self._stores["metadataStoreUrl"]
        first = self.brokers[0]
        setup = self._add(
            "setup",
            "org.apache.pulsar.PulsarClusterMetadataSetup",
            *("-c", "c1", "-md", store, "-cms", store),
            *("-uw", first.admin_url, "-ub", first.service_url),
            *("--initial-num-transaction-coordinators", "2", "-bn", str(_BUNDLES)),
        )
        setup.run_to_its_end()

    def _add(self, name: str, main: str, *arguments: str) -> JavaServer:
        server = JavaServer(
            self._distribution, self._folder.path / name, main, arguments, flags=_SMALL
        )
        self._servers.append(server)
        return server

    def restore(self) -> None:
        """Restart stopped and frozen brokers, and those that ended by themselves."""
        for broker in self.brokers:
            if not broker.server.running:
                broker.launch()
        for broker in self.brokers:
            if broker.server.running:
                broker.resume()
            broker.wait_until_ready()
        self._wait_until_both_are_there()

    def _wait_until_both_are_there(self) -> None:
        wait_until(
            lambda: len(self.admin("GET", "brokers/c1")) == 2, "the brokers found each other"
        )

    def troubles(self) -> str:
        """Return the last warnings and errors of all servers."""
        servers = [*self._servers, *(broker.server for broker in self.brokers)]
        parts = [f"{server.folder.name}:\n{server.troubles()}" for server in servers]
        return "".join(parts)

    def close(self) -> None:
        """Stop it and remove its data."""
        for server in (*self._servers[::-1], *(broker.server for broker in self.brokers)):
            server.kill()
        self._folder.close()

    # --- topics -------------------------------------------------------------------------------

    def admin(self, method: str, path: str, body: Any = None, *, timeout: float = 60.0) -> Any:
        running = next(broker for broker in self.brokers if broker.server.running)
        return running.admin(method, path, body, timeout=timeout)

    def create_topic(self, name: str, partitions: int = 0) -> str:
        create = super().create_topic
        attempts: list[str] = []

        def created() -> str:
            attempts.append(name)
            try:
                return create(name, partitions)
            except AdminError as error:
                # An earlier attempt created it, although it got an error.
                if len(attempts) > 1 and "already exist" in str(error):
                    return name
                raise

        return self._patiently(created, f"{name} can be created")

    def owner(self, topic: str) -> ClusterBroker:
        """Return the broker that serves a topic partition."""
        path = f"/lookup/v2/topic/{rest_path(topic)}"
        answer = self._patiently(lambda: self.admin("GET", path), f"{topic} is served")
        found = answer["brokerUrl"]
        return next(broker for broker in self.brokers if broker.service_url == found)

    def other(self, broker: ClusterBroker) -> ClusterBroker:
        """Return the other broker."""
        return next(found for found in self.brokers if found is not broker)

    def move(self, topic: str, to: ClusterBroker) -> None:
        """Move a topic partition, with all others of its bundle, to a broker."""
        path = rest_path(topic)
        asked = f"/lookup/v2/topic/{path}/bundle"
        bundle = self._patiently(lambda: self.admin("GET", asked), f"{topic} has a bundle")
        namespace = "/".join(path.split("/")[1:3])
        unload = f"namespaces/{namespace}/{bundle}/unload?destinationBroker={to.id}"

        def moved() -> bool:
            # Only the leader knows the destination: it is lost with the leader.
            self._patiently(lambda: self.admin("PUT", unload), f"{to.id} can take {topic}")
            return self.owner(topic) is to

        wait_until(moved, f"{topic} is served by {to.id}")

    def _patiently(self, call: Callable[[], T], what: str) -> T:
        """Call the admin REST, and retry while topics move."""
        found: list[T] = []

        def answered() -> bool:
            try:
                found.append(call())
            except AdminError as error:
                if error.status not in _PASSING:
                    raise
                return False
            except (OSError, http.client.HTTPException):
                return False
            return True

        wait_until(answered, what)
        return found[0]

    # --- proxies ------------------------------------------------------------------------------

    def start_proxy(self, settings: Mapping[str, str] | None = None) -> RealBroker:
        """Start a proxy for the brokers and return it as clients see it.

        Raises BrokerUnavailable.
        """
        service, admin = free_ports(2)
        name = f"proxy-{len(self._servers)}"
        server = self._add(
            name, "org.apache.pulsar.proxy.server.ProxyServiceStarter", "--config", "proxy.conf"
        )
        conf = {
            **self._stores,
            "clusterName": "c1",
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "servicePort": str(service),
            "webServicePort": str(admin),
            "brokerProxyAllowedTargetPorts": "*",
            **(settings or {}),
        }
        server.write_conf("proxy.conf", conf)
        server.launch()
        port = conf.get("servicePortTls") or conf["servicePort"]
        server.wait_until(lambda: _is_open(int(port)))
        scheme = "pulsar+ssl" if conf.get("servicePortTls") else "pulsar"
        return RealBroker(f"{scheme}://127.0.0.1:{port}", f"http://127.0.0.1:{admin}")


def _is_open(port: int) -> bool:
    socket.create_connection(("127.0.0.1", port), 5.0).close()
    return True
