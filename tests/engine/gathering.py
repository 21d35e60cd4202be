"""What arrives little by little, and what waits for more of it."""

from __future__ import annotations

import threading
import time
from typing import Protocol

import pytest

from pulsar_spark.engine.connections.transport import GATHERED, Transport

_PIECES = 64

TRICKLED = bytes(GATHERED)
"""What `trickle` sends."""


class _Peer(Protocol):
    def sendall(self, data: bytes, /) -> object: ...


def trickle(peer: _Peer) -> threading.Thread:
    """Have a thread send as many bytes as are gathered, in small pieces."""
    size = GATHERED // _PIECES

    def send() -> None:
        for start in range(0, GATHERED, size):
            peer.sendall(TRICKLED[start : start + size])
            time.sleep(0.001)

    sender = threading.Thread(target=send)
    sender.start()
    return sender


def record_gathering(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list to which each read adds whether it gathers bytes."""
    gathered: list[bool] = []
    receive = Transport.receive

    def record(self: Transport, timeout: float, **options: bool) -> bytes | None:
        gathered.append(options["gather"])
        return receive(self, timeout, **options)

    monkeypatch.setattr(Transport, "receive", record)
    return gathered
