"""The examples of the guides in docs/ run unchanged, except for addresses and folders.

A page's blocks run in order, in one namespace, so that they can be copied in order, too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pulsar_spark import PulsarClient
from pulsar_spark.cli.main import parser
from pulsar_spark.client import MessageId
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import SchemaInfo, join_key_value
from pulsar_spark.spark.compat import passes_read_limits
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.pages import DOCS, OUTPUT, here, keep_output, outputs
from tests.spark.topics import set_schema, store_many
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Names = dict[str, Any]

SECONDS = 480
FRAGMENT = "<!-- fragment -->"
ELSEWHERE = {
    "connecting.md": "tests/spark/test_connecting_page.py",
    "lakehouse.md": "tests/integration/test_lakehouse.py",
    "pulsar-client-programs.md": "tests/client/test_python_client_page.py",
    "python-client.md": "tests/client/test_python_client_page.py",
    "rotation.md": "tests/integration/test_rotation_page.py",
    "sql.md": "tests/integration/test_sql_page.py",
    "streaming.md": "tests/integration/test_streaming_page.py",
}
"""Pages whose examples have tests of their own."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code on a page."""

    page: str
    language: str
    code: str
    title: str
    mark: str
    line: int

    @property
    def fragment(self) -> bool:
        """Whether it cannot run alone."""
        return self.mark == FRAGMENT

    @property
    def prints(self) -> bool:
        """Whether it shows something, so that the page says what."""
        return bool(re.search(r"^[\w.]*print\w*\(|\.(show|printSchema)\(", self.code, re.MULTILINE))


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).read_text("utf-8")
    found = re.finditer(
        rf"^(?:({FRAGMENT}|{OUTPUT})\n)?```(\w*)(?: title=\"(.*?)\")?\n(.*?)^```$",
        text,
        re.MULTILINE | re.DOTALL,
    )
    return [
        Block(
            page,
            block[2],
            block[4],
            block[3] or "",
            block[1] or "",
            text.count("\n", 0, block.start(4)) + 1,
        )
        for block in found
    ]


ALL = [block for path in sorted(DOCS.glob("*.md")) for block in blocks(path.name)]


@pytest.fixture
def own() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(deduplication=True) as running:
        running.create_topic("my-topic")
        yield running
        assert running.internal_errors == ()


def run(
    page: str, spark: SparkSession | None, own: EmbeddedBroker, folder: Path, **names: Any
) -> Names:
    """Run the examples of a page; returns the names that they defined."""
    found: Names = {"spark": spark, "__name__": "guide", **names}
    shown = 0
    all_blocks = blocks(page)
    for number, block in enumerate(all_blocks):
        if block.fragment or block.language not in ("python", "sql"):
            continue
        code = here(block.code, own.service_url, folder)
        if block.title.startswith("test_"):
            run_as_a_file(block, folder)
        elif block.title:
            (folder / block.title).write_text(code)
        elif block.language == "sql":
            for statement in filter(str.strip, code.split(";\n")):
                found["spark"].sql(statement).collect()
        else:
            # Errors name the line of the page.
            padded = "\n" * (block.line - 1) + code
            with contextlib.redirect_stdout(io.StringIO()) as said:
                exec(compile(padded, str(DOCS / page), "exec"), found)
            if number + 1 < len(all_blocks) and all_blocks[number + 1].mark == OUTPUT:
                keep_output(DOCS / page, shown, said.getvalue())
                shown += 1
    assert shown == len(outputs(DOCS / page))
    return found


def run_as_a_file(block: Block, folder: Path) -> None:
    """Run an example that is a file of tests."""
    (folder / block.title).write_text(block.code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", block.title],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def stored(spark: SparkSession, service_url: str, topic: str) -> list[Any]:
    """Return the rows of a topic."""
    return spark.read.format("pulsar").option("service.url", service_url).load(topic).collect()


# --- one check for each page ------------------------------------------------------------------


def check_getting_started(
    spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path
) -> None:
    with names["broker"] as broker:
        rows = stored(spark, broker.service_url, "first-orders-copy")
    assert sorted(row["value"] for row in rows) == ["a book", "a lamp", "a pen"]


def check_home(spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path) -> None:
    assert names["read"].count() == 2


def check_reading(spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path) -> None:
    values = [row["value"] for row in names["ten"].collect()]
    assert values == [f"order {number}" for number in range(10, 20)]
    counts = {"orders": 100, "both": 200, "matching": 200, "last_hour": 100, "mixed": 200}
    assert {name: names[name].count() for name in counts} == counts
    assert names["one_day"].count() == 0
    assert names["slim"].columns == ["value", "__publishTime"]
    assert (
        names["split"].count() == names["at_least"].count() // 2 == names["latest"].count() == 100
    )


def check_writing(spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path) -> None:
    def count(topic: str) -> int:
        return len(stored(spark, own.service_url, topic))

    assert [count(topic) for topic in ("small-orders", "large-orders", "reminders")] == [
        10,
        90,
        100,
    ]
    assert count("orders-replayed") == count("orders") == 200


def check_deploying(spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path) -> None:
    assert names["spark"] is spark


def prepare_migrating(spark: SparkSession, own: EmbeddedBroker, folder: Path) -> None:
    own.create_topic("orders", 3)
    for partition in range(2):
        store_many(own, f"orders-partition-{partition}", 20)
    last: dict[str, list[int]] = {}
    rows = (
        spark.read.format("pulsar")
        .option("service.url", own.service_url)
        .option("includeMetadata", "true")
        .load("orders")
    )
    for row in rows.orderBy("__ledgerId", "__entryId", "__batchIndex").collect():
        # The first partition was read up to the middle of a batch, the second to a batch's end.
        if row["__entryId"] == 0 and (row["__partition"] == 1 or row["__batchIndex"] <= 6):
            signed = [byte - 256 if byte > 127 else byte for byte in bytes(row["__messageId"])]
            last[row["__topic"]] = signed
    # A partition that the old query has not seen.
    store_many(own, "orders-partition-2", 5)
    for name, lines in {
        "commits/3": ["v1", "{}"],
        "offsets/3": ["v1", "{}", json.dumps(last)],
        "offsets/4": ["v1", "{}", "{}"],
    }.items():
        path = folder / "old-checkpoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))


def check_migrating(spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path) -> None:
    values = [
        bytes(row["value"]).decode() for row in spark.read.parquet(f"{folder}/orders").collect()
    ]
    first = [f"orders-partition-0:{number}" for number in range(7, 20)]
    second = [f"orders-partition-1:{number}" for number in range(10, 20)]
    third = [f"orders-partition-2:{number}" for number in range(5)]
    assert sorted(values) == sorted(first + second + third)
    assert names["orders"].count() == 45
    starts = names["starting_offsets"]
    latest = MessageId.latest.serialize()
    for number in (9, 10):
        (folder / "old-checkpoint" / "commits" / str(number)).write_text("v1\n{}")
        offsets = folder / "old-checkpoint" / "offsets" / str(number)
        offsets.write_text("v1\n{}\n" + json.dumps({"refunds": list(latest)}))
    found = json.loads(starts(folder / "old-checkpoint", "returns"))
    assert found == {"returns": "earliest", "refunds": "latest"}
    (folder / "never-ran" / "commits").mkdir(parents=True)
    with pytest.raises(ValueError, match="startingOffsets of the old query"):
        starts(folder / "never-ran")


def prepare_delivery(spark: SparkSession, own: EmbeddedBroker, folder: Path) -> None:
    own.create_topic("orders")
    store_many(own, "orders", 20)


def check_delivery(spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path) -> None:
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    assert len(stored(spark, own.service_url, "orders-once")) == 20
    # A run that comes again is skipped, and a micro-batch is one.
    names["save"](names["day"], "2026-01-31")
    assert len(stored(spark, own.service_url, "orders-daily")) == 1000
    for number in range(2):
        # A checkpoint that is gone: its micro-batch 0 comes again, with the same rows.
        batches = names["in_batches"].option("checkpointLocation", str(folder / f"{number}"))
        query = batches.trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS)
        assert len(stored(spark, own.service_url, "orders-daily")) == 1020


def prepare_monitoring(spark: SparkSession, own: EmbeddedBroker, folder: Path) -> None:
    own.create_topic("orders")
    store_many(own, "orders", 120)


def check_monitoring(spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path) -> None:
    from prometheus_client import generate_latest

    def exported() -> str:
        return str(generate_latest().decode())

    try:
        if passes_read_limits():
            wait_until(
                lambda: 'pulsar_spark_rows_total{query="orders_to_lake"} 120.0' in exported(),
                "the listener does not count the rows",
            )
            lag_of = 'pulsar_spark_lag_messages{query="orders_to_lake",topic="orders"} 0.0'
            wait_until(lambda: lag_of in exported(), "the lag does not go to zero")
    finally:
        spark.streams.removeListener(names["listener"])
        names["server"].shutdown()
        names["server"].server_close()
        names["thread"].join(60)
    known = set(re.findall(r"# TYPE (\w+)", exported()))
    rules = next(block.code for block in blocks("monitoring.md") if block.language == "yaml")
    dashboard = (DOCS / "monitoring" / "grafana-dashboard.json").read_text("utf-8")
    asked = {
        name
        for panel in json.loads(dashboard)["panels"]
        for target in panel["targets"]
        for name in re.findall(r"pulsar_spark_\w+", target["expr"])
    } | set(re.findall(r"pulsar_spark_\w+", rules.partition("rules:")[2]))
    assert len(asked) > 5
    assert asked <= known


def prepare_cookbook(spark: SparkSession, own: EmbeddedBroker, folder: Path) -> None:
    key = SchemaInfo(pb.Schema.Json, "", _record("Key", {"id": "long"}))
    row = _record("Row", {"email": "string"})
    envelope = {"before": ["null", json.loads(row)], "after": ["null", "Row"], "op": "string"}
    value = SchemaInfo(pb.Schema.Json, "", _record("Envelope", envelope))
    topic = "dbserver.inventory.customers"
    own.create_topic(topic)
    set_schema(own, topic, join_key_value(key, value, separated=True))
    frame = spark.sql("""
        SELECT struct(1L AS id) AS __key, CAST(null AS struct<email:string>) AS before,
               struct('ann@example.com' AS email) AS after, 'c' AS op
        UNION ALL
        SELECT struct(2L AS id), struct('bob@example.com' AS email), null, 'd'
    """)
    writer = frame.write.format("pulsar").option("service.url", own.service_url)
    writer.mode("append").save(topic)


def _record(name: str, fields: Mapping[str, Any]) -> bytes:
    described = [{"name": field, "type": kind} for field, kind in fields.items()]
    return json.dumps({"type": "record", "name": name, "fields": described}).encode()


def check_cookbook(spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path) -> None:
    def count(topic: str) -> int:
        return len(stored(spark, own.service_url, topic))

    assert spark.read.parquet(f"{folder}/backfill").count() == 200
    assert (count("credits"), count("debits")) == (10, 190)
    assert spark.read.parquet(f"{folder}/shop-orders").count() == 200
    (bad,) = stored(spark, own.service_url, "shop-orders-dead-letter")
    assert bytes(bad["value"]) == b"\xff not Avro"
    assert bad["__messageProperties"]["source"] == "legacy"
    assert set(bad["__messageProperties"]) == {"source", "from", "id"}
    changed = {row["id"]: (row["op"], row["email"]) for row in names["rows"].collect()}
    assert changed == {1: ("c", "ann@example.com"), 2: ("d", None)}
    assert count("shop-orders-once") == 200


def prepare_encryption(spark: SparkSession, own: EmbeddedBroker, folder: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    (folder / "orders.private.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    (folder / "orders.public.pem").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def check_encryption(spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path) -> None:
    # Two tasks write at once.
    assert names["first"].startswith(b"order ")
    assert names["decrypted"].count() == 11


def check_effectively_once(
    spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path
) -> None:
    run("effectively-once.md", spark, own, folder)
    assert len(stored(spark, own.service_url, "orders")) == 100


def check_sizing(spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path) -> None:
    """The sentence under the example says what the example prints."""
    prose = " ".join((DOCS / "sizing.md").read_text("utf-8").split())
    stream, backfill = names["stream"], round(names["backfill"])
    assert f"the stream needs {stream:.2f} of a core" in prose
    assert f"A backfill of 30 days takes {backfill} core hours, {backfill / 16:.1f} hours" in prose
    assert f"at 0.05 per core hour that is {backfill * 0.05:.2f} of your currency" in prose


def check_schemas(spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path) -> None:
    assert names["bad"].count() == 0
    assert sorted(float(row["price"]) for row in names["events"].collect()) == [
        each * 1.5 for each in range(20)
    ]
    rows = stored(spark, own.service_url, "orders")
    assert sorted(row["currency"] or "" for row in rows) == [""] * 20 + ["CHF"] * 20
    assert len(stored(spark, own.service_url, "expensive-orders")) == 13


def check_windows(spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path) -> None:
    counted = spark.read.parquet(f"{folder}/counts").collect()
    assert sorted(row["count"] for row in counted) == [10, 10]
    assert names["unique"].isStreaming


def check_scheduled_jobs(
    spark: SparkSession, own: EmbeddedBroker, names: Names, folder: Path
) -> None:
    scripts = [block for block in blocks("scheduled-jobs.md") if block.language == "sh"]
    for block in scripts:
        hour = f"{datetime.now(timezone.utc) - timedelta(minutes=30):%Y-%m-%dT%H:%M:%S+00:00}"
        code = here(block.code, own.service_url, folder)
        (folder / block.title).write_text(code.replace("2026-11-20T10:00:00+00:00", hour))

    def run_script(name: str) -> int:
        # As cron does: a variable of this process is not there unless the crontab sets it.
        path = cron_path.replace("/opt/jobs/venv/bin", str(Path(sys.executable).parent))
        kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
        done = subprocess.run(
            ["sh", folder / name],
            cwd=folder,
            env={
                **kept,
                "PATH": path,
                "PYTHONPATH": str(DOCS.parent),
                "SPARK_CONF_DIR": str(folder),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        # spark-submit prints what the job says on stderr to its stdout.
        said.append(done.stdout[-4000:] + done.stderr[-1000:])
        return done.returncode

    said: list[str] = []
    page = (DOCS / "scheduled-jobs.md").read_text("utf-8")
    (cron_path,) = re.findall(r"^PATH=(.*)$", page, re.MULTILINE)
    (folder / "spark-defaults.conf").write_text(
        "spark.ui.enabled false\n"
        "spark.sql.codegen.wholeStage false\n"
        "spark.sql.codegen.factoryMode NO_CODEGEN\n"
    )
    own.create_topic("orders")
    for stored_now, rows in ((20, 20), (10, 30)):
        store_many(own, "orders", stored_now)
        assert run_script("hourly.sh") == 0, said[-1]
        assert spark.read.parquet(f"{folder}/orders").count() == rows
    # Published within the hour; what was stored above has other times.
    with PulsarClient(own.service_url) as client:
        producer = client.create_producer("orders")
        for number in range(5):
            producer.send(b"%d" % number)
    for _ in range(2):
        assert run_script("hour.sh") == 0, said[-1]
        values = [row["value"] for row in stored(spark, own.service_url, "orders-by-hour")]
        assert sorted(map(bytes, values)) == [b"0", b"1", b"2", b"3", b"4"]
    job = (folder / "hourly.py").read_text()
    (folder / "hourly.py").write_text(job.replace('load("orders")', 'load("no-such-topic")'))
    assert run_script("hourly.sh") != 0
    assert "no-such-topic" in said[-1]


Prepare = Callable[["SparkSession", EmbeddedBroker, Path], None]
Check = Callable[["SparkSession", EmbeddedBroker, Names, Path], None]
PREPARED: dict[str, Prepare] = {
    "cookbook.md": prepare_cookbook,
    "delivery.md": prepare_delivery,
    "encryption.md": prepare_encryption,
    "migrating.md": prepare_migrating,
    "monitoring.md": prepare_monitoring,
}
GUIDES: dict[str, Check] = {
    "index.md": check_home,
    "getting-started.md": check_getting_started,
    "writing.md": check_writing,
}
SLOW_GUIDES: dict[str, Check] = {
    "cookbook.md": check_cookbook,
    "delivery.md": check_delivery,
    "deploying.md": check_deploying,
    "effectively-once.md": check_effectively_once,
    "encryption.md": check_encryption,
    "migrating.md": check_migrating,
    "monitoring.md": check_monitoring,
    "reading.md": check_reading,
    "scheduled-jobs.md": check_scheduled_jobs,
    "schemas.md": check_schemas,
    "sizing.md": check_sizing,
    "windows.md": check_windows,
}


@pytest.mark.parametrize(
    "page,check",
    [
        *GUIDES.items(),
        *(
            pytest.param(*item, marks=[pytest.mark.slow, pytest.mark.timeout(2 * SECONDS)])
            for item in SLOW_GUIDES.items()
        ),
    ],
)
def test_the_examples_of_a_guide(
    page: str, check: Check, spark: SparkSession, own: EmbeddedBroker, tmp_path: Path
) -> None:
    if page in PREPARED:
        PREPARED[page](spark, own, tmp_path)
    check(spark, own, run(page, spark, own, tmp_path), tmp_path)


# --- all blocks -------------------------------------------------------------------------------


def test_every_example_is_run_but_for_few_fragments() -> None:
    runnable = [block for block in ALL if block.language in ("python", "sql")]
    tested = {*GUIDES, *SLOW_GUIDES, *ELSEWHERE}
    assert {block.page for block in runnable if not block.fragment} <= tested
    fragments = [block for block in ALL if block.fragment]
    assert len(fragments) <= len(runnable) / 10


def test_each_example_that_prints_is_followed_by_what_it_prints() -> None:
    followed = pairwise(ALL)
    pages = {*GUIDES, *SLOW_GUIDES}
    silent = [
        f"{block.page}:{block.line}"
        for block, after in followed
        if block.page in pages and block.language == "python" and not block.title
        if block.prints != (after.mark == OUTPUT and after.page == block.page)
    ]
    assert silent == []


@pytest.mark.parametrize("block", ALL, ids=lambda block: f"{block.page}:{block.line}")
def test_a_block_can_be_read(block: Block) -> None:
    if block.language == "json":
        json.loads(block.code)
    elif block.language == "yaml":
        list(yaml.safe_load_all(block.code))
    elif block.language == "python":
        compile(block.code, block.page, "exec")


def test_commands_and_targets_that_are_named_exist() -> None:
    text = "\n".join(path.read_text("utf-8") for path in sorted(DOCS.glob("*.md")))
    makefile = (DOCS.parent / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets
    named = set(re.findall(r"python -m pulsar_spark ([a-z]+)", text))
    assert named
    for command in named:
        with pytest.raises(SystemExit) as ended:
            parser().parse_args([command, "--help"])
        assert ended.value.code == 0, command


def test_files_that_the_walk_throughs_name_exist() -> None:
    text = (DOCS / "extending.md").read_text("utf-8")
    named = re.findall(r"`((?:pulsar_spark|tests|tools|proto)/[\w/.]+)`", text)
    assert len(named) > 20
    assert [name for name in named if not (DOCS.parent / name).exists()] == []


# --- twenty questions -------------------------------------------------------------------------

ANSWERS = {
    "getting-started.md#install": "pip install .",
    "reading.md#only-a-part-offsets-and-times": "`startingTime` up to, and not",
    "columns.md#on-every-read": "`__publishTime`",
    "schemas.md#schema-evolution": "decoded with the version it was written with",
    "schemas.md#topics-without-a-schema": 'valueFormat="json"',
    "schemas.md#values-that-cannot-be-decoded": "PERMISSIVE",
    "delivery.md#exactly-once": "transaction of its own",
    "scheduled-jobs.md#the-job": "availableNow",
    "streaming.md#caps": "`maxMessagesPerTrigger`",
    "windows.md#a-window-with-a-watermark": "withWatermark",
    "monitoring.md#lag-to-prometheus": "StreamingQueryListener",
    "streaming.md#subscriptions": "unsubscribe",
    "streaming.md#data-loss": "`failOnDataLoss=true`",
    "connecting.md#a-token-as-managed-clusters-give-it": "token:",
    "rotation.md#tokens": "file:///etc/pulsar/token",
    "connecting.md#keeping-secrets-out-of-sparks-ui-and-event-log": "redaction",
    "migrating.md#start-where-the-old-query-stopped": "startingOffsets",
    "cookbook.md#bad-rows-to-a-dead-letter-topic": "PERMISSIVE",
    "sizing.md#a-worked-example": "core hours",
    "cookbook.md#tests-with-embeddedbroker-and-faults": "broker.faults",
}
"""Section that answers a question → the answer's key phrase."""


def section(page: str, anchor: str) -> str:
    """Return the text of a section, subsections included."""
    lines = (DOCS / page).read_text("utf-8").splitlines()
    fenced = False
    found: list[str] = []
    level = 0
    for line in lines:
        fenced ^= line.startswith("```")
        heading = None if fenced else re.match(r"(#+) (.*)", line)
        if heading and level and len(heading[1]) <= level:
            break
        if heading and not level:
            words = re.sub(r"[^\w\- ]", "", heading[2].lower())
            if re.sub(r" ", "-", words) == anchor:
                level = len(heading[1])
        elif level:
            found.append(line)
    return "\n".join(found)


def test_twenty_questions_are_answered_where_the_page_says() -> None:
    text = (DOCS / "questions.md").read_text("utf-8")
    asked = re.findall(r"^\d+\. \[.*\?\]\((.*)\)$", text, re.MULTILINE)
    assert asked == list(ANSWERS)
    assert len(asked) == 20
    for target, phrase in ANSWERS.items():
        page, _, anchor = target.partition("#")
        assert phrase in section(page, anchor), target
