"""Checks that readers see what was committed.

A coordinator answers COMMITTED when each topic partition's broker has written the transaction's
marker, with one exception: if the lookup of that broker fails with MetadataError, as it does while
two brokers compete for a topic that moves, the coordinator takes the topic for a deleted one, and
leaves it out (Pulsar, TransactionBufferHandlerImpl.endTxn). There the transaction stays open. It
holds the read position, until a later transaction's low watermark aborts it: its rows are lost.

So topics are asked for before a commit, which ends any competition for them, and after it the last
message of each transaction on each partition is read. A missing marker is written again, which
only superusers may do. The topic of the sink's records can be left out, too: what it hides, or what
a low watermark has aborted there, is committed if readers get the rows.

Nothing cheaper proves a commit. The read position gets beyond aborted transactions as well as
committed ones, so that a later message can be read says nothing about an earlier one. Brokers count
entries, markers and aborted ones among them, and other writers' too. No command asks a topic how a
transaction ended, and markers are not delivered. But transactions that end close together on a
partition are read with one subscription (`engine/consumers/read_back.py`).

A terminated topic takes no marker: the coordinator tries without end, gives no answer, and readers
never see the rows. It takes a deleted topic for one that needs no marker, and writes it to one that
was made again, without the rows. So all topic partitions are asked before the decision, while
everything can still be aborted; what happens to a topic later is found when it is read back.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import compress

from pulsar_spark.engine.consumers.probe import Probe
from pulsar_spark.engine.consumers.read_back import ReadBack, read_back
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import value_of
from pulsar_spark.engine.producers.terminated import terminated_topics
from pulsar_spark.engine.transactions import names_of
from pulsar_spark.errors import (
    AuthorizationError,
    ConsumerBusy,
    NotAllowed,
    PulsarError,
    TopicLost,
    TopicNotFound,
    TornBatch,
    listed,
)
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.spark.writing.sink_records import Decision, LastMessage, Unit, Withheld

logger = get_logger(__name__)

TERMINATED = "was terminated"
"""A reason of `lost_topics`. The coordinator gives no answer about such a topic's transactions."""
_DELETED = "was deleted"
_MADE_AGAIN = "was deleted and made again, or retention removed the rows"

_LOOKS = 3
_REMINDER_SECONDS = 300.0
_SHOWN = 3
# The wall clock: the process that logs the next warning can be another one.
_clock = time.time


def lost_topics(context: ClientContext, ends: Iterable[LastMessage]) -> dict[str, str]:
    """Return the topic partitions that cannot show their rows after a commit, each with the reason.

    `ends` are of open transactions. What a policy or a permission forbids to ask is left out.
    Afterwards each topic partition is served by some broker.
    """
    ledgers = list({(end.topic, end.position.ledger_id): None for end in ends})
    answers = Probe(context.pool).last_entries_in(ledgers)
    found: dict[str, str] = {}
    others: dict[str, None] = {}
    for (topic, _), answer in zip(ledgers, answers, strict=True):
        if isinstance(answer, TopicNotFound):
            found[topic] = _DELETED
        elif answer is None:
            found.setdefault(topic, _MADE_AGAIN)
        elif isinstance(answer, int | ConsumerBusy | NotAllowed):
            # It exists: asking whether it is terminated does not make it.
            others[topic] = None
    others = {topic: None for topic in others if topic not in found}
    return found | dict.fromkeys(terminated_topics(context.pool, list(others)), TERMINATED)


def topic_lost(unit: Unit, lost: Mapping[str, str]) -> TopicLost:
    """Return the error of a unit that was aborted because of `lost_topics`."""
    what = listed([f"{topic} {why}" for topic, why in lost.items()], _SHOWN)
    remedy = "Run it again: all of its rows are written anew."
    if TERMINATED in lost.values():
        remedy = (
            "A terminated topic never takes rows again: write to another one, or delete it and "
            "make it again. Then run it again: all of its rows are written anew."
        )
    error = TopicLost(
        f"{unit} not written, and nothing of it is visible: since its rows were sent, {what}",
        remedy,
        topic=next(iter(lost)),
    )
    error.tells_outcome = True
    return error


def delivered(
    context: ClientContext, ends: Iterable[LastMessage], transactions: Collection[TxnId]
) -> set[TxnId]:
    """Return those of the transactions that are certainly committed: readers get what they wrote.

    `ends` are their last messages. Whatever cannot be read now proves nothing.
    """
    asked = [end for end in ends if end.txn in transactions]
    answers = read_back(context.pool, [(end.topic, end.position) for end in asked])
    pairs = zip(asked, answers, strict=True)
    return {end.txn for end, answer in pairs if answer is ReadBack.DELIVERED}


def confirm(
    context: ClientContext, decision: Decision, last: Decision | None = None, *, just_now: bool
) -> Decision:
    """Check that readers see a committed decision's messages; write markers that are missing.

    Also those that `last`, the decision before, has left. Returns the decision with those that they
    do not see yet: a transaction of another writer holds them, or their own, if the broker refused
    the marker. Raises TornBatch if they will never see some. If it was not decided `just_now`,
    they can have seen what is not there any more: then a warning tells it.
    """
    left_before = () if last is None else last.ends
    try:
        found = _Check(context, left_before, decision.ends)
    except (AuthorizationError, ConsumerBusy, NotAllowed) as error:
        # The role, or a policy, allows no consumer.
        logger.warning(
            "%s is committed; whether readers see it is unknown: %s", decision.unit, error
        )
        return replace(decision, ends=())
    older = set(left_before)
    rest = "readers see the rest"
    if found.held:
        rest += " when the open transactions before it have ended"
    if found.dropped:
        raise _torn(
            decision,
            last,
            [end for end in found.dropped if end in older] or found.dropped,
            "brokers dropped what {}",
            "A topic moved while the transactions were committed, and its broker was not told: "
            f"{rest}.",
        )
    if found.terminated:
        raise _torn(
            decision,
            last,
            [end for end in found.terminated if end in older] or found.terminated,
            f"readers will never see what {{}}: the topic {TERMINATED} before it was told of the "
            f"commit; {rest}",
            "Write to another topic.",
        )
    for missing, why in ((found.deleted, _DELETED), (found.removed, _MADE_AGAIN)):
        if own := [end for end in missing if end not in older]:
            if just_now or why is _DELETED:
                raise _torn(
                    decision,
                    None,
                    own,
                    f"what {{}} is gone: the topic {why}; {rest}",
                    "",
                )
            _warn_of_missing(decision.unit, own, why)
        if last is not None and (before := [end for end in missing if end in older]):
            _warn_of_missing(last.unit, before, why)
    withheld = None if last is None else _tell(last, found)
    return replace(decision, ends=tuple(found.held), withheld=withheld)


def _torn(
    decision: Decision, last: Decision | None, ends: Sequence[LastMessage], what: str, why: str
) -> TornBatch:
    """Return the error for rows that readers will not see; they can be what `last` has left."""
    unit = last.unit if last is not None and ends[0] in last.ends else decision.unit
    return TornBatch(
        f"{unit} torn: its transactions are committed, but {what.format(_where(ends))}",
        f"{why} See docs/delivery.md on how to repair it by hand.".lstrip(),
        topic=ends[0].topic,
    )


def _warn_of_missing(unit: Unit, ends: Sequence[LastMessage], why: str) -> None:
    logger.warning(
        "%s is committed, and it is not known whether readers have seen what %s: the topic %s. "
        "Compare what they have with what was written",
        unit,
        _where(ends),
        why,
    )


def _tell(last: Decision, found: _Check) -> Withheld | None:
    """Log that readers do not see what was committed: when this begins, rarely, and when it ends.

    It begins with what the decision before has left: what holds this one's can be over with the
    next.
    """
    known = last.withheld
    if not found.held:
        if known is not None:
            logger.warning("readers see again all that was committed since %s", known.since)
        return None
    before = {end.position for end in last.ends}
    still = [end for end in found.held if end.position in before]
    now = _clock()
    if not still or (known is not None and 0 <= now - known.logged_at < _REMINDER_SECONDS):
        return known
    since = str(last.unit) if known is None else known.since
    where = [
        f"{topic} before {end.position.ledger_id}:{end.position.entry_id}"
        for topic, end in _firsts(still).items()
    ]
    reasons = [str(error) for error in found.refused.values()]
    logger.warning(
        "since %s readers do not see all that is committed: an open transaction (docs/delivery.md "
        "says how to find it) holds the read position of %s, and so what %s wrote%s",
        since,
        listed(where, _SHOWN),
        names_of(list(dict.fromkeys(end.txn for end in still))),
        f"; the broker accepts no marker from this role: {reasons[0]}" if reasons else "",
    )
    return Withheld(since, now)


class _Check:
    """Finds what readers do not see of committed transactions, after writing missing markers.

    `held` is behind an open transaction, `dropped` is never delivered, `terminated` neither, as the
    topic takes no marker; `deleted` was with its topic, `removed` with its ledger. `refused` are
    the errors of markers. Raises AuthorizationError, ConsumerBusy and NotAllowed.
    """

    def __init__(
        self,
        context: ClientContext,
        left_before: Sequence[LastMessage],
        ends: Sequence[LastMessage],
    ) -> None:
        self._context = context
        self._probe = Probe(context.pool)
        self.held: list[LastMessage] = []
        self.dropped: list[LastMessage] = []
        self.terminated: list[LastMessage] = []
        self.deleted: list[LastMessage] = []
        self.removed: list[LastMessage] = []
        self.refused: dict[LastMessage, PulsarError] = {}
        held = self._wait_for(left_before, ends)
        self._mark([end for end in held if not end.marked])
        # A marker that is there now, behind what another transaction holds, needs no wait.
        hidden, passed = self._look([end for end in held if end not in self.refused])
        self.held += [*self.refused, *(end._replace(marked=True) for end in hidden)]
        self.dropped += self._kept(passed)

    def _wait_for(
        self, left_before: Sequence[LastMessage], ends: Sequence[LastMessage]
    ) -> list[LastMessage]:
        """Return those that an open transaction holds; add those that are gone to `dropped`."""
        held: list[LastMessage] = []
        dropped: list[LastMessage] = []
        left = [*left_before, *ends]
        older = set(left_before)
        # An open transaction can end while this looks for it.
        for looks in range(_LOOKS):
            hidden, passed = self._look(left)
            if not looks:
                hidden, passed_now = self._without_terminated(hidden)
                passed += passed_now
            dropped += passed
            is_held = _are_held(self._probe, hidden, _still_held(hidden, older))
            held += compress(hidden, is_held)
            left = [end for end, one in zip(hidden, is_held, strict=True) if not one]
            if not left:
                break
        self.dropped = self._kept([*dropped, *left])
        return held

    def _mark(self, ends: Sequence[LastMessage]) -> None:
        """Write markers, whether they are missing or not."""
        pairs = [(end.txn, end.topic) for end in ends]
        errors = self._context.coordinators.commit_on_partitions(pairs)
        answers = zip(ends, errors, strict=True)
        self.refused = {end: error for end, error in answers if error is not None}

    def _look(self, ends: Sequence[LastMessage]) -> tuple[list[LastMessage], list[LastMessage]]:
        """Return the messages behind which nothing can be read, and those that are passed over.

        Adds those whose topic is gone to `deleted`.
        """
        found = read_back(self._context.pool, [(end.topic, end.position) for end in ends])
        hidden, passed = [], []
        for end, answer in zip(ends, found, strict=True):
            if isinstance(answer, TopicNotFound):
                self.deleted.append(end)
                continue
            what = value_of(answer)
            if what is ReadBack.UNREACHED:
                hidden.append(end)
            elif what is ReadBack.DROPPED:
                passed.append(end)
        return hidden, passed

    def _without_terminated(
        self, hidden: Sequence[LastMessage]
    ) -> tuple[list[LastMessage], list[LastMessage]]:
        """Add hidden messages of terminated topics to `terminated`; return the others.

        And those that are passed over now: their transactions can have ended before the topic.
        """
        over = terminated_topics(self._context.pool, list({end.topic: None for end in hidden}))
        still, passed = self._look([end for end in hidden if end.topic in over])
        self.terminated += still
        return [end for end in hidden if end.topic not in over], passed

    def _kept(self, dropped: Sequence[LastMessage]) -> list[LastMessage]:
        """Leave out those whose ledger is gone, and add them to `removed`.

        Retention deletes whole ledgers, and with them rows that were seen.
        """
        ledgers = list({(end.topic, end.position.ledger_id): None for end in dropped})
        ledger_ends = dict(zip(ledgers, self._probe.last_entries_in(ledgers), strict=True))
        # On a topic without any entry left, a deleted ledger seems to be there.
        extents = self._context.lookup.extents(topic for topic, _ in ledgers)
        kept = []
        for end in dropped:
            answer, extent = ledger_ends[end.topic, end.position.ledger_id], extents[end.topic]
            if isinstance(answer, TopicNotFound) or isinstance(extent, TopicNotFound):
                self.deleted.append(end)
                continue
            first = value_of(extent).first
            if value_of(answer) is None or (first is not None and end.position < first):
                self.removed.append(end)
            else:
                kept.append(end)
        return kept


def _still_held(hidden: Sequence[LastMessage], older: Set[LastMessage]) -> set[str]:
    """Return the topics on which what an open transaction held before is still not seen.

    They need no other wait if newer messages are not seen either. Without newer ones, the older
    ones could be dropped, at the end of the topic.
    """
    before = {end.topic for end in hidden if end in older}
    return before & {end.topic for end in hidden if end not in older}


def _are_held(probe: Probe, hidden: Sequence[LastMessage], known: Set[str]) -> list[bool]:
    """Return whether a transaction holds each message behind which nothing could be read.

    What holds the first one of a topic holds all: nothing after it can be read. If nothing holds it
    any more, the others can still be held, and each is asked about. On the topics `known` all are.
    """
    firsts = _firsts(hidden)
    held = _held(probe, [end for end in firsts.values() if end.topic not in known])
    stuck = {*known, *(end.topic for end in held)}
    others = [end for end in hidden if end.topic not in stuck and end is not firsts[end.topic]]
    held |= _held(probe, others)
    return [end.topic in stuck or end in held for end in hidden]


def _firsts(ends: Sequence[LastMessage]) -> dict[str, LastMessage]:
    """Return the first of the messages on each topic partition."""
    firsts: dict[str, LastMessage] = {}
    for end in sorted(ends, key=lambda end: end.position):
        firsts.setdefault(end.topic, end)
    return firsts


def _held(probe: Probe, ends: Sequence[LastMessage]) -> set[LastMessage]:
    answers = probe.held_back([(end.topic, end.position) for end in ends])
    return {end for end, answer in zip(ends, answers, strict=True) if value_of(answer) is not None}


def _where(ends: Sequence[LastMessage]) -> str:
    """Name transactions, and one of the topics, of which there can be very many."""
    transactions = list(dict.fromkeys(end.txn for end in ends))
    topics = dict.fromkeys(end.topic for end in ends)
    return f"{names_of(transactions)} wrote to {listed(topics, 1)}"
