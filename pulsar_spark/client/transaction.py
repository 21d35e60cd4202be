"""The transaction that `PulsarClient.new_transaction` returns, modelled on the Java client's."""

from __future__ import annotations

from types import TracebackType

from pulsar_spark.client.exceptions import interruptible
from pulsar_spark.engine import transactions as engine
from pulsar_spark.engine.transactions import TransactionState
from pulsar_spark.protocol.commands import TxnId

__all__ = ["Transaction", "TransactionState"]


class Transaction:
    """Messages and acknowledgements that take effect together or not at all.

    Made by `PulsarClient.new_transaction`, and passed to `send` as `txn`. A context manager: it
    commits at its end, or aborts if an exception is raised. Thread-safe.
    """

    def __init__(self, own: engine.ClientTransaction, client: object) -> None:
        self.engine = own
        # A client that is dropped is closed, so whatever works with it keeps it.
        self._client = client

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        state = self.state()
        # If its time is up, commit says so: nothing of it is visible.
        if error is None and state in (TransactionState.OPEN, TransactionState.TIME_OUT):
            self.commit()
        elif state is TransactionState.OPEN:
            self.abort()

    def __repr__(self) -> str:
        return repr(self.engine)

    def txn_id(self) -> TxnId:
        """The transaction's id: `most_bits` is the coordinator, `least_bits` its counter."""
        return self.engine.txn_id

    def state(self) -> TransactionState:
        """Its state, as far as this client knows."""
        return self.engine.state

    @interruptible
    def commit(self) -> None:
        """Wait until everything is sent, then commit: all messages become visible at once.

        If a message could not be sent, or not before the transaction's timeout, aborts and raises
        that error. Raises TransactionStateError, TransactionNotFound or InvalidTxnStatus if the
        transaction had ended or timed out before. Raises TransactionOutcomeUnknown if no answer
        arrives: the transaction may be committed or not.
        """
        self.engine.commit()

    @interruptible
    def abort(self) -> None:
        """Wait until everything is sent, then abort: all of it is dropped. Raises as `commit`."""
        self.engine.abort()
