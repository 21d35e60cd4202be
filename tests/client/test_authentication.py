"""Credentials of users: plain options, and no secret in sight."""

from __future__ import annotations

import pytest

from pulsar_spark.client.authentication import AuthenticationBasic, AuthenticationToken
from pulsar_spark.engine.options import AuthOptions
from pulsar_spark.errors import OptionError, UnsupportedFeature


def test_a_token_is_given_as_text() -> None:
    assert AuthenticationToken("secret").options == AuthOptions(method="token", token="secret")
    with pytest.raises(UnsupportedFeature):
        AuthenticationToken(lambda: "secret")
    with pytest.raises(OptionError):
        AuthenticationToken(5)  # type: ignore[arg-type]


def test_a_user_is_given_by_name_and_password_or_json() -> None:
    expected = AuthOptions(method="basic", username="u", password="secret")
    assert AuthenticationBasic("u", "secret").options == expected
    params = '{"username": "u", "password": "secret"}'
    assert AuthenticationBasic(auth_params_string=params).options == expected
    with pytest.raises(UnsupportedFeature):
        AuthenticationBasic("u", "secret", method="oms")


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
