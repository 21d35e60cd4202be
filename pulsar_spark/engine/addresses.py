"""Addresses: the service URL that a user gives, and the brokers that lookups name.

Hosts are kept as ``host:port`` text, IPv6 literals in brackets, because that is what lookups
answer and what CONNECT.proxy_to_broker_url carries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pulsar_spark.errors import OptionError, RemoteProtocolError, UnsupportedFeature
from pulsar_spark.protocol import pulsar_api_pb2 as pb

DEFAULT_PORT = 6650
DEFAULT_TLS_PORT = 6651
_MAX_PORT = 65535

_SCHEMES = {"pulsar": False, "pulsar+ssl": True}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?")
_MAX_URL = 4096

_REMEDY = "Write pulsar://host:6650, or several hosts as pulsar://host1:6650,host2:6650."


@dataclass(frozen=True, slots=True)
class ServiceUrl:
    """A parsed service URL: whether it asks for TLS, and its hosts as ``host:port``."""

    tls: bool
    hosts: tuple[str, ...]


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
    """Return the parts of ``pulsar://host[:port][,host[:port]...]`` or ``pulsar+ssl://...``.

    Raises OptionError for anything else, UnsupportedFeature for http(s) URLs. What looks wrong
    is not repeated in the error: it can hold a password.
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
    if scheme in ("http", "https"):
        raise UnsupportedFeature(
            f"lookups over {scheme} are not supported yet",
            "Give the broker's binary address as service.url: pulsar://host:6650.",
        )
    if scheme not in _SCHEMES:
        raise OptionError("the scheme of service.url is not pulsar or pulsar+ssl", _REMEDY)
    tls = _SCHEMES[scheme]
    hosts = tuple(_host(part, tls) for part in rest.removesuffix("/").split(","))
    return ServiceUrl(tls, tuple(dict.fromkeys(hosts)))


def parse_broker_url(text: str | bytes) -> ServiceUrl:
    """Return the parts of a URL that a broker named; raises RemoteProtocolError if it is none.

    Protobuf hands out bytes where a text is not UTF-8.
    """
    try:
        url = parse_service_url(text) if isinstance(text, str) else None
    except (OptionError, UnsupportedFeature):
        url = None
    if url is None or len(url.hosts) != 1:
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
    host, _, port = _host(address, tls=False).rpartition(":")
    return host.strip("[]"), int(port)


def _host(text: str, tls: bool) -> str:
    match = _HOST.fullmatch(text.strip())
    if match is None:
        raise OptionError("service.url has a part that is not host[:port]", _REMEDY)
    default = DEFAULT_TLS_PORT if tls else DEFAULT_PORT
    port = int(match[2]) if match[2] else default
    if not 0 < port <= _MAX_PORT:
        raise OptionError(f"service.url has the port {port}, which is out of range", _REMEDY)
    return f"{match[1]}:{port}"
