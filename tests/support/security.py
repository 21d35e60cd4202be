"""Certificates, tokens and passwords of a real cluster, and brokers' settings for them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support.certificates import Authority
from tests.support.real_broker import RealBroker

_PROVIDERS = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
TOKEN_PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


class Security:
    """A certificate authority, a key for tokens, and the user `reader` with the password `good`.

    Clients that do not log in have the role `admin`, which may do everything: the tests' own
    requests use it.
    """

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self._secret = secrets.token_bytes(32)
        (folder / "secret.key").write_bytes(self._secret)
        coded = subprocess.run(
            ["openssl", "passwd", "-apr1", "good"], check=True, capture_output=True, text=True
        )
        (folder / "htpasswd").write_text(f"reader:{coded.stdout}")
        certificate, key = self.authority.host("broker")
        self.certificate_settings = {
            "tlsCertificateFilePath": certificate,
            "tlsKeyFilePath": key,
            "tlsTrustCertsFilePath": self.authority.file,
        }
        self.token_settings = {
            "authenticationEnabled": "true",
            "authenticationProviders": ",".join(
                f"{_PROVIDERS}{kind}" for kind in ("Tls", "Token", "Basic")
            ),
            "tokenSecretKey": f"file://{folder}/secret.key",
            "basicAuthConf": f"file://{folder}/htpasswd",
            "authenticationRefreshCheckSeconds": "1",
        }

    @property
    def broker_settings(self) -> dict[str, str]:
        """Settings of a broker, except for its TLS port (brokerServicePortTls)."""
        return {
            **self.certificate_settings,
            **self.token_settings,
            "authorizationEnabled": "true",
            "superUserRoles": "admin",
            "anonymousUserRole": "admin",
            **self.own_login("admin"),
        }

    def own_login(self, role: str) -> dict[str, str]:
        """Settings with which a broker or proxy logs in as a client itself."""
        return {
            "brokerClientAuthenticationPlugin": TOKEN_PLUGIN,
            "brokerClientAuthenticationParameters": f"token:{self.token(role)}",
        }

    def permit(self, broker: RealBroker, role: str) -> None:
        """Let a role read and write in public/default."""
        path = f"namespaces/public/default/permissions/{role}"
        broker.admin("POST", path, ["produce", "consume"])

    def token(self, role: str = "reader", seconds: float | None = None) -> str:
        """Return a JSON web token, which expires after some seconds if they are given."""
        claims: dict[str, Any] = {"sub": role}
        if seconds is not None:
            claims["exp"] = int(time.time() + seconds)
        parts = [_coded(json.dumps(part).encode()) for part in ({"alg": "HS256"}, claims)]
        signed = hmac.new(self._secret, ".".join(parts).encode(), hashlib.sha256).digest()
        return ".".join([*parts, _coded(signed)])


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
