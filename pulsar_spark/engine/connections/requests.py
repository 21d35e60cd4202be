"""Requests that wait for their answers on one connection."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import cache
from typing import Any

from google.protobuf.message import Message

from pulsar_spark.errors import (
    AuthorizationError,
    BrokerError,
    InvalidTopicName,
    LocalProtocolError,
    OperationTimeout,
    PulsarError,
    from_server_error,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import BODY_FIELDS
from pulsar_spark.protocol.topic_name import TopicName

MAX_IN_FLIGHT = 64
"""Requests about topics that one broker gets at a time: thousands at once help nobody."""

MAX_REQUESTS = 50_000
"""How many requests may wait on one connection."""

_T = pb.BaseCommand


@cache
def answers_to(kind: int) -> frozenset[int]:
    """Return the command types that may answer a request of type `kind`."""
    name = pb.BaseCommand.Type.Name(kind).removesuffix("_REQUEST")
    own = (f"{name}_RESPONSE", f"{name}_SUCCESS")
    found = [number for other, number in pb.BaseCommand.Type.items() if other in own]
    return frozenset((*(found or [_T.SUCCESS]), _T.ERROR))


# When a broker closes a consumer, it may leave these unanswered. It does answer SEEK, for which
# it closes the consumer.
_QUESTIONS = frozenset({_T.GET_LAST_MESSAGE_ID, _T.CONSUMER_STATS, _T.ACK})


class Request(Future[Any]):
    """A request that waits; its result is the body of the answering command.

    `kind` is the request's command type, `asked` the id of the consumer that it asks about, and
    `command` what was sent, for its errors.
    """

    def __init__(
        self,
        request_id: int,
        kind: int,
        timeout: float,
        asked: int | None = None,
        command: pb.BaseCommand | None = None,
    ) -> None:
        super().__init__()
        self.request_id = request_id
        self.kind = kind
        self.asked = asked
        self.command = command
        self.timeout = timeout
        self.asked_at = time.monotonic()
        self.deadline = self.asked_at + timeout

    def cancel(self) -> bool:
        """Refuse: only the receive thread completes a request."""
        return False

    @property
    def what(self) -> str:
        """The command's name, for errors."""
        return pb.BaseCommand.Type.Name(self.kind)

    def timeout_error(self, broker: str) -> OperationTimeout:
        """Return the error for a missing answer."""
        return OperationTimeout(
            f"the broker did not answer {self.what} within {self.timeout:g} s", broker=broker
        )


class RequestTable:
    """The open requests of a connection. Not thread-safe: its owner holds a mutex.

    The protocol core keeps those whose answers change a state: whenever a request ends, `forget`
    ends it there too.
    """

    def __init__(self, forget: Callable[[int], None]) -> None:
        self._forget = forget
        self._ids = itertools.count()
        self._open: dict[int, Request] = {}
        # Request ids by consumer: a broker may close thousands of consumers at once.
        self._asked: dict[int, set[int]] = {}
        self._next_deadline = float("inf")

    def __len__(self) -> int:
        return len(self._open)

    def next_id(self) -> int:
        """Return a request id that this connection has never used."""
        return next(self._ids)

    def add(self, request: Request) -> None:
        """Register a request; raises LocalProtocolError if too many wait."""
        if len(self._open) >= MAX_REQUESTS:
            raise LocalProtocolError(f"{MAX_REQUESTS} requests wait for an answer already")
        self._open[request.request_id] = request
        if request.asked is not None:
            self._asked.setdefault(request.asked, set()).add(request.request_id)
        self._next_deadline = min(self._next_deadline, request.deadline)

    def take(self, request_id: int) -> Request | None:
        """Remove and return a request; None if it is not open (any more)."""
        self._forget(request_id)
        request = self._open.pop(request_id, None)
        if request is not None and request.asked is not None:
            ids = self._asked[request.asked]
            ids.discard(request_id)
            if not ids:
                del self._asked[request.asked]
        return request

    def get(self, request_id: int) -> Request | None:
        """Return a request; None if it is not open (any more)."""
        return self._open.get(request_id)

    @property
    def waiting_since(self) -> float | None:
        """When the oldest open request was made."""
        return next((request.asked_at for request in self._open.values()), None)

    def take_expired(self, now: float) -> list[Request]:
        """Remove and return the requests that have timed out."""
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
        """Remove and return the questions about a consumer."""
        taken = [self.take(request_id) for request_id in list(self._asked.get(consumer_id, ()))]
        return [request for request in taken if request is not None]

    def take_all(self) -> list[Request]:
        """Remove and return all requests."""
        requests = list(self._open.values())
        for request in requests:
            self.take(request.request_id)
        return requests


class Opening:
    """The request that begins a consumer or producer, whose wait can be ended. Thread-safe.

    Events of the broker can come before its answer, and instead of it. `abandon` fails a request
    that is still open.
    """

    def __init__(self, abandon: Callable[[Future[Any], PulsarError], None]) -> None:
        self.error: PulsarError | None = None
        """Why there is nothing to wait for."""
        self._abandon = abandon
        self._lock = threading.Lock()
        # Guarded by _lock, as is `error`.
        self._request: Future[Any] | None = None

    def begin(self, request: Future[Any]) -> Future[Any]:
        """Return the request, which fails as soon as `end` was called."""
        with self._lock:
            self._request, error = request, self.error
        if error is not None:
            self._abandon(request, error)
        return request

    def end(self, error: PulsarError) -> None:
        """Fail the request with an error, now or when it is made, unless it has its answer."""
        with self._lock:
            self.error, request = error, self._request
        if request is not None:
            self._abandon(request, error)


class InFlightLimit:
    """At most MAX_IN_FLIGHT requests at a time; others wait, in order. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The following are guarded by _lock.
        self._taken = 0
        self._waiting: dict[Future[None], None] = {}
        self._giving = False

    def take(self) -> Future[None] | None:
        """Return a future that completes when it is the caller's turn; None if it is already."""
        with self._lock:
            if self._taken < MAX_IN_FLIGHT:
                self._taken += 1
                return None
            turn: Future[None] = Future()
            self._waiting[turn] = None
            return turn

    def give_back(self, turn: Future[None] | None) -> None:
        """End a turn, or the wait for it: what `take` returned."""
        with self._lock:
            if turn in self._waiting:
                del self._waiting[turn]
                return
            self._taken -= 1
            if self._giving:
                return
            self._giving = True
        # A turn may end before this returns: use a loop, not recursion.
        while True:
            with self._lock:
                if self._taken >= MAX_IN_FLIGHT or not self._waiting:
                    self._giving = False
                    return
                following = next(iter(self._waiting))
                del self._waiting[following]
                self._taken += 1
            following.set_result(None)


def asked_consumer(command: pb.BaseCommand) -> int | None:
    """Return the id of the consumer that a command asks about, None if it is not a question."""
    if command.type not in _QUESTIONS:
        return None
    return int(getattr(command, BODY_FIELDS[command.type]).consumer_id)


def error_in(
    body: Message, broker: str, secrets: Iterable[str | bytes] = (), *, anonymous: bool = False
) -> BrokerError | None:
    """Return the error in an answer, None if the request succeeded.

    `secrets` are credentials that the broker was sent and might repeat; `anonymous` says that there
    are none to send.
    """
    fields = body.DESCRIPTOR.fields_by_name
    for code_field, text_field in (("error", "message"), ("error_code", "error_message")):
        if code_field in fields and body.HasField(code_field):
            code, text = getattr(body, code_field), getattr(body, text_field)
            return from_server_error(code, text, secrets, anonymous=anonymous, broker=broker)
    return None


_EITHER = ("produce", "consume")
_PERMISSIONS = {
    "SUBSCRIBE": ("consume",),
    "SEEK": ("consume",),
    "GET_LAST_MESSAGE_ID": ("consume",),
    "PRODUCER": ("produce",),
    "LOOKUP": _EITHER,
    "PARTITIONED_METADATA": _EITHER,
    "GET_SCHEMA": _EITHER,
}
"""Command → the permissions of which it needs one."""


def naming_permission(error: PulsarError, request: Request) -> PulsarError:
    """Return a request's error; if the role lacks a permission, it names that permission."""
    actions = _PERMISSIONS.get(request.what)
    if type(error) is not AuthorizationError or actions is None:
        return error
    namespace = "TENANT/NAMESPACE"
    body = None if request.command is None else getattr(request.command, BODY_FIELDS[request.kind])
    # Some commands name a consumer instead.
    if (topic := getattr(body, "topic", None)) is not None:
        with contextlib.suppress(InvalidTopicName):
            namespace = TopicName.parse(topic).namespace_name
    remedy = (
        f"Grant the role the permission to {' or '.join(actions)} (pulsar-admin namespaces "
        f"grant-permission {namespace} --role ROLE --actions {','.join(actions)})."
    )
    named = AuthorizationError(f"{error.what} ({request.what})", remedy)
    return named.with_context(broker=error.broker)


def fail(request: Request, error: PulsarError) -> None:
    """Fail a request with a copy of the error: requests must not share one traceback."""
    request.set_exception(error.with_context())
