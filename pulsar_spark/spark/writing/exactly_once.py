"""Exactly-once writing on the driver: commits the transactions of all tasks.

Each attempt of a task writes in its own transaction, which its commit message names. When Spark
commits, a record first decides which transactions to commit (`decision_log`), then they are
committed. A driver that finds an unfinished decision carries it out before anything else; its own
transactions of the same unit are aborted. Transactions that nobody ends are aborted at their
timeout.

If an answer is missing, only the transaction's marker proves a commit. If some transactions of a
decision have timed out, and it is certain that none was committed, the decision is dropped and the
others are aborted. An answer alone is no proof that readers see the rows either: that is
checked (`commit_check`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.transactions import COORDINATORS, name_of, names_of
from pulsar_spark.errors import (
    AuthorizationError,
    BrokerError,
    InvalidTxnStatus,
    OptionError,
    PulsarError,
    SinkStateError,
    TornBatch,
    TransactionExpired,
    TransactionNotFound,
    TransactionOutcomeUnknown,
    UnsupportedFeature,
)
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.spark.writing.commit_check import confirm, settle
from pulsar_spark.spark.writing.crash_points import armed, reach
from pulsar_spark.spark.writing.decision_log import Decision, DecisionLog, Unit, id_digest, known_as

logger = logging.getLogger(__name__)

STATE_PREFIX = "__spark_sink-"
"""Prefix of the default local names of records' topics."""

# A coordinator's errors for a transaction that has ended, or is ending.
_ENDED = (TransactionNotFound, InvalidTxnStatus)
_ABORT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of an exactly-once sink; plain data. `transaction_timeout` is in seconds.

    `sink_id` is the id as `known_as` returns it, without credentials.
    """

    sink_id: str
    state_topic: str
    transaction_timeout: float


def sink_options(
    sink_id: str | None, state_topic: str | None, topic: str | None, transaction_timeout: float
) -> SinkOptions:
    """Return a sink's options, with defaults. Raises OptionError.

    By default the topic of its records is in the namespace of the written topic.
    """
    if not sink_id:
        raise OptionError(
            "deliveryGuarantee=exactly-once needs sinkId: there is no checkpointLocation among "
            "the writer's options",
            "Set checkpointLocation as an option of the writer, or sinkId: a name that stays the "
            "same when the query, or the job, is started again.",
        )
    if state_topic is not None:
        name = TopicName.parse(state_topic)
    elif topic is None:
        raise OptionError(
            "deliveryGuarantee=exactly-once needs sinkStateTopic where rows name their topics",
            "Set sinkStateTopic to a topic that only this sink writes to.",
        )
    else:
        namespace = TopicName.parse(topic).namespace_name
        local_name = f"{STATE_PREFIX}{id_digest(sink_id)}"
        name = TopicName.parse(f"persistent://{namespace}/{local_name}")
    for written in (name, *([] if topic is None else [TopicName.parse(topic)])):
        check_persistent(written)
    return SinkOptions(known_as(sink_id), str(name), transaction_timeout)


def check_persistent(topic: TopicName) -> None:
    """Raise UnsupportedFeature for a topic that cannot take part in transactions."""
    if not topic.is_persistent:
        raise UnsupportedFeature(
            "deliveryGuarantee=exactly-once needs persistent topics",
            "Non-persistent topics have no transactions: write with at-least-once or none.",
            topic=str(topic),
        )


def check_sink(client: ClientOptions, sink: SinkOptions, *, finish: bool) -> None:
    """Check, before a row is written, that the sink can work: transactions, records, permissions.

    With `finish`, carries out an unfinished earlier decision now.
    """
    with (
        ClientContext.shared(client) as context,
        DecisionLog(context, sink.state_topic, sink.sink_id) as log,
    ):
        _check_coordinator(context, sink.transaction_timeout)
        if not finish:
            log.attach()
            # The commit reads the records, with a consumer beside this one: that must be allowed.
            context.lookup.last_message_id(log.topic)
            return
        log.open()
        if log.undone is not None:
            Committer(context, log).carry_out(log.undone)


def _check_coordinator(context: ClientContext, timeout: float) -> None:
    """Raise unless a coordinator allows transactions as long as the timeout."""
    try:
        context.coordinators.check(timeout)
    except UnsupportedFeature:
        raise
    except AuthorizationError as error:
        denied = AuthorizationError(
            f"the role may not use the transaction coordinators: {error.what}",
            "Permit it: pulsar-admin namespaces grant-permission --role ROLE --actions "
            f"produce,consume {COORDINATORS.namespace_name}",
        )
        raise denied.with_context(broker=error.broker) from error
    except BrokerError as error:
        if error.retryable:
            # It never gave an answer that depends on the timeout.
            raise
        refused = type(error)(
            f"the transaction coordinator refuses a transaction of {timeout:g} s "
            f"(transactionTimeout): {error.what}",
            "Lower transactionTimeout to what the brokers allow, or have them allow more.",
        )
        raise refused.with_context(broker=error.broker) from error


def digest_of(topics: Iterable[str]) -> str:
    """Return a decision's digest of the names of its topics."""
    return hashlib.sha256("\n".join(sorted(topics)).encode()).hexdigest()[:16]


def commit_unit(client: ClientOptions, sink: SinkOptions, decision: Decision) -> bool:
    """Commit a unit's transactions, unless it is committed already; return whether these were.

    Raises TornBatch, TransactionExpired, TransactionOutcomeUnknown and SinkStateError. Even then a
    recorded decision remains.
    """
    with (
        ClientContext.shared(client) as context,
        DecisionLog(context, sink.state_topic, sink.sink_id) as log,
    ):
        log.open()
        return Committer(context, log).commit(decision)


def abort_unit(client: ClientOptions, sink: SinkOptions, transactions: Sequence[TxnId]) -> None:
    """Abort a failed unit's transactions, except those whose commit was decided.

    Never raises: the remaining ones end by their timeout.
    """
    if not transactions:
        return
    try:
        with (
            ClientContext.shared(client) as context,
            DecisionLog(context, sink.state_topic, sink.sink_id) as log,
        ):
            # After fencing, nobody who was about to decide on them still can.
            log.open()
            decided = () if log.undone is None else log.undone.transactions
            _abort(context, [txn for txn in transactions if txn not in decided])
    except PulsarError as error:
        logger.warning("transactions that are left end by their time-out: %s", error)


class Committer:
    """Carries out decisions, with an open log."""

    def __init__(self, context: ClientContext, log: DecisionLog) -> None:
        self._coordinators = context.coordinators
        self._context = context
        self._log = log

    def commit(self, mine: Decision) -> bool:
        """Decide on these transactions and commit them, unless the unit is already decided.

        Returns whether they were committed; otherwise they are aborted.
        """
        self._check_place(mine.unit)
        undone = self._log.undone
        if undone is not None:
            carried_out = self.carry_out(undone, again=undone.unit == mine.unit)
            if carried_out and undone.unit == mine.unit:
                logger.info("%s was decided before: its first writing is committed", mine.unit)
                _abort(self._context, mine.transactions)
                return False
        if self._log.done is None and undone is None and mine.unit.batch:
            logger.warning(
                "the sink has no records yet: %s is the first one that is written exactly once. If "
                "there were some, %s was deleted, and rows of this batch can be there already",
                mine.unit,
                self._log.topic,
            )
        if self._log.done is not None and self._log.done.unit == mine.unit:
            self._skip(mine, self._log.done)
            return False
        if not mine.transactions:
            self._finish(mine)
            return True
        self._check_alive(mine)
        reach("before-decision")
        self._log.decide(mine)
        reach("after-decision")
        self.carry_out(mine, taking_part=True)
        return True

    def carry_out(
        self, decision: Decision, *, again: bool = False, taking_part: bool = False
    ) -> bool:
        """Commit all transactions of the unfinished decision.

        With `taking_part`, the records' topic already takes part in all of them. Raises TornBatch
        if some are committed and others gone. If some are gone and it is certain that none is
        committed, aborts the others and raises TransactionExpired; with `again`, where the same
        rows will be written anew, returns False instead.
        """
        alive = list(decision.transactions)
        if not taking_part:
            joined = self._coordinators.add_partition_to_all(alive, self._log.topic)
            _raise_other(joined.values(), _ENDED)
            alive = [txn for txn, error in joined.items() if error is None]
            gone = [txn for txn, error in joined.items() if error is not None]
            if gone and self._log.nothing_committed():
                # Committing the others would tear the unit.
                _abort(self._context, alive)
                return self._give_up(decision, gone, again=again)
        gone = self._commit_all(decision, alive)
        if not gone:
            reach("after-ends")
            self._finish(decision)
            reach("after-done")
            return True
        count, committed = len(decision.transactions), len(decision.transactions) - len(gone)
        if committed:
            raise TornBatch(
                f"{decision.unit} torn: {committed} of {count} transactions are committed, the "
                f"others are gone: {names_of(gone)}",
                "They were open for longer than transactionTimeout. See docs/delivery.md on how to "
                "repair it by hand.",
                topic=self._log.topic,
            )
        return self._give_up(decision, gone, again=again)

    def _give_up(self, decision: Decision, gone: Sequence[TxnId], *, again: bool) -> bool:
        """Drop a decision of which nothing is committed; return False or raise, as `carry_out`."""
        self._log.void()
        if again:
            logger.warning("%s: nothing of its first writing is there; it is redone", decision.unit)
            return False
        raise _expired(decision.unit, gone)

    def _finish(self, decision: Decision) -> None:
        """Record that a decision is carried out, and which messages readers do not see yet.

        Those that the last unit has left are looked for again: what held them can be gone now.
        """
        self._log.finish(confirm(self._context, decision, self._log.done))

    def _commit_all(self, decision: Decision, alive: list[TxnId]) -> list[TxnId]:
        """Commit a decision's live transactions; return those that are certainly gone."""
        self._log.mark(alive)
        reach("after-markers")
        settle(self._context, {end.topic for end in decision.ends})
        ends = self._end_all(alive)
        _raise_other(ends.values(), (*_ENDED, TransactionOutcomeUnknown))
        wanted = decision.transactions
        unsure = [txn for txn in wanted if txn not in ends or ends[txn] is not None]
        if not unsure:
            return []
        seen = self._log.seen_markers()
        return [txn for txn in unsure if txn not in seen]

    def _end_all(self, transactions: Sequence[TxnId]) -> dict[TxnId, PulsarError | None]:
        """Commit transactions in one round."""

        def end(some: Sequence[TxnId]) -> dict[TxnId, PulsarError | None]:
            return self._coordinators.end_all(some, commit=True)

        if not armed("between-ends"):
            return end(transactions)
        # Crash points between two commits need commits one by one.
        ends: dict[TxnId, PulsarError | None] = {}
        for txn in transactions:
            ends |= end([txn])
            reach("between-ends")
        return ends

    def _check_alive(self, mine: Decision) -> None:
        """Raise TransactionExpired, and record nothing, if a transaction has timed out."""
        taking_part = self._coordinators.add_partition_to_all(mine.transactions, self._log.topic)
        gone = [txn for txn, error in taking_part.items() if isinstance(error, _ENDED)]
        if gone:
            _abort(self._context, [txn for txn in mine.transactions if txn not in gone])
            raise _expired(mine.unit, gone)
        _raise_other(taking_part.values(), ())

    def _check_place(self, unit: Unit) -> None:
        """Raise SinkStateError for an older micro-batch than the last, or in a sink of jobs."""
        for known in (self._log.done, self._log.undone):
            if known is not None and (known.unit.batch is None) != (unit.batch is None):
                raise SinkStateError(
                    f"{unit} comes behind {known.unit}: a stream and batch writes share a sinkId",
                    "Give each query, and each job, a sinkId of its own.",
                    topic=self._log.topic,
                )
            last = None if known is None else known.unit.batch
            if unit.batch is not None and last is not None and unit.batch < last:
                raise SinkStateError(
                    f"{unit} comes behind batch {last}: this sinkId belongs to another checkpoint",
                    "Give a query with a new checkpoint a new sinkId.",
                    topic=self._log.topic,
                )

    def _skip(self, mine: Decision, done: Decision) -> None:
        """The last unit, which is committed, comes again."""
        _abort(self._context, mine.transactions)
        if mine.topics != done.topics and mine.messages and done.messages and done.topics:
            logger.warning(
                "%s is committed already, to other topics than now; what was written first stays",
                mine.unit,
            )
        if mine.messages == done.messages:
            logger.info("%s is committed already", mine.unit)
            return
        what = (
            f"{mine.unit} is committed already with {done.messages} messages, not {mine.messages}"
        )
        if mine.unit.batch == 0:
            raise SinkStateError(
                f"{what}: this sinkId belongs to another checkpoint",
                "Give a query with a new checkpoint a new sinkId.",
                topic=self._log.topic,
            )
        logger.warning("%s; what was written first stays", what)


def _abort(context: ClientContext, transactions: Sequence[TxnId]) -> None:
    ends = context.coordinators.end_all(transactions, commit=False, timeout=_ABORT_SECONDS)
    for txn, error in ends.items():
        if error is not None:
            logger.warning("transaction %s ends by its time-out: %s", name_of(txn), error)


def _raise_other(
    errors: Iterable[PulsarError | None], expected: tuple[type[PulsarError], ...]
) -> None:
    for error in errors:
        if error is not None and not isinstance(error, expected):
            raise error


def _expired(unit: Unit, gone: Sequence[TxnId]) -> TransactionExpired:
    return TransactionExpired(
        f"transaction expired, {unit} not written: {names_of(gone)} were open for longer than "
        "transactionTimeout, or were aborted by hand",
        "Run it again; raise transactionTimeout if writing takes so long.",
    )
