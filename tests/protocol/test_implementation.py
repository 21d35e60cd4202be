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
from tests.protocol.implementations import Implementation

KERNEL = "pulsar_spark._kernel"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A compiled kernel with nothing but its contract's version."""
    found = ModuleType(KERNEL)
    found.CONTRACT = blocks.CONTRACT  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, KERNEL, found)
    return found


def test_the_compiled_kernel_is_used_if_it_is_there(kernel: ModuleType) -> None:
    assert load(None) is kernel
    assert load(NATIVE) is kernel
    assert load(PYTHON) is None


def test_without_it_all_is_python_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, KERNEL, None)
    assert load(None) is load(PYTHON) is None
    with pytest.raises(MissingDependency, match=r"no compiled kernel: .* cargo"):
        load(NATIVE)


def test_one_that_is_there_and_does_not_load_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> ModuleType:
        raise ImportError("made for another machine")

    monkeypatch.setattr(implementation, "import_module", fail)
    with pytest.raises(MissingDependency, match="made for another machine"):
        load(None)


def test_the_kernel_of_an_earlier_distribution_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pulsar_spark_native.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, KERNEL, None)
    assert load(None) is None


@pytest.mark.parametrize("recorded", ["cargo was not found", None])
def test_pure_python_says_that_it_is_slower_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorded: str | None
) -> None:
    if recorded is not None:
        (tmp_path / "kernel-missing.txt").write_text(f"{recorded}\n")
    monkeypatch.setattr(implementation, "native", None)
    monkeypatch.setattr(implementation, "files", lambda _: tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    told = implementation.description()
    assert told.startswith("python (pure Python: slower")
    assert (recorded or "was not installed by pip") in told
    assert "cargo (https://rustup.rs)" in told
    monkeypatch.setenv(VARIABLE, PYTHON)
    assert f"{VARIABLE} asks for it" in implementation.description()


def test_one_of_another_contract_is_refused(kernel: ModuleType) -> None:
    kernel.CONTRACT = blocks.CONTRACT + 1  # type: ignore[attr-defined]
    for name in (None, NATIVE):
        with pytest.raises(MissingDependency, match=f"contract {blocks.CONTRACT + 1}"):
            load(name)
    assert load(PYTHON) is None


@pytest.mark.parametrize("impl", ["native"], indirect=True)
def test_a_column_that_the_kernel_was_built_without_is_refused(impl: Implementation) -> None:
    with pytest.raises(ValueError, match="no column new_one: build it again"):
        impl.make(options(["key", "new_one"]), decompress)


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
        f"messages are decoded and encoded by the implementation: {implementation.description()}"
    ]
