"""Requests that one thread makes in a row are written together: a system call for many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_thread = threading.local()


@contextmanager
def gathered() -> Iterator[None]:
    """Within this, connections put off writing what this thread sends; never wait for it there."""
    if getattr(_thread, "writes", None) is not None:
        yield
        return
    writes: dict[int, Callable[[], None]] = {}
    _thread.writes = writes
    try:
        yield
    finally:
        _thread.writes = None
        for write in writes.values():
            write()


def put_off(connection: object, write: Callable[[], None]) -> bool:
    """Have `write` called at the end of `gathered`, once a connection; false outside of it.

    It must not raise.
    """
    writes: dict[int, Callable[[], None]] | None = getattr(_thread, "writes", None)
    if writes is None:
        return False
    writes.setdefault(id(connection), write)
    return True
