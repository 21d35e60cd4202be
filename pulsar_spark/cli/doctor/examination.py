"""The doctor's steps, in the order in which a client would connect.

They leave no trace: they send no message, and create no topic, subscription or schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pulsar_spark.cli.admin import Admin
from pulsar_spark.cli.arguments import resolved
from pulsar_spark.cli.doctor.credentials import granting
from pulsar_spark.cli.doctor.hosts import Hosts
from pulsar_spark.cli.doctor.steps import FAILED, NAME_ONE, SKIPPED, Finding, Skipped, Step, taken
from pulsar_spark.cli.doctor.topics import Topics
from pulsar_spark.cli.output import progress
from pulsar_spark.engine.authentication.providers import provider_for
from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.transactions import COORDINATORS
from pulsar_spark.errors import (
    AuthorizationError,
    InvalidTxnStatus,
    NotAllowed,
    OptionError,
    PulsarError,
    SinkStateError,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
    UnsupportedFeature,
    UnsupportedVersion,
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.spark.options.read import client_options, single_topic
from pulsar_spark.spark.options.resolve import Values
from pulsar_spark.spark.options.table import Scope

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
"""Step → the step that it depends on."""
# A coordinator that no cluster has, so that the request changes nothing.
_NO_TXN = commands.TxnId(2**40, 0)
_NO_LIMIT = -1
_TENANTS_ADMIN = "An administrator of the tenant may ask: log in as one, or leave --admin-url out."
_EXPIRES = (
    "A stream loses messages that it has not read when their time to live (message TTL) is over: "
    "set a TTL longer than a query may be stopped."
)
_TRANSACTIONS = (
    "For deliveryGuarantee=exactly-once, set transactionCoordinatorEnabled=true in the "
    "configuration of all brokers."
)


class Examination(Closing):
    """Runs all steps once, by `run`. A context manager: it holds connections.

    `values` are the options of a read or write; without topics, the steps about these are skipped.
    Retention is read from `admin_url`. Missing transactions are a failure for a sink that needs
    them. Raises OptionError for options that cannot connect at all.
    """

    def __init__(self, values: Values, admin_url: str | None) -> None:
        single, several = single_topic(values), values["topics"] or ()
        if single and several:
            raise OptionError("topic and topics cannot be used together", "Give one of them.")
        names = [single] if single else [str(TopicName.parse(name)) for name in several]
        options = client_options(values)
        auth = self._auth = provider_for(options.auth)
        self._values = values
        self._names = names
        self._hosts = Hosts(options, auth)
        self._admin = None if admin_url is None else Admin(options, auth, admin_url)
        self._exactly_once = values["deliveryGuarantee"] == "exactly-once"
        self._client: ClientContext | None = None
        self._topics = Topics(self._connect, names, auth, values["sinkStateTopic"])
        self.steps: dict[str, Callable[[], Finding]] = {
            "resolve": self._hosts.resolve,
            "connect": self._hosts.connect,
            "tls": self._hosts.tls,
            "handshake": self._hosts.handshake,
            "authenticate": self._hosts.authenticate,
            "lookup": self._topics.lookup,
            "partitions": self._topics.partitions,
            "read": self._topics.read,
            "write": self._topics.write,
            "schema": self._topics.schema,
            "retention": self._retention,
            "transactions": self._transactions,
        }

    def close(self) -> None:
        """Close the connections."""
        self._hosts.close()
        if self._client is not None:
            self._client.close()
        if self._admin is not None:
            self._admin.close()

    def run(self, tell: Callable[[str], None] = lambda name: None) -> list[Step]:
        """Run the steps and return their results; `tell` gets the name of each before it runs.

        A step is skipped if one that it depends on failed.
        """
        steps: dict[str, Step] = {}
        for name, look in self.steps.items():
            tell(name)
            cause = _broken(steps, name)
            steps[name] = (
                taken(name, look)
                if cause is None
                else Step(name, SKIPPED, 0.0, f"not tried: the step {cause} failed")
            )
        return list(steps.values())

    def _connect(self) -> ClientContext:
        """Return a client for the hosts that accepted the login."""
        if self._client is None:
            self._client = ClientContext(self._hosts.reachable)
        return self._client

    def _retention(self) -> Finding:
        if self._admin is None:
            raise Skipped("only the admin REST knows it", "Give its address with --admin-url.")
        if not self._names:
            raise Skipped("no topic was given", NAME_ONE)
        namespaces = dict.fromkeys(TopicName.parse(name).namespace_name for name in self._names)
        try:
            policies = {name: self._admin.get_object(f"namespaces/{name}") for name in namespaces}
        except AuthorizationError as error:
            raise AuthorizationError(error.what, _TENANTS_ADMIN) from error
        told = "; ".join(f"{name} {_kept(found)}" for name, found in policies.items())
        expires = any(found.get("message_ttl_in_seconds") for found in policies.values())
        return Finding(told, _EXPIRES if expires else "")

    def _transactions(self) -> Finding:
        # The service URL may be a web service's or a proxy's. A proxy forwards this only on a
        # connection to a certain broker.
        if not self._names:
            raise Skipped("needs a broker, and none was looked up", NAME_ONE)
        if not self._topics.brokers:
            raise Skipped("needs a broker, and the lookup found none")
        client = self._connect()
        connection = client.pool.get(self._topics.brokers[0])
        try:
            client.coordinators.find()
            _take_part(connection)
        except AuthorizationError as error:
            remedy = granting(self._auth, COORDINATORS.namespace_name, "produce,consume")
            if self._exactly_once:
                raise AuthorizationError(error.what, remedy) from error
            raise Skipped(f"{error.what}; no option needs them", remedy) from error
        except (NotAllowed, UnsupportedFeature, UnsupportedVersion) as error:
            if self._exactly_once:
                raise type(error)(error.what, _TRANSACTIONS) from error
            raise Skipped("transactions are off; no option needs them", _TRANSACTIONS) from error
        if self._exactly_once:
            self._check_records()
        return Finding(f"{connection.address.logical} takes part in transactions")

    def _check_records(self) -> None:
        """Check the topic of an exactly-once sink's records, if the options tell which it is."""
        from pulsar_spark.spark.writing.exactly_once import sink_options

        topic, sink_id = self._values["sinkStateTopic"], self._values["sinkId"]
        if topic is None and sink_id is None:
            return
        timeout = self._values["transactionTimeout"]
        sink = sink_options(sink_id or topic, None, topic, self._names[0], timeout)
        try:
            self._topics.check_records(sink.state_topic)
        except SinkStateError:
            raise
        except PulsarError as error:
            raise type(error)(f"the sink's records: {error.what}", error.remedy) from error


def _take_part(connection: ClientConnection) -> None:
    """Raise unless a broker takes part in transactions."""
    with suppress(TransactionCoordinatorNotFound, TransactionNotFound, InvalidTxnStatus):
        connection.request(
            commands.request(pb.CommandEndTxn, txn_action=pb.ABORT, **commands.txn_fields(_NO_TXN))
        )


def _kept(policies: Mapping[str, Any]) -> str:
    """Return how long a namespace keeps messages, by its policies."""
    retention = policies.get("retention_policies")
    if isinstance(retention, dict):
        time_limit = retention.get("retentionTimeInMinutes")
        size_limit = retention.get("retentionSizeInMB")
        if 0 in (time_limit, size_limit):
            told = "does not keep what was acknowledged"
        else:
            lasting = "for ever" if time_limit == _NO_LIMIT else f"for {time_limit} minutes"
            size = "whatever its size" if size_limit == _NO_LIMIT else f"up to {size_limit} MB"
            told = f"keeps what was acknowledged {lasting}, {size}"
    else:
        told = "has the broker's defaults: what was acknowledged is not kept, unless changed"
    if expiry := policies.get("message_ttl_in_seconds"):
        told += f"; what was not acknowledged is kept for {expiry} s"
    return told


def _broken(steps: dict[str, Step], name: str) -> str | None:
    """Return the name of the failed step that a step depends on, if there is one."""
    needed = _STANDS_ON.get(name)
    while needed is not None and steps[needed].status != FAILED:
        needed = _STANDS_ON.get(needed)
    return needed


def examine(options: dict[str, str], admin_url: str | None, *, quiet: bool = True) -> list[Step]:
    """Run all steps for the options of a read or write; raises OptionError for invalid ones.

    Unless `quiet`, a terminal shows the progress.
    """
    values = resolved(options, Scope.BOTH)
    if values["topicsPattern"]:
        raise OptionError("the doctor takes no topicsPattern", "Give a topic that it matches.")
    with (
        Examination(values, admin_url) as examination,
        progress("beginning", total=len(examination.steps), quiet=quiet) as bar,
    ):
        first = next(iter(examination.steps))

        def tell(name: str) -> None:
            bar.advance(name != first)
            bar.tell(f"looking at: {name}")

        return examination.run(tell)
