"""Base class of objects that a `with` block closes."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

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
