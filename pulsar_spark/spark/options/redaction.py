"""Secrets in options that Spark would show.

Spark shows the options of SQL statements, views and tables in plans, in its UI and in its event
log. It hides those whose key or value matches `spark.redaction.regex`. The data source runs in a
process that cannot read this setting, so its default counts here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pulsar_spark.engine.pem import is_path
from pulsar_spark.errors import printable, without_credentials
from pulsar_spark.logs import get_logger
from pulsar_spark.spark.options.java import IGNORED_PREFIX
from pulsar_spark.spark.options.parsers import keys_by_name
from pulsar_spark.spark.options.table import BY_NAME

logger = get_logger(__name__)

_SHOWN = 100

HIDDEN = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""Spark's default of `spark.redaction.regex`, as all supported versions have it."""

_PRIVATE_KEY = "PRIVATE KEY-----"
# A place where to find a secret, and no secret itself.
_PLACE = re.compile(r"file:|env:|\.{0,2}/|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
# Fields of authParams that are no secrets, and those with a key or its file.
_HARMLESS = frozenset(
    {
        *("type", "issuerurl", "issuer_url", "audience", "scope", "clientid", "client_id"),
        *("userid", "trustcertsfilepath", "trust_certs_file_path", "tlscertfile"),
    }
)
_KEYS = frozenset({"privatekey", "private_key", "tlskeyfile"})

# The options that were warned about in this process.
_warned: set[str] = set()


def warn_of_shown_secrets(options: Mapping[str, str]) -> None:
    """Log which of the options given to Spark have secrets that it shows, each option once."""
    found = dict(filter(None, (_shown(*given) for given in options.items())))
    new = {name: remedy for name, remedy in found.items() if name not in _warned}
    _warned.update(new)
    if new:
        logger.warning(
            "Spark shows secrets of options in plans and in its event log, unless its setting "
            "spark.redaction.regex hides them: %s. docs/connecting.md says more.",
            "; ".join(f"{name} ({remedy})" for name, remedy in new.items()),
        )


def _shown(name: str, value: str) -> tuple[str, str] | None:
    """Return the option's key and what to do, if Spark shows a secret of it."""
    if HIDDEN.search(name) or HIDDEN.search(value):
        return None
    lower = name.lower()
    option = BY_NAME.get(lower)
    key = printable(name[:_SHOWN]) if option is None else option.key
    if without_credentials(value) != value:
        return key, "leave the user name and password out of the URL"
    if lower.startswith(IGNORED_PREFIX):
        return (key, "leave it out: it has no effect") if _has_secret(lower, value) else None
    if not _has_secret(key.lower(), value):
        return None
    hidden = () if option is None else (name for name in option.aliases if HIDDEN.search(name))
    return key, "".join(f"use {name}, or a file" for name in hidden) or "leave the private key out"


def _has_secret(name: str, value: str) -> bool:
    """Whether the value of an option, by its name in lower case, is a secret and not its place."""
    if name.endswith(".authparams"):
        return _has_credentials(value.strip())
    if name.endswith((".tlskeyfilepath", ".cryptoprivatekeypath")):
        return not all(map(is_path, _texts(value)))
    return _PRIVATE_KEY in value


def _texts(value: str) -> list[str]:
    """Return the keys of an option, one or several as JSON."""
    try:
        return [key for _, key in keys_by_name(value)] if value.strip() else []
    except ValueError:
        return [value]


def _has_credentials(params: str) -> bool:
    """Whether authParams are credentials; those of a class of the user's own may be."""
    fields = _fields(params)
    if fields and fields.keys() <= _HARMLESS | _KEYS:
        keys = [value for name, value in fields.items() if name in _KEYS]
        return not all(is_path(key) and not key.startswith(("{", "data:")) for key in keys)
    return bool(params) and not _PLACE.match(params)


def _fields(params: str) -> dict[str, str]:
    """Return the fields of JSON or "name:value,name:value", by lower-case names."""
    pairs = [tuple(part.partition(":")[::2]) for part in params.split(",")]
    if params.startswith("{"):
        try:
            pairs = list(json.loads(params).items())
        except (ValueError, RecursionError):
            return {}
    return {str(name).strip().lower(): str(value).strip() for name, value in pairs}
