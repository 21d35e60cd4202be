"""The inbox of one consumer's topic partitions, used by several threads."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, cast

import pytest

from pulsar_spark.engine.consumers.inbox import Inbox
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.errors import ClosedError, CorruptMessage, TopicNotFound
from tests.support.waiting import finish


class Number(int):
    """A stand-in for a delivery."""

    cost = 5


class Source:
    """Has some numbers; None stands for an unreadable one."""

    def __init__(self, *numbers: int | None) -> None:
        self.numbers = deque(numbers)

    @property
    def has_more(self) -> bool:
        return bool(self.numbers)

    def take(self) -> int | None:
        if not self.numbers:
            return None
        if (number := self.numbers.popleft()) is None:
            raise CorruptMessage("damaged")
        return Number(number)


def put(inbox: Inbox, source: Source) -> None:
    inbox.put(cast(Any, source))


def rest(inbox: Inbox) -> list[int]:
    found: list[int] = []
    while (number := cast(Any, inbox.next())) is not None:
        found.append(number)
    return found


def test_consumers_take_turns() -> None:
    inbox = Inbox()
    first, second = Source(*range(50)), Source(*range(100, 130))
    put(inbox, first)
    put(inbox, second)
    put(inbox, first)
    found = rest(inbox)
    assert sorted(found) == [*range(50), *range(100, 130)]
    assert found.index(100) < found.index(49)
    assert [number for number in found if number < 100] == list(range(50))
    assert not inbox.wait(Deadline(0))
    first.numbers.append(7)
    put(inbox, first)
    assert rest(inbox) == [7]


def test_what_follows_something_that_cannot_be_read_comes_next() -> None:
    inbox = Inbox()
    put(inbox, Source(1, None, 2))
    assert cast(Any, inbox.next()) == 1
    with pytest.raises(CorruptMessage):
        inbox.next()
    assert inbox.wait(Deadline(5))
    assert rest(inbox) == [2]


def test_all_who_wait_get_something_where_several_things_come_together() -> None:
    inbox = Inbox()
    lock = threading.Lock()
    found: list[int] = []

    def receive() -> None:
        while True:
            with lock:
                number = cast(Any, inbox.next())
            if number is not None:
                found.append(number)
                inbox.wake()
                return
            assert inbox.wait(Deadline(30))

    threads = [threading.Thread(target=receive) for _ in range(3)]
    for thread in threads:
        thread.start()
    put(inbox, Source(1, 2, 3))
    finish(*threads)
    assert sorted(found) == [1, 2, 3]


def test_an_error_comes_behind_what_was_delivered_and_stays() -> None:
    told = threading.Semaphore(0)
    inbox = Inbox(told.release)
    put(inbox, Source(1))
    inbox.fail(TopicNotFound("gone"))
    assert told.acquire(timeout=5)
    assert told.acquire(timeout=5)
    assert cast(Any, inbox.next()) == 1
    for _ in range(2):
        with pytest.raises(TopicNotFound):
            inbox.next()
    inbox.close()
    with pytest.raises(ClosedError):
        inbox.next()
    assert inbox.wait(Deadline(0))
