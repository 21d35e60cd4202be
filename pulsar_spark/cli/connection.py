"""Where commands connect: the environment, a profile file as pulsar-admin has it, a first attempt.

Only commands look there: a query's options say by themselves where its messages come from.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pulsar_spark.cli.output import progress
from pulsar_spark.errors import ConnectError, OptionError, PulsarError, TopicNotFound, redact

if TYPE_CHECKING:
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.engine.options import ClientOptions
    from pulsar_spark.spark.options.resolve import Values

URL_VARIABLE = "PULSAR_SERVICE_URL"
"""Environment variable with the service URL of commands that are given none."""

PROFILE_VARIABLE = "PULSAR_CLIENT_CONF"
"""Environment variable with a profile's path, as pulsar-admin and pulsar-client take it."""

_MAX_PROFILE = 64 * 1024
_LINE = re.compile(r"\s*([^\s=:#!][^\s=:]*)\s*[=: ]\s*(.*?)\s*")

# Keys of Pulsar's client.conf, in lower case → options. Host names are verified here whatever it
# says: its own default is not to.
_OPTIONS = {
    "brokerserviceurl": "service.url",
    "authplugin": "pulsar.client.authPluginClassName",
    "authparams": "pulsar.client.authParams",
    "tlstrustcertsfilepath": "pulsar.client.tlsTrustCertsFilePath",
    "tlscertificatefilepath": "pulsar.client.tlsCertificateFilePath",
    "tlskeyfilepath": "pulsar.client.tlsKeyFilePath",
    "proxyserviceurl": "pulsar.client.proxyServiceUrl",
    "proxyprotocol": "pulsar.client.proxyProtocol",
    "listenername": "pulsar.client.listenerName",
}
# Those that matter only if they are true.
_SWITCHES = {
    "tlsallowinsecureconnection": "pulsar.client.tlsAllowInsecureConnection",
    "usekeystoretls": "pulsar.client.useKeyStoreTls",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """The options that say where a command connects, and the admin REST's address if known."""

    # They have credentials.
    options: dict[str, str] = field(repr=False)
    admin_url: str | None = None
    note: str | None = None
    """What a person should know about where this comes from."""


def cluster_of(profile: str | None, *, named: bool) -> Cluster:
    """Return where a command connects, as a profile or the environment says.

    `named` is whether the command's arguments name the cluster. Then only a profile that they name
    too is read: the credentials of another cluster are not sent there. Otherwise the address of a
    profile that they name comes first, then the environment's service URL, then the address of the
    environment's profile.

    Raises OptionError if nothing says it, or for a profile that cannot be read.
    """
    path = profile or (None if named else _set(PROFILE_VARIABLE))
    found = Cluster({}) if path is None else _profile(Path(path))
    if named:
        return found
    url, address = _set(URL_VARIABLE), found.options.get("service.url")
    if url is not None and address is None:
        found.options["service.url"] = url
    elif url is not None and profile is None:
        return found if _same(url, str(address)) else _without_profile(url, found)
    if "service.url" not in found.options:
        raise _nowhere(path)
    return found


def _same(url: str, other: str) -> bool:
    """Whether two service URLs name the same hosts, whatever their order."""
    from pulsar_spark.engine.connections.addresses import parse_service_url

    try:
        both = [parse_service_url(each) for each in (url, other)]
    except OptionError:
        return url == other
    ours, theirs = ((each.tls, each.web, frozenset(each.hosts)) for each in both)
    return ours == theirs


def _without_profile(url: str, profile: Cluster) -> Cluster:
    """Return the environment's cluster, which is not that of the environment's profile."""
    note = (
        f"{URL_VARIABLE} names another cluster than the profile of {PROFILE_VARIABLE}: nothing of "
        "the profile is used. Give --profile FILE to connect to the profile's cluster."
    )
    return Cluster({"service.url": url}, None, note if len(profile.options) > 1 else None)


def _nowhere(profile: str | None) -> OptionError:
    if profile is not None:
        return OptionError(
            f"the profile {profile} has no brokerServiceUrl",
            "Add the line brokerServiceUrl=pulsar://HOST:6650 to it (webServiceUrl serves the "
            "admin REST only), or give --service-url.",
        )
    return OptionError(
        "no cluster is given",
        f"Give --service-url pulsar://HOST:6650, set {URL_VARIABLE}, or name a profile file "
        f"with --profile or {PROFILE_VARIABLE}.",
    )


@contextlib.contextmanager
def connected(values: Values, *, quiet: bool) -> Iterator[ClientContext]:
    """Yield a client for the options of a command; the service URL could be reached, see `reach`.

    Unless `quiet`, a terminal shows the progress.
    """
    from pulsar_spark.engine.context import ClientContext
    from pulsar_spark.spark.options.read import client_options

    with ClientContext(checked(client_options(values))) as context:
        with progress("connecting", quiet=quiet):
            reach(context)
        yield context


def checked(options: ClientOptions) -> ClientOptions:
    """Return a command's client options; raises OptionError for an unreadable token file."""
    path = options.auth.token_file
    try:
        if path is not None:
            Path(path).open("rb").close()
    except OSError as error:
        raise OptionError(
            f"the token file {redact(str(path))} cannot be read: {error.strerror}",
            "Give the path of a file with the token.",
        ) from None
    return options


def partitions_of(context: ClientContext, topic: str) -> int:
    """Return a topic's number of partitions; raises TopicNotFound that names topics like it."""
    from pulsar_spark.spark.missing_topic import with_near_topics

    try:
        return context.lookup.partitions(topic)
    except TopicNotFound as error:
        raise with_near_topics(context.lookup, error, topic) from error


def reach(context: ClientContext) -> None:
    """Try once to reach the service URL, so that a person needs not wait for the retries.

    Raises ConnectError if all of its hosts refuse, or do not answer in time.
    """
    from pulsar_spark.engine.connections.addresses import unreachable
    from pulsar_spark.engine.connections.transport import Transport

    errors: list[PulsarError] = []
    for host in context.pool.service_url.hosts:
        try:
            # Without TLS and CONNECT: what fails there may pass, and is tried again.
            where = context.options.proxy or host
            Transport.connect(where, context.options.connection_timeout).close()
        except ConnectError as error:
            errors.append(error)
        else:
            return
    raise unreachable(errors, fails_fast=False)


def _set(variable: str) -> str | None:
    return os.environ.get(variable, "").strip() or None


def _profile(path: Path) -> Cluster:
    """Read a profile; raises OptionError. Keys that say nothing about connections are ignored."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_PROFILE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise OptionError(
            f"the profile {path} cannot be read: {reason}",
            "It is a file such as Pulsar's conf/client.conf, with lines brokerServiceUrl=….",
        ) from None
    found = [match.groups() for line in text.splitlines() if (match := _LINE.fullmatch(line))]
    given = {key.lower(): value for key, value in found if value}
    options = {_OPTIONS[key]: value for key, value in given.items() if key in _OPTIONS}
    for key, option in _SWITCHES.items():
        if given.get(key, "").lower() == "true":
            options[option] = "true"
    return Cluster(options, given.get("webserviceurl"))
