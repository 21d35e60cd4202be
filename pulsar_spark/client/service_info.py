"""Which cluster a client uses, if that changes: as in the official client."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import NoneType

from pulsar_spark.client.arguments import check_type
from pulsar_spark.client.authentication import Authentication
from pulsar_spark.engine.connections.addresses import parse_service_url, split_host_port
from pulsar_spark.engine.options import AuthOptions
from pulsar_spark.errors import OptionError
from pulsar_spark.logs import get_logger

logger = get_logger(__name__)

# A day; nobody means more.
_MOST_MILLISECONDS = 86_400_000


class ServiceInfo:
    """How to connect to one cluster. Its `repr` shows no credentials.

    Raises OptionError for values of other types, and for what is no service URL.
    """

    def __init__(
        self,
        service_url: str,
        authentication: Authentication | None = None,
        tls_trust_certs_file_path: str | None = None,
    ) -> None:
        check_type(str, service_url, "service_url")
        check_type((Authentication, NoneType), authentication, "authentication")
        check_type((str, NoneType), tls_trust_certs_file_path, "tls_trust_certs_file_path")
        self._url = parse_service_url(service_url)
        self._service_url = service_url
        self._trusted = tls_trust_certs_file_path
        self.auth = AuthOptions() if authentication is None else authentication.options
        """The options of the authentication."""

    @property
    def service_url(self) -> str:
        """The service URL as it was given."""
        return self._service_url

    @property
    def use_tls(self) -> bool:
        """Whether connections use TLS, as the URL's scheme says."""
        return self._url.tls

    @property
    def tls_trust_certs_file_path(self) -> str | None:
        """The authorities to trust, None for the system's."""
        return self._trusted

    @property
    def hosts(self) -> tuple[str, ...]:
        """The URL's hosts as ``host:port``."""
        return self._url.hosts

    def __repr__(self) -> str:
        return (
            f"ServiceInfo(service_url={self.service_url!r}, use_tls={self.use_tls!r}, "
            f"tls_trust_certs_file_path={self.tls_trust_certs_file_path!r})"
        )


class ServiceInfoProvider:
    """Base class of those who tell a client which cluster to use.

    `Client(provider)` starts with `initial_service_info`, and switches whenever the function that
    it gives to `initialize` is called with another one.
    """

    def initial_service_info(self) -> ServiceInfo:
        """Return the cluster to begin with."""
        raise NotImplementedError

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Take the function to call, on any thread, when the client shall use another cluster.

        It does not wait for the new cluster. Raises OptionError for what is no ServiceInfo, or
        cannot be connected to; what comes after the client is closed is left out.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Free resources; called when the client is closed."""


class AutoClusterFailover:
    """Has a client leave a cluster of which no host can be reached for the next one.

    Every `check_interval_ms` it is tried to connect to the cluster in use. After
    `failover_threshold` checks without success the client switches to the first of `secondary` that
    can be reached, and back after `switch_back_threshold` checks in which the primary could be.
    Raises OptionError for values that cannot be meant.
    """

    def __init__(
        self,
        primary: ServiceInfo,
        secondary: list[ServiceInfo],
        check_interval_ms: int = 5000,
        failover_threshold: int = 1,
        switch_back_threshold: int = 1,
    ) -> None:
        check_type(ServiceInfo, primary, "primary")
        check_type(list, secondary, "secondary")
        if not secondary:
            raise OptionError("secondary is empty, it must have at least one ServiceInfo")
        for number, each in enumerate(secondary):
            check_type(ServiceInfo, each, f"secondary[{number}]")
        numbers = {
            "check_interval_ms": check_interval_ms,
            "failover_threshold": failover_threshold,
            "switch_back_threshold": switch_back_threshold,
        }
        for name, value in numbers.items():
            check_type(int, value, name)
            if not 0 < value <= _MOST_MILLISECONDS:
                raise OptionError(f"{name} is {value}, it must be from 1 to {_MOST_MILLISECONDS}")
        self.primary = primary
        self.secondary = list(secondary)
        self.check_interval_ms = check_interval_ms
        self.failover_threshold = failover_threshold
        self.switch_back_threshold = switch_back_threshold

    def __repr__(self) -> str:
        return (
            f"AutoClusterFailover(primary={self.primary!r}, secondary={self.secondary!r}, "
            f"check_interval_ms={self.check_interval_ms!r}, "
            f"failover_threshold={self.failover_threshold!r}, "
            f"switch_back_threshold={self.switch_back_threshold!r})"
        )


class Failover(ServiceInfoProvider):
    """The provider of an AutoClusterFailover. Its thread starts with `begin`."""

    def __init__(self, rules: AutoClusterFailover, connection_timeout: float) -> None:
        self._rules = rules
        self._timeout = connection_timeout
        self._switch: Callable[[ServiceInfo], None] = lambda info: None
        self._over = threading.Event()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._thread: threading.Thread | None = None
        # The following belong to the thread.
        self._current = rules.primary
        self._failures = 0
        self._recoveries = 0

    @property
    def service_infos(self) -> list[ServiceInfo]:
        """All clusters that it may choose."""
        return [self._rules.primary, *self._rules.secondary]

    def initial_service_info(self) -> ServiceInfo:
        """Return the primary cluster."""
        return self._rules.primary

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Take the function to call."""
        self._switch = on_service_info_update

    def begin(self) -> None:
        """Start checking, unless that is done."""
        with self._lock:
            if self._thread is not None or self._over.is_set():
                return
            thread = threading.Thread(target=self._work, name="pulsar-spark-failover", daemon=True)
            # If no thread can be started now, the next call tries again.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """Stop checking. A check that is under way ends by itself, at its timeout."""
        self._over.set()

    def _work(self) -> None:
        while not self._over.wait(self._rules.check_interval_ms / 1000):
            try:
                self._check()
            except Exception:
                logger.exception("the check which cluster to use has failed")

    def _check(self) -> None:
        rules = self._rules
        if self._answers(self._current):
            self._failures = 0
            self._look_back()
            return
        self._failures += 1
        if self._failures < rules.failover_threshold:
            self._look_back()
            return
        others = [each for each in self.service_infos if each is not self._current]
        found = next(filter(self._answers, others), None)
        if found is not None:
            self._use(found)
        else:
            self._recoveries = 0

    def _look_back(self) -> None:
        """Return to the primary cluster once it has been there for long enough."""
        if self._current is self._rules.primary:
            return
        if not self._answers(self._rules.primary):
            self._recoveries = 0
            return
        self._recoveries += 1
        if self._recoveries >= self._rules.switch_back_threshold:
            self._use(self._rules.primary)

    def _use(self, info: ServiceInfo) -> None:
        if self._over.is_set():
            return
        logger.warning("switching from %s to %s", self._current.service_url, info.service_url)
        self._current = info
        self._failures = self._recoveries = 0
        self._switch(info)

    def _answers(self, info: ServiceInfo) -> bool:
        """Whether one of a cluster's hosts accepts a connection in time."""
        return any(not self._over.is_set() and self._accepts(host) for host in info.hosts)

    def _accepts(self, host: str) -> bool:
        try:
            with contextlib.closing(socket.create_connection(split_host_port(host), self._timeout)):
                return True
        except OSError as error:
            logger.info("%s cannot be reached: %s", host, error)
            return False
