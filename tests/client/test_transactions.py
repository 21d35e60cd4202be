"""Transactions of `PulsarClient` when answers are lost, late, or errors."""

from __future__ import annotations

import threading

import pytest

from pulsar_spark.client import (
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    Message,
    MessageId,
    ProducerAccessMode,
    PulsarClient,
    PulsarConsumer,
    Transaction,
    TransactionState,
    parameters,
)
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.transactions import COORDINATORS
from pulsar_spark.errors import (
    AuthorizationError,
    InvalidTxnStatus,
    MessageTooLarge,
    NotAllowed,
    OperationTimeout,
    OptionError,
    PulsarError,
    TransactionNotFound,
    TransactionOutcomeUnknown,
    TransactionStateError,
    UnsupportedFeature,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.rules import Seen
from tests.support.waiting import finish, wait_until

# As brokers write it (CoordinatorException.InvalidTxnStatusException).
_REFUSED_END = "Expect Txn `(0,1)` to be in {} status but it is in {} status"


def read(client: PulsarClient, topic: str) -> list[bytes]:
    with client.create_reader(topic, MessageId.earliest) as reader:
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=60_000).data())
        return found


def begin(client: PulsarClient, *values: bytes) -> Transaction:
    """Return an open transaction with these messages."""
    producer = client.create_producer("t")
    txn = client.new_transaction()
    for value in values:
        producer.send(value, txn=txn)
    return txn


def send_in_one(client: PulsarClient, *values: bytes) -> None:
    begin(client, *values).commit()


def test_a_broker_hears_of_transactions_before_a_topic_is_part_of_one(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    topic = broker.create_topic("parts", partitions=2)
    parts = {f"{topic}-partition-{number}" for number in range(2)}
    with client.create_producer(topic) as producer:
        producer.send(b"plain")
        # A producer that sends nothing in a transaction does not wait for this.
        assert not any(seen.body.txn_enabled for seen in broker.faults.log("PRODUCER"))
        for _ in range(2):
            with client.new_transaction() as txn:
                for number in range(4):
                    producer.send(b"%d" % number, txn=txn)
    heard = {
        seen.body.topic: seen.at for seen in broker.faults.log("PRODUCER") if seen.body.txn_enabled
    }
    assert set(heard) == parts
    for seen in broker.faults.log("ADD_PARTITION_TO_TXN"):
        assert all(heard[name] < seen.at for name in seen.body.partitions)
    # Only once, however many messages and transactions there are.
    assert broker.faults.seen("PRODUCER") == 2 * len(parts)
    # An exclusive producer is the only one, so it announces the transactions itself.
    exclusive = client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    with exclusive, client.new_transaction() as txn:
        exclusive.send(b"exclusive", txn=txn)
    assert broker.faults.seen("PRODUCER") == 3 * len(parts)
    assert all(seen.body.txn_enabled for seen in broker.faults.log("PRODUCER")[-len(parts) :])


def test_a_topic_that_takes_no_second_producer_takes_transactions_all_the_same(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    with client.create_producer("t") as producer, client.new_transaction() as txn:
        broker.faults.error(
            "PRODUCER", "ProducerBusy", times=None, when=lambda seen: seen.body.txn_enabled
        )
        producer.send(b"x", txn=txn)
    assert read(client, "t") == [b"x"]


@pytest.mark.parametrize(
    "command",
    ["PARTITIONED_METADATA", "TC_CLIENT_CONNECT_REQUEST", "NEW_TXN", "ADD_PARTITION_TO_TXN"],
)
@pytest.mark.fault(82)
def test_what_a_coordinator_was_asked_in_vain_is_asked_again(
    broker: EmbeddedBroker, client: PulsarClient, command: str
) -> None:
    client.create_producer("t")
    broker.faults.close(command)
    send_in_one(client, b"a", b"b")
    assert read(client, "t") == [b"a", b"b"]


@pytest.mark.parametrize("command", ["NEW_TXN", "ADD_PARTITION_TO_TXN", "END_TXN"])
@pytest.mark.fault(82)
def test_a_coordinator_that_moves_is_found_again(command: str) -> None:
    with EmbeddedBroker(brokers=2) as broker, PulsarClient(broker.service_url) as client:
        broker.move_coordinator(0)
        send_in_one(client, b"a")
        broker.faults.call(command, lambda seen: broker.move_coordinator(1))
        send_in_one(client, b"b")
        broker.move_coordinator(0)
        send_in_one(client, b"c")
        assert read(client, "t") == [b"a", b"b", b"c"]
        assert broker.internal_errors == ()


@pytest.mark.fault(82)
def test_a_coordinator_that_is_not_ready_is_asked_until_it_is(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    code = pb.TransactionCoordinatorNotFound
    for command in ("TC_CLIENT_CONNECT_REQUEST", "NEW_TXN", "ADD_PARTITION_TO_TXN", "END_TXN"):
        broker.faults.error(command, code, times=2)
    send_in_one(client, b"a")
    assert read(client, "t") == [b"a"]


@pytest.mark.fault(80)
def test_a_lost_answer_to_a_commit_is_never_taken_for_one(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    txn = begin(client, b"a")
    # The coordinator commits, and has forgotten the transaction at the next request.
    broker.faults.close("END_TXN", answer=True)
    with pytest.raises(TransactionOutcomeUnknown, match="transaction"):
        txn.commit()
    assert txn.state() is TransactionState.ERROR
    with pytest.raises(TransactionStateError):
        txn.abort()
    assert read(client, "t") == [b"a"]


@pytest.mark.fault(80)
def test_a_commit_that_never_arrived_is_made_the_second_time(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    txn = begin(client, b"a")
    broker.faults.close("END_TXN", reset=True)
    txn.commit()
    assert read(client, "t") == [b"a"]


@pytest.mark.fault(80, 82)
def test_a_commit_that_a_coordinator_has_carried_out_already_is_a_commit(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    """One that has moved carries out what its log says, beside the request that is made again."""
    txn = begin(client, b"a")
    broker.faults.close("END_TXN", answer=True)
    committed = _REFUSED_END.format("COMMITTING", "COMMITTED")
    broker.faults.error("END_TXN", pb.InvalidTxnStatus, committed)
    txn.commit()
    assert txn.state() is TransactionState.COMMITTED
    assert read(client, "t") == [b"a"]


@pytest.mark.fault(81)
@pytest.mark.parametrize(
    "wanted, found",
    [
        ("COMMITTING", "ABORTED"),
        ("COMMITTING", "ABORTING"),
        # As an abort that is under way ends.
        ("COMMITTED", "ABORTED"),
    ],
)
@pytest.mark.parametrize("lost", [False, True])
def test_an_aborted_transaction_is_never_taken_for_a_committed_one(
    broker: EmbeddedBroker, client: PulsarClient, wanted: str, found: str, lost: bool
) -> None:
    txn = client.new_transaction()
    if lost:
        broker.faults.close("END_TXN", reset=True)
    refusal = _REFUSED_END.format(wanted, found)
    broker.faults.error("END_TXN", pb.InvalidTxnStatus, refusal)
    with pytest.raises((InvalidTxnStatus, TransactionOutcomeUnknown), match=found):
        txn.commit()
    assert txn.state() is TransactionState.ERROR


def test_the_abort_of_a_committed_transaction_is_an_error(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    txn = client.new_transaction()
    refusal = _REFUSED_END.format("ABORTING", "COMMITTED")
    broker.faults.error("END_TXN", pb.InvalidTxnStatus, refusal)
    with pytest.raises(InvalidTxnStatus, match="COMMITTED"):
        txn.abort()


@pytest.mark.fault(80)
def test_a_refused_commit_is_an_error_of_its_own(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    txn = client.new_transaction()
    broker.faults.error("END_TXN", pb.InvalidTxnStatus)
    with pytest.raises(InvalidTxnStatus, match=r"transaction \(0,\d+\)"):
        txn.commit()


def test_a_lost_answer_to_an_abort_is_an_abort(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    txn = begin(client, b"a")
    broker.faults.close("END_TXN", answer=True)
    txn.abort()
    assert txn.state() is TransactionState.ABORTED
    assert read(client, "t") == []


@pytest.mark.fault(85)
@pytest.mark.parametrize("late", ["commit", "abort"])
def test_the_end_of_an_old_transaction_that_arrives_late_touches_no_other(
    broker: EmbeddedBroker, client: PulsarClient, late: str
) -> None:
    producer = client.create_producer("t")
    old = client.new_transaction()
    producer.send(b"old", txn=old)

    def of_old(seen: Seen) -> bool:
        return bool(seen.body.txnid_least_bits == old.txn_id().least_bits)

    # It ends after a later transaction began and ended.
    rule = broker.faults.delay("END_TXN", 1.0, hold=False, when=of_old)
    thread = threading.Thread(target=getattr(old, late))
    thread.start()
    wait_until(lambda: rule.hits, "its end was not asked for")
    new = client.new_transaction()
    assert new.txn_id() != old.txn_id()
    producer.send(b"new", txn=new)
    new.abort() if late == "commit" else new.commit()
    finish(thread)
    assert old.state() in (TransactionState.COMMITTED, TransactionState.ABORTED)
    assert read(client, "t") == [b"old" if late == "commit" else b"new"]


def test_a_message_that_fails_aborts_its_transaction(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    producer = client.create_producer("t")
    txn = client.new_transaction()
    producer.send(b"a", txn=txn)
    with pytest.raises(MessageTooLarge):
        producer.send(bytes(6_000_000), txn=txn)
    with pytest.raises(MessageTooLarge):
        txn.commit()
    assert txn.state() is TransactionState.ABORTED
    assert read(client, "t") == []
    assert broker.open_transactions() == {}


def test_commit_waits_for_what_is_under_way(broker: EmbeddedBroker, client: PulsarClient) -> None:
    producer = client.create_producer("t", max_pending_messages=5000)
    txn = client.new_transaction()
    broker.faults.delay("SEND_RECEIPT", 0.2)
    for number in range(500):
        producer.send_async(b"%d" % number, None, txn=txn)
    txn.commit()
    assert len(read(client, "t")) == 500


def pass_timeout_soon(txn: Transaction) -> None:
    txn.engine._life = Deadline(0.2)


@pytest.mark.fault(192)
@pytest.mark.parametrize("aborts", [True, False], ids=["aborted", "not aborted"])
def test_commit_with_a_message_pending_at_the_timeout_aborts_and_says_so(
    broker: EmbeddedBroker, client: PulsarClient, aborts: bool
) -> None:
    producer = client.create_producer("t")
    producer.send(b"before")
    txn = client.new_transaction()
    broker.faults.drop("SEND_RECEIPT", times=None)
    if not aborts:
        broker.faults.error("END_TXN", "NotAllowedError")
    producer.send_async(b"a", None, txn=txn)
    pass_timeout_soon(txn)
    with pytest.raises(OperationTimeout, match="1 messages or acknowledgements pending"):
        txn.commit()
    (end,) = broker.faults.log("END_TXN")
    assert end.body.txn_action == pb.ABORT
    assert txn.state() is (TransactionState.ABORTED if aborts else TransactionState.ERROR)
    broker.faults.clear()
    broker.faults.disconnect()
    producer.flush()
    if aborts:
        assert broker.open_transactions() == {}
        assert read(client, "t") == [b"before"]


@pytest.mark.fault(192)
def test_commit_with_an_acknowledgement_pending_at_the_timeout_aborts_and_says_so(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    client.create_producer("t").send(b"a")
    with client.subscribe("t", "s", initial_position=InitialPosition.Earliest) as consumer:
        message = consumer.receive(60_000)
        txn = client.new_transaction()
        broker.faults.drop("ACK_RESPONSE", times=None)
        thread = threading.Thread(target=acknowledge_in_vain, args=(consumer, message, txn))
        thread.start()
        wait_until(lambda: broker.faults.seen("ACK"), "an acknowledgement")
        pass_timeout_soon(txn)
        with pytest.raises(OperationTimeout, match="1 messages or acknowledgements pending"):
            txn.commit()
        assert txn.state() is TransactionState.ABORTED
        broker.faults.disconnect()
        finish(thread)


def test_an_acknowledgement_waits_for_its_topic_to_be_loaded_and_is_sent_once(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    client.create_producer("t").send(b"a")
    with client.subscribe("t", "s", initial_position=InitialPosition.Earliest) as consumer:
        message = consumer.receive(60_000)
        broker.faults.error("SUBSCRIBE", "ServiceNotReady", times=3)
        broker.faults.close_consumers("t")
        wait_until(lambda: not consumer.is_connected())
        with client.new_transaction() as txn:
            consumer.acknowledge(message, txn=txn)
        assert broker.faults.seen("ACK") == 1
        wait_until(lambda: not broker.subscriptions("t")["s"].backlog)


def acknowledge_in_vain(consumer: PulsarConsumer, message: Message, txn: Transaction) -> None:
    with pytest.raises(PulsarError):
        consumer.acknowledge(message, txn=txn)


@pytest.mark.fault(192)
def test_the_end_of_a_block_says_that_its_transaction_has_timed_out(client: PulsarClient) -> None:
    producer = client.create_producer("t")

    def too_slow(error: Exception | None) -> None:
        with client.new_transaction() as txn:
            producer.send(b"a", txn=txn)
            pass_timeout_soon(txn)
            wait_until(lambda: txn.state() is TransactionState.TIME_OUT)
            if error is not None:
                raise error

    with pytest.raises(TransactionStateError, match="timed out"):
        too_slow(None)
    with pytest.raises(KeyError):
        too_slow(KeyError())


def test_what_is_left_of_a_batch_comes_again_in_time_though_a_part_is_acknowledged_in_one(
    client: PulsarClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "_LEAST_ACK_TIMEOUT_MS", 0)
    with client.create_producer(
        "t", batching_enabled=True, batching_max_publish_delay_ms=60_000
    ) as producer:
        for number in range(3):
            producer.send_async(b"%d" % number, None)
    with client.subscribe(
        "t",
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        unacked_messages_timeout_ms=300,
    ) as consumer:
        found = [consumer.receive(60_000) for _ in range(3)]
        with client.new_transaction() as txn:
            consumer.acknowledge(found[1], txn=txn)
        again = consumer.receive(60_000)
        assert (again.data(), again.redelivery_count()) == (b"0", 1)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    "indexes,commits,dead",
    [
        ([0, 1, 2], True, []),
        ([0, 2], True, [b"1"]),
        ([0, 1, 2], False, [b"0", b"1", b"2"]),
        ([0, 2], False, [b"0", b"1", b"2"]),
    ],
)
def test_what_a_transaction_acknowledged_is_no_dead_letter_unless_it_is_aborted(
    broker: EmbeddedBroker,
    client: PulsarClient,
    monkeypatch: pytest.MonkeyPatch,
    batched: bool,
    indexes: list[int],
    commits: bool,
    dead: list[bytes],
) -> None:
    monkeypatch.setattr(parameters, "_LEAST_ACK_TIMEOUT_MS", 0)
    with client.create_producer(
        "t", batching_enabled=batched, batching_max_publish_delay_ms=60_000
    ) as producer:
        for number in range(3):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        producer.send(b"behind")
    with client.subscribe(
        "t",
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        unacked_messages_timeout_ms=1000,
        negative_ack_redelivery_delay_ms=1,
        dead_letter_policy=ConsumerDeadLetterPolicy(1, "dead"),
    ) as consumer:
        for message in [consumer.receive(60_000) for _ in range(4)]:
            consumer.negative_acknowledge(message)
        found = sorted((consumer.receive(60_000) for _ in range(4)), key=lambda one: one.data())
        txn = client.new_transaction()
        for index in indexes:
            consumer.acknowledge(found[index], txn=txn)
        (txn.commit if commits else txn.abort)()
        # What an abort delivers again is a dead letter when it is taken.
        wait_until(
            lambda: consumer._try_receive() is None and not broker.subscriptions("t")["s"].backlog
        )
        assert sorted(read(client, "dead")) == [*dead, b"behind"]


def test_nothing_is_sent_in_a_transaction_that_has_ended(client: PulsarClient) -> None:
    producer = client.create_producer("t")
    txn = client.new_transaction()
    txn.commit()
    with pytest.raises(TransactionStateError, match="committed"):
        producer.send(b"a", txn=txn)
    with pytest.raises(TransactionStateError):
        txn.commit()


def test_as_a_context_it_commits_or_aborts(client: PulsarClient) -> None:
    producer = client.create_producer("t")
    with client.new_transaction() as txn:
        producer.send(b"kept", txn=txn)
    failing = client.new_transaction()

    def fail() -> None:
        with failing:
            producer.send(b"dropped", txn=failing)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert failing.state() is TransactionState.ABORTED
    assert read(client, "t") == [b"kept"]


@pytest.mark.fault(82)
def test_an_abort_that_a_coordinator_has_carried_out_by_itself_is_an_abort(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    """One that has moved carries out what its log says, beside the request that is made again."""
    name = client.new_transaction().txn_id()
    abort = client._context.coordinators.end_all
    text = _REFUSED_END
    with broker.faults.error("END_TXN", "InvalidTxnStatus", text.format("ABORTING", "ABORTED")):
        assert abort([name], commit=False) == {name: None}
    with broker.faults.error("END_TXN", "InvalidTxnStatus", text.format("OPEN", "COMMITTING")):
        assert isinstance(abort([name], commit=False)[name], InvalidTxnStatus)
    assert abort([name], commit=False) == {name: None}


@pytest.mark.fault(83)
def test_a_broker_without_transactions_says_so() -> None:
    with (
        EmbeddedBroker(transactions=False) as broker,
        PulsarClient(broker.service_url) as client,
        pytest.raises((UnsupportedFeature, NotAllowed), match="transactionCoordinatorEnabled"),
    ):
        client.new_transaction()


def test_a_time_out_must_be_a_time(client: PulsarClient) -> None:
    with pytest.raises(OptionError, match="timeout_millis"):
        client.new_transaction(0)


@pytest.mark.fault(81)
def test_a_transaction_whose_time_is_up_is_not_committed(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    producer = client.create_producer("t")
    txn = client.new_transaction(timeout_millis=1000)
    producer.send(b"a", txn=txn)
    wait_until(lambda: not broker.open_transactions(), "it is open")
    with pytest.raises((TransactionStateError, TransactionNotFound)):
        txn.commit()
    assert read(client, "t") == []


@pytest.mark.fault(180)
def test_a_transaction_of_another_role_is_not_taken_for_one_that_has_ended(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    """A broker answers with the code of one that it does not know."""
    coordinators = client._context.coordinators
    txn = coordinators.begin(60.0)
    assert coordinators.are_open([txn]) == {txn: True}
    says = "Client (me) is neither the owner of the transaction (0,1) nor a super user"
    for command in ("ADD_PARTITION_TO_TXN", "END_TXN"):
        broker.faults.error(command, pb.TransactionNotFound, says, times=None)
    assert coordinators.are_open([txn]) == {txn: None}
    for commit in (True, False):
        error = coordinators.end_all([txn], commit=commit)[txn]
        assert isinstance(error, AuthorizationError)
        assert "another role" in error.what
    broker.faults.clear()
    assert coordinators.end_all([txn], commit=False) == {txn: None}
    assert coordinators.are_open([txn]) == {txn: False}


@pytest.mark.fault(46)
@pytest.mark.parametrize("command", ["PARTITIONED_METADATA", "LOOKUP"])
def test_a_role_without_permission_for_the_coordinators_is_told_where_to_grant_it(
    broker: EmbeddedBroker, client: PulsarClient, command: str
) -> None:
    topic = str(COORDINATORS)
    broker.faults.error(command, "AuthorizationError", "not for you", topic=topic, times=None)
    with pytest.raises(AuthorizationError, match="may not use the transaction coord") as caught:
        client.new_transaction()
    assert "not for you" in caught.value.what
    assert "grant-permission pulsar/system --role ROLE --actions" in caught.value.remedy
    assert "--actions produce,consume" in caught.value.remedy
    assert caught.value.topic == topic


@pytest.mark.fault(46)
def test_a_permission_for_the_coordinators_that_is_revoked_is_told_where_to_grant_it(
    broker: EmbeddedBroker, client: PulsarClient
) -> None:
    coordinators = client._context.coordinators
    txn = coordinators.begin(60.0)
    broker.faults.error("LOOKUP", "AuthorizationError", topic=str(COORDINATORS), times=None)
    broker.faults.close("ADD_PARTITION_TO_TXN")
    found = [
        coordinators.add_partition_to_all([txn], "t")[txn],
        coordinators.end_all([txn], commit=False)[txn],
    ]
    for error in found:
        assert isinstance(error, PulsarError)
        assert "may not use the transaction coordinators" in error.what
        assert "grant-permission pulsar/system" in error.remedy
