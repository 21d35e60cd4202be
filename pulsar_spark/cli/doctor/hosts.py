"""The hosts of a service URL, looked at as a client meets them: name, TCP, TLS, CONNECT, login."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from pulsar_spark.cli.admin import Admin
from pulsar_spark.cli.doctor.steps import Finding, Skipped, some
from pulsar_spark.engine.authentication.providers import AuthProvider
from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.connections.addresses import BrokerAddress, parse_service_url
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.tls import tls_context
from pulsar_spark.engine.connections.transport import Transport, resolve
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.retry import Deadline
from pulsar_spark.errors import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    ConnectionLost,
    PulsarError,
    RemoteProtocolError,
    TlsError,
    TopicNotFound,
)

_Login: TypeAlias = "ClientConnection | PulsarError | None"

_MAX_HOSTS_AT_ONCE = 16
_UNASKED_SECONDS = 5.0
_WANTED = (
    "It may want a client certificate, or another one: set pulsar.client.tlsCertificateFilePath "
    "and pulsar.client.tlsKeyFilePath to one that the broker's authority signed, and to its key."
)


class Hosts(Closing):
    """The hosts of a service URL; those that fail a step are left out of the next one.

    Holds connections. Raises OptionError for a service URL that is none.
    """

    def __init__(self, options: ClientOptions, auth: AuthProvider) -> None:
        self._options = options
        self._auth = auth
        self._url = parse_service_url(options.service_url)
        # Lookups by REST do not go through a proxy, as with Java's client.
        self._proxy = None if self._url.web else options.proxy
        # Those that are left, and how each of them took our CONNECT.
        self._hosts = list(self._url.hosts)
        self._logins: dict[str, _Login] = {}
        self._no_credentials: PulsarError | None = None

    @property
    def web(self) -> bool:
        """Whether they are web services, for lookups by REST."""
        return self._url.web

    @property
    def reachable(self) -> ClientOptions:
        """The options with the hosts that are left."""
        hosts = ",".join(self._hosts)
        return replace(self._options, service_url=f"{self._scheme}://{hosts}")

    def close(self) -> None:
        """End the connections."""
        for login in self._logins.values():
            if isinstance(login, ClientConnection):
                login.close()

    def resolve(self) -> Finding:
        """Have their names resolved."""
        return self._of_each_host(self._addresses)

    def _addresses(self, host: str) -> str:
        where = self._proxy or host
        found = resolve(where, Deadline(self._options.connection_timeout))
        return f"{where} is {some(dict.fromkeys(str(target[0]) for _, target in found))}"

    def connect(self) -> Finding:
        """Connect to them by TCP."""
        return self._of_each_host(self._open)

    def _open(self, host: str) -> str:
        self._connected(host).close()
        return f"{self._proxy or host} accepts connections"

    def _connected(self, host: str, tls: ssl.SSLContext | None = None) -> Transport:
        timeout = self._options.connection_timeout
        return Transport.connect(host, timeout, tls=tls, proxy=self._proxy)

    @property
    def _scheme(self) -> str:
        return self._options.service_url.partition("://")[0].lower()

    def tls(self) -> Finding:
        """Agree on TLS with them."""
        try:
            self._auth.auth_data()
        except PulsarError as error:
            self._no_credentials = error
        except Exception as error:
            # Of a class of the user's own. Its text may quote a secret.
            self._no_credentials = AuthenticationError(
                f"credentials could not be obtained ({type(error).__name__})"
            )
        if not self._url.tls:
            raise Skipped(f"service.url is {self._scheme}://, without TLS")
        return self._of_each_host(self._secure)

    def _secure(self, host: str) -> str:
        context = tls_context(self._options)
        self._connected(host, context).close()
        if self._no_credentials is None:
            # That our certificate is not taken, or is missed, can come as late as this.
            login = self._login(host)
            if isinstance(login, TlsError):
                raise login
            if isinstance(login, ConnectError | ConnectionLost):
                self._check_welcome(host, context)
        if self._options.tls.allow_insecure:
            return f"{host} speaks TLS; its certificate is not checked"
        return f"{host} speaks TLS, with a certificate that is trusted"

    def _check_welcome(self, host: str, context: ssl.SSLContext | None) -> None:
        """Raise TlsError if a host that let a login fail ends connections unasked."""
        transport = self._connected(host, context)
        try:
            gone = transport.receive(_UNASKED_SECONDS) == b""
        except (ConnectionLost, TlsError):
            gone = True
        finally:
            transport.close()
        if gone:
            raise TlsError(
                f"{host} ends connections once TLS is agreed on, before anything is asked", _WANTED
            )

    def handshake(self) -> Finding:
        """Send CONNECT to them."""
        if self._no_credentials is not None:
            raise Skipped("not tried: there are no credentials to send")
        return self._of_each_host(self._greeting)

    def _greeting(self, host: str) -> str:
        login = self._login(host)
        if isinstance(login, AuthenticationError | AuthorizationError):
            return f"{host} speaks {'HTTP' if self._url.web else 'the protocol of Pulsar'}"
        if isinstance(login, PulsarError):
            raise login
        if login is None:
            return f"{host} is a web service of Pulsar, for lookups by REST"
        told = login.connected
        return (
            f"{host} is {told.server_version or 'a broker without a version'}, protocol version "
            f"{told.protocol_version}, messages of up to {login.max_message_size} bytes"
        )

    def authenticate(self) -> Finding:
        """See whether they let us in."""
        if self._no_credentials is not None:
            raise self._no_credentials
        return self._of_each_host(self._welcome)

    def _welcome(self, host: str) -> str:
        login = self._login(host)
        if isinstance(login, PulsarError):
            raise login
        method = self._auth.method_name
        return f"{host} wants no credentials" if method == "none" else f"{host} took the {method}"

    def _login(self, host: str) -> _Login:
        """Return the connection that a host let us make, or why it did not; tried once.

        It is None for a web service that let us in.
        """
        look: Callable[[str], _Login] = self._asked_by_rest if self._url.web else self._session
        if host not in self._logins:
            try:
                self._logins[host] = look(host)
            except PulsarError as error:
                self._logins[host] = error
        return self._logins[host]

    def _session(self, host: str) -> ClientConnection:
        return ClientConnection(BrokerAddress(host, host), self._options, self._auth).open()

    def _asked_by_rest(self, host: str) -> None:
        with Admin(self._options, self._auth, f"{self._scheme}://{host}") as admin:
            try:
                admin.get("clusters")
            except AuthorizationError:
                # It knows who asks.
                return
            except TopicNotFound:
                raise RemoteProtocolError(f"{host} is no web service of Pulsar") from None

    def _of_each_host(self, look: Callable[[str], str]) -> Finding:
        """Look at all hosts that are left, at the same time; those that fail are left out then.

        Raises the error if none is left.
        """

        gate = threading.Semaphore(_MAX_HOSTS_AT_ONCE)
        found: dict[str, str | PulsarError] = {}

        def attempt(host: str) -> None:
            with gate:
                try:
                    found[host] = look(host)
                except PulsarError as error:
                    found[host] = error

        # Nobody who interrupts waits for them.
        threads = [
            threading.Thread(target=attempt, args=(host,), daemon=True) for host in self._hosts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results = [found[host] for host in self._hosts]
        errors = [result for result in results if isinstance(result, PulsarError)]
        if len(errors) == len(results) == 1:
            raise errors[0]
        told = "; ".join(
            f"{host}: {result.what}" if isinstance(result, PulsarError) else result
            for host, result in zip(self._hosts, results, strict=True)
        )
        if len(errors) == len(results):
            raise type(errors[0])(told, errors[0].remedy)
        self._hosts = [
            host
            for host, result in zip(self._hosts, results, strict=True)
            if not isinstance(result, PulsarError)
        ]
        return Finding(told, errors[0].remedy if errors else "")
