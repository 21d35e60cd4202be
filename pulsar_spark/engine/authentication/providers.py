"""Credentials for CONNECT and AUTH_RESPONSE.

Pulsar binary protocol, section "Authentication". A connection only needs the method's name and its
data, so each method is an `AuthProvider`.
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
from pulsar_spark.engine.deadline import is_interrupt
from pulsar_spark.engine.options import AuthOptions
from pulsar_spark.errors import (
    AuthenticationError,
    ConnectError,
    OptionError,
    PulsarError,
    UnsupportedFeature,
    redact,
)
from pulsar_spark.protocol.validation import is_unicode

T = TypeVar("T")

_MAX_TOKEN = 1024 * 1024
# What belongs to a header, or to an option, before a token.
_FORM = re.compile(r"bearer\s|token:", re.IGNORECASE)
# A byte order mark; that of UTF-16 is no UTF-8.
_MARKS = ("\ufeff", "\ufffd\ufffd")
_QUOTES = frozenset("\"'{}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\x20-\x7e]*")


class AuthProvider(Protocol):
    """A login method. `auth_data` is called for every CONNECT and every challenge."""

    @property
    def method_name(self) -> str:
        """The name by which brokers know the method."""

    def auth_data(self) -> bytes | None:
        """Return fresh credentials, None for a method that has none.

        Raises AuthenticationError if they cannot be obtained.
        """


class NoAuth:
    """No credentials."""

    method_name = "none"

    def auth_data(self) -> bytes | None:
        """Return None."""
        return None


class TokenAuth:
    """A token as text, or a source that is read each time, so that the token can be renewed.

    A source is a file, an environment variable or a function.
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
            if not given or not is_unicode(given):
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
            return _alone(value, f"the environment variable {self._variable}")
        if self._file is None:
            return (self._token or "").encode()
        place = f"the token file {redact(self._file)}"
        try:
            with Path(self._file).open("rb") as file:
                # As any other of its bytes, one that is not ASCII is named by `_alone`.
                token = file.read(_MAX_TOKEN).decode("utf-8", "replace").strip()
        except OSError as error:
            lacks = isinstance(error, FileNotFoundError)
            raise AuthenticationError(
                f"{place} cannot be read: {error.strerror}",
                "It has to be a file on every machine that reads or writes messages"
                f"{': put it there' if lacks else ', which they may read'}.",
            ) from None
        if not token:
            raise AuthenticationError(f"{place} is empty", "Write the token into it.")
        return _alone(token, place)


def _alone(token: str, place: str) -> bytes:
    """Return a token that was read.

    Raises AuthenticationError, without any of it, for what is no token alone: a broker would only
    say that it does not take it.
    """
    if _FORM.match(token):
        wrong = "begins with Bearer or token:, which is not a part of the token"
    elif token.startswith(_MARKS):
        wrong = "begins with a byte order mark, as of UTF-8 with BOM or UTF-16"
    elif any(character.isspace() for character in token):
        wrong = "has white space within the token, or more than the token"
    elif not token.isascii() or not token.isprintable():
        wrong = "has other characters than ASCII ones, which tokens are made of"
    elif _QUOTES.intersection(token):
        wrong = "has quotes or braces, as of JSON, which are not a part of the token"
    else:
        return token.encode()
    raise AuthenticationError(f"{place} {wrong}", "It has to be the token alone, as plain text.")


class BasicAuth:
    """User name and password, by a method that the broker may know under another name."""

    def __init__(self, username: str, password: str, method_name: str = "basic") -> None:
        _check_text(method_name, "the name of the method")
        self.method_name = method_name
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
    """A user's class with `method_name` and `auth_data`, as an `AuthProvider` has."""

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
        """Return the class's credentials; raises AuthenticationError if they are not bytes."""
        data = self._theirs.auth_data()
        if data is not None and not isinstance(data, bytes):
            raise AuthenticationError(
                f"auth_data() of {self._plugin} returned {type(data).__name__}",
                "It has to return bytes, or None for a method without any.",
            )
        return data

    def http_headers(self) -> dict[str, str] | None:
        """Return the class's HTTP headers; None if it has no method for them."""
        give = getattr(self._theirs, "http_headers", None)
        return None if give is None else dict(give())


def _made(plugin: str, params: str) -> Any:
    """Create an object of the class ``module:Class``; raises OptionError."""
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
    except BaseException as error:
        if is_interrupt(error):
            raise
        # Drop the error's text and traceback: they may quote a secret.
        why = type(error).__name__
    raise OptionError(
        f"no object of {plugin} could be made ({why})",
        "It is called with the text of pulsar.client.authParams.",
    )


class TlsAuth:
    """The TLS handshake has shown the certificate; nothing else is sent."""

    method_name = "tls"

    def auth_data(self) -> bytes | None:
        """Return no bytes."""
        return b""


def _check_text(text: str, what: str) -> None:
    if not is_unicode(text):
        raise OptionError(f"{what} contains characters that are not Unicode")


def forms_of(data: bytes, provider: AuthProvider) -> frozenset[str | bytes]:
    """Return all forms in which a broker might repeat the credentials it was sent."""
    plain = {data}
    if isinstance(provider, BasicAuth):
        plain.add(data.partition(b":")[2])
    forms: set[str | bytes] = set()
    for secret in plain - {b""}:
        encoded = base64.b64encode(secret), base64.urlsafe_b64encode(secret)
        forms |= {secret, quote(secret), quote_plus(secret), secret.hex(), *encoded}
        forms |= {code.rstrip(b"=") for code in encoded}
    return frozenset(forms)


def credentials(give: Callable[[], T], broker: str) -> T:
    """Call a user's function for credentials; its errors are replaced by one without secrets.

    Raises a PulsarError of that function as it is, otherwise AuthenticationError.
    """
    try:
        return give()
    except PulsarError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        # SystemExit, too: a thread of the client may be calling. Drop the error's text and
        # traceback: they may quote a secret.
        why = type(error).__name__
    raise AuthenticationError(f"credentials could not be obtained ({why})", broker=broker)


def has_others(provider: AuthProvider, refused: bytes | None) -> bool:
    """Tell a provider that a broker did not take its credentials; whether it has others now."""
    return isinstance(provider, OAuth2Auth) and refused is not None and provider.refused(refused)


def refusal_by(error: PulsarError, provider: AuthProvider, refused: bytes | None) -> PulsarError:
    """Return a broker's error for credentials; one that passes if there are others now."""
    if not (isinstance(error, AuthenticationError) and has_others(provider, refused)):
        return error
    what = f"{error.what}; the next attempt has another token"
    return ConnectError(what, error.remedy, broker=error.broker)


def http_headers(provider: AuthProvider) -> tuple[bytes | None, dict[str, str]]:
    """Return fresh credentials, and the HTTP headers that carry them.

    Raises AuthenticationError if they cannot be obtained or do not fit into a header, and
    UnsupportedFeature for a method without headers.
    """
    method = provider.method_name
    data = provider.auth_data()
    headers = provider.http_headers() if isinstance(provider, PluginAuth) else None
    if headers is None:
        if not data:
            return data, {}
        is_basic = isinstance(provider, BasicAuth)
        if not is_basic and method != TokenAuth.method_name:
            raise UnsupportedFeature(
                f"the method {method!r} has no known HTTP headers",
                "Give the class a method http_headers() that returns them, or use a pulsar:// "
                "service URL.",
            )
        if is_basic:
            value = f"Basic {base64.b64encode(data).decode()}"
        else:
            value = f"Bearer {data.decode('latin-1')}"
        headers = {"Authorization": value, "X-Pulsar-Auth-Method-Name": method}
    if not all(_HEADER.fullmatch(f"{name}: {value}") for name, value in headers.items()):
        raise AuthenticationError(
            "the credentials contain characters that an HTTP header cannot have",
            "Look for line breaks and non-ASCII characters.",
        )
    return data, headers


def identity_of(provider: AuthProvider) -> bytes:
    """Return what distinguishes two users' credentials that have equal options."""
    if isinstance(provider, PluginAuth):
        # Its credentials may change each time; class and parameters are compared as options.
        return b""
    if isinstance(provider, OAuth2Auth):
        return provider.identity()
    return provider.auth_data() or b""


def provider_for(options: AuthOptions) -> AuthProvider:
    """Return the provider for the options.

    Raises OptionError if they are incomplete, UnsupportedFeature for other methods.
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
        return BasicAuth(options.username, options.password, options.method_name or "basic")
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
