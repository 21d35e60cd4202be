"""What a query's checkpoint says about its subscriptions, read from Spark's offset log."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pulsar_spark.errors import OptionError
from pulsar_spark.spark.streaming.stream_offset import StreamOffset

# Lines before the offsets: the log's version, and Spark's own metadata.
_HEAD = 2


def stream_offsets(checkpoint: str) -> list[StreamOffset]:
    """Return the newest offset of each Pulsar source of a checkpoint's query.

    Raises OptionError if the path is no checkpoint, or no folder on this machine; InvalidOffset
    for a damaged offset.
    """
    folder = _folder(checkpoint) / "offsets"
    try:
        logs = [path for path in folder.iterdir() if path.name.isdecimal()]
        newest = max(logs, key=lambda path: int(path.name), default=None)
        lines = [] if newest is None else newest.read_text("utf-8").splitlines()[_HEAD:]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise OptionError(
            f"{folder} cannot be read: {reason}",
            "--checkpoint takes the folder of checkpointLocation.",
        ) from None
    found: list[StreamOffset] = []
    for line in lines:
        body: object = None
        # A line is an offset, or a source's name, a colon and an offset.
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(line[max(line.find("{"), 0) :])
        # Lines of other sources look different.
        if isinstance(body, dict) and "subscription" in body:
            found.append(StreamOffset.from_json(body))
    if not found:
        raise OptionError(
            f"{folder} has no offset of a Pulsar stream",
            "A query writes one when its first micro-batch is planned.",
        )
    return found


def _folder(checkpoint: str) -> Path:
    url = urlsplit(checkpoint)
    if not url.scheme:
        return Path(checkpoint)
    if url.scheme != "file":
        raise OptionError(
            f"--checkpoint is on {url.scheme}://, which this command cannot read",
            "Copy the checkpoint's folder offsets to this machine, or name the subscription with "
            "--subscription.",
        )
    return Path(unquote(url.path))
