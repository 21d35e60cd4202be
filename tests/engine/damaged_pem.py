"""Keys whose PEM was damaged when it was copied into an option."""

from __future__ import annotations

from collections.abc import Iterator


def damaged(pem: str) -> Iterator[str]:
    """Return the text of a key without its first line, its last, both, or their dashes."""
    lines = pem.splitlines()
    for joined in ("", "\n", "\\n"):
        yield joined.join(lines[1:-1])
        yield joined.join(lines[1:])
    yield pem.replace("-----BEGIN", "----BEGIN")
    yield pem.replace("-----BEGIN ", "-----BEGIN_")
    yield "\n" + "\n".join(lines[1:-1])


def shows(shown: object, pem: str) -> bool:
    """Whether the text of an object has a part of a key."""
    text = f"{shown} {shown!r}"
    return any(line[:40] in text for line in pem.splitlines()[1:-1])
