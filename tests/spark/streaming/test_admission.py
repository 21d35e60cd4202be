"""How much goes into a micro-batch."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.engine.consumers.probe import FoundEntry
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.options.stream import Caps
from pulsar_spark.spark.streaming.admission import Admission
from tests.spark.backlogs import Backlog


class Stream:
    """Batches of topics, one after the other, as a query without new messages would run them."""

    def __init__(self, topics: Mapping[str, Backlog]) -> None:
        self.topics = topics
        self.at = dict.fromkeys(topics, EARLIEST_POSITION)
        self.rounds = 0
        self.admission = Admission(self.ask)

    def ask(self, questions: Sequence[tuple[str, Position]]) -> list[FoundEntry | None]:
        self.rounds += 1
        return [self.topics[topic].ask(position) for topic, position in questions]

    def batch(self, caps: Caps) -> dict[str, int]:
        """Return the messages of the next batch by topic."""
        spans = {topic: (self.at[topic], topics.end) for topic, topics in self.topics.items()}
        cuts = self.admission.admit(spans, caps)
        counts = {}
        for topic, cut in cuts.items():
            assert self.at[topic] <= cut <= self.topics[topic].end
            counts[topic] = self.topics[topic].count(self.at[topic], cut)
        self.at = cuts
        return counts

    def sizes(self, caps: Caps, most: int = 10_000) -> list[int]:
        """Run to the end and return the messages of each batch."""
        sizes = []
        while any(self.at[topic] < backlog.end for topic, backlog in self.topics.items()):
            sizes.append(sum(self.batch(caps).values()))
            assert sizes[-1] > 0
            assert len(sizes) < most
        return sizes


def one(entries: Sequence[int], **more: object) -> Stream:
    return Stream({"t": Backlog(entries, **more)})  # type: ignore[arg-type]


@pytest.mark.parametrize("per_ledger", [10**9, 700, 30])
def test_single_messages_are_counted_exactly(per_ledger: int) -> None:
    stream = one([1] * 2500, per_ledger=per_ledger)
    assert stream.sizes(Caps(1000)) == [1000, 1000, 500]


@pytest.mark.parametrize("per_ledger", [10**9, 40])
def test_an_index_makes_it_exact_whatever_the_entries_hold(per_ledger: int) -> None:
    rng = random.Random(1)
    entries = [1000, *(rng.choice([1, 1000, 7]) for _ in range(300))]
    stream = one(entries, per_ledger=per_ledger, indexed=True)
    sizes = stream.sizes(Caps(1234))
    assert sizes[:-1] == [1234] * (len(sizes) - 1)
    assert sum(sizes) == sum(entries)


@pytest.mark.parametrize("cap", [12, 25, 60, 1000])
def test_entries_are_cut_where_the_cap_falls(cap: int) -> None:
    stream = one([25] * 50)
    sizes = stream.sizes(Caps(cap))
    assert sizes[:-1] == [cap] * (len(sizes) - 1)
    assert sum(sizes) == 50 * 25


def test_equal_batches_of_several_partitions_fill_the_cap() -> None:
    stream = Stream({f"t{n}": Backlog([100] * 500) for n in range(3)})
    sizes = stream.sizes(Caps(1000))
    assert sizes == [1000] * 150


@pytest.mark.parametrize("indexed", [False, True])
def test_the_budget_goes_where_the_backlog_is(indexed: bool) -> None:
    topics = {f"t{n}": Backlog([1] * 10, indexed=indexed) for n in range(9)}
    topics["large"] = Backlog([1] * 5000, indexed=indexed)
    topics["none"] = Backlog([])
    counts = Stream(topics).batch(Caps(1000))
    assert counts == {**{f"t{n}": 10 for n in range(9)}, "large": 910, "none": 0}


def test_what_has_waited_longest_comes_first_where_not_all_get_some() -> None:
    topics = {f"t{n}": Backlog([1000] * 3, first_time=100 - n, size=1) for n in range(5)}
    stream = Stream(topics)
    half = {"t0": 0, "t1": 0, "t2": 0, "t3": 1000, "t4": 1000}
    assert stream.batch(Caps(max_bytes=2500)) == half
    assert Stream(topics).batch(Caps(2500)) == dict.fromkeys(topics, 500)
    few = Stream({f"t{n}": Backlog([1] * 3, first_time=100 - n) for n in range(5)})
    assert few.batch(Caps(2)) == {"t0": 0, "t1": 0, "t2": 0, "t3": 1, "t4": 1}


def test_at_least_one_entry_is_admitted() -> None:
    assert one([1000] * 3).sizes(Caps(max_bytes=1)) == [1000] * 3
    for indexed in (False, True):
        # Bytes are counted by whole entries; messages are a bound even if an entry is too large.
        assert one([1000] * 3, indexed=indexed).sizes(Caps(10, 1)) == [10] * 300
        assert one([1000] * 3, indexed=indexed).sizes(Caps(600)) == [600] * 5


def test_bytes_are_counted_as_messages_are() -> None:
    assert one([1] * 100, size=50).sizes(Caps(max_bytes=1000)) == [20] * 5
    assert one([1] * 100, size=50).sizes(Caps(30, 1000)) == [20] * 5
    assert one([1] * 100, size=50).sizes(Caps(10, 1000)) == [10] * 10
    assert one([1] * 100, size=50, indexed=True).sizes(Caps(30, 1000)) == [20] * 5
    assert one([1] * 100, size=50, indexed=True).sizes(Caps(10, 1000)) == [10] * 10


def test_ids_without_entries_do_not_count() -> None:
    entries = [1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 1, 1]
    assert one(entries).sizes(Caps(3))[0] == 3
    assert sum(one(entries, per_ledger=4).sizes(Caps(2))) == 8


MIXTURES = {
    "half": lambda r: [r.choice([1, 1000]) for _ in range(400)],
    "one in twenty": lambda r: [1000 if r.random() < 0.05 else 1 for _ in range(3000)],
    "nineteen in twenty": lambda r: [1 if r.random() < 0.05 else 1000 for _ in range(400)],
    "runs": lambda r: ([1] * 1500 + [1000] * 40) * 3,
    "in turn": lambda r: [1, 1000] * 300,
    "rhythm": lambda r: ([1] * 63 + [1000]) * 60,
    "first small": lambda r: [1] * 6000 + [1000] * 200,
    "first large": lambda r: [1000] * 200 + [1] * 6000,
}


@pytest.mark.parametrize("cap", [1500, 5000, 40_000])
@pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES)
@pytest.mark.parametrize("seed", range(3))
def test_batches_of_any_mixture_are_within_the_cap(mixture: object, cap: int, seed: int) -> None:
    entries = mixture(random.Random(seed))  # type: ignore[operator]
    sizes = one(entries, per_ledger=1000).sizes(Caps(cap))
    assert sum(sizes) == sum(entries)
    assert max(sizes) <= cap, sizes


@pytest.mark.parametrize("large", [0.0, 0.01])
def test_a_cap_beyond_the_entries_that_are_looked_at_is_kept_with_a_margin(large: float) -> None:
    rng = random.Random(7)
    entries = [1000 if rng.random() < large else rng.randint(1, 20) for _ in range(20_000)]
    sizes = one(entries, per_ledger=5000).sizes(Caps(50_000))
    assert sum(sizes) == sum(entries)
    assert max(sizes) <= 50_000
    assert sum(sizes[:-1]) > 0.4 * 50_000 * (len(sizes) - 1)


def test_few_entries_are_looked_at_for_a_decision() -> None:
    backlog = Backlog([1] * 1_000_000, per_ledger=50_000)
    stream = Stream({"t": backlog})
    assert stream.batch(Caps(100_000)) == {"t": 100_000}
    assert backlog.asked < 1500
    assert stream.rounds < 60
    many = Stream({f"t{n}": Backlog([10] * 1000) for n in range(200)})
    many.batch(Caps(10_000))
    assert sum(backlog.asked for backlog in many.topics.values()) < 8000


def test_a_least_number_is_waited_for() -> None:
    stream = Stream({"a": Backlog([1] * 60), "b": Backlog([10] * 3), "c": Backlog([])})
    spans = {topic: (EARLIEST_POSITION, backlog.end) for topic, backlog in stream.topics.items()}
    assert stream.admission.holds(spans, 90)
    assert not stream.admission.holds(spans, 91)
    assert stream.admission.holds(spans, 1)
    assert not stream.admission.holds({}, 1)


entries_of_all_kinds = st.lists(st.sampled_from([0, 1, 1, 2, 50, 1000]), min_size=1, max_size=60)


@given(
    st.lists(entries_of_all_kinds, min_size=1, max_size=4),
    st.integers(1, 20),
    st.integers(1, 3000),
    st.booleans(),
)
def test_every_message_is_read_once_whatever_the_topics_are_like(
    topics: list[list[int]], per_ledger: int, cap: int, indexed: bool
) -> None:
    stream = Stream(
        {
            f"t{number}": Backlog(entries, per_ledger=per_ledger, indexed=indexed)
            for number, entries in enumerate(topics)
        }
    )
    # Few enough batches not to take minutes.
    cap = max(cap, sum(map(sum, topics)) // 1000)
    sizes = stream.sizes(Caps(cap)) if any(sum(entries) for entries in topics) else []
    assert sum(sizes) == sum(sum(entries) for entries in topics)
    assert all(size <= cap for size in sizes)
    if len(topics) == 1:
        assert all(size == cap for size in sizes[:-1])
