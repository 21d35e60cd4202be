from __future__ import annotations

import pytest

from pulsar_spark.engine.connections.addresses import (
    BrokerAddress,
    ServiceUrl,
    assigned_broker,
    parse_broker_url,
    parse_service_url,
    split_host_port,
)
from pulsar_spark.errors import OptionError, RemoteProtocolError
from pulsar_spark.protocol import pulsar_api_pb2 as pb


@pytest.mark.parametrize(
    "text, tls, hosts",
    [
        ("pulsar://h:6650", False, ("h:6650",)),
        ("pulsar://h", False, ("h:6650",)),
        ("pulsar+ssl://h", True, ("h:6651",)),
        ("PULSAR://h1:1,h2,h3:3", False, ("h1:1", "h2:6650", "h3:3")),
        ("pulsar://h1, h2/", False, ("h1:6650", "h2:6650")),
        ("pulsar://[::1]:7000,[fe80::1%eth0]", False, ("[::1]:7000", "[fe80::1%eth0]:6650")),
        ("  pulsar://h  ", False, ("h:6650",)),
        ("pulsar://h,h", False, ("h:6650",)),
    ],
)
def test_service_urls_give_their_hosts(text: str, tls: bool, hosts: tuple[str, ...]) -> None:
    assert parse_service_url(text) == ServiceUrl(tls, hosts)


def test_addresses_of_web_services_are_recognised() -> None:
    assert parse_service_url("http://h1,h2:8080") == ServiceUrl(
        False, ("h1:80", "h2:8080"), web=True
    )
    assert parse_service_url("HTTPS://h") == ServiceUrl(True, ("h:443",), web=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h:6650",
        "pulsar:/h",
        "pulsar://",
        "pulsar://h1,,h2",
        "pulsar://h:0",
        "pulsar://h:65536",
        "pulsar://h:port",
        "pulsar://h:6650/path",
        "pulsar://h?x=1",
        "pulsar://::1",
        "kafka://h:9092",
        "http://h:8080/path",
        "pulsar://" + "h," * 4000 + "h",
    ],
)
def test_what_is_no_service_url_is_refused_with_the_form_it_should_have(text: str) -> None:
    with pytest.raises(OptionError, match=r"pulsar://host"):
        parse_service_url(text)


@pytest.mark.fault(96)
@pytest.mark.parametrize(
    "text",
    [
        "pulsar://me:canary@h:6650",
        "pulsar://canary@h",
        "http://me:canary@h",
        "pulsar://h/canary",
        "canary://h",
        "canary",
    ],
)
def test_an_error_repeats_nothing_that_could_be_a_secret(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_service_url(text)
    assert "canary" not in str(caught.value)


def test_a_broker_names_exactly_one_address() -> None:
    assert parse_broker_url("pulsar://h:1") == ServiceUrl(False, ("h:1",))
    for text in ("", "h:1", "pulsar://h1:1,h2:2", "http://h:1"):
        with pytest.raises(RemoteProtocolError):
            parse_broker_url(text)


@pytest.mark.fault(97)
def test_a_brokers_address_must_not_contain_credentials_but_short_ones_can_be_there_by_chance() -> (
    None
):
    secrets = (b"Correct-Horse", "pulsar", "")
    for text in ("pulsar://correct-horse:1", "pulsar+ssl://a.Correct-Horse.example"):
        with pytest.raises(RemoteProtocolError) as caught:
            parse_broker_url(text, secrets)
        assert "orse" not in str(caught.value)
    assert parse_broker_url("pulsar://pulsar-1:1", secrets).hosts == ("pulsar-1:1",)


def test_hosts_are_split_from_ports() -> None:
    assert split_host_port("h:1") == ("h", 1)
    assert split_host_port("[::1]:2") == ("::1", 2)


def test_a_broker_behind_a_proxy_is_recognised_by_its_addresses() -> None:
    assert not BrokerAddress("h:1", "h:1").proxied
    assert BrokerAddress("h:1", "proxy:1").proxied


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    "plain, secure, tls, expected",
    [
        ("pulsar://b:1", None, False, "b:1"),
        ("pulsar://b:1", "pulsar+ssl://b:2", True, "b:2"),
        (None, "pulsar+ssl://b:2", False, None),
        ("pulsar://b:1", None, True, None),
        ("pulsar://b:1", "pulsar://b:1", True, None),
        ("pulsar+ssl://b:2", None, False, None),
        ("nonsense", None, False, None),
        (None, None, False, None),
    ],
)
def test_an_assigned_broker_is_taken_only_with_the_scheme_of_the_service_url(
    plain: str | None, secure: str | None, tls: bool, expected: str | None
) -> None:
    command = pb.CommandCloseConsumer(
        consumer_id=1,
        request_id=1,
        assignedBrokerServiceUrl=plain,
        assignedBrokerServiceUrlTls=secure,
    )
    direct = assigned_broker(command, BrokerAddress("a:1", "a:1"), tls)
    assert direct == (None if expected is None else BrokerAddress(expected, expected))
    proxied = assigned_broker(command, BrokerAddress("a:1", "proxy:1"), tls)
    assert proxied == (None if expected is None else BrokerAddress(expected, "proxy:1"))
