"""Checks that readers see what was committed.

A coordinator answers COMMITTED when each topic partition's broker has written the transaction's
marker, with one exception: if the lookup of that broker fails with MetadataError, as it does while
two brokers compete for a topic that moves, the coordinator takes the topic for a deleted one, and
leaves it out (Pulsar, TransactionBufferHandlerImpl.endTxn). There the transaction stays open. It
holds the read position, until a later transaction's low watermark aborts it: its rows are lost.

So topics are looked up before a commit, which ends any competition for them, and after it the last
message of each transaction on each partition is read. A missing marker is written again, which
only superusers may do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import NamedTuple

from pulsar_spark.engine.consumers.probe import FoundEntry, Probe
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
        answers = probe.held_back([(end.topic, end.position) for end in hidden])
        is_held = [value_of(answer) is not None for answer in answers]
        unseen.held.extend(compress(hidden, is_held))
        left = [end for end, held in zip(hidden, is_held, strict=True) if not held]
        if not left:
            break
    unseen.dropped.extend(left)
    # Retention deletes whole ledgers, and with them rows that were seen.
    kept = [end for end in unseen.dropped if probe.ledger_end(end.topic, end.position.ledger_id)]
    return _Unseen(unseen.held, kept)


def _look(probe: Probe, ends: Sequence[LastMessage]) -> tuple[list[LastMessage], list[LastMessage]]:
    """Return the messages behind which nothing can be read, and those that are passed over."""
    found = probe.first_entries_at([(end.topic, end.position) for end in ends])
    hidden, passed = [], []
    for end, entry in zip(ends, found, strict=True):
        if isinstance(entry, TopicNotFound):
            # Deleted since then, and so are the rows.
            continue
        if value_of(entry) is None:
            hidden.append(end)
        elif isinstance(entry, FoundEntry) and entry.start != end.position:
            passed.append(end)
    return hidden, passed


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
