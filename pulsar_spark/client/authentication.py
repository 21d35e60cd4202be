"""Credentials for `PulsarClient`, made as for the official Python client."""

from __future__ import annotations

import json
from collections.abc import Callable

from pulsar_spark.engine.authentication.oauth2 import oauth2_options
from pulsar_spark.engine.authentication.parameters import auth_options
from pulsar_spark.engine.options import AuthOptions
from pulsar_spark.errors import OptionError


class Authentication:
    """How a client logs in: a plugin's name, and its parameters. Its `repr` shows no secret.

    The names are those of the official clients, such as ``token``, ``tls`` or Java's class names,
    or a class of one's own as ``module:Class``; libraries of C++ are not loaded. Raises OptionError
    for other names, and for parameters that do not fit.
    """

    def __init__(self, dynamicLibPath: str, authParamsString: str) -> None:
        if not all(isinstance(given, str) for given in (dynamicLibPath, authParamsString)):
            raise OptionError("dynamicLibPath and authParamsString must be text")
        self.options = auth_options(dynamicLibPath, authParamsString)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options!r})"


class AuthenticationToken(Authentication):
    """Log in with a token, or with a function that returns one whenever it is needed."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        if callable(token):
            self.options = AuthOptions(method="token", token_supplier=token)
            return
        if not isinstance(token, str):
            raise OptionError("a token must be text")
        self.options = AuthOptions(method="token", token=token)


class AuthenticationTLS(Authentication):
    """Log in with a certificate, on a TLS connection."""

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        if not all(isinstance(given, str) for given in (certificate_path, private_key_path)):
            raise OptionError("certificate_path and private_key_path must be text")
        self.options = AuthOptions(
            method="tls", certificate_file=certificate_path, key_file=private_key_path
        )


class AuthenticationOauth2(Authentication):
    """Log in with an issuer's tokens: JSON with issuer_url, private_key, audience and scope."""

    def __init__(self, auth_params_string: str) -> None:
        try:
            given = json.loads(auth_params_string)
        except (ValueError, TypeError, RecursionError):
            given = None
        fields = given if isinstance(given, dict) else {}
        options = oauth2_options({k: v for k, v in fields.items() if isinstance(v, str)})
        if options is None:
            # The text is left out: it can hold a secret.
            raise OptionError("auth_params_string is not JSON with issuer_url and private_key")
        self.options = AuthOptions(method="oauth2", oauth2=options)


class AuthenticationBasic(Authentication):
    """Log in with user name and password, or with JSON that has these two.

    `method` is the name by which the brokers know this method.
    """

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None:
        if auth_params_string is not None:
            try:
                given = json.loads(auth_params_string)
                username, password = given["username"], given["password"]
                method = given.get("method", method)
            except (ValueError, KeyError, TypeError, AttributeError):
                # The text is left out: it holds a password.
                raise OptionError(
                    "auth_params_string is not JSON with username and password"
                ) from None
        if not all(isinstance(given, str) for given in (username, password, method)):
            raise OptionError("username, password and method must be text")
        self.options = AuthOptions(
            method="basic",
            username=username,
            password=password,
            method_name=None if method == "basic" else method,
        )
