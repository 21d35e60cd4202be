"""Options of a read, checked against each other."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark import cloudpickle

from pulsar_spark.engine.options import AuthOptions
from pulsar_spark.errors import InvalidOffset, InvalidTopicName, OptionError, UnsupportedFeature
from pulsar_spark.protocol.message_id import MessageIdAdv
from pulsar_spark.spark.offsets import EARLIEST_BOUND, LATEST_BOUND, Bound, BoundKind
from pulsar_spark.spark.options.read import ReadOptions, parse_read_options
from pulsar_spark.spark.options.table import Scope

SECRET = "canary-7b1f"
URL = {"service.url": "pulsar://localhost:6650"}


def parse(**more: str) -> ReadOptions:
    return parse_read_options({**URL, "topic": "t", **more})


def dotted(options: dict[str, str]) -> ReadOptions:
    return parse_read_options({**URL, "topic": "t", **options})


def test_a_proxy_is_given_with_its_protocol() -> None:
    base = {"service.url": "pulsar+ssl://h", "topic": "t"}
    proxy = {"pulsar.client.proxyServiceUrl": "pulsar+ssl://p:4443"}
    for given in (proxy, {"pulsar.client.proxyProtocol": "SNI"}):
        with pytest.raises(OptionError, match="must be set together"):
            parse_read_options({**base, **given})
    found = parse_read_options({**base, **proxy, "pulsar.client.proxyProtocol": "sni"})
    assert found.client.proxy == "p:4443"


def test_the_defaults_are_those_of_the_interface() -> None:
    options = parse()
    assert options.topics == ("persistent://public/default/t",)
    assert options.pattern is None
    assert options.starting.default == EARLIEST_BOUND
    assert options.ending.default == LATEST_BOUND
    assert options.publish_time_tolerance == 60_000
    assert options.fail_on_data_loss is True
    assert options.raw is False
    assert options.mode == "FAILFAST"
    assert options.include_metadata is False
    assert options.partitions_per_topic_partition == 1
    assert options.min_partitions is None
    assert options.reader.poll_timeout == 120.0
    assert options.reader.receiver_queue_size == 1000
    assert options.reader.auto_scale is True
    assert options.reader.memory_budget == 64 * 1024 * 1024
    assert options.client.operation_timeout == 30.0
    assert options.client.connection_timeout == 10.0
    assert options.client.keep_alive_interval == 30.0
    assert options.client.max_lookup_redirects == 20
    assert options.client.tls.verify_hostname is True


def test_options_reach_the_client_and_the_reader() -> None:
    options = dotted(
        {
            "pulsar.client.authpluginclassname": "token",
            "pulsar.client.authparams": f"token:{SECRET}",
            "pulsar.client.operationtimeoutms": "1500",
            "pulsar.client.memorylimitbytes": "16m",
            "pulsar.client.listenername": "external",
            "pulsar.reader.receiverqueuesize": "7",
            "subscriptionprefix": "mine",
            "readcompacted": "true",
            "polltimeoutms": "5000",
        }
    )
    assert options.client.auth == AuthOptions("token", token=SECRET)
    assert options.client.operation_timeout == 1.5
    assert options.client.memory_limit == options.reader.memory_budget == 16 * 1024 * 1024
    assert options.client.listener_name == "external"
    assert options.reader.receiver_queue_size == 7
    assert options.reader.auto_scale is False
    assert options.reader.subscription_prefix == "mine"
    assert options.reader.read_compacted is True
    assert options.reader.poll_timeout == 5.0


@pytest.mark.parametrize(
    "given,topics",
    [
        ({"topic": "t"}, ["persistent://public/default/t"]),
        ({"path": "a/b/t"}, ["persistent://a/b/t"]),
        (
            {"path": "t", "topic": "persistent://public/default/t"},
            ["persistent://public/default/t"],
        ),
        ({"topic": "t-partition-3"}, ["persistent://public/default/t-partition-3"]),
        (
            {"topics": "t, a/b/u, t"},
            ["persistent://public/default/t", "persistent://a/b/u"],
        ),
        ({"paths": '["t", "u"]'}, [f"persistent://public/default/{name}" for name in "tu"]),
    ],
)
def test_topics_are_given_in_several_ways(given: dict[str, str], topics: list[str]) -> None:
    assert parse_read_options({**URL, **given}).topics == tuple(topics)


def test_a_pattern_stands_instead_of_topics() -> None:
    options = parse_read_options({**URL, "topicsPattern": "a/b/t.*"})
    assert options.topics == ()
    assert options.pattern is not None
    assert options.pattern.namespace == "a/b"


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "given,told",
    [
        ({}, "no topic is given"),
        ({"topic": "t", "topics": "u"}, "topic and topics cannot be"),
        ({"topic": "t", "topicsPattern": "u"}, "topic and topicsPattern cannot be"),
        ({"topic": "t", "path": "u"}, "different topics"),
        ({"topic": "t,u"}, "comma. Name several topics with the option topics."),
        ({"topics": "['t', 'u']"}, "Expected names separated by commas: a,b."),
        ({"topic": "t", "mode": "append"}, "mode: 'append' is not a valid value"),
        ({"topic": "t", "service.url": "localhost:6650"}, "service.url"),
        ({"topic": "t", "service.url": "pulsar://h:99999"}, "service.url"),
        ({"topic": "t", "valueFormat": "avro"}, "valueFormat=avro needs the option valueSchema"),
        ({"topic": "t", "publishTimeTolerance": "999999999999999999d"}, "publishTimeTolerance"),
        ({"paths": "t"}, "paths"),
        ({"paths": "[1]"}, "paths"),
        (
            {"topic": "t", "startingOffsets": "earliest", "startingTime": "0"},
            "startingOffsets and startingTime cannot",
        ),
        (
            {"topic": "t", "endingOffsets": "latest", "endingTime": "5"},
            "endingOffsets and endingTime cannot",
        ),
    ],
)
def test_contradictions_are_errors(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_read_options({**URL, **given})
    assert told in str(caught.value)


@pytest.mark.fault(99)
def test_the_service_url_is_required() -> None:
    with pytest.raises(OptionError, match=r"service\.url is required"):
        parse_read_options({"topic": "t"})


@pytest.mark.fault(65)
def test_a_non_persistent_topic_cannot_be_read_and_the_error_says_why() -> None:
    for given in ({"topic": "non-persistent://a/b/c"}, {"topics": "t,non-persistent://a/b/c"}):
        with pytest.raises(UnsupportedFeature, match="stores nothing") as caught:
            parse_read_options({**URL, **given})
        assert caught.value.topic == "non-persistent://a/b/c"


@pytest.mark.fault(65)
@pytest.mark.parametrize("name", ["", "a/b", "a//t", "ftp://a/b/c"])
def test_a_name_that_is_none_is_an_error(name: str) -> None:
    with pytest.raises((InvalidTopicName, OptionError)):
        parse_read_options({**URL, "topic": name})


@pytest.mark.fault(65)
@pytest.mark.parametrize("name", ["a%2Fb", "tö-pic", "a-partition-b", "x-partition-1-y"])
def test_odd_names_are_names(name: str) -> None:
    assert parse_read_options({**URL, "topic": name}).topics == (
        f"persistent://public/default/{name}",
    )


def test_starts_and_ends_are_offsets_or_times() -> None:
    options = parse(startingOffsets='{"t": "1:2"}', endingTime="5")
    assert options.starting.by_topic == (
        ("persistent://public/default/t", Bound(BoundKind.ID, MessageIdAdv(1, 2))),
    )
    assert options.ending.default == Bound(BoundKind.TIME, millis=5)
    assert parse(startingTime="-1h").starting.default == Bound(BoundKind.AGE, millis=3_600_000)


@pytest.mark.parametrize("given", [{"startingOffsets": "latest"}, {"endingOffsets": "earliest"}])
def test_a_batch_has_a_start_before_its_end(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOffset):
        parse(**given)


def test_what_only_streams_may_ask_for_passes_where_the_kind_of_read_is_not_known() -> None:
    given = {**URL, "topic": "t", "startingOffsets": "latest", "maxBytesPerTrigger": "1m"}
    assert parse_read_options(given, Scope.READS).starting.default == LATEST_BOUND


@pytest.mark.fault(98)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_the_options_are_plain_data(pickler: Any) -> None:
    options = parse(startingOffsets='{"t": "1:2"}')
    assert pickler.loads(pickler.dumps(options)) == options
    pattern = parse_read_options({**URL, "topicsPattern": "t.*"})
    assert pickler.loads(pickler.dumps(pattern)) == pattern


@pytest.mark.fault(96)
def test_the_repr_shows_no_secret() -> None:
    options = dotted(
        {
            "pulsar.client.authPluginClassName": "token",
            "pulsar.client.authParams": f"token:{SECRET}",
        }
    )
    assert SECRET not in repr(options)


@pytest.mark.parametrize("params", ["", " "])
def test_empty_credentials_as_java_jobs_carry_them_are_none(params: str) -> None:
    options = {
        "service.url": "pulsar+ssl://h:6651",
        "pulsar.client.authPluginClassName": "tls",
        "pulsar.client.authParams": params,
        "pulsar.client.tlsCertificateFilePath": "/run/c.pem",
        "pulsar.client.tlsKeyFilePath": "/run/c.key",
    }
    assert dotted(options).client.auth == AuthOptions("tls")
    with pytest.raises(OptionError, match="authParams"):
        dotted({**options, "pulsar.client.authPluginClassName": "token"})
