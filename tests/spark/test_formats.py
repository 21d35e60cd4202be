"""Registered formats: names, default options, and what overrides the defaults."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

import pulsar_spark
from pulsar_spark.errors import OptionError, PulsarError, UnsupportedFeature
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.formats import named_format
from pulsar_spark.spark.options.resolve import over_defaults

SECRET = "canary-7b1f"
DEFAULTS = {
    "service.url": "pulsar://h:6650",
    "topic": "orders",
    "startingOffsets": "earliest",
    "pulsar.client.authPluginClassName": "token",
    "pulsar.client.authParams": f"token:{SECRET}",
}


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
    assert source({})._all_options == DEFAULTS
    assert source({"mode": "PERMISSIVE"})._all_options == {**DEFAULTS, "mode": "PERMISSIVE"}
    assert PulsarDataSource({"topic": "t"})._all_options == {"topic": "t"}


def test_values_may_be_numbers_and_truth_values() -> None:
    source = registered(options={"failOnDataLoss": False, "maxMessagesPerTrigger": 5})
    assert source.name() == "pulsar"
    assert source({})._all_options == {"failOnDataLoss": "false", "maxMessagesPerTrigger": "5"}


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


def test_class_and_instances_reach_other_processes() -> None:
    source = registered(name="orders", options=DEFAULTS)
    pickler: Any = cloudpickle
    pickled = pickler.dumps((source, source({"mode": "PERMISSIVE"})))
    kind, one = pickle.loads(pickled)
    assert kind.name() == "orders"
    assert one._all_options == {**DEFAULTS, "mode": "PERMISSIVE"}


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


@pytest.mark.parametrize("name", ["", "1st", "two words", "a.b", "a`b", "größe"])
def test_a_name_that_sql_cannot_take_is_an_error(name: str) -> None:
    with pytest.raises(OptionError, match="name of a format"):
        named_format(name, {})


def test_a_read_of_such_a_format_needs_no_options() -> None:
    source = registered(name="orders", options={"service.url": "pulsar://h"})
    with pytest.raises(OptionError, match="no topic"):
        source({}).reader(StructType())
