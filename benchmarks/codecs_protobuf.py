"""``python -m benchmarks.codecs_protobuf``: CPU per record of the protobuf codec.

Against what one would write by hand: `FromString` and an attribute per field into
`pa.Table.from_pylist`, and a message per row of `to_pylist` with `SerializeToString`. Two kinds of
records of ten fields: flat ones (numbers, text, bytes) and mixed ones (with an enum, a time, a
list, a message and an optional field). Ways are run in turn; the median of the ratios counts.
"""

from __future__ import annotations

import argparse
import base64
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timezone
from typing import Any

import google.protobuf
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Type
from google.protobuf.internal import api_implementation

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema import protobuf_codec

BATCH = 10_000
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


def _file(name: str) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(
        name=f"{name}.proto",
        package=name,
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )


def _add(message: descriptor_pb2.DescriptorProto, name: str, kind: int, **more: Any) -> None:
    more.setdefault("label", Type.LABEL_OPTIONAL)
    message.field.add(name=name, number=len(message.field) + 1, type=kind, **more)


def _compiled(file: descriptor_pb2.FileDescriptorProto) -> tuple[SchemaInfo, Any]:
    """Return the schema as Java's client registers it, and the class."""
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
    file = _file("flat")
    message = file.message_type.add(name="Record")
    for name, kind in _FLAT.items():
        _add(message, name, kind)
    info, kind = _compiled(file)
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


def _mixed_file() -> descriptor_pb2.FileDescriptorProto:
    file = _file("mixed")
    status = file.enum_type.add(name="Status")
    for number, name in enumerate(_STATUS):
        status.value.add(name=name, number=number)
    address = file.message_type.add(name="Address")
    _add(address, "street", Type.TYPE_STRING)
    _add(address, "code", Type.TYPE_INT32)
    message = file.message_type.add(name="Record")
    _add(message, "id", Type.TYPE_INT64)
    _add(message, "name", Type.TYPE_STRING)
    _add(message, "price", Type.TYPE_DOUBLE)
    _add(message, "quantity", Type.TYPE_INT32)
    _add(message, "active", Type.TYPE_BOOL)
    _add(message, "status", Type.TYPE_ENUM, type_name=".mixed.Status")
    _add(message, "created", Type.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    _add(message, "tags", Type.TYPE_STRING, label=Type.LABEL_REPEATED)
    _add(message, "address", Type.TYPE_MESSAGE, type_name=".mixed.Address")
    message.oneof_decl.add(name="_note")
    _add(message, "note", Type.TYPE_STRING, proto3_optional=True, oneof_index=0)
    return file


def mixed(count: int) -> Records:
    """Return records of all kinds of fields."""
    info, kind = _compiled(_mixed_file())
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
        if rng.random() < 0.5:
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


def batches(values: Sequence[bytes]) -> list[pa.Array]:
    """Return values in batches as Spark has them."""
    return [pa.array(values[i : i + BATCH], pa.binary()) for i in range(0, len(values), BATCH)]


def read_ways(records: Records, raw: Sequence[pa.Array]) -> dict[str, Callable[[], Any]]:
    """Return what reads: the naive way first."""
    schema = protobuf_codec.arrow_schema(records.info)
    parse, as_row = records.kind.FromString, records.as_row

    def naive() -> list[Any]:
        return [
            pa.Table.from_pylist([as_row(parse(value)) for value in array.to_pylist()], schema)
            for array in raw
        ]

    def all_columns() -> list[Any]:
        decoder = protobuf_codec.decoder(records.info, records.info, schema.names)
        return [pa.table(list(decoder.decode(array).columns), schema=schema) for array in raw]

    def two_columns() -> list[Any]:
        decoder = protobuf_codec.decoder(records.info, records.info, schema.names[:2])
        return [decoder.decode(array).columns for array in raw]

    for expected, found in zip(naive(), all_columns(), strict=True):
        assert found.equals(expected), "the two ways differ"
    return {"naive": naive, "codec": all_columns, "codec, 2 of 10 columns": two_columns}


def write_ways(records: Records, raw: Sequence[pa.Array]) -> dict[str, Callable[[], Any]]:
    """Return what writes: the naive way first."""
    schema = protobuf_codec.arrow_schema(records.info)
    decoder = protobuf_codec.decoder(records.info, records.info, schema.names)
    rows = [
        pa.RecordBatch.from_arrays(list(decoder.decode(array).columns), schema=schema)
        for array in raw
    ]
    kind, from_row = records.kind, records.from_row

    def naive() -> list[Any]:
        return [
            pa.array([from_row(kind(), row).SerializeToString() for row in batch.to_pylist()])
            for batch in rows
        ]

    def codec() -> list[Any]:
        encoder = protobuf_codec.encoder(records.info, schema)
        return [encoder.encode(batch) for batch in rows]

    for expected, found in zip(naive(), codec(), strict=True):
        assert found.to_pylist() == expected.to_pylist(), "the two ways differ"
    return {"naive": naive, "codec": codec}


def measure(ways: dict[str, Callable[[], Any]], count: int, rounds: int) -> dict[str, list[float]]:
    """Return microseconds of CPU per record of each way in each round; they take turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.process_time()
            way()
            found[name].append((time.process_time() - started) / count * 1e6)
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000, help="records of each kind")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(
        f"Python {platform.python_version()}, protobuf {google.protobuf.__version__} "
        f"({api_implementation.Type()}), pyarrow {pa.__version__}; {arguments.count:,} records in "
        f"batches of {BATCH:,}, medians of {arguments.rounds} rounds\n"
    )
    print("| | way | µs of CPU a record | times the naive way |\n|---|---|---|---|")
    for records in (flat(arguments.count), mixed(arguments.count)):
        raw = batches(records.values)
        for operation, ways in (("read", read_ways), ("write", write_ways)):
            found = measure(ways(records, raw), arguments.count, arguments.rounds)
            for name, times in found.items():
                ratios = [a / b for a, b in zip(found["naive"], times, strict=True)]
                print(
                    f"| {operation} {records.name} | {name} | {statistics.median(times):.2f} "
                    f"| {statistics.median(ratios):.1f} |"
                )


if __name__ == "__main__":
    main()
