"""Waiting for sockets that do not block."""

from __future__ import annotations

import select
import socket

import pytest

from pulsar_spark.engine.connections.polling import poll


@pytest.mark.parametrize("timeout", [2**31 / 1000 - 1, 2**31 / 1000, 1e15, float("inf")])
def test_a_wait_may_be_longer_than_the_system_counts(timeout: float) -> None:
    near, far = socket.socketpair()
    with near, far:
        far.send(b"x")
        assert poll({near.fileno(): select.POLLIN}, timeout) == {near.fileno(): select.POLLIN}
