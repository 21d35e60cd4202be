"""Checks that readers see what was committed.

A coordinator answers COMMITTED when each topic partition's broker has written the transaction's
marker, with one exception: if the lookup of that broker fails with MetadataError, as it does while
two brokers compete for a topic that moves, the coordinator takes the topic for a deleted one, and
leaves it out (Pulsar, TransactionBufferHandlerImpl.endTxn). There the transaction stays open. It
holds the read position, until a later transaction's low watermark aborts it: its rows are lost.

So topics are looked up before a commit, which ends any competition for them, and after it the last
message of each transaction on each partition is read. A missing marker is written again, which
only superusers may do.

Nothing cheaper proves a commit. The read position gets beyond aborted transactions as well as
committed ones, so that a later message can be read says nothing about an earlier one. Brokers count
entries, markers and aborted ones among them, and other writers' too. No command asks a topic how a
transaction ended, and markers are not delivered. But transactions that end close together on a
partition are read with one subscription (`Probe.read_back`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import NamedTuple

from pulsar_spark.engine.consumers.probe import Probe, ReadBack
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.engine.operations import value_of
from pulsar_spark.engine.transactions import names_of
from pulsar_spark.errors import AuthorizationError, PulsarError, TopicNotFound, TornBatch, listed
from pulsar_spark.spark.writing.decision_log import Decision, LastMessage

logger = logging.getLogger(__name__)

_LOOKS = 3


class _Unseen(NamedTuple):
    """Messages that readers do not see.

    `held` are behind an open transaction. `dropped` are never delivered, as those of aborted
    transactions.
    """

    held: list[LastMessage]
    dropped: list[LastMessage]


def settle(context: ClientContext, topics: Iterable[str]) -> None:
    """Have each topic partition served by some broker.

    Errors are left to the commit, which meets them too.
    """
    context.lookup.ask_many(topics, context.lookup.broker_operation)


def confirm(
    context: ClientContext, decision: Decision, *, again: bool = False
) -> list[LastMessage]:
    """Check that readers see a committed decision's messages; write markers that are missing.

    Returns those that they do not see yet: a transaction of another writer holds them, or their
    own, if the broker refused the marker. With `again`, of an earlier decision, logs a warning.
    Raises TornBatch if some were dropped.
    """
    try:
        unseen = _unseen(context, decision.ends)
        refused = _write_markers(context, unseen.held)
        marked = [end for end in unseen.held if end not in refused]
        later = _unseen(context, marked)
    except AuthorizationError as error:
        logger.warning(
            "%s is committed; whether readers see it is unknown: %s", decision.unit, error
        )
        return []
    if dropped := unseen.dropped + later.dropped:
        raise TornBatch(
            f"{decision.unit} torn: its transactions are committed, but brokers dropped what "
            f"{_where(dropped)}",
            "A topic moved while the transactions were committed, and its broker was not told. See "
            "docs/delivery.md on how to repair it by hand.",
            topic=dropped[0].topic,
        )
    left = [*refused, *later.held]
    if left and again:
        reasons = [str(error) for error in refused.values()]
        logger.warning(
            "%s is committed, but readers do not see yet what %s: an open transaction holds the "
            "read position%s",
            decision.unit,
            _where(left),
            f", and the broker accepts no marker from this role: {reasons[0]}" if reasons else "",
        )
    return left


def _unseen(context: ClientContext, ends: Sequence[LastMessage]) -> _Unseen:
    probe = Probe(context.pool)
    unseen = _Unseen([], [])
    left = list(ends)
    # An open transaction can end while this looks for it.
    for _ in range(_LOOKS):
        hidden, passed = _look(probe, left)
        unseen.dropped.extend(passed)
        is_held = _are_held(probe, hidden)
        unseen.held.extend(compress(hidden, is_held))
        left = [end for end, held in zip(hidden, is_held, strict=True) if not held]
        if not left:
            break
    unseen.dropped.extend(left)
    # Retention deletes whole ledgers, and with them rows that were seen.
    ledgers = list({(end.topic, end.position.ledger_id): None for end in unseen.dropped})
    ledger_ends = dict(zip(ledgers, probe.ledger_ends(ledgers), strict=True))
    kept = [
        end
        for end in unseen.dropped
        if value_of(ledger_ends[end.topic, end.position.ledger_id]) is not None
    ]
    return _Unseen(unseen.held, kept)


def _look(probe: Probe, ends: Sequence[LastMessage]) -> tuple[list[LastMessage], list[LastMessage]]:
    """Return the messages behind which nothing can be read, and those that are passed over."""
    found = probe.read_back([(end.topic, end.position) for end in ends])
    hidden, passed = [], []
    for end, answer in zip(ends, found, strict=True):
        if isinstance(answer, TopicNotFound):
            # Deleted since then, and so are the rows.
            continue
        what = value_of(answer)
        if what is ReadBack.UNREACHED:
            hidden.append(end)
        elif what is ReadBack.DROPPED:
            passed.append(end)
    return hidden, passed


def _are_held(probe: Probe, hidden: Sequence[LastMessage]) -> list[bool]:
    """Return whether a transaction holds each message behind which nothing could be read.

    What holds the first one of a topic holds all: nothing after it can be read. If nothing holds it
    any more, the others can still be held, and each is asked about.
    """
    firsts: dict[str, LastMessage] = {}
    for end in sorted(hidden, key=lambda end: end.position):
        firsts.setdefault(end.topic, end)
    held = _held(probe, list(firsts.values()))
    stuck = {end.topic for end in held}
    others = [end for end in hidden if end.topic not in stuck and end is not firsts[end.topic]]
    held |= _held(probe, others)
    return [end.topic in stuck or end in held for end in hidden]


def _held(probe: Probe, ends: Sequence[LastMessage]) -> set[LastMessage]:
    answers = probe.held_back([(end.topic, end.position) for end in ends])
    return {end for end, answer in zip(ends, answers, strict=True) if value_of(answer) is not None}


def _write_markers(
    context: ClientContext, held: Sequence[LastMessage]
) -> dict[LastMessage, PulsarError]:
    """Write markers, whether they are missing or not; return the errors."""
    pairs = [(end.txn, end.topic) for end in held]
    errors = context.coordinators.commit_on_partitions(pairs)
    return {end: error for end, error in zip(held, errors, strict=True) if error is not None}


def _where(ends: Sequence[LastMessage]) -> str:
    """Name transactions, and one of the topics, of which there can be very many."""
    transactions = list(dict.fromkeys(end.txn for end in ends))
    topics = dict.fromkeys(end.topic for end in ends)
    return f"{names_of(transactions)} wrote to {listed(topics, 1)}"
