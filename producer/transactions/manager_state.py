"""Where a transactional producer stands, and every move it makes: shared by what the application calls (`producer/transactions/manager.py`)
and by what answers lead to (`producer/transactions/response_handlers.py`). Nobody else changes the state.
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
    """Rules of one transactional id. Times in seconds, but `timeout_ms`, which goes to the coordinator as it is."""

    transactional_id: str
    timeout_ms: int
    retry: Backoff
    visibility_backoff: Backoff = Backoff(0.002, 1.0)
    """Between two looks at a partition whose commit is not visible yet."""
    concurrent_wait_s: float = 0.02
    """After CONCURRENT_TRANSACTIONS while nothing is in the new transaction yet: markers of the last one take that long."""
    ask_leader_after_s: float = 0.05
    """Not visible for so long: DescribeProducers tells whether our marker lacks, or another producer's transaction is open."""
    hanging_after_s: float = 45.0
    """Not visible for so long: the alarm "hanging transaction"."""


class TransactionContext:
    """State, contents of the transaction, pending operations, waiting requests, events not taken yet."""

    def __init__(self, limits: TransactionLimits) -> None:
        self.limits: Final = limits
        self.state = TransactionManagerState.UNINITIALIZED
        self.identity: ProducerIdAndEpoch | None = None
        self.version = 1
        self.offered_version = 1
        """What the brokers offer; it becomes `version` with the next new identity that InitProducerId gives (decision 31)."""
        self.error: TransactionFailure | None = None
        self.partitions = TransactionPartitions(1)
        self.pending_operation: TransactionOperation | None = None
        """The call that must be acknowledged, or made again, before another one is taken (TXN-3)."""
        self.queue: Final = TransactionRequestQueue()
        self.in_flight: QueuedTransactionRequest | None = None
        self.coordinators: Final[dict[CoordinatorKey, Coordinator]] = {}
        self.visibility: Final = VisibilityTracker(
            limits.visibility_backoff,
            ask_leader_after_s=limits.ask_leader_after_s,
            hanging_after_s=limits.hanging_after_s,
        )
        self.closed: TransactionFailure | None = None
        self.epoch_bump_required = False
        """The next transaction needs a new epoch: a late copy of this one's batches must not land in it."""
        self.last_offsets: Mapping[PartitionKey, int] | None = None
        """Of the partitions sent to, once no batch is open. None: not told yet, EndTxn waits."""
        self.end_sent = False
        """EndTxn(commit) went out: from here on the coordinator decides how the transaction ends."""
        self.end_failure: TransactionFailure | None = None
        """What EndTxn was answered when an earlier answer to it was lost: DescribeTransactions decides."""
        self.events: Final[list[TransactionEvent]] = []

    # --- moves -------------------------------------------------------------------------------------------------------

    def transition_by_call(self, state: TransactionManagerState) -> None:
        """A call of the application. TransactionStateError: it does not fit, and nothing has changed (TXN-1)."""
        if state not in TRANSITIONS[self.state]:
            raise TransactionStateError(f"this call does not fit the state {self.state.value} (to {state.value})")
        self.last_offsets = None
        self._enter(state)

    def transition(self, state: TransactionManagerState) -> bool:
        """A consequence of an answer. A move that the table lacks is fatal: we lost track of what was sent (TXN-1)."""
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
        """A call that errors forbid: FailedTransactionError with the stored one, TransactionStateError where we lost track."""
        failure = self.closed or self.error
        if failure is None:
            return
        if failure.kind is FailureKind.ILLEGAL_STATE:
            raise TransactionStateError(failure.text)
        raise FailedTransactionError(failure)

    # --- errors ------------------------------------------------------------------------------------------------------

    def fail(self, failure: TransactionFailure) -> None:
        """The reaction that a failure's kind names, wherever we stand; after a fatal one nothing changes any more (TXN-8)."""
        if self.state is TransactionManagerState.FATAL_ERROR:
            return
        if failure.fatal:
            self.fail_fatally(failure)
        elif failure.kind is FailureKind.UNAUTHORIZED:
            self.fail_unauthorized(failure)
        elif self.state not in (TransactionManagerState.ABORTING, TransactionManagerState.ABORTABLE_ERROR):
            # While aborting it comes to nothing; a second error adds nothing to the first.
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
        """No rights to initialise: by way of the error back to the beginning."""
        self._fail_transaction(failure)
        if self.transition(TransactionManagerState.UNINITIALIZED):
            self.alarm(failure.text)

    def fail_fatally(self, failure: TransactionFailure) -> None:
        """Fatal. A commit whose end went out, and which nobody answered, may be one."""
        assert failure.fatal, "only a fatal failure is for good"
        if self.state is TransactionManagerState.FATAL_ERROR:
            return
        self.state = TransactionManagerState.FATAL_ERROR
        self.error = failure
        self._stop(failure)
        self.events.append(TransactionFatal(failure))
        self.complete_pending()

    def close(self, failure: TransactionFailure) -> None:
        """The application has given up: nothing is asked any more, in no state."""
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
        """The failure of a commit that may have been one; an operator is told, too."""
        text = f"the transaction may be committed, and nobody can tell: {cause.text}"
        self.end_sent = False
        self.alarm(text)
        return TransactionFailure(cause.code, cause.name, text, FailureKind.OUTCOME_UNKNOWN)

    def alarm(self, text: str) -> None:
        """Tell an operator."""
        self.events.append(TransactionAlarm(f"transactional id {self.limits.transactional_id}: {text}"))

    def _fail_pending(self, failure: TransactionFailure) -> None:
        pending = self.pending_operation
        if pending is not None and not pending.done and not pending.committed:
            self.finish(pending, failure)

    def _abandon_all(self, dropped: list[QueuedTransactionRequest], failure: TransactionFailure) -> None:
        for one in dropped:
            self.abandon(one, failure)

    def abandon(self, queued: QueuedTransactionRequest, failure: TransactionFailure) -> None:
        """It will not go out again."""
        if isinstance(queued.request, AddPartitions):
            self.partitions.drop_pending(queued.request.partitions)
        if queued.sent and isinstance(queued.request, AddPartitions | AddOffsets):
            self.partitions.in_doubt = True
        operation = queued.operation
        if operation is not None and not operation.done:
            self.finish(operation, failure)

    def finish(self, operation: TransactionOperation, failure: TransactionFailure | None = None) -> None:
        """End an operation and say so."""
        operation.finish(failure)
        self.events.append(OperationFinished(operation))

    # --- requests ----------------------------------------------------------------------------------------------------

    def enqueue(self, ask: TransactionRequest, operation: TransactionOperation | None = None) -> None:
        """Something new is to be asked."""
        self.queue.put(QueuedTransactionRequest(ask, priority_of(ask), operation))

    def reenqueue(self, queued: QueuedTransactionRequest, wait_s: float, now: float) -> None:
        """Ask it again, unless an error has made it pointless meanwhile."""
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
        """The coordinator an ask goes to; None: any broker."""
        kind = coordinator_kind_of(ask)
        if kind is CoordinatorKind.GROUP and isinstance(ask, CommitOffsets):
            return (kind, ask.group.group)
        return None if kind is None else (kind, self.limits.transactional_id)

    def forget_coordinator(self, ask: TransactionRequest) -> None:
        """It has moved, or cannot be reached."""
        key = self.coordinator_key(ask)
        if key is not None:
            _ = self.coordinators.pop(key, None)

    def is_looking_up(self, key: CoordinatorKey) -> bool:
        """Its place is being asked, or is to be."""
        ask = FindCoordinator(*key)
        return (self.in_flight is not None and self.in_flight.request == ask) or any(
            one.request == ask for one in self.queue
        )

    def look_up_coordinator(self, key: CoordinatorKey) -> None:
        """Ask where it is, unless that is being asked."""
        if not self.is_looking_up(key):
            self.enqueue(FindCoordinator(*key))

    # --- the end of a transaction ------------------------------------------------------------------------------------

    def end_requested(self) -> bool:
        """EndTxn, or what follows from it, waits or is on its way."""
        late = self.in_flight is not None and self.in_flight.priority >= RequestPriority.END_TXN
        return late or any(one.priority >= RequestPriority.END_TXN for one in self.queue)

    def can_end(self) -> bool:
        """No batch is open, and nothing is to be added first."""
        if (
            self.state not in (TransactionManagerState.COMMITTING, TransactionManagerState.ABORTING)
            or self.last_offsets is None
        ):
            return False
        if self.end_requested() or any(one.priority is RequestPriority.ADD_PARTITIONS_OR_OFFSETS for one in self.queue):
            return False
        return self.in_flight is None or self.in_flight.priority is not RequestPriority.ADD_PARTITIONS_OR_OFFSETS

    def end(self, now: float) -> None:
        """Ask for the end; where nothing was added there is nothing to ask (TXN-4)."""
        commit = self.state is TransactionManagerState.COMMITTING
        if self.partitions.begun:
            assert self.identity is not None
            self.enqueue(EndTxn(self.limits.transactional_id, self.identity, commit, self.version))
        else:
            self.ended(NO_IDENTITY, committed=commit, now=now)

    def ended(self, following: ProducerIdAndEpoch, *, committed: bool, now: float) -> None:
        """The coordinator has ended it. `following`: the identity for the next transaction (TV2), or none."""
        aborted_in_v1 = not committed and self.version == 1 and (bool(self.partitions.sent) or self.partitions.in_doubt)
        if self.identity is not None:
            # After an abort too: where its marker got lost, the next commit there would commit what was aborted.
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
        # Only after an InitProducerId may the version change.
        if self.epoch_bump_required or aborted_in_v1 or self.offered_version != self.version or self.identity is None:
            self.initialise()
            return
        self.partitions = TransactionPartitions(self.version)
        if self.transition(TransactionManagerState.READY):
            if following != NO_IDENTITY:
                self.events.append(ProducerIdChanged(*following, self.version))
            self.complete_pending()

    def initialise(self) -> None:
        """Ask for an identity: the first, or the next epoch of the one in use."""
        if self.transition(TransactionManagerState.INITIALIZING):
            identity = self.identity or NO_IDENTITY
            self.enqueue(InitProducerId(self.limits.transactional_id, self.limits.timeout_ms, identity))

    def initialised(self, identity: ProducerIdAndEpoch) -> None:
        """InitProducerId has answered: another version may be used only under an identity that never sent anything."""
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
        """End the pending operation if that was the last it waited for. A commit is done when it can be read (TRX-3)."""
        pending = self.pending_operation
        if pending is None or pending.done or self.state is TransactionManagerState.INITIALIZING:
            return
        if pending.committed:
            assert pending.kind is TransactionOperationKind.COMMIT
            if not any(part in self.visibility for part in pending.written_partitions):
                self.finish(pending)
        elif self.state is TransactionManagerState.READY:
            self.finish(pending)
