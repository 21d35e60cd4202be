"""What the doctor looks at, one step after the other, as a client would go.

Nothing is left behind: no message is sent, no topic, subscription or schema is made. So topics
are asked about without creating them, only partitions that exist are touched, reading is tried
with a subscription that is not durable, and writing with a producer that sends nothing and
brings the schema that the topic has.
"""

from __future__ import annotations

import ssl
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from pulsar_spark.cli.admin import Admin
from pulsar_spark.engine.authentication.providers import AuthProvider, provider_for
from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.connections.addresses import BrokerAddress, parse_service_url
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.connections.tls import tls_context
from pulsar_spark.engine.connections.transport import Transport, resolve
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.lookups.binary_lookup import WITHOUT_CREATION
from pulsar_spark.engine.operations import Operation
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.producers.producer_session import Identity, ProducerSession
from pulsar_spark.engine.retry import Deadline
from pulsar_spark.errors import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    ConnectionLost,
    InvalidTxnStatus,
    NotAllowed,
    PulsarError,
    RemoteProtocolError,
    TlsError,
    TopicNotFound,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
    UnsupportedVersion,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.schema.registry import latest_schemas

_Login: TypeAlias = "ClientConnection | PulsarError | None"

OK, FAILED, SKIPPED = "ok", "failed", "skipped"

_STANDS_ON = {
    "connect": "resolve",
    "tls": "connect",
    "handshake": "tls",
    "authenticate": "handshake",
    "lookup": "authenticate",
    "partitions": "lookup",
    "read": "partitions",
    "write": "partitions",
    "schema": "partitions",
    "transactions": "authenticate",
}
"""Step → the one without which it makes no sense."""

_MAX_HOSTS_AT_ONCE = 16
_UNASKED_SECONDS = 5.0
_MAX_LOOKED_AT = 100
_SHOWN = 5
# Of a coordinator that no cluster has: nothing can be changed by naming it.
_NO_TXN = commands.TxnId(2**40, 0)
_CREATE = (
    "Check the name, tenant and namespace, or create the topic (pulsar-admin topics create, "
    "create-partitioned-topic); reading never does."
)
_PORTS = (
    "Check that service.url names a Pulsar broker or proxy, and its port: 6650 for pulsar://, 6651 "
    "for pulsar+ssl://, 8080 for http://, 8443 for https://, unless they were changed."
)
_REMEDIES = {"connect": _PORTS, "tls": _PORTS, "handshake": _PORTS}
_NAME_ONE = "Name a topic with --topic."
_NAME_ONE = "Name a topic with --topic."
_ASK_THE_BROKER = "The log of the broker says more."
_WANTED = (
    "It may want a client certificate, or another one: set pulsar.client.tlsCertificateFilePath "
    "and pulsar.client.tlsKeyFilePath to one that the broker's authority signed, and to its key."
)
_ADVERTISED = (
    "A client connects to the address that the broker advertises: have it advertise one that this "
    "machine can reach (advertisedAddress, or advertisedListeners with "
    "pulsar.client.listenerName), or give a Pulsar proxy as service.url."
)
_BEHIND = (
    "The proxy does not get through to the broker; its log says why. It needs credentials of its "
    "own for the brokers (brokerClientAuthenticationParameters), which have to know its role "
    "(proxyRoles), and to be allowed their addresses (brokerProxyAllowedTargetPorts)."
)
_TENANTS_ADMIN = "An administrator of the tenant may ask: log in as one, or leave --admin-url out."
_EXPIRES = (
    "A message that a stream has not read when its time to live (message TTL) is over is lost to "
    "it: have that longer than a query may stand still."
)
_TRANSACTIONS = (
    "For deliveryGuarantee=exactly-once, set transactionCoordinatorEnabled=true in the "
    "configuration of all brokers."
)


@dataclass(frozen=True, slots=True)
class Step:
    """What came of one step. A step can be ok and still have a remedy, for what is not."""

    name: str
    status: str
    seconds: float
    detail: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the step as `--json` shows it."""
        return {**asdict(self), "seconds": round(self.seconds, 6)}


@dataclass(frozen=True, slots=True)
class _Finding:
    detail: str
    remedy: str = ""


class _Skipped(Exception):
    """A step that is not taken, and why."""

    def __init__(self, detail: str, remedy: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy


class Examination(Closing):
    """Takes all steps, once, by `run`. A context manager: it holds connections.

    `topics` are full names; without any, the steps on topics are skipped. Retention is asked for
    at `admin_url`. Where `exactly_once`, it is a failure that there are no transactions. Raises
    OptionError for options that no connection could be made with.
    """

    def __init__(
        self,
        options: ClientOptions,
        topics: Sequence[str],
        *,
        admin_url: str | None = None,
        exactly_once: bool = False,
    ) -> None:
        self._options = options
        self._url = parse_service_url(options.service_url)
        # Lookups by REST do not go through a proxy, as with Java's client.
        self._proxy = None if self._url.web else options.proxy
        self._auth: AuthProvider = provider_for(options.auth)
        self._topics = list(topics)
        self._admin = None if admin_url is None else Admin(options, self._auth, admin_url)
        self._exactly_once = exactly_once
        # What the steps find: the hosts that are left, how each of them took our CONNECT, topics'
        # partitions that exist, the brokers that serve them, and schemas.
        self._hosts = list(self._url.hosts)
        self._logins: dict[str, _Login] = {}
        self._no_credentials: PulsarError | None = None
        self._context: ClientContext | None = None
        self._counts: dict[str, int | PulsarError] = {}
        self._brokers: list[BrokerAddress] = []
        self._existing: list[str] = []
        self._readable: set[str] = set()
        self._schemas: dict[str, SchemaInfo | PulsarError | None] = {}

    def close(self) -> None:
        """Close all connections."""
        for login in self._logins.values():
            if isinstance(login, ClientConnection):
                login.close()
        if self._context is not None:
            self._context.close()
        if self._admin is not None:
            self._admin.close()

    def run(self, tell: Callable[[str], None] = lambda name: None) -> list[Step]:
        """Take the steps and return what came of each; `tell` is given the name of the next.

        A step is skipped where one failed that it stands on.
        """
        looks: dict[str, Callable[[], _Finding]] = {
            "resolve": self._resolve,
            "connect": self._connect,
            "tls": self._tls,
            "handshake": self._handshake,
            "authenticate": self._authenticate,
            "lookup": self._lookup,
            "partitions": self._partitions,
            "read": self._read,
            "write": self._write,
            "schema": self._schema,
            "retention": self._retention,
            "transactions": self._transactions,
        }
        steps: dict[str, Step] = {}
        for name, look in looks.items():
            tell(name)
            cause = _broken(steps, name)
            steps[name] = (
                _taken(name, look)
                if cause is None
                else Step(name, SKIPPED, 0.0, f"not tried: the step {cause} failed")
            )
        return list(steps.values())

    # --- the hosts of the service URL -----------------------------------------------------------

    def _resolve(self) -> _Finding:
        return self._of_each_host(self._addresses)

    def _addresses(self, host: str) -> str:
        where = self._proxy or host
        found = resolve(where, Deadline(self._options.connection_timeout))
        return f"{where} is {_some(dict.fromkeys(str(target[0]) for _, target in found))}"

    def _connect(self) -> _Finding:
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

    def _tls(self) -> _Finding:
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
            raise _Skipped(f"service.url is {self._scheme}://, without TLS")
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

    def _handshake(self) -> _Finding:
        if self._no_credentials is not None:
            raise _Skipped("not tried: there are no credentials to send")
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

    def _authenticate(self) -> _Finding:
        if self._no_credentials is not None:
            raise self._no_credentials
        finding = self._of_each_host(self._welcome)
        hosts = ",".join(self._hosts)
        reachable = replace(self._options, service_url=f"{self._scheme}://{hosts}")
        self._context = ClientContext(reachable)
        return finding

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

    def _of_each_host(self, look: Callable[[str], str]) -> _Finding:
        """Look at all hosts that are left, at the same time; those that fail are left out then.

        Raises the error if none is left.
        """

        def attempt(host: str) -> str | PulsarError:
            try:
                return look(host)
            except PulsarError as error:
                return error

        with ThreadPoolExecutor(min(len(self._hosts), _MAX_HOSTS_AT_ONCE)) as threads:
            results = list(threads.map(attempt, self._hosts))
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
        return _Finding(told, errors[0].remedy if errors else "")

    # --- topics -------------------------------------------------------------------------------

    @property
    def _client(self) -> ClientContext:
        assert self._context is not None
        return self._context

    def _lookup(self) -> _Finding:
        self._need_topics()
        lookup = self._client.lookup
        # They are asked for first, for it is partitions that have brokers.
        self._counts = lookup.partitions_many(self._topics)
        names = _spread(
            [
                partition
                for topic, count in self._counts.items()
                for partition in _partitions(topic, 0 if isinstance(count, PulsarError) else count)
            ]
        )
        try:
            found = _good(lookup.ask_many(names, lookup.broker_operation).values())
        except (ConnectError, ConnectionLost) as error:
            raise _of_a_broker(error, _ADVERTISED) from error
        addresses: dict[BrokerAddress, None] = dict.fromkeys(found)
        for address in addresses:
            try:
                self._client.pool.get(address)
            except (ConnectError, ConnectionLost) as error:
                remedy = _BEHIND if address.proxied else _ADVERTISED
                raise _of_a_broker(error, remedy) from error
        self._brokers = list(addresses)
        shown = _some(address.logical for address in addresses)
        through = " through the proxy" if any(address.proxied for address in addresses) else ""
        return _Finding(f"{_counted(len(names), 'topic partition')}, served by {shown}{through}")

    def _partitions(self) -> _Finding:
        self._need_topics()
        for topic, count in self._counts.items():
            if isinstance(count, TopicNotFound):
                raise TopicNotFound(f"{topic} does not exist", _CREATE)
        counts = dict(zip(self._counts, _good(self._counts.values()), strict=True))
        partitions = [name for topic, count in counts.items() for name in _partitions(topic, count)]
        looked_at = _spread(partitions)
        answers = self._client.lookup.partitions_many(looked_at)
        # Brokers make a partition when it is used first.
        self._existing = [
            name for name in looked_at if not isinstance(answers[name], TopicNotFound)
        ]
        described = (
            f"{topic} has {_counted(count, 'partition')}"
            if count
            else f"{topic} is not partitioned"
            for topic, count in counts.items()
        )
        unused = len(looked_at) - len(self._existing)
        more = f"; {_counted(unused, 'partition')} not used yet" if unused else ""
        if len(looked_at) < len(partitions):
            more += f"; {len(looked_at)} of them, spread over all, are looked at"
        return _Finding(_some(described) + more)

    def _read(self) -> _Finding:
        names = [name for name in self._touchable() if TopicName.parse(name).is_persistent]
        if not names:
            raise _Skipped("a non-persistent topic keeps nothing that Spark could read")
        results = self._client.lookup.last_message_ids(names)
        results = {
            name: result
            for name, result in results.items()
            if not isinstance(result, TopicNotFound) or TopicName.parse(name).partition_index < 0
        }
        last: list[MessageIdAdv] = _good(results.values())
        self._readable.update(results)
        filled = sum(message.entry_id >= 0 for message in last)
        return _Finding(
            f"may consume; {filled} of {_counted(len(last), 'topic partition')} hold messages"
        )

    def _write(self) -> _Finding:
        names = self._touchable()
        client = self._client
        if not client.pool.get(self._brokers[0]).supports(WITHOUT_CREATION):
            # Such a broker does not say which partitions exist; those that could be read do.
            names = [name for name in names if name in self._readable]
            if not names:
                raise _Skipped("not tried: this broker might create a topic by it")
        schemas = self._latest_schemas()

        def attempt(topic: str, deadline: Deadline) -> Operation[None]:
            return self._register(topic, schemas[str(TopicName.parse(topic).partitioned)], deadline)

        results = client.lookup.ask_many(names, attempt)
        _good(results.values())
        return _Finding(
            f"may produce to {_counted(len(names), 'topic partition')}; nothing was sent"
        )

    def _register(
        self, topic: str, schema: SchemaInfo | PulsarError | None, deadline: Deadline
    ) -> Operation[None]:
        """Return an operation that registers a producer, shared and with no name of its own."""
        connection = yield from self._client.lookup.connection_operation(topic, deadline)
        session = ProducerSession(_Silent(), connection)
        known = schema.to_pb() if isinstance(schema, SchemaInfo) else None
        identity = Identity(topic, None, False, schema=known)
        yield from session.open_operation(identity, deadline.attempt())
        yield from session.close_operation(deadline)

    def _schema(self) -> _Finding:
        from pulsar_spark.spark.value_types import value_type

        schemas = self._latest_schemas()
        _good(schemas.values())
        described: list[str] = []
        for topic, schema in schemas.items():
            assert not isinstance(schema, PulsarError)
            if schema is None:
                described.append(f"{topic} has none: values are bytes")
                continue
            columns = value_type({topic: schema}, allow_different=False).fields.simpleString()
            name = f" {schema.name!r}" if schema.name else ""
            described.append(f"{topic} has {schema.type_name}{name}: {columns}")
        return _Finding(_some(described))

    def _latest_schemas(self) -> dict[str, SchemaInfo | PulsarError | None]:
        self._need_topics()
        if not self._schemas:
            owners = dict.fromkeys(str(TopicName.parse(name).partitioned) for name in self._topics)
            self._schemas = latest_schemas(self._client.lookup, list(owners))
        return self._schemas

    def _need_topics(self) -> None:
        if not self._topics:
            raise _Skipped("no topic was given", _NAME_ONE)

    def _touchable(self) -> list[str]:
        self._need_topics()
        if not self._existing:
            raise _Skipped("not tried: no partition exists yet, and trying would create one")
        return self._existing

    # --- what else there is -------------------------------------------------------------------

    def _retention(self) -> _Finding:
        if self._admin is None:
            raise _Skipped("only the admin REST knows it", "Give its address with --admin-url.")
        self._need_topics()
        namespaces = dict.fromkeys(TopicName.parse(name).namespace_name for name in self._topics)
        try:
            policies = {name: self._admin.get(f"namespaces/{name}") for name in namespaces}
        except AuthorizationError as error:
            raise AuthorizationError(error.what, _TENANTS_ADMIN) from error
        told = "; ".join(f"{name} {_kept(found)}" for name, found in policies.items())
        expires = any(found.get("message_ttl_in_seconds") for found in policies.values())
        return _Finding(told, _EXPIRES if expires else "")

    def _transactions(self) -> _Finding:
        pool = self._client.pool
        if self._url.web and not self._brokers:
            raise _Skipped("not tried: a web service names the brokers of topics alone", _NAME_ONE)
        # A proxy passes this on to a broker only on a connection that is for that broker.
        if not self._brokers:
            # The service URL may be that of a proxy, or of a web service.
            raise _Skipped("a broker is asked, and none was looked up", _NAME_ONE)
        connection = pool.get(self._brokers[0])
        try:
            connection.request(partial(_end_nothing))
        except (TransactionCoordinatorNotFound, TransactionNotFound, InvalidTxnStatus):
            return _Finding(f"{connection.address.logical} takes part in transactions")
        except (NotAllowed, UnsupportedVersion) as error:
            if self._exactly_once:
                raise type(error)(error.what, _TRANSACTIONS) from error
            raise _Skipped(
                "transactions are off; nothing was asked for that needs them", _TRANSACTIONS
            ) from error
        return _Finding(f"{connection.address.logical} takes part in transactions")


class _Silent:
    """The owner of a producer that sends nothing: nothing can be told of it."""

    waits_for_receipts = False

    def on_receipts(self, session: ProducerSession, receipts: array[int]) -> None:
        """Nothing was sent."""

    def on_send_error(self, session: ProducerSession, error: pb.CommandSendError) -> None:
        """Nothing was sent."""

    def on_lost(self, session: ProducerSession, error: PulsarError) -> None:
        """Whoever waits for the session is told."""


def _end_nothing(request_id: int) -> pb.BaseCommand:
    return commands.end_txn(request_id, _NO_TXN, pb.ABORT)


def _kept(policies: Mapping[str, Any]) -> str:
    """Return for how long a namespace keeps messages, by its policies."""
    retention = policies.get("retention_policies")
    if isinstance(retention, dict):
        time_limit = _limit(retention.get("retentionTimeInMinutes"), "minutes")
        size_limit = _limit(retention.get("retentionSizeInMB"), "MB")
        told = f"keeps what was acknowledged for {time_limit}, up to {size_limit}"
    else:
        told = "has the broker's defaults: what was acknowledged is not kept, unless changed"
    if expiry := policies.get("message_ttl_in_seconds"):
        told += f", and what was not for {expiry} s"
    return told


def _limit(number: object, unit: str) -> str:
    return f"any number of {unit}" if number == -1 else f"{number} {unit}"


def _taken(name: str, look: Callable[[], _Finding]) -> Step:
    started = time.monotonic()
    try:
        finding = look()
        status, detail, remedy = OK, finding.detail, finding.remedy
    except _Skipped as skipped:
        status, detail, remedy = SKIPPED, skipped.detail, skipped.remedy
    except PulsarError as error:
        status, detail = FAILED, error.what
        remedy = error.remedy or _REMEDIES.get(name, _ASK_THE_BROKER)
    return Step(name, status, time.monotonic() - started, detail, remedy)


def _broken(steps: dict[str, Step], name: str) -> str | None:
    """Return the name of the step that failed and that a step stands on, if there is one."""
    needed = _STANDS_ON.get(name)
    while needed is not None and steps[needed].status != FAILED:
        needed = _STANDS_ON.get(needed)
    return needed


def _of_a_broker(error: PulsarError, remedy: str) -> PulsarError:
    """Return the error of a connection to a broker that a lookup named.

    The hosts of the service URL have been reached then.
    """
    told = error.remedy if isinstance(error, TlsError) else remedy
    return type(error)(f"a topic's broker: {error.what}", told)


def _partitions(topic: str, count: int) -> list[str]:
    name = TopicName.parse(topic)
    return [str(name.partition(index)) for index in range(count)] or [topic]


def _spread(names: list[str]) -> list[str]:
    """Return as many names as are looked at: a topic of thousands need not be loaded for this."""
    if len(names) <= _MAX_LOOKED_AT:
        return names
    return [names[index * len(names) // _MAX_LOOKED_AT] for index in range(_MAX_LOOKED_AT)]


def _good(results: Iterable[Any]) -> list[Any]:
    """Return the results if none is an error; raises the first error, which says how many."""
    results = list(results)
    errors = [result for result in results if isinstance(result, PulsarError)]
    if not errors:
        return results
    first = errors[0]
    where = f"{first.topic}: {first.what}" if first.topic else first.what
    if len(errors) > 1:
        where += f" (and {len(errors) - 1} more)"
    raise type(first)(where, first.remedy)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _some(texts: Iterable[str]) -> str:
    shown = list(texts)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more
