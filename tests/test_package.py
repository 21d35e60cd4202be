"""What `pulsar_spark` itself offers, and that importing it costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pulsar_spark
import pulsar_spark.client
import pulsar_spark.progress
import pulsar_spark.testing

# The package itself, and what Python needs to import others later.
FEW = 6


def run(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_names_that_people_import_first_are_there() -> None:
    # As in user code, all in one line.
    from pulsar_spark import EmbeddedBroker, PulsarClient, lag

    assert PulsarClient is pulsar_spark.client.PulsarClient
    assert EmbeddedBroker is pulsar_spark.testing.EmbeddedBroker
    assert lag is pulsar_spark.progress.lag
    assert {"EmbeddedBroker", "PulsarClient", "lag"} <= set(dir(pulsar_spark))
    assert {"EmbeddedBroker", "PulsarClient", "lag"} <= set(pulsar_spark.__all__)


def test_a_name_that_is_not_there_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Consumer'"):
        pulsar_spark.Consumer  # noqa: B018
    with pytest.raises(ImportError, match="Consumer"):
        exec("from pulsar_spark import Consumer")


def test_importing_the_package_loads_a_few_modules_and_none_of_its_own() -> None:
    code = (
        "import sys, typing; before = set(sys.modules); import pulsar_spark; "
        "print(*set(sys.modules) - before)"
    )
    loaded = run(code)
    assert "pulsar_spark" in loaded
    assert [name for name in loaded if name.startswith("pulsar_spark.")] == []
    assert len(loaded) <= FEW


@pytest.mark.parametrize(
    "name,others",
    [
        ("lag", ("pyspark", "pyarrow", "pulsar_spark.client", "pulsar_spark.testing")),
        ("EmbeddedBroker", ("pyspark", "pyarrow", "pulsar_spark.client")),
        ("PulsarClient", ("pyspark", "pyarrow", "pulsar_spark.testing")),
    ],
)
def test_each_name_loads_what_it_needs_alone(name: str, others: tuple[str, ...]) -> None:
    loaded = set(run(f"import sys; from pulsar_spark import {name}; print(*sys.modules)"))
    assert loaded.isdisjoint(others)
