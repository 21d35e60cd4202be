"""The admin REST, for what the binary protocol does not tell: questions only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pulsar_spark.engine.authentication.providers import AuthProvider
from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.connections.addresses import parse_service_url
from pulsar_spark.engine.connections.http_client import HttpClient
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import OptionError, RemoteProtocolError

_MAX_ANSWER = 16 * 1024 * 1024


def unexpected(path: str) -> RemoteProtocolError:
    """Return the error of an answer that Pulsar does not give."""
    return RemoteProtocolError(
        f"the answer for /admin/v2/{path} is not what Pulsar's web service gives",
        "Give the address of the brokers' web service.",
    )


class Admin(Closing):
    """Asks the web service at `url`, with the TLS and the credentials of a connection.

    Raises OptionError for what is not the URL of one.
    """

    def __init__(self, options: ClientOptions, auth: AuthProvider, url: str) -> None:
        try:
            is_web = parse_service_url(url).web
        except OptionError:
            is_web = False
        if not is_web:
            raise OptionError(
                "the admin URL is not http://host:8080 or https://host:8443",
                "Give the address of the brokers' web service.",
            )
        self._timeout = options.operation_timeout
        self._client = HttpClient(replace(options, service_url=url, proxy_service_url=None), auth)

    def get(self, path: str) -> Any:
        """Return the JSON value at a path under /admin/v2/; raises as `HttpClient.get` fails."""
        return self._client.get(f"/admin/v2/{path}", self._timeout, _MAX_ANSWER).result()

    def get_object(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path; raises RemoteProtocolError for anything else."""
        found = self.get(path)
        if not isinstance(found, dict):
            raise unexpected(path)
        return found

    def close(self) -> None:
        """End its connections."""
        self._client.close()
