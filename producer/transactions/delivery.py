"""`InProcessDelivery` with a transactional id: one identity for all partitions, and records visible only together.

The transaction manager decides what may be sent (TRX-2). A refused, expired or doubtful batch is not investigated, as
it is without transactions, but reported to the manager; the transaction can then only be aborted. Records never sent
are dropped, and batches already sent are retried until they are answered (TRX-4). There are no in-doubt records
(expired but still sent), because consumers never read an aborted record.
"""

from collections.abc import Callable
from typing import Final

from ...wire.messages import BatchRefused, DoneBatch, PartitionHalted, ProbeRefused, SliceRef, SliceUnreadable
from ..accumulator.partition_queue import BatchRules
from ..accumulator.slice_accumulator import SliceAccumulator
from ..delivery.in_process import InProcessDelivery, InProcessDeliveryLimits
from ..delivery.outcomes import Delivered, DeliveryFailure, DeliveryFailureKind
from ..delivery.partition_state import PartitionState
from ..delivery.record_errors import RecordRefusal, record_refusals
from ..metadata.cluster import Cluster, ClusterChange
from ..protocol.error_codes import NONE, error_name
from .manager import TransactionManager
from .operations import (
    AbortUnsent,
    OperationFinished,
    PartitionsAdded,
    PartitionsVisible,
    ProducerIdChanged,
    TransactionAlarm,
    TransactionEnded,
    TransactionEvent,
    TransactionFatal,
)
from .requests import PartitionKey
from .states import FailureKind, TransactionFailure, TransactionManagerState

_ENDING: Final = frozenset({TransactionManagerState.COMMITTING, TransactionManagerState.ABORTING})
_ACCEPTING: Final = frozenset({TransactionManagerState.IN_TRANSACTION, TransactionManagerState.COMMITTING})
"""States in which submitted records are sent."""
_EXPIRED: Final = "DELIVERY_TIMEOUT"
_UNKNOWN_TOPIC_ID: Final = 100
_ABORTED: Final = DeliveryFailure(
    DeliveryFailureKind.ABORTED, -1, "TRANSACTION_ABORTED", "the transaction was aborted before this was sent"
)


class TransactionalDelivery(InProcessDelivery):
    """See the module docstring. `notifications` collects finished operations and alarms for the shell."""

    def __init__(
        self,
        limits: InProcessDeliveryLimits,
        accumulator: SliceAccumulator,
        rules_of: Callable[[str], BatchRules],
        manager: TransactionManager,
        *,
        trouble_with: Callable[[int], str | None],
    ) -> None:
        super().__init__(limits, accumulator, rules_of, trouble_with=trouble_with, gate=self._may_grant)
        self.manager: Final = manager
        self.notifications: list[OperationFinished | TransactionAlarm] = []
        self._gated: dict[PartitionState, list[SliceRef]] = {}
        """Slices of granted partitions that wait until the manager allows sending."""
        self._recall_at_end: set[PartitionState] = set()
        """Granted partitions with a gap unknown to their lease. They are revoked before the next transaction."""
        self._last_offsets: dict[PartitionKey, int] = {}
        """Offset of the last record of this transaction, by partition."""
        self.table.on_send = self._batch_sent

    @property
    def version(self) -> int:
        """The version of transactions under the current identity; 0: there is no identity yet."""
        return self.table.limits.transaction_version

    @property
    def completing(self) -> bool:
        """As `InProcessDelivery`."""
        return self.manager.state in _ENDING

    # --- the gate ----------------------------------------------------------------------------------------------------

    def _may_grant(self, part: PartitionState) -> bool:
        if not self.manager.may_send(part.topic, part.index):
            return False
        _ = self._gated.pop(part, None)
        return True

    def _hand_over(self, part: PartitionState, ref: SliceRef, now: float) -> None:
        state = self.manager.state
        if state not in _ACCEPTING:
            self._fail_unsent(part, self._abort_reason(), now)
            return
        self.manager.maybe_add_partition(part.topic, part.index)
        if part.granted and (part in self._gated or not self.manager.may_send(part.topic, part.index)):
            self._gated.setdefault(part, []).append(ref)
            return
        super()._hand_over(part, ref, now)

    def _release_gated(self, parts: tuple[PartitionKey, ...], now: float) -> None:
        for topic, index in parts:
            part = self._assigner.partition(topic, index)
            if not self.manager.may_send(topic, index):
                # A partition must be both added and visible; the two events come in either order.
                continue
            for ref in self._gated.pop(part, []):
                self.table.add_slice(ref, now=now)
            self._assigner.reconsider(part)

    def _batch_sent(self, number: int) -> None:
        part = self._assigner.partitions[number]
        self.manager.batch_sent(part.topic, part.index)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def upkeep(self, *, now: float) -> None:
        """As `InProcessDelivery`; then apply the manager's events."""
        self._assigner.flushing = self.completing or self._close_at is not None
        super().upkeep(now=now)
        self.process_events(now=now)

    def process_events(self, *, now: float) -> bool:
        """Apply the manager's events and report when no batch is outstanding. Returns whether there were events."""
        heard = False
        while True:
            if self.manager.state in _ENDING and not self._open and self.failure is None:
                self.manager.batches_completed(dict(self._last_offsets))
            events = self.manager.take_events()
            if not events:
                break
            heard = True
            for event in events:
                self._apply_event(event, now)
        self._assigner.flushing = self.completing or self._close_at is not None
        if heard and self._assigner.has_work:
            self._assigner.grant_pending(now)
        return heard

    def _apply_event(self, event: TransactionEvent, now: float) -> None:
        match event:
            case ProducerIdChanged(producer_id, epoch, version):
                self.table.limits = self.table.limits._replace(transaction_version=version)
                self._recall_at_end.clear()
                self._gated.clear()
                self._assigner.transactional_id_initialized(producer_id, epoch, now)
            case PartitionsAdded(parts) | PartitionsVisible(parts):
                self._release_gated(parts, now)
            case AbortUnsent(failure):
                for part in sorted(self._open, key=lambda one: one.number):
                    self._fail_unsent(part, _record_failure(failure), now)
            case TransactionEnded():
                self._last_offsets.clear()
                for part in self._recall_at_end:
                    self._assigner.revoke(part, now)
                self._recall_at_end.clear()
            case TransactionFatal(failure):
                self.abort(_record_failure(failure), now=now)
            case OperationFinished() | TransactionAlarm():
                self.notifications.append(event)

    def take_notifications(self) -> list[OperationFinished | TransactionAlarm]:
        """Return the notifications since the last call."""
        if not self.notifications:
            return []
        taken, self.notifications = self.notifications, []
        return taken

    def cluster_changed(self, cluster: Cluster, change: ClusterChange, *, now: float) -> None:
        """As `InProcessDelivery`. If a topic was recreated, records that may be in its log belong to a transaction that
        cannot be committed."""
        super().cluster_changed(cluster, change, now=now)
        for part in [one for one in self._assigner.blocked if one.needs_producer_id]:
            part.needs_producer_id = False
            self._assigner.unblock(part)
            text = f"{part.topic} was deleted and made again while records of the transaction were on their way"
            self._fail_partition(part, [], _UNKNOWN_TOPIC_ID, error_name(_UNKNOWN_TOPIC_ID), text, now)
        self.process_events(now=now)

    def topics_in_use(self) -> set[str]:
        """As `InProcessDelivery`, plus the topics whose leaders must answer visibility checks."""
        return super().topics_in_use() | {topic for topic, _ in self.manager.awaiting_visibility}

    def abort(self, failure: DeliveryFailure, *, now: float) -> None:
        """Fail all outstanding records. None was committed: a commit is requested only when all are acknowledged."""
        if failure.kind is DeliveryFailureKind.CLOSED:
            failure = failure._replace(message="the producer was closed before the record's transaction was committed")
        if self.failure is None:
            self.failure = failure
        for part in sorted(self._open, key=lambda one: one.number):
            self._assigner.revoke(part, now)
            self._fail(part, [(part.ack_mark, part.end)], failure)
        self._assigner.blocked.clear()
        self._gated.clear()

    # --- reports from leases -----------------------------------------------------------------------------------------

    def _done(self, item: DoneBatch, now: float) -> None:
        had = len(self._outcomes)
        super()._done(item, now)
        for told in self._outcomes[had:]:
            if isinstance(told, Delivered):
                place = self.topic_of(told.partition)
                last = self._last_offsets.get(place, -1)
                # Some brokers omit the offset of a duplicate batch; it follows the batch before it.
                end = told.base_offset + told.count - 1 if told.base_offset >= 0 else last + told.count
                self._last_offsets[place] = max(last, end)

    def _resolve_held(
        self, part: PartitionState, message: BatchRefused | ProbeRefused | PartitionHalted | SliceUnreadable, now: float
    ) -> None:
        match message:
            case BatchRefused():
                # It makes no difference whether an earlier attempt wrote the batch: it is aborted.
                told = message._replace(ambiguous=False)
                refusals = record_refusals(told, topic=part.topic, index=part.index, whole=True)
                self._fail_partition(
                    part, refusals, message.code, error_name(message.code), refusals[0].failure.message, now
                )
            case PartitionHalted():
                name = error_name(message.code) if message.code not in (NONE, -1) else ""
                self._fail_partition(part, [], message.code or -1, name, message.message, now)
            case ProbeRefused():
                raise AssertionError(f"a gap was looked for in a transaction: {message.error}")
            case SliceUnreadable():
                super()._resolve_held(part, message, now)

    def _expire(self, part: PartitionState, end: int, now: float) -> None:
        sent = self._delivery_timeout.failure_of(part, sent=True)
        never = self._delivery_timeout.failure_of(part, sent=False)._replace(kind=DeliveryFailureKind.EXPIRED)
        self._assigner.revoke(part, now)
        middle = min(max(part.sent_to, part.ack_mark), end)
        text = f"{sent.message}; its transaction can only be aborted"
        spans = [
            ((part.ack_mark, middle), sent._replace(kind=DeliveryFailureKind.EXPIRED, message=text)),
            ((middle, end), never),
        ]
        refusals = [RecordRefusal(span, failure) for span, failure in spans if span[0] < span[1]]
        part.expired_to = end
        self._fail_partition(part, refusals, -1, _EXPIRED, refusals[0].failure.message if refusals else text, now)

    def _fail_partition(
        self, part: PartitionState, refusals: list[RecordRefusal], code: int, name: str, text: str, now: float
    ) -> None:
        """Fail a partition and its transaction: a batch will not be written, so no later one can be. Without `refusals`
        the oldest batch is the one that failed."""
        self._assigner.revoke(part, now)
        where = text if text.startswith(f"{part.topic}-") else f"{part.topic}-{part.index}: {text}"
        self.manager.batch_failed(code, name, where)
        if self.manager.state is not TransactionManagerState.FATAL_ERROR:
            if not refusals and part.cuts:
                oldest = part.cuts[0]
                span = (part.ack_mark, oldest.first + oldest.count)
                refusals = [
                    RecordRefusal(span, DeliveryFailure(DeliveryFailureKind.REFUSED, code, name or "refused", where))
                ]
            for refusal in refusals:
                self._fail(part, [refusal.span], refusal.failure)
            self._fail(part, [(part.ack_mark, part.end)], self._abort_reason())
        _ = self._gated.pop(part, None)
        self.process_events(now=now)

    def _fail_unsent(self, part: PartitionState, failure: DeliveryFailure, now: float) -> None:
        """Drop records never sent; batches already sent stay in flight."""
        lease = self.table.partitions.get(part.number)
        if lease is not None and lease.unresolved:
            sent_to = lease.unresolved[-1].end
            self.table.skip_unsent(part.number, part.end, now=now)
            self._recall_at_end.add(part)
        else:
            self._assigner.revoke(part, now)
            sent_to = part.sent_to
        _ = self._gated.pop(part, None)
        if sent_to < part.end:
            part.skip([(sent_to, part.end)], sent_to)
            self._fail(part, [(sent_to, part.end)], failure)

    def _abort_reason(self) -> DeliveryFailure:
        """The failure of records that are dropped only because their transaction is aborted."""
        return _ABORTED if self.manager.error is None else _record_failure(self.manager.error)


def _record_failure(failure: TransactionFailure) -> DeliveryFailure:
    """Convert the manager's failure to a failure of records."""
    name = failure.name or "TRANSACTION_ABORTED"
    match failure.kind:
        case FailureKind.FENCED:
            return DeliveryFailure(DeliveryFailureKind.FENCED, failure.code, name, failure.text)
        case FailureKind.FATAL | FailureKind.OUTCOME_UNKNOWN | FailureKind.ILLEGAL_STATE:
            return DeliveryFailure(DeliveryFailureKind.FATAL, failure.code, name, failure.text)
        case FailureKind.CLOSED:
            return DeliveryFailure(DeliveryFailureKind.CLOSED, failure.code, name, failure.text)
        case FailureKind.ABORTED:
            return _ABORTED
        case FailureKind.ABORTABLE | FailureKind.COMMIT_FAILED | FailureKind.UNAUTHORIZED:
            text = f"the transaction can only be aborted: {failure.text}"
            return DeliveryFailure(DeliveryFailureKind.ABORTED, failure.code, name, text)
