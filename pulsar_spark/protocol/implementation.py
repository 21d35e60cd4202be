"""Which implementation of `blocks` and of `send_encoder.SendEncoder` is used.

The compiled one if it is installed, otherwise pure Python. ``PULSAR_SPARK_IMPL=python`` or
``native`` overrides this. The choice is made once, on import.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from pulsar_spark.errors import MissingDependency, OptionError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import block_decoder, blocks
from pulsar_spark.protocol.blocks import BlockDecoder, BlockOptions, Decompress

logger = get_logger(__name__)

VARIABLE = "PULSAR_SPARK_IMPL"
PYTHON, NATIVE = "python", "native"

_PACKAGE = "pulsar_spark_native"
_INSTALL = 'Run: pip install "pulsar-spark[native]", or, in a clone, make native.'


def load(name: str | None) -> ModuleType | None:
    """Return the compiled package, None for pure Python.

    `name` is the requested implementation, None for the default. Raises MissingDependency if the
    compiled one is requested and missing, or has another version of the contract; OptionError for
    an unknown name.
    """
    if name == PYTHON:
        return None
    if name not in (NATIVE, None):
        raise OptionError(
            f"{VARIABLE} is {name!r}", f"Set it to {PYTHON} or {NATIVE}, or leave it unset."
        )
    try:
        found = import_module(_PACKAGE)
    except ImportError as error:
        if name is None and isinstance(error, ModuleNotFoundError) and error.name == _PACKAGE:
            return None
        raise MissingDependency(
            f"the compiled package pulsar-spark-native cannot be imported: {error}", _INSTALL
        ) from error
    contract = getattr(found, "CONTRACT", None)
    if contract != blocks.CONTRACT:
        raise MissingDependency(
            f"the package pulsar-spark-native that is installed is of contract {contract}, "
            f"this version needs {blocks.CONTRACT}",
            f"{_INSTALL} Or set {VARIABLE}={PYTHON}.",
        )
    return found


native: Any = load(os.environ.get(VARIABLE) or None)
"""The compiled package, None for pure Python."""

scan_messages = blocks.scan_messages if native is None else native.scan_messages
scan_receipts = blocks.scan_receipts if native is None else native.scan_receipts


def implementation() -> str:
    """Return the name of the implementation in use, with its version if it has one."""
    return PYTHON if native is None else f"{NATIVE} {native.__version__}"


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
    logger.info("entries are decoded and encoded by the implementation: %s", implementation())
