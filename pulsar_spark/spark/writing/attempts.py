"""What attempts of tasks have begun, so that a driver can abort what killed ones have left open.

An open transaction holds every reader of its topics, and nobody tells the loser of a speculation,
or a task of a killed driver, to abort. So each attempt announces its transaction on a topic beside
the sink's records, before it takes part in it. A driver that starts, or commits, first takes
exclusive access to that topic, which increases the topic's epoch, then reads the announcements, and
aborts what is not its own.

No attempt can slip through. It announces as an ordinary producer, and each registration of one is
told the topic's epoch. Either that is the one that the attempt's driver has fenced with: then the
announcement is stored before any later driver reads. Or it is not, and the attempt gives up before
its first message. So a zombie can send into an aborted transaction at most, which brokers never
deliver.

A transaction whose attempt dies before it has announced it holds nobody: no topic takes part in it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import start
from pulsar_spark.engine.options import ProducerOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.transactions import names_of
from pulsar_spark.errors import (
    AuthorizationError,
    BrokerError,
    ProducerFenced,
    TopicNotFound,
    TransactionOutcomeUnknown,
    UnsupportedFeature,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.protocol.outgoing_messages import LOCAL_ONLY, MessageFields, OutgoingMessages
from pulsar_spark.spark.writing.crash_points import reach
from pulsar_spark.spark.writing.fenced_topic import (
    Fence,
    FencedTopic,
    Found,
    begin_together,
    exists,
    overtaken,
    packed,
    read_all,
    unpacked,
)

logger = get_logger(__name__)

_VERSION = 1
_CLOSE_SECONDS = 5.0
# A coordinator gives no answer while a topic, such as a terminated one, does not take part.
_ABORT_SECONDS = 10.0
_SHOWN = 100


ATTEMPTS_SUFFIX = "-attempts"
"""What the names of topics of announcements end with."""


def attempts_topic(state_topic: str) -> str:
    """Return the topic of announcements beside a topic of records."""
    return f"{state_topic}{ATTEMPTS_SUFFIX}"


@dataclass(frozen=True, slots=True)
class Announcing:
    """Where a driver's tasks announce their transactions; plain data. `epoch` is the driver's.

    `read_from` is from where on the driver has read the announcements, a ledger and an entry.
    """

    topic: str
    epoch: int
    read_from: tuple[int, int] = EARLIEST_POSITION[:2]


class Attempt(NamedTuple):
    """An announced transaction: what it writes, to which topic first, since when (UTC seconds)."""

    txn: TxnId
    sink: str
    unit: str
    topic: str
    at: float
    process: str = ""


@cache
def _token_of(process_id: int) -> str:
    return secrets.token_hex(8)


def this_process() -> str:
    """Return a name of this process that no other process has, on no machine."""
    return _token_of(os.getpid())


class Announcer(Closing):
    """Announces one transaction. Begins to connect at once, while the caller begins it."""

    def __init__(self, context: ClientContext, where: Announcing) -> None:
        self._context = context
        self._where = where
        self._timeout = context.options.operation_timeout
        options = ProducerOptions(batching_enabled=False)
        self._producer = TopicProducer(context, where.topic, options)
        self._opening = start(self._producer.open_operation, self._timeout, context.timers)

    def announce(self, attempt: Attempt) -> None:
        """Announce a transaction that nothing has been sent in.

        Raises SinkStateError if a newer driver has started, or has decided on the task's unit.
        """
        self._opening.result()
        self._check_epoch()
        named = attempt._replace(process=this_process())
        record = {"v": _VERSION, **named._asdict(), "txn": list(attempt.txn)}
        message = MessageFields(packed(record), replicate_to=LOCAL_ONLY)
        self._producer.send(OutgoingMessages.of([message]))
        self._producer.flush(self._timeout)
        # It may have been sent again, in another registration.
        self._check_epoch()
        reach("task-announced")

    def _check_epoch(self) -> None:
        if self._producer.topic_epoch != self._where.epoch:
            raise overtaken(self._where.topic)

    def close(self) -> None:
        """Leave the topic; the task need not wait until the broker has answered."""
        start(self._producer.abort_operation, _CLOSE_SECONDS, self._context.timers)


class Attempts(Closing):
    """The driver's access to the announcements of a sink. A context manager; aborts once."""

    def __init__(self, context: ClientContext, state_topic: str) -> None:
        self.topic = attempts_topic(state_topic)
        self._context = context
        self._log = FencedTopic(context, self.topic, _WHAT)
        self.needed_from = EARLIEST_POSITION
        """Where announcements begin that are still needed, once what was excepted is decided on."""
        self.count = 0
        """How many were read."""

    def fence(self, needed_from: Position | None = None) -> Fence:
        """Return how `abort` fences the topic; it reads from there on, if that is known."""
        return Fence(self._log, {"v": _VERSION, "fence": True}, needed_from)

    def close(self) -> None:
        """Leave the topic; the announcements that are still needed stay."""
        self._log.close()

    def exist(self) -> bool:
        """Whether a driver has read announcements before. Creates nothing."""
        try:
            return exists(self._context, self.topic, _WHAT)
        except (AuthorizationError, UnsupportedFeature):
            return False

    def abort(
        self,
        needed_from: Position,
        *,
        but: Collection[TxnId] = (),
        spare_this_process: bool = False,
    ) -> Announcing | None:
        """Fence all attempts so far, and abort their transactions, except some.

        `needed_from` is that of the last driver: a message TTL moves the subscription, too. Returns
        where the driver's tasks can announce theirs; None, after a warning, if they cannot. With
        `spare_this_process` those that were begun in this very process are not aborted: it is
        alive. Announcements of what is not aborted stay, until `forget`.
        """
        try:
            return self._abort(needed_from, but, spare_this_process)
        except ProducerFenced as error:
            raise overtaken(self.topic, error.broker) from error
        except BrokerError as error:
            if error.retryable:
                raise
            logger.warning(
                "attempts of tasks cannot be announced, so readers wait until transactionTimeout "
                "for what killed tasks and drivers leave open. Create %s, without partitions, and "
                "permit the role to produce and consume there: %s",
                self.topic,
                error,
            )
            return None

    def forget(self) -> None:
        """What was excepted is decided on, so that its announcements are no longer needed."""
        if self.needed_from > EARLIEST_POSITION:
            self._log.acknowledge(self.needed_from)

    def _abort(
        self, needed_from: Position, but: Collection[TxnId], spare_this_process: bool
    ) -> Announcing:
        log, record, _ = fence = self.fence(needed_from)
        if not log.is_begun:
            begin_together([fence])
        # Without announcements, transactions end by their timeout: no reason to refuse to write.
        log.attach()
        stored = log.fence(record)
        reach("attempts-fenced")
        found = list(_attempts_in([*log.unprotected, *log.read(needed_from, stored)]))
        self.count = len(found)
        spared = this_process() if spare_this_process else None
        wanted = {one.txn for _, one in found if one.process != spared}.difference(but)
        ends = self._context.coordinators.end_all(
            list(wanted), commit=False, timeout=_ABORT_SECONDS
        )
        reach("attempts-aborted")
        failed = {txn: error for txn, error in ends.items() if error is not None}
        if failed:
            logger.warning(
                "%s end by their timeout: %s", names_of(list(failed)), next(iter(failed.values()))
            )
        # Those that it gave no answer about are aborted when all their topics take part again.
        unsure = TransactionOutcomeUnknown
        left = {txn for txn, error in failed.items() if not isinstance(error, unsure)}
        needed = [at for at, one in found if one.txn in left or one.process == spared]
        # With nothing left, no backlog is there that could grow old.
        self.needed_from = min(needed, default=Position.after(stored))
        log.acknowledge(min([at for at, one in found if one.txn in but] + [self.needed_from]))
        log.leave()
        return Announcing(self.topic, log.epoch, needed_from[:2])


_WHAT = "the sink's attempts"


def announced(context: ClientContext, state_topic: str) -> list[Attempt]:
    """Return the announcements that are stored. They can be of transactions that have ended."""
    topic = attempts_topic(state_topic)
    try:
        last = context.lookup.last_message_id(topic)
    except TopicNotFound:
        return []
    found = read_all(context, topic, EARLIEST_POSITION, last)
    return [attempt for _, attempt in _attempts_in(found)]


def _attempts_in(found: Iterable[Found]) -> Iterator[tuple[Position, Attempt]]:
    for position, payload in found:
        try:
            record = unpacked(payload)
            if record.pop("v") == _VERSION and "txn" in record:
                yield position, _attempt_of(record)
        except (ValueError, KeyError, TypeError):
            logger.warning("an announcement is not one of this package: %r", payload[:_SHOWN])


def _attempt_of(record: dict[str, Any]) -> Attempt:
    """Return the attempt of a record; raises ValueError or TypeError for one of something else."""
    most, least = map(int, record.pop("txn"))
    attempt = Attempt(TxnId(most, least), **record | {"at": float(record["at"])})
    if not all(isinstance(text, str) for text in (*attempt[1:4], attempt.process)):
        raise TypeError
    return attempt
