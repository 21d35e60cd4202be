"""The connections of one client: one for each broker, made when it is first needed."""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import Future
from types import TracebackType

from pulsar_spark.engine.addresses import BrokerAddress, parse_service_url
from pulsar_spark.engine.auth import provider_for
from pulsar_spark.engine.backoff import Deadline
from pulsar_spark.engine.connection import ClientConnection
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.pipeline import Job, run
from pulsar_spark.errors import (
    ClosedError,
    ConnectError,
    ConnectionLost,
    PulsarError,
    RemoteProtocolError,
    UnsupportedFeature,
)


class ConnectionPool:
    """Owns the connections of a client; `close` ends them all. Thread-safe.

    Nothing is connected before it is asked for. Raises OptionError and UnsupportedFeature for
    options that no connection could be made with. A forked child needs a pool of its own.
    """

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.service_url = parse_service_url(options.service_url)
        if self.service_url.tls:
            raise UnsupportedFeature(
                "TLS (pulsar+ssl://) is not supported yet", "Use a pulsar:// service URL."
            )
        self.auth = provider_for(options.auth)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._connections: dict[BrokerAddress, ClientConnection] = {}
        self._starting: dict[BrokerAddress, Future[ClientConnection]] = {}
        self._closed = False
        # Clients spread over the hosts; the one that answered is kept until it fails.
        self._hosts = list(self.service_url.hosts)
        random.shuffle(self._hosts)

    def __enter__(self) -> ConnectionPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def get_async(self, address: BrokerAddress) -> Future[ClientConnection]:
        """Return the future of the connection to a broker; concurrent calls share one.

        It fails as `ClientConnection.start` does. Nothing is retried here.
        """
        if os.getpid() != self._pid:
            raise ClosedError(
                "the client was made by another process and cannot be used after a fork",
                "Make a client of its own in each process.",
            )
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            connection = self._connections.get(address)
            if connection is None or connection.closed:
                connection = ClientConnection(address, self.options, self.auth)
                self._connections[address] = connection
                self._starting[address] = connection.start()
            return self._starting[address]

    def get(self, address: BrokerAddress) -> ClientConnection:
        """Return a connection to a broker; raises ConnectError or the broker's refusal."""
        return self.get_async(address).result()

    def service_job(self) -> Job[ClientConnection]:
        """Return a job that connects to a host of the service URL, trying all of them."""
        errors: list[PulsarError] = []
        with self._lock:
            hosts = list(self._hosts)
        for host in hosts:
            try:
                connection: ClientConnection = yield self.get_async(BrokerAddress(host, host))
            except (ConnectError, ConnectionLost, RemoteProtocolError) as error:
                errors.append(error)
                with self._lock:
                    # Whoever comes next begins with another host.
                    self._hosts.remove(host)
                    self._hosts.append(host)
                continue
            return connection
        if len(errors) == 1:
            raise errors[0]
        reasons = "; ".join(error.what for error in errors)
        raise ConnectError(f"no host of service.url can be reached: {reasons}", errors[0].remedy)

    def service(self) -> ClientConnection:
        """Return a connection to a host of the service URL; raises as `get`."""

        def job(deadline: Deadline) -> Job[ClientConnection]:
            return self.service_job()

        # Each host is given its own time to connect and to answer.
        timeout = 2 * self.options.connection_timeout + 1.0
        return run(job, timeout * len(self.service_url.hosts))

    @property
    def connections(self) -> list[ClientConnection]:
        """The connections that are open or opening."""
        with self._lock:
            return [found for found in self._connections.values() if not found.closed]

    def close(self) -> None:
        """End all connections; those who use them are told ClosedError. May be called twice."""
        if os.getpid() == self._pid:
            with self._lock:
                self._closed = True
                connections = list(self._connections.values())
                self._connections.clear()
                self._starting.clear()
        else:
            connections = list(self._connections.values())
        for connection in connections:
            connection.close()
