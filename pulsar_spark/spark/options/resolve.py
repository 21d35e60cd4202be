"""Options as text from Spark → parsed values, checked against the option table.

`read`, `stream` and `write` check options against each other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulsar_spark.errors import OptionError, UnsupportedFeature, redact
from pulsar_spark.logs import get_logger
from pulsar_spark.schema.table.metadata_columns import FIXED_NAMES
from pulsar_spark.spark.offsets import (
    EARLIEST_BOUND,
    END_OPTIONS,
    START_OPTIONS,
    parse_bounds,
)
from pulsar_spark.spark.options import java as java_options
from pulsar_spark.spark.options.catalog import CATALOG_KEYS, OPTION_PREFIX
from pulsar_spark.spark.options.foreign import foreign_option
from pulsar_spark.spark.options.table import BY_NAME, NOWHERE, OPTIONS, Option, Scope

logger = get_logger(__name__)

_SHOWN = 100
# Below this similarity of two names, from 0 to 1, a suggestion would mislead.
_SIMILAR = 0.75
_ALL_OPTIONS = "All options are listed in docs/options.md."

_SPARK_KEYS = frozenset(
    {
        "path",
        "paths",
        "checkpointlocation",
        "queryname",
        "outputmode",
        "mergeschema",
        "partitionoverwritemode",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
        "truncate",
        *CATALOG_KEYS,
    }
)
# Spark's own keys have these prefixes, for example for partitionBy.
_SPARK_PREFIXES = ("__", "spark.", OPTION_PREFIX)

TO_TOPICS = "Write to one topic with the option topic, or name topics in the column __topic."
"""What to do in a write instead of naming several topics in its options."""

_BY_COLUMNS = "Leave it out: valueFormat=avro writes the DataFrame's columns."
ONLY_READ_FORMAT = "protobuf"
"""The value of `valueFormat` that a write refuses."""

# What to do in a write instead of these.
_ONLY_READ = {
    "topics": TO_TOPICS,
    "topicsPattern": TO_TOPICS,
    "valueSchema": _BY_COLUMNS,
    "valueMessage": _BY_COLUMNS,
}

# What Spark's writers take as `mode` and `outputMode`; the option `mode` is one of reads.
_SAVE_MODES = ("append", "overwrite", "error", "errorifexists", "ignore", "complete", "update")

SINK_OPTIONS = ("sinkId", "sinkStateTopic", "sinkRunId", "sinkRepeats", "transactionTimeout")
"""The options that only exactly-once writing has."""

# Only one option of each group may be set.
_EXCLUSIVE = (
    ("topic", "topics", "topicsPattern", "path", "paths"),
    START_OPTIONS,
    END_OPTIONS,
)

_NOT_EXACTLY_ONCE = ("deliveryGuarantee", ("at-least-once", "none"))
# Option → another one, and the values of that with which it cannot be used.
_CONTRADICTED: dict[str, tuple[str, tuple[Any, ...]]] = {
    **dict.fromkeys(SINK_OPTIONS, _NOT_EXACTLY_ONCE),
    "pulsar.producer.producerName": ("deliveryGuarantee", ("exactly-once",)),
    "pulsar.producer.chunkingEnabled": ("pulsar.producer.batchingEnabled", (True,)),
    "valueSchema": ("valueFormat", ("auto", "raw", "json", "string")),
    "valueMessage": ("valueFormat", ("auto", "raw", "avro", "json", "string")),
}
# In the same form: with which it has no effect.
_IDLE: dict[str, tuple[str, tuple[Any, ...]]] = {
    **dict.fromkeys(("schema.name", "schema.namespace"), ("valueFormat", ("raw", "string"))),
    "jsonCoercion": ("valueFormat", ("raw", "avro", "string", "protobuf")),
    "maxTriggerDelay": ("minMessagesPerTrigger", (None,)),
    **dict.fromkeys(
        (
            "pulsar.producer.batchingMaxMessages",
            "pulsar.producer.batchingMaxBytes",
            "pulsar.producer.batcherBuilder",
        ),
        ("pulsar.producer.batchingEnabled", (False,)),
    ),
}


@dataclass(frozen=True, slots=True)
class Values:
    """Parsed values by option key; `given` are the keys that the user set."""

    by_key: Mapping[str, Any]
    given: frozenset[str]
    path: str | None

    def __getitem__(self, key: str) -> Any:
        return self.by_key[key]

    def __contains__(self, key: str) -> bool:
        return key in self.given


def resolve(options: Mapping[str, str], scope: Scope, told: Scope = NOWHERE) -> Values:
    """Return the value of every option in `scope`: the given one or the default.

    Raises OptionError for unknown names and invalid values, UnsupportedFeature for missing
    features. Logs ignored options in one line, without those that it was `told` of before.
    """
    found: dict[str, tuple[str, Any]] = {}
    elsewhere: dict[str, tuple[str, Any]] = {}
    ignored: list[str] = []
    for name, value in options.items():
        option = BY_NAME.get(name.lower())
        if option is None:
            _check_foreign(name, value, ignored)
        elif not option.scope & scope:
            if option.key in _ONLY_READ:
                raise OptionError(f"{option.key} is only for reads", _ONLY_READ[option.key])
            if option.key == "mode" and value.strip().lower() in _SAVE_MODES:
                raise OptionError(
                    f"mode={value.strip()} is not an option of the writer",
                    'Write .mode("append") for a DataFrame, .outputMode(…) for a stream.',
                )
            _add(elsewhere, option, name, _parse_elsewhere(option, value))
        else:
            _add(found, option, name, _parse(option, value))
    if "admin.url" in found:
        ignored.append("admin.url")
    values = {
        option.key: found[option.key][1] if option.key in found else option.default_value
        for option in OPTIONS
        if option.scope & scope
    }
    # What only some of the `scope` have is told when it is known which of them it is.
    idle = [key for key in found if scope in BY_NAME[key.lower()].scope and _is_idle(key, values)]
    if told:
        warn_of_ignored(
            [key for key in elsewhere if BY_NAME[key.lower()].scope & told]
            + [key for key in idle if told not in BY_NAME[key.lower()].scope]
        )
    else:
        warn_of_ignored([*ignored, *elsewhere, *idle])
    lowered = {name.lower(): value for name, value in options.items()}
    return Values(values, frozenset(found), lowered.get("path"))


def _is_idle(key: str, values: Mapping[str, Any]) -> bool:
    other, without_effect = _IDLE.get(key, ("", ()))
    return other in values and values[other] in without_effect


def warn_of_ignored(keys: Sequence[str]) -> None:
    """Warn of options that were given and have no effect, if there are some."""
    if keys:
        logger.warning("These options have no effect here and are ignored: %s", ", ".join(keys))


def refuse_exclusive(values: Values) -> None:
    """Raise OptionError if options were given of which only one may be set."""
    for group in _EXCLUSIVE:
        given = [key for key in group if key in values]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} cannot be used together", "Set one of them.")


def over_defaults(
    given: Mapping[str, str], defaults: Mapping[str, str], scope: Scope = Scope.BOTH
) -> dict[str, str]:
    """Return `given` plus the defaults for options that it neither sets nor excludes.

    Nor are defaults taken that are for other reads or writes than those of `scope`.
    """
    taken = {_kind(name) for name in given}
    chosen = {_key(name): value for name, value in given.items()}
    left = {
        name: value
        for name, value in defaults.items()
        if _kind(name) not in taken
        and _is_for(name, value, scope)
        and not _contradicted(_key(name), chosen)
    }
    return {**left, **given}


def _is_for(name: str, value: str, scope: Scope) -> bool:
    """Whether an option, with this value, is one of `scope`'s."""
    option = BY_NAME.get(name.lower())
    if option is None:
        return True
    only_read = option.key == "valueFormat" and _parse_text(option, value) == ONLY_READ_FORMAT
    return bool(option.scope & scope) and not (only_read and scope in Scope.WRITES)


def _contradicted(key: str, given: Mapping[str, str]) -> bool:
    """Whether with what is given this option cannot be used, or has no effect."""
    other, values = {**_IDLE, **_CONTRADICTED}.get(key, ("", ()))
    if other not in given:
        return False
    try:
        return BY_NAME[other.lower()].parse(given[other]) in values
    except ValueError:
        return False


def _key(name: str) -> str:
    option = BY_NAME.get(name.lower())
    return name.lower() if option is None else option.key


def of_defaults(error: OptionError, names: Iterable[str]) -> OptionError:
    """Return an error which says so if its option is one of a format's defaults, `names`."""
    for key in map(_key, names):
        if re.match(rf"{re.escape(key)}(?![\w.])", error.what):
            told = f"{key} was set when the format was registered."
            return OptionError(error.what, f"{error.remedy} {told}".lstrip())
    return error


def _kind(name: str) -> str:
    """Return what names share that mean the same option or options that exclude each other."""
    key = _key(name)
    return next((group[0] for group in _EXCLUSIVE if key in group), key)


def _parse_text(option: Option, value: str) -> Any:
    try:
        return option.parse(value)
    except ValueError as error:
        shown = "its value" if option.secret else repr(redact(value)[:_SHOWN])
        raise OptionError(
            f"{option.key}: {shown} is not a valid value", f"Expected {error}."
        ) from None


def _parse(option: Option, value: str) -> Any:
    parsed = _parse_text(option, value)
    if parsed in option.unbuilt:
        raise UnsupportedFeature(
            f"{option.key}={parsed} is not supported by this version", "Leave the option out."
        )
    return parsed


def _parse_elsewhere(option: Option, value: str) -> Any:
    """Parse an option of another scope, whose value has to be one that it accepts there.

    Raises OptionError, InvalidOffset.
    """
    parsed = _parse_text(option, value)
    if option.key in START_OPTIONS + END_OPTIONS:
        parse_bounds(option.key, parsed, EARLIEST_BOUND)
    return parsed


def _add(found: dict[str, tuple[str, Any]], option: Option, name: str, parsed: Any) -> None:
    """Add the value that an option has by one of its names; raises OptionError for a second one."""
    other, before = found.setdefault(option.key, (name, parsed))
    if before != parsed:
        raise OptionError(f"{other} and {name} are the same option, with two values")


def _check_foreign(name: str, value: str, ignored: list[str]) -> None:
    lower = name.lower()
    if lower in FIXED_NAMES:
        raise OptionError(
            f"{name!r} is not an option, but a column of the rows", "Give each row its value."
        )
    if lower in _SPARK_KEYS or lower.startswith(_SPARK_PREFIXES):
        return
    # The Java client's settings are also written without the prefix.
    lower = java_options.UNPREFIXED.get(lower, lower)
    if lower in java_options.REFUSED:
        key, remedy = java_options.REFUSED[lower]
        if java_options.HARMLESS_VALUES.get(lower) != value.strip().lower():
            raise OptionError(
                f"{key} is an option of the Java client that has no effect here", remedy
            )
        ignored.append(key)
    elif lower in java_options.IGNORED or lower.startswith(java_options.IGNORED_PREFIX):
        ignored.append(java_options.IGNORED.get(lower, name))
    else:
        raise OptionError(f"{name[:_SHOWN]!r} is not an option", _suggestion(name))


def _suggestion(name: str) -> str:
    """Return what to write instead of a name that is no option."""
    if (foreign := foreign_option(name)) is not None:
        return f"{foreign.remedy} {_ALL_OPTIONS}"
    near = _nearest(name.lower())
    return _ALL_OPTIONS if near is None else f"Did you mean {near!r}? {_ALL_OPTIONS}"


def _nearest(lower: str) -> str | None:
    """Return the name that resembles this one most, None if none resembles it enough.

    The client's, readers' and producers' options are compared without their prefixes, which are
    longer than most names: people leave them out, or write another one.
    """
    candidates: dict[str, list[str]] = {}
    for option in OPTIONS:
        for name in (option.key, *option.aliases):
            candidates.setdefault(_without_prefix(name.lower()), []).append(name)
    for word in (_without_prefix(lower), lower.rpartition(".")[2]):
        if close := difflib.get_close_matches(word, candidates, n=1, cutoff=_SIMILAR):
            names = candidates[close[0]]
            prefix = lower.rpartition(".")[0]
            return max(names, key=lambda name: name.lower().startswith(prefix))
    return None


def _without_prefix(lower: str) -> str:
    return lower.rpartition(".")[2] if lower.startswith("pulsar.") else lower
