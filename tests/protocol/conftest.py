"""Fixtures of the protocol's tests."""

from __future__ import annotations

import os
from importlib import import_module

import pytest

from tests.protocol.implementations import Implementation


@pytest.fixture(params=["python", "native"])
def impl(request: pytest.FixtureRequest) -> Implementation:
    """Each implementation; a test is skipped for the compiled one where that is not installed."""
    if request.param == "python":
        return Implementation("python", None)
    try:
        return Implementation("native", import_module("pulsar_spark_native"))
    except ImportError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"the compiled implementation is not installed: {error}")
