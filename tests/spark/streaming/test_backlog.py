"""The reported lag after a batch, and the requests that it needs."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

import pytest

from pulsar_spark.engine.consumers.probe import FoundEntry, Probe
from pulsar_spark.errors import ConnectionLost, PulsarError
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.streaming import backlog as module
from pulsar_spark.spark.streaming.backlog import Backlogs, Lag
from tests.spark.backlogs import Backlog

NOW = 1_000_000


class Topics(Probe):
    """Topics in memory that answer like a Probe, or with `error`."""

    def __init__(self, **topics: Backlog) -> None:
        self.topics = topics
        self.error: PulsarError | None = None
        self.rounds: list[int] = []

    def first_entries_at(
        self, questions: Sequence[tuple[str, Position]]
    ) -> list[FoundEntry | PulsarError | None]:
        self.rounds.append(len(questions))
        return [self.error or self.topics[topic].ask(place) for topic, place in questions]

    def entries_from(self, questions: Sequence[tuple[str, Position]]) -> list[int | PulsarError]:
        self.rounds.append(len(questions))
        return [self.error or self.topics[topic].entries_from(place) for topic, place in questions]

    def asked(self) -> int:
        """Return the number of requests since the last call."""
        total = sum(self.rounds)
        self.rounds.clear()
        return total


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def only(found: dict[str, Lag]) -> Lag:
    (left,) = found.values()
    return left


def test_nothing_is_asked_where_nothing_is_left() -> None:
    topics = Topics(t=Backlog([3, 3]))
    end = Position(1, 2)
    spans = {"t": (end, end), "empty": (EARLIEST_POSITION, EARLIEST_POSITION)}
    assert Backlogs().lag(spans, topics, NOW) == {}
    # The topic was created again: it ends before the position.
    assert Backlogs().lag({"t": (Position(9, 9), end)}, topics, NOW) == {}
    assert topics.asked() == 0


def test_a_single_entry_is_known_exactly() -> None:
    backlog = Backlog([3, 8], first_time=NOW - 2501)
    found = Backlogs().lag({"t": (Position(1, 1), backlog.end)}, Topics(t=backlog), NOW)
    assert only(found) == Lag(1, 8, 80, 2.5)
    assert only(found).to_json() == {"entries": 1, "messages": 8, "bytes": 80, "seconds": 2.5}


def test_a_batch_of_which_a_part_is_read_counts_with_its_rest() -> None:
    backlog = Backlog([8], first_time=NOW)
    found = Backlogs().lag({"t": (Position(1, 0, 5), backlog.end)}, Topics(t=backlog), NOW)
    assert only(found) == Lag(1, 3, 80, 0.0)


def test_few_entries_are_all_looked_at() -> None:
    backlog = Backlog([4, 4, 7, 0, 100, 1, 0, 3])
    topics, backlogs = Topics(t=backlog), Backlogs()
    found = only(backlogs.lag({"t": (Position(1, 0, 1), backlog.end)}, topics, NOW))
    assert (found.entries, found.messages, found.messages_estimated) == (8, 118, False)
    assert (found.size, found.size_estimated) == (1190, False)
    topics.asked()
    # Inspected entries serve until they are read; without an entry there is a new first one.
    for start, messages, asked in ((2, 111, 0), (3, 104, 1), (4, 104, 0), (7, 3, 0)):
        found = only(backlogs.lag({"t": (Position(1, start), backlog.end)}, topics, NOW))
        assert (found.messages, found.messages_estimated) == (messages, False)
        assert topics.asked() == asked


def test_messages_and_bytes_are_estimated_from_few_entries_and_marked_so() -> None:
    rng = random.Random(3)
    backlog = Backlog([rng.choice([90, 110]) for _ in range(5000)], first_time=NOW)
    topics, backlogs = Topics(t=backlog), Backlogs()
    asked = []
    for entry in range(0, 5000, 100):
        start = Position(1, entry)
        left = only(backlogs.lag({"t": (start, backlog.end)}, topics, NOW))
        asked.append(topics.asked())
        assert left.entries == 5000 - entry
        assert (left.messages_estimated, left.size_estimated) == (True, True)
        assert left.to_json()["estimated"] == ["messages", "bytes"]
        assert left.messages is not None
        assert left.size is not None
        exact = backlog.count(start, backlog.end)
        assert math.isclose(left.messages, exact, rel_tol=0.11)
        assert math.isclose(left.size, 10 * exact, rel_tol=0.11)
    assert asked[0] <= 10
    # Samples serve for many batches.
    assert sum(asked[1:]) <= 3 * len(asked)


def test_what_comes_later_is_looked_at_as_it_grows() -> None:
    backlog = Backlog([1] * 100 + [50] * 900)
    topics, backlogs = Topics(t=backlog), Backlogs()
    assert only(backlogs.lag({"t": (Position(1, 0), Position(1, 100))}, topics, NOW)).messages == (
        100
    )
    found = only(backlogs.lag({"t": (Position(1, 0), backlog.end)}, topics, NOW))
    assert found.messages is not None
    assert found.messages > 20_000
    topics.asked()
    for end in range(1000, 1010):
        backlogs.lag({"t": (Position(1, 0), Position(1, end))}, topics, NOW)
    assert topics.asked() == 0


def test_messages_are_counted_where_entries_have_an_index() -> None:
    rng = random.Random(3)
    backlog = Backlog([rng.choice([1, 99]) for _ in range(500)], indexed=True, per_ledger=100)
    topics, backlogs = Topics(t=backlog), Backlogs()
    for start in (Position(1, 30), Position(1, 30), Position(4, 77), backlog.end):
        found = backlogs.lag({"t": (start, backlog.end)}, topics, NOW)
        if start < backlog.end:
            assert only(found).messages == backlog.count(start, backlog.end)
            assert not only(found).messages_estimated
            assert only(found).size_estimated


def test_an_index_that_starts_again_does_not_count() -> None:
    backlog = Backlog([3] * 1000, per_ledger=1000, indexed=True)
    backlog.next_index = 0
    backlog.add([3] * 1000)
    topics = Topics(t=backlog)
    for start in (Position(1, 10), Position(1, 900)):
        found = only(Backlogs().lag({"t": (start, backlog.end)}, topics, NOW))
        assert found.messages_estimated
        assert found.messages == backlog.count(start, backlog.end)


def test_entries_are_counted_by_the_broker_where_they_are_in_several_ledgers() -> None:
    backlog = Backlog([2] * 250, per_ledger=100)
    topics, backlogs = Topics(t=backlog), Backlogs()
    left = only(backlogs.lag({"t": (Position(1, 60), backlog.end)}, topics, NOW))
    assert (left.entries, left.messages, left.size) == (190, 380, 3800)
    left = only(backlogs.lag({"t": (EARLIEST_POSITION, backlog.end)}, topics, NOW))
    assert (left.entries, left.messages) == (250, 500)


def test_nothing_is_asked_again_where_nothing_changed() -> None:
    backlog = Backlog([2] * 250, per_ledger=100)
    topics, backlogs = Topics(t=backlog), Backlogs()
    spans = {"t": (Position(1, 60), backlog.end)}
    first = backlogs.lag(spans, topics, NOW)
    topics.asked()
    later = backlogs.lag(spans, topics, NOW + 1000)
    assert topics.asked() == 0
    assert only(later).seconds == (only(first).seconds or 0) + 1
    # The end moved within its ledger, and there is no index to use.
    inside = {"t": (Position(7, 5), Position(7, 20))}
    backlogs.lag(inside, topics, NOW)
    topics.asked()
    left = only(backlogs.lag({"t": (Position(7, 5), Position(7, 30))}, topics, NOW))
    assert topics.asked() == 0
    assert left.entries == 25


def test_markers_are_no_messages() -> None:
    backlog = Backlog([2, 0, 0, 0])
    end = Position(1, 4)
    assert only(Backlogs().lag({"t": (Position(1, 1), end)}, Topics(t=backlog), NOW)) == Lag(
        3, 0, 0, 0.0
    )


def test_what_cannot_be_asked_is_not_known_and_not_asked_for_a_while() -> None:
    clock = Clock()
    backlogs = Backlogs(clock)
    topics = Topics(t=Backlog([2] * 250, per_ledger=100))
    topics.error = ConnectionLost("gone")
    spans = {"t": (Position(1, 60), topics.topics["t"].end)}
    assert only(backlogs.lag(spans, topics, NOW)) == Lag()
    inside = {"t": (Position(7, 5), Position(7, 20))}
    assert only(backlogs.lag(inside, topics, NOW)) == Lag(15)
    topics.asked()
    topics.error = None
    clock.now += 10
    assert only(backlogs.lag(spans, topics, NOW)) == Lag()
    assert topics.asked() == 0
    clock.now += 30
    assert only(backlogs.lag(spans, topics, NOW)).entries == 190


def test_a_round_of_questions_is_bounded_and_all_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_QUESTIONS", 9)
    clock = Clock()
    topics = Topics(**{f"t{number}": Backlog([5] * 20) for number in range(7)})
    backlogs = Backlogs(clock)
    spans = {name: (Position(1, 3), topic.end) for name, topic in topics.topics.items()}
    known = []
    for _ in range(3):
        clock.now += 1
        found = backlogs.lag(spans, topics, NOW)
        known.append(sum(left.seconds is not None for left in found.values()))
        assert topics.asked() <= 9
    assert known == [3, 6, 7]
    # Batches end elsewhere each time: partitions that waited longest are asked first.
    seen: set[str] = set()
    for entry in (4, 5, 6):
        clock.now += 1
        spans = {name: (Position(1, entry), topic.end) for name, topic in topics.topics.items()}
        found = backlogs.lag(spans, topics, NOW)
        assert topics.asked() <= 9
        seen |= {name for name, left in found.items() if left.seconds is not None}
        assert all(left.entries == 20 - entry for left in found.values())
        # Partitions that were not asked about are extrapolated.
        assert all(left.messages == 5 * (20 - entry) for left in found.values())
        assert all(left.messages_estimated for left in found.values())
    assert seen == set(topics.topics)


def test_messages_that_follow_markers_are_seen() -> None:
    backlog = Backlog([2, 0, 0, 5, 0], first_time=NOW)
    topics, backlogs = Topics(t=backlog), Backlogs()
    start = Position(1, 1)
    assert only(backlogs.lag({"t": (start, Position(1, 3))}, topics, NOW)).messages == 0
    found = only(backlogs.lag({"t": (start, Position(1, 4))}, topics, NOW))
    assert (found.entries, found.messages, found.size) == (3, 5, 50)


def test_a_stream_that_goes_back_is_looked_at_anew() -> None:
    backlog = Backlog([2] * 20, first_time=NOW)
    topics, backlogs = Topics(t=backlog), Backlogs()
    backlogs.lag({"t": (Position(1, 15), backlog.end)}, topics, NOW)
    assert only(backlogs.lag({"t": (Position(1, 0), backlog.end)}, topics, NOW)).messages == 40


def test_topics_that_are_gone_are_forgotten() -> None:
    topics = Topics(a=Backlog([5] * 20), b=Backlog([5] * 20))
    backlogs = Backlogs()
    backlogs.lag({name: (Position(1, 3), Position(1, 20)) for name in "ab"}, topics, NOW)
    backlogs.lag({"a": (Position(1, 3), Position(1, 20))}, topics, NOW)
    assert set(backlogs._known) == {"a"}


@pytest.mark.parametrize("indexed", [True, False])
def test_what_is_remembered_stays_little_while_a_stream_stands_and_its_topic_grows(
    indexed: bool,
) -> None:
    backlog = Backlog([2] * 3000, per_ledger=50, indexed=indexed)
    topics, backlogs = Topics(t=backlog), Backlogs()
    for ledger in range(1, 180, 3):
        for entry in range(1, 50, 7):
            end = Position(ledger, entry)
            left = backlogs.lag({"t": (Position(1, 0), end)}, topics, NOW)
            if indexed:
                assert only(left).messages == backlog.count(Position(1, 0), end)
            assert len(backlogs._known["t"].samples) <= 12


def test_a_position_behind_the_last_message_of_a_batch_is_before_the_next_one() -> None:
    backlog = Backlog([3, 3, 4], first_time=NOW)
    topics, backlogs = Topics(t=backlog), Backlogs()
    for start in (Position(1, 0), Position(1, 1, 3)):
        left = only(backlogs.lag({"t": (start, backlog.end)}, topics, NOW))
    assert left.messages == 4


@pytest.mark.parametrize("partitions", [500, 5000])
def test_the_lag_of_many_partitions_costs_the_same_in_each_trigger(partitions: int) -> None:
    topics = Topics(**{f"t{number}": Backlog([2] * 40) for number in range(partitions)})
    backlogs = Backlogs()
    costs = []
    for trigger in range(12):
        spans = {
            topic: (Position(1, trigger), backlog.end) for topic, backlog in topics.topics.items()
        }
        start = time.process_time()
        found = backlogs.lag(spans, topics, NOW)
        costs.append(time.process_time() - start)
        assert len(found) == partitions
        assert topics.asked() <= 64
    assert min(costs[9:]) < 3 * min(costs[:2])
