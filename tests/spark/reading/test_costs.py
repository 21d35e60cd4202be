"""What a planned read costs per task, by the size of the schema and the number of partitions."""

from __future__ import annotations

import cProfile
import json
import pickle
import pstats
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructType

from pulsar_spark.engine.context import shared_connections
from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.implementation import NATIVE, implementation
from pulsar_spark.protocol.schema_info import SchemaInfo
from pulsar_spark.schema import codec, registry
from pulsar_spark.schema.avro import codec as avro_codec
from pulsar_spark.schema.avro import definition
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.reading import batch_reader
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import rows_of, set_schema, store
from tests.support.round_trips import Asked

FIELDS = 500
MOST_BYTES = 1000


def wide(fields: int = FIELDS, *, more: str = "") -> SchemaInfo:
    """Return a schema of many fields, of which the first ones have the names of smaller ones."""
    names = [f"some_field_name_{number}" for number in range(fields)] + [more] * bool(more)
    described = [
        {"name": name, "type": ["null", "string"], "default": None, "doc": "what it means " * 4}
        for name in names
    ]
    record = {"type": "record", "name": "R", "fields": described}
    return SchemaInfo(pb.Schema.Avro, "R", json.dumps(record).encode())


def value(fields: int = FIELDS) -> bytes:
    """Return a record whose first field is x, and whose others are null."""
    return b"\2\2x" + b"\0" * (fields - 1)


def version(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.fixture(autouse=True)
def new_process() -> Iterator[Callable[[], None]]:
    """Forget what this process has of other tests, as a new worker has nothing."""

    def forget() -> None:
        shared_connections().close_unused()
        registry._remembered.clear()
        batch_reader._columns.clear()
        codec._decoders.clear()
        codec.typed_columns.cache_clear()

    forget()
    yield forget
    forget()


def topic(broker: EmbeddedBroker, partitions: int, fields: int = FIELDS) -> None:
    """Make topic t, with a message on each partition."""
    broker.create_topic("t", partitions)
    set_schema(broker, "t", wide(fields))
    for number in range(partitions):
        store(broker, f"t-partition-{number}", [value(fields)], schema_version=version(0))


def source(broker: EmbeddedBroker, **options: str) -> PulsarDataSource:
    return PulsarDataSource({"service.url": broker.service_url, "topic": "t", **options})


def planned(broker: EmbeddedBroker, schema: StructType | None = None) -> tuple[bytes, list[bytes]]:
    """Return what Spark sends to tasks of a batch, in its order: the reader, and partitions."""
    reading = source(broker)
    wanted = schema or reading.schema()
    copy = pickle.loads(cloudpickle.dumps(reading))  # type: ignore[no-untyped-call]
    reader = copy.reader(wanted)
    sent = cloudpickle.dumps(reader)  # type: ignore[no-untyped-call]
    return sent, [pickle.dumps(partition) for partition in reader.partitions()]


def run(reader: bytes, partition: bytes) -> list[dict[str, Any]]:
    """Run a task."""
    return rows_of(pickle.loads(reader).read(pickle.loads(partition)))


# --- schemas ------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 10, 100, 1000])
def test_a_definition_goes_with_the_reader_and_not_with_each_partition(
    broker: EmbeddedBroker, partitions: int
) -> None:
    topic(broker, partitions)
    reader, parts = planned(broker)
    assert len(parts) == partitions
    assert max(map(len, parts)) <= MOST_BYTES
    assert reader.count(b"some_field_name_499") <= 4


def test_partitions_of_a_stream_name_their_schema_too(broker: EmbeddedBroker) -> None:
    topic(broker, 10)
    reading = source(broker, startingOffsets="earliest")
    stream: Any = reading.streamReader(reading.schema())
    start = stream.initialOffset()
    parts = stream.partitions(start, latest(stream, start))
    assert len(parts) == 10
    assert max(len(pickle.dumps(part)) for part in parts) <= MOST_BYTES
    stream.stop()


def latest(stream: Any, start: dict[str, Any]) -> dict[str, Any]:
    try:
        from pyspark.sql.streaming.datasource import ReadAllAvailable
    except ImportError:
        return stream.latestOffset()  # type: ignore[no-any-return]
    return stream.latestOffset(start, ReadAllAvailable())  # type: ignore[no-any-return]


def test_a_process_parses_a_version_once(
    broker: EmbeddedBroker, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic(broker, 20)
    reader, parts = planned(broker)
    new_process()
    parsed: list[int] = []
    parse = definition.parse_definition

    def counted(text: bytes) -> Any:
        parsed.append(len(text))
        return parse(text)

    monkeypatch.setattr(avro_codec, "parse_definition", counted)
    assert len(run(reader, parts[0])) == 1
    first = len(parsed)
    assert first > 0
    for part in parts[1:]:
        assert run(reader, part)[0]["some_field_name_0"] == "x"
    assert len(parsed) == first


def test_a_task_does_little_for_each_field_once_its_process_knows_the_schema(
    broker: EmbeddedBroker, new_process: Callable[[], None]
) -> None:
    calls: dict[int, int] = {}
    for fields in (5, FIELDS):
        topic(broker, 3, fields)
        reader, parts = planned(broker)
        new_process()
        run(reader, parts[0])
        profile = cProfile.Profile()
        profile.enable()
        task, part = pickle.loads(reader), pickle.loads(parts[1])
        batches = list(task.read(part))
        profile.disable()
        assert batches[0].num_rows == 1
        calls[fields] = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
        broker.delete_topic("t")
    # Calls of functions, which no machine makes more of: 280 for each field that is parsed. Without
    # the kernel the one row is read in Python, field by field.
    most = 15 if implementation() == NATIVE else 40
    assert calls[FIELDS] - calls[5] <= most * FIELDS


@pytest.mark.parametrize("given", [False, True])
def test_tasks_ask_for_no_schema_that_the_driver_has_seen(
    broker: EmbeddedBroker, new_process: Callable[[], None], given: bool
) -> None:
    topic(broker, 10)
    wanted = StructType().add("some_field_name_0", StringType()) if given else None
    reader, parts = planned(broker, wanted)
    new_process()
    with Asked(broker) as asked:
        for part in parts:
            assert run(reader, part)[0]["some_field_name_0"] == "x"
    assert asked.counts["GET_SCHEMA"] == 0
    assert asked.counts["SUBSCRIBE"] == asked.counts["LOOKUP"] == 10


def test_a_version_that_the_driver_has_not_seen_is_asked_for_once_in_a_process(
    broker: EmbeddedBroker, new_process: Callable[[], None]
) -> None:
    topic(broker, 3)
    set_schema(broker, "t", wide(more="more"))
    reader, parts = planned(broker)
    new_process()
    with Asked(broker) as asked:
        for part in parts:
            assert run(reader, part)[0]["some_field_name_0"] == "x"
    assert asked.counts["GET_SCHEMA"] == 1


def count_decoders(patch: pytest.MonkeyPatch) -> list[SchemaInfo]:
    """Return the versions that decoders are made for from here on."""
    made: list[SchemaInfo] = []
    decoder = avro_codec.decoder

    def counted(writer: SchemaInfo, *others: Any) -> Any:
        made.append(writer)
        return decoder(writer, *others)

    patch.setattr(avro_codec, "decoder", counted)
    return made


@pytest.mark.parametrize("alike", [True, False])
def test_many_topics_cost_their_definitions_and_not_their_number(
    broker: EmbeddedBroker,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    alike: bool,
) -> None:
    count, schema = 40, wide(20)
    for number in range(count):
        own = schema.schema_data.replace(b'"R"', b'"R%d"' % (0 if alike else number))
        broker.create_topic(f"t{number}")
        set_schema(broker, f"t{number}", replace(schema, schema_data=own))
        store(broker, f"t{number}", [value(20)], schema_version=version(0))
    names = ",".join(f"t{number}" for number in range(count))
    reading = PulsarDataSource({"service.url": broker.service_url, "topics": names})
    reader = reading.reader(StructType().add("some_field_name_0", StringType()))
    parts = [pickle.dumps(part) for part in reader.partitions()]
    sent = cloudpickle.dumps(reader)  # type: ignore[no-untyped-call]
    new_process()
    made = count_decoders(monkeypatch)
    for most in (1 if alike else count, 0):
        made.clear()
        with Asked(broker) as asked:
            for part in parts:
                assert run(sent, part)[0]["some_field_name_0"] == "x"
        assert len(made) == most
        assert asked.counts["GET_SCHEMA"] <= (most if most > 1 else 0)


def old_versions(broker: EmbeddedBroker, partitions: int, versions: int) -> None:
    """Make topic t, with a message of each version on each partition."""
    broker.create_topic("t", partitions)
    for number in range(versions):
        set_schema(broker, "t", wide(5, more=f"more{number}"))
        for partition in range(partitions):
            name = f"t-partition-{partition}"
            store(broker, name, [value(6)], schema_version=version(number))


def test_tasks_of_a_process_ask_for_many_versions_once_and_together(
    broker: EmbeddedBroker, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    old_versions(broker, 6, 50)
    reader, parts = planned(broker)
    new_process()
    made = count_decoders(monkeypatch)
    with Asked(broker, 0.02, but=["LOOKUP", "PARTITIONED_METADATA", "SUBSCRIBE"]) as asked:
        for part in parts:
            assert len(run(reader, part)) == 50
    assert asked.counts["GET_SCHEMA"] == 49
    assert len(made) == 50
    # Waiting for one after the other would take 49, besides what each task waits for.
    assert asked.in_sequence <= 20


def test_a_topic_that_was_made_again_is_read_by_its_own_versions_in_the_same_process(
    broker: EmbeddedBroker,
) -> None:
    """Also by those before the newest, which is as it was."""
    older = [
        {"name": "before", "type": "string", "default": ""},
        {"name": "some_field_name_0", "type": ["null", "string"], "default": None},
    ]
    other = json.dumps({"type": "record", "name": "R", "fields": older}).encode()
    histories = [(wide(1), value(1)), (SchemaInfo(pb.Schema.Avro, "R", other), b"\2b\2\2x")]
    for first, data in histories:
        broker.create_topic("t", 2)
        for each in (first, wide(2)):
            set_schema(broker, "t", each)
        for number in range(2):
            store(broker, f"t-partition-{number}", [data], schema_version=version(0))
        reader, parts = planned(broker)
        for part in parts:
            assert run(reader, part)[0]["some_field_name_0"] == "x"
        broker.delete_topic("t")


def test_a_process_asks_once_for_a_definition_that_its_reader_lacks(
    broker: EmbeddedBroker, new_process: Callable[[], None]
) -> None:
    topic(broker, 10)
    columns = StructType().add("some_field_name_0", StringType())
    # Spark pickles a stream's reader in another process than the one that plans.
    stream: Any = source(broker, startingOffsets="earliest").streamReader(columns)
    task = cloudpickle.dumps(stream)  # type: ignore[no-untyped-call]
    parts = [pickle.dumps(part) for part in stream_parts(stream)]
    stream.stop()
    new_process()
    with Asked(broker) as asked:
        for part in parts:
            assert run(task, part)[0]["some_field_name_0"] == "x"
    assert asked.counts["GET_SCHEMA"] == 1


def stream_parts(stream: Any) -> list[Any]:
    start = stream.initialOffset()
    return list(stream.partitions(start, latest(stream, start)))


def test_what_was_planned_with_is_what_tasks_decode_with(
    broker: EmbeddedBroker, new_process: Callable[[], None]
) -> None:
    topic(broker, 1)
    reader, parts = planned(broker)
    set_schema(broker, "t", wide(more="more"))
    store(broker, "t-partition-0", [value(FIELDS + 1)], schema_version=version(1))
    new_process()
    (row,) = run(reader, parts[0])
    assert row["some_field_name_0"] == "x"
    assert "more" not in row


def test_another_schema_under_the_same_version_is_an_error_and_never_taken_for_it(
    broker: EmbeddedBroker, new_process: Callable[[], None]
) -> None:
    topic(broker, 1)
    columns = StructType().add("some_field_name_0", StringType())
    stream: Any = source(broker, startingOffsets="earliest").streamReader(columns)
    task = cloudpickle.dumps(stream)  # type: ignore[no-untyped-call]
    (part,) = stream_parts(stream)
    broker.delete_topic("t")
    topic(broker, 1, 7)
    new_process()
    with pytest.raises(SchemaMismatch, match="made again"):
        run(task, pickle.dumps(part))
    stream.stop()


def test_a_stream_reads_what_a_topic_that_was_made_again_has_by_its_new_versions(
    broker: EmbeddedBroker,
) -> None:
    """The same version number names another schema then."""
    topic(broker, 1)
    columns = StructType().add("some_field_name_0", StringType())
    given = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    stream: Any = source(broker, **given).streamReader(columns)
    start = stream.initialOffset()
    end = latest(stream, start)
    for part in stream.partitions(start, end):
        assert rows_of(stream.read(part))[0]["some_field_name_0"] == "x"
    stream.commit(end)
    broker.delete_topic("t")
    broker.create_topic("t", 1)
    fields = [
        {"name": "before", "type": "string"},
        {"name": "some_field_name_0", "type": ["null", "string"], "default": None},
    ]
    other = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
    set_schema(broker, "t", SchemaInfo(pb.Schema.Avro, "R", other))
    store(broker, "t-partition-0", [b"\2b\2\2y"], schema_version=version(0))
    found: list[Any] = []
    for _ in range(5):
        begin, end = end, latest(stream, end)
        for part in stream.partitions(begin, end) if begin != end else ():
            found += [row["some_field_name_0"] for row in rows_of(stream.read(part))]
        if found:
            break
    assert found == ["y"]
    stream.stop()


def test_a_stream_asks_for_an_older_version_once_while_its_topic_is_the_same(
    broker: EmbeddedBroker, new_process: Callable[[], None]
) -> None:
    topic(broker, 2)
    set_schema(broker, "t", wide(more="more"))
    columns = StructType().add("some_field_name_0", StringType())
    stream: Any = source(broker, startingOffsets="earliest").streamReader(columns)
    offset = stream.initialOffset()
    with Asked(broker) as asked:
        for number in range(10):
            for partition in range(2):
                name = f"t-partition-{partition}"
                store(broker, name, [value()], schema_version=version(0))
            begin, offset = offset, latest(stream, offset)
            for part in stream.partitions(begin, offset):
                rows = rows_of(stream.read(part))
                assert [row["some_field_name_0"] for row in rows] == ["x"] * (1 if number else 2)
            stream.commit(offset)
    assert asked.counts["GET_SCHEMA"] == 2
    stream.stop()


@pytest.mark.parametrize("triggers", [1, 10, 30])
def test_a_stream_asks_for_schemas_when_it_starts_and_not_at_each_trigger(
    broker: EmbeddedBroker, triggers: int
) -> None:
    topic(broker, 2)
    columns = StructType().add("some_field_name_0", StringType())
    stream: Any = source(broker, startingOffsets="earliest").streamReader(columns)
    offset = stream.initialOffset()
    with Asked(broker) as asked:
        for number in range(triggers):
            store(broker, f"t-partition-{number % 2}", [value()], schema_version=version(0))
            begin, offset = offset, latest(stream, offset)
            for part in stream.partitions(begin, offset):
                assert rows_of(stream.read(part))[0]["some_field_name_0"] == "x"
            stream.commit(offset)
    assert asked.counts["GET_SCHEMA"] == 1
    stream.stop()


def test_a_stream_forgets_the_schemas_of_topics_that_are_gone(broker: EmbeddedBroker) -> None:
    topic(broker, 2)
    columns = StructType().add("some_field_name_0", StringType())
    stream: Any = source(broker, startingOffsets="earliest").streamReader(columns)
    parts = stream_parts(stream)
    schemas = stream._source.schemas
    assert schemas.eras.keys() == {"persistent://public/default/t"}
    assert (
        schemas.current([], {each.topic: each.end for each in parts}).keys() == schemas.eras.keys()
    )
    assert not schemas.current([], {})
    assert not schemas.eras
    stream.stop()
