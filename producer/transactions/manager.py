"""The transactional producer's decisions: its state, the requests it sends, and the meaning of responses. No I/O.

The shell takes `next_request`, sends it to `target`, and reports the result exactly once: `answered`,
`unsupported_version` or `lost`. At most one request is in flight. Visibility checks (can readers see the commit?) are
sent in parallel, to partition leaders. After every call the shell takes `take_events`.
"""

from collections.abc import Mapping
from typing import Final

from ...api.errors import TransactionStateError
from . import response_handlers
from .manager_state import TransactionContext, TransactionLimits
from .operations import AbortUnsent, PartitionsVisible, TransactionEvent, TransactionOperation, TransactionOperationKind
from .request_queue import QueuedTransactionRequest
from .requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    Coordinator,
    EndTxn,
    GroupMetadata,
    OffsetToCommit,
    PartitionKey,
    ProducerIdAndEpoch,
    TransactionRequest,
    TransactionResponse,
)
from .states import FailureKind, TransactionApi, TransactionFailure, TransactionManagerState, failure_of
from .visibility import VisibilityCheck, VisibilityResult

__all__ = ["TransactionLimits", "TransactionManager"]

_TV2: Final = 2
_MAY_SEND: Final = frozenset({TransactionManagerState.IN_TRANSACTION, TransactionManagerState.COMMITTING})
_MAY_SEND_AGAIN: Final = frozenset({TransactionManagerState.ABORTABLE_ERROR, TransactionManagerState.ABORTING})


class TransactionManager:
    """One transactional id: its state, operations and requests.

    Application calls raise TransactionStateError if they do not fit the state, which then does not change. They raise
    FailedTransactionError with the stored failure if there is one.
    """

    def __init__(self, limits: TransactionLimits) -> None:
        self._context: Final = TransactionContext(limits)
        self._offsets: TransactionOperation | None = None
        """The latest SEND_OFFSETS operation, so that a repeated call returns it."""

    @property
    def state(self) -> TransactionManagerState:
        """The current state."""
        return self._context.state

    @property
    def version(self) -> int:
        """The version of transactions under the current identity: 1 or 2."""
        return self._context.version

    @property
    def identity(self) -> ProducerIdAndEpoch | None:
        """The producer id and epoch; None before the first InitProducerId response."""
        return self._context.identity

    @property
    def error(self) -> TransactionFailure | None:
        """The failure that led to ABORTABLE_ERROR or FATAL_ERROR; None in other states."""
        return self._context.error

    @property
    def ongoing(self) -> bool:
        """Whether a transaction is open: from `begin` until it has ended at its coordinator, or until a fatal error."""
        return self._context.state in _MAY_SEND | _MAY_SEND_AGAIN

    @property
    def awaiting_visibility(self) -> tuple[PartitionKey, ...]:
        """Partitions whose last transaction has ended but is not known to be visible yet."""
        return self._context.visibility.parts

    # --- operations of the application -------------------------------------------------------------------------------

    def initialise(self) -> TransactionOperation:
        """Request the first identity. This fences any earlier producer with the same transactional id."""
        course = self._context
        again = self._pending_call(TransactionOperationKind.INITIALISE)
        if again is not None:
            return again
        course.raise_if_failed()
        if course.state is not TransactionManagerState.UNINITIALIZED:
            raise TransactionStateError("transactions are initialised already")
        course.pending_operation = TransactionOperation(TransactionOperationKind.INITIALISE)
        course.initialise()
        return course.pending_operation

    def begin(self) -> None:
        """Begin a transaction. Nothing is sent until the first record or offset belongs to it."""
        self._refuse_while_pending("begin_transaction")
        self._context.raise_if_failed()
        self._context.transition_by_call(TransactionManagerState.IN_TRANSACTION)

    def check_send(self) -> None:
        """Raise, like any call, if a record must not be sent now. It only reads, so any thread may call it."""
        pending = self._context.pending_operation
        if pending is None or not pending.done:
            # The caller of a done operation is about to get its result; a failure that outlasts it is raised below.
            self._refuse_while_pending("send")
        self._context.raise_if_failed()
        if self._context.state is not TransactionManagerState.IN_TRANSACTION:
            raise TransactionStateError("records can be sent only in a transaction: call begin_transaction first")

    def send_offsets(
        self, offsets: Mapping[PartitionKey, OffsetToCommit], group: GroupMetadata
    ) -> TransactionOperation:
        """Add a consumer's offsets to the transaction. Without offsets the operation is done at once.

        Raises ValueError if a generation is given without a member id.
        """
        if group.generation > 0 and not group.member_id:
            raise ValueError(f"generation {group.generation} of group {group.group} without a member id")
        self._refuse_while_pending("send_offsets_to_transaction")
        course = self._context
        course.raise_if_failed()
        if course.state is not TransactionManagerState.IN_TRANSACTION:
            raise TransactionStateError("offsets can be sent only in a transaction: call begin_transaction first")
        asked = (group, tuple(offsets.items()))
        if self._offsets is not None and not self._offsets.done and self._offsets.offsets == asked:
            return self._offsets
        operation = self._offsets = TransactionOperation(TransactionOperationKind.SEND_OFFSETS, asked)
        if not offsets:
            course.finish(operation)
            return operation
        assert course.identity is not None, "in a transaction without an identity"
        name = course.limits.transactional_id
        if course.version == 1:
            course.enqueue(AddOffsets(name, course.identity, group.group), operation)
        else:
            course.enqueue(CommitOffsets(name, course.identity, group, asked[1], course.version), operation)
        return operation

    def commit(self) -> TransactionOperation:
        """Commit the transaction once every record of it is acknowledged (`batches_completed`)."""
        again = self._pending_call(TransactionOperationKind.COMMIT)
        if again is not None:
            return again
        self._context.raise_if_failed()
        return self._complete(TransactionOperationKind.COMMIT, TransactionManagerState.COMMITTING)

    def abort(self) -> TransactionOperation:
        """Abort the transaction. Additions and records not sent yet are dropped; everything in flight is awaited."""
        again = self._pending_call(TransactionOperationKind.ABORT)
        if again is not None:
            return again
        course = self._context
        reason = course.error
        if course.state is not TransactionManagerState.ABORTABLE_ERROR:
            course.raise_if_failed()
            text = "the transaction was aborted by the application"
            reason = TransactionFailure(-1, "", text, FailureKind.ABORTED)
        assert reason is not None
        operation = self._complete(TransactionOperationKind.ABORT, TransactionManagerState.ABORTING)
        course.partitions.drop_new()
        for one in course.queue.drop(_pointless_while_aborting):
            course.abandon(one, reason)
        course.events.append(AbortUnsent(reason))
        return operation

    def _complete(self, kind: TransactionOperationKind, state: TransactionManagerState) -> TransactionOperation:
        course = self._context
        if course.closed is not None:
            course.raise_if_failed()
        course.transition_by_call(state)
        course.pending_operation = TransactionOperation(kind)
        return course.pending_operation

    def close(self, text: str) -> None:
        """Fail pending operations and send nothing more. A commit with EndTxn unanswered fails as outcome unknown."""
        self._context.close(TransactionFailure(-1, "", text, FailureKind.CLOSED))

    def _pending_call(self, kind: TransactionOperationKind) -> TransactionOperation | None:
        pending = self._context.pending_operation
        if pending is None or pending.acknowledged:
            return None
        if pending.kind is not kind:
            self._refuse_while_pending(kind.value)
        return pending

    def _refuse_while_pending(self, call: str) -> None:
        pending = self._context.pending_operation
        if pending is not None and not pending.acknowledged:
            raise TransactionStateError(
                f"{call} cannot be called now: {pending.kind.value} has not ended for its caller, and must be called again"
            )

    # --- called by `TransactionalDelivery` ---------------------------------------------------------------------------

    def maybe_add_partition(self, topic: str, index: int) -> None:
        """Note that records for the partition were submitted in this transaction. Repeated calls change nothing."""
        course = self._context
        if course.state not in _MAY_SEND:
            return
        if course.last_offsets is None:
            course.partitions.maybe_add((topic, index))
        elif not course.partitions.contains((topic, index)):
            self._fail_illegal_state(f"records for {topic}-{index} came after all were said to be settled")

    def may_send(self, topic: str, index: int) -> bool:
        """Whether batches of the partition may be sent (TRX-2).

        In version 1 the partition must be added first. After an error only partitions already in the transaction may
        send. A partition may not send while an earlier transaction in it is not visible (TRX-3).
        """
        course = self._context
        part = (topic, index)
        if part in course.visibility or course.closed is not None:
            return False
        if course.state in _MAY_SEND:
            return course.version != 1 or course.partitions.contains(part)
        return course.state in _MAY_SEND_AGAIN and course.partitions.contains(part)

    def batch_sent(self, topic: str, index: int) -> None:
        """Note that a batch of the partition was sent."""
        self._context.partitions.mark_sent((topic, index))

    def batch_failed(self, code: int, name: str, text: str, *, fatal: bool = False) -> None:
        """A record or batch of the transaction failed permanently. `fatal`: so did the producer, whatever the code."""
        course = self._context
        kind = FailureKind.FATAL if fatal else failure_of(TransactionApi.PRODUCE, code).kind
        failure = TransactionFailure(code, name, text, kind)
        if course.state is TransactionManagerState.COMMITTING and course.last_offsets is not None:
            self._fail_illegal_state(f"a batch failed after all were said to be settled: {text}")
            return
        course.fail(failure)

    def _fail_illegal_state(self, text: str) -> None:
        self._context.fail(
            TransactionFailure(-1, "", f"lost track of the transaction: {text}", FailureKind.ILLEGAL_STATE)
        )

    def batches_completed(self, last_offsets: Mapping[PartitionKey, int]) -> None:
        """Note that no batch is outstanding while committing or aborting, so EndTxn may be sent. `last_offsets`: the
        offset of the last record in every partition written to."""
        if self._context.state in (TransactionManagerState.COMMITTING, TransactionManagerState.ABORTING):
            self._context.last_offsets = dict(last_offsets)

    # --- requests ----------------------------------------------------------------------------------------------------

    def update_features(self, transaction_version: int, *, offers_v2: bool) -> None:
        """Apply the brokers' features: the finalised level of `transaction.version` (-1: none), and whether all of them
        offer Produce 12 and EndTxn 5. The level alone is not enough: 3.9 can finalise 2 without those requests."""
        self._context.offered_version = _TV2 if transaction_version >= _TV2 and offers_v2 else 1

    def next_request(self, now: float) -> TransactionRequest | None:
        """Return the request to send now, or None. It is in flight until the shell reports its result."""
        course = self._context
        if (
            course.in_flight is not None
            or course.closed is not None
            or course.state is TransactionManagerState.FATAL_ERROR
        ):
            return None
        self._enqueue_due(now)
        for waiting in list(course.queue):
            key = course.coordinator_key(waiting.request)
            if key is not None and key not in course.coordinators and now >= waiting.not_before:
                course.look_up_coordinator(key)
        for waiting in course.queue:
            if now >= waiting.not_before and self._knows_target(waiting):
                return self._send(waiting)
        return None

    def _enqueue_due(self, now: float) -> None:
        course = self._context
        if course.state in _MAY_SEND:
            parts = course.partitions.take_new(frozenset(course.visibility.parts))
            if parts:
                assert course.identity is not None, "in a transaction without an identity"
                course.enqueue(AddPartitions(course.limits.transactional_id, course.identity, parts))
        if course.can_end():
            course.end(now)

    def _knows_target(self, waiting: QueuedTransactionRequest) -> bool:
        key = self._context.coordinator_key(waiting.request)
        return key is None or key in self._context.coordinators

    def _send(self, queued: QueuedTransactionRequest) -> TransactionRequest:
        course = self._context
        course.queue.remove(queued)
        course.in_flight = queued
        queued.sent = True
        ask = queued.request
        if isinstance(ask, EndTxn) and ask.commit:
            course.end_sent = True
        elif isinstance(ask, CommitOffsets) and ask.version != 1:
            # As with batches: the broker adds them to the transaction when it receives them.
            course.partitions.has_offsets = True
        return ask

    def target(self, ask: TransactionRequest) -> Coordinator | None:
        """The broker to send the request to; None: any broker."""
        key = self._context.coordinator_key(ask)
        return None if key is None else self._context.coordinators.get(key)

    def answered(self, ask: TransactionRequest, answer: TransactionResponse, *, now: float, chance: float) -> None:
        """Apply the response to the request in flight. `chance` in [0, 1)."""
        queued = self._take_in_flight(ask)
        if queued is not None:
            response_handlers.apply_response(self._context, queued, answer, now=now, chance=chance)

    def unsupported_version(self, ask: TransactionRequest, text: str) -> None:
        """The broker supports no version of the request that we may send (`version_range`): fatal (TXS-6, TRX-10)."""
        queued = self._take_in_flight(ask)
        if queued is not None:
            response_handlers.apply_unsupported_version(self._context, queued, text)

    def lost(self, ask: TransactionRequest, *, now: float, chance: float) -> None:
        """The request was not sent, or will not be answered: look up the coordinator and send it again."""
        queued = self._take_in_flight(ask)
        if queued is not None:
            response_handlers.apply_lost(self._context, queued, now=now, chance=chance)

    def _take_in_flight(self, ask: TransactionRequest) -> QueuedTransactionRequest | None:
        course = self._context
        queued = course.in_flight
        if course.closed is not None or course.state is TransactionManagerState.FATAL_ERROR:
            return None
        if queued is None or queued.request != ask:
            self._fail_illegal_state(f"{type(ask).__name__} was answered, and is not what was asked")
            return None
        course.in_flight = None
        return queued

    # --- visibility --------------------------------------------------------------------------------------------------

    def take_visibility_checks(self, now: float) -> list[VisibilityCheck]:
        """Checks to send to leaders now. Each must end with `visibility_checked` or `visibility_check_lost`."""
        course = self._context
        if course.closed is not None:
            return []
        course.visibility.report_hanging(now, course.alarm)
        return course.visibility.take_checks(now)

    def visibility_checked(self, look: VisibilityCheck, answer: VisibilityResult, *, now: float, chance: float) -> None:
        """Apply a leader's response."""
        course = self._context
        if course.visibility.answered(look, answer, now=now, chance=chance):
            course.events.append(PartitionsVisible((look.part,)))
            course.complete_pending()

    def visibility_check_lost(self, look: VisibilityCheck, *, now: float, chance: float) -> None:
        """The check was not answered, or the partition has no known leader."""
        self._context.visibility.lost(look, now=now, chance=chance)

    # --- for the shell -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `next_request` or `take_visibility_checks` will next have something, if nothing else happens."""
        course = self._context
        if course.closed is not None:
            return None
        looks = course.visibility.next_deadline()
        times = [] if looks is None else [looks]
        if course.in_flight is None:
            times += [waiting.not_before for waiting in course.queue if self._can_progress(waiting)]
        return min(times, default=None)

    def _can_progress(self, waiting: QueuedTransactionRequest) -> bool:
        """Whether the request does not wait for a coordinator lookup."""
        course = self._context
        key = course.coordinator_key(waiting.request)
        return key is None or key in course.coordinators or not course.is_looking_up(key)

    def take_events(self) -> list[TransactionEvent]:
        """Return the events since the last call, in order."""
        events = list(self._context.events)
        self._context.events.clear()
        return events


def _pointless_while_aborting(one: QueuedTransactionRequest) -> bool:
    """Whether to drop a request on abort: additions never sent, and offsets, which no consumer will read. Additions
    that were sent are repeated until their result is known."""
    return isinstance(one.request, CommitOffsets) or (
        isinstance(one.request, AddPartitions | AddOffsets) and not one.sent
    )
