"""Registered formats: names, default options, and what overrides the defaults."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, IntegerType, StructType

import pulsar_spark
from pulsar_spark.errors import OptionError, PulsarError, UnsupportedFeature
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.formats import named_format
from pulsar_spark.spark.options.resolve import over_defaults
from pulsar_spark.spark.options.table import Scope
from pulsar_spark.testing import EmbeddedBroker

SECRET = "canary-7b1f"
DEFAULTS = {
    "service.url": "pulsar://h:6650",
    "topic": "orders",
    "startingOffsets": "earliest",
    "pulsar.client.authPluginClassName": "token",
    "pulsar.client.authParams": f"token:{SECRET}",
}


class Hidden:
    """A value of no type that an option has, which shows a secret."""

    def __repr__(self) -> str:
        return SECRET


class Session:
    """A stand-in for a Spark session, which registers data sources."""

    def __init__(self) -> None:
        self.registered: list[type[PulsarDataSource]] = []

    @property
    def dataSource(self) -> Session:
        return self

    def register(self, source: type[PulsarDataSource]) -> None:
        self.registered.append(source)


def registered(**arguments: Any) -> type[PulsarDataSource]:
    session = Session()
    pulsar_spark.register(session, **arguments)  # type: ignore[arg-type]
    (source,) = session.registered
    return source


def test_without_more_it_is_the_data_source_itself() -> None:
    assert registered() is PulsarDataSource
    assert registered(name="pulsar", options={}) is PulsarDataSource


def test_a_format_has_its_name_and_defaults_for_its_options() -> None:
    source = registered(name="orders", options=DEFAULTS)
    assert source.name() == "orders"
    assert PulsarDataSource.name() == "pulsar"
    assert source({})._all_options() == DEFAULTS
    assert source({"mode": "PERMISSIVE"})._all_options() == {**DEFAULTS, "mode": "PERMISSIVE"}
    assert PulsarDataSource({"topic": "t"})._all_options() == {"topic": "t"}


def test_values_may_be_numbers_and_truth_values() -> None:
    source = registered(options={"failOnDataLoss": False, "maxMessagesPerTrigger": 5})
    assert source.name() == "pulsar"
    assert source({})._all_options() == {"failOnDataLoss": "false", "maxMessagesPerTrigger": "5"}


@pytest.mark.parametrize(
    "given, left_out",
    [
        ({"TOPIC": "refunds"}, {"topic"}),
        ({"topics": "a,b"}, {"topic"}),
        ({"topicspattern": "a.*"}, {"topic"}),
        ({"path": "refunds"}, {"topic"}),
        ({"serviceUrl": "pulsar://other"}, {"service.url"}),
        ({"startingTime": "-1h"}, {"startingOffsets"}),
        ({"endingTime": "-1h"}, set()),
        ({"pulsar.client.authparams": "token:x"}, {"pulsar.client.authParams"}),
    ],
)
def test_what_a_read_says_itself_wins(given: dict[str, str], left_out: set[str]) -> None:
    left = {name: value for name, value in DEFAULTS.items() if name not in left_out}
    assert over_defaults(given, DEFAULTS) == {**left, **given}


AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})


@pytest.mark.parametrize(
    "defaults, given, scope, left",
    [
        (
            {"deliveryGuarantee": "exactly-once", "sinkId": "x", "sinkStateTopic": "s"},
            {"deliveryguarantee": "At-least-once"},
            Scope.WRITE,
            {},
        ),
        (
            {"sinkrepeats": "first", "sinkRunId": "r"},
            {"deliveryGuarantee": "none"},
            Scope.WRITE,
            {},
        ),
        ({"sinkId": "x"}, {"deliveryGuarantee": "exactly-once"}, Scope.WRITE, {"sinkId": "x"}),
        (
            {"pulsar.producer.producerName": "n"},
            {"deliveryGuarantee": "exactly-once"},
            Scope.STREAM_WRITE,
            {},
        ),
        (
            {"pulsar.producer.chunkingEnabled": "true", "pulsar.producer.batchingEnabled": "false"},
            {"pulsar.producer.batchingEnabled": "TRUE"},
            Scope.WRITE,
            {},
        ),
        ({"valueFormat": "avro", "valueSchema": AVRO}, {"valueFormat": "raw"}, Scope.READ, {}),
        (
            {"valueFormat": "protobuf", "valueSchema": "x", "valueMessage": "y"},
            {"valueFormat": "avro"},
            Scope.STREAM_READ,
            {"valueSchema": "x"},
        ),
        (
            {"valueFormat": "avro", "valueSchema": AVRO},
            {},
            Scope.WRITE,
            {"valueFormat": "avro"},
        ),
        ({"valueFormat": "protobuf", "valueSchema": "x", "valueMessage": "y"}, {}, Scope.WRITE, {}),
        ({"topics": "a,b", "startingTime": "-1h"}, {}, Scope.WRITE, {}),
        ({"topicsPattern": "a.*"}, {}, Scope.STREAM_WRITE, {}),
        ({"endingTime": "-1h", "topic": "t"}, {}, Scope.STREAM_READ, {"topic": "t"}),
        ({"sinkRunId": "r"}, {}, Scope.STREAM_WRITE, {}),
        ({"sinkId": "x", "maxMessagesPerTrigger": "5"}, {}, Scope.READ, {}),
        ({"endingTime": "-1h"}, {}, Scope.READS, {"endingTime": "-1h"}),
        ({"schema.name": "R"}, {"valueFormat": "raw"}, Scope.WRITE, {}),
        ({"transactionTimeout": "5m"}, {"deliveryGuarantee": "none"}, Scope.WRITE, {}),
        # What cannot be parsed is told later.
        ({"sinkId": "x"}, {"deliveryGuarantee": "twice"}, Scope.WRITE, {"sinkId": "x"}),
    ],
)
def test_defaults_that_a_query_cannot_use_are_left_out(
    defaults: dict[str, str], given: dict[str, str], scope: Scope, left: dict[str, str]
) -> None:
    assert over_defaults(given, defaults, scope) == {**left, **given}


def write(defaults: dict[str, str], given: dict[str, str], broker: EmbeddedBroker) -> None:
    source = registered(name="orders", options={"service.url": broker.service_url, **defaults})
    source(given).writer(StructType().add("a", IntegerType()), overwrite=False)


def test_a_format_for_reading_is_written_to(broker: EmbeddedBroker) -> None:
    write({"topic": "a", "valueFormat": "avro", "valueSchema": AVRO}, {}, broker)
    message = {"valueFormat": "protobuf", "valueSchema": "x", "valueMessage": "y"}
    write({"topic": "b", **message}, {"valueFormat": "json"}, broker)
    registered(
        name="orders", options={"service.url": broker.service_url, "topics": "c,d", **message}
    )({}).writer(StructType().add("value", BinaryType()).add("__topic", "string"), overwrite=False)


def test_defaults_of_another_kind_of_query_are_no_matter_for_a_warning(
    caplog: pytest.LogCaptureFixture, broker: EmbeddedBroker
) -> None:
    given = {"topic": "t", "valueFormat": "string", "startingTime": "-1h", "keyEncoding": "auto"}
    source = registered(name="orders", options={"service.url": broker.service_url, **given})
    source({}).schema()
    source({}).writer(StructType().add("value", "string"), overwrite=False)
    assert not caplog.records


@pytest.mark.parametrize(
    "defaults, given, told",
    [
        (
            {"pulsar.producer.chunkingenabled": "true"},
            {},
            "pulsar.producer.chunkingEnabled was set when the format was registered.",
        ),
        ({"sinkId": "x"}, {}, "or leave it out. sinkId was set when the format was registered."),
        ({}, {"sinkId": "x"}, "or leave it out."),
        (
            {"sinkId": "x"},
            {"sinkid": "y"},
            "or leave it out.",
        ),
    ],
)
def test_an_error_says_if_the_option_is_a_default(
    defaults: dict[str, str], given: dict[str, str], told: str, broker: EmbeddedBroker
) -> None:
    with pytest.raises(OptionError) as caught:
        write({"topic": "t", **defaults}, given, broker)
    assert str(caught.value).endswith(told)


def test_a_stream_says_so_too() -> None:
    limits = {"minMessagesPerTrigger": "9"}
    source = registered(name="orders", options={**DEFAULTS, **limits})
    reader = source({"maxMessagesPerTrigger": "5"}).streamReader(StructType())
    with pytest.raises(OptionError, match="minMessagesPerTrigger was set when the format"):
        reader.initialOffset()


def test_class_and_instances_reach_other_processes() -> None:
    source = registered(name="orders", options=DEFAULTS)
    pickler: Any = cloudpickle
    pickled = pickler.dumps((source, source({"mode": "PERMISSIVE"})))
    kind, one = pickle.loads(pickled)
    assert kind.name() == "orders"
    assert one._all_options() == {**DEFAULTS, "mode": "PERMISSIVE"}


@pytest.mark.fault(96)
def test_no_repr_and_no_error_shows_a_default_that_is_secret() -> None:
    source = registered(name="orders", options=DEFAULTS)
    shown = [repr(source), repr(vars(source)), repr(source.defaults), repr(source({}))]
    shown.append(repr(vars(source({}))))
    for options in ({"mode": "WRONG"}, {"endingOffsets": "WRONG"}, {"service.url": "nowhere"}):
        with pytest.raises(PulsarError) as caught:
            source(options).schema()
        shown.append(str(caught.value))
    assert SECRET not in "".join(shown)


@pytest.mark.fault(99)
def test_options_that_cannot_be_are_told_when_the_format_is_registered() -> None:
    with pytest.raises(OptionError, match="Did you mean 'startingOffsets'"):
        registered(name="orders", options={"startingOffset": SECRET})
    with pytest.raises(OptionError, match="pollTimeout"):
        registered(name="orders", options={"pollTimeout": "soon"})
    with pytest.raises(UnsupportedFeature, match="cryptoFailureAction"):
        registered(name="orders", options={"pulsar.producer.cryptoFailureAction": "SEND"})


def test_none_is_left_out_as_sparks_own_options_do() -> None:
    source = registered(name="orders", options={"topic": None, "topics": "a,b"})
    assert source({})._all_options() == {"topics": "a,b"}


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "options, what, remedy",
    [
        ({"topics": ["a", "b"]}, "topics cannot be of type list", "names separated by commas"),
        ({"topics": ("a",)}, "topics cannot be of type tuple", "names separated by commas"),
        (
            {"startingOffsets": {"t": "earliest"}},
            "startingOffsets cannot be of type dict",
            "Give JSON, as json.dumps does.",
        ),
        ({"topic": b"t"}, "topic cannot be of type bytes", "Give text, a number, True or False."),
        ({"pulsar.client.authParams": Hidden()}, "of type Hidden", "Give text"),
        (
            {"startingOffsets": "earliest", "startingtime": "-1h"},
            "startingOffsets and startingTime cannot be used together",
            "Set one of them.",
        ),
        (
            {"topic": "a", "topics": "a,b", "topicsPattern": "a.*"},
            "topic and topics and topicsPattern cannot be used together",
            "Set one of them.",
        ),
    ],
)
def test_values_of_other_types_and_options_that_exclude_each_other_are_errors(
    options: dict[str, Any], what: str, remedy: str
) -> None:
    with pytest.raises(OptionError) as caught:
        registered(name="orders", options=options)
    assert what in caught.value.what
    assert remedy in caught.value.remedy
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["", "1st", "two words", "a.b", "a`b", "größe"])
def test_a_name_that_sql_cannot_take_is_an_error(name: str) -> None:
    with pytest.raises(OptionError, match="name of a format"):
        named_format(name, {})


def test_a_read_of_such_a_format_needs_no_options() -> None:
    source = registered(name="orders", options={"service.url": "pulsar://h"})
    with pytest.raises(OptionError, match="no topic"):
        source({}).reader(StructType())
