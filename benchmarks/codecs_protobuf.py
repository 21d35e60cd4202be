"""Protobuf: `FromString` and `SerializeToString` for each message, and our codec.

Two kinds of records of ten fields: flat ones (numbers, text, bytes), and mixed ones (with an enum,
a time, a list, a message and an optional field).
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timezone
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Type

from benchmarks.codecs_ways import ROWS_PER_BATCH, Way
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema.protobuf import codec as protobuf_codec

_STATUS = ("NEW", "PAID", "SENT", "RETURNED")
_CITIES = ("Berlin", "Paris", "Rome", "Łódź", "São Paulo")


@dataclass(frozen=True)
class Records:
    """A kind of record: its schema, its class, and values of it."""

    name: str
    info: SchemaInfo
    kind: Any
    values: Sequence[bytes]
    as_row: Callable[[Any], dict[str, Any]]
    from_row: Callable[[Any, dict[str, Any]], Any]


def new_file(name: str) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(
        name=f"{name}.proto",
        package=name,
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )


def add_field(message: descriptor_pb2.DescriptorProto, name: str, kind: int, **more: Any) -> None:
    more.setdefault("label", Type.LABEL_OPTIONAL)
    message.field.add(name=name, number=len(message.field) + 1, type=kind, **more)


def compiled(file: descriptor_pb2.FileDescriptorProto) -> tuple[SchemaInfo, Any]:
    """Return the schema as the Java client registers it, and the class."""
    own = timestamp_pb2.DESCRIPTOR.serialized_pb
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add().ParseFromString(own)
    files.file.append(file)
    definition = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": f"{file.package}.Record",
        "rootFileDescriptorName": file.name,
    }
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(own)
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindMessageTypeByName(f"{file.package}.Record")
    info = SchemaInfo(pb.Schema.ProtobufNative, "", json.dumps(definition).encode())
    return info, message_factory.GetMessageClass(found)


_FLAT = {
    "id": Type.TYPE_INT64,
    "name": Type.TYPE_STRING,
    "price": Type.TYPE_DOUBLE,
    "quantity": Type.TYPE_INT32,
    "active": Type.TYPE_BOOL,
    "city": Type.TYPE_STRING,
    "changed": Type.TYPE_INT64,
    "ratio": Type.TYPE_FLOAT,
    "token": Type.TYPE_BYTES,
    "balance": Type.TYPE_SINT64,
}


def flat(count: int) -> Records:
    """Return records of scalars."""
    file = new_file("flat")
    message = file.message_type.add(name="Record")
    for name, kind in _FLAT.items():
        add_field(message, name, kind)
    info, kind = compiled(file)
    rng = random.Random(1)
    values = [
        kind(
            id=rng.getrandbits(40),
            name=f"name-{index}",
            price=rng.random() * 1000,
            quantity=rng.randrange(1000),
            active=rng.random() < 0.5,
            city=rng.choice(_CITIES),
            changed=1_700_000_000_000_000 + index,
            ratio=rng.random(),
            token=rng.randbytes(12),
            balance=rng.randrange(-(10**6), 10**6),
        ).SerializeToString()
        for index in range(count)
    ]
    names = tuple(_FLAT)

    def as_row(record: Any) -> dict[str, Any]:
        return {name: getattr(record, name) for name in names}

    def from_row(record: Any, row: dict[str, Any]) -> Any:
        for name in names:
            setattr(record, name, row[name])
        return record

    return Records("flat", info, kind, values, as_row, from_row)


def _mixed_file(*, with_note: bool) -> descriptor_pb2.FileDescriptorProto:
    file = new_file("mixed")
    status = file.enum_type.add(name="Status")
    for number, name in enumerate(_STATUS):
        status.value.add(name=name, number=number)
    address = file.message_type.add(name="Address")
    add_field(address, "street", Type.TYPE_STRING)
    add_field(address, "code", Type.TYPE_INT32)
    message = file.message_type.add(name="Record")
    add_field(message, "id", Type.TYPE_INT64)
    add_field(message, "name", Type.TYPE_STRING)
    add_field(message, "price", Type.TYPE_DOUBLE)
    add_field(message, "quantity", Type.TYPE_INT32)
    add_field(message, "active", Type.TYPE_BOOL)
    add_field(message, "status", Type.TYPE_ENUM, type_name=".mixed.Status")
    add_field(message, "created", Type.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    add_field(message, "tags", Type.TYPE_STRING, label=Type.LABEL_REPEATED)
    add_field(message, "address", Type.TYPE_MESSAGE, type_name=".mixed.Address")
    if with_note:
        message.oneof_decl.add(name="_note")
        add_field(message, "note", Type.TYPE_STRING, proto3_optional=True, oneof_index=0)
    return file


def mixed(count: int, *, with_note: bool = True) -> Records:
    """Return records with all kinds of fields; `with_note` they have ten."""
    info, kind = compiled(_mixed_file(with_note=with_note))
    rng = random.Random(2)
    values = []
    for index in range(count):
        record = kind(
            id=rng.getrandbits(40),
            name=f"name-{index}",
            price=rng.random() * 1000,
            quantity=rng.randrange(1000),
            active=rng.random() < 0.5,
            status=rng.randrange(4),
            tags=[rng.choice(_CITIES) for _ in range(rng.randrange(4))],
        )
        record.created.seconds = 1_700_000_000 + index
        record.created.nanos = rng.randrange(10**6) * 1000
        record.address.street = f"street {index % 100}"
        record.address.code = rng.randrange(100_000)
        if rng.random() < 0.5 and with_note:
            record.note = "a note"
        values.append(record.SerializeToString())
    plain = ("id", "name", "price", "quantity", "active")
    status = kind.DESCRIPTOR.fields_by_name["status"].enum_type
    names = {value.number: value.name for value in status.values}
    numbers = {name: number for number, name in names.items()}

    def as_row(record: Any) -> dict[str, Any]:
        row = {name: getattr(record, name) for name in plain}
        row["status"] = names[record.status]
        row["created"] = record.created.ToDatetime(timezone.utc)
        row["tags"] = list(record.tags)
        row["address"] = {"street": record.address.street, "code": record.address.code}
        row["note"] = record.note if record.HasField("note") else None
        return row

    def from_row(record: Any, row: dict[str, Any]) -> Any:
        for name in plain:
            setattr(record, name, row[name])
        record.status = numbers[row["status"]]
        record.created.FromDatetime(row["created"])
        record.tags.extend(row["tags"])
        record.address.street = row["address"]["street"]
        record.address.code = row["address"]["code"]
        if row["note"] is not None:
            record.note = row["note"]
        return record

    return Records("mixed", info, kind, values, as_row, from_row)


# --- the ways -----------------------------------------------------------------------------


def ways(count: int) -> list[Way]:
    """Return reading and writing of `count` records of either kind."""
    return [
        way
        for records in (flat(count), mixed(count))
        for way in (_reading(records), _writing(records))
    ]


def _in_batches(values: Sequence[bytes]) -> list[pa.Array]:
    starts = range(0, len(values), ROWS_PER_BATCH)
    return [pa.array(values[start : start + ROWS_PER_BATCH], pa.binary()) for start in starts]


def _reading(records: Records) -> Way:
    schema = protobuf_codec.arrow_schema(records.info)
    decoder = protobuf_codec.decoder(records.info, records.info, schema.names)
    parse, as_row = records.kind.FromString, records.as_row
    raw = _in_batches(records.values)

    def by_rows() -> list[pa.Table]:
        return [
            pa.Table.from_pylist([as_row(parse(value)) for value in array.to_pylist()], schema)
            for array in raw
        ]

    def in_columns() -> list[pa.Table]:
        return [pa.table(list(decoder.decode(array).columns), schema=schema) for array in raw]

    assert pa.concat_tables(in_columns()) == pa.concat_tables(by_rows())
    return Way(f"Protobuf, {records.name}, read (FromString)", by_rows, in_columns)


def _writing(records: Records) -> Way:
    schema = protobuf_codec.arrow_schema(records.info)
    decoder = protobuf_codec.decoder(records.info, records.info, schema.names)
    encoder = protobuf_codec.encoder(records.info, schema)
    batches = [
        pa.RecordBatch.from_arrays(list(decoder.decode(array).columns), schema=schema)
        for array in _in_batches(records.values)
    ]
    kind, from_row = records.kind, records.from_row

    def by_rows() -> list[list[bytes]]:
        return [
            [from_row(kind(), row).SerializeToString() for row in batch.to_pylist()]
            for batch in batches
        ]

    def in_columns() -> list[pa.Array]:
        return [encoder.encode(batch) for batch in batches]

    assert [array.to_pylist() for array in in_columns()] == by_rows()
    return Way(f"Protobuf, {records.name}, write (SerializeToString)", by_rows, in_columns)
