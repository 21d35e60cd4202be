from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable

import pytest

from pulsar_spark.engine.options import (
    AuthOptions,
    ClientOptions,
    OAuth2Options,
    ProducerOptions,
    ReaderOptions,
    TlsOptions,
)
from pulsar_spark.errors import OptionError
from pulsar_spark.protocol import pulsar_api_pb2 as pb

TLS = "pulsar+ssl://h"
PEM = "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----"
ALL = [
    AuthOptions("tls", certificate_file=PEM, key_file=PEM),
    AuthOptions(
        "oauth2",
        oauth2=OAuth2Options("https://i", private_key="canary", client_secret="canary"),
    ),
    AuthOptions("plugin", plugin="own:Own", plugin_params="canary"),
    TlsOptions(trust_certs_file=PEM, certificate_file=f"content:{PEM}", key_file=PEM),
    AuthOptions("token", token="canary", password="canary"),
    TlsOptions(trust_certs_file="ca.pem", key_file="canary"),
    ClientOptions("pulsar://h:6650", auth=AuthOptions("basic", username="u", password="canary")),
    ReaderOptions(),
    ProducerOptions(compression=pb.LZ4),
]


@pytest.mark.fault(98)
@pytest.mark.parametrize("options", ALL, ids=lambda options: type(options).__name__)
def test_options_survive_pickling(options: object) -> None:
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.fault(96)
@pytest.mark.parametrize("options", ALL, ids=lambda options: type(options).__name__)
def test_no_repr_shows_a_secret(options: object) -> None:
    assert "canary" not in repr(options)


@pytest.mark.parametrize("options", ALL, ids=lambda options: type(options).__name__)
def test_options_cannot_be_changed(options: object) -> None:
    field = dataclasses.fields(options)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options, field, None)


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: ClientOptions("pulsar://h", listener_name="\ud800"), "the listener's name"),
        (lambda: ClientOptions("pulsar://h", operation_timeout=0), "operation_timeout"),
        (lambda: ClientOptions("pulsar://h", auth=AuthOptions("tls")), r"pulsar\+ssl://"),
        (lambda: ClientOptions(TLS, auth=AuthOptions("tls")), "needs a certificate"),
        (lambda: ClientOptions(TLS, tls=TlsOptions(key_file="k")), "no certificate"),
        (lambda: ClientOptions(TLS, tls=TlsOptions(certificate_file="c")), "no key"),
        (lambda: ClientOptions(TLS, tls=TlsOptions("content:/a/path")), "not PEM"),
        (
            lambda: ClientOptions(
                TLS,
                auth=AuthOptions("tls", certificate_file="a", key_file="b"),
                tls=TlsOptions(certificate_file="c", key_file="b"),
            ),
            "differ",
        ),
        (lambda: ClientOptions("pulsar://h", connection_timeout=-1), "connection_timeout"),
        (lambda: ClientOptions("pulsar://h", keep_alive_interval=0), "keep_alive_interval"),
        (lambda: ClientOptions("pulsar://h", max_lookup_redirects=-1), "max_lookup_redirects"),
        (lambda: ClientOptions("pulsar://h", memory_limit=0), "memory_limit"),
        (lambda: ClientOptions("pulsar://h", operation_timeout=float("nan")), "operation_timeout"),
        (lambda: ReaderOptions(memory_budget=0), "memory_budget"),
        (lambda: ReaderOptions(receiver_queue_size=0), "receiver_queue_size"),
        (lambda: ReaderOptions(poll_timeout=0), "poll_timeout"),
        (lambda: ReaderOptions(subscription_prefix=""), "subscription_prefix"),
        (lambda: ProducerOptions(compression=99), "compression"),
        (lambda: ProducerOptions(access_mode=99), "access_mode"),
        (lambda: ProducerOptions(hashing_scheme="MD5"), "hashing_scheme"),
        (lambda: ProducerOptions(routing_mode="Random"), "routing_mode"),
        (lambda: ProducerOptions(batching_max_messages=0), "batching_max_messages"),
        (lambda: ProducerOptions(send_timeout=-1), "send_timeout"),
    ],
)
def test_values_out_of_range_are_refused_by_name(make: Callable[[], object], name: str) -> None:
    with pytest.raises(OptionError, match=name):
        make()


def test_a_client_needs_a_service_url() -> None:
    with pytest.raises(OptionError, match=r"service\.url"):
        ClientOptions("h:6650")
