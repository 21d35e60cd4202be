"""Requests that wait for their answers on one connection."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from concurrent.futures import Future
from functools import cache
from typing import Any

from google.protobuf.message import Message

from pulsar_spark.errors import (
    AuthorizationError,
    BrokerError,
    LocalProtocolError,
    OperationTimeout,
    PulsarError,
    from_server_error,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frames import BODY_FIELDS

MAX_REQUESTS = 50_000
"""Requests that one connection lets wait at a time."""

_T = pb.BaseCommand


@cache
def answers_to(kind: int) -> frozenset[int]:
    """Return the types of the commands that answer a request of type `kind`."""
    name = pb.BaseCommand.Type.Name(kind).removesuffix("_REQUEST")
    own = (f"{name}_RESPONSE", f"{name}_SUCCESS")
    found = [number for other, number in pb.BaseCommand.Type.items() if other in own]
    return frozenset((*(found or [_T.SUCCESS]), _T.ERROR))


# A broker that sends a consumer away need not answer these. It does answer a SEEK, for which it
# sends its consumer away.
_QUESTIONS = frozenset({_T.GET_LAST_MESSAGE_ID, _T.CONSUMER_STATS})


class Request(Future[Any]):
    """An answer that is waited for; its result is the answering command's own message.

    `kind` is the type of the command that asks, `asked` the id of the consumer that a question
    is about.
    """

    def __init__(
        self, request_id: int, kind: int, timeout: float, asked: int | None = None
    ) -> None:
        super().__init__()
        self.request_id = request_id
        self.asked = asked
        self.what = pb.BaseCommand.Type.Name(kind)
        self.answers = answers_to(kind)
        self.timeout = timeout
        self.asked_at = time.monotonic()
        self.deadline = self.asked_at + timeout
        # An answer belongs to the receive thread: nobody else may cancel the wait for it.
        self.set_running_or_notify_cancel()

    def timeout_error(self, broker: str) -> OperationTimeout:
        """Return the error for an answer that did not come."""
        return OperationTimeout(
            f"the broker did not answer {self.what} within {self.timeout:g} s", broker=broker
        )


class RequestTable:
    """The open requests of a connection. Not thread-safe: its owner holds a mutex."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._open: dict[int, Request] = {}
        # Request ids by the consumer that is asked about: thousands may be sent away at once.
        self._asked: dict[int, set[int]] = {}
        self._next_deadline = float("inf")

    def __len__(self) -> int:
        return len(self._open)

    def next_id(self) -> int:
        """Return a request id that was never used on this connection."""
        return next(self._ids)

    def add(self, request: Request) -> None:
        """Wait for the answer to a request; raises LocalProtocolError if too many wait."""
        if len(self._open) >= MAX_REQUESTS:
            raise LocalProtocolError(f"{MAX_REQUESTS} requests wait for an answer already")
        self._open[request.request_id] = request
        if request.asked is not None:
            self._asked.setdefault(request.asked, set()).add(request.request_id)
        self._next_deadline = min(self._next_deadline, request.deadline)

    def take(self, request_id: int) -> Request | None:
        """Return and forget the request, None if it is not open (any more)."""
        request = self._open.pop(request_id, None)
        if request is not None and request.asked is not None:
            ids = self._asked[request.asked]
            ids.discard(request_id)
            if not ids:
                del self._asked[request.asked]
        return request

    def get(self, request_id: int) -> Request | None:
        """Return the request, None if it is not open (any more)."""
        return self._open.get(request_id)

    @property
    def waiting_since(self) -> float | None:
        """When the oldest request that is open was made."""
        return next((request.asked_at for request in self._open.values()), None)

    def take_expired(self, now: float) -> list[Request]:
        """Return and forget the requests whose time is up."""
        if now < self._next_deadline:
            return []
        expired = [request for request in self._open.values() if request.deadline <= now]
        for request in expired:
            self.take(request.request_id)
        self._next_deadline = min(
            (request.deadline for request in self._open.values()), default=float("inf")
        )
        return expired

    def take_asked(self, consumer_id: int) -> list[Request]:
        """Return and forget the questions about a consumer."""
        taken = [self.take(request_id) for request_id in list(self._asked.get(consumer_id, ()))]
        return [request for request in taken if request is not None]

    def take_all(self) -> list[Request]:
        """Return and forget all requests."""
        requests = list(self._open.values())
        self._open.clear()
        self._asked.clear()
        return requests


def asked_consumer(command: pb.BaseCommand) -> int | None:
    """Return the id of the consumer that a command asks about, None if it is no question."""
    if command.type not in _QUESTIONS:
        return None
    return int(getattr(command, BODY_FIELDS[command.type]).consumer_id)


def error_in(body: Message, broker: str, secrets: Iterable[str | bytes] = ()) -> BrokerError | None:
    """Return the error that an answer carries, None if the request was carried out.

    `secrets` are the credentials that the broker was given, and might repeat.
    """
    fields = body.DESCRIPTOR.fields_by_name
    for code_field, text_field in (("error", "message"), ("error_code", "error_message")):
        if code_field in fields and body.HasField(code_field):
            code, text = getattr(body, code_field), getattr(body, text_field)
            return from_server_error(code, text, secrets, broker=broker)
    return None


_PERMISSIONS = {
    "SUBSCRIBE": "consume",
    "SEEK": "consume",
    "GET_LAST_MESSAGE_ID": "consume",
    "PRODUCER": "produce",
    "LOOKUP": "produce or consume",
    "PARTITIONED_METADATA": "produce or consume",
    "GET_SCHEMA": "produce or consume",
}


def naming_permission(error: PulsarError, what: str) -> PulsarError:
    """Return the error of a request, which says what a role lacks that may not do this."""
    permission = _PERMISSIONS.get(what)
    if not isinstance(error, AuthorizationError) or permission is None:
        return error
    remedy = (
        f"Grant the role the permission to {permission} (pulsar-admin namespaces "
        f"grant-permission TENANT/NAMESPACE --role ROLE --actions {permission.split()[-1]})."
    )
    return AuthorizationError(f"{error.what} ({what})", remedy).with_context(broker=error.broker)


def fail(request: Request, error: PulsarError) -> None:
    """Give a request an error of its own: several must not share one traceback."""
    request.set_exception(error.with_context())
