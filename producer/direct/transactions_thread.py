"""Transactions on the direct producer's sender thread: the manager, its connections, and who waits for an operation.

Applications come from other threads: what they ask is a command of the thread (`Replies`), and what they wait for is an event.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from ...api.errors import ClosedError, PenstockError, TransactionStateError, WaitTimeoutError
from ...config.direct import DirectSettings
from ...runtime import logs
from ...runtime.loop import Loop
from ..metadata.cluster import Cluster
from ..network.socket_options import Security
from ..protocol.backoff import Backoff
from ..sender.broker_link import LinkRules
from ..sender.modes import IMPLICIT
from ..transactions.coordinators import Coordinators
from ..transactions.delivery import TransactionalJoined
from ..transactions.manager import TransactionLimits, TransactionManager
from ..transactions.operations import Alarm, Finished, Operation
from ..transactions.requests import GroupMetadata, OffsetToCommit, Part
from ..transactions.states import FailedTransactionError, State, TransactionFailure
from .errors import error_of_transaction

AnswerT = TypeVar("AnswerT")

_ADDED_FIRST: Final = 11
"""The last version of Produce that wants its partitions added to the transaction before (TRX-2)."""
_LEAVES_OPEN: Final = frozenset({State.IN_TRANSACTION, State.ABORTABLE_ERROR})


class Gate(Protocol):
    """What the front is told."""

    def gate(self, reason: PenstockError | None) -> None:
        """Take no records for this reason; None: take them."""


class Waiting(NamedTuple):
    """An operation, and what happens when it has ended."""

    operation: Operation
    ended: threading.Event


class Replies:
    """Questions that other threads have put to one that may end before it answers."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._open: set[Future[Any]] | None = set()

    def ask(
        self, tell: Callable[[Callable[[], None]], None], question: Callable[[], AnswerT], timeout_s: float
    ) -> AnswerT:
        """Have the thread answer; `tell` gives it something to do.

        Raises:
            ClosedError: the thread has ended.
            WaitTimeoutError: the thread has not come to it, and never will: a callback holds it up.
            And whatever the question raises.
        """
        future: Future[AnswerT] = Future()

        def answer() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                told = question()
            except (PenstockError, FailedTransactionError, ValueError) as error:
                if self._is_mine(future):
                    future.set_exception(error)
            else:
                if self._is_mine(future):
                    future.set_result(told)

        with self._lock:
            if self._open is None:
                raise ClosedError("the producer's thread has ended")
            self._open.add(future)
        tell(answer)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if not future.cancel():
                return future.result()
            _ = self._is_mine(future)
            text = f"the producer's thread did not come to it within {timeout_s:g} s: is it held up by a callback?"
            raise WaitTimeoutError(text) from None

    def _is_mine(self, future: "Future[Any]") -> bool:
        """It was not ended by the end of the thread, and will not be."""
        with self._lock:
            if self._open is None or future not in self._open:
                return False
            self._open.discard(future)
            return True

    def end(self) -> None:
        """Nothing is answered any more."""
        with self._lock:
            left, self._open = self._open or set(), None
        for future in left:
            # Its asker may have stopped waiting just now.
            with suppress(InvalidStateError):
                future.set_exception(ClosedError("the producer's thread has ended"))


class Transactions:
    """See the module. Everything here is called on the sender thread."""

    def __init__(
        self,
        loop: Loop,
        settings: DirectSettings,
        joined: TransactionalJoined,
        rules: LinkRules,
        front: Gate,
        *,
        submit: Callable[[], None],
        on_stale: Callable[[], None],
        problem: Callable[[], str],
        rng: Callable[[], float],
        security: Security,
    ) -> None:
        """`submit` hands over all records that were taken so far; `problem` says why nothing is known of the cluster."""
        self.manager: Final = joined.manager
        self.coordinators: Final = Coordinators(
            loop, settings, self.manager, on_stale=on_stale, rng=rng, watch=rules.watch, security=security
        )
        self._joined: Final = joined
        self._rules: Final = rules
        self._versions: Final = rules.versions
        self._front: Final = front
        self._submit: Final = submit
        self._problem: Final = problem
        self._waiting: dict[Operation, list[threading.Event]] = {}
        self._shown: tuple[State, TransactionFailure | None] | None = None
        self._patience_s: Final = settings.transaction_timeout_ms / 1000
        self._close_at: float | None = None

    # --- asked by applications ---------------------------------------------------------------------------------------

    def initialise(self) -> Waiting:
        """The first identity."""
        return self._begun(self.manager.initialise())

    def begin(self) -> None:
        """Records are taken from now on."""
        self.manager.begin()
        self.show()

    def send_offsets(self, offsets: Mapping[Part, OffsetToCommit], group: GroupMetadata) -> Waiting:
        """Offsets of a consumer become part of the transaction."""
        return self._begun(self.manager.send_offsets(offsets, group))

    def complete(self, *, commit: bool) -> Waiting:
        """End the transaction. What was taken before this belongs to it, what comes later is refused."""
        if self.manager.state in _LEAVES_OPEN:
            word = "committed" if commit else "aborted"
            self._front.gate(TransactionStateError(f"the transaction is being {word}"))
            self._shown = None
            self._submit()
        try:
            return self._begun(self.manager.commit() if commit else self.manager.abort())
        finally:
            self.show()

    def doom(self, error: PenstockError) -> None:
        """A record of the transaction was not taken."""
        if self.manager.state in _LEAVES_OPEN:
            code = str(getattr(error, "code", "") or type(error).__name__)
            self.manager.failed(-1, code, f"a record was not taken: {error}")
            self.show()

    def problem(self) -> str:
        """What stands in the way of who waits, in words; empty: nothing that is known."""
        return self.coordinators.problem or self._problem()

    def _begun(self, operation: Operation) -> Waiting:
        ended = threading.Event()
        if operation.done:
            ended.set()
        else:
            self._waiting.setdefault(operation, []).append(ended)
        return Waiting(operation, ended)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Before anything is sent: Produce in the versions that belong to the transactions' version."""
        least, greatest = self._versions
        if self._joined.version >= IMPLICIT:
            self._rules.versions = max(least, _ADDED_FIRST + 1), greatest
        else:
            self._rules.versions = least, min(greatest, _ADDED_FIRST)

    def cluster_changed(self, cluster: Cluster) -> None:
        """Nodes or leaders are others."""
        self.coordinators.follow(cluster)

    def tick(self, now: float) -> bool:
        """Ask what is to be asked, and tell what has ended. True: something changed, and a round is to follow at once."""
        self.coordinators.tick(now)
        heard = self._joined.hear(now=now)
        for told in self._joined.take_told():
            match told:
                case Finished(operation):
                    for ended in self._waiting.pop(operation, []):
                        ended.set()
                case Alarm(text):
                    logs.get().warning("transaction_alarm", what=text)
        self.show()
        return heard

    def show(self) -> None:
        """Have the front take or refuse records, where that is new."""
        shown = (self.manager.state, self.manager.error)
        if shown == self._shown:
            return
        self._shown = shown
        reason: PenstockError | None = None
        try:
            self.manager.check_send()
        except FailedTransactionError as failed:
            reason = error_of_transaction(failed.failure)
        except TransactionStateError as wrong:
            reason = wrong
        self._front.gate(reason)

    def next_deadline(self, now: float) -> float | None:
        """When `tick` has something to do."""
        wanted = [self.coordinators.next_deadline(now), self._close_at]
        return min((at for at in wanted if at is not None), default=None)

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self, deadline: float, *, now: float) -> None:
        """An open transaction is aborted; one that is being ended goes on until the deadline (8.3), or until its coordinator has
        long ended it by itself: nobody waits for ever for brokers that are gone."""
        self._close_at = min(deadline, now + self._patience_s)
        if self.manager.state in _LEAVES_OPEN:
            try:
                _ = self.complete(commit=False)
            except (FailedTransactionError, PenstockError) as error:
                logs.get().warning("transaction_alarm", what=f"an open transaction was left: {error}")
                self._close_at = 0.0

    def is_over(self, now: float) -> bool:
        """Nothing of a transaction is left to be done, or there is no time left for it."""
        return not self.manager.ongoing or (self._close_at is not None and now >= self._close_at)

    def end(self) -> None:
        """Whoever waits is released: with how it ended, or because the producer is closed (CLS-6)."""
        self.manager.close("the producer was closed before this had ended")
        self.coordinators.close()
        waiting, self._waiting = self._waiting, {}
        for events in waiting.values():
            for ended in events:
                ended.set()


def manager_of(settings: DirectSettings) -> TransactionManager:
    """The manager of a producer with a transactional id."""
    assert settings.transactional_id is not None, "no transactional id"
    retry = Backoff(settings.retry_backoff_ms / 1000, settings.retry_backoff_max_ms / 1000)
    return TransactionManager(TransactionLimits(settings.transactional_id, settings.transaction_timeout_ms, retry))
