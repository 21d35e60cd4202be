"""What outlives its user for some seconds, for the next one that wants an equal thing."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple, Protocol

from pulsar_spark.engine.timers import Timers
from pulsar_spark.errors import ClosedError

# Things are ended up to this part of their time late, so that they are looked at rarely.
_LATE = 0.25


class Keepable(Protocol):
    """What can be kept."""

    def let_go(self) -> None:
        """End it, without waiting: nobody has wanted it in time. Never raises."""


class _Waiting(NamedTuple):
    due: float
    thing: Keepable


class Kept:
    """Things that wait for their next user by what must be equal, at most `most` at a time.

    What nobody has wanted for `seconds` is let go, and the oldest if there are too many.
    Thread-safe; useless in a forked child.
    """

    def __init__(self, timers: Timers, seconds: float, most: int) -> None:
        self._timers = timers
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        # The following are guarded by _lock. Keys are ordered by when they were kept last.
        self._things: dict[Hashable, list[_Waiting]] = {}
        self._count = 0
        self._looks = False

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Keepable]:
        return (one.thing for waiting in list(self._things.values()) for one in waiting)

    def keep(self, key: Hashable, thing: Keepable) -> None:
        """Keep a thing for whoever takes it by an equal key."""
        due = time.monotonic() + self._seconds
        with self._lock:
            others = self._things.pop(key, [])
            self._things[key] = [*others, _Waiting(due, thing)]
            self._count += 1
            ended = [self._take_oldest()] if self._count > self._most else []
            looks, self._looks = self._looks, True
        if not looks:
            self._look_after(self._seconds)
        for one in ended:
            one.let_go()

    def take(self, key: Hashable) -> Keepable | None:
        """Return the thing that was kept last by this key, and keep it no more; None without."""
        with self._lock:
            waiting = self._things.get(key)
            if not waiting:
                return None
            found = waiting.pop().thing
            self._count -= 1
            if not waiting:
                del self._things[key]
            return found

    def drop(self, key: Hashable, thing: Keepable) -> None:
        """Keep a thing no more, if it still waits: it has ended by itself."""
        with self._lock:
            waiting = self._things.get(key, [])
            left = [one for one in waiting if one.thing is not thing]
            self._count -= len(waiting) - len(left)
            if left:
                self._things[key] = left
            else:
                self._things.pop(key, None)

    def let_go(self, wanted: Callable[[Hashable], bool] = lambda key: True) -> None:
        """Let go of all that waits, or only by keys that are `wanted`."""
        for one in self.take_all(wanted=wanted):
            one.let_go()

    def take_all(
        self, until: float = math.inf, wanted: Callable[[Hashable], bool] = lambda key: True
    ) -> list[Keepable]:
        """As `take`, all that is due until then, by keys that are `wanted`."""
        due: list[Keepable] = []
        with self._lock:
            for key, waiting in list(self._things.items()):
                if not wanted(key):
                    continue
                due += [one.thing for one in waiting if one.due <= until]
                self._things[key] = [one for one in waiting if one.due > until]
                if not self._things[key]:
                    del self._things[key]
            self._count -= len(due)
        return due

    def _take_oldest(self) -> Keepable:
        """Take away what waits longest. `_lock` is held."""
        key, waiting = next(iter(self._things.items()))
        found = waiting.pop(0).thing
        self._count -= 1
        if not waiting:
            del self._things[key]
        return found

    def _look_after(self, seconds: float) -> None:
        try:
            self._timers.after(seconds, self._look)
        except (RuntimeError, ClosedError):
            # No thread can be started that would look later.
            self._looks = False
            self.let_go()

    def _look(self) -> None:
        now = time.monotonic()
        late = self.take_all(now)
        with self._lock:
            dues = [one.due for waiting in self._things.values() for one in waiting]
            self._looks = bool(dues)
        for one in late:
            one.let_go()
        if dues:
            self._look_after(max(min(dues) - now, _LATE * self._seconds))
