"""Addresses: the service URL that a user gives, and the brokers that lookups name.

Hosts are kept as ``host:port`` text, IPv6 literals in brackets, because that is what lookups
answer and what CONNECT.proxy_to_broker_url carries.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_spark.errors import (
    ConnectError,
    OptionError,
    PulsarError,
    RemoteProtocolError,
    TlsError,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb

DEFAULT_PORT = 6650
DEFAULT_TLS_PORT = 6651
_MAX_PORT = 65535

_DEFAULT_PORTS = {
    "pulsar": DEFAULT_PORT,
    "pulsar+ssl": DEFAULT_TLS_PORT,
    "http": 80,
    "https": 443,
}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?")
_MAX_URL = 4096

_REMEDY = "Write pulsar://host:6650, or several hosts as pulsar://host1:6650,host2:6650."
_REACH = "Check service.url, and that the brokers run and are reachable from this machine."


@dataclass(frozen=True, slots=True)
class ServiceUrl:
    """A parsed service URL: whether it asks for TLS, and its hosts as ``host:port``.

    `web` tells that they are those of the brokers' web service, where lookups go by REST.
    """

    tls: bool
    hosts: tuple[str, ...]
    web: bool = False


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker is: its own address, and the one to which a socket connects.

    The two differ where a proxy stands before the brokers; CONNECT then names `logical`. Equal
    addresses share one connection.
    """

    logical: str
    physical: str

    @property
    def proxied(self) -> bool:
        """Whether the broker is reached through another address."""
        return self.logical != self.physical


def parse_service_url(text: str) -> ServiceUrl:
    """Return the parts of ``pulsar://host[:port][,host[:port]...]``, and ``pulsar+ssl://``,
    ``http://``, ``https://`` likewise.

    Raises OptionError for anything else. What looks wrong is not repeated in the error: it can
    hold a password.
    """
    scheme, separator, rest = text.strip().partition("://")
    scheme = scheme.lower()
    if not separator or len(text) > _MAX_URL:
        raise OptionError("service.url is not a Pulsar service URL", _REMEDY)
    if "@" in rest:
        raise OptionError(
            "service.url contains a user name or password",
            "Leave it out, and set pulsar.client.authPluginClassName and authParams.",
        )
    if scheme not in _DEFAULT_PORTS:
        raise OptionError(
            "the scheme of service.url is not pulsar, pulsar+ssl, http or https", _REMEDY
        )
    port = _DEFAULT_PORTS[scheme]
    hosts = tuple(_host(part, port) for part in rest.removesuffix("/").split(","))
    secure = scheme in ("pulsar+ssl", "https")
    return ServiceUrl(secure, tuple(dict.fromkeys(hosts)), scheme.startswith("http"))


def parse_broker_url(text: str | bytes) -> ServiceUrl:
    """Return the parts of a URL that a broker named; raises RemoteProtocolError if it is none.

    Protobuf hands out bytes where a text is not UTF-8.
    """
    try:
        url = parse_service_url(text) if isinstance(text, str) else None
    except OptionError:
        url = None
    if url is None or url.web or len(url.hosts) != 1:
        raise RemoteProtocolError("the broker named an address that is not a Pulsar URL")
    return url


def assigned_broker(
    command: pb.CommandCloseConsumer | pb.CommandCloseProducer, old: BrokerAddress, tls: bool
) -> BrokerAddress | None:
    """Return the broker that the broker at `old` names when it closes a consumer or producer.

    None, so that a lookup decides, if it names none or one of another scheme than the service
    URL's (`tls`): TLS is never left for a plain connection.
    """
    text = command.assignedBrokerServiceUrlTls if tls else command.assignedBrokerServiceUrl
    if not text:
        return None
    try:
        url = parse_broker_url(text)
    except RemoteProtocolError:
        return None
    if url.tls != tls:
        return None
    host = url.hosts[0]
    return BrokerAddress(host, old.physical if old.proxied else host)


def split_host_port(address: str) -> tuple[str, int]:
    """Return host (without brackets) and port of ``host:port``; raises OptionError."""
    host, _, port = _host(address, DEFAULT_PORT).rpartition(":")
    return host.strip("[]"), int(port)


def unreachable(errors: Sequence[PulsarError]) -> PulsarError:
    """Return the error of who has tried all hosts of a service URL, each of which failed."""
    if len(errors) == 1:
        return errors[0]
    reasons = "; ".join(dict.fromkeys(error.what for error in errors))
    # Where no host will ever do, nothing is gained by asking them again.
    kind = TlsError if all(isinstance(error, TlsError) for error in errors) else ConnectError
    remedy = errors[0].remedy or _REACH
    return kind(f"no host of service.url can be reached: {reasons}", remedy)


def _host(text: str, default: int) -> str:
    match = _HOST.fullmatch(text.strip())
    if match is None:
        raise OptionError("service.url has a part that is not host[:port]", _REMEDY)
    port = int(match[2]) if match[2] else default
    if not 0 < port <= _MAX_PORT:
        raise OptionError(f"service.url has the port {port}, which is out of range", _REMEDY)
    return f"{match[1]}:{port}"
