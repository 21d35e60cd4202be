"""Gets a producer registered with the broker of its topic, and again whenever it is lost.

The first time on the caller's thread, within a deadline. Later on threads of the client's
scheduler, with growing pauses, for as long as the producer lives: its pending messages have
their own time limit.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from pulsar_spark.engine.addresses import BrokerAddress
from pulsar_spark.engine.backoff import Backoff, Deadline
from pulsar_spark.engine.cluster import Cluster
from pulsar_spark.engine.registration import Identity, Registration, RegistrationOwner
from pulsar_spark.errors import ClosedError, OperationTimeout, ProducerBusy, PulsarError
from pulsar_spark.protocol import pulsar_api_pb2 as pb

logger = logging.getLogger(__name__)

BUSY_SECONDS = 15.0
"""How long a producer name may be taken: a broker needs a while to notice a dead connection."""

_BUSY_PAUSE = 1.5


class RegistrarOwner(RegistrationOwner, Protocol):
    """The producer that is to be registered."""

    def adopt(self, registration: Registration, success: pb.CommandProducerSuccess) -> None:
        """Use a registration from now on; raises the reason if it is lost already."""

    def give_up(self, error: PulsarError) -> None:
        """There will be no registration."""


class Registrar:
    """Registers one producer. At any time at most one attempt is under way.

    `trouble` is the last error of an attempt, None once one has succeeded.
    """

    def __init__(self, cluster: Cluster, owner: RegistrarOwner, identity: Identity) -> None:
        self.identity = identity
        self.trouble: PulsarError | None = None
        self._cluster = cluster
        self._owner = owner
        self._stopped = threading.Event()
        # The rest belongs to the attempt that is under way.
        self._backoff = Backoff()
        self._busy_until: float | None = None
        self._assigned: BrokerAddress | None = None
        self._closing: Registration | None = None

    def stop(self) -> None:
        """Make no further attempt."""
        self._stopped.set()

    def open(self, deadline: Deadline) -> None:
        """Register for the first time, retrying what can pass until the deadline.

        Raises the error that cannot pass, or OperationTimeout with the last one as its cause.
        """
        while not self._stopped.is_set():
            try:
                self._register(deadline.remaining())
                return
            except PulsarError as error:
                trouble = error.with_context(topic=self.identity.topic)
            if not self._may_pass(trouble):
                raise trouble
            delay = self._pause(trouble)
            if deadline.remaining() <= delay:
                raise OperationTimeout(
                    f"no producer could be opened within {deadline.seconds:g} s; "
                    f"the last trouble was: {trouble.what}",
                    topic=self.identity.topic,
                    broker=trouble.broker,
                ) from trouble
            self._stopped.wait(delay)
        raise ClosedError("the producer was closed", topic=self.identity.topic)

    def come_back(
        self, lost: Registration, error: PulsarError, *, close_first: bool = False
    ) -> None:
        """Register again after `error`, which ended the registration `lost`. Does not wait.

        If the broker still holds the lost one, `close_first` is set.
        """
        self._note_assignment(lost)
        self._closing = lost if close_first else None
        self._try_later(error)

    def _note_assignment(self, lost: Registration) -> None:
        command = lost.close_command
        if command is not None:
            self._assigned = self._cluster.assigned_broker(command, lost.connection.address)

    def _try_later(self, error: PulsarError) -> None:
        self.trouble = error
        if not self._may_pass(error):
            self._owner.give_up(error)
            return
        try:
            self._cluster.scheduler.call_later(self._pause(error), self._try_again)
        except ClosedError as closed:
            self._owner.give_up(closed)

    def _try_again(self) -> None:
        if self._stopped.is_set():
            return
        timeout = self._cluster.options.operation_timeout
        try:
            closing, self._closing = self._closing, None
            if closing is not None:
                # The broker ends what it still works on before it answers, so that nothing of
                # the old life arrives in the new one.
                closing.close(timeout)
            self._register(timeout)
        except PulsarError as error:
            trouble = error.with_context(topic=self.identity.topic)
            logger.info("a producer was not registered: %s", trouble)
            self._try_later(trouble)

    def _register(self, timeout: float) -> None:
        deadline = Deadline(timeout)
        assigned, self._assigned = self._assigned, None
        if assigned is not None:
            connection = self._cluster.pool.get(assigned)
        else:
            connection = self._cluster.connection_for(self.identity.topic, timeout)
        registration = Registration(self._owner, connection)
        success = registration.open(self.identity, max(deadline.remaining(), 0.001))
        self._backoff.reset()
        self._busy_until = None
        self.trouble = None
        try:
            self._owner.adopt(registration, success)
        except PulsarError:
            self._note_assignment(registration)
            raise

    def _may_pass(self, error: PulsarError) -> bool:
        """Whether another attempt can succeed; keeps the time for a name that is taken."""
        if isinstance(error, ProducerBusy):
            now = time.monotonic()
            if self._busy_until is None:
                self._busy_until = now + BUSY_SECONDS
            return now < self._busy_until
        self._busy_until = None
        if isinstance(error, ClosedError):
            # A connection that someone closed can be replaced, a closed client cannot.
            return not self._cluster.closed
        return error.retryable or isinstance(error, OperationTimeout)

    def _pause(self, error: PulsarError) -> float:
        delay = self._backoff.next()
        if self._assigned is not None:
            return 0.0
        # A taken name must be tried again before its time is up, whatever the back-off says.
        return min(delay, _BUSY_PAUSE) if isinstance(error, ProducerBusy) else delay
