"""Arrow record batches of a data frame → messages as columns, one set for each topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.engine.partitioned_producer import MessageColumns
from pulsar_spark.engine.routing import Key
from pulsar_spark.errors import InvalidRow, InvalidTopicName
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.schema.table import names
from pulsar_spark.spark.writing.columns import WriteColumns
from pulsar_spark.spark.writing.row_encoder import RowEncoder

_MICROS = 1000


@dataclass(frozen=True, slots=True)
class TopicRows:
    """Rows for one topic, of a record batch that begins with the task's row `first_row`.

    `rows` are the places in that batch they come from, None if that is all in order.
    """

    topic: str
    batch: pa.RecordBatch
    first_row: int
    rows: pa.Array | None = None

    def locate(self, index: int) -> int:
        """Return the number of a row in the task."""
        return self.first_row + (index if self.rows is None else self.rows[index].as_py())


class RowConverter:
    """Converts the record batches of one task. Rows are numbered over all of them, from 0."""

    def __init__(
        self, columns: WriteColumns, topic: str | None, *, keys_as_bytes: bool = False
    ) -> None:
        self._columns = columns
        self._topic = topic
        self._keys_as_bytes = keys_as_bytes
        self._topic_names: dict[str, str] = {}
        self.rows = 0
        """Rows split so far."""
        self.brings_sequence_ids = False
        """Whether rows had sequence ids of their own so far."""

    def split(self, batch: pa.RecordBatch) -> list[TopicRows]:
        """Return the rows of a record batch by topic, in their order.

        Raises InvalidRow that names a row without a topic, InvalidTopicName.
        """
        first_row = self.rows
        self.rows += batch.num_rows
        if self._topic is not None:
            return [TopicRows(self._topic, batch, first_row)]
        return [
            TopicRows(topic, batch.take(rows), first_row, rows)
            for topic, rows in self._by_topic(batch, first_row)
        ]

    def _by_topic(self, batch: pa.RecordBatch, first_row: int) -> Iterator[tuple[str, pa.Array]]:
        column = self._column(batch, names.TOPIC)
        assert column is not None
        if column.null_count:
            row = first_row + _first_null(column)
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

    def messages(self, part: TopicRows, encoder: RowEncoder) -> MessageColumns:
        """Return the messages of a topic's rows; raises InvalidRow that names the row."""
        batch = part.batch
        encoded = encoder.encode(batch, part.locate)
        keys: list[Any] | None = encoded.keys
        if not encoder.typed_keys:
            keys = self._keys(batch)
        sequence_ids = _not_negative(
            self._column(batch, names.SEQUENCE_ID), names.SEQUENCE_ID, part
        )
        self.brings_sequence_ids = self.brings_sequence_ids or sequence_ids is not None
        return MessageColumns(
            payloads=encoded.payloads,
            keys=keys,
            null_keys=encoded.null_keys,
            ordering_keys=_present(self._column(batch, names.ORDERING_KEY)),
            event_times=_millis(self._column(batch, names.EVENT_TIME), names.EVENT_TIME, part),
            properties=_properties(self._column(batch, names.PROPERTIES), part),
            deliver_at=_millis(self._column(batch, names.DELIVER_AT), names.DELIVER_AT, part),
            sequence_ids=sequence_ids,
            first_row=part.first_row,
        )

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        position = self._columns.position(name)
        return None if position is None else batch.column(position)

    def _keys(self, batch: pa.RecordBatch) -> list[Key | None] | None:
        column = self._column(batch, names.KEY)
        if column is None or column.null_count == len(column):
            return None
        if self._keys_as_bytes:
            large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
            kind = pa.large_binary() if large else pa.binary()
            return column.cast(kind).to_pylist()  # type: ignore[no-any-return]
        try:
            return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
        except pa.ArrowInvalid:
            # Some keys are not UTF-8.
            return [_text_or_bytes(key) for key in column.to_pylist()]


def _first_null(column: pa.Array) -> int:
    return pc.index(column.is_null(), True).as_py()  # type: ignore[no-any-return]


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


def _millis(column: pa.Array | None, name: str, part: TopicRows) -> list[int | None] | None:
    if column is None or not pa.types.is_timestamp(column.type):
        return _not_negative(column, name, part)
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    _not_negative(micros, name, part)
    return _present(pc.divide(micros, _MICROS))


def _not_negative(column: pa.Array | None, name: str, part: TopicRows) -> list[int | None] | None:
    values: list[int | None] | None = _present(column)
    if values is not None and pc.min(column).as_py() < 0:
        row = next(row for row, value in enumerate(values) if value is not None and value < 0)
        what = "is negative" if name == names.SEQUENCE_ID else "lies before 1970"
        raise InvalidRow(f"row {part.locate(row)}: {name} {what}, which Pulsar cannot express")
    return values


def _properties(
    column: pa.Array | None, part: TopicRows
) -> Sequence[Sequence[tuple[str, str]] | None] | None:
    maps = _present(column)
    if maps is None or column is None:
        return None
    if column.items.null_count:
        for row, pairs in enumerate(maps):
            for key, value in pairs or ():
                if value is None:
                    raise InvalidRow(
                        f"row {part.locate(row)}: the property {key!r} of {names.PROPERTIES} is "
                        "null",
                        "Leave it out, for example with map_filter(…).",
                    )
    # Nothing to say in any row is no column at all: messages without metadata go faster.
    return maps if any(maps) else None
