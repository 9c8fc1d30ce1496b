"""Where a transactional producer stands, and every move it makes: shared by what the application calls (`producer/transactions/manager.py`)
and by what answers lead to (`producer/transactions/response_handlers.py`). Nobody else changes the state.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ...api.errors import TransactionStateError
from ..protocol.backoff import Backoff
from .operations import AbortUnsent, Alarm, Ended, Event, Fatal, Finished, NewIdentity, Operation, OperationKind
from .partitions import Contents
from .request_queue import Queued, RequestQueue, Urgency, urgency_of
from .requests import (
    NO_IDENTITY,
    AddOffsets,
    AddPartitions,
    Ask,
    CommitOffsets,
    Coordinator,
    CoordinatorKind,
    EndTxn,
    FindCoordinator,
    Identity,
    InitProducerId,
    Part,
    coordinator_of,
)
from .states import NEXT, FailedTransactionError, FailureKind, State, TransactionFailure
from .visibility import UNKNOWN_OFFSET, Visibility

Key = tuple[CoordinatorKind, str]


class TransactionLimits(NamedTuple):
    """Rules of one transactional id. Times in seconds, but `timeout_ms`, which goes to the coordinator as it is."""

    transactional_id: str
    timeout_ms: int
    retry: Backoff
    look: Backoff = Backoff(0.002, 1.0)
    """Between two looks at a partition whose commit is not visible yet."""
    concurrent_wait_s: float = 0.02
    """After CONCURRENT_TRANSACTIONS while nothing is in the new transaction yet: markers of the last one take that long."""
    ask_leader_after_s: float = 0.05
    """Not visible for so long: DescribeProducers tells whether our marker lacks, or another producer's transaction is open."""
    hanging_after_s: float = 45.0
    """Not visible for so long: the alarm "hanging transaction"."""


class Course:
    """State, contents of the transaction, pending operations, waiting requests, events not taken yet."""

    def __init__(self, limits: TransactionLimits) -> None:
        self.limits: Final = limits
        self.state = State.UNINITIALIZED
        self.identity: Identity | None = None
        self.version = 1
        self.wanted_version = 1
        """What the brokers offer; it becomes `version` with the next new identity that InitProducerId gives (decision 31)."""
        self.error: TransactionFailure | None = None
        self.contents = Contents(1)
        self.pending: Operation | None = None
        """The call that must be acknowledged, or made again, before another one is taken (TXN-3)."""
        self.queue: Final = RequestQueue()
        self.in_flight: Queued | None = None
        self.coordinators: Final[dict[Key, Coordinator]] = {}
        self.visibility: Final = Visibility(
            limits.look, ask_leader_after_s=limits.ask_leader_after_s, hanging_after_s=limits.hanging_after_s
        )
        self.closed: TransactionFailure | None = None
        self.bump = False
        """The next transaction needs a new epoch: a late copy of this one's batches must not land in it."""
        self.last_offsets: Mapping[Part, int] | None = None
        """Of the partitions sent to, once no batch is open. None: not told yet, EndTxn waits."""
        self.end_sent = False
        """EndTxn(commit) went out: from here on the coordinator decides how the transaction ends."""
        self.end_failure: TransactionFailure | None = None
        """What EndTxn was answered when an earlier answer to it was lost: DescribeTransactions decides."""
        self.events: Final[list[Event]] = []

    # --- moves -------------------------------------------------------------------------------------------------------

    def call_moves_to(self, state: State) -> None:
        """A call of the application. TransactionStateError: it does not fit, and nothing has changed (TXN-1)."""
        if state not in NEXT[self.state]:
            raise TransactionStateError(f"this call does not fit the state {self.state.value} (to {state.value})")
        self.last_offsets = None
        self._enter(state)

    def move(self, state: State) -> bool:
        """A consequence of an answer. A move that the table lacks is fatal: we lost track of what was sent (TXN-1)."""
        if state in NEXT[self.state]:
            self._enter(state)
            return True
        if self.state is not State.FATAL_ERROR:
            text = f"lost track of the transaction: no way from {self.state.value} to {state.value}"
            self.fail_for_good(TransactionFailure(-1, "", text, FailureKind.LOST_TRACK))
        return False

    def _enter(self, state: State) -> None:
        self.state = state
        if state is not State.ABORTABLE_ERROR:
            self.error = None

    def raise_error(self) -> None:
        """A call that errors forbid: FailedTransactionError with the stored one, TransactionStateError where we lost track."""
        failure = self.closed or self.error
        if failure is None:
            return
        if failure.kind is FailureKind.LOST_TRACK:
            raise TransactionStateError(failure.text)
        raise FailedTransactionError(failure)

    # --- errors ------------------------------------------------------------------------------------------------------

    def fail(self, failure: TransactionFailure) -> None:
        """The reaction that a failure's kind names, wherever we stand; after a fatal one nothing changes any more (TXN-8)."""
        if self.state is State.FATAL_ERROR:
            return
        if failure.fatal:
            self.fail_for_good(failure)
        elif failure.kind is FailureKind.REFUSED:
            self.refuse(failure)
        elif self.state not in (State.ABORTING, State.ABORTABLE_ERROR):
            # While aborting it comes to nothing; a second error adds nothing to the first.
            self._fail_transaction(failure)

    def _fail_transaction(self, failure: TransactionFailure) -> None:
        if not self.move(State.ABORTABLE_ERROR):
            return
        self.error = failure
        self._give_up(self.queue.drop(lambda one: one.urgency is not Urgency.LOOK_UP), failure)
        self.contents.drop_wanted()
        self._fail_pending(failure)
        self.events.append(AbortUnsent(failure))
        self.conclude()

    def refuse(self, failure: TransactionFailure) -> None:
        """No rights to initialise: by way of the error back to the beginning."""
        self._fail_transaction(failure)
        if self.move(State.UNINITIALIZED):
            self.alarm(failure.text)

    def fail_for_good(self, failure: TransactionFailure) -> None:
        """Fatal. A commit whose end went out, and which nobody answered, may be one."""
        assert failure.fatal, "only a fatal failure is for good"
        if self.state is State.FATAL_ERROR:
            return
        self.state = State.FATAL_ERROR
        self.error = failure
        self._stop(failure)
        self.events.append(Fatal(failure))
        self.conclude()

    def close(self, failure: TransactionFailure) -> None:
        """The application has given up: nothing is asked any more, in no state."""
        if self.closed is None:
            self.closed = failure
            self._stop(failure)
            if self.pending is not None and not self.pending.done:
                self.finish(self.pending, failure)

    def _stop(self, failure: TransactionFailure) -> None:
        if self.in_flight is not None:
            self.give_up(self.in_flight, failure)
            self.in_flight = None
        self._give_up(self.queue.drop(lambda _: True), failure)
        self._fail_pending(self._untold(failure) if self.end_sent else failure)

    def _untold(self, cause: TransactionFailure) -> TransactionFailure:
        """The failure of a commit that may have been one; an operator is told, too."""
        text = f"the transaction may be committed, and nobody can tell: {cause.text}"
        self.end_sent = False
        self.alarm(text)
        return TransactionFailure(cause.code, cause.name, text, FailureKind.UNTOLD)

    def alarm(self, text: str) -> None:
        """Tell an operator."""
        self.events.append(Alarm(f"transactional id {self.limits.transactional_id}: {text}"))

    def _fail_pending(self, failure: TransactionFailure) -> None:
        pending = self.pending
        if pending is not None and not pending.done and not pending.committed:
            self.finish(pending, failure)

    def _give_up(self, dropped: list[Queued], failure: TransactionFailure) -> None:
        for one in dropped:
            self.give_up(one, failure)

    def give_up(self, queued: Queued, failure: TransactionFailure) -> None:
        """It will not go out again."""
        if isinstance(queued.ask, AddPartitions):
            self.contents.refuse(queued.ask.partitions)
        if queued.sent and isinstance(queued.ask, AddPartitions | AddOffsets):
            self.contents.doubtful = True
        operation = queued.operation
        if operation is not None and not operation.done:
            self.finish(operation, failure)

    def finish(self, operation: Operation, failure: TransactionFailure | None = None) -> None:
        """End an operation and say so."""
        operation.finish(failure)
        self.events.append(Finished(operation))

    # --- requests ----------------------------------------------------------------------------------------------------

    def put(self, ask: Ask, operation: Operation | None = None) -> None:
        """Something new is to be asked."""
        self.queue.put(Queued(ask, urgency_of(ask), operation))

    def put_back(self, queued: Queued, wait_s: float, now: float) -> None:
        """Ask it again, unless an error has made it pointless meanwhile."""
        queued.attempts += 1
        queued.not_before = now + wait_s
        if self.state is State.ABORTABLE_ERROR and queued.urgency is not Urgency.LOOK_UP:
            assert self.error is not None
            self.give_up(queued, self.error)
        elif queued.operation is None or not queued.operation.done or isinstance(queued.ask, AddOffsets):
            self.queue.put(queued)

    def key_of(self, ask: Ask) -> Key | None:
        """The coordinator an ask goes to; None: any broker."""
        kind = coordinator_of(ask)
        if kind is CoordinatorKind.GROUP and isinstance(ask, CommitOffsets):
            return (kind, ask.group.group)
        return None if kind is None else (kind, self.limits.transactional_id)

    def forget_coordinator(self, ask: Ask) -> None:
        """It has moved, or cannot be reached."""
        key = self.key_of(ask)
        if key is not None:
            _ = self.coordinators.pop(key, None)

    def looks_up(self, key: Key) -> bool:
        """Its place is being asked, or is to be."""
        ask = FindCoordinator(*key)
        return (self.in_flight is not None and self.in_flight.ask == ask) or any(one.ask == ask for one in self.queue)

    def look_up(self, key: Key) -> None:
        """Ask where it is, unless that is being asked."""
        if not self.looks_up(key):
            self.put(FindCoordinator(*key))

    # --- the end of a transaction ------------------------------------------------------------------------------------

    def end_asked(self) -> bool:
        """EndTxn, or what follows from it, waits or is on its way."""
        late = self.in_flight is not None and self.in_flight.urgency >= Urgency.END
        return late or any(one.urgency >= Urgency.END for one in self.queue)

    def may_end(self) -> bool:
        """No batch is open, and nothing is to be added first."""
        if self.state not in (State.COMMITTING, State.ABORTING) or self.last_offsets is None:
            return False
        if self.end_asked() or any(one.urgency is Urgency.ADD for one in self.queue):
            return False
        return self.in_flight is None or self.in_flight.urgency is not Urgency.ADD

    def end(self, now: float) -> None:
        """Ask for the end; where nothing was added there is nothing to ask (TXN-4)."""
        commit = self.state is State.COMMITTING
        if self.contents.begun:
            assert self.identity is not None
            self.put(EndTxn(self.limits.transactional_id, self.identity, commit, self.version))
        else:
            self.ended(NO_IDENTITY, committed=commit, now=now)

    def ended(self, following: Identity, *, committed: bool, now: float) -> None:
        """The coordinator has ended it. `following`: the identity for the next transaction (TV2), or none."""
        aborted_in_v1 = not committed and self.version == 1 and (bool(self.contents.sent) or self.contents.doubtful)
        if self.identity is not None:
            # After an abort too: where its marker got lost, the next commit there would commit what was aborted.
            written = {**dict.fromkeys(self.contents.sent, UNKNOWN_OFFSET), **(self.last_offsets or {})}
            self.visibility.expect(self.identity.producer_id, written, now)
        if committed and self.pending is not None:
            self.pending.committed = True
            self.pending.written = tuple(self.last_offsets or ())
        self.events.append(Ended(committed))
        self.end_sent = False
        self.end_failure = None
        if following != NO_IDENTITY:
            self.identity = following
        # Only after an InitProducerId may the version change.
        if self.bump or aborted_in_v1 or self.wanted_version != self.version or self.identity is None:
            self.initialise()
            return
        self.contents = Contents(self.version)
        if self.move(State.READY):
            if following != NO_IDENTITY:
                self.events.append(NewIdentity(*following, self.version))
            self.conclude()

    def initialise(self) -> None:
        """Ask for an identity: the first, or the next epoch of the one in use."""
        if self.move(State.INITIALIZING):
            identity = self.identity or NO_IDENTITY
            self.put(InitProducerId(self.limits.transactional_id, self.limits.timeout_ms, identity))

    def initialised(self, identity: Identity) -> None:
        """InitProducerId has answered: another version may be used only under an identity that never sent anything."""
        if identity == self.identity:
            text = f"InitProducerId did not move the epoch {identity.epoch} of producer id {identity.producer_id}"
            self.fail_for_good(TransactionFailure(-1, "", text, FailureKind.FATAL))
            return
        self.version = self.wanted_version
        self.identity = identity
        self.bump = False
        self.contents = Contents(self.version)
        if self.move(State.READY):
            self.events.append(NewIdentity(*identity, self.version))
            self.conclude()

    def conclude(self) -> None:
        """End the pending operation if that was the last it waited for. A commit is done when it can be read (TRX-3)."""
        pending = self.pending
        if pending is None or pending.done or self.state is State.INITIALIZING:
            return
        if pending.committed:
            assert pending.kind is OperationKind.COMMIT
            if not any(part in self.visibility for part in pending.written):
                self.finish(pending)
        elif self.state is State.READY:
            self.finish(pending)
