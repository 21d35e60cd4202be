"""Transactions: the client of the coordinators, and an open transaction.

A coordinator is a partition of a system topic, which says where it is. It gives out transactions,
is told which topic partitions and subscriptions take part, and ends them: by commit, by abort, or
by abort when their time is up. Any of its answers can be lost, and the coordinator can move: what
is asked of it is asked again until the deadline. That is harmless for all but the end. A
coordinator forgets a transaction that it has ended, however it did, so an end whose answer was lost
is neither a commit nor an abort before its outcome is found out otherwise.

Pulsar binary protocol, commands TC_CLIENT_CONNECT_REQUEST to END_TXN.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from enum import Enum
from typing import Any

from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.lookups.lookup import Lookup
from pulsar_spark.engine.operations import Operation, OperationFactory, run, run_many
from pulsar_spark.engine.retry import Deadline, is_retryable, retrying
from pulsar_spark.errors import (
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
)
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.protocol.versions import COORDINATOR_CONNECT

COORDINATORS = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
"""The topic whose partitions are the coordinators."""

_NOT_ENABLED = "Set transactionCoordinatorEnabled=true on the brokers (and in their metadata)."
_GRACE = 1.0


class Coordinators:
    """The transaction coordinators of a cluster, asked over the connections of a pool.

    Operations retry what can pass until their deadline. They raise UnsupportedFeature where
    transactions are switched off, and what a coordinator refuses with. Thread-safe.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._timeout = lookup.pool.options.operation_timeout
        self._turns = itertools.count(random.randrange(1 << 16))
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._count: int | None = None
        self._attached: dict[int, Future[ClientConnection]] = {}

    # --- on the caller's thread ---------------------------------------------------------------

    def check(self, timeout: float) -> None:
        """Return if transactions of `timeout` seconds can be begun, and aborted: one is.

        No command asks a coordinator for its limits, so what it refuses with is all that tells.
        """
        txn = self.begin(timeout)
        run(lambda deadline: self.end_operation(txn, deadline, commit=False), self._timeout)

    def begin(self, timeout: float) -> TxnId:
        """Begin a transaction, which its coordinator aborts after `timeout` seconds."""
        return run(lambda deadline: self.begin_operation(timeout, deadline), self._timeout)

    def end_all(
        self,
        transactions: Sequence[TxnId],
        *,
        commit: bool,
        timeout: float | None = None,
    ) -> dict[TxnId, PulsarError | None]:
        """End transactions, all at a time; tell of each the error, or None where it was ended."""

        def factory(txn: TxnId) -> OperationFactory[None]:
            return lambda deadline: self.end_operation(txn, deadline, commit=commit)

        results = run_many([factory(txn) for txn in transactions], timeout or self._timeout)
        return dict(zip(transactions, results, strict=True))

    def add_partition_to_all(
        self, transactions: Sequence[TxnId], partition: str
    ) -> dict[TxnId, PulsarError | None]:
        """As `end_all`: let a topic partition take part in all of these transactions."""

        def add(txn: TxnId, deadline: Deadline) -> Operation[None]:
            yield from self.add_partitions_operation(txn, [partition], deadline)

        def factory(txn: TxnId) -> OperationFactory[None]:
            return lambda deadline: add(txn, deadline)

        results = run_many([factory(txn) for txn in transactions], self._timeout)
        return dict(zip(transactions, results, strict=True))

    # --- operations ---------------------------------------------------------------------------

    def begin_operation(self, timeout: float, deadline: Deadline) -> Operation[TxnId]:
        """Return the operation that `begin` runs."""
        count = yield from retrying(self._count_operation, deadline)
        tc_id = self._turn(count)
        answer: pb.CommandNewTxnResponse = yield from self._ask(
            tc_id,
            lambda request_id: commands.new_txn(request_id, tc_id, max(int(timeout * 1000), 1)),
            deadline,
        )
        return TxnId(answer.txnid_most_bits, answer.txnid_least_bits)

    def add_partitions_operation(
        self, txn: TxnId, partitions: Sequence[str], deadline: Deadline
    ) -> Operation[None]:
        """Let topic partitions take part in a transaction, before anything is sent to them."""
        return self._ask(
            txn.most_bits,
            lambda request_id: commands.add_partition_to_txn(request_id, txn, partitions),
            deadline,
        )

    def add_subscription_operation(
        self, txn: TxnId, topic: str, subscription: str, deadline: Deadline
    ) -> Operation[None]:
        """Let a subscription take part, before anything on it is acknowledged."""
        part = pb.Subscription(topic=topic, subscription=subscription)
        return self._ask(
            txn.most_bits,
            lambda request_id: commands.add_subscription_to_txn(request_id, txn, [part]),
            deadline,
        )

    def end_operation(self, txn: TxnId, deadline: Deadline, *, commit: bool) -> Operation[None]:
        """Commit or abort a transaction.

        Raises TransactionOutcomeUnknown where an end was asked for and it cannot be told whether
        it happened. A transaction that the coordinator does not know (any more) is aborted if
        that was asked for; a commit of it raises TransactionNotFound, or InvalidTxnStatus.
        """
        may_have_ended = False

        def attempt(end: Deadline) -> Operation[None]:
            nonlocal may_have_ended
            connection = yield from self._connection(txn.most_bits, end)
            try:
                yield connection.request_async(
                    lambda request_id: commands.end_txn(
                        request_id, txn, pb.COMMIT if commit else pb.ABORT
                    ),
                    end.attempt(self._timeout),
                )
            except (TransactionNotFound, InvalidTxnStatus):
                raise
            except PulsarError as error:
                self._detach(txn.most_bits, connection)
                # A coordinator that met an error can go on with the end by itself.
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

    # --- asking -------------------------------------------------------------------------------

    def _ask(
        self, tc_id: int, builder: Callable[[int], pb.BaseCommand], deadline: Deadline
    ) -> Operation[Any]:
        return retrying(self._attempts(tc_id, builder), deadline)

    def _attempts(
        self, tc_id: int, builder: Callable[[int], pb.BaseCommand] | None = None
    ) -> OperationFactory[Any]:
        """Return attempts to ask a coordinator something, or only to be attached to it."""

        def attempt(deadline: Deadline) -> Operation[Any]:
            connection = yield from self._connection(tc_id, deadline)
            if builder is None:
                return None
            try:
                return (yield connection.request_async(builder, deadline.attempt(self._timeout)))
            except PulsarError as error:
                if is_retryable(error) or isinstance(error, OperationTimeout):
                    self._detach(tc_id, connection)
                raise

        return attempt

    def _count_operation(self, deadline: Deadline) -> Operation[int]:
        if self._count is not None:
            return self._count
        try:
            count = yield from self._lookup.partitions_operation(str(COORDINATORS), deadline)
        except TopicNotFound as error:
            raise UnsupportedFeature(
                "the brokers do not support transactions", _NOT_ENABLED
            ) from error
        if not count:
            raise UnsupportedFeature("the brokers do not support transactions", _NOT_ENABLED)
        self._count = count
        return count

    def _turn(self, count: int) -> int:
        return next(self._turns) % count

    def _connection(self, tc_id: int, deadline: Deadline) -> Operation[ClientConnection]:
        """Return a connection to a coordinator's broker that knows of this client.

        Whoever comes first attaches, and the others wait for that.
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
        connection = yield from self._lookup.connection_operation(topic, deadline)
        if connection.protocol_version < COORDINATOR_CONNECT:
            # Older coordinators take transactions from whoever comes.
            return connection
        try:
            yield connection.request_async(
                lambda request_id: commands.tc_client_connect_request(request_id, tc_id),
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
        """Look the coordinator up again the next time."""
        with self._lock:
            attached = self._attached.get(tc_id)
            if (
                attached is not None
                and attached.done()
                and attached.exception() is None
                and attached.result() is connection
            ):
                del self._attached[tc_id]


def _is_over(attached: Future[ClientConnection]) -> bool:
    if not attached.done():
        return False
    return attached.exception() is not None or attached.result().closed


def _is_refusal(error: PulsarError) -> bool:
    """Whether an answer tells that the coordinator has done nothing, and will not."""
    if isinstance(error, TransactionCoordinatorNotFound):
        return True
    return isinstance(error, BrokerError) and not error.retryable


def name_of(txn: TxnId) -> str:
    """Return a transaction's id as Pulsar's tools write it."""
    return f"({txn.most_bits},{txn.least_bits})"


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
    """Where a transaction stands, as far as this client knows; Java's names."""

    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"
    ERROR = "error"
    TIME_OUT = "timed out"


class UnderWay:
    """A message or an acknowledgement of a transaction that nothing is heard of yet."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Transaction) -> None:
        self._owner = owner

    def end(self, error: PulsarError | None = None) -> None:
        """It ended, with an error if nothing must be committed. The first call counts."""
        self._owner._on_end(self, error)


class Transaction:
    """A transaction that was begun: what takes part in it, and what is under way.

    Whoever sends or acknowledges in it calls `add_partition` or `add_subscription` first, then
    `begin_operation`, and `end` of what that gives. Thread-safe.
    """

    def __init__(self, coordinators: Coordinators, timeout: float, seconds: float) -> None:
        self.timeout = timeout
        self._coordinators = coordinators
        # How long one request may take.
        self._seconds = seconds
        begun = time.monotonic()
        self.txn_id = coordinators.begin(timeout)
        self._expires_at = begun + timeout
        self._changed = threading.Condition()
        # The following are guarded by _changed.
        self._state = TransactionState.OPEN
        self._parts: dict[tuple[str, ...], Future[None]] = {}
        self._under_way: set[UnderWay] = set()
        self._failed: PulsarError | None = None

    def __repr__(self) -> str:
        return f"<Transaction {name_of(self.txn_id)} {self.state.value}>"

    @property
    def state(self) -> TransactionState:
        """Where it stands; one that nobody ended in time was aborted by its coordinator."""
        with self._changed:
            return self._look()

    def add_partition(self, topic: str) -> None:
        """Let a topic partition take part; returns when its coordinator knows."""
        self._take_part(
            (topic,),
            lambda deadline: self._coordinators.add_partitions_operation(
                self.txn_id, [topic], deadline
            ),
        )

    def add_subscription(self, topic: str, subscription: str) -> None:
        """Let a subscription of a topic partition take part; returns when it is known."""
        self._take_part(
            (topic, subscription),
            lambda deadline: self._coordinators.add_subscription_operation(
                self.txn_id, topic, subscription, deadline
            ),
        )

    def begin_operation(self) -> UnderWay:
        """Take note of a message or an acknowledgement; raises unless the transaction is open."""
        under_way = UnderWay(self)
        with self._changed:
            self._check_open()
            self._under_way.add(under_way)
        return under_way

    def _on_end(self, under_way: UnderWay, error: PulsarError | None) -> None:
        with self._changed:
            if under_way in self._under_way:
                self._under_way.discard(under_way)
                self._failed = self._failed or error
                self._changed.notify_all()

    def commit(self) -> None:
        """Wait for what is under way, then make all of it visible at once.

        If any of it failed, the transaction is aborted and that error raised. Raises
        TransactionNotFound or InvalidTxnStatus if it was aborted before, since its time was up,
        and TransactionOutcomeUnknown where the coordinator does not tell.
        """
        self._end(TransactionState.COMMITTING)
        if (failed := self._wait()) is not None:
            with self._changed:
                self._state = TransactionState.OPEN
            self.abort()
            raise failed.with_context() from failed
        self._finish(commit=True)

    def abort(self) -> None:
        """Wait for what is under way, then drop all of it."""
        self._end(TransactionState.ABORTING)
        self._wait()
        self._finish(commit=False)

    def _take_part(self, part: tuple[str, ...], factory: OperationFactory[None]) -> None:
        with self._changed:
            self._check_open()
            taken = self._parts.get(part)
            mine = taken is None or (taken.done() and taken.exception() is not None)
            if taken is None or mine:
                taken = self._parts[part] = Future()
        if not mine:
            try:
                taken.result(self._seconds + _GRACE)
            except FutureTimeout as error:
                if isinstance(error, PulsarError):
                    raise
                raise OperationTimeout("a transaction's coordinator gave no answer") from None
            return
        try:
            run(factory, self._seconds)
        except BaseException as error:
            known = error if isinstance(error, PulsarError) else ConnectionLost("interrupted")
            taken.set_exception(known.with_context())
            if isinstance(error, TransactionNotFound | InvalidTxnStatus):
                raise _named(self.txn_id, error) from error
            raise
        taken.set_result(None)

    def _look(self) -> TransactionState:
        if self._state is TransactionState.OPEN and time.monotonic() >= self._expires_at:
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
        """Wait until nothing is under way, as long as the transaction has time."""
        with self._changed:
            while self._under_way:
                left = self._expires_at - time.monotonic()
                if left <= 0:
                    return OperationTimeout(
                        f"the timeout of transaction {name_of(self.txn_id)} passed with "
                        f"{len(self._under_way)} messages or acknowledgements pending"
                    )
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            return self._failed

    def _finish(self, *, commit: bool) -> None:
        try:
            run(
                lambda deadline: self._coordinators.end_operation(
                    self.txn_id, deadline, commit=commit
                ),
                self._seconds,
            )
        except BaseException:
            with self._changed:
                self._state = TransactionState.ERROR
            raise
        with self._changed:
            self._state = TransactionState.COMMITTED if commit else TransactionState.ABORTED
