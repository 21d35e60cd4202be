"""Writing exactly once: the driver's part, which commits the transactions of all tasks.

Each attempt of a task writes in a transaction of its own, which its commit message names. What
Spark hands over to be committed is decided by a record first (`decision_log`), then committed; who
finds a decision that was not carried out does that before anything else, and its own transactions
of the same unit are aborted. What neither is committed nor aborted is ended by its time-out.

An answer that does not tell is never taken for a commit: the marker of a transaction does.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.transactions import COORDINATORS, name_of
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
from pulsar_spark.spark.writing.crash_points import armed, reach
from pulsar_spark.spark.writing.decision_log import Decision, DecisionLog, Unit

logger = logging.getLogger(__name__)

STATE_PREFIX = "__spark_sink-"
"""What the local names of topics of records begin with, where they are not given."""

# What a coordinator says of a transaction that it has ended, or is ending.
_ENDED = (TransactionNotFound, InvalidTxnStatus)
_ABORT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What an exactly-once sink is; plain data. `transaction_timeout` is in seconds."""

    sink_id: str
    state_topic: str
    transaction_timeout: float


def sink_options(
    sink_id: str | None, state_topic: str | None, topic: str | None, transaction_timeout: float
) -> SinkOptions:
    """Return the options of a sink, with what was not given. Raises OptionError.

    The topic of its records lies beside the one that is written to.
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
        digest = hashlib.sha256(sink_id.encode()).hexdigest()[:16]
        namespace = TopicName.parse(topic).namespace_name
        name = TopicName.parse(f"persistent://{namespace}/{STATE_PREFIX}{digest}")
    for written in (name, *([] if topic is None else [TopicName.parse(topic)])):
        check_persistent(written)
    return SinkOptions(sink_id, str(name), transaction_timeout)


def check_persistent(topic: TopicName) -> None:
    """Raise UnsupportedFeature for a topic that cannot take part in transactions."""
    if not topic.is_persistent:
        raise UnsupportedFeature(
            "deliveryGuarantee=exactly-once needs persistent topics",
            "Non-persistent topics have no transactions: write with at-least-once or none.",
            topic=str(topic),
        )


def check_sink(client: ClientOptions, sink: SinkOptions, *, finish: bool) -> None:
    """Make sure, before a row is written, that the sink can work: transactions, records, rights.

    With `finish` what was decided before and not carried out is carried out now.
    """
    with (
        ClientContext.shared(client) as context,
        DecisionLog(context, sink.state_topic, sink.sink_id) as log,
    ):
        _check_coordinator(context, sink.transaction_timeout)
        if not finish:
            log.attach()
            return
        log.open()
        if log.undone is not None:
            Committer(context, log).carry_out(log.undone)


def _check_coordinator(context: ClientContext, timeout: float) -> None:
    """Raise unless a coordinator lets a transaction last as long as it may have to."""
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
        refused = type(error)(
            f"the transaction coordinator refuses a transaction of {timeout:g} s "
            f"(transactionTimeout): {error.what}",
            "Lower transactionTimeout to what the brokers allow, or have them allow more.",
        )
        raise refused.with_context(broker=error.broker) from error


def commit_unit(
    client: ClientOptions,
    sink: SinkOptions,
    unit: Unit,
    transactions: Sequence[TxnId],
    messages: int,
    topics: Iterable[str] = (),
) -> bool:
    """Commit the transactions of a unit, or find that it is committed; return whether these were.

    Raises TornBatch, TransactionExpired, TransactionOutcomeUnknown and SinkStateError. What was
    decided stays decided whatever it raises.
    """
    digest = hashlib.sha256("\n".join(sorted(topics)).encode()).hexdigest()[:16]
    decision = Decision(unit, tuple(transactions), messages, digest)
    with (
        ClientContext.shared(client) as context,
        DecisionLog(context, sink.state_topic, sink.sink_id) as log,
    ):
        log.open()
        return Committer(context, log).commit(decision)


def abort_unit(client: ClientOptions, sink: SinkOptions, transactions: Sequence[TxnId]) -> None:
    """Abort transactions of a unit that failed, but for those that were decided to be committed.

    Never raises: what is left ends by its time-out.
    """
    if not transactions:
        return
    try:
        with (
            ClientContext.shared(client) as context,
            DecisionLog(context, sink.state_topic, sink.sink_id) as log,
        ):
            # Under the fence: whoever was about to decide for them cannot any more.
            log.open()
            decided = () if log.undone is None else log.undone.transactions
            _abort(context, [txn for txn in transactions if txn not in decided])
    except PulsarError as error:
        logger.warning("transactions that are left end by their time-out: %s", error)


class Committer:
    """Carries decisions out, with a log that is open."""

    def __init__(self, context: ClientContext, log: DecisionLog) -> None:
        self._coordinators = context.coordinators
        self._context = context
        self._log = log

    def commit(self, mine: Decision) -> bool:
        """Decide for these transactions and commit them, unless the unit is decided already.

        Return whether they were committed; if not, they are aborted.
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
            self._log.finish(mine)
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
        """Commit all transactions of the decision that is undone.

        With `taking_part` the topic of the records is known to take part in all of them.
        Raises TornBatch if some are committed and others gone. Where none is committed and all
        are gone, raises TransactionExpired, or with `again`, where the same rows are written
        anew, returns False.
        """
        alive = list(decision.transactions)
        if not taking_part:
            joined = self._coordinators.add_partition_to_all(alive, self._log.topic)
            _raise_other(joined.values(), _ENDED)
            alive = [txn for txn, error in joined.items() if error is None]
        gone = self._commit_all(decision.transactions, alive)
        if not gone:
            reach("after-ends")
            self._log.finish(decision)
            reach("after-done")
            return True
        count, committed = len(decision.transactions), len(decision.transactions) - len(gone)
        if committed:
            raise TornBatch(
                f"{decision.unit} torn: {committed} of {count} transactions are committed, the "
                f"others are gone: {_names(gone)}",
                "They were open for longer than transactionTimeout. See docs/delivery.md on how to "
                "repair it by hand.",
                topic=self._log.topic,
            )
        self._log.void()
        if again:
            logger.warning("%s: nothing of its first writing is there; it is redone", decision.unit)
            return False
        raise _expired(decision.unit, gone)

    def _commit_all(self, transactions: Sequence[TxnId], alive: list[TxnId]) -> list[TxnId]:
        """Commit those transactions of a decision that are alive; return those gone for certain."""
        self._log.mark(alive)
        reach("after-markers")
        ends = self._end_all(alive)
        _raise_other(ends.values(), (*_ENDED, TransactionOutcomeUnknown))
        unsure = [txn for txn in transactions if txn not in ends or ends[txn] is not None]
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
        # Between two ends there is a place only where they follow each other.
        ends: dict[TxnId, PulsarError | None] = {}
        for txn in transactions:
            ends |= end([txn])
            reach("between-ends")
        return ends

    def _check_alive(self, mine: Decision) -> None:
        """Raise TransactionExpired, and write nothing, if the time of a transaction is up."""
        taking_part = self._coordinators.add_partition_to_all(mine.transactions, self._log.topic)
        gone = [txn for txn, error in taking_part.items() if isinstance(error, _ENDED)]
        if gone:
            _abort(self._context, [txn for txn in mine.transactions if txn not in gone])
            raise _expired(mine.unit, gone)
        _raise_other(taking_part.values(), ())

    def _check_place(self, unit: Unit) -> None:
        """Raise SinkStateError for a micro-batch before the last one, or in a sink of jobs."""
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
        """Take note that the last unit comes again, which is committed."""
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
        f"transaction expired, {unit} not written: {_names(gone)} were open for longer than "
        "transactionTimeout, or were aborted by hand",
        "Run it again; raise transactionTimeout if writing takes so long.",
    )


def _names(transactions: Sequence[TxnId]) -> str:
    shown = ", ".join(map(name_of, transactions[:10]))
    return shown if len(transactions) <= 10 else f"{shown} and {len(transactions) - 10} more"
