"""Types of arguments, checked first: a wrong one is a ValueError, as in the official client."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from enum import IntEnum
from types import NoneType, SimpleNamespace
from typing import Any

from pulsar_spark.client import authentication, consumer_policies, enums, loggers, message
from pulsar_spark.engine.options import check_range, check_text
from pulsar_spark.errors import OptionError
from pulsar_spark.protocol.validation import is_unicode

TIME = (int, float)

_OWN = {
    kind.__name__: (kind,)
    for module in (authentication, consumer_policies, enums, loggers, message)
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__ == module.__name__
}
# What annotations say, and what arguments may be.
_KINDS: Mapping[str, tuple[Any, ...]] = {
    "None": (NoneType,),
    "bool": (bool,),
    "int": (int,),
    "float": TIME,
    "str": (str,),
    "dict[str, str]": (dict,),
    "Sequence[str]": (list, tuple),
    "logging.Logger": (logging.Logger,),
    **dict.fromkeys(("MessageListener", "MessageRouter", "ReaderListener"), (Callable,)),
    **_OWN,
}
# The lowest and the highest value of numbers. Here, since the engine's options have other names
# and units than arguments.
_RANGES: Mapping[str, tuple[float, float | None]] = {
    "operation_timeout_seconds": (0.001, None),
    "connection_timeout_ms": (1, None),
    # All of them are started together with the client.
    "message_listener_threads": (0, 1000),
    **dict.fromkeys(
        (
            "max_pending_messages",
            "max_pending_messages_across_partitions",
            "batching_max_allowed_size_in_bytes",
            "batching_max_publish_delay_ms",
            "negative_ack_redelivery_delay_ms",
            "unacked_messages_timeout_ms",
            "receiver_queue_size",
            "auto_update_partitions_interval_seconds",
            "pattern_auto_discovery_period",
        ),
        (0, None),
    ),
    # With 0 or less there is none.
    "send_timeout_millis": (-math.inf, None),
    "batching_max_messages": (1, None),
    "priority_level": (0, 2**31 - 1),
    "start_message_rollback_seconds": (0, 2**63 - 1),
}


def checked_arguments(given: Mapping[str, Any], function: Callable[..., Any]) -> SimpleNamespace:
    """Return the arguments that a function was given, checked by its annotations and ranges.

    Raises OptionError. Enums may be given as numbers, or as those of the official client. Arguments
    of other types than those of this module are checked by whoever takes them.
    """
    checked = SimpleNamespace(**given)
    for name, annotation in function.__annotations__.items():
        choices = annotation.split(" | ")
        if name == "return" or not _KINDS.keys() >= set(choices):
            continue
        kinds = tuple(kind for each in choices for kind in _KINDS[each])
        if issubclass(kinds[0], IntEnum):
            setattr(checked, name, enums.choice(kinds[0], given[name], name))
        else:
            check_type(kinds, given[name], name)
        # Topics are checked where they are parsed; paths may be any.
        if name.endswith(("_name", "_prefix")):
            check_text(name, given[name])
        if dict in kinds:
            check_texts(given[name] or {}, name)
        if name in _RANGES and given[name] is not None:
            check_range(name, given[name], *_RANGES[name])
    return checked


def check_type(kinds: Any, value: object, name: str) -> None:
    """Check one argument: `kinds` is a type, or several of them; raises OptionError.

    A truth value is no number here.
    """
    several = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in several):
        names = " or ".join("None" if kind is NoneType else kind.__name__ for kind in several)
        raise OptionError(
            f"{name} is a value of the type {type(value).__name__}, it must be {names}"
        )


def check_texts(pairs: object, name: str) -> None:
    """Raise OptionError unless this is a dict of texts that UTF-8 can express."""
    check_type(dict, pairs, name)
    assert isinstance(pairs, dict)
    for pair in pairs.items():
        if not all(map(is_unicode, pair)):
            raise OptionError(
                f"{name} has {pair!r}", "Keys and values are text that UTF-8 can express."
            )


def long_values(pairs: object, name: str) -> dict[str, int] | None:
    """Return a copy of texts with numbers, as brokers can keep them; None for none.

    Raises OptionError.
    """
    if not pairs:
        return None
    check_type(Mapping, pairs, name)
    assert isinstance(pairs, Mapping)
    for key, value in pairs.items():
        named = f"{key!r} of {name}"
        if not is_unicode(key):
            raise OptionError(f"{named} is not text that UTF-8 can express")
        check_type(int, value, named)
        check_range(named, value, -(2**63), 2**63 - 1)
    return dict(pairs)


def check_event_listener(listener: object) -> None:
    """Raise OptionError for an object that no event could be told to; one method is enough."""
    if not any(hasattr(listener, f"became_{state}") for state in ("active", "inactive")):
        raise OptionError(
            f"consumer_event_listener is a value of the type {type(listener).__name__}, which has "
            "neither a method became_active nor became_inactive"
        )


def seconds(timeout_millis: float | None) -> float | None:
    """Return a timeout in seconds; raises OptionError if it is no number."""
    if timeout_millis is None:
        return None
    check_type(TIME, timeout_millis, "timeout_millis")
    check_range("timeout_millis", timeout_millis, -math.inf)
    return timeout_millis / 1000


def publish_time(given: object) -> int:
    """Return the time that `seek` was given; raises OptionError if it is none."""
    if not isinstance(given, int):
        raise OptionError("seek takes a MessageId or a time in milliseconds")
    # Brokers count in signed numbers of 64 bits.
    if isinstance(given, bool) or not 0 <= given < 2**63:
        raise OptionError(
            f"seek was given {given}: a time in milliseconds is from 0 to {2**63 - 1}"
        )
    return given
