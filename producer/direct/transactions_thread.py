"""Transactions on the direct producer's sender thread: the manager, its connections, and the waiters for operations.

Applications call from other threads: each call becomes a command for the sender thread (`CrossThreadCalls`), and the
caller waits for an event.
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
from ..sender.broker_link import LinkRules
from ..sender.modes import TRANSACTION_VERSION_2
from ..transactions.coordinators import CoordinatorConnections
from ..transactions.delivery import TransactionalDelivery
from ..transactions.operations import OperationFinished, TransactionAlarm, TransactionOperation
from ..transactions.requests import GroupMetadata, OffsetToCommit, PartitionKey
from ..transactions.states import FailedTransactionError, TransactionFailure, TransactionManagerState
from .errors import error_of_transaction

AnswerT = TypeVar("AnswerT")

_EXPLICIT_ADD_VERSION_MAX: Final = 11
"""The last version of Produce that requires AddPartitionsToTxn before it (TRX-2)."""
_OPEN_STATES: Final = frozenset({TransactionManagerState.IN_TRANSACTION, TransactionManagerState.ABORTABLE_ERROR})


class SendGate(Protocol):
    """The part of the front that accepts or rejects records."""

    def set_append_error(self, reason: PenstockError | None) -> None:
        """Reject records with this error; None: accept them."""


class PendingOperation(NamedTuple):
    """An operation, and the event that is set when it ends."""

    operation: TransactionOperation
    ended: threading.Event


class CrossThreadCalls:
    """Calls from other threads that run on the sender thread, which may end before it has run them."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._open: set[Future[Any]] | None = set()

    def call(
        self, tell: Callable[[Callable[[], None]], None], question: Callable[[], AnswerT], timeout_s: float
    ) -> AnswerT:
        """Run `question` on the thread, and return its result; `tell` enqueues a command for the thread.

        Raises:
            ClosedError: the thread has ended.
            WaitTimeoutError: the thread did not run it in time, probably because a callback blocks; it never will.
            Errors of the question are raised too.
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
        """Take the future for its result. False: `close` has failed it."""
        with self._lock:
            if self._open is None or future not in self._open:
                return False
            self._open.discard(future)
            return True

    def close(self) -> None:
        """Fail all open calls, and every later one."""
        with self._lock:
            left, self._open = self._open or set(), None
        for future in left:
            # Its caller may have cancelled it just now.
            with suppress(InvalidStateError):
                future.set_exception(ClosedError("the producer's thread has ended"))


class Transactions:
    """Runs a producer's transactions; see the module. All methods run on the sender thread."""

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
        """`submit` passes on all records accepted so far; `problem` returns why there is no cluster metadata, or ""."""
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
        """Request the first producer id and epoch."""
        return self._pending(self.manager.initialise())

    def begin(self) -> None:
        """Begin a transaction: records are accepted from now on."""
        self.manager.begin()
        self.publish_state()

    def send_offsets(self, offsets: Mapping[PartitionKey, OffsetToCommit], group: GroupMetadata) -> PendingOperation:
        """Add a consumer's offsets to the transaction."""
        return self._pending(self.manager.send_offsets(offsets, group))

    def complete(self, *, commit: bool) -> PendingOperation:
        """Commit or abort the transaction. Records accepted before belong to it; later records are rejected."""
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
        """A record of the transaction was rejected: it can only be aborted."""
        if self.manager.state in _OPEN_STATES:
            code = str(getattr(error, "code", "") or type(error).__name__)
            self.manager.batch_failed(-1, code, f"a record was not taken: {error}")
            self.publish_state()

    def problem(self) -> str:
        """Why operations cannot proceed, as a text; empty if no reason is known."""
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
        """Before each round of sending: restrict Produce to the versions that fit the transaction version."""
        least, greatest = self._versions
        if self._delivery.version >= TRANSACTION_VERSION_2:
            self._rules.versions = max(least, _EXPLICIT_ADD_VERSION_MAX + 1), greatest
        else:
            self._rules.versions = least, min(greatest, _EXPLICIT_ADD_VERSION_MAX)

    def cluster_changed(self, cluster: Cluster) -> None:
        """Pass on a change of nodes or leaders."""
        self.coordinators.cluster_changed(cluster)

    def tick(self, now: float) -> bool:
        """Send due requests, and report finished operations. True: something changed, so run another round at once."""
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
        """Make the front accept or reject records, if the state has changed."""
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
        """When to call `tick` next."""
        wanted = [self.coordinators.next_deadline(now), self._close_at]
        return min((at for at in wanted if at is not None), default=None)

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self, deadline: float, *, now: float) -> None:
        """Abort an open transaction. A running commit or abort continues until the deadline (8.3), at most for
        `transaction.timeout.ms`: then the coordinator has ended it, and the close must not wait for lost brokers."""
        self._close_at = min(deadline, now + self._close_timeout_s)
        if self.manager.state in _OPEN_STATES:
            try:
                _ = self.complete(commit=False)
            except (FailedTransactionError, PenstockError) as error:
                logs.get().warning("transaction_alarm", reason=f"an open transaction was left: {error}")
                self._close_at = 0.0

    def is_done(self, now: float) -> bool:
        """Whether no transaction is in progress, or its time is over."""
        return not self.manager.ongoing or (self._close_at is not None and now >= self._close_at)

    def end(self) -> None:
        """Wake all waiters: their operation has ended, or fails because the producer is closed (CLS-6)."""
        self.manager.close("the producer was closed before this had ended")
        self.coordinators.close()
        waiting, self._waiting = self._waiting, {}
        for events in waiting.values():
            for ended in events:
                ended.set()
