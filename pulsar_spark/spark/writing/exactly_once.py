"""Exactly-once writing on the driver: commits the transactions of all tasks.

Each attempt of a task writes in its own transaction, which it announces first (`attempts`), and
which its commit message names. When Spark commits, a record first decides which transactions to
commit (`decision_log`), then they are committed. A driver that finds an unfinished decision carries
it out before anything else, and aborts what its predecessors' tasks have left open. Transactions
that nobody ends are aborted at their timeout.

If an answer is missing, only the transaction's marker proves a commit. If some transactions of a
decision have timed out, and it is certain that none was committed, the decision is dropped and the
others are aborted. An answer alone is no proof that readers see the rows either: that is
checked (`commit_check`).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.engine.transactions import name_of, names_of
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
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.message_id import Position
from pulsar_spark.protocol.topic_name import TopicName, topic_of
from pulsar_spark.schema.table import names
from pulsar_spark.spark.writing.attempts import (
    ATTEMPTS_SUFFIX,
    Announcing,
    Attempts,
    announced,
    attempts_topic,
)
from pulsar_spark.spark.writing.commit_check import (
    TERMINATED,
    confirm,
    delivered,
    lost_topics,
    topic_lost,
)
from pulsar_spark.spark.writing.crash_points import armed, reach
from pulsar_spark.spark.writing.decision_log import DecisionLog, read_state
from pulsar_spark.spark.writing.fenced_topic import exists, overtaken
from pulsar_spark.spark.writing.repeats import SinkPlace, Verdict, judge, place_of
from pulsar_spark.spark.writing.sink_records import (
    Decision,
    Unit,
    id_digest,
    known_as,
    one_spelling,
)

logger = get_logger(__name__)

STATE_PREFIX = "__spark_sink-"
"""Prefix of the default local names of records' topics."""

MAX_RUN_ID = 256
"""Characters that a run's name may have: thousands are remembered."""

# A coordinator's errors for a transaction that has ended, or is ending.
_ENDED = (TransactionNotFound, InvalidTxnStatus)
_ABORT_SECONDS = 10.0
_MAX_METADATA = 10_000
# How long a process relies on what it was told of a coordinator's limit, and of whose a sink is.
_KNOWN_SECONDS = 600.0
# How long to wait for an answer that a terminated topic prevents.
_STUCK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of an exactly-once sink; plain data. `transaction_timeout` is in seconds.

    `sink_id` is the id as `known_as` returns it, without credentials. `earlier` is the id, and the
    topic of records, that earlier versions derived from another notation of the same checkpoint.
    `run_id` is the name of a batch write's run, `checkpoint` the folder of a stream's checkpoint if
    it can be on the local file system.
    """

    sink_id: str
    state_topic: str
    transaction_timeout: float
    run_id: str | None = None
    first_stays: bool = False
    earlier: tuple[str, str] | None = None
    checkpoint: str | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """All notations of the sink's id."""
        return (self.sink_id,) if self.earlier is None else (self.sink_id, self.earlier[0])

    def check(self, topic: str) -> None:
        """Raise unless rows can be written to a topic: OptionError for one of the sink's own."""
        check_persistent(TopicName.parse(topic))
        places = [self.state_topic] if self.earlier is None else [self.state_topic, self.earlier[1]]
        own = (name for place in places for name in (place, attempts_topic(place)))
        # A topic of records can be named like a partition, and rows can name one.
        if topic_of(topic) in map(topic_of, own):
            raise OptionError(
                "rows cannot be written to a topic that has the records of this sink "
                f"(sinkStateTopic, and sinkStateTopic{ATTEMPTS_SUFFIX} beside it)",
                f"Set topic, or the rows' column {names.TOPIC}, to another one, or sinkStateTopic "
                "to one that nothing else writes to.",
                topic=topic,
            )


def sink_options(
    sink_id: str | None,
    checkpoint: str | None,
    state_topic: str | None,
    topic: str | None,
    transaction_timeout: float,
    *,
    run_id: str | None = None,
    first_stays: bool = False,
) -> SinkOptions:
    """Return a sink's options, with defaults. Raises OptionError.

    By default the sink is known by its checkpoint, in any notation, and the topic of its records is
    in the namespace of the written topic.
    """
    wanted = sink_id or (checkpoint and one_spelling(checkpoint))
    if not wanted:
        raise OptionError(
            "deliveryGuarantee=exactly-once needs sinkId: there is no checkpointLocation among "
            "the writer's options",
            "Set checkpointLocation as an option of the writer, or sinkId: a name that stays the "
            "same when the query, or the job, is started again.",
        )
    if run_id is not None and len(run_id) > MAX_RUN_ID:
        raise OptionError(
            f"sinkRunId has {len(run_id)} characters, and may have {MAX_RUN_ID}",
            "Name the run shorter, for example by its date.",
        )
    name = _state_topic(wanted, state_topic, topic)
    check_persistent(name)
    earlier = None
    if not sink_id and checkpoint and checkpoint != wanted:
        earlier = (known_as(checkpoint), str(_state_topic(checkpoint, state_topic, topic)))
    folder = one_spelling(checkpoint) if checkpoint else ""
    return SinkOptions(
        known_as(wanted),
        str(name),
        transaction_timeout,
        run_id,
        first_stays,
        earlier,
        folder if folder.startswith("/") else None,
    )


def _state_topic(sink_id: str, state_topic: str | None, topic: str | None) -> TopicName:
    if state_topic is not None:
        return TopicName.parse(state_topic)
    if topic is None:
        raise OptionError(
            "deliveryGuarantee=exactly-once needs sinkStateTopic where rows name their topics",
            "Set sinkStateTopic to a topic that only this sink writes to.",
        )
    namespace = TopicName.parse(topic).namespace_name
    local_name = f"{STATE_PREFIX}{id_digest(sink_id)}"
    return TopicName.parse(f"persistent://{namespace}/{local_name}")


def check_persistent(topic: TopicName) -> None:
    """Raise UnsupportedFeature for a topic that cannot take part in transactions."""
    if not topic.is_persistent:
        raise UnsupportedFeature(
            "deliveryGuarantee=exactly-once needs persistent topics",
            "Non-persistent topics have no transactions: write with at-least-once or none.",
            topic=str(topic),
        )


# --- before and after the tasks -------------------------------------------------------------------


class _Known:
    """What checks of this process have found out, for a while: Spark makes one per micro-batch."""

    def __init__(self) -> None:
        self._at: dict[tuple[Hashable, ...], float] = {}

    def has(self, *what: Hashable) -> bool:
        """Whether it was added lately."""
        at = self._at.get(what)
        return at is not None and time.monotonic() - at < _KNOWN_SECONDS

    def add(self, *what: Hashable) -> None:
        """It is so now."""
        now = time.monotonic()
        self._at = {one: at for one, at in self._at.items() if now - at < _KNOWN_SECONDS}
        self._at[what] = now


_known = _Known()


@dataclass(frozen=True, slots=True)
class Turn:
    """What a driver tells its tasks: who it is, and what may follow in the sink; plain data.

    `announcing` is where they announce their transactions, None if they cannot.
    """

    driver: str
    place: SinkPlace
    announcing: Announcing | None


@contextmanager
def opened(
    client: ClientOptions,
    options: SinkOptions,
    driver: str | None = None,
    *,
    anew: bool = False,
    together: bool = False,
    read_from: Position | None = None,
    uses: Collection[TxnId] = (),
) -> Iterator[OpenSink]:
    """Take a sink over: fence other drivers, and read its records; missing ones only to go on.

    Its announcements can be taken over `together` with the records. They are if they were read from
    a position on, when the sink's tasks were let write: then both are there. What `uses` names are
    transactions that will be asked for.
    """
    with ClientContext.shared(client) as context:
        context.coordinators.begin_to_attach(uses, context.timers)
        topic = find_records(context, options)
        with (
            Attempts(context, topic) as attempts,
            DecisionLog(context, topic, options.ids, driver) as log,
        ):
            is_checked = read_from is not None
            log.open(
                had_attempts=attempts.exist,
                anew=anew,
                beside=attempts.fence(read_from) if together or is_checked else None,
                checked=is_checked,
            )
            yield OpenSink(context, options, log, attempts)


def find_records(context: ClientContext, options: SinkOptions) -> str:
    """Return the topic of a sink's records: the one that an earlier version named, if it exists."""
    if options.earlier is not None:
        topic = options.earlier[1]
        try:
            found = topic != options.state_topic and exists(context, topic, "the sink's records")
        except SinkStateError:
            # Whoever goes on there is told.
            found = True
        if found:
            return topic
    return options.state_topic


def check_sink(client: ClientOptions, options: SinkOptions, *, in_stream: bool) -> Turn:
    """Check, before a row is written, that the sink can work: transactions, records, permissions.

    Carries out an unfinished earlier decision, and aborts what earlier drivers' tasks have left
    open. Raises SinkStateError if the earlier decision was that of a batch write, and this write
    is one without a run's name: it may be the same one, started again.
    """
    driver = secrets.token_hex(8)
    if not _known.has(client, options.transaction_timeout):
        with ClientContext.shared(client) as context:
            _check_coordinator(context, options.transaction_timeout)
        _known.add(client, options.transaction_timeout)
    query = _query_of(options.checkpoint) if in_stream else None
    # A stranger must not fence the attempts of the sink's own query. So it is told first.
    mine = (client, options.state_topic, options.sink_id, query)
    with opened(client, options, driver, together=in_stream and _known.has(*mine)) as sink:
        undone = sink.log.undone
        carried_out = undone is not None and sink.carry_out(undone, again=True)
        sink.place.check_kind(in_stream=in_stream)
        if in_stream:
            # Before this driver aborts what the tasks of the sink's own query write.
            sink.place.check_query(query, "this write")
            last = sink.place.last
            if last is not None and query in (None, last.query):
                _known.add(*mine)
        announcing = sink.abort_attempts(spare_this_process=True)
        if undone is not None and carried_out and not in_stream and options.run_id is None:
            raise SinkStateError(
                f"an earlier write was decided on, but not finished: {undone.unit} with "
                f"{undone.written.messages} messages. It is committed now, and all of it is "
                "visible. Nothing of this write is",
                "If this was the same write, started again, do nothing. Otherwise start it again. "
                "With sinkRunId the sink tells one from the other.",
                topic=sink.log.topic,
            )
        return Turn(driver, sink.place, announcing)


def _query_of(checkpoint: str | None) -> str | None:
    """Return the id of the query whose checkpoint is in a local folder, None if it is not there.

    Only tasks are told the id. Spark writes it before the first micro-batch.
    """
    if checkpoint is None:
        return None
    try:
        found = json.loads(Path(checkpoint, "metadata").read_bytes()[:_MAX_METADATA])["id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def _check_coordinator(context: ClientContext, timeout: float) -> None:
    """Raise unless a coordinator allows transactions as long as the timeout."""
    try:
        context.coordinators.check(timeout)
    except AuthorizationError:
        raise
    except BrokerError as error:
        if error.retryable:
            # It never gave an answer that depends on the timeout.
            raise
        asked = f"a transaction of {timeout:g} s (transactionTimeout)"
        if isinstance(error, InvalidTxnStatus):
            what, remedy = f"{asked} ended before it could be used", "Raise transactionTimeout."
        else:
            what = f"the transaction coordinator refuses {asked}"
            remedy = "Lower transactionTimeout to what the brokers allow, or have them allow more."
        raise type(error)(f"{what}: {error.what}", remedy, broker=error.broker) from error


def commit_unit(client: ClientOptions, options: SinkOptions, mine: Decision, tasks: Tasks) -> None:
    """Commit a unit's transactions, unless it is committed already.

    Raises TopicLost, TornBatch, TransactionExpired, TransactionOutcomeUnknown and SinkStateError.
    Even then a recorded decision remains. Each error says what of the unit is visible.
    """
    # An error that does not say so comes before anything was decided.
    with (
        _telling(f"nothing of what {mine.unit} wrote now is visible"),
        opened(
            client, options, tasks.driver, read_from=tasks.read_from, uses=mine.transactions
        ) as sink,
    ):
        sink.commit(mine, tasks)


def abort_unit(
    client: ClientOptions,
    options: SinkOptions,
    transactions: Sequence[TxnId],
    driver: str | None,
) -> None:
    """Abort a failed unit's transactions, except those whose commit was decided.

    And those that its failed tasks have announced. `driver` is the one whose tasks these are, if it
    is known: if another one has taken the sink over, that one aborts them, and is not disturbed.
    Never raises: the others end by their timeout.
    """
    try:
        if driver is not None and _last_driver(client, options) != driver:
            return
        with opened(client, options) as sink:
            # After fencing, nobody who was about to decide on them still can.
            decided = () if sink.log.undone is None else sink.log.undone.transactions
            rest = [txn for txn in transactions if txn not in decided]
            # Those that end already would give no answer if a terminated topic takes part.
            joined = sink.context.coordinators.add_partition_to_all(rest, sink.log.topic)
            abort_all(sink.context, [txn for txn in rest if not isinstance(joined[txn], _ENDED)])
            if sink.attempts.exist():
                sink.abort_attempts(but=decided)
    except PulsarError as error:
        logger.warning("transactions that are left end by their time-out: %s", error)


def _last_driver(client: ClientOptions, options: SinkOptions) -> str | None:
    """Return the driver that has taken the sink over last, without disturbing it."""
    with ClientContext.shared(client) as context:
        return read_state(context, find_records(context, options), gaps=True).driver


class Tasks(NamedTuple):
    """What the tasks of a unit say about themselves.

    `driver` let them write, if it checked the sink; `announced` is whether they announced their
    transactions, of which the first one began at `begun` (seconds since 1970). `read_from` is from
    where on their driver had read the announcements, if it told them.
    """

    driver: str | None = None
    announced: bool = False
    begun: float = 0.0
    read_from: Position | None = None


class OpenSink:
    """A sink that this driver has taken over: its records and its tasks' attempts."""

    def __init__(
        self, context: ClientContext, options: SinkOptions, log: DecisionLog, attempts: Attempts
    ) -> None:
        self.context = context
        self.log = log
        self.attempts = attempts
        self._options = options
        self._coordinators = context.coordinators

    @property
    def place(self) -> SinkPlace:
        """What may follow in the sink."""
        options = self._options
        return place_of(
            self.log.state, options.sink_id, self.log.topic, first_stays=options.first_stays
        )

    def commit(self, mine: Decision, tasks: Tasks) -> None:
        """Decide on these transactions and commit them. See `commit_unit`.

        If the unit is committed already, they are aborted.
        """
        is_overtaken = self._is_overtaken(tasks)
        if is_overtaken:
            # A newer driver's tasks may write: one that has lost must not abort them.
            self._check_alive(mine, tasks)
        undone = self.log.undone
        if tasks.announced and (mine.transactions or not is_overtaken):
            kept = () if undone is None else undone.transactions
            self.abort_attempts(but={*mine.transactions, *kept})
        if undone is not None:
            self.carry_out(undone, again=undone.unit.is_same(mine.unit))
        verdict = None
        try:
            verdict = judge(self.log.state, self.place, mine)
        finally:
            if verdict is not Verdict.NEW:
                abort_all(self.context, mine.transactions)
        if verdict is not Verdict.NEW:
            if verdict is Verdict.ACCEPTED:
                self.log.accepted(mine)
            return
        if mine.transactions:
            self._check_alive(mine, tasks)
            if lost := lost_topics(self.context, mine.ends):
                self._abort_lost(mine, mine.transactions, lost)
                raise topic_lost(mine.unit, lost)
        with _telling(f"whether {mine.unit} is committed is not known", self._how_to_know(mine)):
            if mine.transactions:
                reach("before-decision")
                self.log.decide(mine)
                self.attempts.forget()
                reach("after-decision")
                self.carry_out(mine, taking_part=True)
            else:
                self._finish(mine)

    def abort_attempts(
        self, *, but: Collection[TxnId] = (), spare_this_process: bool = False
    ) -> Announcing | None:
        """As `Attempts.abort`."""
        attempts = self.attempts
        announcing = attempts.abort(
            self.log.state.attempts_from, but=but, spare_this_process=spare_this_process
        )
        if announcing is not None:
            self.log.note_attempts(attempts.needed_from, attempts.count)
        return announcing

    def finish(self) -> None:
        """Carry out an unfinished decision. Raises as `commit_unit`."""
        if self.log.undone is not None:
            self.carry_out(self.log.undone)

    def abort_open(self) -> list[TxnId]:
        """Abort what tasks have left open, except what was decided on; return what was open.

        What ends already is not counted. Raises TransactionOutcomeUnknown if some are still open.
        """
        undone = self.log.undone
        kept = frozenset(() if undone is None else undone.transactions)
        wanted = {attempt.txn for attempt in announced(self.context, self.log.topic)} - kept
        if not wanted:
            return []
        were = self._coordinators.are_open(sorted(wanted))
        self.abort_attempts(but=kept)
        are = self._coordinators.are_open(sorted(wanted))
        left = [txn for txn in wanted if were[txn] and are[txn] is False]
        if rest := sorted(txn for txn in wanted if are[txn] is not False):
            raise TransactionOutcomeUnknown(
                f"{names_of(rest)} may still be open; {len(left)} were aborted",
                "The log says why. They end at their timeout (transactionTimeout).",
                topic=self.log.topic,
            )
        return left

    def accept(self) -> str:
        """Let what is committed stay when it comes again with other rows, once; return what may.

        Raises SinkStateError if nothing is committed that can be repeated.
        """
        state = self.log.state
        if state.undone is not None:
            raise SinkStateError(
                f"{state.undone.unit} is decided, but not committed yet",
                f"First finish it: {self.place.command('finish')}",
                topic=self.log.topic,
            )
        if state.done is None or (state.done.unit.batch is None and not state.runs):
            raise SinkStateError(
                "the sink has committed nothing that can come again with other rows: no "
                "micro-batch, and no run with a sinkRunId",
                "See what it has committed: sink --list.",
                topic=self.log.topic,
            )
        self.log.accept()
        if state.done.unit.batch is None:
            return "one run"
        return (
            f"micro-batches up to {state.done.unit}, one after the other, with the rows that come "
            "first, new ones too"
        )

    def reset(self) -> None:
        """Forget what was committed, and abort what was not."""
        undone = self.log.undone
        if undone is not None:
            abort_all(self.context, undone.transactions)
        self.abort_attempts()
        self.log.reset()

    def _how_to_know(self, mine: Decision) -> str:
        if mine.unit.batch is not None:
            return "Start the query again: it finishes first what was decided."
        return (
            "Do not write the rows again before you know. This commits what was decided, or says "
            f"that nothing is left to do: {self.place.command('finish')}"
        )

    def carry_out(
        self, decision: Decision, *, again: bool = False, taking_part: bool = False
    ) -> bool:
        """Commit all transactions of the unfinished decision.

        With `taking_part`, the records' topic already takes part in all of them. Raises TornBatch
        if some are committed and others gone. If some are gone, or topics cannot show their rows,
        and it is certain that none is committed, aborts the others and raises TransactionExpired
        or TopicLost; with `again`, where the same rows will be written anew, returns False instead.
        """
        alive = list(decision.transactions)
        proven: set[TxnId] = set()
        if not taking_part:
            joined = self._coordinators.add_partition_to_all(alive, self.log.topic)
            _raise_other(joined.values(), _ENDED)
            alive = [txn for txn, error in joined.items() if error is None]
            gone = [txn for txn, error in joined.items() if error is not None]
            proven = delivered(self.context, decision.ends, gone) if gone else set()
            lost = lost_topics(self.context, decision.ends) if alive else {}
            if (gone or lost) and not proven and self._is_dropped(decision, alive, lost):
                return self._give_up(decision, gone, lost, again=again)
        gone = self._commit_all(decision, alive, proven)
        if proven:
            self._read_records_again(decision, proven)
            if self.log.undone is None:
                return True
        if not gone:
            reach("after-ends")
            told = f"all of {decision.unit} is committed; whether readers see it is not known"
            with _telling(told, "Do not write it again."):
                self._finish(decision, just_now=taking_part)
            reach("after-done")
            return True
        count, committed = len(decision.transactions), len(decision.transactions) - len(gone)
        if committed:
            raise TornBatch(
                f"{decision.unit} torn: {committed} of {count} transactions are committed, the "
                f"others are gone: {names_of(gone)}",
                "They were open for longer than transactionTimeout. See docs/delivery.md on how to "
                "repair it by hand.",
                topic=self.log.topic,
            )
        return self._give_up(decision, gone, {}, again=again)

    def _is_dropped(
        self, decision: Decision, alive: Sequence[TxnId], lost: Mapping[str, str]
    ) -> bool:
        """Abort what is alive, if that is certain to leave nothing of a decision committed."""
        if self.log.nothing_committed():
            # Committing the others would tear the unit.
            self._abort_lost(decision, alive, lost)
            return True
        if len(alive) < len(decision.transactions):
            return False
        # Their markers hide whether a commit is on its way: if so, it tears the unit in any case.
        self._abort_lost(decision, alive, lost)
        return not self.log.seen_markers()

    def _abort_lost(
        self, decision: Decision, transactions: Sequence[TxnId], lost: Mapping[str, str]
    ) -> None:
        """Abort transactions of a decision; `lost` are its `lost_topics`."""
        stuck = {end.txn for end in decision.ends if lost.get(end.topic) == TERMINATED}
        abort_all(self.context, transactions, stuck)

    def _give_up(
        self, decision: Decision, gone: Sequence[TxnId], lost: Mapping[str, str], *, again: bool
    ) -> bool:
        """Drop a decision of which nothing is committed; return False or raise, as `carry_out`."""
        self.log.void()
        if again:
            logger.warning("%s: nothing of its first writing is there; it is redone", decision.unit)
            return False
        raise topic_lost(decision.unit, lost) if lost else _expired(decision.unit, gone)

    def _finish(self, decision: Decision, *, just_now: bool = True) -> None:
        """Record that a decision is carried out, and which messages readers do not see yet.

        Those that the last unit has left are looked for again: what held them can be gone now.
        """
        self.log.finish(confirm(self.context, decision, self.log.state.done, just_now=just_now))

    def _read_records_again(self, decision: Decision, proven: Set[TxnId]) -> None:
        """Have the records' topic know of commits that it was not told of, and read it again.

        A coordinator can forget it like any other topic (`commit_check`), and then the transactions
        stay open there, and hide the records behind them.
        """
        told = [(txn, self.log.topic) for txn in proven]
        refused = [error for error in self._coordinators.commit_on_partitions(told) if error]
        try:
            self.log.read_again()
        except TransactionOutcomeUnknown as error:
            if not refused:
                raise
            raise TransactionOutcomeUnknown(
                "the topic of the sink's records was not told that "
                f"{names_of(sorted(proven))} of {decision.unit} are committed, and accepts no "
                f"marker from this role ({refused[0].what})",
                f"Run this with the credentials of a superuser: {self.place.command('finish')}",
                topic=self.log.topic,
            ) from error

    def _commit_all(
        self, decision: Decision, alive: list[TxnId], proven: Set[TxnId]
    ) -> list[TxnId]:
        """Commit a decision's live transactions; return those that are certainly gone.

        Those that are `proven` are committed already.
        """
        self.log.mark(alive)
        reach("after-markers")
        ends = self._end_all(alive)
        _raise_other(ends.values(), (*_ENDED, TransactionOutcomeUnknown))
        wanted = decision.transactions
        ended = {*proven, *(txn for txn, error in ends.items() if error is None)}
        unsure = [txn for txn in wanted if txn not in ended]
        if not unsure:
            return []
        ended |= delivered(self.context, decision.ends, unsure)
        if not ended.issuperset(wanted):
            ended |= self.log.seen_markers()
        return [txn for txn in unsure if txn not in ended]

    def _end_all(self, transactions: Sequence[TxnId]) -> dict[TxnId, PulsarError | None]:
        """Commit transactions in one round."""
        # Crash points between two commits need commits one by one.
        rounds = [[txn] for txn in transactions] if armed("between-ends") else [transactions]
        ends: dict[TxnId, PulsarError | None] = {}
        for some in rounds:
            ends |= self._coordinators.end_all(some, commit=True)
            reach("between-ends")
        return ends

    def _check_alive(self, mine: Decision, tasks: Tasks) -> None:
        """Raise, and record nothing, if a transaction has ended: by its timeout, or by a driver."""
        taking_part = self._coordinators.add_partition_to_all(mine.transactions, self.log.topic)
        gone = [txn for txn, error in taking_part.items() if isinstance(error, _ENDED)]
        if gone:
            abort_all(self.context, [txn for txn in mine.transactions if txn not in gone])
            if (
                self._is_overtaken(tasks)
                and time.time() < tasks.begun + self._options.transaction_timeout
            ):
                raise overtaken(self.log.topic)
            raise _expired(mine.unit, gone)
        _raise_other(taking_part.values(), ())

    def _is_overtaken(self, tasks: Tasks) -> bool:
        """Whether another driver has started since the one whose tasks these are."""
        return tasks.driver not in (None, self.log.state.driver_before)


@contextmanager
def _telling(what: str, remedy: str = "") -> Iterator[None]:
    """Have errors say what of a unit is visible, unless they do."""
    try:
        yield
    except PulsarError as error:
        if error.tells_outcome:
            raise
        raise error.telling(what, remedy) from error


def abort_all(
    context: ClientContext, transactions: Sequence[TxnId], stuck: Collection[TxnId] = ()
) -> None:
    """Abort transactions. Never raises: what is left open ends by its timeout.

    The coordinator gives no answer about those that are `stuck`, since a topic of theirs is
    terminated. Their other topics learn of it at once.
    """
    sure = [txn for txn in transactions if txn not in stuck]
    ends = context.coordinators.end_all(sure, commit=False, timeout=_ABORT_SECONDS)
    for txn, error in ends.items():
        if error is not None:
            logger.warning("transaction %s ends by its timeout: %s", name_of(txn), error)
    unanswered = [txn for txn in transactions if txn in stuck]
    context.coordinators.end_all(unanswered, commit=False, timeout=_STUCK_SECONDS)


def _raise_other(
    errors: Iterable[PulsarError | None], expected: tuple[type[PulsarError], ...]
) -> None:
    for error in errors:
        if error is not None and not isinstance(error, expected):
            raise error


def _expired(unit: Unit, gone: Sequence[TxnId]) -> TransactionExpired:
    return TransactionExpired(
        f"transaction expired, {unit} not written, nothing of it is visible: {names_of(gone)} were "
        "open for longer than transactionTimeout, or were aborted by hand",
        "Run it again; raise transactionTimeout if writing takes so long.",
    )
