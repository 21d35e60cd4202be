"""How much goes into a micro-batch."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_spark.engine.consumers.probe import FoundEntry, Look
from pulsar_spark.protocol.message_id import EARLIEST_POSITION, Position
from pulsar_spark.spark.options.stream import Caps
from pulsar_spark.spark.streaming.admission import Admission
from pulsar_spark.spark.streaming.topics import Span
from tests.spark.backlogs import Backlog


class Stream:
    """Batches of topics, one after the other, as a query without new messages would run them."""

    def __init__(self, topics: Mapping[str, Backlog], start: Position = EARLIEST_POSITION) -> None:
        self.topics = dict(topics)
        self.at = dict.fromkeys(topics, start)
        self.rounds = self.looks = 0
        self.admission = Admission(self.ask)

    def ask(self, questions: Sequence[tuple[str, Look]]) -> list[list[FoundEntry]]:
        self.rounds += 1
        self.looks += len(questions)
        return [self.topics[topic].look(look) for topic, look in questions]

    def batch(self, caps: Caps, last: int | None = 0) -> dict[str, int]:
        """Return the messages of the next batch by topic; `last` as in a Span, None as it is."""
        spans = {
            topic: Span(self.at[topic], backlog.end, backlog.last if last is None else last)
            for topic, backlog in self.topics.items()
        }
        cuts = self.admission.admit(spans, caps)
        counts = {}
        for topic, cut in cuts.items():
            assert self.at[topic] <= cut <= self.topics[topic].end
            assert cut.batch_index >= 0
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


BEGINNING = Position(1, 0)


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


def test_a_decision_takes_few_requests_however_much_there_is() -> None:
    backlog = Backlog([1] * 1_000_000, per_ledger=50_000)
    stream = Stream({"t": backlog})
    assert 90_000 < stream.batch(Caps(100_000))["t"] <= 100_000
    assert stream.looks <= 64
    assert stream.rounds < 20


@pytest.mark.parametrize("number", [1, 10, 100, 1000])
def test_a_decision_about_any_number_of_partitions_takes_64_requests(number: int) -> None:
    stream = Stream({f"t{n}": Backlog([1] * 40) for n in range(number)}, BEGINNING)
    cap, left = 10 * number + 5, 40 * number
    while left:
        before = stream.looks
        taken = sum(stream.batch(Caps(cap), last=1).values())
        assert 0.9 * min(cap, left) <= taken <= cap
        assert stream.looks - before <= 64
        left -= taken


@pytest.mark.parametrize("cap", [3, 200, 5000])
def test_no_partition_waits_longer_than_its_turn(cap: int) -> None:
    number = 300
    stream = Stream({f"t{n}": Backlog([10] * 400) for n in range(number)})
    waiting: set[str] = set(stream.topics)
    for _ in range(-(-number // min(64, cap))):
        waiting -= {topic for topic, count in stream.batch(Caps(cap)).items() if count}
    assert not waiting


def test_a_cap_that_does_not_bind_takes_all_after_a_few_looks() -> None:
    stream = Stream({f"t{n}": Backlog([]) for n in range(100)}, BEGINNING)
    rng = random.Random(3)
    for round_number in range(1, 6):
        # The last entry's size is told by the broker.
        counts = [rng.randint(1, 20) for _ in range(100)]
        for topic, more in zip(stream.topics, counts, strict=True):
            stream.topics[topic].add([5] * more)
        before = stream.looks
        assert sum(stream.batch(Caps(50_000), last=5).values()) == 5 * sum(counts)
        assert stream.looks - before <= 16, round_number


@pytest.mark.parametrize("where", ["all", "second half", "one partition", "last entries"])
def test_a_cap_is_kept_when_entries_become_larger_all_at_once(where: str) -> None:
    stream = Stream({f"t{n}": Backlog([]) for n in range(10)}, BEGINNING)

    def add(count: int, size: int, topics: Sequence[str] = tuple(stream.topics)) -> None:
        for topic in topics:
            stream.topics[topic].add([size] * count)

    add(100, 1)
    assert sum(stream.batch(Caps(5000), last=1).values()) == 1000
    if where == "all":
        add(100, 1000)
    elif where == "second half":
        add(50, 1)
        add(50, 1000)
    elif where == "one partition":
        add(100, 1)
        add(100, 1000, ["t7"])
    else:
        add(90, 1)
        add(10, 1000)
    while any(stream.at[topic] < backlog.end for topic, backlog in stream.topics.items()):
        assert 0 < sum(stream.batch(Caps(5000)).values()) <= 5000


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_few_entries_are_all_read_so_that_no_large_one_is_overlooked(partitions: int) -> None:
    stream = Stream({f"t{n}": Backlog([]) for n in range(partitions)}, BEGINNING)
    for backlog in stream.topics.values():
        backlog.add([1] * 100)
    assert sum(stream.batch(Caps(1000), last=1).values()) == 100 * partitions
    stream.topics["t0"].add([*[1] * 50, 5000, *[1] * 49])
    before = stream.looks
    taken = 0
    while stream.at["t0"] < stream.topics["t0"].end:
        count = sum(stream.batch(Caps(1000), last=1).values())
        assert 0 < count <= 1000
        taken += count
    assert taken == 5099
    assert stream.looks - before <= 16


def test_with_an_index_all_that_is_new_is_counted_by_one_look() -> None:
    stream = Stream({"t": Backlog([], indexed=True)}, BEGINNING)
    for number in range(4):
        stream.topics["t"].add([1, 7, 300] * 300)
        before = stream.looks
        assert stream.batch(Caps(100_000)) == {"t": 300 * 308}
        assert stream.looks - before <= (1 if number else 2)
    stream.topics["t"].add([1000] * 300)
    assert stream.batch(Caps(100_000)) == {"t": 100_000}


def test_what_was_read_beyond_a_cap_is_not_asked_for_again() -> None:
    stream = one([1000] * 3)
    assert stream.sizes(Caps(10)) == [10] * 300
    # The last entry is only read once as well.
    assert stream.looks <= 5


@pytest.mark.parametrize("indexed", [False, True])
def test_a_topic_that_was_made_again_is_read_anew(indexed: bool) -> None:
    stream = one([10] * 20, indexed=indexed)
    assert stream.batch(Caps(15)) == {"t": 15}
    stream.topics["t"] = Backlog([3] * 20, per_ledger=5, indexed=indexed)
    stream.at["t"] = EARLIEST_POSITION
    assert stream.batch(Caps(15)) == {"t": 15}


def test_ten_thousand_partitions_are_admitted_in_linear_time() -> None:
    topics = {f"t{n}": Backlog([1] * 3) for n in range(10_000)}

    def cost(number: int) -> float:
        stream = Stream(dict(list(topics.items())[:number]))
        start = time.process_time()
        assert sum(stream.batch(Caps(100)).values()) == 100
        assert stream.looks <= 64
        return time.process_time() - start

    few = min(cost(1000) for _ in range(3))
    assert min(cost(10_000) for _ in range(3)) < 30 * few


def test_a_least_number_is_waited_for() -> None:
    stream = Stream({"a": Backlog([1] * 60), "b": Backlog([10] * 3), "c": Backlog([])})
    spans = {
        topic: Span(EARLIEST_POSITION, backlog.end) for topic, backlog in stream.topics.items()
    }
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


@given(
    st.lists(
        st.lists(st.sampled_from([1, 1, 1, 2, 50, 0, -1, -12, -500]), min_size=1, max_size=60),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 20),
    st.integers(1, 300),
)
@example([[1] * 5 + [-50] + [1] * 55, [1] * 2], 1000, 20)
@example([[1] * 15 + [-500] + [1] * 1485], 10_000, 300)
@example([[1] * 300 + [-1] * 2000 + [1] * 1485], 10_000, 1000)
def test_an_index_may_count_what_nobody_can_read(
    topics: list[list[int]], per_ledger: int, cap: int
) -> None:
    stream = Stream(
        {
            f"t{number}": Backlog(entries, per_ledger=per_ledger, indexed=True)
            for number, entries in enumerate(topics)
        },
        BEGINNING,
    )
    readable = sum(max(entry, 0) for entries in topics for entry in entries)
    sizes = stream.sizes(Caps(cap)) if readable else []
    assert sum(sizes) == readable
    assert all(size <= cap for size in sizes)


def test_what_nobody_can_read_is_not_looked_for_again_and_again() -> None:
    stream = one([*[1] * 400, *[-1] * 3000, *[1] * 400], indexed=True)
    assert stream.batch(Caps(1000)) == {"t": 400}
    assert stream.looks <= 32


@pytest.mark.parametrize("cap", [500, 2000, 4000])
def test_an_index_that_starts_again_in_a_later_ledger_does_not_break_the_cap(cap: int) -> None:
    backlog = Backlog([3] * 1000, per_ledger=1000, indexed=True)
    backlog.next_index = 0
    backlog.add([3] * 1000)
    sizes = Stream({"t": backlog}).sizes(Caps(cap))
    assert sum(sizes) == 6000
    assert all(size <= cap for size in sizes)


def test_many_partitions_go_on_where_few_of_them_have_an_index() -> None:
    topics = {f"t{n}": Backlog([100] * (20 if n < 3 else 5), indexed=n < 3) for n in range(140)}
    stream = Stream(topics)
    for _ in range(200):
        stream.looks = 0
        assert sum(stream.batch(Caps(1)).values()) == 1
        assert stream.looks <= 64


@pytest.mark.parametrize("mixture", [[0, 1], [1, 1, 2], [1, 1, 1, 1, 50], [0, 1, 3, 1000]], ids=str)
@pytest.mark.parametrize("number", [3, 64, 65, 130])
def test_no_batch_of_many_unlike_partitions_is_too_large_or_empty(
    mixture: list[int], number: int
) -> None:
    for seed in range(8):
        rng = random.Random(seed)

        def entries(most: int, rng: random.Random = rng) -> list[int]:
            return rng.choices(mixture, k=rng.choice([1, 3, 30, most]))

        def backlog(rng: random.Random = rng) -> Backlog:
            return Backlog(
                entries(200),
                per_ledger=rng.choice([1, 3, 10, 100, 10**9]),
                size=rng.choice([1, 10, 1000]),
                indexed=rng.random() < 0.2,
            )

        stream = Stream({f"t{n}": backlog() for n in range(number)}, BEGINNING)
        caps = Caps(rng.choice([1, 10, 100, 1000]), rng.choice([None, 1, 500, 20_000]))
        for _ in range(15):
            stream.looks = 0
            left = any(one.count(stream.at[t], one.end) for t, one in stream.topics.items())
            taken = sum(stream.batch(caps, last=None).values())
            assert bool(left) <= taken <= (caps.max_messages or 0)
            assert stream.looks <= 64
            for one in rng.sample(list(stream.topics.values()), number // 3):
                one.add(entries(10))
