"""The transactional producer's decisions: one owner, no I/O. What it stands in, what it may ask, what answers mean.

The shell takes `next_ask`, sends it to `target`, and says how that ended, exactly once: `answered`, `refused_version` or `lost`.
At most one ask is in flight. Looks (is the commit visible?) go beside that, to leaders of partitions. After every call the shell
takes `take_events`.
"""

from collections.abc import Mapping
from typing import Final

from ...api.errors import TransactionStateError
from . import response_handlers
from .manager_state import Course, TransactionLimits
from .operations import AbortUnsent, Event, Operation, OperationKind, PartitionsVisible
from .request_queue import Queued
from .requests import (
    AddOffsets,
    AddPartitions,
    Answer,
    Ask,
    CommitOffsets,
    Coordinator,
    EndTxn,
    GroupMetadata,
    Identity,
    OffsetToCommit,
    Part,
)
from .states import FailureKind, Request, State, TransactionFailure, failure_of
from .visibility import Look, LookAnswer

__all__ = ["TransactionLimits", "TransactionManager"]

_TV2: Final = 2
_MAY_SEND: Final = frozenset({State.IN_TRANSACTION, State.COMMITTING})
_MAY_SEND_AGAIN: Final = frozenset({State.ABORTABLE_ERROR, State.ABORTING})


class TransactionManager:
    """A transactional id: its state, operations and requests.

    Calls of the application raise TransactionStateError where they do not fit the state, which stays as it is, and
    FailedTransactionError with the failure that stands in the way.
    """

    def __init__(self, limits: TransactionLimits) -> None:
        self._course: Final = Course(limits)
        self._offsets: Operation | None = None

    @property
    def state(self) -> State:
        """Where it stands."""
        return self._course.state

    @property
    def version(self) -> int:
        """Of transactions, under the present identity: 1 or 2."""
        return self._course.version

    @property
    def identity(self) -> Identity | None:
        """None before the first InitProducerId was answered."""
        return self._course.identity

    @property
    def error(self) -> TransactionFailure | None:
        """Of the states ABORTABLE_ERROR and FATAL_ERROR."""
        return self._course.error

    @property
    def ongoing(self) -> bool:
        """From `begin` until the transaction has ended at its coordinator; not any more after a fatal error."""
        return self._course.state in _MAY_SEND | _MAY_SEND_AGAIN

    @property
    def invisible(self) -> tuple[Part, ...]:
        """Committed and not readable yet, as far as we know."""
        return self._course.visibility.parts

    # --- operations of the application -------------------------------------------------------------------------------

    def initialise(self) -> Operation:
        """Ask for the first identity, which fences whoever used the transactional id before."""
        course = self._course
        again = self._same(OperationKind.INITIALISE)
        if again is not None:
            return again
        course.raise_error()
        if course.state is not State.UNINITIALIZED:
            raise TransactionStateError("transactions are initialised already")
        course.pending = Operation(OperationKind.INITIALISE)
        course.initialise()
        return course.pending

    def begin(self) -> None:
        """Begin a transaction: nothing is asked before something belongs to it."""
        self._refuse_while_pending("begin_transaction")
        self._course.raise_error()
        self._course.call_moves_to(State.IN_TRANSACTION)

    def check_send(self) -> None:
        """May a record be sent now? Raises as any call. Reads only, so any thread may ask."""
        pending = self._course.pending
        if pending is None or not pending.done:
            # The caller of one that is done is about to hear of it: what stays after that is the reason.
            self._refuse_while_pending("send")
        self._course.raise_error()
        if self._course.state is not State.IN_TRANSACTION:
            raise TransactionStateError("records can be sent only in a transaction: call begin_transaction first")

    def send_offsets(self, offsets: Mapping[Part, OffsetToCommit], group: GroupMetadata) -> Operation:
        """Make a consumer's offsets part of the transaction. No offsets: done at once.

        Raises ValueError where a generation is given without the member.
        """
        if group.generation > 0 and not group.member_id:
            raise ValueError(f"generation {group.generation} of group {group.group} without a member id")
        self._refuse_while_pending("send_offsets_to_transaction")
        course = self._course
        course.raise_error()
        if course.state is not State.IN_TRANSACTION:
            raise TransactionStateError("offsets can be sent only in a transaction: call begin_transaction first")
        asked = (group, tuple(offsets.items()))
        if self._offsets is not None and not self._offsets.done and self._offsets.offsets == asked:
            return self._offsets
        operation = self._offsets = Operation(OperationKind.SEND_OFFSETS, asked)
        if not offsets:
            course.finish(operation)
            return operation
        assert course.identity is not None, "in a transaction without an identity"
        name = course.limits.transactional_id
        if course.version == 1:
            course.put(AddOffsets(name, course.identity, group.group), operation)
        else:
            course.put(CommitOffsets(name, course.identity, group, asked[1], course.version), operation)
        return operation

    def commit(self) -> Operation:
        """End the transaction well, once every record of it is acknowledged (`settled`)."""
        again = self._same(OperationKind.COMMIT)
        if again is not None:
            return again
        self._course.raise_error()
        return self._complete(OperationKind.COMMIT, State.COMMITTING)

    def abort(self) -> Operation:
        """End the transaction and let nobody read it. What was not added or not sent yet never is; the rest is waited for."""
        again = self._same(OperationKind.ABORT)
        if again is not None:
            return again
        course = self._course
        reason = course.error
        if course.state is not State.ABORTABLE_ERROR:
            course.raise_error()
            text = "the transaction was aborted by the application"
            reason = TransactionFailure(-1, "", text, FailureKind.ABORTED)
        assert reason is not None
        operation = self._complete(OperationKind.ABORT, State.ABORTING)
        course.contents.drop_wanted()
        for one in course.queue.drop(_pointless_while_aborting):
            course.give_up(one, reason)
        course.events.append(AbortUnsent(reason))
        return operation

    def _complete(self, kind: OperationKind, state: State) -> Operation:
        course = self._course
        if course.closed is not None:
            course.raise_error()
        course.call_moves_to(state)
        course.pending = Operation(kind)
        return course.pending

    def close(self, text: str) -> None:
        """Pending operations fail; nothing is asked any more. A commit whose end went out unanswered is told as such."""
        self._course.close(TransactionFailure(-1, "", text, FailureKind.CLOSED))

    def _same(self, kind: OperationKind) -> Operation | None:
        pending = self._course.pending
        if pending is None or pending.acknowledged:
            return None
        if pending.kind is not kind:
            self._refuse_while_pending(kind.value)
        return pending

    def _refuse_while_pending(self, call: str) -> None:
        pending = self._course.pending
        if pending is not None and not pending.acknowledged:
            raise TransactionStateError(
                f"{call} cannot be called now: {pending.kind.value} has not ended for its caller, and must be called again"
            )

    # --- told by the joined producer ---------------------------------------------------------------------------------

    def want(self, topic: str, index: int) -> None:
        """Records for the partition were submitted in this transaction. Saying it again changes nothing."""
        course = self._course
        if course.state not in _MAY_SEND:
            return
        if course.last_offsets is None:
            course.contents.want((topic, index))
        elif not course.contents.holds((topic, index)):
            self._lose_track(f"records for {topic}-{index} came after all were said to be settled")

    def may_send(self, topic: str, index: int) -> bool:
        """May batches of the partition go out (TRX-2)? Version 1: only when added. After an error: only what went out before, for
        which its being part of the transaction stands. Never while an earlier commit there is not visible (TRX-3)."""
        course = self._course
        part = (topic, index)
        if part in course.visibility or course.closed is not None:
            return False
        if course.state in _MAY_SEND:
            return course.version != 1 or course.contents.holds(part)
        return course.state in _MAY_SEND_AGAIN and course.contents.holds(part)

    def sent(self, topic: str, index: int) -> None:
        """A batch of the partition went out."""
        self._course.contents.send((topic, index))

    def failed(self, code: int, name: str, text: str, *, fatal: bool = False) -> None:
        """A record or batch of the transaction failed for good. `fatal`: the producer cannot go on, whatever the code."""
        course = self._course
        kind = FailureKind.FATAL if fatal else failure_of(Request.PRODUCE, code).kind
        failure = TransactionFailure(code, name, text, kind)
        if course.state is State.COMMITTING and course.last_offsets is not None:
            self._lose_track(f"a batch failed after all were said to be settled: {text}")
            return
        course.fail(failure)

    def _lose_track(self, text: str) -> None:
        self._course.fail(TransactionFailure(-1, "", f"lost track of the transaction: {text}", FailureKind.LOST_TRACK))

    def settled(self, last_offsets: Mapping[Part, int]) -> None:
        """Committing or aborting, and no batch is left whose outcome is open: EndTxn may go. `last_offsets`: of every partition
        that was written to, the offset of its last record."""
        if self._course.state in (State.COMMITTING, State.ABORTING):
            self._course.last_offsets = dict(last_offsets)

    # --- requests ----------------------------------------------------------------------------------------------------

    def features(self, transaction_version: int, *, offers_v2: bool) -> None:
        """What brokers told: the finalised level of `transaction.version` (-1: none), and whether all of them offer Produce 12 and
        EndTxn 5. The level alone is not enough: 3.9 can finalise 2 without those requests."""
        self._course.wanted_version = _TV2 if transaction_version >= _TV2 and offers_v2 else 1

    def next_ask(self, now: float) -> Ask | None:
        """What to send now. It stays in flight until it was answered, refused or lost."""
        course = self._course
        if course.in_flight is not None or course.closed is not None or course.state is State.FATAL_ERROR:
            return None
        self._gather(now)
        for waiting in list(course.queue):
            key = course.key_of(waiting.ask)
            if key is not None and key not in course.coordinators and now >= waiting.not_before:
                course.look_up(key)
        for waiting in course.queue:
            if now >= waiting.not_before and self._knows_target(waiting):
                return self._send(waiting)
        return None

    def _gather(self, now: float) -> None:
        course = self._course
        if course.state in _MAY_SEND:
            parts = course.contents.next_parts(frozenset(course.visibility.parts))
            if parts:
                assert course.identity is not None, "in a transaction without an identity"
                course.put(AddPartitions(course.limits.transactional_id, course.identity, parts))
        if course.may_end():
            course.end(now)

    def _knows_target(self, waiting: Queued) -> bool:
        key = self._course.key_of(waiting.ask)
        return key is None or key in self._course.coordinators

    def _send(self, queued: Queued) -> Ask:
        course = self._course
        course.queue.remove(queued)
        course.in_flight = queued
        queued.sent = True
        ask = queued.ask
        if isinstance(ask, EndTxn) and ask.commit:
            course.end_sent = True
        elif isinstance(ask, CommitOffsets) and ask.version != 1:
            # As with batches: the broker makes them part of the transaction when it sees them.
            course.contents.has_offsets = True
        return ask

    def target(self, ask: Ask) -> Coordinator | None:
        """The broker to send it to; None: any."""
        key = self._course.key_of(ask)
        return None if key is None else self._course.coordinators.get(key)

    def answered(self, ask: Ask, answer: Answer, *, now: float, chance: float) -> None:
        """The answer to what is in flight. `chance` in [0, 1)."""
        queued = self._landed(ask)
        if queued is not None:
            response_handlers.settle(self._course, queued, answer, now=now, chance=chance)

    def refused_version(self, ask: Ask, text: str) -> None:
        """The broker takes no version of the request that we may send (`versions`): fatal (TXS-6, TRX-10)."""
        queued = self._landed(ask)
        if queued is not None:
            response_handlers.refuse_version(self._course, queued, text)

    def lost(self, ask: Ask, *, now: float, chance: float) -> None:
        """It was not sent, or will not be answered: the coordinator is looked up again, then it goes out again."""
        queued = self._landed(ask)
        if queued is not None:
            response_handlers.lost(self._course, queued, now=now, chance=chance)

    def _landed(self, ask: Ask) -> Queued | None:
        course = self._course
        queued = course.in_flight
        if course.closed is not None or course.state is State.FATAL_ERROR:
            return None
        if queued is None or queued.ask != ask:
            self._lose_track(f"{type(ask).__name__} was answered, and is not what was asked")
            return None
        course.in_flight = None
        return queued

    # --- visibility --------------------------------------------------------------------------------------------------

    def take_looks(self, now: float) -> list[Look]:
        """What to ask leaders of partitions now. Each ends with `looked` or `look_lost`."""
        course = self._course
        if course.closed is not None:
            return []
        course.visibility.hanging(now, course.alarm)
        return course.visibility.take_looks(now)

    def looked(self, look: Look, answer: LookAnswer, *, now: float, chance: float) -> None:
        """A leader has answered."""
        course = self._course
        if course.visibility.answered(look, answer, now=now, chance=chance):
            course.events.append(PartitionsVisible((look.part,)))
            course.conclude()

    def look_lost(self, look: Look, *, now: float, chance: float) -> None:
        """No answer, or no leader is known."""
        self._course.visibility.lost(look, now=now, chance=chance)

    # --- for the shell -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `next_ask` or `take_looks` will have something, if nothing else happens."""
        course = self._course
        if course.closed is not None:
            return None
        looks = course.visibility.next_deadline()
        times = [] if looks is None else [looks]
        if course.in_flight is None:
            times += [waiting.not_before for waiting in course.queue if self._moves(waiting)]
        return min(times, default=None)

    def _moves(self, waiting: Queued) -> bool:
        """It does not wait for a coordinator that is being looked up."""
        course = self._course
        key = course.key_of(waiting.ask)
        return key is None or key in course.coordinators or not course.looks_up(key)

    def take_events(self) -> list[Event]:
        """What has happened since the last call, in order."""
        events = list(self._course.events)
        self._course.events.clear()
        return events


def _pointless_while_aborting(one: Queued) -> bool:
    """Additions that never went out, and offsets that nobody will read. What may have been added is asked again until that is
    known."""
    return isinstance(one.ask, CommitOffsets) or (isinstance(one.ask, AddPartitions | AddOffsets) and not one.sent)
