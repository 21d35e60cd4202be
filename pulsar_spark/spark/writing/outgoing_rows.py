"""Arrow record batches of a DataFrame → columns of messages, one set per topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.engine.producers.partitioned_producer import MessageColumns
from pulsar_spark.engine.producers.routing import Key, TextKeys
from pulsar_spark.errors import InvalidRow, InvalidTopicName
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.schema.arrow.arithmetic import ZERO
from pulsar_spark.schema.arrow.arrays import booleans
from pulsar_spark.schema.arrow.byte_column import byte_values, without_nulls
from pulsar_spark.schema.table import names
from pulsar_spark.spark.writing.columns import WriteColumns
from pulsar_spark.spark.writing.message_fields import encode_fields, encode_unbatched_fields
from pulsar_spark.spark.writing.row_digest import Digest, digest_of
from pulsar_spark.spark.writing.row_encoder import RowEncoder

_MICROS = 1000


@dataclass(frozen=True, slots=True)
class TopicRows:
    """Rows for one topic, from a record batch that starts with the task's row `first_row`.

    `rows` are their indexes in that batch, None for all in order.
    """

    topic: str
    batch: pa.RecordBatch
    first_row: int
    rows: pa.Array | None = None

    @property
    def locate(self) -> Callable[[int], int]:
        """Returns a row's number within the task. It does not hold the record batch."""
        first, rows = self.first_row, self.rows
        if rows is None:
            return first.__add__
        return lambda index: first + rows[index].as_py()


class RowConverter:
    """Converts the record batches of one task. Rows are numbered across batches, from 0."""

    def __init__(
        self,
        columns: WriteColumns,
        topic: str | None,
        *,
        keys_as_bytes: bool = False,
        ids_grow: bool = False,
        takes_fields: bool = True,
        unbatched_fields: bool = False,
        digests: bool = False,
    ) -> None:
        self._columns = columns
        self._topic = topic
        self._keys_as_bytes = keys_as_bytes
        self._ids_grow = ids_grow
        self._takes_fields = takes_fields
        self._unbatched_fields = unbatched_fields
        # Each topic's last sequence id.
        self._last_ids: dict[str, int] = {}
        self._topic_names: dict[str, str] = {}
        self.rows = 0
        """Rows split so far."""
        self.brings_sequence_ids = False
        """Whether any row had a sequence id so far."""
        self.digest = Digest() if digests else None
        """That of the rows converted so far, if it is wanted."""

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
        # Two notations of one topic belong together, so that its messages keep the rows' order.
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
        sequence_ids = _listed(
            _not_negative(self._column(batch, names.SEQUENCE_ID), names.SEQUENCE_ID, part)
        )
        if self._ids_grow:
            self._check_ids(sequence_ids or [None] * batch.num_rows, part)
        self.brings_sequence_ids = self.brings_sequence_ids or sequence_ids is not None
        columns = MessageColumns(
            payloads=encoded.payloads,
            keys=encoded.keys if encoder.typed_keys else self._keys(batch),
            null_keys=encoded.null_keys,
            ordering_keys=_present(self._column(batch, names.ORDERING_KEY)),
            deliver_at=_listed(
                _millis(self._column(batch, names.DELIVER_AT), names.DELIVER_AT, part)
            ),
            sequence_ids=sequence_ids,
            locate=part.locate,
        )
        event_times = _millis(self._column(batch, names.EVENT_TIME), names.EVENT_TIME, part)
        properties = _properties(self._column(batch, names.PROPERTIES), part)
        if self.digest is not None:
            self.digest += digest_of(
                part.topic,
                encoded.payloads,
                keys=encoded.keys if encoder.typed_keys else self._column(batch, names.KEY),
                ordering_keys=self._column(batch, names.ORDERING_KEY),
                event_times=event_times,
                properties=properties,
            )
        if self._takes_fields:
            self._encode_fields(columns, batch, event_times, properties)
        if columns.fields is None:
            columns.event_times = _listed(event_times)
            columns.properties = _pairs(properties, part)
        return columns

    def _encode_fields(
        self,
        columns: MessageColumns,
        batch: pa.RecordBatch,
        event_times: pa.Array | None,
        properties: pa.MapArray | None,
    ) -> None:
        """Set the messages' fields, if they have any and no rarer ones."""
        payloads, nulls = without_nulls(columns.payloads)
        keys = None if columns.keys is None else self._column(batch, names.KEY)
        if event_times is None and properties is None and nulls is None and not _lacks_some(keys):
            return
        if not columns.plain or not _are_texts(columns.keys):
            return
        try:
            if self._unbatched_fields:
                fields = encode_unbatched_fields(
                    len(payloads), keys, properties, event_times, nulls
                )
            else:
                fields = encode_fields(payloads, keys, properties, event_times, nulls)
        except pa.ArrowInvalid:
            # The row-by-row path finds the row that caused it.
            return
        columns.payloads, columns.unbatched = payloads, self._unbatched_fields
        columns.fields = byte_values(fields)  # type: ignore[assignment]

    def _check_ids(self, ids: Sequence[int | None], part: TopicRows) -> None:
        """Raise InvalidRow for a row whose id is not greater than the previous row's."""
        last = self._last_ids.get(part.topic, -1)
        for index, own in enumerate(ids):
            if own is None or own <= last:
                shown = "null" if own is None else f"{own}, behind one that has {last}"
                raise InvalidRow(
                    f"row {part.locate(index)}: {names.SEQUENCE_ID} is {shown}: with producerName "
                    "rows are deduplicated by their sequence ids, which must increase within "
                    "each task",
                    f'Write frame.sortWithinPartitions("{names.SEQUENCE_ID}"), or leave '
                    "pulsar.producer.producerName out.",
                    topic=part.topic,
                )
            last = own
        self._last_ids[part.topic] = last

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        position = self._columns.position(name)
        return None if position is None else batch.column(position)

    def _keys(self, batch: pa.RecordBatch) -> Sequence[Key | None] | None:
        column = self._column(batch, names.KEY)
        if column is None or column.null_count == len(column):
            return None
        large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
        keys = column.cast(pa.large_binary() if large else pa.binary())
        if self._keys_as_bytes:
            return keys.to_pylist()  # type: ignore[no-any-return]
        try:
            texts = keys.cast(pa.large_string())
        except pa.ArrowInvalid:
            # Some keys are not UTF-8.
            return list(map(_text_or_bytes, keys.to_pylist()))
        if texts.null_count:
            return texts.to_pylist()  # type: ignore[no-any-return]
        return TextKeys(byte_values(keys))  # type: ignore[arg-type]


def _first_null(column: pa.Array) -> int:
    return pc.index(column.is_null(), True).as_py()  # type: ignore[no-any-return]


def _lacks_some(keys: pa.Array | None) -> bool:
    return keys is not None and keys.null_count > 0


def _are_texts(keys: Sequence[Key | None] | None) -> bool:
    """Whether all keys are text, as far as there are any."""
    if isinstance(keys, TextKeys):
        return True
    return {str, type(None)}.issuperset(map(type, keys or ()))


def _text_or_bytes(key: bytes | None) -> Key | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return key


def _present(column: pa.Array | None) -> list[Any] | None:
    """Return a column's values, None if it is missing or all null."""
    return _listed(None if column is None or column.null_count == len(column) else column)


def _listed(column: pa.Array | None) -> list[Any] | None:
    return None if column is None else column.to_pylist()


def _millis(column: pa.Array | None, name: str, part: TopicRows) -> pa.Array | None:
    if column is None or not pa.types.is_timestamp(column.type):
        return _not_negative(column, name, part)
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    micros = _not_negative(micros, name, part)
    return None if micros is None else pc.divide(micros, _MICROS)


def _not_negative(column: pa.Array | None, name: str, part: TopicRows) -> pa.Array | None:
    """Return a column of numbers, None if it is missing or all null."""
    if column is None or column.null_count == len(column):
        return None
    if pc.min(column).as_py() < 0:
        negative = pc.fill_null(pc.less(column, ZERO), booleans([False])[0])
        what = "is negative" if name == names.SEQUENCE_ID else "lies before 1970"
        row = part.locate(pc.index(negative, True).as_py())
        raise InvalidRow(f"row {row}: {name} {what}, which Pulsar cannot represent")
    return column


def _properties(column: pa.Array | None, part: TopicRows) -> pa.MapArray | None:
    """Return the column of properties; None if no row has any, to save the work.

    Raises InvalidRow that names the row with a null property.
    """
    if column is None or column.null_count == len(column):
        return None
    if column.items.null_count:
        for row, pairs in enumerate(column.to_pylist()):
            for key, value in pairs or ():
                if value is None:
                    raise InvalidRow(
                        f"row {part.locate(row)}: the property {key!r} of {names.PROPERTIES} is "
                        "null",
                        "Remove it, for example with map_filter(…).",
                    )
    offsets = column.offsets
    return column if offsets[0].as_py() < offsets[len(column)].as_py() else None


def _pairs(
    column: pa.MapArray | None, part: TopicRows
) -> Sequence[Sequence[tuple[str, str]] | None] | None:
    """Return properties row by row; raises InvalidRow that names a row that is not UTF-8."""
    if column is None:
        return None
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        row = next(row for row in range(len(column)) if not _is_text(column[row]))
        raise InvalidRow(
            f"row {part.locate(row)}: a property of {names.PROPERTIES} is not UTF-8",
            "Remove it, or encode it, for example with base64(…).",
        ) from None


def _is_text(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True
