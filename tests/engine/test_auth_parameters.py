"""authPluginClassName and authParams."""

from __future__ import annotations

import pytest

from pulsar_spark.engine.authentication.parameters import auth_options
from pulsar_spark.engine.options import AuthOptions, OAuth2Options
from pulsar_spark.errors import OptionError, PulsarError, UnsupportedFeature

JAVA = "org.apache.pulsar.client.impl.auth."
SECRET = "canary-7b1f"
WORD = "canary7b1f"


@pytest.mark.parametrize(
    "plugin,params,expected",
    [
        (None, None, AuthOptions()),
        (JAVA + "AuthenticationDisabled", "", AuthOptions()),
        ("token", "token:abc", AuthOptions("token", token="abc")),
        (JAVA + "AuthenticationToken", "abc", AuthOptions("token", token="abc")),
        ("token", '{"token": "abc"}', AuthOptions("token", token="abc")),
        ("token", "file:///run/a%20b", AuthOptions("token", token_file="/run/a b")),
        ("token", "file:/run/t", AuthOptions("token", token_file="/run/t")),
        (
            JAVA + "AuthenticationBasic",
            '{"userId": "u", "password": "p:,"}',
            AuthOptions("basic", username="u", password="p:,"),
        ),
        ("token", "env:PULSAR_TOKEN", AuthOptions("token", token_variable="PULSAR_TOKEN")),
        ("tls", None, AuthOptions("tls")),
        (
            JAVA + "oauth2.AuthenticationOAuth2",
            '{"issuerUrl": "https://i", "privateKey": "file:///k", "audience": "a", "scope": "s"}',
            AuthOptions(
                "oauth2",
                oauth2=OAuth2Options("https://i", private_key="file:///k", audience="a", scope="s"),
            ),
        ),
        (
            "oauth2",
            '{"issuer_url": "https://i", "client_id": "c", "client_secret": "s"}',
            AuthOptions(
                "oauth2", oauth2=OAuth2Options("https://i", client_id="c", client_secret="s")
            ),
        ),
        ("a.b:Own", "x", AuthOptions("plugin", plugin="a.b:Own", plugin_params="x")),
        ("own:Own", None, AuthOptions("plugin", plugin="own:Own")),
        (
            JAVA + "AuthenticationTls",
            "tlsCertFile:/run/c.pem,tlsKeyFile:/run/c.key",
            AuthOptions("tls", certificate_file="/run/c.pem", key_file="/run/c.key"),
        ),
        (
            "tls",
            '{"tlsCertFile": "/run/c.pem", "tlsKeyFile": "/run/c.key"}',
            AuthOptions("tls", certificate_file="/run/c.pem", key_file="/run/c.key"),
        ),
        ("basic", "userId:u,password:p", AuthOptions("basic", username="u", password="p")),
    ],
)
def test_the_forms_of_java_are_understood(
    plugin: str | None, params: str | None, expected: AuthOptions
) -> None:
    assert auth_options(plugin, params) == expected


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "plugin,params",
    [
        (None, SECRET),
        ("tokne", SECRET),
        ("token", ""),
        ("token", None),
        ("token", '{"other": "canary-7b1f"}'),
        ("token", "{canary-7b1f"),
        ("token", f"env:{SECRET}"),
        ("tls", SECRET),
        ("tls", f"tlsKeyFile:{SECRET}"),
        ("basic", SECRET),
        ("oauth2", SECRET),
        ("oauth2", '{"issuerUrl": "https://i", "clientSecret": "canary-7b1f"}'),
        ("oauth2", '{"type": "canary-7b1f", "issuerUrl": "https://i", "privateKey": "/k"}'),
        ("basic", '{"password": "canary-7b1f"}'),
        (JAVA + "AuthenticationKeyStoreTls", SECRET),
    ],
)
def test_what_does_not_fit_is_an_error_without_the_secret(
    plugin: str | None, params: str | None
) -> None:
    with pytest.raises(OptionError) as caught:
        auth_options(plugin, params)
    assert SECRET not in str(caught.value)
    assert "pulsar.client.auth" in str(caught.value)


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "params,remedy",
    [
        (f"/run/{SECRET}", "file:///path"),
        (f"./{SECRET}", "file:///path"),
        (f"~/{SECRET}", "file:///path"),
        (f"Bearer {SECRET}", "the token alone"),
        (f"token:bearer {SECRET}", "the token alone"),
        (f'{{"token": "Bearer {SECRET}"}}', "the token alone"),
    ],
)
def test_what_is_certainly_no_token_is_not_sent_as_one(params: str, remedy: str) -> None:
    with pytest.raises(OptionError) as caught:
        auth_options("token", params)
    assert SECRET not in str(caught.value)
    assert remedy in caught.value.remedy


def test_a_token_may_look_like_a_path_where_it_is_said_to_be_one() -> None:
    assert auth_options("token", "token:/a+b").token == "/a+b"


@pytest.mark.parametrize("plugin", ["athenz", "sasl"])
def test_methods_that_are_not_built_say_so(plugin: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        auth_options(plugin, SECRET)
    assert isinstance(caught.value, PulsarError)
    assert SECRET not in str(caught.value)
    with pytest.raises(OptionError) as unknown:
        auth_options("unknown", None)
    # Both name all that is possible.
    assert "module:Class" in caught.value.remedy
    assert caught.value.remedy.rstrip(".") in unknown.value.remedy


@pytest.mark.fault(96)
@pytest.mark.parametrize(
    "token", [SECRET, f"token:{SECRET}", f"eyJhbGciOi.{SECRET}", f"token:{WORD}", f"basic:{WORD}"]
)
def test_credentials_in_the_place_of_the_plugin_are_not_repeated(token: str) -> None:
    for params in (None, "token:x"):
        with pytest.raises(OptionError, match="authPluginClassName") as caught:
            auth_options(token, params)
        assert SECRET not in str(caught.value)
        assert WORD not in str(caught.value)
