"""The options of a stream: those of a read, its subscription and its caps."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from pulsar_spark.errors import OptionError
from pulsar_spark.spark.offsets import END_OPTIONS
from pulsar_spark.spark.options.read import ReadOptions, read_options
from pulsar_spark.spark.options.resolve import Values, resolve
from pulsar_spark.spark.options.table import NOWHERE, Scope

_PREFIX = "spark-pulsar"


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of one micro-batch; None for no limit. `max_delay` is in seconds.

    A batch waits for `min_messages`, but at most `max_delay` after the previous one.
    """

    max_messages: int | None = None
    max_bytes: int | None = None
    min_messages: int | None = None
    max_delay: float = 0.0

    @property
    def bounded(self) -> bool:
        """Whether there is an upper limit."""
        return self.max_messages is not None or self.max_bytes is not None


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream; plain data. `subscription` is None for a generated name."""

    read: ReadOptions
    subscription: str | None
    prefix: str
    caps: Caps

    def subscription_name(self) -> str:
        """Return the given name, or a new unique one."""
        return self.subscription or f"{self.prefix}-{secrets.token_hex(8)}"


def parse_stream_options(options: Mapping[str, str], told: Scope = NOWHERE) -> StreamOptions:
    """Parse the options of a stream.

    `told` is as in `resolve`. Raises OptionError, InvalidOffset or UnsupportedFeature that names
    the option.
    """
    _check_endless(options)
    values = resolve(options, Scope.STREAM_READ, told)
    return StreamOptions(
        read=read_options(values, options, Scope.STREAM_READ),
        subscription=values["subscription"],
        prefix=values["subscriptionPrefix"] or _PREFIX,
        caps=_caps(values),
    )


def _check_endless(options: Mapping[str, str]) -> None:
    """Raise OptionError for an end: its user would wait for a query that never stops."""
    given = {name.lower() for name in options}
    for key in END_OPTIONS:
        if key.lower() in given:
            raise OptionError(
                f"{key} is for batches: a stream has no end",
                "Leave it out; Trigger.AvailableNow reads up to what is there when it begins.",
            )


def _caps(values: Values) -> Caps:
    most, least = values["maxMessagesPerTrigger"], values["minMessagesPerTrigger"]
    if most is not None and least is not None and least > most:
        raise OptionError(
            f"minMessagesPerTrigger={least} is more than maxMessagesPerTrigger={most}",
            "Lower minMessagesPerTrigger, or raise maxMessagesPerTrigger.",
        )
    return Caps(
        max_messages=most,
        # In the Scala connector 0 bytes means no limit.
        max_bytes=values["maxBytesPerTrigger"] or None,
        min_messages=least,
        max_delay=values["maxTriggerDelay"],
    )
