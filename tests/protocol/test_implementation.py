"""The choice of the implementation, and the errors if it is not available."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pulsar_spark.engine.codecs import decompress
from pulsar_spark.errors import MissingDependency, OptionError
from pulsar_spark.protocol import blocks, implementation
from pulsar_spark.protocol.implementation import NATIVE, PYTHON, VARIABLE, load
from tests.protocol.block_streams import options

PACKAGE = "pulsar_spark_native"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A compiled package with nothing but its contract's version."""
    found = ModuleType(PACKAGE)
    found.CONTRACT = blocks.CONTRACT  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PACKAGE, found)
    return found


def test_the_compiled_package_is_used_if_it_is_there(package: ModuleType) -> None:
    assert load(None) is package
    assert load(NATIVE) is package
    assert load(PYTHON) is None


def test_without_it_all_is_python_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    assert load(PYTHON) is None
    with pytest.raises(ImportError, match=r"pip install .*pulsar-spark\[native\]"):
        load(NATIVE)


def test_one_that_is_there_and_does_not_load_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / f"{PACKAGE}.py").write_text("raise ImportError('made for another machine')")
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependency, match="made for another machine"):
        load(None)


def test_one_of_another_contract_is_refused(package: ModuleType) -> None:
    package.CONTRACT = blocks.CONTRACT + 1  # type: ignore[attr-defined]
    for name in (None, NATIVE):
        with pytest.raises(MissingDependency, match=f"contract {blocks.CONTRACT + 1}"):
            load(name)
    assert load(PYTHON) is None


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(OptionError, match="rust"):
        load("rust")


def test_the_variable_decides() -> None:
    script = (
        "from pulsar_spark.protocol import implementation as found\n"
        "print(found.implementation(), found.scan_messages.__module__)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, VARIABLE: PYTHON},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.split() == [PYTHON, blocks.__name__]


def test_the_log_names_the_decoder_once(caplog: pytest.LogCaptureFixture) -> None:
    implementation.log_implementation.cache_clear()
    with caplog.at_level(logging.INFO, logger=implementation.__name__):
        for _ in range(2):
            assert implementation.make_decoder(options(), decompress).take() is None
    assert [record.getMessage() for record in caplog.records] == [
        f"entries are decoded and encoded by the implementation: {implementation.implementation()}"
    ]
