"""The broker that the commands connect to."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pulsar_spark.cli.connection import PROFILE_VARIABLE, URL_VARIABLE
from pulsar_spark.testing import EmbeddedBroker


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands connect where a test says, not where this machine's user does."""
    for variable in (URL_VARIABLE, PROFILE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """An embedded broker with the topic `orders`, which has two partitions."""
    with EmbeddedBroker() as running:
        running.create_topic("orders", partitions=2)
        yield running
        assert running.internal_errors == ()


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Let commands get Ctrl-C: a shell has what it runs in the background ignore it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
