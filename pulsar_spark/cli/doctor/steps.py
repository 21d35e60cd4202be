"""A step of the doctor: its result, in words for people."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pulsar_spark.errors import PulsarError

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
NAME_ONE = "Name a topic with --topic."

_PORTS = (
    "Check that service.url names a Pulsar broker or proxy, and its port: 6650 for pulsar://, 6651 "
    "for pulsar+ssl://, 8080 for http://, 8443 for https://, unless they were changed."
)
_REMEDIES = {"connect": _PORTS, "tls": _PORTS, "handshake": _PORTS}
_ASK_THE_BROKER = "The log of the broker says more."


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a step. A step can be ok and still have a remedy, for something that is not."""

    name: str
    status: str
    seconds: float
    detail: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the step as `--json` shows it."""
        return {**asdict(self), "seconds": round(self.seconds, 6)}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a successful step found, and what to change nevertheless."""

    detail: str
    remedy: str = ""


class Skipped(Exception):
    """Raised by a step that does not apply; says why."""

    def __init__(self, detail: str, remedy: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy


def taken(name: str, look: Callable[[], Finding]) -> Step:
    """Run a step and return its result."""
    started = time.monotonic()
    try:
        finding = look()
        status, detail, remedy = OK, finding.detail, finding.remedy
    except Skipped as skipped:
        status, detail, remedy = SKIPPED, skipped.detail, skipped.remedy
    except PulsarError as error:
        status, detail = FAILED, error.what
        remedy = error.remedy or _REMEDIES.get(name, _ASK_THE_BROKER)
    return Step(name, status, time.monotonic() - started, detail, remedy)


def counted(number: int, what: str) -> str:
    """Return a number with its noun."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
