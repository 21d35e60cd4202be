"""``peek`` shows messages as rows, and leaves no trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, LongType, MapType, StringType

from pulsar_spark.cli import main as cli
from pulsar_spark.cli import peek as module
from pulsar_spark.client import PulsarClient
from pulsar_spark.client.schema import AvroSchema, StringSchema
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.spark.reading.batch_reader import PulsarBatchReader
from pulsar_spark.testing import EmbeddedBroker
from tests.spark.topics import NOW, read, store

Peek = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    # Few entries per ledger: the last messages are in several ledgers.
    with EmbeddedBroker(max_entries_per_ledger=3) as running:
        yield running
        assert running.internal_errors == ()


@pytest.fixture
def peek(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Peek:
    def run(*arguments: str) -> list[dict[str, Any]]:
        assert cli.main(["peek", "--service-url", broker.service_url, "--json", *arguments]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["value"] for row in rows]


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("count", [1, 7, 17, 40, 1000])
def test_the_last_and_the_first_messages(
    size: int, count: int, broker: EmbeddedBroker, peek: Peek
) -> None:
    broker.create_topic("t")
    sent = [b"%d" % number for number in range(40)]
    for number in range(0, 40, size):
        store(broker, "t", sent[number : number + size], publish_time=NOW + number)
    shown = [value.decode() for value in sent]
    assert values(peek("--topic", "t", "--count", str(count))) == shown[-count:]
    assert values(peek("--topic", "t", "--count", str(count), "--first")) == shown[:count]


def test_no_more_of_the_first_messages_are_read_than_are_shown(
    broker: EmbeddedBroker, peek: Peek, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"%d" % number for number in range(1000)])
    read_all, taken = PulsarBatchReader.read, []

    def counted(*arguments: Any) -> Iterator[Any]:
        for batch in read_all(*arguments):
            taken.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(PulsarBatchReader, "read", counted)
    assert len(peek("--topic", "t", "--first", "--count", "7")) == 7
    assert taken == [7]


def test_partitions_are_put_in_order_by_publish_time(broker: EmbeddedBroker, peek: Peek) -> None:
    broker.create_topic("t", partitions=3)
    for number in range(30):
        store(broker, f"t-partition-{number % 3}", [b"%d" % number], publish_time=NOW + number)
    assert values(peek("--topic", "t", "--count", "4")) == ["26", "27", "28", "29"]
    assert values(peek("--topic", "t", "--count", "4", "--first")) == ["0", "1", "2", "3"]
    assert values(peek("--topic", "t-partition-1", "--count", "1")) == ["28"]


def test_a_row_has_all_columns_in_a_form_for_json(broker: EmbeddedBroker, peek: Peek) -> None:
    broker.create_topic("t")
    store(
        broker,
        "t",
        [b"\xff\xfe"],
        batched=False,
        partition_key="k",
        properties=[pb.KeyValue(key="a", value="b")],
    )
    (row,) = peek("--topic", "t")
    assert row == {
        "value": "//4=",
        "__key": "k",
        "__topic": "persistent://public/default/t",
        "__messageId": row["__messageId"],
        "__publishTime": "2027-01-15T08:00:00.000Z",
        "__eventTime": None,
        "__messageProperties": {"a": "b"},
        "_corrupt_record": None,
    }
    # In the form that offsets accept.
    assert MessageIdAdv.parse(row["__messageId"]).entry_id == 0


def test_times_keep_their_digits_and_maps_are_objects(broker: EmbeddedBroker, peek: Peek) -> None:
    fields = """[
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "whole", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "none", "type": ["null", {"type": "map", "values": "long"}]},
        {"name": "nested", "type": {"type": "array", "items": {"type": "record", "name": "i",
            "fields": [{"name": "m", "type": {"type": "map",
                "values": {"type": "map", "values": "bytes"}}}]}}}
    ]"""
    definition = f'{{"type": "record", "name": "r", "fields": {fields}}}'
    schema = AvroSchema(None, schema_definition=definition)
    at = datetime(2026, 11, 20, 10, 0, 0, 123456, timezone.utc)
    value = {
        "at": at,
        "whole": at.replace(microsecond=0),
        "counts": {"a": 1, "b": 2},
        "none": None,
        "nested": [{"m": {"x": {"y": b"z"}, "empty": {}}}],
    }
    with PulsarClient(broker.service_url) as client:
        client.create_producer("t", schema=schema).send(value)
    (row,) = peek("--topic", "t")
    assert {name: row[name] for name in value} == {
        **value,
        "at": "2026-11-20T10:00:00.123456Z",
        "whole": "2026-11-20T10:00:00.000Z",
        "nested": [{"m": {"x": {"y": "z"}, "empty": {}}}],
    }


def test_maps_with_other_keys_than_text_stay_pairs() -> None:
    kind = MapType(IntegerType(), MapType(StringType(), LongType()))
    assert module._objects([(1, [("a", 2)]), (3, None)], kind) == [(1, {"a": 2}), (3, None)]


def test_values_are_decoded_by_the_topics_schema_and_shown_where_they_do_not_decode(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with PulsarClient(broker.service_url) as client:
        client.create_producer("t", schema=StringSchema()).send("ein Büch\x1blein")
    arguments = ["peek", "--service-url", broker.service_url, "--topic", "t"]
    assert cli.main(arguments) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["__publishTime", "__messageId", "__key", "value"]
    # Escape sequences are printed as text.
    assert line.endswith(r"ein Büch\x1blein")
    store(broker, "t", [b"\xff"], publish_time=NOW)
    assert cli.main(arguments) == 0
    assert "_corrupt_record" in capsys.readouterr().out


# --- ranges -----------------------------------------------------------------------------------


@pytest.fixture
def filled(broker: EmbeddedBroker) -> list[MessageIdAdv]:
    """Fill topic t with 40 messages, one a second in batches of 4; returns their ids."""
    broker.create_topic("t")
    ids: list[MessageIdAdv] = []
    for number in range(0, 40, 4):
        sent = [b"%d" % each for each in range(number, number + 4)]
        entry = store(broker, "t", sent, publish_time=NOW + number * 1000)
        ids += [replace(entry, batch_index=index, batch_size=4) for index in range(4)]
    return ids


def offsets(option: str, message_id: MessageIdAdv, topic: str = "t") -> str:
    """Return --option for an offset."""
    return f"--option={option}={json.dumps({topic: str(message_id)})}"


@pytest.mark.parametrize("start, end", [(0, 39), (5, 39), (0, 18), (17, 18), (13, 30), (24, 27)])
def test_offsets_limit_what_is_shown_as_they_limit_a_batch_read(
    start: int, end: int, filled: list[MessageIdAdv], broker: EmbeddedBroker, peek: Peek
) -> None:
    limits = [offsets("startingOffsets", filled[start]), offsets("endingOffsets", filled[end])]
    given = dict(limit.removeprefix("--option=").split("=", 1) for limit in limits)
    expected = [row["value"].decode() for row in read(broker, {"topic": "t", **given})]
    assert expected == [str(number) for number in range(start, end + 1)]
    for count in (1, 2, 7, 39, 100):
        some = ["--topic", "t", "--count", str(count), *limits]
        assert values(peek(*some)) == expected[-count:]
        assert values(peek(*some, "--first")) == expected[:count]


def test_times_limit_what_is_shown(filled: list[MessageIdAdv], peek: Peek) -> None:
    assert filled
    since = f"--option=startingTime={NOW + 12_000}"
    until = f"--option=endingTime={NOW + 28_000}"
    expected = [str(number) for number in range(12, 28)]
    for tolerance in ("0", "5s", "1m"):
        some = ["--topic", "t", since, until, f"--option=publishTimeTolerance={tolerance}"]
        assert values(peek(*some, "--count", "5")) == expected[-5:]
        assert values(peek(*some, "--count", "5", "--first")) == expected[:5]
        assert values(peek(*some, "--count", "50")) == expected
    assert peek("--topic", "t", f"--option=startingTime={NOW + 99_000}") == []


def test_each_partition_has_its_range(broker: EmbeddedBroker, peek: Peek) -> None:
    broker.create_topic("p", partitions=3)
    ids = {}
    for number in range(12):
        topic = f"p-partition-{number % 3}"
        ids[number] = store(broker, topic, [b"%d" % number], publish_time=NOW + number)
    # Only an offset of its own limits a partition; tasks are no matter here.
    limit = offsets("endingOffsets", ids[4], "p-partition-1")
    rows = peek("--topic", "p", limit, "--count", "4", "--option=minPartitions=7")
    assert values(rows) == ["6", "8", "9", "11"]
    rows = peek("--topic", "p", limit, "--count", "9", "--first")
    assert values(rows) == ["0", "1", "2", "3", "4", "5", "6", "8", "9"]


@pytest.mark.parametrize(
    "given, told",
    [
        (['startingOffsets={"other": "earliest"}'], "persistent://public/default/other"),
        (['endingOffsets={"other": "latest"}'], "persistent://public/default/other"),
        (['startingTime={"other": "-1h"}'], "persistent://public/default/other"),
        (["startingOffsets=latest"], "nothing would be read"),
        (["endingOffsets=earliest"], "nothing would be read"),
        (["startingOffsets=earliest", "startingTime=-1h"], "cannot be used together"),
        (["startingTime=-1h", "endingTime=-2h"], "after its end"),
    ],
)
def test_what_a_batch_read_refuses_is_wrong_usage(
    given: list[str],
    told: str,
    filled: list[MessageIdAdv],
    broker: EmbeddedBroker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert filled
    place = ["peek", "--service-url", broker.service_url, "--topic", "t"]
    assert cli.main([*place, *(f"--option={option}" for option in given)]) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.out == ""


def test_an_offset_that_is_gone_is_an_error_as_in_a_read(
    filled: list[MessageIdAdv], broker: EmbeddedBroker, peek: Peek
) -> None:
    broker.trim("t", filled[12])
    start = offsets("startingOffsets", filled[0])
    assert cli.main(["peek", "--service-url", broker.service_url, "--topic", "t", start]) == 1
    left = [str(number) for number in range(12, 40)]
    some = ["--topic", "t", start, "--option=failOnDataLoss=false", "--count"]
    assert values(peek(*some, "40")) == left
    assert values(peek(*some, "2", "--first")) == left[:2]


@pytest.mark.parametrize("end", ["endingOffsets={}", "endingTime=-1h"])
def test_what_has_an_end_is_not_followed(
    end: str,
    filled: list[MessageIdAdv],
    broker: EmbeddedBroker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = ["peek", "--service-url", broker.service_url, "--topic", "t", "--follow"]
    given = end.format(json.dumps({"t": str(filled[3])}))
    assert cli.main([*place, "--option", given]) == 2
    assert "--follow" in capsys.readouterr().err


def test_what_is_followed_has_a_start_too(
    filled: list[MessageIdAdv],
    broker: EmbeddedBroker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert filled
    rounds = iter([(b"early", NOW), (b"late", NOW + 50_000)])

    def wait() -> None:
        came = next(rounds, None)
        if came is None:
            raise KeyboardInterrupt
        store(broker, "t", [came[0]], publish_time=came[1])

    monkeypatch.setattr(module, "wait", wait)
    place = ["peek", "--service-url", broker.service_url, "--topic", "t", "--follow", "--json"]
    limits = ["--option", f"startingTime={NOW + 36_000}", "--option", "endingOffsets=latest"]
    assert cli.main([*place, *limits]) == 130
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert values(found) == ["36", "37", "38", "39", "late"]


# --- all of a topic ---------------------------------------------------------------------------


def test_an_empty_topic_has_no_rows(
    broker: EmbeddedBroker, peek: Peek, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic("t", partitions=2)
    assert peek("--topic", "t") == []
    assert peek("--topic", "t", "--first") == []
    assert cli.main(["peek", "--service-url", broker.service_url, "--topic", "t"]) == 0
    assert capsys.readouterr().out.split() == ["__publishTime", "__messageId", "__key", "value"]


def test_what_comes_is_followed_until_somebody_interrupts(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t", partitions=2)
    store(broker, "t-partition-0", [b"before"])
    rounds = iter([[b"one"], [], [b"two", b"three"]])

    def wait() -> None:
        came = next(rounds, None)
        if came is None:
            raise KeyboardInterrupt
        if came:
            store(broker, "t-partition-1", came)

    monkeypatch.setattr(module, "wait", wait)
    arguments = ["peek", "--service-url", broker.service_url, "--topic", "t", "--follow", "--json"]
    assert cli.main(arguments) == 130
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert values(found) == ["before", "one", "two", "three"]


HOSTILE = "a\x1b[2J\x9bb\r\u202e"


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_no_terminal_obeys_what_a_producer_has_sent(
    form: list[str], broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"t{HOSTILE}"
    broker.create_topic(topic)
    pair = pb.KeyValue(key=HOSTILE, value=HOSTILE)
    body = HOSTILE.encode()
    store(broker, topic, [body], batched=False, partition_key=HOSTILE, properties=[pair])
    place = ["--service-url", broker.service_url, "--topic", topic]
    assert cli.main(["peek", *place, *form]) == 0
    text = capsys.readouterr().out
    assert not set(text) & set(HOSTILE) - set("a[2Jb")
    if form:
        assert json.loads(text)["__messageProperties"] == {HOSTILE: HOSTILE}
    else:
        assert text.count(r"a\x1b[2J\x9bb\r\u202e") == 2


@pytest.mark.parametrize("end", ["--first", "--last"])
def test_more_than_memory_is_to_hold_is_an_error(
    end: str,
    broker: EmbeddedBroker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_BYTES", 100_000)
    broker.create_topic("t", partitions=2)
    for number in range(20):
        store(broker, f"t-partition-{number % 2}", [b"x" * 10_000])
    place = ["peek", "--service-url", broker.service_url, "--topic", "t", end]
    assert cli.main([*place, "--count", "20"]) == 1
    assert "smaller --count" in capsys.readouterr().err
    assert cli.main([*place, "--count", "5", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_many_messages_that_come_at_once_are_followed_piece_by_piece(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_FOLLOWED_BYTES", 1_000)
    broker.create_topic("t")
    sent = [b"%0100d" % number for number in range(50)]
    rounds = iter([sent])

    def wait() -> None:
        came = next(rounds, None)
        if came is None:
            raise KeyboardInterrupt
        store(broker, "t", came)

    monkeypatch.setattr(module, "wait", wait)
    arguments = ["peek", "--service-url", broker.service_url, "--topic", "t", "--follow", "--json"]
    assert cli.main(arguments) == 130
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert values(found) == [value.decode() for value in sent]


@pytest.mark.parametrize(
    "option",
    [
        "maxMessagesPerTrigger=5",
        "subscription=mine",
        "waitingForNonExistedTopic=true",
        "minPartitions=2",
        "partitionsPerTopicPartition=2",
        "pulsar.producer.compressionType=LZ4",
    ],
)
def test_an_option_without_an_effect_is_said_to_have_none(
    option: str, broker: EmbeddedBroker, peek: Peek, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("t")
    assert peek("--topic", "t", "--option", option) == []
    assert f"no effect here and are ignored: {option.partition('=')[0]}" in caplog.text


@pytest.mark.parametrize("command", ["peek", "bench"])
def test_json_without_a_schema_is_no_format_of_a_command(
    command: str, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.create_topic("t")
    place = ["--service-url", broker.service_url, "--topic", "t"]
    assert cli.main([command, *place, "--option", "valueFormat=JSON"]) == 2
    told = capsys.readouterr().err
    assert "Set valueFormat=string" in told
    assert ".schema(" not in told


def test_nothing_is_left_behind(broker: EmbeddedBroker, peek: Peek) -> None:
    broker.create_topic("t")
    store(broker, "t", [b"a"])
    peek("--topic", "t")
    assert broker.subscriptions("t") == {}
    assert broker.faults.seen("ACK") == 0
    assert not any(seen.body.durable for seen in broker.faults.log("SUBSCRIBE"))
