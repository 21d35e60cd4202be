"""Validation of commands and messages beyond well-formed protobuf.

Numbers on the wire have a wider range than Pulsar's: ids are unsigned there and signed `long`s in
Java, where -1 is the only valid negative value. And protobuf returns bytes if a string is not
UTF-8. Both are refused here, once per command, before a field is used. Readers check error texts,
topic lists and producers' texts themselves, so that one invalid part does not affect the others.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from pulsar_spark.errors import RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import BODY_FIELDS

_T = pb.BaseCommand
_VARINT = 0  # the wire type of numbers
_MAX_LONG = 2**63 - 1
_NONE = 2**64 - 1  # -1, which says that there is no such message

# `message` and `error_message` are texts for people; `topics` are checked one by one.
_LENIENT_FIELDS = frozenset(("message", "error_message", "topics"))

# Fields that are message ids, by answer.
_IDS = {
    _T.SEND_RECEIPT: ("message_id",),
    _T.GET_LAST_MESSAGE_ID_RESPONSE: ("last_message_id", "consumer_mark_delete_position"),
}


ANSWERS = frozenset(
    number
    for name, number in _T.Type.items()
    if name.endswith(("_RESPONSE", "_SUCCESS")) and number != _T.AUTH_RESPONSE
) | {_T.SUCCESS, _T.ERROR}
"""Types of the commands that answer a request: an invalid one fails that request only; any other
invalid command fails its connection.
"""


def check_body(kind: int, body: Any) -> None:
    """Raise RemoteProtocolError for text that is not UTF-8, or an impossible number.

    `kind` is the command's type, `body` its own message.
    """
    if kind in _WITH_TEXT:
        _check_text(body, kind)
    if kind in _IDS:
        for field in _IDS[kind]:
            check_id(getattr(body, field))
    elif kind == _T.PRODUCER_SUCCESS and body.last_sequence_id < -1:
        raise RemoteProtocolError(f"the last sequence id of a producer is {body.last_sequence_id}")


def check_id(message_id: pb.MessageIdData, *, is_stored: bool = False) -> None:
    """Raise RemoteProtocolError for an id below -1.

    With `is_stored` also for one below 0, or one that no position can be after.
    """
    is_last = is_stored and message_id.entryId == _MAX_LONG
    for number in (message_id.ledgerId, message_id.entryId):
        if is_last or (number > _MAX_LONG and (is_stored or number != _NONE)):
            raise RemoteProtocolError(
                f"{message_id.ledgerId}:{message_id.entryId} is not a valid position of a message"
            )


def is_unicode(text: Any) -> TypeGuard[str]:
    """Whether this is text that is valid Unicode.

    Lone surrogates are not; JSON escapes, and what Python reads of the system, can contain them.
    """
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_text(text: str | bytes) -> str:
    """Return a text field as text; protobuf returns bytes if it is not UTF-8."""
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def hidden_number(message: Message, field: int) -> int | None:
    """Return an enum field's last value if protobuf hides it, because it is unknown.

    None if there is none. With another wire type it is another field, and is ignored.
    """
    found: int | None = None
    unknown = UnknownFieldSet(message)
    for index in range(len(unknown)):
        entry = unknown[index]
        if entry.field_number == field and entry.wire_type == _VARINT:
            found = int(entry.data)
    return found


def _check_text(message: Message, kind: int) -> None:
    for field, value in message.ListFields():
        if field.name in _LENIENT_FIELDS:
            continue
        if field.type == FieldDescriptor.TYPE_STRING:
            if bytes in map(type, (value,) if isinstance(value, (str, bytes)) else value):
                raise RemoteProtocolError(
                    f"{field.name} of {_T.Type.Name(kind)} is not text in UTF-8"
                )
        elif field.message_type is not None and _has_text(field.message_type):
            for part in (value,) if isinstance(value, Message) else value:
                _check_text(part, kind)


def _has_text(descriptor: Descriptor, within: frozenset[str] = frozenset()) -> bool:
    within |= {descriptor.full_name}
    return any(
        field.type == FieldDescriptor.TYPE_STRING
        or (
            field.message_type is not None
            and field.message_type.full_name not in within
            and _has_text(field.message_type, within)
        )
        for field in descriptor.fields
    )


# Payload commands, FLOW, ACK and receipts come by the million and have no text.
_WITH_TEXT = frozenset(
    number
    for number, name in BODY_FIELDS.items()
    if number != _T.ACK and _has_text(getattr(_T(), name).DESCRIPTOR)
)
