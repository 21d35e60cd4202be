"""Both ways of decoding values."""

from __future__ import annotations

import pytest

from tests.schema.kernel import choose


@pytest.fixture(params=["kernel", "reference"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Decode values in the kernel, then by the reference."""
    choose(monkeypatch, kernel=request.param == "kernel")
    return str(request.param)
