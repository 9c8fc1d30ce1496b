"""Transactions on the direct producer's sender thread: the manager, its connections, and who waits for an operation.

Applications come from other threads: what they ask is a command of the thread (`CrossThreadCalls`), and what they wait for is an event.
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
from ..sender.modes import TRANSACTION_VERSION_2
from ..transactions.coordinators import CoordinatorConnections
from ..transactions.delivery import TransactionalDelivery
from ..transactions.manager import TransactionLimits, TransactionManager
from ..transactions.operations import OperationFinished, TransactionAlarm, TransactionOperation
from ..transactions.requests import GroupMetadata, OffsetToCommit, PartitionKey
from ..transactions.states import FailedTransactionError, TransactionFailure, TransactionManagerState
from .errors import error_of_transaction

AnswerT = TypeVar("AnswerT")

_EXPLICIT_ADD_VERSION_MAX: Final = 11
"""The last version of Produce that wants its partitions added to the transaction before (TRX-2)."""
_OPEN_STATES: Final = frozenset({TransactionManagerState.IN_TRANSACTION, TransactionManagerState.ABORTABLE_ERROR})


class SendGate(Protocol):
    """What the front is told."""

    def set_append_error(self, reason: PenstockError | None) -> None:
        """Take no records for this reason; None: take them."""


class PendingOperation(NamedTuple):
    """An operation, and what happens when it has ended."""

    operation: TransactionOperation
    ended: threading.Event


class CrossThreadCalls:
    """Questions that other threads have put to one that may end before it answers."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._open: set[Future[Any]] | None = set()

    def call(
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
                if self._claim(future):
                    future.set_exception(error)
            else:
                if self._claim(future):
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
            _ = self._claim(future)
            text = f"the producer's thread did not come to it within {timeout_s:g} s: is it held up by a callback?"
            raise WaitTimeoutError(text) from None

    def _claim(self, future: "Future[Any]") -> bool:
        """It was not ended by the end of the thread, and will not be."""
        with self._lock:
            if self._open is None or future not in self._open:
                return False
            self._open.discard(future)
            return True

    def close(self) -> None:
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
        joined: TransactionalDelivery,
        rules: LinkRules,
        front: SendGate,
        *,
        submit: Callable[[], None],
        on_stale: Callable[[], None],
        problem: Callable[[], str],
        rng: Callable[[], float],
        security: Security,
    ) -> None:
        """`submit` hands over all records that were taken so far; `last_error` says why nothing is known of the cluster."""
        self.manager: Final = joined.manager
        self.coordinators: Final = CoordinatorConnections(
            loop, settings, self.manager, on_stale=on_stale, rng=rng, watch=rules.watch, security=security
        )
        self._delivery: Final = joined
        self._rules: Final = rules
        self._versions: Final = rules.versions
        self._front: Final = front
        self._submit: Final = submit
        self._problem: Final = problem
        self._waiting: dict[TransactionOperation, list[threading.Event]] = {}
        self._published_state: tuple[TransactionManagerState, TransactionFailure | None] | None = None
        self._close_timeout_s: Final = settings.transaction_timeout_ms / 1000
        self._close_at: float | None = None

    # --- asked by applications ---------------------------------------------------------------------------------------

    def initialise(self) -> PendingOperation:
        """The first identity."""
        return self._pending(self.manager.initialise())

    def begin(self) -> None:
        """Records are taken from now on."""
        self.manager.begin()
        self.publish_state()

    def send_offsets(self, offsets: Mapping[PartitionKey, OffsetToCommit], group: GroupMetadata) -> PendingOperation:
        """Offsets of a consumer become part of the transaction."""
        return self._pending(self.manager.send_offsets(offsets, group))

    def complete(self, *, commit: bool) -> PendingOperation:
        """End the transaction. What was taken before this belongs to it, what comes later is refused."""
        if self.manager.state in _OPEN_STATES:
            word = "committed" if commit else "aborted"
            self._front.set_append_error(TransactionStateError(f"the transaction is being {word}"))
            self._published_state = None
            self._submit()
        try:
            return self._pending(self.manager.commit() if commit else self.manager.abort())
        finally:
            self.publish_state()

    def mark_abortable(self, error: PenstockError) -> None:
        """A record of the transaction was not taken."""
        if self.manager.state in _OPEN_STATES:
            code = str(getattr(error, "code", "") or type(error).__name__)
            self.manager.batch_failed(-1, code, f"a record was not taken: {error}")
            self.publish_state()

    def problem(self) -> str:
        """What stands in the way of who waits, in words; empty: nothing that is known."""
        return self.coordinators.last_error or self._problem()

    def _pending(self, operation: TransactionOperation) -> PendingOperation:
        ended = threading.Event()
        if operation.done:
            ended.set()
        else:
            self._waiting.setdefault(operation, []).append(ended)
        return PendingOperation(operation, ended)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Before anything is sent: Produce in the versions that belong to the transactions' version."""
        least, greatest = self._versions
        if self._delivery.version >= TRANSACTION_VERSION_2:
            self._rules.versions = max(least, _EXPLICIT_ADD_VERSION_MAX + 1), greatest
        else:
            self._rules.versions = least, min(greatest, _EXPLICIT_ADD_VERSION_MAX)

    def cluster_changed(self, cluster: Cluster) -> None:
        """Nodes or leaders are others."""
        self.coordinators.cluster_changed(cluster)

    def tick(self, now: float) -> bool:
        """Ask what is to be asked, and tell what has ended. True: something changed, and a round is to follow at once."""
        self.coordinators.tick(now)
        heard = self._delivery.process_events(now=now)
        for told in self._delivery.take_notifications():
            match told:
                case OperationFinished(operation):
                    for ended in self._waiting.pop(operation, []):
                        ended.set()
                case TransactionAlarm(text):
                    logs.get().warning("transaction_alarm", reason=text)
        self.publish_state()
        return heard

    def publish_state(self) -> None:
        """Have the front take or refuse records, where that is new."""
        shown = (self.manager.state, self.manager.error)
        if shown == self._published_state:
            return
        self._published_state = shown
        reason: PenstockError | None = None
        try:
            self.manager.check_send()
        except FailedTransactionError as failed:
            reason = error_of_transaction(failed.failure)
        except TransactionStateError as wrong:
            reason = wrong
        self._front.set_append_error(reason)

    def next_deadline(self, now: float) -> float | None:
        """When `tick` has something to do."""
        wanted = [self.coordinators.next_deadline(now), self._close_at]
        return min((at for at in wanted if at is not None), default=None)

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self, deadline: float, *, now: float) -> None:
        """An open transaction is aborted; one that is being ended goes on until the deadline (8.3), or until its coordinator has
        long ended it by itself: nobody waits for ever for brokers that are gone."""
        self._close_at = min(deadline, now + self._close_timeout_s)
        if self.manager.state in _OPEN_STATES:
            try:
                _ = self.complete(commit=False)
            except (FailedTransactionError, PenstockError) as error:
                logs.get().warning("transaction_alarm", reason=f"an open transaction was left: {error}")
                self._close_at = 0.0

    def is_done(self, now: float) -> bool:
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
