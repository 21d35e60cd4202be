"""What arrives little by little, and what waits for more of it."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

import pytest

from pulsar_spark.engine.connections.transport import Received, Transport

_PIECES = 64

TRICKLED = bytes(256 * 1024)
"""What `trickle` sends."""

MANY = 6 * len(TRICKLED) // _PIECES
"""More than comes without waiting. The system says so early when its buffer is nearly full."""


class _Peer(Protocol):
    def sendall(self, data: bytes, /) -> object: ...


def trickle(peer: _Peer) -> threading.Thread:
    """Have a thread send these bytes, in small pieces."""
    size = len(TRICKLED) // _PIECES

    def send() -> None:
        for start in range(0, len(TRICKLED), size):
            peer.sendall(TRICKLED[start : start + size])
            time.sleep(0.001)

    sender = threading.Thread(target=send)
    sender.start()
    return sender


def record_gathering(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each read adds for how many bytes it waits."""
    gathered: list[int] = []
    receive = Transport.receive

    def record(self: Transport, timeout: float, **options: Any) -> Received | None:
        gathered.append(options["gather"])
        return receive(self, timeout, **options)

    monkeypatch.setattr(Transport, "receive", record)
    return gathered
