"""Both ways of reading and writing values."""

from __future__ import annotations

import pytest

from tests.schema.kernel import choose


@pytest.fixture(params=["kernel", "reference"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read and write values in the kernel, then by the reference."""
    choose(monkeypatch, kernel=request.param == "kernel")
    return str(request.param)
