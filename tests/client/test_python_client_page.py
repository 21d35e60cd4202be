"""The examples of the pages about the client run unchanged, except for the address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pulsar_spark.testing import EmbeddedBroker

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "python-client.md"
PROGRAMS = DOCS / "pulsar-client-programs.md"


def examples_of(page: Path, broker: EmbeddedBroker) -> dict[str, Any]:
    """Run a page's examples one after the other; return the names that they have defined."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S):
        code = block.replace("pulsar://localhost:6650", broker.service_url)
        exec(compile(code, page.name, "exec"), names)
    return names


def test_the_examples_of_the_page() -> None:
    with EmbeddedBroker() as broker:
        names = examples_of(PAGE, broker)
        audited = broker.stats("persistent://public/default/audited")
        assert audited.messages_in >= 1
    assert names["total"] == 1
    assert names["order"].data() == b"order 1"
    assert names["latest"] == b"order 1"
    assert names["copied"] == b"order 1"


def test_the_examples_of_programs_of_the_official_client() -> None:
    with EmbeddedBroker() as broker:
        names = examples_of(PROGRAMS, broker)
    assert names["received"] == ["event 0", "event 1", "event 2"]
    assert names["jobs"] == [b"%d" % number for number in range(10)]


def test_each_import_that_the_programs_need_is_there() -> None:
    rows = re.findall(r"^\| `(.*?)` \| `(.*?)` \|$", PROGRAMS.read_text("utf-8"), re.M)
    assert len(rows) == 5
    for theirs, own in rows:
        assert own.replace("pulsar_spark.client", "pulsar").replace(" as pulsar", "") == theirs
        exec(own.removesuffix(", …"), {})
