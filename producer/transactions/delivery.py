"""`Joined` with a transactional id: one identity for all partitions, and records that count only together.

What the transaction manager allows decides what is sent (TRX-2). Nothing is looked into where a single partition would go on
alone: what is refused, expired or in doubt is told to the manager, and the transaction can only be aborted. Then what was never
sent is left out, and what was sent is sent on until it is answered (TRX-4). There are no ghosts: nobody reads an aborted record.
"""

from collections.abc import Callable
from typing import Final

from ...wire.messages import DoneItem, Gap, Halt, Refused, SliceRef, Unreadable
from ..accumulator.partition_queue import BatchRules
from ..accumulator.slice_accumulator import Accumulator
from ..delivery.in_process import Joined, JoinedLimits
from ..delivery.outcomes import Delivered, Failure, Kind
from ..delivery.partition_state import Partition
from ..delivery.record_errors import Refusal, refusals_of
from ..metadata.cluster import Cluster, ClusterChange
from ..protocol.error_codes import NONE, error_name
from .manager import TransactionManager
from .operations import (
    AbortUnsent,
    Alarm,
    Ended,
    Event,
    Fatal,
    Finished,
    NewIdentity,
    PartitionsAdded,
    PartitionsVisible,
)
from .requests import Part
from .states import FailureKind, State, TransactionFailure

_ENDING: Final = frozenset({State.COMMITTING, State.ABORTING})
_TAKING: Final = frozenset({State.IN_TRANSACTION, State.COMMITTING})
"""States in which records are submitted to be sent."""
_EXPIRED: Final = "DELIVERY_TIMEOUT"
_TOPIC_AGAIN: Final = 100
_ABORTED: Final = Failure(Kind.ABORTED, -1, "TRANSACTION_ABORTED", "the transaction was aborted before this was sent")


class TransactionalJoined(Joined):
    """See the module. `told` has what the shell is to hear of: operations that ended, and alarms."""

    def __init__(
        self,
        limits: JoinedLimits,
        accumulator: Accumulator,
        rules_of: Callable[[str], BatchRules],
        manager: TransactionManager,
        *,
        trouble_with: Callable[[int], str | None],
    ) -> None:
        super().__init__(limits, accumulator, rules_of, trouble_with=trouble_with, gate=self._may_grant)
        self.manager: Final = manager
        self.told: list[Finished | Alarm] = []
        self._gated: dict[Partition, list[SliceRef]] = {}
        """Slices of partitions that are held, and wait for the gate."""
        self._stale: set[Partition] = set()
        """Held, with a hole that their leases do not know of: they come back before the next transaction."""
        self._last: dict[Part, int] = {}
        """Offset of the last record of this transaction, by partition."""
        self.table.on_depart = self._departing

    @property
    def version(self) -> int:
        """Of transactions under the identity in force; 0: there is none yet."""
        return self.table.limits.transactions

    @property
    def completing(self) -> bool:
        """As `Joined`."""
        return self.manager.state in _ENDING

    # --- the gate ----------------------------------------------------------------------------------------------------

    def _may_grant(self, part: Partition) -> bool:
        if not self.manager.may_send(part.topic, part.index):
            return False
        _ = self._gated.pop(part, None)
        return True

    def _pass_on(self, part: Partition, ref: SliceRef, now: float) -> None:
        state = self.manager.state
        if state not in _TAKING:
            self._leave_unsent(part, self._reason(), now)
            return
        self.manager.want(part.topic, part.index)
        if part.held and (part in self._gated or not self.manager.may_send(part.topic, part.index)):
            self._gated.setdefault(part, []).append(ref)
            return
        super()._pass_on(part, ref, now)

    def _let_in(self, parts: tuple[Part, ...], now: float) -> None:
        for topic, index in parts:
            part = self._placing.partition(topic, index)
            if not self.manager.may_send(topic, index):
                # Added and visible: both, in whatever order.
                continue
            for ref in self._gated.pop(part, []):
                self.table.hand(ref, now=now)
            self._placing.reconsider(part)

    def _departing(self, number: int) -> None:
        part = self._placing.partitions[number]
        self.manager.sent(part.topic, part.index)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def upkeep(self, *, now: float) -> None:
        """As `Joined`; then what the manager has decided is done."""
        self._placing.flushing = self.completing or self._close_at is not None
        super().upkeep(now=now)
        self.hear(now=now)

    def hear(self, *, now: float) -> bool:
        """Do what the manager has decided, and tell it when nothing is left open. True: there was something."""
        heard = False
        while True:
            if self.manager.state in _ENDING and not self._open and self.failure is None:
                self.manager.settled(dict(self._last))
            events = self.manager.take_events()
            if not events:
                break
            heard = True
            for event in events:
                self._do(event, now)
        self._placing.flushing = self.completing or self._close_at is not None
        if heard and self._placing.has_work:
            self._placing.place(now)
        return heard

    def _do(self, event: Event, now: float) -> None:
        match event:
            case NewIdentity(producer_id, epoch, version):
                self.table.limits = self.table.limits._replace(transactions=version)
                self._stale.clear()
                self._gated.clear()
                self._placing.identity_known(producer_id, epoch, now)
            case PartitionsAdded(parts) | PartitionsVisible(parts):
                self._let_in(parts, now)
            case AbortUnsent(failure):
                for part in sorted(self._open, key=lambda one: one.number):
                    self._leave_unsent(part, _outcome_of(failure), now)
            case Ended():
                self._last.clear()
                for part in self._stale:
                    self._placing.recall(part, now)
                self._stale.clear()
            case Fatal(failure):
                self.abort(_outcome_of(failure), now=now)
            case Finished() | Alarm():
                self.told.append(event)

    def take_told(self) -> list[Finished | Alarm]:
        """What the shell is to hear of since the last call."""
        if not self.told:
            return []
        taken, self.told = self.told, []
        return taken

    def cluster_changed(self, cluster: Cluster, change: ClusterChange, *, now: float) -> None:
        """As `Joined`. What may be in the log of a topic that was made again is in a transaction that nobody can commit."""
        super().cluster_changed(cluster, change, now=now)
        for part in [one for one in self._placing.blocked if one.wants_id]:
            part.wants_id = False
            self._placing.unblock(part)
            text = f"{part.topic} was deleted and made again while records of the transaction were on their way"
            self._break(part, [], _TOPIC_AGAIN, error_name(_TOPIC_AGAIN), text, now)
        self.hear(now=now)

    def topics_in_use(self) -> set[str]:
        """As `Joined`, and those whose leaders are asked whether a commit is visible."""
        return super().topics_in_use() | {topic for topic, _ in self.manager.invisible}

    def abort(self, failure: Failure, *, now: float) -> None:
        """Everything left fails. Nothing of it was committed: that is asked for only when all is answered."""
        if failure.kind is Kind.CLOSED:
            failure = failure._replace(message="the producer was closed before the record's transaction was committed")
        if self.failure is None:
            self.failure = failure
        for part in sorted(self._open, key=lambda one: one.number):
            self._placing.recall(part, now)
            self._fail(part, [(part.mark, part.end)], failure)
        self._placing.blocked.clear()
        self._gated.clear()

    # --- what leases say ---------------------------------------------------------------------------------------------

    def _done(self, item: DoneItem, now: float) -> None:
        had = len(self._outcomes)
        super()._done(item, now)
        for told in self._outcomes[had:]:
            if isinstance(told, Delivered):
                place = self.topic_of(told.partition)
                last = self._last.get(place, -1)
                # Some brokers do not tell where a batch is that they had before; it lies behind what came before it.
                end = told.base_offset + told.count - 1 if told.base_offset >= 0 else last + told.count
                self._last[place] = max(last, end)

    def _stuck(self, part: Partition, message: Refused | Gap | Halt | Unreadable, now: float) -> None:
        match message:
            case Refused():
                # Whether an earlier attempt wrote it makes no difference: it is aborted.
                told = message._replace(ambiguous=False)
                refusals = refusals_of(told, topic=part.topic, index=part.index, whole=True)
                self._break(part, refusals, message.code, error_name(message.code), refusals[0].failure.message, now)
            case Halt():
                name = error_name(message.code) if message.code not in (NONE, -1) else ""
                self._break(part, [], message.code or -1, name, message.message, now)
            case Gap():
                raise AssertionError(f"a gap was looked for in a transaction: {message.error}")
            case Unreadable():
                super()._stuck(part, message, now)

    def _expire(self, part: Partition, end: int, now: float) -> None:
        sent = self._expiry.failure_of(part, sent=True)
        never = self._expiry.failure_of(part, sent=False)._replace(kind=Kind.EXPIRED)
        self._placing.recall(part, now)
        middle = min(max(part.sent_to, part.mark), end)
        text = f"{sent.message}; its transaction can only be aborted"
        spans = [((part.mark, middle), sent._replace(kind=Kind.EXPIRED, message=text)), ((middle, end), never)]
        refusals = [Refusal(span, failure) for span, failure in spans if span[0] < span[1]]
        part.expired_to = end
        self._break(part, refusals, -1, _EXPIRED, refusals[0].failure.message if refusals else text, now)

    def _break(self, part: Partition, refusals: list[Refusal], code: int, name: str, text: str, now: float) -> None:
        """A batch of the partition will not be written, so none behind it can be: all of them fail, and the transaction with
        them. Without `refusals` the oldest batch is the one."""
        self._placing.recall(part, now)
        where = text if text.startswith(f"{part.topic}-") else f"{part.topic}-{part.index}: {text}"
        self.manager.failed(code, name, where)
        if self.manager.state is not State.FATAL_ERROR:
            if not refusals and part.cuts:
                oldest = part.cuts[0]
                span = (part.mark, oldest.first + oldest.count)
                refusals = [Refusal(span, Failure(Kind.REFUSED, code, name or "refused", where))]
            for refusal in refusals:
                self._fail(part, [refusal.span], refusal.failure)
            self._fail(part, [(part.mark, part.end)], self._reason())
        _ = self._gated.pop(part, None)
        self.hear(now=now)

    def _leave_unsent(self, part: Partition, failure: Failure, now: float) -> None:
        """What was never sent is left out; what was sent stays as it is."""
        lease = self.table.leases.get(part.number)
        if lease is not None and lease.unresolved:
            sent_to = lease.unresolved[-1].end
            self.table.leave_out(part.number, part.end, now=now)
            self._stale.add(part)
        else:
            self._placing.recall(part, now)
            sent_to = part.sent_to
        _ = self._gated.pop(part, None)
        if sent_to < part.end:
            part.skip([(sent_to, part.end)], sent_to)
            self._fail(part, [(sent_to, part.end)], failure)

    def _reason(self) -> Failure:
        """Why records of this transaction fail that nothing is wrong with."""
        return _ABORTED if self.manager.error is None else _outcome_of(self.manager.error)


def _outcome_of(failure: TransactionFailure) -> Failure:
    """The manager's failure, as what becomes of records."""
    name = failure.name or "TRANSACTION_ABORTED"
    match failure.kind:
        case FailureKind.FENCED:
            return Failure(Kind.FENCED, failure.code, name, failure.text)
        case FailureKind.FATAL | FailureKind.UNTOLD | FailureKind.LOST_TRACK:
            return Failure(Kind.FATAL, failure.code, name, failure.text)
        case FailureKind.CLOSED:
            return Failure(Kind.CLOSED, failure.code, name, failure.text)
        case FailureKind.ABORTED:
            return _ABORTED
        case FailureKind.ABORTABLE | FailureKind.COMMIT_FAILED | FailureKind.REFUSED:
            text = f"the transaction can only be aborted: {failure.text}"
            return Failure(Kind.ABORTED, failure.code, name, text)
