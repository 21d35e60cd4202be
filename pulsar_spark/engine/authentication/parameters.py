"""`authPluginClassName` and `authParams` in the forms of the official clients → AuthOptions.

No error here repeats any part of the parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from pulsar_spark.engine.authentication.oauth2 import oauth2_options
from pulsar_spark.engine.connections.tls import TO_PEM
from pulsar_spark.engine.options import AuthOptions
from pulsar_spark.errors import OptionError, UnsupportedFeature

_PLUGIN = "pulsar.client.authPluginClassName"
_PARAMS = "pulsar.client.authParams"
_JAVA = "org.apache.pulsar.client.impl.auth."

_HEADER = re.compile(r"bearer\s", re.IGNORECASE)
_PATHS = ("/", "./", "../", "~")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CLASS = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_]\w*", re.ASCII)

_ACCEPTED = (
    "Use token, basic, tls or oauth2, Java's class name of one of these, or a class of your own as "
    "module:Class"
)

_METHODS = {
    name.lower(): method
    for method, java_class in (
        ("none", "AuthenticationDisabled"),
        ("token", "AuthenticationToken"),
        ("basic", "AuthenticationBasic"),
        ("tls", "AuthenticationTls"),
        ("oauth2", "oauth2.AuthenticationOAuth2"),
        ("keystore", "AuthenticationKeyStoreTls"),
        ("athenz", "AuthenticationAthenz"),
        ("sasl", "AuthenticationSasl"),
    )
    for name in (method, _JAVA + java_class)
}


def auth_options(plugin: str | None, params: str | None, trusted: str | None = None) -> AuthOptions:
    """Return how to log in; `trusted` are the connections' trusted authorities.

    Raises OptionError for an unknown plugin or parameters that do not match it,
    UnsupportedFeature for methods that are missing.
    """
    if plugin is None:
        if params is not None:
            raise OptionError(f"{_PARAMS} needs {_PLUGIN}", f"Set {_PLUGIN} as well.")
        return AuthOptions()
    method = _METHODS.get(plugin.lower())
    if method is None and _is_class(plugin):
        return AuthOptions("plugin", plugin=plugin, plugin_params=params)
    if method is None:
        # Not shown: people put tokens here.
        raise OptionError(
            f"{_PLUGIN} names an unknown authentication plugin",
            f"{_ACCEPTED}; credentials belong in {_PARAMS}.",
        )
    if method == "keystore":
        raise OptionError(
            f"{_PLUGIN}: Java key stores are not supported",
            f"Use tls, with the certificate and key as PEM files. {TO_PEM}",
        )
    if method == "oauth2":
        return _oauth2(params, trusted)
    if method in _READERS:
        return _READERS[method](params)
    raise UnsupportedFeature(
        f"{_PLUGIN}={method} is not supported by this version", f"{_ACCEPTED}."
    )


def _is_class(plugin: str) -> bool:
    """Whether it looks like ``module:Class``, and not like misplaced credentials."""
    match = _CLASS.fullmatch(plugin)
    return match is not None and match[1] not in (*_METHODS, "file", "env", "data", "content")


def _token(params: str | None) -> AuthOptions:
    given = (params or "").strip()
    if given.startswith("{"):
        token = _fields(given).get("token", "")
    elif given.startswith("file:"):
        path = unquote(urlsplit(given).path)
        if not path:
            raise _unfit("token", "file:///path")
        return AuthOptions("token", token_file=path)
    elif given.startswith("env:"):
        name = given.removeprefix("env:").strip()
        if not _VARIABLE.fullmatch(name):
            raise _unfit("token", "env:NAME")
        return AuthOptions("token", token_variable=name)
    else:
        token = given.removeprefix("token:").strip()
    if not token:
        raise _unfit("token", 'token:…, file:///path, env:NAME or {"token": "…"}')
    _check_token(token, is_prefixed=token != given)
    return AuthOptions("token", token=token)


def _check_token(token: str, *, is_prefixed: bool) -> None:
    """Raise OptionError for a path or a header that was given as a token."""
    if _HEADER.match(token):
        raise OptionError(
            f"{_PARAMS} begins with the word Bearer, which is not a part of the token",
            "Write token:… with the token alone, or file:///path for a file that has it.",
        )
    if not is_prefixed and token.startswith(_PATHS):
        raise OptionError(
            f"{_PARAMS} is a path, and would be sent as the token",
            "Write file:///path for a file with the token; token:… for a token that begins so.",
        )


def _tls(params: str | None) -> AuthOptions:
    given = (params or "").strip()
    if not given:
        return AuthOptions("tls")
    fields = _fields(given)
    certificate, key = fields.get("tlsCertFile"), fields.get("tlsKeyFile")
    if not certificate or not key:
        raise _unfit("tls", "tlsCertFile:/path,tlsKeyFile:/path, or JSON with these two")
    return AuthOptions("tls", certificate_file=certificate, key_file=key)


def _oauth2(params: str | None, trusted: str | None) -> AuthOptions:
    given = (params or "").strip()
    options = oauth2_options(_fields(given) if given.startswith("{") else {}, trusted)
    if options is None:
        raise _unfit(
            "oauth2",
            '{"issuerUrl": "https://…", "privateKey": "file:///path", "audience": "…"}; '
            "privateKey is a file, a data: URL or JSON, and type, if given, client_credentials",
        )
    return AuthOptions("oauth2", oauth2=options)


def _basic(params: str | None) -> AuthOptions:
    fields = _fields((params or "").strip())
    # Java's name, and that of the C++ client with the Python client.
    user, password = fields.get("userId") or fields.get("username"), fields.get("password")
    if not user or password is None:
        raise _unfit("basic", '{"userId": "…", "password": "…"}')
    return AuthOptions(
        "basic", username=user, password=password, method_name=fields.get("method") or None
    )


def _fields(params: str) -> dict[str, str]:
    """Return the fields of a JSON object, or of "name:value,name:value"."""
    if not params.startswith("{"):
        pairs = (part.partition(":") for part in params.split(","))
        return {name.strip(): value.strip() for name, _, value in pairs}
    try:
        fields = json.loads(params)
    except (ValueError, RecursionError):
        raise OptionError(f"{_PARAMS} is not valid JSON") from None
    return {name: value for name, value in fields.items() if isinstance(value, str)}


def _unfit(method: str, expected: str) -> OptionError:
    return OptionError(f"{_PARAMS} does not fit {_PLUGIN}={method}", f"Expected {expected}.")


_READERS: dict[str, Callable[[str | None], AuthOptions]] = {
    "none": lambda params: AuthOptions(),
    "token": _token,
    "basic": _basic,
    "tls": _tls,
}
