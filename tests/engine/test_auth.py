from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsar_spark.engine.authentication.providers import (
    BasicAuth,
    NoAuth,
    TokenAuth,
    credentials,
    forms_of,
    provider_for,
)
from pulsar_spark.engine.deadline import call_apart
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


def test_a_token_in_the_environment_is_read_anew_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider = provider_for(AuthOptions("token", token_variable="PULSAR_TOKEN"))
    monkeypatch.setenv("PULSAR_TOKEN", "one\n")
    assert provider.auth_data() == b"one"
    monkeypatch.setenv("PULSAR_TOKEN", "two")
    assert provider.auth_data() == b"two"


@pytest.mark.fault(48)
@pytest.mark.parametrize("value", [None, "", " ", "canary\udcff"])
def test_a_variable_without_a_token_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("PULSAR_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("PULSAR_TOKEN", value)
    with pytest.raises(AuthenticationError, match=r"spark\.executorEnv\.PULSAR_TOKEN") as caught:
        TokenAuth(token_variable="PULSAR_TOKEN").auth_data()
    assert "canary" not in str(caught.value)


def test_a_certificate_is_all_that_tls_needs() -> None:
    provider = provider_for(AuthOptions("tls"))
    assert (provider.method_name, provider.auth_data()) == ("tls", b"")


class Own:
    """An authentication class of a user's own."""

    method_name = "company"

    def __init__(self, params: str) -> None:
        if params == "canary-broken":
            raise ValueError(params)
        self.params = params
        self.calls = 0

    def auth_data(self) -> object:
        self.calls += 1
        return "text" if self.params == "text" else f"{self.params}-{self.calls}".encode()


class Nothing:
    def __init__(self, params: str) -> None:
        pass


def plugin(params: str, name: str = "Own", module: str = __name__) -> AuthOptions:
    return AuthOptions("plugin", plugin=f"{module}:{name}", plugin_params=params)


def test_a_class_of_the_user_is_asked_each_time() -> None:
    provider = provider_for(plugin("p"))
    assert (provider.method_name, provider.auth_data()) == ("company", b"p-1")
    assert provider.auth_data() == b"p-2"


@pytest.mark.fault(96, 99)
@pytest.mark.parametrize(
    "options,text",
    [
        (plugin("canary", module="no_such_module"), "no_such_module:Own cannot be imported"),
        (plugin("canary", name="Missing"), "Missing cannot be imported"),
        (plugin("canary-broken"), "could be made"),
        (plugin("canary", name="Nothing"), "has no text method_name"),
    ],
)
def test_a_class_that_cannot_be_used_is_named_without_its_parameters(
    options: AuthOptions, text: str
) -> None:
    with pytest.raises(OptionError, match=text) as caught:
        provider_for(options)
    assert "canary" not in f"{caught.value!r} {options!r}"
    assert caught.value.__cause__ is None
    assert "canary" not in repr(caught.value.__context__)


@pytest.mark.fault(48)
def test_credentials_that_are_not_bytes_are_an_error() -> None:
    with pytest.raises(AuthenticationError, match="returned str"):
        provider_for(plugin("text")).auth_data()


@pytest.mark.fault(48)
def test_a_token_file_that_is_gone_or_empty_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    provider = TokenAuth(token_file=str(file))
    with pytest.raises(AuthenticationError, match=str(file)):
        provider.auth_data()
    file.write_text("\n")
    with pytest.raises(AuthenticationError, match="empty"):
        provider.auth_data()
    file.unlink()
    file.mkdir()
    with pytest.raises(AuthenticationError, match="which they may read"):
        provider.auth_data()


@pytest.mark.fault(48)
@pytest.mark.parametrize(
    "form,text",
    [
        (b"Bearer canary", "begins with Bearer"),
        (b"bearer\tcanary", "begins with Bearer"),
        (b"token:canary", "begins with Bearer or token:"),
        (b"\xef\xbb\xbfcanary", "byte order mark"),
        ("canary".encode("utf-16"), "byte order mark"),
        ("canary".encode("utf-16-be"), "other characters than ASCII"),
        ("canary\xe9".encode(), "other characters than ASCII"),
        (b"canary\0", "other characters than ASCII"),
        (b"canary\ncanary", "white space within"),
        (b"canary canary", "white space within"),
        (b'"canary"', "quotes or braces"),
        (b"'canary'", "quotes or braces"),
        (b'{"token":"canary"}', "quotes or braces"),
    ],
)
def test_what_is_read_and_no_token_is_an_error_that_names_the_place_and_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: bytes, text: str
) -> None:
    file = tmp_path / "token"
    file.write_bytes(form)
    places = [(f"the token file {file}", TokenAuth(token_file=str(file)))]
    decoded = form.decode(errors="replace")
    if b"\0" not in form:
        monkeypatch.setenv("PULSAR_TOKEN", decoded)
        variable = TokenAuth(token_variable="PULSAR_TOKEN")
        places.append(("the environment variable PULSAR_TOKEN", variable))
    for place, provider in places:
        with pytest.raises(AuthenticationError, match=re.escape(place)) as caught:
            provider.auth_data()
        assert "canary" not in str(caught.value)
        assert caught.value.remedy
        assert text in str(caught.value)


def test_only_the_main_threads_interrupt_passes_a_users_function() -> None:
    def give() -> bytes:
        raise KeyboardInterrupt("canary")

    with pytest.raises(KeyboardInterrupt):
        credentials(give, "b:1")
    with pytest.raises(AuthenticationError, match=r"\(KeyboardInterrupt\)") as caught:
        call_apart(lambda: credentials(give, "b:1"), 60, "apart")
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert not any("canary" in repr(error) for error in chain)


def test_basic_authentication_joins_user_and_password() -> None:
    provider = provider_for(AuthOptions("basic", username="u", password="p"))
    assert (provider.method_name, provider.auth_data()) == ("basic", b"u:p")


@pytest.mark.parametrize(
    "options",
    [
        AuthOptions("token"),
        AuthOptions("token", token="a", token_file="b"),
        AuthOptions("token", token="a", token_variable="b"),
        AuthOptions("basic", username="u"),
        AuthOptions("basic", password="p"),
    ],
)
def test_incomplete_or_contradictory_options_are_refused(options: AuthOptions) -> None:
    with pytest.raises(OptionError):
        provider_for(options)


def test_other_methods_are_named_as_not_supported() -> None:
    with pytest.raises(UnsupportedFeature, match="athenz"):
        provider_for(AuthOptions("athenz"))


@pytest.mark.fault(96)
def test_no_repr_shows_a_secret() -> None:
    assert "canary" not in repr(TokenAuth("canary")) + repr(BasicAuth("me", "canary"))


@pytest.mark.fault(96)
@pytest.mark.parametrize(
    "options",
    [
        AuthOptions("token", token="canary\ud800"),
        AuthOptions("basic", username="u", password="canary\ud800"),
        AuthOptions("basic", username="canary\ud800", password="p"),
    ],
)
def test_a_secret_that_is_not_unicode_is_refused_and_not_shown(options: AuthOptions) -> None:
    with pytest.raises(OptionError, match="not Unicode") as caught:
        provider_for(options)
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert not any("canary" in repr(error) or "canary" in str(error) for error in chain)


def test_the_forms_of_credentials_hold_a_password_alone() -> None:
    basic = BasicAuth("user", "p w")
    forms = forms_of(b"user:p w", basic)
    assert {b"user:p w", b"p w", "p%20w", "p+w", b"cCB3"} <= forms
    assert forms_of(b"user:", basic) >= {b"user:"}
    assert b"" not in forms_of(b"user:", basic)
    assert b"b" not in forms_of(b"a:b", TokenAuth("a:b"))
