"""Which command may follow which, as state tables.

Three state machines describe a connection, its producers and its consumers. Both ends apply them to
every command, sent or received. A table maps a state to the commands that are legal in it, each
with its sender and the next state. Any other command is a violation: `LocalProtocolError` if this
side sent it, `RemoteProtocolError` if the peer did.

Commands that cross on the wire are an exception. After one side has closed a producer or consumer,
the other may still send commands for it: these lead to `STALE`, are harmless, and are dropped. Only
receipts are not, for they tell what was stored.

Pulsar binary protocol, sections "Connection establishment", "Producer" and "Consumer".
"""

from __future__ import annotations

from enum import IntEnum, auto

from pulsar_spark.errors import LocalProtocolError, RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import BODY_FIELDS

_T = pb.BaseCommand


class Role(IntEnum):
    """The two ends of a connection."""

    CLIENT = auto()
    BROKER = auto()

    @property
    def peer(self) -> Role:
        """The other end."""
        return Role.BROKER if self is Role.CLIENT else Role.CLIENT


class State(IntEnum):
    """States of connections, producers and consumers; `STALE` means "drop the command"."""

    START = auto()
    CONNECTING = auto()
    READY = auto()
    CLOSED = auto()

    ABSENT = auto()
    OPENING = auto()
    OPEN = auto()
    SEEKING = auto()
    CLOSING = auto()

    STALE = auto()


Table = dict[State, dict[tuple[Role, int], State]]

_C, _B = Role.CLIENT, Role.BROKER
_S = State

CONNECTION: Table = {
    _S.START: {(_C, _T.CONNECT): _S.CONNECTING},
    _S.CONNECTING: {
        (_B, _T.CONNECTED): _S.READY,
        (_B, _T.AUTH_CHALLENGE): _S.CONNECTING,
        (_C, _T.AUTH_RESPONSE): _S.CONNECTING,
        (_B, _T.ERROR): _S.CLOSED,
        (_B, _T.PING): _S.CONNECTING,
        (_C, _T.PONG): _S.CONNECTING,
    },
    # Everything except a second handshake is legal: added below.
    _S.READY: {},
    _S.CLOSED: {},
}

_HANDSHAKE = frozenset((_T.CONNECT, _T.CONNECTED))
# By type name; AUTH_RESPONSE is the only response that a client sends.
_FROM_BROKER = frozenset(
    number
    for name, number in pb.BaseCommand.Type.items()
    if name.endswith(("_RESPONSE", "_SUCCESS", "_RECEIPT", "_UPDATE")) and name != "AUTH_RESPONSE"
).union(
    (
        _T.SUCCESS,
        _T.ERROR,
        _T.SEND_ERROR,
        _T.MESSAGE,
        _T.REACHED_END_OF_TOPIC,
        _T.ACTIVE_CONSUMER_CHANGE,
        _T.AUTH_CHALLENGE,
        _T.TOPIC_MIGRATED,
    )
)
_FROM_BOTH = frozenset((_T.PING, _T.PONG, _T.CLOSE_PRODUCER, _T.CLOSE_CONSUMER))

for _number in pb.BaseCommand.Type.values():
    if _number in _HANDSHAKE:
        continue
    if _number in _FROM_BROKER or _number in _FROM_BOTH:
        CONNECTION[_S.READY][_B, _number] = _S.READY
    if _number not in _FROM_BROKER or _number in _FROM_BOTH:
        CONNECTION[_S.READY][_C, _number] = _S.READY

PRODUCER: Table = {
    _S.ABSENT: {
        (_C, _T.PRODUCER): _S.OPENING,
        (_C, _T.SEND): _S.STALE,
        (_C, _T.CLOSE_PRODUCER): _S.CLOSING,
        # Entries that were being stored when the broker closed the producer are stored all the
        # same, and acknowledged after that.
        (_B, _T.SEND_RECEIPT): _S.ABSENT,
        (_B, _T.SEND_ERROR): _S.STALE,
        (_B, _T.CLOSE_PRODUCER): _S.STALE,
        (_B, _T.PRODUCER_SUCCESS): _S.STALE,
    },
    # Also while another producer has exclusive access (the answer's producer_ready is false).
    _S.OPENING: {
        (_B, _T.PRODUCER_SUCCESS): _S.OPEN,
        (_B, _T.ERROR): _S.ABSENT,
        (_B, _T.CLOSE_PRODUCER): _S.ABSENT,
        (_C, _T.CLOSE_PRODUCER): _S.CLOSING,
        (_C, _T.SEND): _S.STALE,
        (_B, _T.SEND_RECEIPT): _S.OPENING,
        (_B, _T.SEND_ERROR): _S.STALE,
    },
    _S.OPEN: {
        (_C, _T.SEND): _S.OPEN,
        (_B, _T.SEND_RECEIPT): _S.OPEN,
        (_B, _T.SEND_ERROR): _S.OPEN,
        (_C, _T.CLOSE_PRODUCER): _S.CLOSING,
        (_B, _T.CLOSE_PRODUCER): _S.ABSENT,
        # The same id with a higher epoch takes over from its earlier session.
        (_C, _T.PRODUCER): _S.OPENING,
        (_B, _T.PRODUCER_SUCCESS): _S.STALE,
    },
    _S.CLOSING: {
        (_B, _T.SUCCESS): _S.ABSENT,
        (_B, _T.ERROR): _S.ABSENT,
        (_B, _T.SEND_RECEIPT): _S.CLOSING,
        (_B, _T.SEND_ERROR): _S.CLOSING,
        (_B, _T.CLOSE_PRODUCER): _S.CLOSING,
        (_B, _T.PRODUCER_SUCCESS): _S.STALE,
        (_C, _T.CLOSE_PRODUCER): _S.CLOSING,
        (_C, _T.SEND): _S.STALE,
        (_C, _T.PRODUCER): _S.OPENING,
    },
}

_DELIVERIES = (_T.MESSAGE, _T.REACHED_END_OF_TOPIC, _T.ACTIVE_CONSUMER_CHANGE)
_CONSUMER_CALLS = (
    _T.FLOW,
    _T.ACK,
    _T.REDELIVER_UNACKNOWLEDGED_MESSAGES,
    _T.GET_LAST_MESSAGE_ID,
    _T.CONSUMER_STATS,
)
_STALE_DELIVERIES = {(_B, number): _S.STALE for number in (*_DELIVERIES, _T.CLOSE_CONSUMER)}
_STALE_CALLS = {(_C, number): _S.STALE for number in (_T.FLOW, _T.ACK, _CONSUMER_CALLS[2])}
# A request needs an answer, so it is not dropped; the broker refuses it.
_REFUSED_CALLS = (_T.GET_LAST_MESSAGE_ID, _T.CONSUMER_STATS, _T.SEEK, _T.UNSUBSCRIBE)

CONSUMER: Table = {
    _S.ABSENT: {
        (_C, _T.SUBSCRIBE): _S.OPENING,
        (_C, _T.CLOSE_CONSUMER): _S.CLOSING,
        **{(_C, number): _S.ABSENT for number in _REFUSED_CALLS},
        **_STALE_DELIVERIES,
        **_STALE_CALLS,
    },
    _S.OPENING: {
        (_B, _T.SUCCESS): _S.OPEN,
        (_B, _T.ERROR): _S.ABSENT,
        (_B, _T.CLOSE_CONSUMER): _S.ABSENT,
        (_C, _T.CLOSE_CONSUMER): _S.CLOSING,
        # A delivery can arrive before the answer to SUBSCRIBE.
        **{(_B, number): _S.OPENING for number in _DELIVERIES},
        **_STALE_CALLS,
    },
    _S.OPEN: {
        **{(_C, number): _S.OPEN for number in _CONSUMER_CALLS},
        **{(_B, number): _S.OPEN for number in _DELIVERIES},
        # The same id again: brokers answer it as they did the first time.
        (_C, _T.SUBSCRIBE): _S.OPENING,
        (_C, _T.SEEK): _S.SEEKING,
        (_C, _T.UNSUBSCRIBE): _S.CLOSING,
        (_C, _T.CLOSE_CONSUMER): _S.CLOSING,
        (_B, _T.CLOSE_CONSUMER): _S.ABSENT,
    },
    # A broker closes the consumer during a seek, then answers the seek.
    _S.SEEKING: {
        (_B, _T.SUCCESS): _S.OPEN,
        (_B, _T.ERROR): _S.OPEN,
        (_B, _T.CLOSE_CONSUMER): _S.ABSENT,
        (_C, _T.CLOSE_CONSUMER): _S.CLOSING,
        **{(_C, number): _S.SEEKING for number in _CONSUMER_CALLS},
        **{(_B, number): _S.STALE for number in _DELIVERIES},
    },
    _S.CLOSING: {
        (_B, _T.SUCCESS): _S.ABSENT,
        (_B, _T.ERROR): _S.ABSENT,
        (_C, _T.SUBSCRIBE): _S.OPENING,
        (_C, _T.CLOSE_CONSUMER): _S.CLOSING,
        **{(_C, number): _S.CLOSING for number in _REFUSED_CALLS},
        **_STALE_DELIVERIES,
        **_STALE_CALLS,
    },
}

_PRODUCER_COMMANDS = frozenset(
    (_T.PRODUCER, _T.SEND, _T.SEND_RECEIPT, _T.SEND_ERROR, _T.CLOSE_PRODUCER)
)
_CONSUMER_COMMANDS = frozenset(
    (_T.SUBSCRIBE, _T.SEEK, _T.UNSUBSCRIBE, _T.CLOSE_CONSUMER, *_DELIVERIES, *_CONSUMER_CALLS)
)
_OWNERS = dict.fromkeys(_PRODUCER_COMMANDS, "producer_id") | dict.fromkeys(
    _CONSUMER_COMMANDS, "consumer_id"
)
# Requests whose SUCCESS or ERROR changes the state of their producer or consumer.
_REQUESTS = frozenset(
    (
        *(_T.PRODUCER, _T.CLOSE_PRODUCER),
        *(_T.SUBSCRIBE, _T.SEEK, _T.UNSUBSCRIBE, _T.CLOSE_CONSUMER),
    )
)
_ANSWERS = frozenset((_T.SUCCESS, _T.ERROR, _T.PRODUCER_SUCCESS))

# Maximum number of open requests, so that a peer which never answers, or a client which asks
# forever, cannot use up the memory.
MAX_OPEN_REQUESTS = 100_000


class Conversation:
    """The states of a connection, its producers and its consumers, as one side sees them.

    Call `apply` for every command in the order in which it was sent or received.
    """

    def __init__(self, role: Role) -> None:
        self._role = role
        self.connection = State.START
        self._producers: dict[int, State] = {}
        self._consumers: dict[int, State] = {}
        # Type of a command -> the table for it, and the states that it changes, by their ids.
        self._machines: dict[int, tuple[Table, dict[int, State]]] = {
            **dict.fromkeys(_PRODUCER_COMMANDS, (PRODUCER, self._producers)),
            **dict.fromkeys(_CONSUMER_COMMANDS, (CONSUMER, self._consumers)),
        }
        # request id -> (type of the request, producer or consumer id)
        self._requests: dict[int, tuple[int, int]] = {}

    def producer(self, producer_id: int) -> State:
        """The state of a producer."""
        return self._producers.get(producer_id, State.ABSENT)

    def consumer(self, consumer_id: int) -> State:
        """The state of a consumer."""
        return self._consumers.get(consumer_id, State.ABSENT)

    def apply(self, sender: Role, command: pb.BaseCommand) -> bool:
        """Apply a command; return False if it is stale and must be dropped.

        Raises LocalProtocolError if `sender` is this side and the command is illegal now,
        RemoteProtocolError if it is the peer.
        """
        kind = command.type
        after = self._apply_connection(sender, kind)
        owner_field = _OWNERS.get(kind)
        if owner_field is not None:
            body = getattr(command, BODY_FIELDS[kind])
            owner: int = getattr(body, owner_field)
            if sender is Role.CLIENT and kind in _REQUESTS:
                return self._ask(sender, kind, body.request_id, owner)
            return self._step(sender, kind, owner, *self._machines[kind])
        if kind in _ANSWERS and after is State.READY:
            return self._apply_answer(sender, command)
        return True

    def apply_block(self, sender: Role, kind: int, owner: int) -> bool:
        """Apply a block of MESSAGEs, receipts or SENDs; returns and raises as `apply`.

        They are all of one consumer or producer, the `owner`.
        """
        self._apply_connection(sender, kind)
        return self._step(sender, kind, owner, *self._machines[kind])

    def forget_request(self, request_id: int) -> None:
        """Stop waiting for a request's answer; a late one changes nothing."""
        kind, owner = self._requests.pop(request_id, (None, 0))
        if kind in (_T.CLOSE_PRODUCER, _T.CLOSE_CONSUMER):
            _, states = self._machines[kind]
            if states.get(owner) is State.CLOSING:
                del states[owner]

    def _apply_connection(self, sender: Role, kind: int) -> State:
        after = CONNECTION[self.connection].get((sender, kind))
        if after is None:
            raise self._violation(sender, kind, "the connection", self.connection)
        self.connection = after
        return after

    def _apply_answer(self, sender: Role, command: pb.BaseCommand) -> bool:
        kind = command.type
        body = getattr(command, BODY_FIELDS[kind])
        request = self._requests.get(body.request_id)
        if request is None:
            return True
        if kind == _T.PRODUCER_SUCCESS and not body.producer_ready:
            return True
        del self._requests[body.request_id]
        asked, owner = request
        table, states = self._machines[asked]
        if not _answers_state(asked, states.get(owner, State.ABSENT)):
            # A later request of the same producer or consumer decides its state.
            return True
        if kind == _T.ERROR and asked == _T.UNSUBSCRIBE:
            states[owner] = State.OPEN
            return True
        self._step(sender, kind, owner, table, states)
        return True

    def _ask(self, sender: Role, kind: int, request_id: int, owner: int) -> bool:
        """Step with a request, which is open from then on."""
        error = LocalProtocolError if sender is self._role else RemoteProtocolError
        if len(self._requests) >= MAX_OPEN_REQUESTS:
            raise error(f"more than {MAX_OPEN_REQUESTS} requests are without an answer")
        if request_id in self._requests:
            raise error(f"request id {request_id} is used again before its answer")
        # One that is not allowed now has no answer to wait for.
        applied = self._step(sender, kind, owner, *self._machines[kind])
        self._requests[request_id] = (kind, owner)
        return applied

    def _step(
        self, sender: Role, kind: int, owner: int, table: Table, states: dict[int, State]
    ) -> bool:
        before = states.get(owner, State.ABSENT)
        after = table[before].get((sender, kind))
        if after is None:
            what = "the producer" if table is PRODUCER else "the consumer"
            raise self._violation(sender, kind, f"{what} {owner}", before)
        if after is State.STALE:
            return False
        if after is State.ABSENT:
            states.pop(owner, None)
        else:
            states[owner] = after
        return True

    def _violation(
        self, sender: Role, kind: int, what: str, state: State
    ) -> LocalProtocolError | RemoteProtocolError:
        name = pb.BaseCommand.Type.Name(kind)
        text = f"{name} is not allowed while {what} is {state.name.lower()}"
        if sender is self._role:
            return LocalProtocolError(text)
        return RemoteProtocolError(f"the peer violated the protocol: {text}")


def _answers_state(asked: int, state: State) -> bool:
    """Whether a request of type `asked` has caused `state`."""
    if asked in (_T.PRODUCER, _T.SUBSCRIBE):
        return state is State.OPENING
    if asked == _T.SEEK:
        return state is State.SEEKING
    return state is State.CLOSING
