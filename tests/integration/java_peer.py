"""Pulsar's own Java client, run beside the tests as one process that takes commands."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pulsar_spark.protocol.message_id import MessageIdAdv
from tests.integration.brokers import Broker
from tests.support.pulsar_distribution import Distribution

_SOURCE = Path(__file__).with_name("JavaPeer.java")
_ANSWER_SECONDS = 180.0
_JVM_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=OFF")


class JavaContent(NamedTuple):
    """A message for Java: `key` is text, or bytes that are sent as base64."""

    value: bytes | None
    key: str | bytes | None = None
    ordering_key: bytes | None = None
    properties: tuple[tuple[str, str], ...] = ()
    event_time: int = 0


class JavaMessage(NamedTuple):
    """A message as the Java client read it."""

    content: JavaContent
    message_id: MessageIdAdv
    sequence_id: int
    publish_time: int
    producer: str
    topic: str


class JavaPeer:
    """Writes and reads by the Java client. `close` at the end."""

    def __init__(self, distribution: Distribution) -> None:
        self._process = subprocess.Popen(
            [distribution.java, *_JVM_FLAGS, "-cp", f"{distribution.lib}/*", str(_SOURCE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    def write(
        self,
        broker: Broker,
        topic: str,
        contents: list[JavaContent],
        *,
        batching: bool = True,
        chunking: bool = False,
        codec: str = "NONE",
        hashing: str = "JavaStringHash",
        transaction: str | None = None,
        public_key: str | None = None,
    ) -> list[MessageIdAdv]:
        """Send messages and return their ids.

        `transaction` is ``commit``, ``abort`` or ``leave`` (open). Messages are encrypted for the
        name ``k`` with a public key, which is PEM text.
        """
        command: dict[str, Any] = {
            "do": "write",
            "batching": batching,
            "chunking": chunking,
            "codec": codec,
            "hashing": hashing,
            "messages": [_to_json(content) for content in contents],
        }
        if transaction is not None:
            command["transaction"] = transaction
        if public_key is not None:
            command["publicKey"] = _as_url(public_key)
        answer = self._ask(broker, topic, command)
        return [MessageIdAdv.deserialize(base64.b64decode(found)) for found in answer["ids"]]

    def read(
        self, broker: Broker, topic: str, count: int, private_key: str | None = None
    ) -> list[JavaMessage]:
        """Return the first `count` messages of a topic, and check that there are no more.

        Encrypted ones are decrypted with a private key, which is PEM text.
        """
        command: dict[str, Any] = {"do": "read", "count": count}
        if private_key is not None:
            command["privateKey"] = _as_url(private_key)
        answer = self._ask(broker, topic, command)
        return [_from_json(found) for found in answer["messages"]]

    def write_typed(
        self,
        broker: Broker,
        topic: str,
        schema: Mapping[str, Any],
        values: list[Any],
        *,
        batching: bool = True,
    ) -> None:
        """Send values, given as JSON, with a producer that has a schema.

        `schema` has a ``type``; records also a ``class``, KEY_VALUE a ``key``, a ``value`` and an
        ``encoding``.
        """
        command = {"do": "writeTyped", "schema": schema, "values": values, "batching": batching}
        self._ask(broker, topic, command)

    def read_typed(
        self, broker: Broker, topic: str, schema: Mapping[str, Any], count: int
    ) -> list[Any]:
        """Return the first values of a topic as JSON, as a consumer with a schema decodes them."""
        answer = self._ask(broker, topic, {"do": "readTyped", "schema": schema, "count": count})
        return [found["value"] for found in answer["messages"]]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, broker: Broker, topic: str, command: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(_ANSWER_SECONDS, process.kill)
        watchdog.start()
        try:
            process.stdin.write(json.dumps({**command, "url": broker.service_url, "topic": topic}))
            process.stdin.write("\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.startswith("@"):
                    answer: dict[str, Any] = json.loads(line[1:])
                    assert "error" not in answer, answer["error"]
                    return answer
        finally:
            watchdog.cancel()
        raise AssertionError(f"the Java client ended with status {process.wait(10)}")


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _as_url(pem: str) -> str:
    return "data:application/x-pem-file;base64," + base64.b64encode(pem.encode()).decode()


def _to_json(content: JavaContent) -> dict[str, Any]:
    return {
        "value": _base64(content.value),
        "key": content.key if isinstance(content.key, str) else None,
        "keyBytes": _base64(content.key) if isinstance(content.key, bytes) else None,
        "orderingKey": _base64(content.ordering_key),
        "properties": content.properties,
        "eventTime": content.event_time,
    }


def _from_json(found: dict[str, Any]) -> JavaMessage:
    key: str | bytes | None = found.get("key")
    if found.get("isBase64"):
        key = base64.b64decode(found["keyBytes"])
    value, ordering_key = found["value"], found.get("orderingKey")
    content = JavaContent(
        None if value is None else base64.b64decode(value),
        key,
        None if ordering_key is None else base64.b64decode(ordering_key),
        tuple(sorted((name, text) for name, text in found["properties"])),
        found["eventTime"],
    )
    return JavaMessage(
        content,
        MessageIdAdv.deserialize(base64.b64decode(found["id"])),
        found["sequenceId"],
        found["publishTime"],
        found["producer"],
        found["topic"],
    )
