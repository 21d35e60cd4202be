"""Users' credentials: plain options that show no secret."""

from __future__ import annotations

import pytest

from pulsar_spark.client.authentication import (
    Authentication,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
)
from pulsar_spark.engine.authentication.providers import provider_for
from pulsar_spark.engine.options import AuthOptions, OAuth2Options
from pulsar_spark.errors import AuthenticationError, OptionError, UnsupportedFeature


def test_a_token_is_given_as_text() -> None:
    assert AuthenticationToken("secret").options == AuthOptions(method="token", token="secret")
    with pytest.raises(OptionError):
        AuthenticationToken(5)  # type: ignore[arg-type]


def test_a_token_is_asked_of_a_function_each_time() -> None:
    tokens = iter(["one", "two", "", None])
    provider = provider_for(AuthenticationToken(lambda: next(tokens)).options)  # type: ignore[arg-type, return-value]
    assert [provider.auth_data(), provider.auth_data()] == [b"one", b"two"]
    for _ in range(2):
        with pytest.raises(AuthenticationError, match="returned none"):
            provider.auth_data()


def test_an_issuer_of_tokens_is_given_as_json() -> None:
    given = '{"issuer_url": "https://i", "private_key": "/k", "audience": "a", "scope": "s"}'
    assert AuthenticationOauth2(given).options.oauth2 == OAuth2Options(
        "https://i", private_key="/k", audience="a", scope="s"
    )
    for wrong in ("secret", '{"private_key": "secret"}', "[1]"):
        with pytest.raises(OptionError) as caught:
            AuthenticationOauth2(wrong)
        assert "secret" not in str(caught.value)


def test_a_user_is_given_by_name_and_password_or_json() -> None:
    expected = AuthOptions(method="basic", username="u", password="secret")
    assert AuthenticationBasic("u", "secret").options == expected
    params = '{"username": "u", "password": "secret"}'
    assert AuthenticationBasic(auth_params_string=params).options == expected


def test_a_user_logs_in_by_the_method_that_is_named() -> None:
    params = '{"username": "u", "password": "secret", "method": "oms"}'
    for given in (
        AuthenticationBasic("u", "secret", method="oms"),
        AuthenticationBasic(auth_params_string=params),
        Authentication("basic", params),
    ):
        provider = provider_for(given.options)
        assert (provider.method_name, provider.auth_data()) == ("oms", b"u:secret")
        assert "secret" not in repr(given)


def test_a_plugin_is_given_by_its_name_and_parameters() -> None:
    tls = AuthenticationTLS("/c.pem", "/k.pem")
    assert Authentication("tls", "tlsCertFile:/c.pem,tlsKeyFile:/k.pem").options == tls.options
    assert Authentication("token", "token:x").options == AuthenticationToken("x").options
    for wrong in ("libauth.so", "athenz"):
        with pytest.raises((OptionError, UnsupportedFeature)) as caught:
            Authentication(wrong, "secret")
        assert "secret" not in str(caught.value)
    with pytest.raises(OptionError):
        Authentication("tls", None)  # type: ignore[arg-type]


@pytest.mark.fault(96)
@pytest.mark.parametrize("params", ["secret", '{"username": "secret"}', "[1]", '"secret"'])
def test_json_that_is_none_is_not_repeated(params: str) -> None:
    with pytest.raises(OptionError) as raised:
        AuthenticationBasic(auth_params_string=params)
    assert "secret" not in str(raised.value)


@pytest.mark.fault(96)
def test_no_secret_is_shown() -> None:
    assert "secret" not in repr(AuthenticationToken("secret"))
    assert "secret" not in repr(AuthenticationBasic("u", "secret"))
    with pytest.raises(OptionError):
        AuthenticationBasic("u")
