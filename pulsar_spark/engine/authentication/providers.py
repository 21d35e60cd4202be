"""Credentials for CONNECT and AUTH_RESPONSE.

Pulsar binary protocol, section "Authentication". The method's name and its data are all that
the connection needs to know, so another method is another `AuthProvider`.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, quote_plus

from pulsar_spark.engine.authentication.oauth2 import OAuth2Auth
from pulsar_spark.engine.options import AuthOptions, is_unicode
from pulsar_spark.errors import (
    AuthenticationError,
    OptionError,
    PulsarError,
    UnsupportedFeature,
)

T = TypeVar("T")

_MAX_TOKEN = 1024 * 1024
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\x20-\x7e]*")


class AuthProvider(Protocol):
    """One way to log in. `auth_data` is called for every CONNECT and every challenge."""

    @property
    def method_name(self) -> str:
        """The name that brokers know the method by."""

    def auth_data(self) -> bytes | None:
        """Return fresh credentials, None for a method without any.

        Raises AuthenticationError where they cannot be had.
        """


class NoAuth:
    """No credentials."""

    method_name = "none"

    def auth_data(self) -> bytes | None:
        """Return None."""
        return None


class TokenAuth:
    """A token, given as text, or where to read it each time, so that it can be renewed there.

    That is a file, a variable of the environment, or a function.
    """

    method_name = "token"

    def __init__(
        self,
        token: str | None = None,
        token_file: str | None = None,
        token_variable: str | None = None,
        token_supplier: Callable[[], str] | None = None,
    ) -> None:
        places = (token, token_file, token_variable, token_supplier)
        if sum(given is not None for given in places) != 1:
            raise OptionError(
                "token authentication takes either a token, or one place where to find it"
            )
        if token is not None:
            _check_text(token, "the token")
        self._token = token
        self._file = token_file
        self._variable = token_variable
        self._supplier = token_supplier

    def __repr__(self) -> str:
        return "TokenAuth(***)"

    def auth_data(self) -> bytes | None:
        """Return the token; raises AuthenticationError if it cannot be read."""
        if self._supplier is not None:
            given: object = self._supplier()
            if not isinstance(given, str) or not given or not is_unicode(given):
                raise AuthenticationError(
                    "the function that gives tokens returned none", "It has to return text."
                )
            return given.encode()
        if self._variable is not None:
            value = os.environ.get(self._variable, "").strip()
            if not value or not is_unicode(value):
                raise AuthenticationError(
                    f"the environment variable {self._variable} has no token",
                    "It has to be set on every machine that runs tasks: "
                    f"spark.executorEnv.{self._variable}.",
                )
            return value.encode()
        if self._file is None:
            return (self._token or "").encode()
        try:
            with Path(self._file).open("rb") as file:
                token = file.read(_MAX_TOKEN).strip()
        except OSError as error:
            raise AuthenticationError(
                f"the token file {self._file} cannot be read: {error.strerror}",
                "The file is read on every machine that runs tasks: put it there.",
            ) from None
        if not token:
            raise AuthenticationError(
                f"the token file {self._file} is empty", "Write the token into it."
            )
        return token


class BasicAuth:
    """User name and password."""

    method_name = "basic"

    def __init__(self, username: str, password: str) -> None:
        _check_text(username, "the user name")
        _check_text(password, "the password")
        self._username = username
        self._password = password

    def __repr__(self) -> str:
        return f"BasicAuth({self._username!r}, ***)"

    def auth_data(self) -> bytes | None:
        """Return ``user:password``."""
        return f"{self._username}:{self._password}".encode()


class PluginAuth:
    """A class of the user's own: it has `method_name` and `auth_data`, as an `AuthProvider`."""

    def __init__(self, plugin: str, params: str) -> None:
        self._plugin = plugin
        self._theirs = _made(plugin, params)
        name = getattr(self._theirs, "method_name", None)
        if not isinstance(name, str) or not callable(getattr(self._theirs, "auth_data", None)):
            raise OptionError(
                f"{plugin} has no text method_name, or no method auth_data()",
                "See docs/connecting.md for what such a class has.",
            )
        self.method_name = name

    def __repr__(self) -> str:
        return f"PluginAuth({self._plugin!r})"

    def auth_data(self) -> bytes | None:
        """Return what the class gives now; raises AuthenticationError if that is not bytes."""
        data = self._theirs.auth_data()
        if data is not None and not isinstance(data, bytes):
            raise AuthenticationError(
                f"auth_data() of {self._plugin} returned {type(data).__name__}",
                "It has to return bytes, or None for a method without any.",
            )
        return data

    def http_headers(self) -> dict[str, str] | None:
        """Return the headers that the class gives for HTTP, None where it leaves that to us."""
        give = getattr(self._theirs, "http_headers", None)
        return None if give is None else dict(give())


def _made(plugin: str, params: str) -> Any:
    """Return an object of the class ``module:Class``; raises OptionError."""
    module, _, name = plugin.partition(":")
    try:
        kind = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"the class {plugin} cannot be imported ({type(error).__name__})",
            "The module has to be on every machine that runs tasks: install it, or use --py-files.",
        ) from None
    try:
        return kind(params)
    except PulsarError:
        raise
    except Exception as error:
        # Neither its text nor its traceback is kept: they may quote a secret.
        why = type(error).__name__
    raise OptionError(
        f"no object of {plugin} could be made ({why})",
        "It is called with the text of pulsar.client.authParams.",
    )


class TlsAuth:
    """The certificate that was shown in the TLS handshake; there is nothing more to send."""

    method_name = "tls"

    def auth_data(self) -> bytes | None:
        """Return no bytes."""
        return b""


def _check_text(text: str, what: str) -> None:
    if not is_unicode(text):
        raise OptionError(f"{what} contains characters that are not Unicode")


def forms_of(data: bytes, method: str) -> frozenset[str | bytes]:
    """Return the forms in which credentials that a broker was sent can be in what it says."""
    plain = {data}
    if method == BasicAuth.method_name:
        plain.add(data.partition(b":")[2])
    forms: set[str | bytes] = set()
    for secret in plain - {b""}:
        encoded = base64.b64encode(secret), base64.urlsafe_b64encode(secret)
        forms |= {secret, quote(secret), quote_plus(secret), secret.hex(), *encoded}
        forms |= {code.rstrip(b"=") for code in encoded}
    return frozenset(forms)


def credentials(give: Callable[[], T], broker: str) -> T:
    """Return what gives credentials; whatever that raises becomes an error that shows none.

    Raises PulsarError of what was called, else AuthenticationError.
    """
    try:
        return give()
    except PulsarError:
        raise
    except Exception as error:
        # Neither its text nor its traceback is shown: they may quote a secret.
        why = type(error).__name__
    raise AuthenticationError(f"credentials could not be obtained ({why})", broker=broker)


def http_headers(provider: AuthProvider) -> tuple[bytes | None, dict[str, str]]:
    """Return fresh credentials, and the headers by which a web service is given them.

    Raises AuthenticationError where they cannot be had or are no header, UnsupportedFeature for a
    method that has no headers.
    """
    method = provider.method_name
    data = provider.auth_data()
    headers = provider.http_headers() if isinstance(provider, PluginAuth) else None
    if headers is None:
        if not data:
            return data, {}
        if method not in (TokenAuth.method_name, BasicAuth.method_name):
            raise UnsupportedFeature(
                f"the method {method!r} has no known HTTP headers",
                "Give the class a method http_headers() that returns them, or use a pulsar:// "
                "service URL.",
            )
        if method == TokenAuth.method_name:
            value = f"Bearer {data.decode('latin-1')}"
        else:
            value = f"Basic {base64.b64encode(data).decode()}"
        headers = {"Authorization": value, "X-Pulsar-Auth-Method-Name": method}
    if not all(_HEADER.fullmatch(f"{name}: {value}") for name, value in headers.items()):
        raise AuthenticationError(
            "the credentials contain characters that an HTTP header cannot have",
            "Look for line breaks and non-ASCII characters.",
        )
    return data, headers


def identity_of(provider: AuthProvider) -> bytes:
    """Return what tells credentials of one user from another's, beside the options."""
    if isinstance(provider, PluginAuth):
        # Its credentials may be new each time; class and parameters are options.
        return b""
    if isinstance(provider, OAuth2Auth):
        return provider.identity()
    return provider.auth_data() or b""


def provider_for(options: AuthOptions) -> AuthProvider:
    """Return the provider for the options.

    Raises OptionError where they lack something, UnsupportedFeature for other methods.
    """
    if options.method == "none":
        return NoAuth()
    if options.method == "token":
        return TokenAuth(
            options.token, options.token_file, options.token_variable, options.token_supplier
        )
    if options.method == "basic":
        if options.username is None or options.password is None:
            raise OptionError("basic authentication needs a user name and a password")
        return BasicAuth(options.username, options.password)
    if options.method == "tls":
        return TlsAuth()
    if options.method == "oauth2" and options.oauth2 is not None:
        return OAuth2Auth(options.oauth2)
    if options.method == "plugin" and options.plugin is not None:
        return PluginAuth(options.plugin, options.plugin_params or "")
    raise UnsupportedFeature(
        f"authentication by {options.method} is not supported yet",
        "Use a token, a certificate (tls) or basic authentication.",
    )
