"""The official client's names of exceptions."""

from __future__ import annotations

import importlib

import pytest

from pulsar_spark import client
from pulsar_spark.client import exceptions
from pulsar_spark.client.enums import Result
from pulsar_spark.errors import PulsarError


def test_programs_can_catch_what_they_catch_of_the_official_client() -> None:
    official = pytest.importorskip("pulsar", reason="pulsar-client is not installed")
    theirs = importlib.import_module("pulsar.exceptions")
    names = {name for name in dir(theirs) if name in Result.__members__}
    assert len(names) > 40
    assert all(issubclass(getattr(client, name), client.PulsarException) for name in names)
    assert issubclass(official.Timeout, official.PulsarException)
    assert issubclass(client.Timeout, client.PulsarException)


def test_all_are_errors_of_the_package_and_ctrl_c_is_what_python_raises_too() -> None:
    for name in exceptions.__all__:
        assert issubclass(getattr(exceptions, name), PulsarError)
    assert issubclass(client.Interrupted, KeyboardInterrupt)
