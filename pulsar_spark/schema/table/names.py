"""Names of the columns that code treats by name; the others are rows of METADATA_COLUMNS."""

from __future__ import annotations

from typing import Any, TypeGuard

VALUE = "value"
KEY = "__key"
TOPIC = "__topic"
MESSAGE_ID = "__messageId"
PUBLISH_TIME = "__publishTime"
EVENT_TIME = "__eventTime"
PROPERTIES = "__messageProperties"
PARTITION = "__partition"
SEQUENCE_ID = "__sequenceId"
ORDERING_KEY = "__orderingKey"
DELIVER_AT = "__deliverAt"


def is_unicode(text: Any) -> TypeGuard[str]:
    """Whether this is valid Unicode text, as names must be.

    Lone surrogates are not; JSON escapes can contain them.
    """
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
