"""Arrow record batches of a DataFrame → columns of messages, one set per topic."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_spark.errors import InvalidRow, InvalidTopicName
from pulsar_spark.protocol.outgoing_messages import OutgoingMessages
from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.schema.arrow.arithmetic import ZERO, number
from pulsar_spark.schema.arrow.arrays import booleans, first_not_text, integers
from pulsar_spark.schema.arrow.byte_column import byte_values, without_nulls
from pulsar_spark.schema.table import names
from pulsar_spark.spark.writing.columns import WriteColumns
from pulsar_spark.spark.writing.message_fields import encode_fields
from pulsar_spark.spark.writing.row_digest import Digest, digest_of
from pulsar_spark.spark.writing.row_encoder import RowEncoder, as_binary

_MICROS = number(1000)

_Keys: TypeAlias = "Sequence[bytes | None] | None"


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
        digests: bool = False,
    ) -> None:
        self._columns = columns
        self._topic = topic
        self._keys_as_bytes = keys_as_bytes
        self._ids_grow = ids_grow
        # Each topic's last sequence id.
        self._last_ids: dict[str, int] = {}
        self._topic_names: dict[str, str] = {}
        self.rows = 0
        """Rows split so far."""
        self.brings_sequence_ids = False
        """Whether any row had a sequence id so far."""
        self.sequence_ids_grow = True
        """Whether each row of a topic had a greater sequence id than the one before so far."""
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
        position = self._columns.position(names.TOPIC)
        assert position is not None
        column = batch.column(position)
        if column.null_count:
            row = first_row + pc.index(column.is_null(), True).as_py()
            raise InvalidRow(
                f"row {row}: {names.TOPIC} is null", "Name a topic, or set the option topic."
            )
        if (bad := first_not_text(column)) is not None:
            raise InvalidTopicName(f"row {first_row + bad}: {names.TOPIC} is not UTF-8")
        encoded = column.dictionary_encode()
        full_names = []
        for place, name in enumerate(encoded.dictionary.to_pylist()):
            try:
                full_names.append(self._full_name(name))
            except InvalidTopicName as error:
                row = first_row + pc.index(encoded.indices, place).as_py()
                what = f"row {row}: the column {names.TOPIC}: {error.what}"
                raise InvalidTopicName(what, error.remedy) from None
        # Two notations of one topic belong together, so that its messages keep the rows' order.
        numbers = {name: place for place, name in enumerate(dict.fromkeys(full_names))}
        mapping = integers([numbers[name] for name in full_names], pa.int32())
        codes = mapping.take(encoded.indices)
        for name, own in numbers.items():
            yield name, pc.indices_nonzero(pc.equal(codes, number(own, pa.int32())))

    def _full_name(self, name: str) -> str:
        found = self._topic_names.get(name)
        if found is None:
            found = self._topic_names[name] = str(TopicName.parse(name))
        return found

    # --- columns ------------------------------------------------------------------------------

    def messages(self, part: TopicRows, encoder: RowEncoder) -> OutgoingMessages:
        """Return the messages of a topic's rows; raises InvalidRow that names the row."""
        batch = part.batch
        encoded = encoder.encode(batch, part.locate)
        sequence_ids = _not_negative(
            self._column(batch, names.SEQUENCE_ID), names.SEQUENCE_ID, part
        )
        own_ids = None if sequence_ids is None else sequence_ids.to_pylist()
        if self._ids_grow or self.sequence_ids_grow:
            self._check_ids(own_ids or [None] * batch.num_rows, part)
        self.brings_sequence_ids = self.brings_sequence_ids or own_ids is not None
        event_times = _millis(self._column(batch, names.EVENT_TIME), names.EVENT_TIME, part)
        properties = _properties(self._column(batch, names.PROPERTIES), part)
        ordering_keys = self._column(batch, names.ORDERING_KEY)
        if self.digest is not None:
            self.digest += digest_of(
                part.topic,
                encoded.payloads,
                keys=encoded.keys if encoder.typed_keys else self._column(batch, names.KEY),
                ordering_keys=ordering_keys,
                event_times=event_times,
                properties=properties,
            )
        payloads, null_values = without_nulls(encoded.payloads)
        deliver_at = _millis(self._column(batch, names.DELIVER_AT), names.DELIVER_AT, part)
        keys, are_base64 = encoded.keys, None
        if not encoder.typed_keys:
            keys, are_base64 = self._keys(batch)
        elif keys is not None:
            keys, are_base64 = _in_base64(keys, [key is not None for key in keys])
        try:
            fields = encode_fields(
                len(payloads),
                properties=properties,
                event_times=event_times,
                are_base64=are_base64,
                ordering_keys=ordering_keys,
                deliver_at=deliver_at,
                null_values=null_values,
                null_keys=None if encoded.null_keys is None else booleans(encoded.null_keys),
            )
        except pa.ArrowInvalid:
            _check_properties(properties, part)
            raise
        return OutgoingMessages(
            payloads,
            keys,
            None if fields is None else byte_values(fields),  # type: ignore[arg-type]
            own_ids,
            None if deliver_at is None else list(map(bool, deliver_at.to_pylist())),
        )

    def _check_ids(self, ids: Sequence[int | None], part: TopicRows) -> None:
        """Note whether each row's id is greater than the previous one's.

        Raises InvalidRow if it must be.
        """
        last = self._last_ids.get(part.topic, -1)
        for index, own in enumerate(ids):
            if own is None or own <= last:
                self.sequence_ids_grow = False
                if not self._ids_grow:
                    return
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
        """Return a named column, None if it is missing or all null."""
        position = self._columns.position(name)
        column = None if position is None else batch.column(position)
        return None if column is None or column.null_count == len(column) else column

    def _keys(self, batch: pa.RecordBatch) -> tuple[_Keys, pa.BooleanArray | None]:
        """Return the keys as they are sent, and which of them are bytes in base64."""
        column = self._column(batch, names.KEY)
        if column is None:
            return None, None
        keys = as_binary(column)
        if not self._keys_as_bytes:
            try:
                keys.cast(pa.large_string())
                return byte_values(keys), None
            except pa.ArrowInvalid:
                # Some keys are not UTF-8.
                pass
        values = keys.to_pylist()
        return _in_base64(values, [self._is_bytes(key) for key in values])

    def _is_bytes(self, key: bytes | None) -> bool:
        if key is None or self._keys_as_bytes:
            return key is not None
        try:
            key.decode()
        except UnicodeDecodeError:
            return True
        return False


def _in_base64(
    keys: Sequence[bytes | None], are_bytes: Sequence[bool]
) -> tuple[_Keys, pa.BooleanArray | None]:
    """Return keys, of which some are bytes that are sent in base64, and which those are."""
    found = [
        b64encode(key) if is_bytes and key is not None else key
        for key, is_bytes in zip(keys, are_bytes, strict=True)
    ]
    return found, booleans(list(are_bytes))


def _millis(column: pa.Array | None, name: str, part: TopicRows) -> pa.Array | None:
    if column is None or not pa.types.is_timestamp(column.type):
        return _not_negative(column, name, part)
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return pc.divide(_not_negative(micros, name, part), _MICROS)


def _not_negative(column: pa.Array | None, name: str, part: TopicRows) -> pa.Array | None:
    """Return a column of numbers; raises InvalidRow that names the row with a negative one."""
    if column is not None and pc.min(column).as_py() < 0:
        negative = pc.fill_null(pc.less(column, ZERO), booleans([False])[0])
        what = "is negative" if name == names.SEQUENCE_ID else "lies before 1970"
        row = part.locate(pc.index(negative, True).as_py())
        raise InvalidRow(f"row {row}: {name} {what}, which Pulsar cannot represent")
    return column


def _properties(column: pa.Array | None, part: TopicRows) -> pa.MapArray | None:
    """Return the column of properties; None if no row has any, to save the work.

    Raises InvalidRow that names the row with a null property.
    """
    if column is None:
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


def _check_properties(column: pa.MapArray | None, part: TopicRows) -> None:
    """Raise InvalidRow that names a row with a property that is not UTF-8."""
    row = None if column is None else first_not_text(column)
    if row is not None:
        raise InvalidRow(
            f"row {part.locate(row)}: a property of {names.PROPERTIES} is not UTF-8",
            "Remove it, or encode it, for example with base64(…).",
        )
