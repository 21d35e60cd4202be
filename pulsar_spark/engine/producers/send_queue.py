"""What a producer has to send, in its order, and whose turn it is to send."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pulsar_spark.engine.producers.inflight_window import InflightWindow, MessageCallback
from pulsar_spark.engine.producers.submission import Submission
from pulsar_spark.errors import PulsarError


class SendQueue:
    """The submissions of one producer that wait for the window. Guarded by the window's lock.

    One thread at a time has the turn to send from it.
    """

    def __init__(self, window: InflightWindow) -> None:
        self._window = window
        self.submissions: deque[Submission] = deque()
        """In their order. Only the last one can have a current batch."""
        self.messages = 0
        """How many messages wait."""
        self.is_sending = False
        """Whether a thread has the turn."""
        self.due = False
        """Whether all is to be sent as soon as there is room."""
        self.full_due = False
        """Whether complete entries are."""
        self._unheard: PulsarError | None = None

    @property
    def last(self) -> Submission | None:
        """What waits behind all others."""
        return self.submissions[-1] if self.submissions else None

    def add(self, submission: Submission) -> None:
        """Let messages wait behind the others."""
        if (last := self.last) is not None:
            last.seal()
            last.grows = False
            if not len(last):
                self.forget(last)
        self.submissions.append(submission)
        self.messages += len(submission)

    def take(self, submission: Submission, count: int) -> None:
        """Take messages away: they are sent, or have failed."""
        submission.take(count)
        self.messages -= count
        if len(submission):
            return
        if submission.grows:
            self._release(submission)
        else:
            self.forget(submission)

    def forget(self, submission: Submission) -> None:
        """Take a submission out, with what is left of it."""
        if submission in self.submissions:
            self.submissions.remove(submission)
            self.messages -= len(submission)
            self._release(submission)
            submission.grows = False

    def _release(self, submission: Submission) -> None:
        self._window.budget.release(submission.held)
        submission.held = submission.ahead = 0

    def drop_first(self, error: PulsarError, *, whole: bool) -> Sequence[MessageCallback | None]:
        """Fail the next entry of what waits first, or the whole of it; returns as `drop`."""
        if not self.submissions:
            return ()
        submission = self.submissions[0]
        if whole:
            submission.seal()
        return self.drop(submission, error, len(submission) if whole else submission.next_count)

    def drop(
        self, submission: Submission, error: PulsarError, count: int
    ) -> Sequence[MessageCallback | None]:
        """Take messages away, all if some have no callback; return those to tell.

        Whoever waits gets the error, or who sends next.
        """
        callbacks = submission.callbacks(count)
        if None in callbacks:
            submission.seal()
            count = len(submission)
            callbacks = submission.callbacks(count)
            if submission.owned:
                submission.error, submission.failed_at = error, submission.sent
            else:
                self._unheard = self._unheard or error
        self._window.budget.release(submission.give_back(count))
        self.take(submission, count)
        return callbacks

    def drop_all(self, error: PulsarError) -> list[Sequence[MessageCallback | None]]:
        """Fail all that waits; returns as `drop`, for each submission."""
        for submission in self.submissions:
            submission.seal()
        return [self.drop(one, error, len(one)) for one in list(self.submissions)]

    def hear(self) -> PulsarError | None:
        """Return an error that nobody was told yet, once."""
        error, self._unheard = self._unheard, None
        return error

    def may_send_due(self) -> bool:
        """Whether something is due that can be sent without waiting, or fails at once."""
        window = self._window
        first = self.submissions[0] if self.submissions else None
        if first is not None and not first.runs and self.due and window.has_room(1):
            first.seal()
        if first is None or not (len(first) if self.due else first.runs):
            self.due = self.full_due = False
            return False
        # What is owned, its owner sends.
        can_go = bool(first.runs) and not first.owned and window.has_room(first.next_count)
        return window.ended or can_go
