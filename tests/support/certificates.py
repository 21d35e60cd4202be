"""Certificates for tests: an authority, a broker's context, a client's files."""

from __future__ import annotations

import datetime
import ssl
import subprocess
from pathlib import Path
from typing import Any

import trustme


class Authority:
    """A certificate authority of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ca = trustme.CA()
        self.pem = self._ca.cert_pem.bytes().decode()
        self.file = self._store("ca.pem", self.pem)

    def _store(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def server(
        self, *names: str, client_authority: Authority | None = None, **more: Any
    ) -> ssl.SSLContext:
        """Return a broker's context, for the given names, by default those that tests connect to.

        With `client_authority` clients must have a certificate of that authority.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        leaf = self._ca.issue_cert(*(names or ("127.0.0.1", "localhost")), **more)
        leaf.configure_cert(context)
        if client_authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=client_authority.pem)
        return context

    def host(self, name: str, *names: str) -> tuple[str, str]:
        """Return the files of a broker's certificate and of its key, in a form that Java reads."""
        leaf = self._ca.issue_cert(*(names or ("127.0.0.1", "localhost")))
        certificate = "".join(blob.bytes().decode() for blob in leaf.cert_chain_pems)
        key = subprocess.run(
            ["openssl", "pkcs8", "-topk8", "-nocrypt"],
            input=leaf.private_key_pem.bytes(),
            check=True,
            capture_output=True,
        ).stdout.decode()
        return self._store(f"{name}.pem", certificate), self._store(f"{name}.key", key)

    def client(self, name: str = "reader") -> tuple[str, str]:
        """Return the files of a client's certificate and of its key."""
        # Java rejects certificates with an empty list of names.
        leaf = self._ca.issue_cert(f"{name}.example", common_name=name)
        certificate = "".join(blob.bytes().decode() for blob in leaf.cert_chain_pems)
        key = leaf.private_key_pem.bytes().decode()
        return self._store(f"{name}.pem", certificate), self._store(f"{name}.key", key)


def self_signed(
    folder: Path, subject: str = "own", names: str = "IP:127.0.0.1"
) -> tuple[str, ssl.SSLContext]:
    """Return a self-signed server certificate, as a file and in a context.

    Without `names` it names its host in the subject only.
    """
    certificate, key = folder / "own.pem", folder / "own.key"
    extension = f"-addext subjectAltName={names} " if names else ""
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={subject} "
        f"{extension}-keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return str(certificate), context


def only_old_versions(server: ssl.SSLContext) -> ssl.SSLContext:
    """Restrict a server to TLS 1.0 and 1.1."""
    server.set_ciphers("ALL:@SECLEVEL=0")
    server.minimum_version, server.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    return server


def days(number: int) -> datetime.datetime:
    """Return the time this many days from now."""
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=number)
