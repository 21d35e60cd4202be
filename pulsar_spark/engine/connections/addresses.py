"""Addresses: a user's service URL, and the brokers that lookups return.

Hosts are ``host:port`` text, with IPv6 literals in brackets, as in lookup answers and in
CONNECT.proxy_to_broker_url.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pulsar_spark.errors import (
    BrokerError,
    BrokerUnreachable,
    ConnectError,
    ConnectTimeout,
    IssuerUnreachable,
    OptionError,
    PulsarError,
    RemoteProtocolError,
    TlsError,
    holds_secret,
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
    """A parsed service URL: its scheme's TLS setting, and its hosts as ``host:port``.

    With `web`, the hosts are web services, and lookups use REST.
    """

    tls: bool
    hosts: tuple[str, ...]
    web: bool = False


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker's own address, and the address that a socket connects to.

    They differ behind a proxy; CONNECT then names `logical`. Equal addresses share one
    connection. `cluster` counts the clusters that a client has switched to: an address is only
    good for the one that named it, and gets no other one's credentials.
    """

    logical: str
    physical: str
    cluster: int = 0

    @property
    def proxied(self) -> bool:
        """Whether a socket connects to another address than the broker's."""
        return self.logical != self.physical


@lru_cache(maxsize=1_000)
def parse_service_url(text: str) -> ServiceUrl:
    """Parse ``pulsar://host[:port][,host[:port]...]``, ``pulsar+ssl://``, ``http://`` or
    ``https://``.

    Raises OptionError for anything else, without the invalid text: it can hold a password.
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


def parse_broker_url(text: str | bytes, secrets: Iterable[str | bytes] = ()) -> ServiceUrl:
    """Parse a URL that a broker returned; raises RemoteProtocolError if it is invalid.

    It must not contain `secrets`, credentials that the broker was sent: the name service would be
    asked for them, and errors and logs would show them. Protobuf returns bytes if a text is not
    UTF-8.
    """
    refuse_secret(text, secrets)
    try:
        url = parse_service_url(text) if isinstance(text, str) else None
    except OptionError:
        url = None
    if url is None or url.web or len(url.hosts) != 1:
        raise RemoteProtocolError("the broker named an address that is not a Pulsar URL")
    return url


def refuse_secret(address: str | bytes, secrets: Iterable[str | bytes]) -> None:
    """Raise RemoteProtocolError if an address that a broker returned contains credentials."""
    if holds_secret(address, secrets):
        raise RemoteProtocolError(
            "the broker named an address that contains credentials which it was sent",
            "Check the advertised addresses of the brokers, and change these credentials.",
        )


def assigned_broker(
    command: pb.CommandCloseConsumer | pb.CommandCloseProducer,
    old: BrokerAddress,
    tls: bool,
    secrets: Iterable[str | bytes] = (),
) -> BrokerAddress | None:
    """Return the broker that the broker at `old` names when it closes a consumer or producer.

    None, so that a lookup decides, if it names none or one with `secrets`, or if its scheme is not
    the service URL's (`tls`): a TLS connection must never become a plain one.
    """
    text = command.assignedBrokerServiceUrlTls if tls else command.assignedBrokerServiceUrl
    if not text:
        return None
    try:
        url = parse_broker_url(text, secrets)
    except RemoteProtocolError:
        return None
    if url.tls != tls:
        return None
    host = url.hosts[0]
    return BrokerAddress(host, old.physical if old.proxied else host, old.cluster)


def split_host_port(address: str) -> tuple[str, int]:
    """Return host (without brackets) and port of ``host:port``; raises OptionError."""
    host, _, port = _host(address, DEFAULT_PORT).rpartition(":")
    return host.strip("[]"), int(port)


def unreachable(errors: Sequence[PulsarError], *, fails_fast: bool) -> PulsarError:
    """Return one error for a service URL whose hosts all failed.

    With `fails_fast` it is a BrokerUnreachable if no host answered, or tokens could not be had.
    """
    unanswered = (ConnectTimeout, IssuerUnreachable)
    if fails_fast and all(isinstance(error, unanswered) for error in errors):
        reasons = "; ".join(dict.fromkeys(error.what for error in errors))
        return BrokerUnreachable(reasons, errors[0].remedy or _REACH, broker=errors[0].broker)
    if len(errors) == 1 or all(isinstance(error, BrokerError) for error in errors):
        return errors[0]
    reasons = "; ".join(dict.fromkeys(error.what for error in errors))
    # If the failures are permanent, trying the hosts again is useless.
    kind = TlsError if all(isinstance(error, TlsError) for error in errors) else ConnectError
    remedy = errors[0].remedy or _REACH
    return kind(f"no host of service.url can be reached: {reasons}", remedy)


def too_many_redirects(limit: int) -> RemoteProtocolError:
    """Return the error for a lookup with too many redirects."""
    return RemoteProtocolError(
        f"the lookup met too many redirects ({limit})",
        "Check the advertised addresses of the brokers.",
    )


def _host(text: str, default: int) -> str:
    match = _HOST.fullmatch(text.strip())
    if match is None:
        raise OptionError("service.url has a part that is not host[:port]", _REMEDY)
    port = int(match[2]) if match[2] else default
    if not 0 < port <= _MAX_PORT:
        raise OptionError(f"service.url has the port {port}, which is out of range", _REMEDY)
    return f"{match[1]}:{port}"
