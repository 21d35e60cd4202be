"""Finds out whether a port speaks TLS although the service URL says it does not, or the other way.

A broker that is spoken to in the wrong way just closes the connection, as does one that is shutting
down. So another connection asks. It carries no credentials, and nothing else is sent over it.
"""

from __future__ import annotations

import socket

from pulsar_spark.engine.connections.addresses import split_host_port
from pulsar_spark.engine.connections.tls import answers_with_tls
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.errors import PulsarError, RemoteProtocolError, TlsError
from pulsar_spark.protocol import commands
from pulsar_spark.protocol.connection import Connection
from pulsar_spark.protocol.events import CommandReceived
from pulsar_spark.protocol.states import Role

_MOST_SECONDS = 3.0
_READ = 64 * 1024


def wrong_scheme(address: str, client: str, timeout: float, *, tls: bool) -> PulsarError | None:
    """Return the error for a port that speaks the other scheme; None if that cannot be said.

    `client` is the version that the client tells. Takes about `timeout` seconds, and some at most.
    """
    deadline = Deadline(min(timeout, _MOST_SECONDS))
    try:
        with socket.create_connection(split_host_port(address), deadline.remaining()) as sock:
            if tls and _speaks_pulsar(sock, client, deadline):
                return TlsError(
                    f"what listens on {address} does not speak TLS, but Pulsar without it",
                    "Give the port for TLS (6651 unless changed), or a pulsar:// service URL.",
                    broker=address,
                )
            if not tls and answers_with_tls(sock):
                return RemoteProtocolError(
                    f"what listens on {address} speaks TLS",
                    "Use a pulsar+ssl:// service URL, or the broker's plain port (6650 unless "
                    "changed).",
                    broker=address,
                )
    except OSError:
        pass
    return None


def _speaks_pulsar(sock: socket.socket, client: str, deadline: Deadline) -> bool:
    """Whether a broker answers, if only with an error; raises OSError."""
    core = Connection(Role.CLIENT)
    core.send(commands.connect(client))
    sock.sendall(b"".join(core.data_to_send()))
    while not deadline.expired() and (data := sock.recv(_READ)):
        core.receive_data(data)
        if events := core.events_received():
            return isinstance(events[0], CommandReceived)
    return False
