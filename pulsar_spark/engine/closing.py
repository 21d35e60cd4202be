"""Objects that a `with` block closes, and that nothing keeps if they are dropped instead."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

_Self = TypeVar("_Self", bound="Closing")


class Closing:
    """Ends a `with` block with `close`, or, after an exception, with `_give_up`."""

    __slots__ = ()

    def close(self) -> object:
        """Free all resources; safe to call twice."""
        raise NotImplementedError

    def _give_up(self) -> object:
        """End a `with` block that raised an exception."""
        return self.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._give_up()


def weakly(method: Callable[..., object]) -> Callable[..., None]:
    """Return a function that calls a method while its object is there, and does not keep that.

    Threads call users' objects by it: otherwise one that is dropped would never be collected.
    """
    found = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        if (there := found()) is not None:
            there(*arguments)

    return call
