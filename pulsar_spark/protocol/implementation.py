"""Which implementation of `blocks` and of `send_encoder.SendEncoder` is used.

The compiled kernel if the package has it, otherwise pure Python. ``PULSAR_SPARK_IMPL=python`` or
``native`` overrides this. The choice is made once, on import.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

from pulsar_spark.errors import MissingDependency, OptionError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import block_decoder, blocks
from pulsar_spark.protocol.blocks import BlockDecoder, BlockOptions, Decompress

logger = get_logger(__name__)

VARIABLE = "PULSAR_SPARK_IMPL"
PYTHON, NATIVE = "python", "native"

_PACKAGE = "pulsar_spark"
_KERNEL = f"{_PACKAGE}._kernel"
# The build writes why there is none; see tools/kernel_build.py.
_MISSING = "kernel-missing.txt"
_BUILD = (
    "Have cargo (https://rustup.rs) and a C compiler, and install the package again, with pip's "
    "options --force-reinstall --no-deps."
)
_INSTALL = (
    "Install the package where Python runs, or ship a whole environment: zips have no shared "
    "libraries."
)


def load(name: str | None) -> ModuleType | None:
    """Return the compiled kernel, None for pure Python.

    `name` is the requested implementation, None for the default. Raises MissingDependency if the
    kernel is requested and missing, or has another version of the contract; OptionError for an
    unknown name.
    """
    if name == PYTHON:
        return None
    if name not in (NATIVE, None):
        raise OptionError(
            f"{VARIABLE} is {name!r}", f"Set it to {PYTHON} or {NATIVE}, or leave it unset."
        )
    try:
        found = import_module(_KERNEL)
    except ImportError as error:
        if not (isinstance(error, ModuleNotFoundError) and error.name == _KERNEL):
            raise MissingDependency(
                f"the compiled kernel cannot be loaded: {error}",
                f"{_BUILD} Or set {VARIABLE}={PYTHON}.",
            ) from error
        if name is None:
            return None
        why, remedy = _without_kernel()
        raise MissingDependency(f"there is no compiled kernel: {why}", remedy) from error
    contract = getattr(found, "CONTRACT", None)
    if contract != blocks.CONTRACT:
        raise MissingDependency(
            f"the compiled kernel is of contract {contract}, and the package's Python code of "
            f"{blocks.CONTRACT}",
            f"{_BUILD} Or set {VARIABLE}={PYTHON}.",
        )
    return found


def _without_kernel() -> tuple[str, str]:
    """Return why the package has no kernel, and what to do."""
    package = files(_PACKAGE)
    if not isinstance(package, Path):
        return "the package was imported from a zip", _INSTALL
    try:
        why = (package / _MISSING).read_text("utf-8").strip()
    except FileNotFoundError:
        why = "this copy of the package was not installed by pip"
    return why, _BUILD


native: Any = load(os.environ.get(VARIABLE) or None)
"""The compiled kernel, None for pure Python."""

scan_messages = blocks.scan_messages if native is None else native.scan_messages
scan_receipts = blocks.scan_receipts if native is None else native.scan_receipts


def implementation() -> str:
    """Return the name of the implementation in use."""
    return PYTHON if native is None else NATIVE


def description() -> str:
    """Return the implementation in use; if it is the slower one, why, and what to do about it."""
    if native is not None:
        return f"{NATIVE} (compiled kernel)"
    if os.environ.get(VARIABLE) == PYTHON:
        return f"{PYTHON} (pure Python: slower, up to 8 times the CPU; {VARIABLE} asks for it)"
    why, remedy = _without_kernel()
    return f"{PYTHON} (pure Python: slower, up to 8 times the CPU; {why}. {remedy})"


def make_decoder(options: BlockOptions, decompress: Decompress) -> BlockDecoder:
    """Return a new decoder; `decompress` handles codecs that the implementation lacks."""
    log_implementation()
    if native is None:
        return block_decoder.PythonBlockDecoder(options, decompress)
    decoder: BlockDecoder = native.BlockDecoder(options, decompress)
    return decoder


@cache
def log_implementation() -> None:
    """Log once which implementation is used."""
    logger.info("messages are decoded and encoded by the implementation: %s", description())
