"""Chooses whether values are read and written by the compiled kernel."""

from __future__ import annotations

from importlib import import_module

import pytest

from pulsar_spark.protocol import implementation


def choose(patch: pytest.MonkeyPatch, *, kernel: bool) -> None:
    """Read and write values in the kernel, or one by one in Python."""
    native = import_module("pulsar_spark._kernel") if kernel else None
    patch.setattr(implementation, "native", native)
