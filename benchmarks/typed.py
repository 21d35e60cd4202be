"""Whole reads and writes of topics with a schema: what typed columns cost beside raw values.

The floor is the trivial source with the same columns ready-made, or a sink that drops them. Without
typed columns one reads and writes raw values, which Spark's own functions decode and encode; those
for AVRO need Spark's module spark-avro (``--conf spark.jars=…``), and are left out without it. The
official client decodes each message with the format's library; it runs as
``python -m benchmarks.typed``.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Type

from benchmarks.codecs_protobuf import add_field, compiled, new_file
from benchmarks.contenders import (
    OFFICIAL,
    OURS,
    SCALA,
    TRIVIAL,
    TRIVIAL_SINK,
    Bench,
    Contender,
    Run,
    scala_frame,
)
from benchmarks.measure import Measurement
from benchmarks.results import Result
from benchmarks.spark_process import JobFailed, SparkProcess
from benchmarks.topics import WrongResult, check_count, measure_client, temporary_topic
from benchmarks.workloads import Workload
from pulsar_spark.protocol.schema_info import SchemaInfo

log = logging.getLogger("benchmarks")

RAW = "raw values"
IN_SPARK = "raw values and Spark's functions"

_CLICK = {
    "event_id": ("string", "md5(string(id))"),
    "user_id": ("long", "pmod(xxhash64(id), 1000000000)"),
    "session": ("string", "substr(md5(string(id + 1)), 1, 20)"),
    "url": ("string", "concat('https://shop.example/', md5(string(id * 7)))"),
    "referrer": (
        ["null", "string"],
        "if(id % 5 < 2, null, concat('https://ref.example/', md5(string(id * 3))))",
    ),
    "ts": (
        {"type": "long", "logicalType": "timestamp-millis"},
        "timestamp_millis(1790000000000 + id)",
    ),
    "kind": (
        {"type": "enum", "name": "Kind", "symbols": ["VIEW", "CLICK", "BUY", "LEAVE"]},
        "element_at(array('VIEW', 'CLICK', 'BUY', 'LEAVE'), int(id % 4) + 1)",
    ),
    "duration": ("double", "rand(7) * 1000"),
    "screen": (
        {
            "type": "record",
            "name": "Screen",
            "fields": [
                {"name": "width", "type": "int"},
                {"name": "height", "type": "int"},
                {"name": "device", "type": "string"},
            ],
        },
        "named_struct('width', int(390 + id % 3 * 765), 'height', 844, 'device', 'phone')",
    ),
    "items": (
        {
            "type": "array",
            "items": {
                "type": "record",
                "name": "Item",
                "fields": [
                    {"name": "sku", "type": "string"},
                    {"name": "qty", "type": "int"},
                    {"name": "price", "type": "double"},
                ],
            },
        },
        "transform(if(id % 4 = 0, array(), sequence(1, int(id % 4))), n -> named_struct("
        "'sku', string(id * n), 'qty', int(n), 'price', n * 9.99D))",
    ),
    "tags": (
        {"type": "map", "values": "string"},
        "if(id % 2 = 0, map(), map('campaign', string(id), 'lang', 'de'))",
    ),
    "country": (["null", "string"], "if(id % 4 = 0, null, 'CH')"),
}
_DOUBLES = {
    "device": ("string", "concat('dev-', id % 5000)"),
    "ts": (
        {"type": "long", "logicalType": "timestamp-millis"},
        "timestamp_millis(1790000000000 + id)",
    ),
    **{f"m{number:02}": ("double", f"randn({number})") for number in range(20)},
}
_WIDE = {
    f"f{number:03}": (
        ["null", kind],
        f"if(id % 10 = {number % 10}, null, {expression.format(number=number)})",
    )
    for number in range(200)
    for kind, expression in (
        ("string", "concat('v', id % 1000)"),
        ("long", "id + {number}"),
        ("double", "id * 0.5D"),
    )[number % 3 : number % 3 + 1]
}
_RECORDS: dict[str, dict[str, tuple[Any, str]]] = {
    "click": _CLICK,
    "doubles": _DOUBLES,
    "wide": _WIDE,
}


@cache
def _click_message() -> tuple[SchemaInfo, Any]:
    """The click as a Protobuf message: its schema, and its class."""
    file = new_file("click")
    kinds = file.enum_type.add(name="Kind")
    for number, name in enumerate(("VIEW", "CLICK", "BUY", "LEAVE")):
        kinds.value.add(name=name, number=number)
    screen = file.message_type.add(name="Screen")
    add_field(screen, "width", Type.TYPE_INT32)
    add_field(screen, "height", Type.TYPE_INT32)
    add_field(screen, "device", Type.TYPE_STRING)
    item = file.message_type.add(name="Item")
    add_field(item, "sku", Type.TYPE_STRING)
    add_field(item, "qty", Type.TYPE_INT32)
    add_field(item, "price", Type.TYPE_DOUBLE)
    record = file.message_type.add(name="Record")
    tag = record.nested_type.add(name="TagsEntry")
    tag.options.map_entry = True
    add_field(tag, "key", Type.TYPE_STRING)
    add_field(tag, "value", Type.TYPE_STRING)
    add_field(record, "event_id", Type.TYPE_STRING)
    add_field(record, "user_id", Type.TYPE_INT64)
    add_field(record, "session", Type.TYPE_STRING)
    add_field(record, "url", Type.TYPE_STRING)
    add_field(record, "ts", Type.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    add_field(record, "kind", Type.TYPE_ENUM, type_name=".click.Kind")
    add_field(record, "duration", Type.TYPE_DOUBLE)
    add_field(record, "screen", Type.TYPE_MESSAGE, type_name=".click.Screen")
    many = {"label": Type.LABEL_REPEATED}
    add_field(record, "items", Type.TYPE_MESSAGE, type_name=".click.Item", **many)
    add_field(record, "tags", Type.TYPE_MESSAGE, type_name=".click.Record.TagsEntry", **many)
    for index, name in enumerate(("referrer", "country")):
        record.oneof_decl.add(name=f"_{name}")
        add_field(record, name, Type.TYPE_STRING, proto3_optional=True, oneof_index=index)
    return compiled(file)


@dataclass(frozen=True)
class Shape:
    """A topic of records with a schema, in batches of exactly `batch` messages."""

    record: str
    format: str
    batch: int
    messages: int

    @property
    def workload(self) -> Workload:
        """The topic, as other benchmarks describe theirs."""
        name = f"{self.record}-{self.format.lower()}-{self.batch}"
        return Workload(name, self.messages, 0, batch=self.batch)

    @property
    def title(self) -> str:
        """Its name in the table."""
        what = {"click": "click", "doubles": "20 doubles", "wide": "200 nullable fields"}
        return f"{what[self.record]}, {self.format}, batches of {self.batch}"

    @property
    def definition(self) -> str:
        """The schema's definition: AVRO and JSON have Avro's."""
        if self.format == "PROTOBUF_NATIVE":
            return _click_message()[0].schema_data.decode()
        fields = [
            {"name": name, "type": kind, **({"default": None} if isinstance(kind, list) else {})}
            for name, (kind, _) in _RECORDS[self.record].items()
        ]
        return json.dumps({"type": "record", "name": self.record.title(), "fields": fields})

    @property
    def columns(self) -> list[str]:
        """The record's fields as Spark makes them."""
        made = [f"{sql} AS {name}" for name, (_, sql) in _RECORDS[self.record].items()]
        return [*made, "string(id % 5000) AS __key"]

    def scaled(self, scale: float) -> Shape:
        """The same with another number of messages."""
        return Shape(self.record, self.format, self.batch, max(int(self.messages * scale), 1000))


SHAPES = (
    Shape("click", "AVRO", 500, 300_000),
    Shape("click", "AVRO", 10, 200_000),
    Shape("doubles", "AVRO", 500, 300_000),
    Shape("wide", "AVRO", 500, 40_000),
    Shape("click", "JSON", 500, 200_000),
    Shape("doubles", "JSON", 500, 200_000),
    Shape("click", "PROTOBUF_NATIVE", 500, 200_000),
)
WRITTEN_BATCH = 500
"""What is written too."""

_SMALL = 100
SMALL = tuple(Shape("click", name, 10, 30 * _SMALL) for name in ("AVRO", "JSON", "PROTOBUF_NATIVE"))
"""What streams read in micro-batches of 100 rows."""

Alternate = Callable[[str, Workload, "dict[Contender, Run]", int], "list[Result]"]


def measure(bench: Bench, runs: int, scale: float, alternate: Alternate) -> dict[str, Any]:
    """Read and write all shapes by all contenders in turn; returns the tables and the medians."""
    read: dict[Shape, list[Result]] = {}
    written: dict[Shape, list[Result]] = {}
    for shape in (shape.scaled(scale) for shape in SHAPES):
        with temporary_topic(bench.broker, shape.workload) as topic:
            _register(bench, shape, topic)
            bench.any.ask("write", **_typed_write(bench, shape, topic))
            named = _readers(bench, shape, topic)
            read[shape] = alternate("read", shape.workload, named, runs)
        if shape.batch == WRITTEN_BATCH:
            named = _writers(bench, shape)
            written[shape] = alternate("write", shape.workload, named, runs)
    tables = f"{table(read)}\n\n{written_table(written)}"
    return {"table": tables, "medians": _medians(read), "written": _medians(written)}


def measure_streams(bench: Bench, runs: int, alternate: Alternate) -> dict[str, Any]:
    """Read clicks in small micro-batches by all contenders in turn."""
    found: dict[Shape, list[Result]] = {}
    for shape in SMALL:
        with temporary_topic(bench.broker, shape.workload) as topic:
            _register(bench, shape, topic)
            bench.any.ask("write", **_typed_write(bench, shape, topic))
            named = _streams(bench, shape, topic)
            found[shape] = alternate("stream", shape.workload, named, runs)
    return {"table": stream_table(found), "medians": _medians(found)}


def _medians(found: Mapping[Shape, Sequence[Result]]) -> dict[str, Any]:
    return {
        shape.title: {
            result.contender.name: [round(result.rows_per_second), round(result.cpu, 2)]
            for result in results
        }
        for shape, results in found.items()
    }


def _register(bench: Bench, shape: Shape, topic: str) -> None:
    path = topic.replace("://", "/").removeprefix("persistent/")
    body = {"type": shape.format, "schema": shape.definition, "properties": {}}
    bench.broker.admin("POST", f"schemas/{path}/schema", body)


def _typed_write(bench: Bench, shape: Shape, topic: str, **more: str) -> dict[str, Any]:
    """What the job `write` takes; one task makes batches of the size."""
    options = {
        **bench.options(topic),
        "pulsar.producer.batchingMaxMessages": str(shape.batch),
        "pulsar.producer.batchingMaxBytes": str(4 << 20),
        **more,
    }
    return {
        "source": "pulsar", "options": options, "messages": shape.messages, "tasks": 1,
        "columns": shape.columns,
    }  # fmt: skip


def _writers(bench: Bench, shape: Shape) -> dict[Contender, Run]:
    """Typed columns, Spark's function and raw values, and a sink that drops the columns."""

    def typed(process: SparkProcess) -> Measurement:
        with temporary_topic(bench.broker, shape.workload) as topic:
            _register(bench, shape, topic)
            measured = process.measure("write", **_typed_write(bench, shape, topic))
            check_count(bench.broker, shape.workload, topic)
        return measured

    def raw() -> Measurement:
        with temporary_topic(bench.broker, shape.workload) as topic:
            frame = _typed_write(bench, shape, topic, valueFormat="raw")
            measured = bench.any.measure("write", **{**frame, "columns": _encoded(shape)})
            check_count(bench.broker, shape.workload, topic)
        return measured

    found: dict[Contender, Run] = {
        Contender(OURS, implementation=name): partial(typed, process)
        for name, process in bench.ours.items()
    }
    if bench.alone:
        return found
    found[Contender(TRIVIAL_SINK)] = partial(
        bench.any.measure, "write", source="trivial", options={"rows": str(shape.messages)},
        messages=shape.messages, tasks=1, columns=shape.columns,
    )  # fmt: skip
    if shape.format == "JSON" or (shape.format == "AVRO" and _has_avro(raw)):
        found[Contender(IN_SPARK)] = raw
    return found


def _encoded(shape: Shape) -> list[str]:
    """A record as Spark's function encodes it, and the key."""
    *fields, key = shape.columns
    if shape.format == "AVRO":
        return [f"to_avro(struct({', '.join(fields)}), '{shape.definition}') AS value", key]
    # JSON topics have times as numbers.
    numbers = [text.replace("timestamp_millis", "bigint") for text in fields]
    return [f"CAST(to_json(struct({', '.join(numbers)})) AS BINARY) AS value", key]


def _has_avro(run: Run) -> bool:
    try:
        run()
    except JobFailed as error:
        if "AVRO_NOT_LOADED" not in str(error):
            raise
        log.warning("left out: to_avro, which needs Spark's module spark-avro")
        return False
    return True


def _readers(bench: Bench, shape: Shape, topic: str) -> dict[Contender, Run]:
    options = bench.options(topic)
    typed = {"source": "pulsar", "options": options}
    raw = {"source": "pulsar", "options": {**options, "valueFormat": "raw"}}
    found: dict[Contender, Run] = {}
    for name, process in bench.ours.items():
        rows = process.ask("count", **typed)
        if rows != shape.messages:
            raise WrongResult(f"{shape.title}: {rows:,} rows were read")
        found[Contender(OURS, implementation=name)] = partial(process.measure, "read", **typed)
    found[Contender(RAW)] = partial(bench.any.measure, "read", **raw)
    if bench.alone:
        return found
    found[Contender(TRIVIAL)] = _floor(bench, shape, topic)
    if select := _in_spark(bench, shape, options):
        found[Contender(IN_SPARK)] = partial(bench.any.measure, "read", **raw, select=select)
    found[Contender(OFFICIAL, note=_LIBRARIES[shape.format])] = partial(
        _official, bench.broker.service_url, shape, topic
    )
    if bench.scala is not None and shape.format != "PROTOBUF_NATIVE":
        frame = scala_frame(bench, topic)
        found[Contender(SCALA)] = partial(bench.scala.measure, "read", **frame)
    return found


def _streams(bench: Bench, shape: Shape, topic: str) -> dict[Contender, Run]:
    """Typed columns, raw values, and these with Spark's function, in micro-batches of 100 rows."""
    options = {
        **bench.options(topic),
        "startingOffsets": "earliest",
        "maxMessagesPerTrigger": str(_SMALL),
    }
    found: dict[Contender, Run] = {
        Contender(OURS, implementation=name): partial(
            process.measure, "micro_batches", options=options
        )
        for name, process in bench.ours.items()
    }
    raw = partial(bench.any.measure, "micro_batches", options={**options, "valueFormat": "raw"})
    found[Contender(RAW)] = raw
    if not bench.alone and (select := _in_spark(bench, shape, bench.options(topic))):
        found[Contender(IN_SPARK)] = partial(raw, select=select)
    return found


def _floor(bench: Bench, shape: Shape, topic: str) -> Run:
    """The same columns, ready-made."""
    schema = bench.any.ask("ddl", source="pulsar", options=bench.options(topic))
    path = str(bench.folder / f"{shape.workload.name}.arrow")
    bench.any.ask("handed", options=bench.options(topic), schema=schema, keep=path)
    options = {"file": path, "tasks": "1"}
    frame = {"source": "trivial", "options": options, "schema": schema}
    return partial(bench.any.measure, "read", **frame)


def _in_spark(bench: Bench, shape: Shape, options: dict[str, str]) -> str | None:
    """Return what selects raw values decoded by Spark's own function; None without it."""
    if shape.format == "PROTOBUF_NATIVE":
        return None
    raw = {"source": "pulsar", "options": {**options, "valueFormat": "raw"}}
    columns = [name for name in bench.any.ask("columns", **raw) if name != "value"]
    if shape.format == "AVRO":
        function = f"from_avro(value, '{shape.definition}')"
    else:
        fields = list(_RECORDS[shape.record])
        ddl = bench.any.ask("ddl", source="pulsar", options=options, select="|".join(fields))
        # JSON topics have times as numbers, which the function takes for text.
        ddl = ddl.replace("ts TIMESTAMP", "ts BIGINT")
        function = f"from_json(CAST(value AS STRING), '{ddl}')"
    select = "|".join([f"{function} AS v", *columns])
    try:
        bench.any.measure("read", **raw, select=select)
    except JobFailed as error:
        if "AVRO_NOT_LOADED" not in str(error):
            raise
        log.warning("left out: from_avro, which needs Spark's module spark-avro")
        return None
    return select


def table(found: Mapping[Shape, Sequence[Result]]) -> str:
    """The Markdown table of reading; the shape that is worst beside its floor first."""
    lines = [
        "| CPU µs a row (thousand rows/s) | typed, kernel | typed, pure Python "
        "| floor: columns ready-made | raw | raw + Spark's function | official client + library "
        "| Scala connector | × floor |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    kinds = (TRIVIAL, RAW, IN_SPARK, OFFICIAL, SCALA)
    return "\n".join(
        [*lines, *_rows(found, kinds, lambda cpu, floor: cpu / floor, "{:.2f}", _cell)]
    )


def stream_table(found: Mapping[Shape, Sequence[Result]]) -> str:
    """The Markdown table of streams in small micro-batches; the dearest beside raw values first."""
    lines = [
        "| CPU ms a micro-batch of 100 rows (micro-batches a second) | typed, kernel "
        "| typed, pure Python | raw | raw + Spark's function | kernel beside raw |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    kinds = (RAW, IN_SPARK)

    def cell(result: Result | None) -> str:
        if result is None:
            return ""
        return f"{result.cpu * _SMALL / 1e3:.1f} ({result.rows_per_second / _SMALL:.1f})"

    rows = _rows(found, kinds, lambda cpu, raw: (cpu - raw) * _SMALL / 1e3, "{:+.1f} ms", cell)
    return "\n".join([*lines, *rows])


def written_table(found: Mapping[Shape, Sequence[Result]]) -> str:
    """The Markdown table of writing; the shape that is worst beside its floor first."""
    lines = [
        "| writing: CPU µs a row (thousand rows/s) | typed, kernel | typed, pure Python "
        "| floor: a sink that drops the columns | Spark's function + raw | kernel beside floor |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    kinds = (TRIVIAL_SINK, IN_SPARK)
    return "\n".join(
        [*lines, *_rows(found, kinds, lambda cpu, floor: cpu - floor, "{:+.2f} µs", _cell)]
    )


def _rows(
    found: Mapping[Shape, Sequence[Result]],
    others: Sequence[str],
    beside: Callable[[float, float], float],
    shown: str,
    cell: Callable[[Result | None], str],
) -> list[str]:
    """A row for each shape, the worst first: ours, the others, and ours beside the first of them.

    Without that one, its floor, the last cell is empty.
    """
    rows: list[tuple[float, str]] = []
    for shape, results in found.items():
        by_kind = {(r.contender.kind, r.contender.implementation): r for r in results}
        named = [by_kind.get((OURS, "native")), by_kind.get((OURS, "python"))]
        named += [by_kind.get((kind, "")) for kind in others]
        ours, floor = named[0] or named[1], named[2]
        ratio = beside(ours.cpu, floor.cpu) if ours and floor else 0.0
        cells = [shape.title, *map(cell, named), shown.format(ratio) if floor else ""]
        rows.append((ratio, f"| {' | '.join(cells)} |"))
    return [text for _, text in sorted(rows, reverse=True)]


def _cell(result: Result | None) -> str:
    return "" if result is None else f"{result.cpu:.2f} ({result.rows_per_second / 1e3:,.0f})"


# --- the official client ----------------------------------------------------------------------

_LIBRARIES = {"AVRO": "fastavro", "JSON": "json", "PROTOBUF_NATIVE": "protobuf"}


def _official(service_url: str, shape: Shape, topic: str) -> Measurement:
    command = [
        sys.executable, "-m", "benchmarks.typed", "--url", service_url, "--topic", topic,
        "--record", shape.record, "--format", shape.format, "--messages", str(shape.messages),
    ]  # fmt: skip
    return measure_client(command)


def _decode(shape: Shape) -> Callable[[bytes], Any]:
    if shape.format == "JSON":
        return json.loads
    if shape.format == "PROTOBUF_NATIVE":
        parse: Callable[[bytes], Any] = _click_message()[1].FromString
        return parse
    import fastavro

    schema = fastavro.parse_schema(json.loads(shape.definition))
    return lambda value: fastavro.schemaless_reader(io.BytesIO(value), schema)


def main() -> None:
    """Read and decode a topic with the official client, and print the measurement."""
    import pulsar

    from benchmarks.official import all_columns, read_by_batch_receive

    parser = argparse.ArgumentParser()
    for name in ("url", "topic", "record", "format"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--messages", type=int, required=True)
    arguments = parser.parse_args()
    decode = _decode(Shape(arguments.record, arguments.format, 0, arguments.messages))

    def take(message: Any) -> None:
        decode(message.data())
        all_columns(message)

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(arguments.url, logger=logger)
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    read_by_batch_receive(client, arguments.topic, arguments.messages, take)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps(asdict(Measurement(seconds, cpu, after.ru_maxrss * 1024))), flush=True)
    client.close()


if __name__ == "__main__":
    main()
