from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_spark.engine.auth import BasicAuth, NoAuth, TokenAuth, provider_for
from pulsar_spark.engine.options import AuthOptions
from pulsar_spark.errors import AuthenticationError, OptionError, UnsupportedFeature


def test_without_authentication_no_data_is_sent() -> None:
    provider = provider_for(AuthOptions())
    assert isinstance(provider, NoAuth)
    assert (provider.method_name, provider.auth_data()) == ("none", None)


def test_a_token_is_sent_as_it_is() -> None:
    provider = provider_for(AuthOptions("token", token="abc"))
    assert (provider.method_name, provider.auth_data()) == ("token", b"abc")


def test_a_token_file_is_read_anew_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    provider = provider_for(AuthOptions("token", token_file=str(file)))
    assert provider.auth_data() == b"one"
    file.write_text("two")
    assert provider.auth_data() == b"two"


@pytest.mark.fault(48)
def test_a_token_file_that_is_gone_or_empty_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    provider = TokenAuth(token_file=str(file))
    with pytest.raises(AuthenticationError, match=str(file)):
        provider.auth_data()
    file.write_text("\n")
    with pytest.raises(AuthenticationError, match="empty"):
        provider.auth_data()


def test_basic_authentication_joins_user_and_password() -> None:
    provider = provider_for(AuthOptions("basic", username="u", password="p"))
    assert (provider.method_name, provider.auth_data()) == ("basic", b"u:p")


@pytest.mark.parametrize(
    "options",
    [
        AuthOptions("token"),
        AuthOptions("token", token="a", token_file="b"),
        AuthOptions("basic", username="u"),
        AuthOptions("basic", password="p"),
    ],
)
def test_incomplete_or_contradictory_options_are_refused(options: AuthOptions) -> None:
    with pytest.raises(OptionError):
        provider_for(options)


def test_other_methods_are_named_as_not_supported() -> None:
    with pytest.raises(UnsupportedFeature, match="oauth2"):
        provider_for(AuthOptions("oauth2"))


@pytest.mark.fault(96)
def test_no_repr_shows_a_secret() -> None:
    assert "canary" not in repr(TokenAuth("canary")) + repr(BasicAuth("me", "canary"))
