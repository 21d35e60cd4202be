"""Requests are taken whole from what was received, within bounds."""

from __future__ import annotations

import base64

import pytest

from pulsar_spark.testing.rest.request import (
    MAX_BODY,
    MAX_HEAD,
    Failure,
    RestAnswer,
    RestRequest,
    take,
)


def one(data: bytes) -> RestRequest:
    found = take(bytearray(data))
    assert found is not None
    return found


def test_a_request_is_taken_when_it_is_whole() -> None:
    data = b"PUT /admin/v2/x%2Fy?a=1&b HTTP/1.1\r\nContent-Length: 3\r\nX-Y:  z \r\n\r\n123"
    buffer = bytearray()
    for number in range(len(data)):
        assert take(buffer) is None
        buffer += data[number : number + 1]
    found = take(buffer)
    assert found is not None
    assert (found.method, found.path) == ("PUT", ("admin", "v2", "x/y"))
    assert found.query == {"a": "1", "b": ""}
    assert found.headers == {"content-length": "3", "x-y": "z"}
    assert (found.body, found.json(), found.whole()) == (b"123", 123, 123)
    assert not buffer


def test_requests_on_one_connection_follow_each_other() -> None:
    buffer = bytearray(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\nGE")
    assert [take(buffer) for _ in range(3)][2] is None
    assert buffer == b"GE"


@pytest.mark.parametrize(
    "data,status",
    [
        (b"x" * (MAX_HEAD + 1), 431),
        (b"GET /" + b"a" * MAX_HEAD + b" HTTP/1.1\r\n\r\n", 431),
        (b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1), 413),
        (b"PUT / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"nonsense\r\n\r\n", 400),
        (b"GET http://[/ HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        # A Pulsar client's first frame, and TLS.
        (b"\0\0\0\x0c", 400),
        (b"\x16\x03\x01", 400),
    ],
)
def test_what_is_too_large_or_no_request_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(Failure) as raised:
        take(bytearray(data))
    assert raised.value.status == status


@pytest.mark.parametrize("body", [b"{", b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(Failure, match="no JSON"):
        RestRequest("PUT", (), {}, {}, body).json()


@pytest.mark.parametrize(
    "header,credentials",
    [
        (None, ("", b"")),
        ("Bearer a.b.c", ("token", b"a.b.c")),
        ("Basic " + base64.b64encode(b"user:pw").decode(), ("basic", b"user:pw")),
        ("Basic !", ("basic", b"")),
        ("Digest x", ("", b"")),
    ],
)
def test_credentials_are_those_of_a_client(
    header: str | None, credentials: tuple[str, bytes]
) -> None:
    headers = {} if header is None else {"authorization": header}
    assert RestRequest("GET", (), {}, headers).credentials == credentials


def test_an_answer_says_how_long_it_is_and_whether_more_may_follow() -> None:
    assert RestAnswer.of({"a": "é"}).encode(keep=True) == (
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: keep-alive\r\n"
        b'Content-Type: application/json\r\n\r\n{"a":"\xc3\xa9"}'
    )
    assert RestAnswer.of(None).encode(keep=False) == (
        b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
