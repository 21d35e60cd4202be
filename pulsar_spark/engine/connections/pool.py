"""The connections of one client to a cluster, each made when it is needed first."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from pulsar_spark.engine.authentication.providers import AuthProvider, provider_for
from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.connections.addresses import (
    BrokerAddress,
    assigned_broker,
    parse_broker_url,
    parse_service_url,
    unreachable,
)
from pulsar_spark.engine.connections.connection import CLOSE_TIMEOUT, ClientConnection
from pulsar_spark.engine.connections.http_client import HttpClient
from pulsar_spark.engine.connections.tls import warn_of_insecure
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.forks import fork_count, used_after_fork
from pulsar_spark.engine.operations import Operation, Within, run
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.retry import can_pass
from pulsar_spark.errors import (
    AuthenticationError,
    BrokerError,
    ClosedError,
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
    UnsupportedFeature,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_spark.engine.lookups.known_brokers import KnownBrokers


# A broker can also refuse connections because it has too many.
_OTHER_HOSTS_MAY_DO = BrokerError, ConnectError, ConnectionLost, RemoteProtocolError


class Waiting(Protocol):
    """May wait before its next attempt to attach."""

    def hurry(self) -> None:
        """Make that attempt now."""


class ConnectionPool(Closing):
    """Owns a client's connections; `close` ends them all. Thread-safe.

    Connects on demand, to the cluster of the service URL, which `switch_to` changes. Raises
    OptionError and UnsupportedFeature for options that cannot connect. A forked child needs its own
    pool.
    """

    def __init__(self, options: ClientOptions) -> None:
        self.cluster = -1
        """How often it has switched to another cluster."""
        self._set_up(options, provider_for(options.auth))
        self.known_brokers: KnownBrokers | None = None
        """What its users know of brokers, if it outlives them."""
        self._forks = fork_count()
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._connections: dict[BrokerAddress, ClientConnection] = {}
        self._starting: dict[BrokerAddress, Future[ClientConnection]] = {}
        self._closed = False
        self._waiting: weakref.WeakSet[Waiting] = weakref.WeakSet()

    def _set_up(self, options: ClientOptions, auth: AuthProvider) -> None:
        """Connect to the cluster of these options from now on."""
        warn_of_insecure(options)
        self.cluster += 1
        self.options = options
        self.service_url = parse_service_url(options.service_url)
        self.auth = auth
        web = self.service_url.web
        self.http = HttpClient(options, auth, self.cluster) if web else None
        """For lookups, if the service URL names the brokers' web service."""
        # Clients start at random hosts; one that answers is kept until it fails.
        self._hosts = list(self.service_url.hosts)
        random.SystemRandom().shuffle(self._hosts)

    def add(self, waiting: Waiting) -> None:
        """Hurry somebody at each switch to another cluster, as long as he is needed."""
        with self._lock:
            self._waiting.add(waiting)

    def switch_to(self, options: ClientOptions) -> None:
        """Connect to the cluster of these options from now on.

        Connections to the present one end, and whoever used them attaches to the new one. Raises
        as the constructor, and ClosedError.
        """
        auth = provider_for(options.auth)
        switched = ConnectionLost("the client has switched to another cluster")
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            http, connections = self.http, list(self._connections.values())
            self._set_up(options, auth)
            self._connections.clear()
            self._starting.clear()
            waiting = list(self._waiting)
        if http is not None:
            http.close(switched)
        for connection in connections:
            connection.end(switched)
        for each in waiting:
            each.hurry()

    def get_async(self, address: BrokerAddress) -> Future[ClientConnection]:
        """Return the future of a broker's connection; concurrent calls share one.

        It fails as `ClientConnection.start` does. Never retries.
        """
        if fork_count() != self._forks:
            raise used_after_fork("client")
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            if address.cluster != self.cluster:
                raise ConnectionLost("the client has switched to another cluster")
            connection = self._connections.get(address)
            if connection is None or connection.closed:
                self._forget_closed()
                connection = ClientConnection(address, self.options, self.auth)
                self._starting[address] = connection.start()
                self._connections[address] = connection
            return self._starting[address]

    def _forget_closed(self) -> None:
        """Forget closed connections: a pool can live as long as its process."""
        for address in [at for at, found in self._connections.items() if found.closed]:
            del self._connections[address]
            del self._starting[address]
            if not address.proxied:
                self._try_last(address.physical)

    def _try_last(self, host: str) -> None:
        if host in self._hosts:
            self._hosts.remove(host)
            self._hosts.append(host)

    @contextmanager
    def asking(self, connection: ClientConnection) -> Iterator[None]:
        """Let the next caller start with another host if one fails to answer a question now."""
        try:
            yield
        except PulsarError as error:
            if can_pass(error) or isinstance(error, RemoteProtocolError):
                with self._lock:
                    self._try_last(connection.address.physical)
            raise

    def get(self, address: BrokerAddress) -> ClientConnection:
        """Return a connection to a broker; raises ConnectError or the broker's refusal."""
        return self.get_async(address).result()

    def service_operation(self, deadline: Deadline) -> Operation[ClientConnection]:
        """Return an operation that connects to one of the service URL's hosts, trying all.

        None of them gets the time of the others. Raises UnsupportedFeature for an http(s) URL.
        """
        if self.service_url.web:
            raise UnsupportedFeature(
                "an http:// or https:// service URL names no broker to connect to",
                "Give the brokers' binary address as service.url: pulsar://host:6650.",
            )
        errors: list[PulsarError] = []
        with self._lock:
            cluster, first_host = self.cluster, self._hosts[0]
            first = self._connections.get(BrokerAddress(first_host, first_host, cluster))
            if first is not None and first.closed:
                self._forget_closed()
            hosts = list(self._hosts)
        connection: ClientConnection
        for left, host in zip(range(len(hosts), 0, -1), hosts, strict=True):
            share = deadline.remaining() / left
            try:
                future = self.get_async(BrokerAddress(host, host, cluster))
                wait = left > 1 and not future.done()
                connection = yield Within(future, share) if wait else future
            except AuthenticationError:
                # The others would not accept the credentials either.
                raise
            except OperationTimeout:
                errors.append(ConnectTimeout(f"{host} did not answer within {share:.2g} s"))
            except _OTHER_HOSTS_MAY_DO as error:
                errors.append(error)
            else:
                return connection
            with self._lock:
                self._try_last(host)
        raise unreachable(errors, fails_fast=self.options.fails_fast)

    def broker_host(
        self,
        plain: str | bytes,
        secure: str | bytes,
        secrets: Iterable[str | bytes],
        *,
        proxied: bool = False,
    ) -> str:
        """Choose the broker's host from a lookup's URLs without and with TLS.

        Raises RemoteProtocolError if none has the service URL's scheme, or if it contains
        `secrets`, credentials that were sent with the lookup. The URL of a `proxied` broker is not
        connected to: Pulsar's proxy returns the URL that it uses itself, with or without TLS, in
        both places.
        """
        tls = self.service_url.tls
        named = secure if tls else plain
        secure_form = "https://host:8443" if self.service_url.web else "pulsar+ssl://host:6651"
        if not named and (plain or secure):
            raise RemoteProtocolError(
                f"the lookup named no address {'with' if tls else 'without'} TLS, as service.url "
                "asks for; connections are never downgraded from TLS to plain text",
                "Have TLS enabled on all brokers (brokerServicePortTls), and their addresses "
                "advertised."
                if tls
                else f"Write service.url as {secure_form}.",
            )
        url = parse_broker_url(named, secrets)
        if url.tls != tls and not proxied:
            raise RemoteProtocolError(
                "the lookup named an address of another scheme than service.url's",
                "Check the advertised addresses of the brokers.",
            )
        return url.hosts[0]

    def assigned_broker(
        self, command: pb.CommandCloseProducer | pb.CommandCloseConsumer, old: ClientConnection
    ) -> BrokerAddress | None:
        """Return the broker that `old`'s broker names when it closes a producer or consumer.

        None if a lookup must decide; see `addresses.assigned_broker`.
        """
        return assigned_broker(command, old.address, self.service_url.tls, old.secrets)

    def service(self) -> ClientConnection:
        """Return a connection to a host of the service URL; raises as `get`."""
        # Each host has its own time to connect and to answer.
        timeout = 2 * self.options.connection_timeout + 1.0
        return run(self.service_operation, timeout * len(self.service_url.hosts))

    @property
    def connections(self) -> list[ClientConnection]:
        """The connections that are open or opening."""
        with self._lock:
            return [found for found in self._connections.values() if not found.closed]

    @property
    def used(self) -> bool:
        """Whether it has connected and was not closed. Takes no lock, so finalizers may ask."""
        return bool(self._connections) or self.cluster > 0

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """End all connections; their users get ClosedError. May be called twice.

        Waits up to `timeout` seconds for each.
        """
        if fork_count() == self._forks:
            with self._lock:
                self._closed = True
                connections = list(self._connections.values())
                self._connections.clear()
                self._starting.clear()
        else:
            connections = list(self._connections.values())
        if self.http is not None:
            self.http.close()
        for connection in connections:
            connection.close(timeout)
