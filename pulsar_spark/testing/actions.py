"""What a fault does to a command: one class for each kind of fault.

An action is applied to a client's command (`on_command`, before it is carried out), or to a frame
that the broker is about to send (`on_frame`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar

from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import MAGIC_BROKER_ENTRY_METADATA, MAGIC_CHECKSUM
from pulsar_spark.testing.refusals import server_error

if TYPE_CHECKING:
    from pulsar_spark.testing.rules import Seen
    from pulsar_spark.testing.session import Session

_U16 = Struct(">H")
_U32 = Struct(">I")


@dataclass(slots=True)
class Incoming:
    """A client's command, and how to execute it."""

    kind: int
    body: Any
    payload: memoryview | None
    carry_out: Callable[[Incoming], None]


class Action:
    """What happens instead; the base class changes nothing.

    The session is the connection that it applies to; everything is on the broker's thread.
    """

    wants_answer: ClassVar[bool] = False
    """Whether the action, set on a request, applies to its answer.

    Requests have no payload to damage, and are neither cut nor repeated.
    """

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        """Handle a client's command; only `command.carry_out` carries it out."""
        command.carry_out(command)

    def on_frame(self, target: Session, frame: bytes, seen: Seen) -> None:
        """Handle a frame to a client; only `target.transmit` sends it."""
        target.transmit(frame)


@dataclass(frozen=True)
class Drop(Action):
    """The command is lost: not carried out, or not sent."""

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        """Lose it."""

    def on_frame(self, target: Session, frame: bytes, seen: Seen) -> None:
        """Lose it."""


@dataclass(frozen=True)
class Delay(Action):
    """The command waits; `hold` says whether the rest of the connection waits too.

    By default it does for commands whose order matters (SEND, ACK, FLOW, receipts, messages), and
    does not for requests and their answers.
    """

    seconds: float
    hold: bool | None = None

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        """Carry it out later."""
        hold = not hasattr(command.body, "request_id") if self.hold is None else self.hold
        target.later(self.seconds, lambda: command.carry_out(command))
        if hold:
            # After the line above, so that this command continues first.
            target.hold_input(self.seconds)

    def on_frame(self, target: Session, frame: bytes, seen: Seen) -> None:
        """Send it later."""
        hold = not hasattr(seen.body, "request_id") if self.hold is None else self.hold
        if hold:
            target.hold_output(self.seconds)
            target.transmit(frame)
        else:
            target.later(self.seconds, lambda: target.transmit(frame))


@dataclass(frozen=True)
class Error(Action):
    """The command is refused with a ServerError `code` (number or name)."""

    code: int | str
    message: str = "refused on demand"

    def __post_init__(self) -> None:
        try:
            server_error(self.code)
        except ValueError:
            raise OptionError(f"{self.code!r} is no ServerError") from None

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        """Answer with the error."""
        target.refuse(command.kind, command.body, server_error(self.code), self.message)


@dataclass(frozen=True)
class Close(Action):
    """The connection is closed instead; with `reset` by a TCP reset."""

    reset: bool = False

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        """Close without carrying it out."""
        target.disconnect(reset=self.reset)

    def on_frame(self, target: Session, frame: bytes, seen: Seen) -> None:
        """Close without sending it."""
        target.disconnect(reset=self.reset)


@dataclass(frozen=True)
class BlackHole(Action):
    """The connection stays open, but the broker falls silent: a half-open peer."""

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        """Fall silent."""
        target.mute()

    def on_frame(self, target: Session, frame: bytes, seen: Seen) -> None:
        """Fall silent."""
        target.mute()


@dataclass(frozen=True)
class Redirect(Action):
    """LOOKUP is answered with a redirect to another broker's URL."""

    url: str | None
    url_tls: str | None = None
    authoritative: bool = False

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        """Answer with the redirect."""
        target.answer(
            command.body,
            pb.CommandLookupTopicResponse,
            seen.topic,
            response=pb.CommandLookupTopicResponse.Redirect,
            brokerServiceUrl=self.url,
            brokerServiceUrlTls=self.url_tls,
            authoritative=self.authoritative,
        )


@dataclass(frozen=True)
class Rewrite(Action):
    """A function changes the frame's bytes: any damage is possible.

    For SEND, the function gets what follows the command; for other requests the answer.
    """

    wants_answer = True

    function: Callable[[bytes], bytes]

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        """Carry it out with other bytes."""
        if command.payload is not None:
            command.payload = memoryview(self.function(bytes(command.payload)))
        command.carry_out(command)

    def on_frame(self, target: Session, frame: bytes, seen: Seen) -> None:
        """Send other bytes."""
        target.transmit(self.function(frame))


CORRUPTIBLE = ("payload", "checksum", "metadata", "metadata_size", "magic", "command", "size")


@dataclass(frozen=True)
class Corrupt(Action):
    """One byte is flipped, in the given part (see `CORRUPTIBLE`).

    In frames without a payload the command is damaged, for every part except "size".
    """

    wants_answer = True

    part: str = "payload"

    def __post_init__(self) -> None:
        if self.part not in CORRUPTIBLE:
            raise OptionError(f"{self.part!r} is no part of a frame", f"One of {CORRUPTIBLE}.")

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        """Carry out a SEND as if it had been damaged on the way."""
        if command.payload is not None:
            data = bytearray(command.payload)
            data[_position(data, 0, self.part)] ^= 0x01
            command.payload = memoryview(bytes(data))
        command.carry_out(command)

    def on_frame(self, target: Session, frame: bytes, seen: Seen) -> None:
        """Send the damaged frame."""
        data = bytearray(frame)
        command_end = 2 * _U32.size + _U32.unpack_from(data, _U32.size)[0]
        if self.part == "size":
            data[: _U32.size] = b"\x7f\xff\xff\xff"
        elif self.part == "command" or command_end >= len(data):
            # Field 0 does not exist, so no parser accepts this as a command.
            data[2 * _U32.size] = 0
        else:
            data[_position(data, command_end, self.part)] ^= 0x01
        target.transmit(bytes(data))


def _position(data: bytearray, start: int, part: str) -> int:
    """Return the index of a part's byte to flip."""
    position = start
    if _U16.unpack_from(data, position)[0] == MAGIC_BROKER_ENTRY_METADATA:
        position += _U16.size + _U32.size + _U32.unpack_from(data, position + _U16.size)[0]
    magic = position
    has_checksum = _U16.unpack_from(data, position)[0] == MAGIC_CHECKSUM
    if has_checksum:
        position += _U16.size + _U32.size
    places = {
        "payload": len(data) - 1,
        "metadata": position + _U32.size,
        "metadata_size": position,
        "magic": magic,
        "checksum": magic + _U16.size if has_checksum else len(data) - 1,
    }
    return min(places.get(part, len(data) - 1), len(data) - 1)


@dataclass(frozen=True)
class Truncate(Action):
    """Only the first `size` bytes of the frame are sent, then the connection is closed."""

    wants_answer = True

    size: int = 6

    def on_frame(self, target: Session, frame: bytes, seen: Seen) -> None:
        """Send the beginning, then close."""
        target.transmit(frame[: self.size])
        target.disconnect()


@dataclass(frozen=True)
class Duplicate(Action):
    """The frame is sent more than once: `copies` times in all."""

    wants_answer = True

    copies: int = 2

    def on_frame(self, target: Session, frame: bytes, seen: Seen) -> None:
        """Send it again and again."""
        for _ in range(self.copies):
            target.transmit(frame)


@dataclass(frozen=True)
class Trickle(Action):
    """The frame is sent in pieces of `size` bytes, one every `seconds`."""

    wants_answer = True

    size: int = 1
    seconds: float = 0.001

    def on_frame(self, target: Session, frame: bytes, seen: Seen) -> None:
        """Send the first piece now and the others later, and everything else after them."""
        if target.output_held:
            target.transmit(frame)
            return
        pieces = [frame[at : at + self.size] for at in range(0, len(frame), self.size)]
        for number, piece in enumerate(pieces):
            target.later(number * self.seconds, partial(target.write, piece))
        target.hold_output(len(pieces) * self.seconds)


@dataclass(frozen=True)
class Call(Action):
    """Calls a function of the test on the broker's thread, then continues normally.

    It must not block. It may use the broker's own methods, such as `unload`.
    """

    function: Callable[[Seen], object]

    def on_command(self, target: Session, command: Incoming, seen: Seen) -> None:
        """Call, then carry it out."""
        self.function(seen)
        command.carry_out(command)

    def on_frame(self, target: Session, frame: bytes, seen: Seen) -> None:
        """Call, then send it."""
        self.function(seen)
        target.transmit(frame)
