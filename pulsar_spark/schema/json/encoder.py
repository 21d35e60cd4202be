"""Columns → values of a JSON topic.

A row's text is joined from the texts of its columns, see `json/writing.py`. Which columns fit is as
for an AVRO topic with the same definition; fields that there is no column for are left out, if
the schema allows it.
"""

from __future__ import annotations

import pyarrow as pa

from pulsar_spark.errors import InvalidRow
from pulsar_spark.schema.avro.definition import Node, Primitive, Record, UnionOf
from pulsar_spark.schema.avro.encoder import AvroEncoder
from pulsar_spark.schema.json.types import Dialect
from pulsar_spark.schema.json.writing import Unfit, joined, record_pieces, writer


class JsonEncoder:
    """Encodes record batches with the Arrow schema `columns` as values of a definition.

    Raises SchemaMismatch that lists what does not fit.
    """

    def __init__(self, node: Node, columns: pa.Schema, dialect: Dialect) -> None:
        self._arguments = node, columns, dialect
        AvroEncoder(node, columns)
        self._is_record = isinstance(node, Record)
        if isinstance(node, Record):
            types = {field.name: field.type for field in node.fields}
        else:
            # A null is a message without a value, whatever values may be.
            types = {columns.names[0]: UnionOf((node, Primitive("null")))}
        self._writers = [
            writer(types[column.name], column.type, dialect, column.name) for column in columns
        ]
        self._pieces = record_pieces(columns.names)

    def __reduce__(self) -> tuple[type[JsonEncoder], tuple[Node, pa.Schema, Dialect]]:
        return JsonEncoder, self._arguments

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return a binary array with a value for each row; raises InvalidRow."""
        try:
            return self._texts(columns).cast(pa.binary())
        except Unfit:
            row, unfit = self._find(columns)
            raise InvalidRow(
                f"row {row} of the batch cannot be written: the field {unfit.field}: {unfit.reason}"
            ) from None

    def _texts(self, columns: pa.RecordBatch) -> pa.Array:
        texts = [write(columns.column(i)) for i, write in enumerate(self._writers)]
        if not self._is_record:
            return texts[0]
        *starts, end = self._pieces
        pieces = [piece for pair in zip(starts, texts, strict=True) for piece in pair]
        return joined([*pieces, end], columns.num_rows)

    def _find(self, columns: pa.RecordBatch) -> tuple[int, Unfit]:
        """Return the first row that cannot be written, and why, of columns that have one."""
        start, end = 0, columns.num_rows
        while end - start > 1:
            middle = (start + end) // 2
            if self._unfit(columns.slice(start, middle - start)) is None:
                start = middle
            else:
                end = middle
        unfit = self._unfit(columns.slice(start, 1))
        assert unfit is not None
        return start, unfit

    def _unfit(self, columns: pa.RecordBatch) -> Unfit | None:
        try:
            self._texts(columns)
        except Unfit as unfit:
            return unfit
        return None
