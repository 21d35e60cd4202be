"""Base class of objects that a `with` block closes."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

_Self = TypeVar("_Self", bound="Closing")


class Closing:
    """Has a `with` block end in `close`, or, if an exception leaves it, in `_give_up`."""

    __slots__ = ()

    def close(self) -> object:
        """Give back what is held; safe to call twice."""
        raise NotImplementedError

    def _give_up(self) -> object:
        """End a `with` block that an exception leaves."""
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
