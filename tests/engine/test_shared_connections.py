"""Connections that a process keeps for the next user with the same options, and no other."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pulsar_spark.engine import context as module
from pulsar_spark.engine import keeping
from pulsar_spark.engine.connections.connection import ClientConnection
from pulsar_spark.engine.context import ClientContext, SharedConnections, shared_connections
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.operations import Operation, Pause, start
from pulsar_spark.engine.options import AuthOptions, ClientOptions, ProducerOptions
from pulsar_spark.engine.producers.producer import TopicProducer
from pulsar_spark.engine.timers import Timer, Timers
from pulsar_spark.errors import AuthenticationError, ClosedError, OptionError
from pulsar_spark.testing import EmbeddedBroker
from tests.engine.scripted_broker import ScriptedBroker, T
from tests.support.waiting import finish, wait_until


class HandTimers(Timers):
    """Timers that fire when the test says so."""

    def __init__(self) -> None:
        super().__init__("test-idle")
        self.now = 0.0
        self.delays: list[float] = []
        self.due: list[Timer] = []

    def after(
        self,
        delay: float,
        function: Callable[[], object],
        dropped: Callable[[], object] | None = None,
    ) -> Timer:
        self.delays.append(delay)
        self.due.append(Timer(self, 0.0, function, dropped))
        return self.due[-1]

    def monotonic(self) -> float:
        return self.now

    def fire(self) -> None:
        self.now += 60.0
        due, self.due = self.due, []
        for timer in due:
            function = timer.take()
            if function is not None:
                function()


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Iterator[HandTimers]:
    """New shared connections, whose idle ones the test closes."""
    made = HandTimers()
    monkeypatch.setattr(keeping, "time", made)
    shared = SharedConnections(timers=made)
    monkeypatch.setattr(module, "_shared", shared)
    yield made
    shared.close_unused()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running
        assert running.internal_errors == ()


def options(broker: EmbeddedBroker, **changes: object) -> ClientOptions:
    return ClientOptions(broker.service_url, **changes)  # type: ignore[arg-type]


def connect(found: ClientOptions) -> ClientConnection:
    with ClientContext.shared(found) as context:
        return context.pool.service()


def test_who_comes_next_and_who_comes_besides_gets_the_same_connection(
    timers: HandTimers, broker: EmbeddedBroker
) -> None:
    first = connect(options(broker))
    with ClientContext.shared(options(broker)) as one:
        # The memory limit of a client does not concern its connections.
        with ClientContext.shared(options(broker, memory_limit=1000)) as other:
            assert one.pool is other.pool
            assert one.budget is not other.budget
            assert other.pool.service() is first
        assert not first.closed
        assert one.pool.service() is first
    assert broker.faults.seen("CONNECT") == 1


def test_many_at_once_share_one_connection(timers: HandTimers, broker: EmbeddedBroker) -> None:
    found: list[ClientConnection] = []
    threads = [
        threading.Thread(target=lambda: found.append(connect(options(broker)))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    finish(*threads)
    assert len(found) == 20
    assert len(set(map(id, found))) == 1


def test_idle_connections_are_closed_after_a_minute(
    timers: HandTimers, broker: EmbeddedBroker
) -> None:
    first = connect(options(broker))
    assert timers.delays == [60.0]
    timers.fire()
    assert first.closed
    wait_until(lambda: broker.connections == 0)
    assert not shared_connections().connections
    assert connect(options(broker)) is not first
    timers.fire()
    assert not shared_connections().connections


def test_connections_that_are_used_again_are_not_closed(
    timers: HandTimers, broker: EmbeddedBroker
) -> None:
    first = connect(options(broker))
    with ClientContext.shared(options(broker)) as context:
        timers.fire()
        assert context.pool.service() is first
    # Their idle time starts anew.
    assert len(timers.due) == 1
    shared_connections().close_unused()
    assert first.closed
    timers.fire()


def test_connections_in_use_are_not_among_the_unused(
    timers: HandTimers, broker: EmbeddedBroker
) -> None:
    with ClientContext.shared(options(broker)) as context:
        connection = context.pool.service()
        shared_connections().close_unused()
        assert not connection.closed


def test_a_context_that_is_closed_twice_gives_its_connections_back_once(
    timers: HandTimers, broker: EmbeddedBroker
) -> None:
    with ClientContext.shared(options(broker)) as context:
        other = ClientContext.shared(options(broker))
        other.close()
        other.close()
        assert other.closed
        assert not timers.due
        assert not context.pool.service().closed


@pytest.mark.fault(96)
def test_nobody_gets_the_connections_of_other_credentials(
    timers: HandTimers, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("canary-1")
    with ScriptedBroker() as broker:
        auths = [
            AuthOptions(),
            AuthOptions("token", token="canary-1"),
            AuthOptions("token", token="canary-2"),
            AuthOptions("basic", username="u", password="canary-1"),
            AuthOptions("basic", username="u", password="canary-2"),
            AuthOptions("token", token_file=str(file)),
        ]
        found = [connect(broker.options(auth=auth)) for auth in auths]
        file.write_text("canary-3")
        found.append(connect(broker.options(auth=auths[-1])))
        assert len(set(map(id, found))) == len(found)
        assert [connect(broker.options(auth=auth)) for auth in auths[:5]] == found[:5]
        sent = [command.auth_data for command in broker.commands(T.CONNECT)]
        tokens = [b"canary-1", b"canary-2", b"u:canary-1", b"u:canary-2", b"canary-1", b"canary-3"]
        assert sent == [b"", *tokens]
        shared = shared_connections()
        assert "canary" not in f"{vars(shared)!r} {vars(shared._idle)!r} {list(shared._idle)!r}"
        shared.close_unused()


def test_other_options_of_connections_are_other_connections(
    timers: HandTimers, broker: EmbeddedBroker
) -> None:
    changes: list[dict[str, object]] = [
        {},
        {"operation_timeout": 7.0},
        {"keep_alive_interval": 7.0},
        {"listener_name": "inner"},
    ]
    found = {id(connect(options(broker, **change))) for change in changes}
    assert len(found) == len(changes)


def test_what_cannot_be_connected_is_refused_and_not_kept(
    timers: HandTimers, tmp_path: Path
) -> None:
    url = "pulsar://127.0.0.1:1"
    gone = AuthOptions("token", token_file=str(tmp_path / "gone"))
    with pytest.raises(AuthenticationError, match="cannot be read"):
        ClientContext.shared(ClientOptions(url, auth=gone))
    with pytest.raises(OptionError):
        ClientContext.shared(ClientOptions(url, auth=AuthOptions("token")))
    assert not shared_connections()._used


@pytest.mark.fault(11)
def test_a_connection_that_died_is_replaced(timers: HandTimers, broker: EmbeddedBroker) -> None:
    first = connect(options(broker))
    broker.restart()
    wait_until(lambda: first.closed)
    second = connect(options(broker))
    assert second is not first
    assert not second.closed
    assert shared_connections().connections == [second]


@pytest.mark.fault(75)
def test_a_pool_forgets_brokers_that_went_away(timers: HandTimers) -> None:
    with ClientContext.shared(ClientOptions("pulsar://127.0.0.1:1")) as context:
        for _ in range(5):
            with ScriptedBroker() as broker:
                gone = context.pool.get(broker.broker)
            wait_until(lambda gone=gone: gone.closed)  # type: ignore[misc]
        assert len(context.pool._connections) == 1


def test_the_end_of_a_context_ends_what_was_made_with_it(
    timers: HandTimers, broker: EmbeddedBroker
) -> None:
    def waits(deadline: Deadline) -> Operation[None]:
        yield Pause(3600)

    broker.create_topic("t")
    with ClientContext.shared(options(broker)) as other:
        context = ClientContext.shared(options(broker))
        producer = TopicProducer(context, "t", ProducerOptions()).open()
        waiting = start(waits, 3600, context.timers)
        assert broker.clients == 1
        context.close()
        assert isinstance(waiting.exception(30), ClosedError)
        with pytest.raises(ClosedError):
            producer.flush()
        # The connection is still open, its producer is not.
        wait_until(lambda: broker.clients == 0)
        assert not other.pool.service().closed
        assert broker.faults.seen("CONNECT") == 1


def in_child(function: Callable[[], bool]) -> bool:
    """Return a function's result in a fork of this process."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if function() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.fault(75)
def test_a_forked_child_has_connections_of_its_own(
    timers: HandTimers, broker: EmbeddedBroker
) -> None:
    with ClientContext.shared(options(broker)) as context:
        mine = context.pool.service()

        def child() -> bool:
            if shared_connections().connections or not context.closed:
                return False
            theirs = connect(options(broker))
            again = connect(options(broker))
            context.close()
            shared_connections().close_unused()
            return theirs is again and theirs is not mine

        assert in_child(child)
        assert not mine.closed
        assert context.pool.service() is mine
        assert broker.faults.seen("CONNECT") == 2
        wait_until(lambda: broker.connections == 1)


@pytest.mark.fault(75)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_a_forked_child_gives_back_its_copies_of_sockets_and_hangs_on_no_lock(
    timers: HandTimers, broker: EmbeddedBroker
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with ClientContext.shared(options(broker)) as context:
        context.pool.service()
        shared = shared_connections()
        with shared._lock:
            # As if another thread held it. The broker has a socket in this process, too.
            assert in_child(lambda: len(os.listdir("/proc/self/fd")) <= before + 1)
            assert in_child(lambda: not shared_connections().connections)


@pytest.mark.fault(75)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_ten_thousand_users_of_one_process_leave_it_as_it_was(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real timers."""
    shared = SharedConnections()
    monkeypatch.setattr(module, "_shared", shared)

    def use() -> None:
        with ClientContext.shared(options(broker)) as context:
            context.pool.service()

    def counts() -> tuple[int, int, int]:
        gc.collect()
        return (
            len(os.listdir("/proc/self/fd")),
            threading.active_count(),
            len(shared._timers._heap) // 200,
        )

    for _ in range(200):
        use()
    before = counts()
    objects = len(gc.get_objects())
    for _ in range(9_800):
        use()
    # Threads of earlier tests may end meanwhile.
    assert all(now <= was for now, was in zip(counts(), before, strict=True))
    assert len(gc.get_objects()) - objects < 2000
    assert broker.faults.seen("CONNECT") == 1
    shared.close_unused()


@pytest.mark.fault(75)
def test_where_no_thread_can_be_had_connections_are_closed_at_once(
    timers: HandTimers, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Timer:
        raise RuntimeError("can't start new thread")

    context = ClientContext.shared(options(broker))
    connection = context.pool.service()
    monkeypatch.setattr(timers, "after", refuse)
    context.close()
    assert connection.closed
    assert not shared_connections()._used
