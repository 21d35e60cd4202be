"""Pulsar's admin REST API, for what the binary protocol cannot tell; read-only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pulsar_spark.engine.authentication.providers import AuthProvider
from pulsar_spark.engine.closing import Closing
from pulsar_spark.engine.connections.addresses import parse_service_url
from pulsar_spark.engine.connections.http_client import HttpClient
from pulsar_spark.engine.options import ClientOptions
from pulsar_spark.errors import OptionError, PulsarError, RemoteProtocolError

_MAX_ANSWER = 16 * 1024 * 1024


def unexpected(path: str) -> RemoteProtocolError:
    """Return the error for an answer that Pulsar never gives."""
    return RemoteProtocolError(
        f"the answer for /admin/v2/{path} is not one of Pulsar's web service",
        "Give the address of the brokers' web service.",
    )


class Admin(Closing):
    """Sends GET requests to the web service at `url`, with the connection's TLS and credentials.

    Errors say that `given_as` names it. Raises OptionError for an invalid URL.
    """

    def __init__(
        self,
        options: ClientOptions,
        auth: AuthProvider,
        url: str,
        given_as: str = "--admin-url",
    ) -> None:
        try:
            is_web = parse_service_url(url).web
        except OptionError:
            is_web = False
        if not is_web:
            raise OptionError(
                "the admin URL is not http://host:8080 or https://host:8443",
                "Give the address of the brokers' web service.",
            )
        self._given_as = given_as
        self._timeout = options.operation_timeout
        self._client = HttpClient(replace(options, service_url=url, proxy_service_url=None), auth)

    def get(self, path: str) -> Any:
        """Return the JSON value at a path under /admin/v2/; raises as `HttpClient.get` fails."""
        try:
            return self._client.get(f"/admin/v2/{path}", self._timeout, _MAX_ANSWER).result()
        except PulsarError as error:
            raise self._naming(error) from None

    def _naming(self, error: PulsarError) -> PulsarError:
        """Return the error with the name by which this address was given."""
        what, remedy = (
            text.replace("service.url", self._given_as) for text in (error.what, error.remedy)
        )
        if (what, remedy) == (error.what, error.remedy):
            return error
        return type(error)(what, remedy).with_context(broker=error.broker)

    def get_object(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path; raises RemoteProtocolError for anything else."""
        found = self.get(path)
        if not isinstance(found, dict):
            raise unexpected(path)
        return found

    def close(self) -> None:
        """Close its connections."""
        self._client.close()
