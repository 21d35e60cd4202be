"""Chooses whether values are decoded by the compiled kernel."""

from __future__ import annotations

from importlib import import_module

import pytest

from pulsar_spark.protocol import implementation


def choose(patch: pytest.MonkeyPatch, *, kernel: bool) -> None:
    """Decode values in the kernel, or one by one in Python."""
    native = import_module("pulsar_spark._kernel") if kernel else None
    patch.setattr(implementation, "native", native)
