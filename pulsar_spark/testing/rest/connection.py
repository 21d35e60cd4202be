"""One connection of an HTTP client to the admin REST."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from pulsar_spark.errors import PulsarError, TopicNotFound
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.refusals import Refusal
from pulsar_spark.testing.rest.request import Failure, RestAnswer, RestRequest, encoded, take
from pulsar_spark.testing.rest.table import handler_of
from pulsar_spark.testing.wire import Wire

if TYPE_CHECKING:
    from pulsar_spark.testing.server import Server

MAX_CONNECTIONS = 128
# A request has to be whole after this time, and the next one on the connection to come.
_IDLE_SECONDS = 60.0

_STATUS = {
    pb.TopicNotFound: HTTPStatus.NOT_FOUND,
    pb.SubscriptionNotFound: HTTPStatus.NOT_FOUND,
    pb.InvalidTopicName: HTTPStatus.PRECONDITION_FAILED,
    pb.IncompatibleSchema: HTTPStatus.CONFLICT,
    pb.NotAllowedError: HTTPStatus.PRECONDITION_FAILED,
}


class RestConnection(Wire):
    """Requests in, answers out, one after another, on the broker's thread."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.loop)
        self._server = server
        self._received = bytearray()
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request, unless there are too many connections."""
        super().connection_made(transport)
        self._server.rest_connections.add(self)
        if len(self._server.rest_connections) > MAX_CONNECTIONS:
            self.abort()
            return
        self._restart_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()
        self._received.clear()
        self._server.rest_connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """RestAnswer the requests that are whole."""
        self._received += data
        try:
            while self.open and (asked := take(self._received)) is not None:
                self._restart_deadline()
                self._say(self._answer(asked), keep=_keeps(asked))
        except Failure as failure:
            self._say(_refused(failure.status, failure.reason), keep=False)

    def resume_writing(self) -> None:
        """Read again: the client has read its answers."""
        super().resume_writing()
        self.pause(False)

    def _restart_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(_IDLE_SECONDS, self.disconnect)

    def _say(self, answer: RestAnswer, *, keep: bool) -> None:
        self.write(answer.encode(keep=keep))
        self.pause(not self.writable)
        if not keep:
            self.disconnect()

    def _answer(self, asked: RestRequest) -> RestAnswer:
        try:
            if not self._server.options.accepts(*asked.credentials):
                return _refused(HTTPStatus.UNAUTHORIZED, "Authentication required")
            handler, request = handler_of(asked)
            return RestAnswer.of(handler(self._server, request))
        except Failure as failure:
            return _refused(failure.status, failure.reason)
        except Refusal as refusal:
            status = _STATUS.get(refusal.code, HTTPStatus.INTERNAL_SERVER_ERROR)
            return _refused(status, refusal.message)
        except PulsarError as error:
            missing = isinstance(error, TopicNotFound)
            status = HTTPStatus.NOT_FOUND if missing else HTTPStatus.INTERNAL_SERVER_ERROR
            return _refused(status, str(error))
        except Exception as error:
            self._server.note_internal_error(error)
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


def _keeps(asked: RestRequest) -> bool:
    return asked.headers.get("connection", "").lower() != "close"


def _refused(status: int, reason: str) -> RestAnswer:
    return RestAnswer(status, encoded({"reason": reason}))
