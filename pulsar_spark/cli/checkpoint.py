"""What a query's checkpoint says about its subscriptions, read from Spark's offset log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pulsar_spark.errors import InvalidOffset, OptionError, listed
from pulsar_spark.protocol.topic_name import topic_of
from pulsar_spark.spark.streaming.stream_offset import StreamOffset

# Lines before the offsets: the log's version, and Spark's own metadata.
_HEAD = 2


def stream_offsets(checkpoint: str, *, committed: bool = False) -> list[StreamOffset]:
    """Return the newest offset of each Pulsar source of a checkpoint's query.

    With `committed`, that of the newest micro-batch that was committed; if none was, the first
    one's is where the query started.

    Raises OptionError if the path is no checkpoint, or no folder on this machine; InvalidOffset
    for a damaged offset.
    """
    folder = folder_of(checkpoint, committed=committed) / "offsets"
    try:
        logs = [path for path in folder.iterdir() if path.name.isdecimal()]
        newest = max(logs, key=lambda path: int(path.name), default=None)
        begun = None
        if committed:
            names = {path.name for path in logs} & _names(folder.parent / "commits")
            begun = max(names, key=int, default=None)
            newest = newest if begun is None else folder / begun
        lines = [] if newest is None else newest.read_text("utf-8").splitlines()[_HEAD:]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise OptionError(
            f"{folder} cannot be read: {reason}",
            "--checkpoint takes the folder of checkpointLocation.",
        ) from None
    found: list[StreamOffset] = []
    for number, line in enumerate(lines, _HEAD + 1):
        # A line is an offset, or a source's name, a colon and an offset.
        _, brace, rest = line.partition("{")
        try:
            body = json.loads(brace + rest) if brace else None
        except (ValueError, RecursionError):
            raise InvalidOffset(
                f"{newest}, line {number}, is damaged", "Restore the checkpoint from a copy."
            ) from None
        # Lines of other sources look different.
        if isinstance(body, dict) and "subscription" in body:
            offset = StreamOffset.from_json(body)
            if committed and begun is None and offset.starts is not None:
                offset = replace(offset, positions=offset.starts)
            found.append(offset)
    if not found and newest is not None:
        raise OptionError(
            f"{newest} holds no offset of a Pulsar stream: it is empty, or another source's",
            "Name the checkpoint of a query that reads topics.",
        )
    if not found:
        raise OptionError(
            f"{folder} has no offset of a Pulsar stream",
            "A query writes one when its first micro-batch is planned.",
        )
    return found


def check_topic(offsets: Iterable[StreamOffset], topic: str | None) -> None:
    """Raise OptionError if no offset has a position of `topic`, or of a partition of it."""
    known = [partition for offset in offsets for partition in offset.positions]
    if topic is None or any(is_of(partition, topic) for partition in known):
        return
    names = dict.fromkeys(topic_of(partition) for partition in known)
    raise OptionError(
        f"the checkpoint has no position of {topic}",
        f"It has those of {listed(names)}." if names else "It has none of any topic.",
    )


def is_of(partition: str, topic: str | None) -> bool:
    """Whether a topic partition is one of `topic`, or `topic` itself; of any if it is None."""
    return topic in (None, partition, topic_of(partition))


def _names(folder: Path) -> set[str]:
    """Return the names of a folder's files; none if there is no such folder."""
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def folder_of(checkpoint: str, *, committed: bool = False) -> Path:
    """Return the folder of a checkpoint; `committed` as for `stream_offsets`."""
    url = urlsplit(checkpoint)
    if not url.scheme:
        return Path(checkpoint)
    if url.scheme != "file":
        other = "" if committed else ", or name the subscription with --subscription"
        raise OptionError(
            f"--checkpoint is on {url.scheme}://, which this command cannot read",
            f"Copy its folders offsets and commits to this machine{other}.",
        )
    return Path(unquote(url.path))
