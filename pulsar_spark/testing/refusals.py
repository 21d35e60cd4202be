"""Errors of the broker: a ServerError code and a text."""

from __future__ import annotations

from pulsar_spark.protocol import pulsar_api_pb2 as pb


class Refusal(Exception):
    """Raised to refuse a request; the session answers with `code` and `message`.

    It is control flow inside the embedded broker and never leaves it.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def server_error(code: int | str) -> int:
    """Return a ServerError's number for its number or name; ValueError for anything else."""
    if isinstance(code, str):
        return int(pb.ServerError.Value(code))
    pb.ServerError.Name(code)
    return code
