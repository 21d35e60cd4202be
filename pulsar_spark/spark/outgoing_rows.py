"""Arrow record batches of a data frame → messages as columns, one set for each topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.client.message_columns import MessageColumns
from pulsar_spark.client.routing import Key
from pulsar_spark.errors import InvalidRow, InvalidTopicName
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.schema import column_names as names
from pulsar_spark.spark.write_columns import WriteColumns

_MICROS = 1000


@dataclass(frozen=True, slots=True)
class TopicRows:
    """Messages for one topic. `rows` are the rows they come from, None if that is all in order."""

    topic: str
    columns: MessageColumns


class RowConverter:
    """Converts the record batches of one task. Rows are numbered over all of them, from 0."""

    def __init__(
        self, columns: WriteColumns, topic: str | None, *, keys_as_bytes: bool = False
    ) -> None:
        self._columns = columns
        self._topic = topic
        self._keys_as_bytes = keys_as_bytes
        self._first_row = 0
        self._topic_names: dict[str, str] = {}

    @property
    def rows(self) -> int:
        """Rows converted so far."""
        return self._first_row

    def convert(self, batch: pa.RecordBatch) -> Iterator[TopicRows]:
        """Return the messages of a record batch, for each topic in the order of its rows.

        All is converted before the first is returned: a wrong row is an error before anything
        of its batch is sent. Raises InvalidRow that names the row, InvalidTopicName.
        """
        if self._topic is not None:
            found = [TopicRows(self._topic, self._messages(batch, None))]
        else:
            found = [
                TopicRows(topic, self._messages(batch.take(rows), rows))
                for topic, rows in self._by_topic(batch)
            ]
        self._first_row += batch.num_rows
        return iter(found)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
        column = self._column(batch, names.TOPIC)
        assert column is not None
        if column.null_count:
            row = self._first_row + _first_null(column)
            raise InvalidRow(
                f"row {row}: {names.TOPIC} is null", "Name a topic, or set the option topic."
            )
        encoded = column.dictionary_encode()
        full_names = [self._full_name(name) for name in encoded.dictionary.to_pylist()]
        # Two notations of one topic go together, so that its order is that of the rows.
        numbers = {name: number for number, name in enumerate(dict.fromkeys(full_names))}
        mapping = pa.array([numbers[name] for name in full_names], pa.int32())
        codes = mapping.take(encoded.indices)
        for name, number in numbers.items():
            yield name, pc.indices_nonzero(pc.equal(codes, number))

    def _full_name(self, name: str) -> str:
        found = self._topic_names.get(name)
        if found is None:
            try:
                found = str(TopicName.parse(name))
            except InvalidTopicName as error:
                raise InvalidTopicName(
                    f"the column {names.TOPIC}: {error.what}", error.remedy
                ) from None
            self._topic_names[name] = found
        return found

    # --- columns ------------------------------------------------------------------------------

    def _messages(self, batch: pa.RecordBatch, rows: pa.Array | None) -> MessageColumns:
        locate = _Locator(self._first_row, rows)
        value = _binary(batch.column(self._columns.value))
        return MessageColumns(
            payloads=value.to_pylist(),
            keys=self._keys(batch),
            ordering_keys=_present(self._column(batch, names.ORDERING_KEY)),
            event_times=_millis(self._column(batch, names.EVENT_TIME), names.EVENT_TIME, locate),
            properties=_properties(self._column(batch, names.PROPERTIES), locate),
            deliver_at=_millis(self._column(batch, names.DELIVER_AT), names.DELIVER_AT, locate),
            sequence_ids=_not_negative(
                self._column(batch, names.SEQUENCE_ID), names.SEQUENCE_ID, locate
            ),
            first_row=self._first_row,
        )

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        position = self._columns.position(name)
        return None if position is None else batch.column(position)

    def _keys(self, batch: pa.RecordBatch) -> list[Key | None] | None:
        column = self._column(batch, names.KEY)
        if column is None or column.null_count == len(column):
            return None
        if self._keys_as_bytes:
            return _binary(column).to_pylist()  # type: ignore[no-any-return]
        try:
            return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
        except pa.ArrowInvalid:
            # Some keys are not UTF-8.
            return [_text_or_bytes(key) for key in column.to_pylist()]


class _Locator:
    """Turns an index into a column into the number of the task's row."""

    def __init__(self, first_row: int, rows: pa.Array | None) -> None:
        self._first_row = first_row
        self._rows = rows

    def __call__(self, index: int) -> int:
        return self._first_row + (index if self._rows is None else self._rows[index].as_py())


def _first_null(column: pa.Array) -> int:
    return pc.index(column.is_null(), True).as_py()  # type: ignore[no-any-return]


def _binary(column: pa.Array) -> pa.Array:
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    return column.cast(pa.large_binary() if large else pa.binary())


def _text_or_bytes(key: bytes | None) -> Key | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return key


def _present(column: pa.Array | None) -> list[Any] | None:
    """Return the values of a column, None for one that is missing or all null."""
    if column is None or column.null_count == len(column):
        return None
    return column.to_pylist()  # type: ignore[no-any-return]


def _millis(column: pa.Array | None, name: str, locate: _Locator) -> list[int | None] | None:
    if column is None or not pa.types.is_timestamp(column.type):
        return _not_negative(column, name, locate)
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    _not_negative(micros, name, locate)
    return _present(pc.divide(micros, _MICROS))


def _not_negative(column: pa.Array | None, name: str, locate: _Locator) -> list[int | None] | None:
    values: list[int | None] | None = _present(column)
    if values is not None and pc.min(column).as_py() < 0:
        row = next(row for row, value in enumerate(values) if value is not None and value < 0)
        what = "is negative" if name == names.SEQUENCE_ID else "lies before 1970"
        raise InvalidRow(f"row {locate(row)}: {name} {what}, which Pulsar cannot express")
    return values


def _properties(
    column: pa.Array | None, locate: _Locator
) -> Sequence[Sequence[tuple[str, str]] | None] | None:
    maps = _present(column)
    if maps is None or column is None:
        return None
    if column.items.null_count:
        for row, pairs in enumerate(maps):
            for key, value in pairs or ():
                if value is None:
                    raise InvalidRow(
                        f"row {locate(row)}: the property {key!r} of {names.PROPERTIES} is null",
                        "Leave such properties out, as with map_filter(…).",
                    )
    # Nothing to say in any row is no column at all: messages without metadata go faster.
    return maps if any(maps) else None
