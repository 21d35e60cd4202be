"""Run by test_scale.py in a process of its own: an embedded broker of many brokers and partitions.

Arguments: brokers, topics, partitions of each. It prints its URL, and for each line of input the
commands since the last one, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.rules import Seen
from tests.spark.topics import store

# Slow lookups, so that those sent together are pending together.
LOOKUP_SECONDS = 0.02


def main(brokers: int, topics: int, partitions: int) -> None:
    """Serve until standard input ends."""
    asked: Counter[int] = Counter()
    most = 0

    def on_lookup(seen: Seen) -> bool:
        nonlocal most
        asked[seen.connection] += 1
        most = max(most, asked[seen.connection])
        return True

    def on_answer(seen: Seen) -> bool:
        asked[seen.connection] -= 1
        return False

    with EmbeddedBroker(brokers=brokers) as broker:
        for number in range(topics):
            name = broker.create_topic(f"scale-{number}", partitions)
            for partition in range(partitions):
                store(broker, f"{name}-partition-{partition}", [b"x"])
        broker.faults.delay("LOOKUP", LOOKUP_SECONDS, hold=False, times=None, when=on_lookup)
        broker.faults.on("LOOKUP_RESPONSE", "drop", times=None, when=on_answer)
        print(broker.service_url, flush=True)
        before: Counter[str] = Counter()
        for _ in sys.stdin:
            counts = Counter({name: broker.faults.seen(name) for name in ("CONNECT", "LOOKUP")})
            answer = {**(counts - before), "most lookups at once": most}
            before, most = counts, 0
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
