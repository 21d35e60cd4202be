"""Ledgers offloaded from BookKeeper to a file system are read like any other."""

from __future__ import annotations

import json
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from pulsar_spark.client import MessageId, PulsarClient
from pulsar_spark.spark.datasource import PulsarDataSource
from tests.integration.brokers import Real
from tests.integration.spark_io import SparkRow, load, official, rows, send
from tests.support.pulsar_distribution import (
    VERSION,
    BrokerUnavailable,
    cache_folder,
    copy_artifact,
    lock,
)
from tests.support.real_broker import OwnBroker, rest_path
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.real_broker, pytest.mark.timeout(600)]

ENTRIES_PER_LEDGER = 20
ENTRIES = 150
BATCH = 10

# Hadoop's settings, which the offloader takes from a file.
_CORE_SITE = {
    "hadoop.tmp.dir": "pulsar",
    "io.file.buffer.size": "4096",
    "io.seqfile.compress.blocksize": "1000000",
    "io.seqfile.compression.type": "BLOCK",
    "io.map.index.interval": "128",
}


class Offloaded(NamedTuple):
    """A topic whose closed ledgers are only in files, and its messages from before."""

    broker: Real
    topic: str
    rows: list[SparkRow]
    ledgers: set[int]
    """The ledgers that are in files."""


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Real]:
    try:
        offloaders = _offloaders()
    except BrokerUnavailable as error:
        pytest.skip(f"no offloaders: {error}")
    folder = tmp_path_factory.mktemp("offloaded")
    core_site = folder / "core-site.xml"
    core_site.write_text(
        "<configuration>"
        + "".join(
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in _CORE_SITE.items()
        )
        + "</configuration>"
    )
    settings = {
        "managedLedgerMaxEntriesPerLedger": str(ENTRIES_PER_LEDGER),
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "managedLedgerOffloadDriver": "filesystem",
        "offloadersDirectory": str(offloaders),
        "narExtractionDirectory": str(folder / "unpacked"),
        "fileSystemURI": (folder / "data").as_uri(),
        "fileSystemProfilePath": str(core_site),
        # BookKeeper's copy is deleted at once.
        "managedLedgerOffloadDeletionLagMs": "0",
    }
    own = OwnBroker(request.getfixturevalue("_distribution"), settings)
    try:
        own.start()
        yield Real(own)
    finally:
        own.close()


def _offloaders() -> Path:
    """Return the folder of Pulsar's offloaders, fetched once. Raises BrokerUnavailable."""
    folder = cache_folder() / f"pulsar-{VERSION}" / "offloaders"
    with lock(folder.parent, 600.0):
        if not folder.is_dir():
            part = folder.with_suffix(".part")
            part.mkdir(exist_ok=True)
            artifact = f"org.apache.pulsar:pulsar-offloader-distribution:{VERSION}:tar.gz:bin"
            copy_artifact(artifact, part)
            (tarball,) = part.glob("*.tar.gz")
            with tarfile.open(tarball) as archive:
                for member in archive:
                    name = Path(member.name).name
                    if name.startswith("tiered-storage-file-system"):
                        file = archive.extractfile(member)
                        assert file is not None
                        (part / name).write_bytes(file.read())
            tarball.unlink()
            os.rename(part, folder)
    return folder


@pytest.fixture(scope="module")
def offloaded(spark: SparkSession, broker: Real) -> Offloaded:
    topic = broker.create_topic()
    with official(broker) as client:
        for number in range(ENTRIES):
            batched = number % 3 > 0
            payloads = [b"%d.%d" % (number, index) for index in range(BATCH if batched else 1)]
            options = {"batching_enabled": batched, "batching_max_publish_delay_ms": 60_000}
            send(client, topic, payloads, **options)
            # Times do not distinguish entries of one millisecond.
            time.sleep(0.002)
    found = rows(load(spark, broker, topic, {"includeMetadata": True}))
    ledgers = _offload(broker, topic)
    assert len(ledgers) >= ENTRIES // ENTRIES_PER_LEDGER - 1
    # A freshly loaded topic has none of them in its cache.
    broker.unload(topic)
    return Offloaded(broker, topic, found, ledgers)


def _offload(broker: Real, topic: str) -> set[int]:
    """Leave all closed ledgers of a topic only in files; return their ids."""
    path = rest_path(topic)
    last = broker.own.admin("GET", f"{path}/lastMessageId")["ledgerId"]
    before = {"ledgerId": last, "entryId": 0, "partitionIndex": -1}
    broker.own.admin("PUT", f"{path}/offload", before)

    def done() -> bool:
        status = broker.own.admin("GET", f"{path}/offload")
        assert status["status"] != "ERROR", status
        return bool(status["status"] == "SUCCESS")

    wait_until(done, f"{topic} is not offloaded", 120.0)
    stats = broker.own.admin("GET", f"{path}/internalStats")
    ledgers = {ledger["ledgerId"] for ledger in stats["ledgers"] if ledger["offloaded"]}
    broker.own.admin("POST", f"{path}/trim")
    assert isinstance(broker.own, OwnBroker)
    log = broker.own.server.log

    def gone() -> bool:
        # The admin REST does not say which copies exist.
        text = log.read_text("utf-8", "replace")
        return all(f"Deleting offloaded ledger {one} from bookkeeper" in text for one in ledgers)

    wait_until(gone, "BookKeeper's copies are still there")
    return ledgers


def read(offloaded: Offloaded, options: Mapping[str, object]) -> tuple[list[bytes], int]:
    """Return the values and number of tasks of a read, done as Spark does it, in this process."""
    given = {"service.url": offloaded.broker.service_url, "topic": offloaded.topic}
    given |= {name: str(value) for name, value in options.items()}
    source = PulsarDataSource(given)
    reader = source.reader(source.schema())
    partitions = list(reader.partitions())
    values = [
        value
        for partition in partitions
        for batch in reader.read(partition)
        for value in batch.column(0).to_pylist()  # type: ignore[union-attr]
    ]
    return values, len(partitions)


def values(found: list[SparkRow]) -> list[bytes | None]:
    return [row.value for row in found]


def text_id(row: SparkRow) -> str:
    return f"{row.ledger_id}:{row.entry_id}:-1:{row.batch_index}".removesuffix(":-1:-1")


def test_spark_reads_from_files_what_it_read_from_bookkeeper(
    spark: SparkSession, offloaded: Offloaded
) -> None:
    frame = load(spark, offloaded.broker, offloaded.topic, {"includeMetadata": True})
    assert rows(frame) == offloaded.rows
    assert isinstance(offloaded.broker.own, OwnBroker)
    log = offloaded.broker.own.server.log.read_text("utf-8", "replace")
    assert all(f"Opening ledger {one} from offload driver" in log for one in offloaded.ledgers)


def test_ranges_begin_and_end_inside_what_was_offloaded(offloaded: Offloaded) -> None:
    found = offloaded.rows
    for first, last in ((0, 1), (7, 33), (len(found) // 2, len(found) - 3)):
        assert {found[first].ledger_id, found[last].ledger_id} & offloaded.ledgers
        options = {
            "startingOffsets": json.dumps({offloaded.topic: text_id(found[first])}),
            "endingOffsets": json.dumps({offloaded.topic: text_id(found[last])}),
        }
        assert read(offloaded, options)[0] == values(found[first : last + 1])


def test_a_partition_in_files_is_read_by_several_tasks(offloaded: Offloaded) -> None:
    found, tasks = read(offloaded, {"minPartitions": 4})
    assert found == values(offloaded.rows)
    assert tasks >= 4


def test_what_was_offloaded_is_found_by_time(offloaded: Offloaded) -> None:
    found = offloaded.rows
    first = next(row for row in found if row.entry_id == 7 and row.ledger_id in offloaded.ledgers)
    later = [row for row in found if row.publish_time >= first.publish_time]
    assert 0 < len(later) < len(found)
    options = {"startingTime": first.publish_time}
    assert read(offloaded, options)[0] == values(later)
    with (
        PulsarClient(offloaded.broker.service_url) as client,
        client.create_reader(offloaded.topic, MessageId.earliest) as reader,
    ):
        reader.seek(first.publish_time)
        assert reader.read_next(timeout_millis=60_000).data() == first.value


def test_the_client_reads_seeks_and_acknowledges_in_files(offloaded: Offloaded) -> None:
    found = offloaded.rows
    middle, behind = found[len(found) // 2 :][:2]
    with PulsarClient(offloaded.broker.service_url) as client:
        with client.create_reader(offloaded.topic, MessageId.earliest) as reader:
            read_by_client = []
            while reader.has_message_available():
                read_by_client.append(reader.read_next(timeout_millis=60_000))
            assert [message.data() for message in read_by_client] == values(found)
            assert [m.message_id().serialize() for m in read_by_client] == [
                row.message_id for row in found
            ]
            reader.seek(MessageId.deserialize(middle.message_id))
            assert reader.read_next(timeout_millis=60_000).data() in (middle.value, behind.value)
        consumer = client.subscribe(offloaded.topic, "mine")
        consumer.seek(MessageId.earliest)
        for row in found[:50]:
            message = consumer.receive(60_000)
            assert message.data() == row.value
            consumer.acknowledge(message)
        consumer.close()
        again = client.subscribe(offloaded.topic, "mine")
        assert again.receive(60_000).data() in values(found[40:51])
        again.unsubscribe()
