"""The module by which Spark finds the data source, and registering it by hand."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pyspark.sql.datasource
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

import pulsar_spark
import pyspark_pulsar
from pulsar_spark.errors import OptionError, UnsupportedFeature
from pulsar_spark.spark.datasource import PulsarDataSource


def test_spark_finds_a_data_source_named_pulsar() -> None:
    assert issubclass(pyspark_pulsar.DefaultSource, pyspark.sql.datasource.DataSource)
    assert pyspark_pulsar.DefaultSource.name() == "pulsar"
    assert pyspark_pulsar.DefaultSource is pyspark_pulsar.DefaultSource


def test_other_names_are_not_there() -> None:
    assert not hasattr(pyspark_pulsar, "Source")


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_class_and_instances_are_pickled_by_name(pickler: Any) -> None:
    source = pyspark_pulsar.DefaultSource(options={"topic": "t"})
    copy, kind = pickler.loads(pickler.dumps((source, pyspark_pulsar.DefaultSource)))
    assert kind is pyspark_pulsar.DefaultSource
    assert copy.options == {"topic": "t"}


def test_every_call_goes_to_the_data_source() -> None:
    source = pyspark_pulsar.DefaultSource(options={"topicc": "t"})
    for call in (
        source.schema,
        lambda: source.reader(StructType()),
        lambda: source.writer(StructType(), False),
        lambda: source.streamReader(StructType()).initialOffset(),
        lambda: source.streamWriter(StructType(), False),
    ):
        # Missing features say so; the others check the options first.
        with pytest.raises((OptionError, UnsupportedFeature)):
            call()


def test_looking_it_up_loads_neither_this_package_nor_arrow() -> None:
    script = (
        "import sys, pyspark_pulsar; found = hasattr(pyspark_pulsar, 'DefaultSource'); "
        "loaded = {'pulsar_spark', 'google.protobuf', 'lz4', 'crc32c'} & set(sys.modules); "
        "print(found, sorted(loaded))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "True []"


@pytest.mark.parametrize(
    "module,package", [("google.protobuf", "protobuf"), ("lz4", "lz4"), ("pyarrow", "pyarrow")]
)
def test_a_missing_package_is_named_when_the_source_is_used(module: str, package: str) -> None:
    script = f"""
import sys, pyspark_pulsar
class Without:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
from pulsar_spark.errors import MissingDependency
try:
    pyspark_pulsar.DefaultSource(options={{}}).schema()
except MissingDependency as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == (
        f"pulsar-spark needs the package {package}, which is not installed for {sys.executable}. "
        f"Run: {sys.executable} -m pip install {package}\n"
    )


def test_a_spark_without_data_sources_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    monkeypatch.delitem(vars(pyspark_pulsar), "DefaultSource", raising=False)
    assert not hasattr(pyspark_pulsar, "DefaultSource")


def test_it_can_be_registered_by_hand() -> None:
    registered: list[Any] = []

    class ProducerSession:
        def register(self, source: Any) -> None:
            registered.append(source)

    class Session:
        dataSource = ProducerSession()

    pulsar_spark.register(Session())  # type: ignore[arg-type]
    assert registered == [PulsarDataSource]
