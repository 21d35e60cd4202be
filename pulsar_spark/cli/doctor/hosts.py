"""Checks a service URL's hosts, in a client's order: name, TCP, TLS, CONNECT, login."""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from pulsar_spark.cli.admin import Admin
from pulsar_spark.cli.doctor.credentials import refused, token_of
from pulsar_spark.cli.doctor.steps import Finding, Skipped
from pulsar_spark.engine.authentication.providers import AuthProvider, NoAuth
from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.connections.addresses import BrokerAddress, parse_service_url
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.tls import tls_context
from pulsar_spark.engine.connections.transport import Transport, resolve
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    ConnectionLost,
    PulsarError,
    RemoteProtocolError,
    TlsError,
    TopicNotFound,
    listed,
)

_Login: TypeAlias = "ClientConnection | PulsarError | None"

_MAX_HOSTS_AT_ONCE = 16
_UNASKED_SECONDS = 5.0
_WANTED = (
    "It may require a client certificate, or another one: set "
    "pulsar.client.tlsCertificateFilePath and pulsar.client.tlsKeyFilePath to a certificate that "
    "the broker's authority signed, and its key."
)


_PLAIN_PORT = (
    "Its port is the one without TLS. Give the port with TLS (brokerServicePortTls, 6651 unless it "
    "was changed): pulsar+ssl://HOST:6651; or, where nobody can listen, write service.url as "
    "pulsar://{host}."
)
# A broker's name of itself may lack the space before its version.
_VERSION = re.compile(r"(?<=[A-Za-z])(?=\d+\.)")


class Hosts(Closing):
    """The hosts of a service URL; a host that fails a step is left out of the next.

    Holds connections. Raises OptionError for an invalid service URL.
    """

    def __init__(self, options: ClientOptions, auth: AuthProvider) -> None:
        self._options = options
        self._auth = auth
        self._url = parse_service_url(options.service_url)
        # REST lookups do not go through a proxy, as in Java's client.
        self._proxy = None if self._url.web else options.proxy
        # The remaining hosts, and how each of them answered our CONNECT.
        self._hosts = list(self._url.hosts)
        self._logins: dict[str, _Login] = {}
        self._no_credentials: PulsarError | None = None

    @property
    def web(self) -> bool:
        """Whether the hosts are web services, for lookups by REST."""
        return self._url.web

    @property
    def reachable(self) -> ClientOptions:
        """The options with the remaining hosts."""
        hosts = ",".join(self._hosts)
        return replace(self._options, service_url=f"{self._scheme}://{hosts}")

    def close(self) -> None:
        """Close the connections."""
        for login in self._logins.values():
            if isinstance(login, ClientConnection):
                login.close()

    def resolve(self) -> Finding:
        """Resolve the hosts' names."""
        return self._of_each_host(self._addresses)

    def _addresses(self, host: str) -> str:
        where = self._proxy or host
        found = resolve(where, Deadline(self._options.connection_timeout))
        return f"{where} is {listed(dict.fromkeys(str(target[0]) for _, target in found))}"

    def connect(self) -> Finding:
        """Connect to the hosts by TCP."""
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
        """Make TLS handshakes with the hosts."""
        try:
            self._auth.auth_data()
        except PulsarError as error:
            self._no_credentials = error
        except Exception as error:
            # From a user's class. The error's text may quote a secret.
            self._no_credentials = AuthenticationError(
                f"credentials could not be obtained ({type(error).__name__})"
            )
        if not self._url.tls:
            raise Skipped(f"service.url is {self._scheme}://, without TLS")
        return self._of_each_host(self._secure)

    def _secure(self, host: str) -> str:
        context = tls_context(self._options)
        try:
            self._connected(host, context).close()
        except (ConnectError, ConnectionLost) as error:
            if self._speaks_plainly(host):
                raise TlsError(
                    f"{host} speaks without TLS", _PLAIN_PORT.format(host=host)
                ) from error
            raise
        if self._no_credentials is None:
            # A peer may reject our certificate, or ask for one, as late as this.
            login = self._login(host)
            if isinstance(login, TlsError):
                raise login
            if isinstance(login, ConnectError | ConnectionLost):
                self._check_welcome(host, context)
        if self._options.tls.allow_insecure:
            return f"{host} speaks TLS; its certificate is not checked"
        return f"{host} speaks TLS, with a certificate that is trusted"

    def _speaks_plainly(self, host: str) -> bool:
        """Whether a broker at a port that refuses TLS speaks without it; sends no credentials."""
        if self._url.web or self._proxy is not None:
            return False
        plain = replace(self._options, service_url=f"pulsar://{host}")
        try:
            ClientConnection(BrokerAddress(host, host), plain, NoAuth()).open().close()
        except (AuthenticationError, AuthorizationError):
            return True
        except PulsarError:
            return False
        return True

    def _check_welcome(self, host: str, context: ssl.SSLContext | None) -> None:
        """Raise TlsError if a host whose login failed closes connections by itself."""
        transport = self._connected(host, context)
        try:
            gone = transport.receive(_UNASKED_SECONDS) == b""
        except (ConnectionLost, TlsError):
            gone = True
        finally:
            transport.close()
        if gone:
            raise TlsError(f"{host} closes connections right after the TLS handshake", _WANTED)

    def handshake(self) -> Finding:
        """Send CONNECT to the hosts."""
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
        version = _VERSION.sub(" ", told.server_version)
        return (
            f"{host} is {version or 'a broker without a version'}, protocol version "
            f"{told.protocol_version}, messages of up to {login.max_message_size} bytes"
        )

    def authenticate(self) -> Finding:
        """Check whether the hosts accept the credentials."""
        if self._no_credentials is not None:
            raise self._no_credentials
        found, token = self._of_each_host(self._welcome), token_of(self._auth)
        soon = "" if token is None else token.ends_soon
        return Finding(found.detail, " ".join(filter(None, (found.remedy, soon))))

    def _welcome(self, host: str) -> str:
        login = self._login(host)
        if isinstance(login, AuthenticationError):
            raise AuthenticationError(login.what, refused(self._auth)) from login
        if isinstance(login, PulsarError):
            raise login
        method = self._auth.method_name
        if method == "none":
            return f"{host} wants no credentials"
        given = token_of(self._auth) or f"the {method} login"
        return (
            f"{host} accepted the connection with {given}; one without authentication accepts any"
        )

    def _login(self, host: str) -> _Login:
        """Return the connection that a host accepted, or why it did not; tries once.

        It is None for a web service that accepted us.
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
        url = f"{self._scheme}://{host}"
        with Admin(self._options, self._auth, url, "service.url") as admin:
            try:
                admin.get("clusters")
            except AuthorizationError:
                # It knows who we are, so our credentials are accepted.
                return
            except TopicNotFound:
                raise RemoteProtocolError(f"{host} is no web service of Pulsar") from None

    def _of_each_host(self, look: Callable[[str], str]) -> Finding:
        """Check all remaining hosts at the same time; drop those that fail.

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

        # Daemons, so that Ctrl-C does not wait for them.
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
