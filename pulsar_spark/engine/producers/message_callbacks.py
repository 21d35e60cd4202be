"""Callbacks of messages, each called once with the result; many of them in one go."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat

from pulsar_spark.errors import PulsarError
from pulsar_spark.protocol.message_id import MessageIdAdv

logger = logging.getLogger(__name__)

MessageCallback = Callable[[PulsarError | None, MessageIdAdv | None], None]
"""Called once per message: with an error, or with its id."""

Runner = Callable[[Callable[[], object], int], object]
"""Takes a function to call later, and the number of callbacks that it calls."""

MessageIds = Callable[[], Iterable[MessageIdAdv | None]]


def log_failure(error: PulsarError | None, message_id: MessageIdAdv | None) -> None:
    """The callback of a message whose result nobody needs."""
    if error is not None:
        logger.warning("a message without a callback was not sent: %s", error)


class DeferredCallback:
    """A MessageCallback that runs elsewhere: `run` is given a function to call there.

    Messages that are acknowledged together share one such call.
    """

    __slots__ = ("callback", "run")

    def __init__(self, callback: MessageCallback, run: Runner) -> None:
        self.callback = callback
        self.run = run

    def __call__(self, error: PulsarError | None, message_id: MessageIdAdv | None) -> None:
        """Schedule the callback."""
        self.run(lambda: self.callback(error, message_id), 1)


def for_each(callbacks: Sequence[MessageCallback | None], count: int) -> MessageCallback | None:
    """Return a callback for an entry of `count` messages that calls back for each of them."""
    if not any(callbacks):
        return None
    if all(callback is log_failure for callback in callbacks):
        return log_failure

    def complete(error: PulsarError | None, entry: MessageIdAdv | None) -> None:
        def ids() -> Iterable[MessageIdAdv | None]:
            if entry is None or entry.ledger_id < 0 or count == 1:
                return repeat(entry, count)
            ledger, number, partition = entry.ledger_id, entry.entry_id, entry.partition
            return (MessageIdAdv(ledger, number, partition, at, count) for at in range(count))

        _tell(callbacks, error, ids)

    return complete


def tell_failed(callbacks: Sequence[MessageCallback | None], error: PulsarError) -> None:
    """Call callbacks with an error."""
    _tell(callbacks, error, lambda: repeat(None))


def tell_stored(
    callbacks: Sequence[MessageCallback | None],
    per_entry: int,
    receipts: array[int],
    partition: int,
) -> None:
    """Call the callbacks of stored messages with their ids.

    Each entry has `per_entry` messages, the last one the rest. `receipts` has four numbers per
    entry; the last two are its ledger and entry id.
    """

    def ids() -> Iterator[MessageIdAdv]:
        left = len(callbacks)
        for ledger, entry in zip(receipts[2::4], receipts[3::4], strict=True):
            count = min(per_entry, left)
            left -= count
            # Duplicates have no id, and a message alone has no batch index.
            if count == 1 or ledger < 0:
                yield from repeat(MessageIdAdv(ledger, entry, partition), count)
            else:
                for index in range(count):
                    yield MessageIdAdv(ledger, entry, partition, index, count)

    _tell(callbacks, None, ids)


def _tell(
    callbacks: Sequence[MessageCallback | None], error: PulsarError | None, ids: MessageIds
) -> None:
    now: list[MessageCallback | None] = []
    later: list[MessageCallback | None] = []
    run: Runner | None = None
    waiting = 0
    for callback in callbacks:
        if isinstance(callback, DeferredCallback):
            run = callback.run
            waiting += 1
            later.append(callback.callback)
            now.append(None)
        else:
            later.append(None)
            now.append(None if callback is log_failure and error is None else callback)
    if run is not None:
        run(lambda: _call_each(later, error, ids()), waiting)
    if waiting < len(callbacks):
        _call_each(now, error, ids())


def _call_each(
    callbacks: Sequence[MessageCallback | None],
    error: PulsarError | None,
    ids: Iterable[MessageIdAdv | None],
) -> None:
    for callback, message_id in zip(callbacks, ids, strict=False):
        if callback is None:
            continue
        try:
            callback(error, message_id)
        except Exception:
            logger.exception("the callback of a message failed")
