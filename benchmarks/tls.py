"""TLS and plain text: a second port of the measured broker, and the options to read from it."""

from __future__ import annotations

from pathlib import Path

from tests.support.certificates import Authority
from tests.support.java_server import free_ports


class TlsPort:
    """A port with a certificate of its own authority, whose files are in `folder`."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        certificate, key = authority.host("broker")
        (port,) = free_ports(1)
        self.broker_settings = {
            "brokerServicePortTls": str(port),
            "tlsCertificateFilePath": certificate,
            "tlsKeyFilePath": key,
        }
        self.options = {
            "service.url": f"pulsar+ssl://127.0.0.1:{port}",
            "pulsar.client.tlsTrustCertsFilePath": authority.file,
        }
        """The options of our source for it, without the topic."""
