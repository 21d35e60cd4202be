"""The lag of a stream, from the progress that Spark reports to a StreamingQueryListener.

Spark gives a listener the offsets of each batch, and from version 4.2 on the topics' ends that this
data source reports when a batch is planned. `lag` converts them to numbers. It contacts no broker
and imports nothing heavy.
"""

from __future__ import annotations

import json
import math
from ast import literal_eval
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pulsar_spark.errors import InvalidOffset, UnsupportedFeature
from pulsar_spark.protocol.topic_name import by_partition

_OURS = frozenset({"version", "subscription", "positions"})
_NOTHING = {"entries": 0, "messages": 0, "bytes": 0, "seconds": 0.0}
_KILO = 1000.0


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a topic partition when a batch was planned: what was left to read after the batch.

    `entries` are counted as the broker does (a batch of messages is one entry, and so is a
    transaction marker), `bytes` as stored, including compression. `seconds` is the age of the
    oldest unread message, by its publish time. Unknown values are None. `position` is the end of
    the batch, `latest` the end of the topic partition: ledger, entry, batch index.

    Messages are exact if a single entry is left. If the broker stamps an index on entries, they are
    counted by it, with those of aborted transactions, which nobody can read. Otherwise
    `messages_estimated` is true, and `bytes_estimated` is true if the bytes are estimated.
    """

    topic: str
    subscription: str
    position: str | None
    latest: str | None
    entries: int | None
    messages: int | None
    bytes: int | None
    seconds: float | None
    messages_estimated: bool = False
    bytes_estimated: bool = False

    def __str__(self) -> str:
        return f"{self.topic}: {_sentence(self)}"


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The lag of all Pulsar sources of a query, by topic partition and in total.

    A total is None if the value of a partition is unknown. `metrics` has the names and the format
    of Spark's Kafka source.
    """

    partitions: tuple[PartitionLag, ...]

    @property
    def entries(self) -> int | None:
        """Entries left to read."""
        return _total(partition.entries for partition in self.partitions)

    @property
    def messages(self) -> int | None:
        """Messages left to read."""
        return _total(partition.messages for partition in self.partitions)

    @property
    def bytes(self) -> int | None:
        """Bytes left to read."""
        return _total(partition.bytes for partition in self.partitions)

    @property
    def seconds(self) -> float | None:
        """Age of the oldest unread message among those whose age is known; 0 if there is none."""
        ages = [partition.seconds for partition in self.partitions if partition.entries != 0]
        known = [age for age in ages if age is not None]
        return max(known) if known else None if ages else 0.0

    @property
    def messages_estimated(self) -> bool:
        """Whether messages of any partition are estimated."""
        return any(partition.messages_estimated for partition in self.partitions)

    @property
    def bytes_estimated(self) -> bool:
        """Whether bytes of any partition are estimated."""
        return any(partition.bytes_estimated for partition in self.partitions)

    @property
    def min_offsets_behind_latest(self) -> int | None:
        """The backlog of the topic partition with the fewest messages left."""
        return min(self._behind(), default=None)

    @property
    def max_offsets_behind_latest(self) -> int | None:
        """The backlog of the topic partition with the most messages left."""
        return max(self._behind(), default=None)

    @property
    def avg_offsets_behind_latest(self) -> float | None:
        """The mean backlog of the topic partitions, in messages."""
        behind = self._behind()
        return sum(behind) / len(behind) if behind else None

    @property
    def metrics(self) -> dict[str, str]:
        """Minimum, maximum and mean backlog of the topic partitions, in messages.

        The keys are those in `sources[0].metrics` of a query that reads Kafka:
        minOffsetsBehindLatest, maxOffsetsBehindLatest and avgOffsetsBehindLatest. Empty if a
        partition's lag is unknown, and without partitions.
        """
        found = {
            "minOffsetsBehindLatest": self.min_offsets_behind_latest,
            "maxOffsetsBehindLatest": self.max_offsets_behind_latest,
            "avgOffsetsBehindLatest": self.avg_offsets_behind_latest,
        }
        return {name: str(value) for name, value in found.items() if value is not None}

    def _behind(self) -> list[int]:
        """Return each partition's backlog in messages; empty if one is unknown."""
        known = [part.messages for part in self.partitions if part.messages is not None]
        return known if len(known) == len(self.partitions) else []

    def __str__(self) -> str:
        count = len(self.partitions)
        return f"{count} topic partition{'' if count == 1 else 's'}: {_sentence(self)}"


def lag(progress: Any) -> QueryLag:
    """Return how far a query's Pulsar sources are behind.

    `progress` is a StreamingQueryListener's event or its progress, `query.lastProgress`, or one of
    its sources; a Spark object, a dict, or JSON. None, and sources of other kinds, have no
    partitions. A batch repeated after a restart was not planned again: its lag is unknown.

    Raises UnsupportedFeature before Spark 4.2, which does not ask sources for their ends, and
    InvalidOffset if the argument is not a progress.
    """
    found = getattr(progress, "progress", progress)
    if isinstance(found, str | bytes):
        found = _parsed(found)
    if found is None:
        return QueryLag(())
    if not isinstance(found, Mapping):
        raise _no_progress(type(found).__name__)
    sources = found.get("sources", [found])
    if not isinstance(sources, list | tuple):
        raise _no_progress("an object whose sources are no list")
    return QueryLag(tuple(lag for source in sources for lag in _of_source(source)))


def _of_source(source: object) -> Iterable[PartitionLag]:
    if not isinstance(source, Mapping) or "endOffset" not in source:
        raise _no_progress("an object without sources or offsets")
    end, latest = _offset(source["endOffset"]), _offset(source.get("latestOffset"))
    ours = latest or end
    if ours is None:
        return
    if latest is None:
        _check_version()
    ended = {} if end is None else dict(by_partition(_object(end["positions"])))
    ends = {} if latest is None else dict(by_partition(_object(latest["positions"])))
    told = None if latest is None else latest.get("lag")
    for topic in sorted({*ended, *ends}):
        # Topic partitions without lag are left out of a source's report.
        report = _object(told.get(topic, _NOTHING)) if isinstance(told, Mapping) else {}
        estimated = report.get("estimated")
        estimates = estimated if isinstance(estimated, list) else []
        yield PartitionLag(
            topic,
            str(ours["subscription"]),
            _text(ended.get(topic)),
            _text(ends.get(topic)),
            entries=_count(report.get("entries")),
            messages=_count(report.get("messages")),
            bytes=_count(report.get("bytes")),
            seconds=_seconds(report.get("seconds")),
            messages_estimated="messages" in estimates,
            bytes_estimated="bytes" in estimates,
        )


def _check_version() -> None:
    # It imports Spark, which every query has already loaded.
    from pulsar_spark.spark.compat import passes_read_limits

    if not passes_read_limits():
        raise UnsupportedFeature(
            "this version of Spark does not ask sources for their latest offset, so the progress "
            "of a query has no lag",
            "Use Spark 4.2 or later, or look at the subscription's backlog with pulsar-admin.",
        )


# --- reading JSON ---------------------------------------------------------------------------------


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _no_progress("a text that is not JSON") from None


def _offset(value: object) -> Mapping[str, Any] | None:
    """Parse an offset, as object or JSON, if it is one of this data source."""
    if isinstance(value, str):
        value = _object_of(value)
    return value if isinstance(value, Mapping) and value.keys() >= _OURS else None


def _object_of(text: str) -> object:
    for read in (json.loads, literal_eval):
        # Some versions of Spark Connect return an object's Python text instead of JSON.
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return read(text)
    return None


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and _is_number(value) else None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and _is_number(value) else None


def _is_number(value: float) -> bool:
    return not isinstance(value, bool) and 0 <= value < math.inf


def _no_progress(what: str) -> InvalidOffset:
    return InvalidOffset(
        f"the progress of a query was expected, not {what}",
        "Give the event of a StreamingQueryListener, or query.lastProgress.",
    )


# --- words ----------------------------------------------------------------------------------------


def _total(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(number or 0 for number in known)


def _sentence(found: PartitionLag | QueryLag) -> str:
    messages = _amount(found.messages, "messages", found.messages_estimated)
    size = "? bytes" if found.bytes is None else _size(found.bytes)
    oldest = "?" if found.seconds is None else f"{found.seconds:.1f}"
    about = "about " if found.bytes_estimated else ""
    return (
        f"{_amount(found.entries, 'entries', False)}, {messages}, {about}{size}, oldest {oldest} s"
    )


def _amount(count: int | None, noun: str, estimated: bool) -> str:
    if count is None:
        return f"? {noun}"
    return f"{'about ' if estimated else ''}{count} {noun}"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < _KILO or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= _KILO
    raise AssertionError("unreachable")
