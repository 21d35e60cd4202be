"""What credentials say by themselves: a token's role and the time until which it holds.

Nothing is verified: only the broker has the key. The token itself is never shown.
"""

from __future__ import annotations

import base64
import json
import math
import shlex
import time
from datetime import datetime, timezone
from typing import Any, NamedTuple

from pulsar_spark.engine.authentication.providers import AuthProvider, BasicAuth, TokenAuth
from pulsar_spark.errors import PulsarError, printable

_MAX_TOKEN = 64 * 1024
_MAX_ROLE = 200
_HOUR = 3_600.0
_DAY = 24 * _HOUR
_LAST_SECOND = datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp()
# Stands for a role that is not known, in commands to paste.
_ROLE = "ROLE"


class Token(NamedTuple):
    """What a JSON web token says: its subject, and seconds since 1970; None if it does not say."""

    role: str | None
    begins: float | None
    expires: float | None
    issued: float | None

    def __str__(self) -> str:
        return "the token" if self.role is None else f"the token of role {self.role}"

    @property
    def invalid(self) -> str | None:
        """Why it does not hold now, as a sentence without its end; None if it may."""
        now = time.time()
        if self.expires is not None and self.expires <= now:
            return f"{self} expired at {_told(self.expires)}"
        if self.begins is not None and self.begins > now:
            return f"{self} is not valid before {_told(self.begins)}"
        return None

    @property
    def ends_soon(self) -> str:
        """What to do if it expires within a day; nothing if it never lasts longer."""
        if self.expires is None:
            return ""
        left = self.expires - time.time()
        short = self.issued is not None and self.expires - self.issued <= _DAY
        if left > _DAY or short:
            return ""
        hours = f"{left / _HOUR:.1f} hours" if left >= _HOUR else f"{left / 60:.0f} minutes"
        return f"It expires in {hours}: renew it before then; a token in a file is read again."


def token_of(auth: AuthProvider) -> Token | None:
    """Return what the token of a login says; None if it is no JSON web token, or another login."""
    if not isinstance(auth, TokenAuth):
        return None
    try:
        data = auth.auth_data() or b""
        _, body, _ = data.split(b".")
        if len(body) > _MAX_TOKEN:
            return None
        claims = json.loads(base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4)))
    except (PulsarError, ValueError, RecursionError):
        return None
    if not isinstance(claims, dict):
        return None
    role = claims.get("sub")
    return Token(
        printable(role[:_MAX_ROLE]) if isinstance(role, str) and role else None,
        _seconds(claims.get("nbf")),
        _seconds(claims.get("exp")),
        _seconds(claims.get("iat")),
    )


def refused(auth: AuthProvider) -> str:
    """Return what to do about a broker that does not accept a login."""
    if auth.method_name == "none":
        return (
            "No credentials were given. Give --token-file FILE, or the options "
            "pulsar.client.authPluginClassName and pulsar.client.authParams."
        )
    if not isinstance(auth, TokenAuth):
        return (
            "Check pulsar.client.authPluginClassName and pulsar.client.authParams, and that the "
            "broker has this way to log in (authenticationProviders)."
        )
    given = "Check the token that pulsar.client.authParams or --token-file gives: "
    token = token_of(auth)
    if token is None:
        return given + "it is no JSON web token, which brokers usually want."
    if (invalid := token.invalid) is not None:
        return f"{invalid[0].upper()}{invalid[1:]}: get a new one."
    until = "never expires" if token.expires is None else f"holds until {_told(token.expires)}"
    return given + (
        f"{token} {until}. The broker has another key (tokenSecretKey, tokenPublicKey), audience "
        "or claim for roles, or no login by token (authenticationProviders)."
    )


def granting(auth: AuthProvider, namespace: str, actions: str) -> str:
    """Return the command that grants a login's role the permission for some actions."""
    role = _role_of(auth)
    told = (
        f"Grant the permission: pulsar-admin namespaces grant-permission {namespace} "
        f"--role {role} --actions {actions}"
    )
    return told if role != _ROLE else f"{told} ({_ROLE} is whom the broker takes this login for.)"


def _role_of(auth: AuthProvider) -> str:
    """Return the role of a login, quoted for a shell; `_ROLE` if only the broker knows it."""
    token = token_of(auth)
    if token is not None and token.role is not None:
        return shlex.quote(token.role)
    if isinstance(auth, BasicAuth):
        user = (auth.auth_data() or b"").partition(b":")[0].decode(errors="replace")
        return shlex.quote(printable(user[:_MAX_ROLE]))
    return _ROLE


def _told(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _seconds(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and 0 <= value <= _LAST_SECOND else None
