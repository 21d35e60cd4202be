"""A broker's web service, as far as lookups need it; it misbehaves as a test wants."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.support.issuer import Answer, say
from tests.support.waiting import finish


class Asked(NamedTuple):
    """A request: its path, its query and its headers."""

    path: str
    query: dict[str, list[str]]
    headers: Mapping[str, str]


class WebService:
    """Names one broker for all topics, each of which has `partitions` partitions.

    `answers` come first, in order, before the usual ones; with `again` the last one is repeated.
    """

    def __init__(
        self,
        broker: str = "",
        *,
        secure: str = "",
        partitions: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.lookup: dict[str, Any] = {"brokerUrl": broker or None, "brokerUrlTls": secure or None}
        self.partitions = partitions
        self.topics: list[str] = []
        self.schema: dict[str, Any] | None = None
        self.answers: list[Answer] = []
        self.again = False
        self.asked: list[Asked] = []
        self.connections = 0
        self.certificates: list[Any] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                service.connections += 1

            def do_GET(self) -> None:
                if isinstance(self.connection, ssl.SSLSocket):
                    service.certificates.append(self.connection.getpeercert())
                parts = urlsplit(self.path)
                service.asked.append(Asked(parts.path, parse_qs(parts.query), dict(self.headers)))
                service.answer(parts.path)(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Clients that disconnect are part of the tests."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{'http' if tls is None else 'https'}://{self.host}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def answer(self, path: str) -> Answer:
        """Return the answer to a request."""
        if self.answers:
            return self.answers[0] if self.again else self.answers.pop(0)
        usual: dict[str, Any] = {
            "clusters": ["standalone"],
            "partitions": {"partitions": self.partitions},
            "topics": self.topics,
        }
        last = path.rpartition("/")[2]
        if path.startswith("/lookup/"):
            return say(200, self.lookup)
        if last in usual or self.schema is not None:
            return say(200, usual.get(last, self.schema))
        return say(404, {"reason": "Schema not found"})

    def redirect(self, to: str, status: int = 307) -> Answer:
        """Return a redirect to the same path on another host."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            say(status, b"", Location=to + handler.path)(handler)

        return answer

    def __enter__(self) -> WebService:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        finish(self._thread)


def refuse(status: int, reason: str) -> Answer:
    """Return an error in the form of Pulsar's web service."""
    return say(status, json.dumps({"reason": reason}).encode())
