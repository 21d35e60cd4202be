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
    # A builtin of Python has the same name, and nothing raises it here.
    assert {name for name in names if not hasattr(client, name)} == {"LookupError"}
    assert issubclass(official.Timeout, official.PulsarException)
    assert issubclass(client.Timeout, client.PulsarException)


def test_all_but_what_the_keyboard_raises_are_errors_of_the_package() -> None:
    for name in exceptions.__all__:
        kind = getattr(exceptions, name)
        assert issubclass(kind, PulsarError) or name == "Interrupted"
