"""The transaction that `PulsarClient.new_transaction` gives, after the Java client's."""

from __future__ import annotations

from types import TracebackType

from pulsar_spark.engine import transactions as engine
from pulsar_spark.engine.transactions import TransactionState
from pulsar_spark.protocol.commands import TxnId

__all__ = ["Transaction", "TransactionState"]


class Transaction:
    """Messages that are seen, and acknowledgements that count, all together or not at all.

    Made by `PulsarClient.new_transaction`, and given to `send` as `txn`. A context manager, which
    commits at its end, and aborts if an exception leaves it. Thread-safe.
    """

    def __init__(self, own: engine.Transaction) -> None:
        self.engine = own

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.state() is not TransactionState.OPEN:
            return
        if error is None:
            self.commit()
        else:
            self.abort()

    def __repr__(self) -> str:
        return repr(self.engine)

    def txn_id(self) -> TxnId:
        """Its id: `most_bits` names the coordinator, `least_bits` counts."""
        return self.engine.txn_id

    def state(self) -> TransactionState:
        """Where it stands, as far as this client knows."""
        return self.engine.state

    def commit(self) -> None:
        """Wait for everything sent, then commit: all of it becomes visible at once.

        Where a message could not be sent, the transaction is aborted and that error raised.
        Raises TransactionNotFound or InvalidTxnStatus if its time was up before, and
        TransactionOutcomeUnknown if no answer tells whether it was committed: that is neither a
        commit nor an abort.
        """
        self.engine.commit()

    def abort(self) -> None:
        """Wait for everything sent, then abort: all of it is dropped. Raises as `commit`."""
        self.engine.abort()
