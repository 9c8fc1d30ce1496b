"""State of a transactional producer and all its transitions. Only `producer/transactions/manager.py` (application
calls) and `producer/transactions/response_handlers.py` (responses) change it.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ...api.errors import TransactionStateError
from ..protocol.backoff import Backoff
from .operations import (
    AbortUnsent,
    OperationFinished,
    ProducerIdChanged,
    TransactionAlarm,
    TransactionEnded,
    TransactionEvent,
    TransactionFatal,
    TransactionOperation,
    TransactionOperationKind,
)
from .partitions import TransactionPartitions
from .request_queue import QueuedTransactionRequest, RequestPriority, TransactionRequestQueue, priority_of
from .requests import (
    NO_IDENTITY,
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    Coordinator,
    CoordinatorKind,
    EndTxn,
    FindCoordinator,
    InitProducerId,
    PartitionKey,
    ProducerIdAndEpoch,
    TransactionRequest,
    coordinator_kind_of,
)
from .states import TRANSITIONS, FailedTransactionError, FailureKind, TransactionFailure, TransactionManagerState
from .visibility import UNKNOWN_OFFSET, VisibilityTracker

CoordinatorKey = tuple[CoordinatorKind, str]


class TransactionLimits(NamedTuple):
    """Limits of one transactional id. Times are in seconds, except `timeout_ms`, which the coordinator gets as it
    is."""

    transactional_id: str
    timeout_ms: int
    retry: Backoff
    visibility_backoff: Backoff = Backoff(0.002, 1.0)
    """Between two visibility checks of a partition."""
    concurrent_wait_s: float = 0.02
    """First backoff after CONCURRENT_TRANSACTIONS in an empty transaction: the last one's markers take about as
    long."""
    ask_leader_after_s: float = 0.05
    """How long a partition stays invisible before DescribeProducers is used. It shows whether our marker is missing or
    another producer's transaction is open."""
    hanging_after_s: float = 45.0
    """How long a partition stays invisible before the alarm "hanging transaction"."""


class TransactionContext:
    """State of the manager, the current transaction, its operations, queued requests, and events not taken yet."""

    def __init__(self, limits: TransactionLimits) -> None:
        self.limits: Final = limits
        self.state = TransactionManagerState.UNINITIALIZED
        """Changed only by `transition_by_call`, `transition` and `fail_fatally`."""
        self.identity: ProducerIdAndEpoch | None = None
        """Set by `initialised`, and by `ended` in version 2."""
        self.version = 1
        """Set only by `initialised`."""
        self.offered_version = 1
        """The brokers' version. Becomes `version` with InitProducerId's next new identity (decision 31)."""
        self.error: TransactionFailure | None = None
        """The failure of ABORTABLE_ERROR or FATAL_ERROR; None in other states."""
        self.partitions = TransactionPartitions(1)
        self.pending_operation: TransactionOperation | None = None
        """The call that must be acknowledged, or repeated, before another is accepted (TXN-3)."""
        self.queue: Final = TransactionRequestQueue()
        self.in_flight: QueuedTransactionRequest | None = None
        """Set when the manager sends a request; cleared with its result, or when everything stops."""
        self.coordinators: Final[dict[CoordinatorKey, Coordinator]] = {}
        """Known coordinators, from FindCoordinator responses."""
        self.visibility: Final = VisibilityTracker(
            limits.visibility_backoff,
            ask_leader_after_s=limits.ask_leader_after_s,
            hanging_after_s=limits.hanging_after_s,
        )
        self.closed: TransactionFailure | None = None
        """Set by `close`; nothing is sent any more."""
        self.epoch_bump_required = False
        """The next transaction needs a new epoch: a late copy of this one's batches must not become part of it."""
        self.last_offsets: Mapping[PartitionKey, int] | None = None
        """Last offsets of the partitions sent to, set once no batch is outstanding. While None, EndTxn waits."""
        self.end_sent = False
        """EndTxn(commit) was sent: from then on the coordinator decides how the transaction ends."""
        self.end_failure: TransactionFailure | None = None
        """The failure of an EndTxn sent again after an earlier response was lost. DescribeTransactions then decides."""
        self.events: Final[list[TransactionEvent]] = []
        """Events that the shell has not taken yet, in order."""

    # --- moves -------------------------------------------------------------------------------------------------------

    def transition_by_call(self, state: TransactionManagerState) -> None:
        """Apply an application's call. TransactionStateError: it does not fit, and nothing has changed (TXN-1)."""
        if state not in TRANSITIONS[self.state]:
            raise TransactionStateError(f"this call does not fit the state {self.state.value} (to {state.value})")
        self.last_offsets = None
        self._enter(state)

    def transition(self, state: TransactionManagerState) -> bool:
        """Apply a response's consequence. A transition missing from the table is fatal: we lost track of what was sent
        (TXN-1)."""
        if state in TRANSITIONS[self.state]:
            self._enter(state)
            return True
        if self.state is not TransactionManagerState.FATAL_ERROR:
            text = f"lost track of the transaction: no way from {self.state.value} to {state.value}"
            self.fail_fatally(TransactionFailure(-1, "", text, FailureKind.ILLEGAL_STATE))
        return False

    def _enter(self, state: TransactionManagerState) -> None:
        self.state = state
        if state is not TransactionManagerState.ABORTABLE_ERROR:
            self.error = None

    def raise_if_failed(self) -> None:
        """Raise FailedTransactionError with the stored failure, or TransactionStateError if we lost track."""
        failure = self.closed or self.error
        if failure is None:
            return
        if failure.kind is FailureKind.ILLEGAL_STATE:
            raise TransactionStateError(failure.text)
        raise FailedTransactionError(failure)

    # --- errors ------------------------------------------------------------------------------------------------------

    def fail(self, failure: TransactionFailure) -> None:
        """Apply a failure according to its kind, in any state. After a fatal one nothing changes any more (TXN-8)."""
        if self.state is TransactionManagerState.FATAL_ERROR:
            return
        if failure.fatal:
            self.fail_fatally(failure)
        elif failure.kind is FailureKind.UNAUTHORIZED:
            self.fail_unauthorized(failure)
        elif self.state not in (TransactionManagerState.ABORTING, TransactionManagerState.ABORTABLE_ERROR):
            # While aborting a failure has no effect; a second error adds nothing to the first.
            self._fail_transaction(failure)

    def _fail_transaction(self, failure: TransactionFailure) -> None:
        if not self.transition(TransactionManagerState.ABORTABLE_ERROR):
            return
        self.error = failure
        self._abandon_all(self.queue.drop(lambda one: one.priority is not RequestPriority.FIND_COORDINATOR), failure)
        self.partitions.drop_new()
        self._fail_pending(failure)
        self.events.append(AbortUnsent(failure))
        self.complete_pending()

    def fail_unauthorized(self, failure: TransactionFailure) -> None:
        """Initialising was not authorised: pass through ABORTABLE_ERROR back to UNINITIALIZED."""
        self._fail_transaction(failure)
        if self.transition(TransactionManagerState.UNINITIALIZED):
            self.alarm(failure.text)

    def fail_fatally(self, failure: TransactionFailure) -> None:
        """Move to FATAL_ERROR. If EndTxn(commit) is unanswered, the pending commit fails as outcome unknown."""
        assert failure.fatal, "only a fatal failure is for good"
        if self.state is TransactionManagerState.FATAL_ERROR:
            return
        self.state = TransactionManagerState.FATAL_ERROR
        self.error = failure
        self._stop(failure)
        self.events.append(TransactionFatal(failure))
        self.complete_pending()

    def close(self, failure: TransactionFailure) -> None:
        """Fail everything, in any state. Nothing is sent any more."""
        if self.closed is None:
            self.closed = failure
            self._stop(failure)
            if self.pending_operation is not None and not self.pending_operation.done:
                self.finish(self.pending_operation, failure)

    def _stop(self, failure: TransactionFailure) -> None:
        if self.in_flight is not None:
            self.abandon(self.in_flight, failure)
            self.in_flight = None
        self._abandon_all(self.queue.drop(lambda _: True), failure)
        self._fail_pending(self._outcome_unknown(failure) if self.end_sent else failure)

    def _outcome_unknown(self, cause: TransactionFailure) -> TransactionFailure:
        """The failure of a commit that may have succeeded. Also raises an alarm."""
        text = f"the transaction may be committed, and nobody can tell: {cause.text}"
        self.end_sent = False
        self.alarm(text)
        return TransactionFailure(cause.code, cause.name, text, FailureKind.OUTCOME_UNKNOWN)

    def alarm(self, text: str) -> None:
        """Report a problem to the operator."""
        self.events.append(TransactionAlarm(f"transactional id {self.limits.transactional_id}: {text}"))

    def _fail_pending(self, failure: TransactionFailure) -> None:
        pending = self.pending_operation
        if pending is not None and not pending.done and not pending.committed:
            self.finish(pending, failure)

    def _abandon_all(self, dropped: list[QueuedTransactionRequest], failure: TransactionFailure) -> None:
        for one in dropped:
            self.abandon(one, failure)

    def abandon(self, queued: QueuedTransactionRequest, failure: TransactionFailure) -> None:
        """Give up a request; it will not be sent again."""
        if isinstance(queued.request, AddPartitions):
            self.partitions.drop_pending(queued.request.partitions)
        if queued.sent and isinstance(queued.request, AddPartitions | AddOffsets):
            self.partitions.in_doubt = True
        operation = queued.operation
        if operation is not None and not operation.done:
            self.finish(operation, failure)

    def finish(self, operation: TransactionOperation, failure: TransactionFailure | None = None) -> None:
        """Finish an operation and append its event."""
        operation.finish(failure)
        self.events.append(OperationFinished(operation))

    # --- requests ----------------------------------------------------------------------------------------------------

    def enqueue(self, ask: TransactionRequest, operation: TransactionOperation | None = None) -> None:
        """Queue a new request."""
        self.queue.put(QueuedTransactionRequest(ask, priority_of(ask), operation))

    def reenqueue(self, queued: QueuedTransactionRequest, wait_s: float, now: float) -> None:
        """Send a request again after `wait_s`, unless an error has made it pointless in the meantime."""
        queued.attempts += 1
        queued.not_before = now + wait_s
        if (
            self.state is TransactionManagerState.ABORTABLE_ERROR
            and queued.priority is not RequestPriority.FIND_COORDINATOR
        ):
            assert self.error is not None
            self.abandon(queued, self.error)
        elif queued.operation is None or not queued.operation.done or isinstance(queued.request, AddOffsets):
            self.queue.put(queued)

    def coordinator_key(self, ask: TransactionRequest) -> CoordinatorKey | None:
        """The coordinator that a request is for; None: any broker."""
        kind = coordinator_kind_of(ask)
        if kind is CoordinatorKind.GROUP and isinstance(ask, CommitOffsets):
            return (kind, ask.group.group)
        return None if kind is None else (kind, self.limits.transactional_id)

    def forget_coordinator(self, ask: TransactionRequest) -> None:
        """Forget the request's coordinator, because it has moved or is unreachable."""
        key = self.coordinator_key(ask)
        if key is not None:
            _ = self.coordinators.pop(key, None)

    def is_looking_up(self, key: CoordinatorKey) -> bool:
        """Whether a FindCoordinator for this coordinator is queued or in flight."""
        ask = FindCoordinator(*key)
        return (self.in_flight is not None and self.in_flight.request == ask) or any(
            one.request == ask for one in self.queue
        )

    def look_up_coordinator(self, key: CoordinatorKey) -> None:
        """Queue a FindCoordinator, unless one is queued or in flight."""
        if not self.is_looking_up(key):
            self.enqueue(FindCoordinator(*key))

    # --- the end of a transaction ------------------------------------------------------------------------------------

    def end_requested(self) -> bool:
        """Whether EndTxn, or a request that follows it, is queued or in flight."""
        late = self.in_flight is not None and self.in_flight.priority >= RequestPriority.END_TXN
        return late or any(one.priority >= RequestPriority.END_TXN for one in self.queue)

    def can_end(self) -> bool:
        """Whether EndTxn may be sent: no batch is outstanding and no addition is queued or in flight."""
        if (
            self.state not in (TransactionManagerState.COMMITTING, TransactionManagerState.ABORTING)
            or self.last_offsets is None
        ):
            return False
        if self.end_requested() or any(one.priority is RequestPriority.ADD_PARTITIONS_OR_OFFSETS for one in self.queue):
            return False
        return self.in_flight is None or self.in_flight.priority is not RequestPriority.ADD_PARTITIONS_OR_OFFSETS

    def end(self, now: float) -> None:
        """Queue EndTxn. If nothing was added to the transaction, finish it without a request (TXN-4)."""
        commit = self.state is TransactionManagerState.COMMITTING
        if self.partitions.begun:
            assert self.identity is not None
            self.enqueue(EndTxn(self.limits.transactional_id, self.identity, commit, self.version))
        else:
            self.ended(NO_IDENTITY, committed=commit, now=now)

    def ended(self, following: ProducerIdAndEpoch, *, committed: bool, now: float) -> None:
        """Finish the transaction that its coordinator has ended. `following`: the next identity (TV2), or
        `NO_IDENTITY`."""
        aborted_in_v1 = not committed and self.version == 1 and (bool(self.partitions.sent) or self.partitions.in_doubt)
        if self.identity is not None:
            # After an abort too: if its marker got lost, the next commit marker would commit the aborted records.
            written = {**dict.fromkeys(self.partitions.sent, UNKNOWN_OFFSET), **(self.last_offsets or {})}
            self.visibility.track(self.identity.producer_id, written, now)
        if committed and self.pending_operation is not None:
            self.pending_operation.committed = True
            self.pending_operation.written_partitions = tuple(self.last_offsets or ())
        self.events.append(TransactionEnded(committed))
        self.end_sent = False
        self.end_failure = None
        if following != NO_IDENTITY:
            self.identity = following
        # The version may change only after an InitProducerId.
        if self.epoch_bump_required or aborted_in_v1 or self.offered_version != self.version or self.identity is None:
            self.initialise()
            return
        self.partitions = TransactionPartitions(self.version)
        if self.transition(TransactionManagerState.READY):
            if following != NO_IDENTITY:
                self.events.append(ProducerIdChanged(*following, self.version))
            self.complete_pending()

    def initialise(self) -> None:
        """Request an identity: the first, or the next epoch of the current one."""
        if self.transition(TransactionManagerState.INITIALIZING):
            identity = self.identity or NO_IDENTITY
            self.enqueue(InitProducerId(self.limits.transactional_id, self.limits.timeout_ms, identity))

    def initialised(self, identity: ProducerIdAndEpoch) -> None:
        """Apply InitProducerId's identity. The version may change only under an identity that never sent anything."""
        if identity == self.identity:
            text = f"InitProducerId did not move the epoch {identity.epoch} of producer id {identity.producer_id}"
            self.fail_fatally(TransactionFailure(-1, "", text, FailureKind.FATAL))
            return
        self.version = self.offered_version
        self.identity = identity
        self.epoch_bump_required = False
        self.partitions = TransactionPartitions(self.version)
        if self.transition(TransactionManagerState.READY):
            self.events.append(ProducerIdChanged(*identity, self.version))
            self.complete_pending()

    def complete_pending(self) -> None:
        """Finish the pending operation if it waits for nothing else. A commit is done once it is visible (TRX-3)."""
        pending = self.pending_operation
        if pending is None or pending.done or self.state is TransactionManagerState.INITIALIZING:
            return
        if pending.committed:
            assert pending.kind is TransactionOperationKind.COMMIT
            if not any(part in self.visibility for part in pending.written_partitions):
                self.finish(pending)
        elif self.state is TransactionManagerState.READY:
            self.finish(pending)
