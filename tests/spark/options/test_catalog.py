"""Options of a catalog's table → the options that the user gave."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from pulsar_spark.errors import OptionError
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.options.catalog import without_catalog_keys
from pulsar_spark.spark.options.read import parse_read_options
from tests.spark.topics import full

GIVEN = {"service.url": "pulsar://h:6650", "topic": "orders", "mode": "PERMISSIVE"}
CATALOG = {
    "provider": "pulsar",
    "owner": "ann",
    "location": "file:/warehouse/t",
    "path": "file:/warehouse/t",
    "is_managed_location": "true",
    "external": "true",
    "comment": "all orders",
    "collation": "UTF8_BINARY",
}


def of_a_table(options: dict[str, str], **more: str) -> dict[str, str]:
    """Return the options that Spark passes for CREATE TABLE with these OPTIONS."""
    prefixed = {f"option.{name}": value for name, value in options.items()}
    return {**more, **options, **prefixed, **CATALOG}


@pytest.mark.fault(125)
def test_what_a_catalog_adds_is_no_option() -> None:
    assert without_catalog_keys(of_a_table(GIVEN)) == GIVEN
    assert parse_read_options(without_catalog_keys(of_a_table(GIVEN))).mode == "PERMISSIVE"


def test_the_properties_of_a_table_are_no_options() -> None:
    options = of_a_table({"service.url": "pulsar://h"}, topic="billing", team="a", mode="b")
    assert without_catalog_keys(options) == {"service.url": "pulsar://h"}


def test_a_misspelt_option_of_a_table_is_an_error() -> None:
    options = of_a_table({**GIVEN, "startingOffset": "earliest"})
    with pytest.raises(OptionError, match="Did you mean 'startingOffsets'"):
        PulsarDataSource(options).reader(StructType())


def test_the_folder_of_a_table_is_no_topic() -> None:
    for options in ({}, {"path": "orders"}):
        assert "path" not in without_catalog_keys(of_a_table(options))
    with pytest.raises(OptionError, match="no topic"):
        PulsarDataSource(of_a_table({"service.url": "pulsar://h"})).schema()


@pytest.mark.parametrize("name", [*CATALOG, "option.topic", "Option.Path"])
def test_no_key_of_a_catalog_is_an_error_by_itself(name: str) -> None:
    given = {**GIVEN, name: "orders"}
    assert parse_read_options(without_catalog_keys(given)).topics == (full("orders"),)
    folder = {"location": "file:/warehouse/t", "path": "file:/warehouse/t"}
    assert parse_read_options(without_catalog_keys({**GIVEN, **folder})).pattern is None


def test_other_options_stay_as_they_are() -> None:
    options = {"Service.URL": "pulsar://h", "path": "orders", "owner": "ann"}
    assert without_catalog_keys(options) == options


def test_no_options_at_all_are_told_to_be_a_tables() -> None:
    with pytest.raises(OptionError, match=r"service\.url is required.*docs/sql\.md"):
        PulsarDataSource({}).reader(StructType())
