"""``topics`` lists existing topics, and creates none."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.testing import EmbeddedBroker
from tests.support.issuer import say
from tests.support.web_service import WebService


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        for name, partitions in (("orders", 3), ("plain", 0), ("tenant/space/far", 0)):
            running.create_topic(name, partitions=partitions)
        running.create_topic("__system")
        yield running


def listed(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], *arguments: str
) -> dict[str, int]:
    assert cli.main(["topics", "--service-url", broker.service_url, "--json", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(set(entry) == {"topic", "partitions", "schema"} for entry in found)
    return {entry["topic"].rpartition("/")[2]: entry["partitions"] for entry in found}


def test_the_topics_of_a_namespace_are_listed(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    before = broker.topics()
    assert listed(broker, capsys) == {"orders": 3, "plain": 0}
    assert listed(broker, capsys, "--namespace", "tenant/space") == {"far": 0}
    assert listed(broker, capsys, "--pattern", "or.*") == {"orders": 3}
    assert listed(broker, capsys, "--option", "topicsPattern=tenant/space/.*") == {"far": 0}
    assert listed(broker, capsys, "--topic", "orders") == {"orders": 3}
    assert listed(broker, capsys, "--namespace", "tenant/nothing") == {}
    assert broker.topics() == before


@pytest.mark.parametrize(
    "what",
    ["--pattern=f.*", "--option=topicsPattern=f.*", "--pattern=tenant/space/f.*", "--topic=far"],
)
def test_a_short_name_or_pattern_is_of_the_namespace_that_is_given(
    what: str, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(broker, capsys, "--namespace", "tenant/space", what) == {"far": 0}


@pytest.mark.parametrize(
    "what",
    ["--topic=public/default/orders", "--pattern=persistent://public/default/.*"],
)
def test_a_full_name_or_pattern_of_another_namespace_is_wrong_usage(
    what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--service-url", "pulsar://localhost", "--namespace", "tenant/space"]
    assert cli.main(["topics", *place, what]) == 2
    told = capsys.readouterr().err
    assert "--namespace is tenant/space" in told
    assert "public/default" in told


def test_a_table_has_a_line_for_each(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["topics", "--service-url", broker.service_url]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["topic", "partitions", "schema"],
        ["persistent://public/default/orders", "3", "-"],
        ["persistent://public/default/plain", "0", "-"],
    ]


def test_a_topic_that_is_named_and_missing_is_an_error(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    before = broker.topics()
    assert cli.main(["topics", "--service-url", broker.service_url, "--topic", "none"]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert broker.topics() == before


def test_a_web_server_that_is_not_pulsars_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with WebService() as web:
        web.answers, web.again = [say(404, b"<html>Not Found</html>")], True
        assert cli.main(["topics", "--service-url", web.url]) == 1
    shown = capsys.readouterr()
    assert "is not Pulsar's web service" in shown.err
    assert shown.out == ""
