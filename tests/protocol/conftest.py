"""Fixtures of the protocol's tests."""

from __future__ import annotations

import os
from importlib import import_module

import pytest

from tests.protocol.implementations import Implementation


@pytest.fixture(params=["python", "native"], scope="session")
def impl(request: pytest.FixtureRequest) -> Implementation:
    """Each implementation; tests of the compiled one are skipped if it is not installed."""
    if request.param == "python":
        return Implementation("python", None)
    try:
        return Implementation("native", import_module("pulsar_spark._kernel"))
    except ImportError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"the compiled implementation is not installed: {error}")
