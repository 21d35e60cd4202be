"""Requests and answers of the admin REST."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pulsar_spark.protocol.topic_name import TopicName
from pulsar_spark.testing.topic_store import parse_topic

MAX_HEAD = 32 * 1024
"""Bytes of a request's first line and headers."""
MAX_BODY = 1024 * 1024
"""Bytes of a request's body: a schema is the largest."""

T = TypeVar("T")

_NAMES = {dict: "object", list: "array", int: "whole number", bool: "boolean", str: "string"}
_HEAD_END = b"\r\n\r\n"


class Failure(Exception):
    """Raised to answer with an error, in the form of Pulsar's web service."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def typed(value: Any, kind: type[T]) -> T:
    """Return a value that came as JSON, or raise Failure if it is not of a type."""
    # Not isinstance: true and false are whole numbers for Python.
    if type(value) is not kind:
        raise Failure(HTTPStatus.BAD_REQUEST, f"A JSON {_NAMES[kind]} is expected")
    return value


def whole(value: Any) -> int:
    """Return a whole number that came as JSON; some clients write it as a text. Raises Failure."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        return int(value)
    return typed(value, int)


@dataclass(frozen=True, slots=True)
class RestAnswer:
    """A status and a body: JSON if it is a text. `headers` are without ``X-Pulsar-``."""

    status: int
    body: str | bytes = ""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any) -> RestAnswer:
        """The usual answer with a value: none for None."""
        if isinstance(value, RestAnswer):
            return value
        return cls(HTTPStatus.NO_CONTENT) if value is None else cls(HTTPStatus.OK, encoded(value))

    def encode(self, *, keep: bool) -> bytes:
        """Return the answer's bytes. `keep`: more requests may follow on the connection."""
        body = self.body
        if isinstance(body, str):
            body = body.encode("utf-8", "replace")
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Length: {len(body)}",
            f"Connection: {'keep-alive' if keep else 'close'}",
        ]
        if body:
            lines.append("Content-Type: application/json")
        lines += [f"X-Pulsar-{name}: {_in_header(text)}" for name, text in self.headers.items()]
        return "\r\n".join(lines).encode("latin-1", "replace") + _HEAD_END + body


def _in_header(text: str) -> str:
    """Return a text without what would end a header."""
    return "".join(one if one.isprintable() else "?" for one in text)


def encoded(value: Any) -> str:
    """Return a value as JSON, as Pulsar writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class RestRequest:
    """A request: `path` has its parts, `named` those that its route has names for."""

    method: str
    path: tuple[str, ...]
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""
    named: dict[str, str] = field(default_factory=dict)

    def flag(self, name: str) -> bool:
        """Whether a parameter of the query is true."""
        return self.query.get(name, "").lower() == "true"

    def json(self) -> Any:
        """Return the body's value, None without one; raises Failure."""
        if not self.body.strip():
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise Failure(HTTPStatus.BAD_REQUEST, "The body is no JSON") from None

    def whole(self, name: str | None = None) -> int:
        """Return the body's number, or that of a named part or parameter; raises Failure."""
        if name is None:
            return whole(self.json())
        try:
            return int({**self.query, **self.named}[name])
        except ValueError:
            raise Failure(HTTPStatus.NOT_FOUND, "A whole number is expected") from None

    def record(self) -> dict[str, Any]:
        """Return the body's object; raises Failure."""
        return typed(self.json(), dict)

    @property
    def namespace(self) -> str:
        """The namespace in the path: ``tenant/namespace``."""
        return f"{self.named['tenant']}/{self.named['namespace']}"

    @property
    def topic(self) -> TopicName:
        """The topic in the path; raises Refusal."""
        domain = self.named.get("domain", "persistent")
        return parse_topic(f"{domain}://{self.namespace}/{self.named['topic']}")

    @property
    def credentials(self) -> tuple[str, bytes]:
        """The authentication method and credentials, as CONNECT has them."""
        scheme, _, value = self.headers.get("authorization", "").partition(" ")
        if scheme == "Bearer":
            return "token", value.encode()
        if scheme == "Basic":
            try:
                return "basic", base64.b64decode(value, validate=True)
            except binascii.Error:
                return "basic", b""
        return "", b""


def take(buffer: bytearray) -> RestRequest | None:
    """Remove a whole request from the front of what was received; None if it is not whole yet.

    Raises Failure for what is too long, or no request.
    """
    if buffer and not buffer[:1].isalpha():
        # A client of another protocol would wait for more.
        raise Failure(HTTPStatus.BAD_REQUEST, "This is no request")
    end = buffer.find(_HEAD_END)
    if end > MAX_HEAD or (end < 0 and len(buffer) > MAX_HEAD):
        raise Failure(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"At most {MAX_HEAD} bytes")
    if end < 0:
        return None
    first, *lines = bytes(buffer[:end]).decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    length = _length(headers)
    start = end + len(_HEAD_END)
    if len(buffer) < start + length:
        return None
    body = bytes(buffer[start : start + length])
    del buffer[: start + length]
    try:
        method, target, protocol = first.split(" ")
        parts = urlsplit(target)
    except ValueError:
        raise Failure(HTTPStatus.BAD_REQUEST, "This is no request") from None
    path = tuple(unquote(part) for part in parts.path.strip("/").split("/"))
    if protocol == "HTTP/1.0":
        headers.setdefault("connection", "close")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    return RestRequest(method, path, query, headers, body)


def _length(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise Failure(HTTPStatus.LENGTH_REQUIRED, "A body needs its Content-Length")
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdecimal()):
        raise Failure(HTTPStatus.BAD_REQUEST, "Content-Length is no number")
    if len(text) > len(str(MAX_BODY)) or int(text) > MAX_BODY:
        raise Failure(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"At most {MAX_BODY} bytes")
    return int(text)
