"""Custom formats: the data source under another name, with default options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pulsar_spark.errors import OptionError
from pulsar_spark.spark.datasource import FormatDefaults, PulsarDataSource
from pulsar_spark.spark.options.resolve import refuse_exclusive, resolve
from pulsar_spark.spark.options.table import Scope

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)


def named_format(
    name: str, options: Mapping[str, str | int | float | bool | None]
) -> type[PulsarDataSource]:
    """Return a data source called `name`, with defaults for its options; None is left out.

    Raises OptionError for a name that SQL does not accept, for unknown options, invalid values and
    options that exclude each other; UnsupportedFeature for features that are missing.
    """
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"{name[:100]!r} cannot be the name of a format",
            "Use letters, digits, _ and -, and begin with a letter.",
        )
    texts = {key: _text(key, value) for key, value in options.items() if value is not None}
    refuse_exclusive(resolve(texts, Scope.BOTH))
    # Spark pickles the class by value, so it only has plain data.
    members = {"format_name": name, "defaults": FormatDefaults(texts), "__doc__": None}
    return type("PulsarFormat", (PulsarDataSource,), members)


def _text(key: str, value: object) -> str:
    """Return a value as text, as Spark's `option(…)` does; raises OptionError for other types."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    remedy = "Give text, a number, True or False."
    if isinstance(value, list | tuple | set | frozenset):
        remedy = "Give names separated by commas."
    elif isinstance(value, Mapping):
        remedy = "Give JSON, as json.dumps does."
    raise OptionError(f"{key} cannot be of type {type(value).__name__}", remedy)
