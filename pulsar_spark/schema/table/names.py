"""Names of the columns that code treats by name; the others are rows of METADATA_COLUMNS."""

from __future__ import annotations

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
