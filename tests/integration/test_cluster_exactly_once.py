"""Exactly-once writes to two real brokers, while coordinators and topics move between them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from pulsar_spark.client import PulsarClient
from pulsar_spark.errors import AuthorizationError, PulsarError, SinkStateError, TornBatch
from tests.integration.brokers import Real
from tests.integration.sink_job import Sink, whole
from tests.integration.test_exactly_once import read_all
from tests.support.real_cluster import RealCluster
from tests.support.security import Security
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COORDINATORS = [
    f"persistent://pulsar/system/transaction_coordinator_assign-partition-{number}"
    for number in range(2)
]


def move(cluster: RealCluster, *topics: str) -> None:
    for topic in topics:
        cluster.move(topic, cluster.other(cluster.owner(topic)))


def persist(sink: Sink, batch: int, step: Callable[[], object]) -> None:
    """Take a step of a micro-batch; where it fails, run the whole of it again, as Spark does.

    A broker to which a coordinator comes back may still have what it knew of it before: it does not
    know the newest transactions, or cannot begin any.
    """
    for attempts_left in (5, 4, 3, 2, 1, 0):
        try:
            step()
            break
        except (TornBatch, SinkStateError):
            raise
        except PulsarError as error:
            if not attempts_left:
                raise
            print(f"micro-batch {batch} is run again: {error}")
            step = partial(sink.run, batch)


def wait_for_coordinators(cluster: RealCluster) -> None:
    """Move coordinators on until each of them begins transactions.

    Where one is moved again and again, the log of its broker can be fenced for good: that broker
    refuses all transactions until the coordinator is another one's.
    """

    def serve() -> bool:
        try:
            with PulsarClient(cluster.service_url, operation_timeout_seconds=5) as client:
                # In turn at each of them.
                for _ in COORDINATORS:
                    client.new_transaction().abort()
        except PulsarError as error:
            print(f"moved once more: {error}")
            move(cluster, *COORDINATORS)
            return False
        return True

    wait_until(serve, "coordinators begin transactions", 120.0)


@pytest.mark.fault(79, 80, 82, 85)
def test_batches_are_written_once_while_coordinators_move_and_are_killed(
    real_cluster: RealCluster,
) -> None:
    topic = real_cluster.create_topic(real_cluster.unique_topic("once"), 2)
    records = real_cluster.create_topic(real_cluster.unique_topic("records"))
    sink = Sink(real_cluster.service_url, topic, topic)
    sink.options |= {"sinkStateTopic": records, "pulsar.client.operationTimeoutMs": "60000"}
    sink.run(0)
    # Between tasks and commit: coordinators move, the state topic moves, a broker dies.
    for batch, moved in enumerate((COORDINATORS, [records], [f"{topic}-partition-0"]), 1):
        written = sink.write_all(batch)
        move(real_cluster, *moved)
        persist(sink, batch, partial(sink.writer().commit, list(written), batch))
    written = sink.write_all(4)
    real_cluster.owner(COORDINATORS[0]).kill()
    persist(sink, 4, partial(sink.writer().commit, list(written), 4))
    real_cluster.restore()
    # While all steps are taken. What a coordinator forgets is open until its time is up.
    sink.options["transactionTimeout"] = "150s"
    stopped = threading.Event()
    moves: list[tuple[str, ...]] = []

    def keep_moving() -> None:
        while not stopped.wait(1.0):
            move(real_cluster, *COORDINATORS)
            moves.append(tuple(COORDINATORS))

    mover = threading.Thread(target=keep_moving)
    mover.start()
    try:
        batches = 5
        while len(moves) < 3 and mover.is_alive():
            persist(sink, batches, partial(sink.run, batches))
            batches += 1
    finally:
        stopped.set()
        mover.join()
        # The cluster is that of other tests too.
        wait_for_coordinators(real_cluster)
    expected = Counter(value for batch in range(batches) for value in whole(batch))
    assert Counter(read_all(Real(real_cluster), topic)) == expected


@pytest.mark.fault(46)
def test_rights_that_are_missing_are_told_before_a_row_is_written(
    real_cluster: RealCluster, cluster_security: Security
) -> None:
    topic = real_cluster.create_topic(real_cluster.unique_topic("once"))
    namespace = "public/records-of-others"
    real_cluster.admin("PUT", f"namespaces/{namespace}")
    sink = Sink(real_cluster.service_url, topic, topic)
    sink.options |= {
        "sinkStateTopic": f"persistent://{namespace}/records",
        "pulsar.client.authPluginClassName": "token",
        "pulsar.client.authParams": f"token:{cluster_security.token('reader')}",
    }
    permissions = "namespaces/pulsar/system/permissions/reader"
    with pytest.raises(AuthorizationError, match=r"coordinators.* produce,consume pulsar/system"):
        sink.writer().check()
    real_cluster.admin("POST", permissions, ["produce", "consume"])
    try:
        with pytest.raises(AuthorizationError, match="records"):
            sink.writer().check()
        del sink.options["sinkStateTopic"]
        sink.run(0)
    finally:
        real_cluster.admin("DELETE", permissions)
    assert Counter(read_all(Real(real_cluster), topic, 0)) == Counter(whole(0))
