"""Kept exactly-once sinks: what each version that changed the records has left on its topics.

``python -m tests.integration.sinks tests/data/sinks/NAME`` records them on embedded brokers, and
with Spark a checkpoint of a query that writes to one of them. `restore` writes a kept sink's topics
anew, in transactions of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from pulsar_spark.client import InitialPosition, PulsarClient
from pulsar_spark.client.transaction import Transaction
from pulsar_spark.engine.context import ClientContext
from pulsar_spark.protocol.batches import unpack_batch
from pulsar_spark.protocol.commands import TxnId
from pulsar_spark.protocol.frame_parts import parse_payload
from pulsar_spark.spark.options.table import Scope
from pulsar_spark.spark.options.write import WriteOptions, parse_write_options
from pulsar_spark.spark.writing import exactly_once
from pulsar_spark.spark.writing.fenced_topic import SUBSCRIPTION
from pulsar_spark.spark.writing.sink_records import text_digest
from pulsar_spark.spark.writing.task_writer import PulsarCommitMessage, transactions_of
from pulsar_spark.spark.writing.writers import ArrowStreamWriter, PulsarBatchWriter
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.entry_log import Entry
from pulsar_spark.testing.server import Server
from tests.spark.topics import full, store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = Path(__file__).resolve().parent.parent / "data" / "sinks"
TOPIC = full("t")
SOURCE = full("source")
SINK = "orders"
CREDENTIALS = "s3a://KEY:not-a-secret@bucket/checkpoints/orders"
SPELLINGS = ("/ck", "/ck/", "//ck", "file:/ck", "file:///ck")
"""Checkpoints that are one folder on the local file system."""
SCHEMA = StructType([StructField("value", StringType())])
TASKS = 2

Json = dict[str, Any]
Ids = list[int]


class Died(BaseException):
    """Instead of a driver's death: nothing handles it."""


@dataclass(frozen=True)
class Kept:
    """A sink as it was left.

    `options` are those of its writer, without the broker. `rows` are the entries of its topics:
    their topic, place, transaction and values. `records` are its records in order, with the
    transaction of each, of which the first `acknowledged` ones are acknowledged. `transactions`
    says of each how it ended, or ``open``.
    """

    options: dict[str, str]
    state_topic: str
    transactions: list[tuple[TxnId, str]]
    rows: list[Json]
    records: list[Json]
    acknowledged: int


def load(file: Path) -> Kept:
    """Return a kept sink."""
    found = json.loads(file.read_text())
    ends = [(TxnId(*txn), end) for *txn, end in found.pop("transactions")]
    return Kept(**found, transactions=ends)


def save(kept: Kept, file: Path) -> None:
    """Write a kept sink, one line for each entry."""
    lists: dict[str, list[Any]] = {
        "transactions": [[*txn, end] for txn, end in kept.transactions],
        "rows": kept.rows,
        "records": kept.records,
    }
    parts = [
        f'"options": {json.dumps(kept.options)}',
        f'"state_topic": {json.dumps(kept.state_topic)}',
        *(f'"{name}": [{_lines(items)}]' for name, items in lists.items()),
        f'"acknowledged": {kept.acknowledged}',
    ]
    file.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _lines(items: list[Any]) -> str:
    return ",".join(f"\n  {json.dumps(item)}" for item in items) + ("\n" if items else "")


# --- restoring ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restored:
    """A restored sink: its options, topics, and transactions by their kept ids; which are open."""

    options: dict[str, str]
    topic: str
    state_topic: str
    transactions: dict[TxnId, Transaction]
    open: dict[TxnId, Transaction]


def restore(
    client: PulsarClient, url: str, kept: Kept, topic: str = TOPIC, state_topic: str | None = None
) -> Restored:
    """Write a kept sink's topics on a broker, `topic` in place of the one that it wrote to.

    Without `state_topic`, the records are where they were; with one, the options name it.
    """
    options = {**kept.options, "service.url": url, "topic": topic}
    records = kept.state_topic
    if state_topic is not None:
        options["sinkStateTopic"] = records = state_topic
    return _Restoring(client, kept, Restored(options, topic, records, {}, {})).run()


class _Restoring:
    def __init__(self, client: PulsarClient, kept: Kept, made: Restored) -> None:
        self._client = client
        self._kept = kept
        self._made = made
        # The places of entries on the topic, by the kept ones.
        self._places: dict[tuple[int, int], tuple[int, int]] = {}
        self._left = dict(kept.transactions)

    def run(self) -> Restored:
        for txn in self._left:
            self._made.transactions[txn] = self._client.new_transaction(600_000)
        self._write_rows()
        self._write_records()
        self._made.open.update({txn: self._made.transactions[txn] for txn in self._left})
        return self._made

    def _write_rows(self) -> None:
        producer = self._client.create_producer(self._made.topic, batching_enabled=True)
        for row in self._kept.rows:
            *values, last = (value.encode() for value in row["values"])
            txn = self._txn(row["txn"])
            for value in values:
                producer.send_async(value, None, txn=txn)
            found = producer.send(last, txn=txn)
            ledger_id, entry_id = row["place"]
            self._places[ledger_id, entry_id] = found.ledger_id(), found.entry_id()
        producer.close()

    def _write_records(self) -> None:
        kept, topic = self._kept, self._made.state_topic
        consumer = self._client.subscribe(
            topic, SUBSCRIPTION, initial_position=InitialPosition.Earliest
        )
        producer = self._client.create_producer(topic, batching_enabled=False)
        stored = []
        marked: list[TxnId] = []
        for record in kept.records:
            if record["record"]["kind"] == "done":
                self._end(marked)
            elif record["txn"] is not None:
                marked.append(TxnId(*record["txn"]))
            text = json.dumps(self._renamed(record["record"]), separators=(",", ":"))
            stored.append(producer.send(text.encode(), txn=self._txn(record["txn"])))
        self._end(list(self._left))
        producer.close()
        if kept.acknowledged:
            consumer.acknowledge_cumulative(stored[kept.acknowledged - 1])
        consumer.close()

    def _end(self, transactions: list[TxnId]) -> None:
        """End those that are not open."""
        for txn in transactions:
            end = self._left.get(txn, "open")
            if end != "open":
                del self._left[txn]
                made = self._made.transactions[txn]
                made.commit() if end == "committed" else made.abort()

    def _txn(self, ids: Ids | None) -> Transaction | None:
        return None if ids is None else self._made.transactions[TxnId(*ids)]

    def _ids(self, ids: Ids) -> Ids:
        return list(self._made.transactions[TxnId(*ids)].engine.txn_id)

    def _renamed(self, record: Json) -> Json:
        """Return a record with the transactions, topics and places of this broker."""
        found = dict(record)
        if "txn" in record:
            found["txn"] = self._ids(record["txn"])
        if "txns" in record:
            found["txns"] = [self._ids(txn) for txn in record["txns"]]
        if record.get("topics") == text_digest(TOPIC):
            found["topics"] = text_digest(self._made.topic)
        if "ends" in record:
            (ends,) = record["ends"].values()
            found["ends"] = {
                self._made.topic: [
                    [*self._ids([most, least]), *self._places[ledger_id, entry_id], *marked]
                    for most, least, ledger_id, entry_id, *marked in ends
                ]
            }
        return found


# --- recording ------------------------------------------------------------------------------------


class Sink:
    """A sink without Spark: its writers, as Spark makes them."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def parsed(self) -> WriteOptions:
        """Return its options."""
        return parse_write_options(self.options, Scope.STREAM_WRITE)

    def writer(self) -> ArrowStreamWriter:
        """Return a micro-batch's writer."""
        return ArrowStreamWriter(self.parsed(), SCHEMA)

    def job(self) -> PulsarBatchWriter:
        """Return a batch write's writer."""
        return PulsarBatchWriter(self.parsed(), SCHEMA, overwrite=False)

    def write(self, unit: str, writer: Any = None) -> list[PulsarCommitMessage]:
        """Run the tasks of a unit."""
        writer = writer or self.writer()
        return [
            writer.write(iter([pa.RecordBatch.from_pydict({"value": task_rows(unit, task)})]))
            for task in range(TASKS)
        ]

    def run(self, batch: int) -> None:
        """Write a micro-batch from its check to its commit."""
        self.writer().check()
        self.writer().commit(list(self.write(str(batch))), batch)

    def run_job(self, unit: str) -> None:
        """Write a batch write from its check to its commit."""
        writer = self.job()
        writer.check()
        writer.commit(self.write(unit, writer))

    def end(self, messages: list[PulsarCommitMessage], *, commit: bool) -> None:
        """End transactions without the sink's knowledge."""
        with ClientContext(self.parsed().client) as context:
            ends = context.coordinators.end_all(transactions_of(messages), commit=commit)
            assert set(ends.values()) == {None}


def task_rows(unit: str, task: int) -> list[str]:
    """Return the values that a task writes."""
    return [f"{unit}-{task}-{row}" for row in range(2)]


def unit_rows(unit: object) -> list[str]:
    """Return the values of a unit."""
    return [value for task in range(TASKS) for value in task_rows(str(unit), task)]


@contextmanager
def dying(point: str, module: object = exactly_once) -> Iterator[None]:
    """Lose the driver, or whoever reaches a crash point of the module, without any cleaning up."""

    def die(reached: str) -> None:
        if reached == point:
            raise Died

    with mock.patch.object(module, "reach", die):
        try:
            yield
        except Died:
            return
    raise AssertionError(f"{point} was not reached")


def _die(sink: Sink, batch: int, point: str) -> list[PulsarCommitMessage]:
    sink.writer().check()
    messages = sink.write(str(batch))
    with dying(point):
        sink.writer().commit(list(messages), batch)
    return messages


def _done(sink: Sink) -> None:
    for batch in range(3):
        sink.run(batch)


def _undone(sink: Sink) -> None:
    sink.run(0)
    _die(sink, 1, "after-decision")


def _marked(sink: Sink) -> None:
    sink.run(0)
    _die(sink, 1, "after-markers")


def _half_committed(sink: Sink) -> None:
    sink.run(0)
    sink.end(_die(sink, 1, "after-markers")[:1], commit=True)


def _all_committed(sink: Sink) -> None:
    sink.run(0)
    sink.end(_die(sink, 1, "after-markers"), commit=True)


def _torn(sink: Sink) -> None:
    sink.run(0)
    first, second = _die(sink, 1, "after-markers")
    sink.end([first], commit=True)
    sink.end([second], commit=False)


def _void(sink: Sink) -> None:
    sink.run(0)
    sink.end(_die(sink, 1, "after-decision")[:1], commit=False)
    # The next driver drops the decision, and dies as well.
    sink.end(_die(sink, 1, "before-decision"), commit=False)


def _withheld(sink: Sink) -> None:
    sink.run(0)
    with PulsarClient(sink.options["service.url"]) as client:
        # It stays open, and holds what comes after it.
        client.create_producer(TOPIC).send(b"other", txn=client.new_transaction(3_600_000))
        for batch in (1, 2, 3):
            sink.run(batch)


def _fenced(sink: Sink) -> None:
    sink.writer().check()
    messages = sink.write("0")
    sink.writer().abort([*messages, None], 0)


def _checked(sink: Sink) -> None:
    sink.writer().check()


def _one(sink: Sink) -> None:
    sink.run(0)


def _die_in_job(sink: Sink, unit: str, point: str) -> list[PulsarCommitMessage]:
    writer = sink.job()
    writer.check()
    messages = sink.write(unit, writer)
    with dying(point):
        writer.commit(messages)
    return messages


def _jobs_done(sink: Sink) -> None:
    sink.run_job("a")
    sink.run_job("b")


def _job_undone(sink: Sink) -> None:
    sink.run_job("a")
    _die_in_job(sink, "b", "after-decision")


def _job_half_committed(sink: Sink) -> None:
    sink.run_job("a")
    sink.end(_die_in_job(sink, "b", "after-markers")[:1], commit=True)


STORIES: dict[str, tuple[Callable[[Sink], None], dict[str, str]]] = {
    "checked": (_checked, {}),
    "fence": (_fenced, {}),
    "done": (_done, {}),
    "undone": (_undone, {}),
    "undone-marked": (_marked, {}),
    "undone-half-committed": (_half_committed, {}),
    "undone-all-committed": (_all_committed, {}),
    "undone-torn": (_torn, {}),
    "void": (_void, {}),
    "withheld": (_withheld, {}),
    "job-done": (_jobs_done, {}),
    "job-undone": (_job_undone, {}),
    "job-half-committed": (_job_half_committed, {}),
    "credentials": (_one, {"checkpointLocation": CREDENTIALS}),
    **{
        f"spelt-{number}": (_one, {"checkpointLocation": spelling})
        for number, spelling in enumerate(SPELLINGS)
    },
}
"""What happened to each kept sink, and the options that name it."""


def record_sink(name: str) -> Kept:
    """Let a story happen to a sink on an embedded broker, and return what is left."""
    story, named = STORIES[name]
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC)
        sink = Sink({**_options(**named), "service.url": broker.service_url})
        story(sink)
        return left_by(broker, sink)


def _options(**named: str) -> dict[str, str]:
    return {
        "topic": TOPIC,
        "deliveryGuarantee": "exactly-once",
        "transactionTimeout": "1h",
        **(named or {"sinkId": SINK}),
    }


def left_by(broker: EmbeddedBroker, sink: Sink) -> Kept:
    """Return what a sink has left on an embedded broker."""
    exactly_once = sink.parsed().exactly_once
    assert exactly_once is not None
    state_topic = exactly_once.state_topic
    options = {name: value for name, value in sink.options.items() if name != "service.url"}

    def look(server: Server) -> Kept:
        topic, records = (server.topics.topics[name] for name in (TOPIC, state_topic))
        written, stored = (list(one.log.walk((0, 0))) for one in (topic, records))
        ends = {}
        for entry in written:
            if entry.txn is not None:
                over = "aborted" if topic.transactions.is_aborted(entry) else "committed"
                ends[entry.txn] = "open" if entry.txn in server.coordinator.open else over
        cursor = records.subscriptions[SUBSCRIPTION].cursor
        return Kept(
            options,
            state_topic,
            sorted(ends.items()),
            [{"place": one.place, "txn": one.txn, "values": _values(one)} for one in written],
            [{"txn": one.txn, "record": json.loads(bytes(_payload(one)))} for one in stored],
            sum(cursor.is_acked(one.place) for one in stored),
        )

    return broker._call(look)


def _payload(entry: Entry) -> memoryview:
    return memoryview(parse_payload(memoryview(entry.data)).payload)


def _values(entry: Entry) -> list[str]:
    payload = _payload(entry)
    if not entry.messages:
        return [bytes(payload).decode()]
    batch = unpack_batch(payload, entry.messages)
    return [bytes(value).decode() for value in batch.payloads()]


# --- a query that writes to one -------------------------------------------------------------------

QUERY = "query"
"""The name of its kept sink; its checkpoint is the folder of that name."""
_SOURCE_ROWS = 4


@contextmanager
def source_broker(batches: int) -> Iterator[EmbeddedBroker]:
    """Run a broker with the rows that the query had read after a number of micro-batches."""
    with EmbeddedBroker() as broker:
        # Its ledger has the same id each time.
        broker.create_topic(SOURCE)
        broker.create_topic(TOPIC)
        for batch in range(batches):
            feed(broker, batch)
        yield broker


def feed(broker: EmbeddedBroker, batch: int) -> None:
    """Store the rows of a micro-batch on the topic that the query reads."""
    found = store(broker, SOURCE, [value.encode() for value in source_rows(batch)])
    assert (found.ledger_id, found.entry_id) == (1, batch), "the broker gives ids in another way"


def source_rows(batch: int) -> list[str]:
    """Return the values of a micro-batch of the query."""
    return [f"{batch}-{row}" for row in range(_SOURCE_ROWS)]


def run_query(spark: SparkSession, checkpoint: Path, options: dict[str, str]) -> None:
    """Run the query, with the options of its sink, until it has read everything."""
    url = options["service.url"]
    source = {"service.url": url, "startingOffsets": "earliest", "subscription": QUERY}
    read = spark.readStream.format("pulsar").options(**source).option("topic", SOURCE)
    frame: DataFrame = read.load().select("value")
    writer = frame.writeStream.format("pulsar").options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(240), "the query does not end"
    finally:
        query.stop()


def record_query(folder: Path) -> None:
    """Run the query for three micro-batches; keep its checkpoint and its sink."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    with source_broker(0) as broker, tempfile.TemporaryDirectory() as temporary:
        sink = Sink({**_options(), "service.url": broker.service_url})
        checkpoint = Path(temporary) / "checkpoint"
        for batch in range(3):
            feed(broker, batch)
            run_query(spark.getOrCreate(), checkpoint, sink.options)
        save(left_by(broker, sink), folder / f"{QUERY}.json")
        kept = shutil.ignore_patterns(".*", "state")
        shutil.copytree(checkpoint, folder / QUERY, ignore=kept, dirs_exist_ok=True)


def record(folder: Path) -> None:
    """Record all stories, and the query."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in STORIES:
        save(record_sink(name), folder / f"{name}.json")
    record_query(folder)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
