"""The stream reader with Spark's admission control: Spark 4.2 and later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pulsar_spark.spark.options.stream import Caps
from pulsar_spark.spark.streaming.reader import PulsarStreamReader
from pulsar_spark.spark.streaming.stream_offset import StreamOffset


class AdmissionStreamReader(PulsarStreamReader, SupportsTriggerAvailableNow):
    """A stream reader to which Spark passes the query's position and a read limit."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the options' caps as Spark's read limit, as far as Spark can express them."""
        caps = self._options.caps
        if caps.max_messages is not None:
            return ReadMaxRows(caps.max_messages)
        if caps.max_bytes is not None:
            return ReadMaxBytes(caps.max_bytes)
        if caps.min_messages is not None:
            return ReadMinRows(caps.min_messages)
        return ReadAllAvailable()

    def latestOffset(  # type: ignore[override]
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return where the next batch ends; everything before `start` is committed."""
        if start == self._told and self._rests():
            return start
        caps = caps_within(self._options.caps, limit)
        self._told = self._source.latest(StreamOffset.from_json(start), caps).to_json()
        self._reported = None
        return self._told

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the topics' last known ends, and the backlog.

        Spark only shows it in a query's progress: it is no offset.
        """
        if self._reported is None and (report := self._source.report()) is not None:
            left = self._source.lag()
            lag = {topic: left[topic].to_json() for topic in sorted(left)}
            self._reported = {**report.to_json(), "lag": lag}
        return self._reported

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end at the current ends of the topics."""
        self._source.fix_end()


def caps_within(caps: Caps, limit: ReadLimit) -> Caps:
    """Return the options' caps within Spark's limit; "read all" removes the caps."""
    if isinstance(limit, ReadAllAvailable):
        return Caps()
    if isinstance(limit, ReadMaxRows):
        return replace(caps, max_messages=_least(caps.max_messages, limit.max_rows))
    if isinstance(limit, ReadMaxBytes):
        return replace(caps, max_bytes=_least(caps.max_bytes, limit.max_bytes))
    return caps


def _least(own: int | None, given: int) -> int:
    return given if own is None else min(own, given)
