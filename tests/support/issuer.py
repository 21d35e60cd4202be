"""An OAuth2 issuer that gives tokens to everyone, and misbehaves as a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from tests.support.certificates import Authority
from tests.support.waiting import finish

Answer = Callable[[BaseHTTPRequestHandler], None]


def say(status: int, body: object, **headers: str) -> Answer:
    """Return an answer with JSON or bytes."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


class Issuer:
    """Issues token-1, token-2, … unless `on_token` or `on_discovery` say otherwise.

    As a proxy it opens no connections, and says so unless `on_connect` does otherwise.
    """

    def __init__(self, authority: Authority | None, **certificate: Any) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.paths: list[str] = []
        self.headers: list[Message] = []
        self.expires_in: object = 3600
        self.on_token: Answer | None = None
        self.on_discovery: Answer | None = None
        self.on_connect: Answer | None = None
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.paths.append(self.path)
                issuer.headers.append(self.headers)
                metadata = {"issuer": issuer.url, "token_endpoint": f"{issuer.url}/token"}
                (issuer.on_discovery or say(200, metadata))(self)

            def do_POST(self) -> None:
                issuer.headers.append(self.headers)
                size = int(self.headers["Content-Length"])
                issuer.asked.append(parse_qs(self.rfile.read(size).decode()))
                token = {
                    "access_token": f"token-{len(issuer.asked)}",
                    "token_type": "Bearer",
                    "expires_in": issuer.expires_in,
                }
                (issuer.on_token or say(200, token))(self)

            def do_CONNECT(self) -> None:
                issuer.paths.append(self.path)
                issuer.headers.append(self.headers)
                (issuer.on_connect or say(403, {}))(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """Clients that disconnect are part of the tests."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if authority is not None:
            names = certificate.pop("names", ())
            context = authority.server(*names, **certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if authority is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Issuer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        finish(self._thread)
