"""The examples of docs/python-client.md run unchanged, except for the address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pulsar_spark.testing import EmbeddedBroker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python-client.md"


def test_the_examples_of_the_page() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    names: dict[str, Any] = {}
    with EmbeddedBroker() as broker:
        for block in blocks:
            code = block.replace("pulsar://localhost:6650", broker.service_url)
            exec(compile(code, PAGE.name, "exec"), names)
        audited = broker.stats("persistent://public/default/audited")
        assert audited.messages_in >= 1
    assert names["total"] == 1
    assert names["order"].data() == b"order 1"
    assert names["latest"] == b"order 1"
