"""PEM, which options give as text or as the path of a file."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Final

from pulsar_spark.errors import PulsarError, redact

BEGIN: Final = "-----BEGIN "
_CONTENT = "content:"
# What lies between PEM's lines: in base64, every DER sequence starts like this. Java's clients take
# URLs of data.
_BARE = re.compile(r"\s*(M[A-P][A-Za-z0-9+/=_\s-]{38}|(?i:data:))")
_NOT_IN_PATHS = "\n", "\\n", "---"


def pem_content(value: str) -> str | None:
    """Return PEM text given in place of a path, None for a path."""
    if not value.startswith(_CONTENT) and BEGIN not in value:
        return None
    return value.removeprefix(_CONTENT).strip() + "\n"


def read_pem(value: str, option: str, error: type[PulsarError], remedy: str) -> bytes:
    """Return PEM text, or a file's content; raises `error`, for a missing file with `remedy`."""
    text = pem_content(value)
    if text is not None:
        return text.encode()
    try:
        return Path(value).read_bytes()
    except (OSError, ValueError) as found:
        if _may_be_key(value):
            raise error(
                f"{option} is neither a path nor PEM: its first or last line is missing or "
                "damaged, or all of it is base64",
                f"Give all of it as text, from {BEGIN}… to -----END ….",
            ) from None
        why = found.strerror if isinstance(found, OSError) else "not a path"
        raise error(f"the file {redact(value)} of {option} cannot be read: {why}", remedy) from None


def is_path(value: str) -> bool:
    """Whether a value is the path of a file, and no PEM text, not even a damaged one."""
    return pem_content(value) is None and not _may_be_key(value)


def shown_pem(value: str | None) -> str:
    """Return what a `repr` may show: a path."""
    return repr(value and redact(value)) if value is None or is_path(value) else "'content:***'"


def _may_be_key(value: str) -> bool:
    is_bare = _BARE.match(value) is not None or any(part in value for part in _NOT_IN_PATHS)
    return is_bare or _is_encoded(value)


def _is_encoded(value: str) -> bool:
    """Whether it is PEM in base64, as secrets of Kubernetes are."""
    text = "".join(value.split()).rstrip("=")
    try:
        data = base64.b64decode(
            text + "=" * (-len(text) % 4), altchars=b"-_" if "-" in text else None, validate=True
        )
    except ValueError:
        return False
    return BEGIN.encode() in data
