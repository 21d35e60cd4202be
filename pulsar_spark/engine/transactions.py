"""Transactions: the client of the coordinators, and an open transaction.

A coordinator is a partition of a system topic, whose broker runs it. It begins transactions,
records which topic partitions and subscriptions take part, and ends them: by commit, by abort, or
by abort at the timeout. Answers can be lost, and coordinators move, so requests are repeated until
the deadline. That is harmless for all requests but the end: a coordinator forgets an ended
transaction, so if the answer is lost, nobody knows whether it committed or aborted until this is
found out in another way.

Pulsar binary protocol, commands TC_CLIENT_CONNECT_REQUEST to END_TXN.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from enum import Enum
from functools import partial
from typing import Any, TypeAlias, TypeVar

from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.deadline import Deadline, result_within, wait_until
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import Operation, OperationFactory, run, run_many, start
from pulsar_spark.engine.retry import can_pass, retried, retrying
from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import (
    AuthorizationError,
    BrokerError,
    ConnectionLost,
    InvalidTxnStatus,
    NotAllowed,
    OperationTimeout,
    PulsarError,
    TopicNotFound,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
    TransactionOutcomeUnknown,
    TransactionStateError,
    UnsupportedFeature,
    listed,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.protocol.versions import COORDINATOR_CONNECT

logger = get_logger(__name__)

T = TypeVar("T")

COORDINATORS = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
"""The topic whose partitions are the coordinators."""

_NOT_ENABLED = "Set transactionCoordinatorEnabled=true on the brokers (and in their metadata)."
_PERMIT = (
    f"Permit it: pulsar-admin namespaces grant-permission {COORDINATORS.namespace_name} "
    "--role ROLE --actions produce,consume"
)
_GRACE = 1.0
_SHOWN = 10
# So many topic partitions are added to a transaction by one command.
_ADDED_AT_ONCE = 1000
# Transactions up to the low watermark are over: -1 as brokers read it, below all of them.
_NO_LOW_WATERMARK = 2**64 - 1


_Part: TypeAlias = "tuple[str, ...]"
# What takes part in a transaction: a topic partition, or a subscription of one.


class Coordinators:
    """The transaction coordinators of a cluster. Thread-safe.

    Operations retry temporary errors until their deadline. They raise UnsupportedFeature if
    transactions are off, AuthorizationError if the role lacks the permission for the coordinators'
    topic, and the coordinator's errors.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._timeout = lookup.pool.options.operation_timeout
        self._turns = itertools.count(random.SystemRandom().randrange(1 << 16))
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._count: int | None = None
        self._attached: dict[int, Future[ClientConnection]] = {}

    # --- on the caller's thread ---------------------------------------------------------------

    def check(self, timeout: float) -> None:
        """Check that transactions of `timeout` seconds can be begun, by beginning and aborting one.

        No command asks a coordinator for its limits; only its refusal shows them.
        """
        run(partial(self.check_operation, timeout), self._timeout)

    def begin(self, timeout: float) -> TxnId:
        """Begin a transaction; its coordinator aborts it after `timeout` seconds."""
        return run(partial(self.begin_operation, timeout), self._timeout)

    def begin_to_attach(self, transactions: Iterable[TxnId], timers: Timers) -> None:
        """Attach to the coordinators of transactions ahead; whoever asks them is told of errors."""
        for tc_id in {txn.most_bits for txn in transactions}:
            start(self._attempts(tc_id), self._timeout, timers)

    def end_all(
        self,
        transactions: Sequence[TxnId],
        *,
        commit: bool,
        timeout: float | None = None,
    ) -> dict[TxnId, PulsarError | None]:
        """End transactions, all at the same time; return each one's error, None if it ended."""
        end = partial(self.end_operation, commit=commit)
        return self._ask_about(transactions, end, timeout)

    def add_partition_to_all(
        self, transactions: Sequence[TxnId], partition: str
    ) -> dict[TxnId, PulsarError | None]:
        """As `end_all`: add a topic partition to all of these transactions."""
        return self._add_to_all(transactions, [partition])

    def are_open(self, transactions: Sequence[TxnId]) -> dict[TxnId, bool | None]:
        """Return whether each of these transactions is open; None where that cannot be told.

        No command asks for a transaction's state. Adding no partition to it is refused once it has
        ended, and changes nothing before.
        """
        return {
            txn: error is None if error is None or isinstance(error, TransactionNotFound) else None
            for txn, error in self._add_to_all(transactions, []).items()
        }

    def _add_to_all(
        self, transactions: Sequence[TxnId], partitions: Sequence[str]
    ) -> dict[TxnId, PulsarError | None]:
        return self._ask_about(
            transactions, lambda txn, end: self.add_partitions_operation(txn, partitions, end)
        )

    def _ask_about(
        self,
        transactions: Sequence[TxnId],
        ask: Callable[[TxnId, Deadline], Operation[None]],
        timeout: float | None = None,
    ) -> dict[TxnId, PulsarError | None]:
        questions = [partial(ask, txn) for txn in transactions]
        results = run_many(questions, timeout or self._timeout)
        return dict(zip(transactions, results, strict=True))

    def commit_on_partitions(self, pairs: Sequence[tuple[TxnId, str]]) -> list[PulsarError | None]:
        """Write the markers of committed transactions to topic partitions that lack them.

        Returns the error of each pair, None if its broker has written the marker. Only a superuser
        may do it. It is harmless where the marker exists.
        """
        attempts = [retried(partial(self._commit_on_partition, txn, topic)) for txn, topic in pairs]
        return run_many(attempts, self._timeout)

    def find(self) -> None:
        """Find a coordinator and attach to it, which changes nothing."""
        run(self._find_operation, self._timeout)

    # --- operations ---------------------------------------------------------------------------

    def check_operation(self, timeout: float, deadline: Deadline) -> Operation[None]:
        """Return the operation that `check` runs."""
        txn = yield from self.begin_operation(timeout, deadline)
        yield from self.end_operation(txn, deadline, commit=False)

    def _find_operation(self, deadline: Deadline) -> Operation[None]:
        tc_id = yield from self._choose(deadline)
        yield from retrying(self._attempts(tc_id), deadline)

    def begin_operation(self, timeout: float, deadline: Deadline) -> Operation[TxnId]:
        """Return the operation that `begin` runs."""
        tc_id = yield from self._choose(deadline)
        answer: pb.CommandNewTxnResponse = yield from self._ask(
            tc_id,
            commands.request(
                pb.CommandNewTxn, tc_id=tc_id, txn_ttl_millis=max(int(timeout * 1000), 1)
            ),
            deadline,
        )
        return TxnId(answer.txnid_most_bits, answer.txnid_least_bits)

    def add_partitions_operation(
        self, txn: TxnId, partitions: Sequence[str], deadline: Deadline
    ) -> Operation[None]:
        """Add topic partitions to a transaction, before anything is sent to them."""
        yield from self._ask(
            txn.most_bits,
            commands.request(
                pb.CommandAddPartitionToTxn, partitions=partitions, **commands.txn_fields(txn)
            ),
            deadline,
        )

    def add_subscription_operation(
        self, txn: TxnId, topic: str, subscription: str, deadline: Deadline
    ) -> Operation[None]:
        """Add a subscription, before anything on it is acknowledged."""
        part = pb.Subscription(topic=topic, subscription=subscription)
        return self._ask(
            txn.most_bits,
            commands.request(
                pb.CommandAddSubscriptionToTxn, subscription=[part], **commands.txn_fields(txn)
            ),
            deadline,
        )

    def end_operation(self, txn: TxnId, deadline: Deadline, *, commit: bool) -> Operation[None]:
        """Commit or abort a transaction.

        Raises TransactionOutcomeUnknown if the end was requested and may or may not have happened.
        If the coordinator does not know the transaction (any more), an abort succeeds, and a
        commit raises TransactionNotFound. Raises InvalidTxnStatus if it ends in the other way.
        """
        may_have_ended = False

        def attempt(end: Deadline) -> Operation[None]:
            nonlocal may_have_ended
            connection = yield from self._connection(txn.most_bits, end)
            try:
                yield connection.request_async(
                    commands.request(
                        pb.CommandEndTxn,
                        txn_action=pb.COMMIT if commit else pb.ABORT,
                        **commands.txn_fields(txn),
                    ),
                    end.attempt(self._timeout),
                )
            except TransactionNotFound as error:
                _check_owner(error)
                raise
            except InvalidTxnStatus as error:
                if not _has_ended_so(error, commit=commit):
                    raise
            except PulsarError as error:
                self._detach(txn.most_bits, connection)
                # After an error a coordinator may still finish the end by itself.
                if not _is_refusal(error):
                    may_have_ended = True
                raise

        try:
            yield from retrying(attempt, deadline)
        except TransactionNotFound as error:
            if not commit:
                return
            raise _unknown(txn, error) if may_have_ended else _named(txn, error) from error
        except PulsarError as error:
            raise _unknown(txn, error) if may_have_ended else _named(txn, error) from error

    def _commit_on_partition(self, txn: TxnId, topic: str, deadline: Deadline) -> Operation[None]:
        connection = yield from self._lookup.connection_operation(topic, deadline)
        yield connection.request_async(
            commands.request(
                pb.CommandEndTxnOnPartition,
                topic=topic,
                txn_action=pb.COMMIT,
                txnid_least_bits_of_low_watermark=_NO_LOW_WATERMARK,
                **commands.txn_fields(txn),
            ),
            deadline.attempt(self._timeout),
        )

    # --- requests -----------------------------------------------------------------------------

    def _ask(
        self, tc_id: int, builder: Callable[[int], pb.BaseCommand], deadline: Deadline
    ) -> Operation[Any]:
        return retrying(self._attempts(tc_id, builder), deadline)

    def _attempts(
        self, tc_id: int, builder: Callable[[int], pb.BaseCommand] | None = None
    ) -> OperationFactory[Any]:
        """Return attempts at a request to a coordinator, or only at attaching to it."""

        def attempt(deadline: Deadline) -> Operation[Any]:
            connection = yield from self._connection(tc_id, deadline)
            if builder is None:
                return None
            try:
                return (yield connection.request_async(builder, deadline.attempt(self._timeout)))
            except TransactionNotFound as error:
                _check_owner(error)
                raise
            except PulsarError as error:
                if can_pass(error):
                    self._detach(tc_id, connection)
                raise

        return attempt

    def _choose(self, deadline: Deadline) -> Operation[int]:
        """Return an operation that chooses a coordinator: each in turn."""
        count = yield from retrying(self._count_operation, deadline)
        return next(self._turns) % count

    def _count_operation(self, deadline: Deadline) -> Operation[int]:
        if self._count is not None:
            return self._count
        missing: PulsarError | None = None
        try:
            count = yield from _permitted(
                self._lookup.partitions_operation(str(COORDINATORS), deadline)
            )
        except TopicNotFound as error:
            count, missing = 0, error
        if not count:
            what = "the brokers do not support transactions"
            raise UnsupportedFeature(what, _NOT_ENABLED) from missing
        self._count = count
        return count

    def _connection(self, tc_id: int, deadline: Deadline) -> Operation[ClientConnection]:
        """Return a connection to a coordinator's broker that knows this client.

        The first caller attaches, and the others wait for that.
        """
        with self._lock:
            attached = self._attached.get(tc_id)
            mine = attached is None or _is_over(attached)
            if attached is None or mine:
                attached = self._attached[tc_id] = Future()
        if not mine:
            found: ClientConnection = yield attached
            return found
        try:
            connection = yield from self._attach(tc_id, deadline)
        except BaseException as error:
            with self._lock:
                if self._attached.get(tc_id) is attached:
                    del self._attached[tc_id]
            given_up = ConnectionLost("a coordinator was not attached to")
            attached.set_exception(
                error.with_context() if isinstance(error, PulsarError) else given_up
            )
            raise
        attached.set_result(connection)
        return connection

    def _attach(self, tc_id: int, deadline: Deadline) -> Operation[ClientConnection]:
        topic = str(COORDINATORS.partition(tc_id))
        connection = yield from _permitted(self._lookup.connection_operation(topic, deadline))
        if connection.protocol_version < COORDINATOR_CONNECT:
            # Older coordinators need no attaching.
            return connection
        try:
            yield connection.request_async(
                commands.request(pb.CommandTcClientConnectRequest, tc_id=tc_id),
                deadline.attempt(self._timeout),
            )
        except NotAllowed as error:
            raise UnsupportedFeature(
                f"the broker does not support transactions: {error.what}",
                _NOT_ENABLED,
                broker=error.broker,
            ) from error
        return connection

    def _detach(self, tc_id: int, connection: ClientConnection) -> None:
        """Forget the connection: look the coordinator up again next time."""
        with self._lock:
            attached = self._attached.get(tc_id)
            if (
                attached is not None
                and attached.done()
                and attached.exception() is None
                and attached.result() is connection
            ):
                del self._attached[tc_id]


def _permitted(asked: Operation[T]) -> Operation[T]:
    """Return a question about the coordinators' topic; its error says what a role lacks."""
    try:
        return (yield from asked)
    except AuthorizationError as error:
        if type(error) is not AuthorizationError:
            raise
        raise AuthorizationError(
            f"the role may not use the transaction coordinators: {error.what}",
            _PERMIT,
            topic=str(COORDINATORS),
            broker=error.broker,
        ) from error


def _is_over(attached: Future[ClientConnection]) -> bool:
    if not attached.done():
        return False
    return attached.exception() is not None or attached.result().closed


def _check_owner(error: TransactionNotFound) -> None:
    """Raise AuthorizationError if a broker means that: it says not found of another role's too."""
    if "neither the owner" in error.what:
        raise AuthorizationError(
            f"the transaction is another role's: {error.what}",
            "Log in as the role that began it, or as a superuser.",
            broker=error.broker,
        ) from error


def _is_refusal(error: PulsarError) -> bool:
    """Whether an answer means that the coordinator has done nothing, and will not."""
    if isinstance(error, TransactionCoordinatorNotFound):
        return True
    return isinstance(error, BrokerError) and not error.retryable


def _has_ended_so(error: InvalidTxnStatus, *, commit: bool) -> bool:
    """Whether an answer says that the transaction has already ended in the way that was asked for.

    A coordinator that has moved carries out what its log says, beside a repeated request. It sets
    this status last, when all participants know of the end.
    """
    return f"but it is in {'COMMITTED' if commit else 'ABORTED'} status" in error.what


def name_of(txn: TxnId) -> str:
    """Return a transaction's id as Pulsar's tools print it."""
    return f"({txn.most_bits},{txn.least_bits})"


def names_of(transactions: Sequence[TxnId]) -> str:
    """Return the first ids of transactions as text, and how many more there are."""
    return listed(map(name_of, transactions), _SHOWN)


def _named(txn: TxnId, error: PulsarError) -> PulsarError:
    named = type(error)(f"transaction {name_of(txn)}: {error.what}", error.remedy)
    return named.with_context(broker=error.broker)


def _unknown(txn: TxnId, error: PulsarError) -> TransactionOutcomeUnknown:
    return TransactionOutcomeUnknown(
        f"it is unknown whether transaction {name_of(txn)} was ended; the last error was: "
        f"{error.what}",
        "Check what it has written before you write it again.",
        broker=error.broker,
    )


class TransactionState(Enum):
    """A transaction's state as far as this client knows; Java's names."""

    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"
    ERROR = "error"
    TIME_OUT = "timed out"


class PendingOperation:
    """A pending message or acknowledgement of a transaction."""

    __slots__ = ("_owner",)

    def __init__(self, owner: ClientTransaction) -> None:
        self._owner = owner

    def end(self, error: PulsarError | None = None) -> None:
        """It is complete; with an error the transaction must not commit. The first call counts."""
        self._owner._on_end(self, error)


class ClientTransaction:
    """An open transaction: its participants and pending operations.

    Before sending or acknowledging, call `add_partition` or `add_subscription`, then
    `begin_operation`, and `end` on its result. Thread-safe.
    """

    def __init__(self, coordinators: Coordinators, timeout: float, seconds: float) -> None:
        self.timeout = timeout
        self._coordinators = coordinators
        # Timeout of one request.
        self._seconds = seconds
        # Before the coordinator's own time begins.
        self._life = Deadline(timeout)
        self.txn_id = coordinators.begin(timeout)
        self._changed = threading.Condition()
        # The following are guarded by _changed.
        self._state = TransactionState.OPEN
        self._parts: dict[_Part, Future[None]] = {}
        self._pending: set[PendingOperation] = set()
        self._failed: PulsarError | None = None

    def __repr__(self) -> str:
        return f"<Transaction {name_of(self.txn_id)} {self.state.value}>"

    @property
    def state(self) -> TransactionState:
        """The state; after the timeout, the coordinator has aborted it."""
        with self._changed:
            return self._look()

    def add_partition(self, topic: str) -> None:
        """Add a topic partition; returns when the coordinator knows it."""
        self.add_partitions([topic])

    def add_partitions(self, topics: Sequence[str]) -> None:
        """Add topic partitions, with one request for many; returns when all are known."""

        def add(parts: Sequence[tuple[str, ...]], deadline: Deadline) -> Operation[None]:
            names = [topic for (topic,) in parts]
            return self._coordinators.add_partitions_operation(self.txn_id, names, deadline)

        for first in range(0, len(topics), _ADDED_AT_ONCE):
            self._take_part([(topic,) for topic in topics[first : first + _ADDED_AT_ONCE]], add)

    def add_subscription(self, topic: str, subscription: str) -> None:
        """Add a topic partition's subscription; returns when the coordinator knows it."""
        self._take_part(
            [(topic, subscription)],
            lambda _, deadline: self._coordinators.add_subscription_operation(
                self.txn_id, topic, subscription, deadline
            ),
        )

    def begin_operation(self) -> PendingOperation:
        """Register a pending message or acknowledgement; raises unless the transaction is open."""
        pending = PendingOperation(self)
        with self._changed:
            self._check_open()
            self._pending.add(pending)
        return pending

    def _on_end(self, pending: PendingOperation, error: PulsarError | None) -> None:
        with self._changed:
            if pending in self._pending:
                self._pending.discard(pending)
                self._failed = self._failed or error
                self._changed.notify_all()

    def commit(self) -> None:
        """Wait for pending operations, then make everything visible at once.

        If one of them failed, or is pending when the transaction's timeout passes, aborts the
        transaction and raises that error. Raises TransactionStateError if the transaction is not
        open, TransactionNotFound or InvalidTxnStatus if the coordinator has aborted it, and
        TransactionOutcomeUnknown if the coordinator does not answer.
        """
        self._end(TransactionState.COMMITTING)
        if (failed := self._wait()) is None:
            self._finish(commit=True)
            return
        with self._changed:
            self._state = TransactionState.ABORTING
        try:
            self._finish(commit=False)
        except PulsarError as error:
            # The coordinator aborts it at its timeout.
            logger.warning("transaction %s was not aborted: %s", name_of(self.txn_id), error)
        raise failed.with_context() from failed

    def abort(self) -> None:
        """Wait for pending operations, then drop everything."""
        self._end(TransactionState.ABORTING)
        self._wait()
        self._finish(commit=False)

    def _take_part(
        self,
        parts: Sequence[_Part],
        add: Callable[[Sequence[_Part], Deadline], Operation[None]],
    ) -> None:
        """Add what no other thread has added or is adding, and wait for what others add."""
        mine: dict[_Part, Future[None]] = {}
        others: list[Future[None]] = []
        with self._changed:
            self._check_open()
            for part in parts:
                taken = self._parts.get(part)
                if taken is None or (taken.done() and taken.exception() is not None):
                    mine[part] = self._parts[part] = Future()
                else:
                    others.append(taken)
        if mine:
            self._add(mine, lambda deadline: add(list(mine), deadline))
        for taken in others:
            try:
                result_within(taken, self._seconds + _GRACE)
            except FutureTimeout as error:
                if isinstance(error, PulsarError):
                    raise
                raise OperationTimeout("a transaction's coordinator gave no answer") from None

    def _add(self, mine: Mapping[_Part, Future[None]], factory: OperationFactory[None]) -> None:
        try:
            run(factory, self._seconds)
        except BaseException as error:
            known = error if isinstance(error, PulsarError) else ConnectionLost("interrupted")
            for taken in mine.values():
                taken.set_exception(known.with_context())
            if isinstance(error, TransactionNotFound | InvalidTxnStatus):
                raise _named(self.txn_id, error) from error
            raise
        for taken in mine.values():
            taken.set_result(None)

    def _look(self) -> TransactionState:
        if self._state is TransactionState.OPEN and self._life.expired():
            self._state = TransactionState.TIME_OUT
        return self._state

    def _check_open(self) -> None:
        if self._look() is not TransactionState.OPEN:
            raise TransactionStateError(
                f"transaction {name_of(self.txn_id)} is {self._state.value}",
                "Begin a new transaction and repeat its work."
                if self._state is not TransactionState.COMMITTED
                else "",
            )

    def _end(self, state: TransactionState) -> None:
        with self._changed:
            self._check_open()
            self._state = state

    def _wait(self) -> PulsarError | None:
        """Wait until nothing is pending, as long as the transaction has time."""
        with self._changed:
            if wait_until(self._changed, lambda: not self._pending, self._life):
                return self._failed
            return OperationTimeout(
                f"the timeout of transaction {name_of(self.txn_id)} passed with "
                f"{len(self._pending)} messages or acknowledgements pending"
            )

    def _finish(self, *, commit: bool) -> None:
        end = partial(self._coordinators.end_operation, self.txn_id, commit=commit)
        try:
            run(end, self._seconds)
        except BaseException:
            with self._changed:
                self._state = TransactionState.ERROR
            raise
        with self._changed:
            self._state = TransactionState.COMMITTED if commit else TransactionState.ABORTED
