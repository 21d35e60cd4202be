"""Fixtures and settings that all tests share."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from pulsar_spark.protocol import implementation as chosen
from pulsar_spark.protocol.implementation import implementation
from tests.support import groups
from tests.support.pulsar_distribution import BrokerUnavailable, Distribution
from tests.support.real_broker import OwnBroker, RealBroker, prepare, running_broker
from tests.support.real_cluster import RealCluster
from tests.support.security import Security

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent

_OWN_BROKER_FIXTURES = {"start_real_broker", "real_cluster", "start_real_cluster"}
_BROKER_FIXTURES = {"_distribution", "real_broker", *_OWN_BROKER_FIXTURES}

# Examples share the machine with brokers and JVMs: a slow one is no fault.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.load_profile("default")

# Set before anything starts a JVM, so that Spark's Python workers find the checkout too.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
# Drivers live for seconds: compiling their code well costs more than it saves.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


# Characters of a line of a failure's reason that are told at once.
_REASON = 300


class _Preparation:
    """Gets the real broker's distribution once, and remembers the reason if that fails."""

    def __init__(self) -> None:
        self.distribution: Distribution | None = None
        self.problem = ""

    def run(self) -> None:
        if self.distribution is None and not self.problem:
            try:
                self.distribution = prepare()
            except BrokerUnavailable as error:
                self.problem = str(error)


_PREPARATION = pytest.StashKey[_Preparation]()
_CLUSTER = pytest.StashKey[RealCluster]()


def pytest_report_header() -> list[str]:
    """Print the versions that the tests run with."""
    packages = ("pyspark", "pyarrow", "protobuf", "crc32c", "lz4", "pulsar-client")
    return [
        "with: " + ", ".join(f"{name} {_version(name)}" for name in packages),
        f"implementation: {implementation()}",
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@pytest.fixture(params=["python", "native"])
def each_implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each implementation in turn, where the choice is not made on import.

    Tests of the compiled one are skipped if it is not installed.
    """
    name: str = request.param
    found = None
    if name == "native":
        try:
            found = import_module("pulsar_spark._kernel")
        except ImportError as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(f"the compiled implementation is not installed: {error}")
    monkeypatch.setattr(chosen, "native", found)
    return name


@pytest.fixture(autouse=True)
def _no_connections_between_tests() -> Iterator[None]:
    """Close the idle connections that the test's plans and tasks left in this process."""
    yield
    # Most tests use none, and some check what an import loads.
    if (context := sys.modules.get("pulsar_spark.engine.context")) is not None:
        context.shared_connections().close_unused()


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Fail a test after which later ones would log more or less."""
    logger = logging.getLogger("pulsar_spark")
    before = logger.level
    yield
    assert logger.level == before


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a real broker, so that `-m "not real_broker"` excludes them.

    A test that uses `request.getfixturevalue` for it should have the mark itself. If several
    processes run the tests, one of them gets all that need Spark, and one all others that need a
    real broker: starting a JVM takes longer than most of these tests. A test may set another group.
    In each process those that need a real cluster come first, one after the other.
    """
    items.sort(key=lambda item: not _needs_cluster(item))
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & _BROKER_FIXTURES:
            item.add_marker(pytest.mark.real_broker)
        is_real = item.get_closest_marker("real_broker") is not None
        has_group = item.get_closest_marker("xdist_group") is not None
        if ("spark" in fixtures or is_real) and not has_group:
            group = groups.SPARK if "spark" in fixtures else groups.REAL_BROKER
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Get the real broker's distribution before the first test, outside of its time limit.

    Raises pytest.UsageError if tests would not stay in the groups that were requested.
    """
    _check_groups(session)
    session.config.stash[_PREPARATION] = preparation = _Preparation()
    if session.config.option.collectonly:
        return
    for item in session.items:
        names = set(getattr(item, "fixturenames", ()))
        if names & _OWN_BROKER_FIXTURES or (
            item.get_closest_marker("real_broker") and running_broker() is None
        ):
            preparation.run()
            return


def _check_groups(session: pytest.Session) -> None:
    if getattr(session.config.option, "loadgroup", False):
        for item in session.items:
            # pytest-xdist gives the group to its scheduler as a part of the node id.
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
                raise pytest.UsageError("this pytest and this pytest-xdist keep no groups")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show what the servers of a real cluster complained of next to a test's failure."""
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    cluster = getattr(item, "funcargs", {}).get("real_cluster")
    if report.failed and cluster is not None:
        report.sections.insert(0, ("Last warnings of the real cluster", cluster.troubles()))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell each failure at once, in a line: the rest comes when all tests have run."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(crash.message if crash is not None else report.longrepr)
        lines = text.strip().splitlines() or [""]
        # An error of a Python worker of Spark is in the last line.
        reason = " … ".join(line[:_REASON] for line in dict.fromkeys((lines[0], lines[-1])))
        print(f"\nFAILED {report.nodeid} ({report.when}): {reason}", file=sys.__stderr__)


@pytest.fixture(scope="session")
def _distribution(request: pytest.FixtureRequest) -> Distribution:
    preparation = request.config.stash[_PREPARATION]
    preparation.run()
    if preparation.distribution is not None:
        return preparation.distribution
    reason = f"no real broker: {preparation.problem}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def real_broker(request: pytest.FixtureRequest) -> Iterator[RealBroker]:
    """A real Pulsar for the whole session; public/default retains everything."""
    running = running_broker()
    if running is not None:
        yield running
        return
    broker = OwnBroker(request.getfixturevalue("_distribution"))
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture
def start_real_broker(
    _distribution: Distribution,
) -> Iterator[Callable[[Mapping[str, str] | None], OwnBroker]]:
    """Start real brokers of the test's own, with further settings of broker.conf."""
    brokers: list[OwnBroker] = []

    def start(extra: Mapping[str, str] | None = None) -> OwnBroker:
        broker = OwnBroker(_distribution, extra)
        brokers.append(broker)
        broker.start()
        return broker

    try:
        yield start
    finally:
        for broker in brokers:
            broker.close()


@pytest.fixture(scope="session")
def cluster_security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    """The certificates and tokens of `real_cluster`."""
    return Security(tmp_path_factory.mktemp("security"))


@pytest.fixture(scope="session")
def _shared_cluster(
    request: pytest.FixtureRequest, _distribution: Distribution, cluster_security: Security
) -> Iterator[Callable[[], RealCluster]]:
    """Return the cluster that runs, or start one; `pytest_runtest_teardown` may close it."""
    stash = request.config.stash

    def running() -> RealCluster:
        if (found := stash.get(_CLUSTER, None)) is not None:
            found.restore()
            return found
        settings = cluster_security.broker_settings | {"proxyRoles": "proxy"}
        stash[_CLUSTER] = cluster = RealCluster(_distribution, settings)
        try:
            cluster.start()
            for role in ("reader", "proxy"):
                cluster_security.permit(cluster, role)
        except BaseException:
            _close_cluster(stash)
            raise
        return cluster

    yield running
    _close_cluster(stash)


def _close_cluster(stash: pytest.Stash) -> None:
    if (cluster := stash.get(_CLUSTER, None)) is not None:
        del stash[_CLUSTER]
        cluster.close()


@pytest.fixture
def real_cluster(_shared_cluster: Callable[[], RealCluster]) -> RealCluster:
    """Two real brokers; both run when a test begins, and are restarted after it stopped them.

    Clients without a token may do everything; `reader` may read and write in public/default.
    """
    return _shared_cluster()


def _needs_cluster(item: pytest.Item | None) -> bool:
    return "real_cluster" in getattr(item, "fixturenames", ())


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close the cluster after the last test that needs it: idle, it takes CPU from all others."""
    if not _needs_cluster(nextitem):
        _close_cluster(item.config.stash)


@pytest.fixture
def start_real_cluster(
    _distribution: Distribution,
) -> Iterator[Callable[[Mapping[str, str] | None], RealCluster]]:
    """Start a cluster of the test's own, with further settings of broker.conf."""
    clusters: list[RealCluster] = []

    def start(extra: Mapping[str, str] | None = None) -> RealCluster:
        clusters.append(RealCluster(_distribution, extra))
        clusters[-1].start()
        return clusters[-1]

    try:
        yield start
    finally:
        for cluster in clusters:
            cluster.close()


@pytest.fixture
def official_client() -> Iterator[Callable[..., Any]]:
    """Open clients of the official package: `official_client(service_url, **options)`."""
    pulsar = pytest.importorskip("pulsar", reason="pulsar-client is not installed")
    clients: list[Any] = []

    def connect(service_url: str, **options: Any) -> Any:
        options.setdefault("logger", pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        options.setdefault("operation_timeout_seconds", 60)
        clients.append(pulsar.Client(service_url, **options))
        return clients[-1]

    try:
        yield connect
    finally:
        for client in clients:
            client.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with two cores and little memory."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("pulsar-spark tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        # Many small queries: compiling each costs more than it saves.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.log.level", "ERROR")
        # The same JVM serves remote clients, on a free port.
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", "0")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect_url(spark: SparkSession) -> str:
    """The address of a Spark Connect server."""
    services: Any = spark._jvm.org.apache.spark.sql.connect.service  # type: ignore[union-attr]
    service = getattr(getattr(services, "SparkConnectService$"), "MODULE$")
    return f"sc://127.0.0.1:{service.localPort()}"
