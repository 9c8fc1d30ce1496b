"""In-process replacement for the router: grants the leases of one `PartitionTable` and processes its messages.

Messages become outcomes (`BatchesDone`, `BatchRefused`), leader updates (`NewLeaderHint`), gap checks (`ProbeRefused`)
and retries after a backoff (`PartitionHalted`)."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ...wire.messages import (
    FIRST,
    OPEN,
    Anchor,
    BatchesDone,
    BatchRefused,
    DoneBatch,
    FlushPartitions,
    NewLeaderHint,
    Pace,
    PartitionHalted,
    ProbeRefused,
    Revoked,
    ShardMessage,
    SliceRef,
    SliceUnreadable,
)
from ..accumulator.batch import UnboundedJournal
from ..accumulator.partition_queue import BatchRules
from ..accumulator.slice_accumulator import SliceAccumulator
from ..metadata.cluster import Cluster, ClusterChange
from ..protocol.error_codes import CLUSTER_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION, error_name
from ..records.sequence_ranges import OrdinalRange, merge_ranges, subtract_ranges
from ..sender.modes import SendLimits
from ..sender.partitions import CreditRule, PartitionTable
from .assignment import PartitionAlarm, PartitionAssigner
from .deadlines import DeliveryDeadlines
from .delivery_timeout import DeliveryTimeout, attempts_of
from .gap_confirmation import GapConfirmation, LeaderUpdate
from .outcomes import DeliveryFailure, DeliveryFailureKind, DeliveryOutcome
from .partition_state import PartitionState
from .record_errors import record_refusals

_NO_CREDIT: Final = CreditRule(1, 1)
"""No flow control: slices in this process's own memory go to the lease table immediately."""
_PACE_AGAIN_S: Final = 60.0
_FATAL: Final = frozenset({UNSUPPORTED_VERSION, CLUSTER_AUTHORIZATION_FAILED})
_CLOSED: Final = DeliveryFailure(
    DeliveryFailureKind.CLOSED, -1, "PRODUCER_CLOSED", "the producer was closed before this was sent"
)


class InProcessDeliveryLimits(NamedTuple):
    """Limits of a producer in one process. `buffer_bytes`: memory for the encoded batches of all nodes."""

    send_limits: SendLimits
    delivery_timeout_s: float
    buffer_bytes: int
    idempotent: bool = True


class InProcessDelivery:
    """Partition states, grants and outcomes over one `PartitionTable`. The caller must keep `table.wall` set.

    `trouble_with` returns why a node cannot be sent requests, or None if it can; only expiry messages use it."""

    def __init__(
        self,
        limits: InProcessDeliveryLimits,
        accumulator: SliceAccumulator,
        rules_of: Callable[[str], BatchRules],
        *,
        trouble_with: Callable[[int], str | None],
        gate: Callable[[PartitionState], bool] | None = None,
    ) -> None:
        """`gate`: see `PartitionAssigner`."""
        self.limits: Final = limits
        self.table: Final = PartitionTable(limits.send_limits, accumulator, rules_of, _NO_CREDIT)
        self.journal: Final = UnboundedJournal()
        self.failure: DeliveryFailure | None = None
        """Set by `abort`: all later records fail with it."""
        self._assigner: Final = PartitionAssigner(
            self.table, limits.buffer_bytes, self._process_outbox, idempotent=limits.idempotent, gate=gate
        )
        self._open: set[PartitionState] = set()
        self._deadlines: Final = DeliveryDeadlines(limits.delivery_timeout_s)
        self._outcomes: Final[list[DeliveryOutcome]] = []
        self._hints: Final[list[LeaderUpdate]] = []
        self._close_at: float | None = None
        self._with_in_doubt: set[PartitionState] = set()
        self._undecided: Final[deque[BatchRefused | ProbeRefused | PartitionHalted | SliceUnreadable]] = deque()
        """Messages whose leases wait for a decision, in order of arrival."""
        self._gap_confirmation: Final = GapConfirmation(self.table, self._assigner, self._hints)
        self._delivery_timeout: Final = DeliveryTimeout(
            self.table,
            self._assigner,
            self._gap_confirmation,
            self._fail,
            self._outcomes,
            timeout_s=limits.delivery_timeout_s,
            trouble_with=trouble_with,
        )

    def number_of(self, topic: str, index: int) -> int:
        """The partition's number, assigned on first use."""
        return self._assigner.partition(topic, index).number

    def topic_of(self, number: int) -> tuple[str, int]:
        """Topic and index of a partition number."""
        found = self._assigner.partitions[number]
        return found.topic, found.index

    @property
    def partitions(self) -> Sequence[PartitionState]:
        """All partitions, by number."""
        return self._assigner.partitions

    def submit(
        self,
        partition: int,
        segment: int,
        length: int,
        first: int,
        count: int,
        created_ms: int,
        max_ts: int,
        *,
        now: float,
    ) -> None:
        """Add a sealed chunk created at `created_ms` (CLOCK_MONOTONIC). `first` must be the previous chunk's end."""
        part = self._assigner.partitions[partition]
        ref = SliceRef(partition, part.generation, segment, 0, length, first, count, created_ms, max_ts)
        part.submit(ref)
        self._open.add(part)
        if self.failure is not None:
            self._fail(part, [(part.ack_mark, part.end)], self.failure)
            return
        self._deadlines.watch(part)
        self._hand_over(part, ref, now)

    def _hand_over(self, part: PartitionState, ref: SliceRef, now: float) -> None:
        if part.granted:
            self.table.add_slice(ref, now=now)
        else:
            self._assigner.reconsider(part)

    @property
    def wants_producer_id(self) -> bool:
        """Whether to request a producer id: the first one, or one for a partition whose epochs are used up."""
        return self.failure is None and self._assigner.wants_producer_id

    def producer_id_known(self, producer_id: int, epoch: int, *, now: float) -> None:
        """Use a producer id that a broker assigned. New ids start at epoch 0."""
        assert epoch == 0, f"a new producer id with epoch {epoch}"
        self._assigner.producer_id_known(producer_id)
        self._assigner.grant_pending(now)

    def producer_id_refused(self, code: int) -> None:
        """The broker denied a producer id: fail the records that wait for it. The request is retried (IDM-1)."""
        name = error_name(code)
        text = f"{name}: no producer id was given; the producer goes on asking"
        for part in [one for one in self._open if not one.rows]:
            self._fail(
                part, [(part.ack_mark, part.end)], DeliveryFailure(DeliveryFailureKind.REFUSED, code, name, text)
            )

    def cluster_changed(self, cluster: Cluster, change: ClusterChange, *, now: float) -> None:
        """Apply new metadata. If nodes changed, the caller must update the connections from `table.nodes`."""
        self._assigner.cluster_changed(cluster, change, now)
        self._assigner.grant_pending(now)

    def flush(self, *, now: float, nodes: frozenset[int] | None = None) -> None:
        """Send all submitted records without linger. `nodes`: only partitions led by these nodes."""
        through = [(part.number, part.end - 1) for part in self._open if nodes is None or part.leader in nodes]
        if through:
            self.table.apply(FlushPartitions(through), now=now)

    def close(self, deadline: float, *, now: float) -> None:
        """Flush; at `deadline`, or once only in-doubt records are left, fail everything unresolved."""
        self._close_at = deadline
        self._assigner.flushing = True
        self.flush(now=now)

    def abort(self, failure: DeliveryFailure, *, now: float) -> None:
        """Fail all unresolved and later records; those that may be in the log fail as MAY_BE_WRITTEN."""
        if self.failure is None:
            self.failure = failure
        unsure = failure._replace(
            kind=DeliveryFailureKind.MAY_BE_WRITTEN, message=f"{failure.message}; it may have been written"
        )
        for part in sorted(self._open, key=lambda one: one.number):
            ends = [cut.first + cut.count for cut in part.cuts]
            lease = self.table.partitions.get(part.number)
            if lease is not None:
                ends = [one.end for one in lease.unresolved if one.request_number or one.in_doubt]
                self._assigner.revoke(part, now)
            self._fail(part, [(part.ack_mark, max([part.ack_mark, part.in_doubt_to, *ends]))], unsure)
            self._fail(part, [(part.ack_mark, part.end)], failure)
        self._assigner.blocked.clear()

    def upkeep(self, *, now: float) -> None:
        """Process the lease table's messages, then timeouts. Call it before sending: expired records are not sent."""
        self._process_outbox(now)
        self._decide(now)
        for part in self._deadlines.expired(now):
            self._expire(part, self._deadlines.end_of(part, now), now)
            self._deadlines.watch(part)
        if self._with_in_doubt:
            self._with_in_doubt = {part for part in self._with_in_doubt if part.in_doubt}
            for part in self._with_in_doubt:
                self._abandon_if_unanswerable(part, now)
        self._gap_confirmation.advance(now)
        placing = self._assigner
        if placing.blocked:
            for part in [one for one in placing.blocked if one.retry_at is not None and now >= one.retry_at]:
                placing.unblock(part)
        if placing.has_work:
            placing.grant_pending(now)
        if self._close_at is not None and self._open and (now >= self._close_at or self._has_only_in_doubt()):
            self.abort(_CLOSED, now=now)

    def _expire(self, part: PartitionState, end: int, now: float) -> None:
        if self.limits.idempotent:
            self._delivery_timeout.expire(part, end, now)
            self._with_in_doubt.add(part)
        else:
            self._delivery_timeout.expire_at_least_once(part, end, now)

    def next_deadline(self, now: float) -> float | None:
        """When to call `upkeep` again; `now` or earlier: immediately."""
        if (
            self._assigner.has_work
            or self.table.outbox.has_messages
            or self._undecided
            or self.table.replica_queries.has_answers
        ):
            return now
        wanted = [self._deadlines.next_deadline(), self._close_at if self._open else None]
        if self._assigner.blocked:
            wanted += [part.retry_at for part in self._assigner.blocked]
        wanted.append(self._gap_confirmation.next_deadline())
        return min((at for at in wanted if at is not None), default=None)

    def take_outcomes(self) -> list[DeliveryOutcome]:
        """Outcomes since the last call."""
        if not self._outcomes:
            return []
        taken = list(self._outcomes)
        self._outcomes.clear()
        return taken

    def take_hints(self) -> list[LeaderUpdate]:
        """Leader updates from responses since the last call."""
        if not self._hints:
            return []
        taken = list(self._hints)
        self._hints.clear()
        return taken

    def take_alarms(self) -> list[PartitionAlarm]:
        """Alarms for the log since the last call."""
        taken, self._assigner.alarms = self._assigner.alarms, []
        return taken

    def _has_only_in_doubt(self) -> bool:
        """Whether every unresolved record is in doubt: its future has failed already, so no caller waits for it."""
        return not any(
            subtract_ranges((part.ack_mark, part.end), merge_ranges([*part.in_doubt, *part.holes]))
            for part in self._open
        )

    @property
    def idle(self) -> bool:
        """Whether no record is unresolved, in-doubt ones included."""
        return not self._open

    @property
    def completing(self) -> bool:
        """Whether a transaction is ending, so that records must not linger. Always False without transactions."""
        return False

    def topics_in_use(self) -> set[str]:
        """Topics with unresolved records."""
        return {part.topic for part in self._open}

    def _process_outbox(self, now: float) -> None:
        """Apply facts in order; defer decisions, because a revoke must not overtake messages already in the outbox."""
        for said in self.table.outbox.take():
            match said.message:
                case BatchRefused() if not self.limits.idempotent:
                    part = self._assigner.partitions[said.message.partition]
                    if part.granted and part.generation == said.message.generation:
                        self._refused(part, said.message, now)
                case BatchRefused() | ProbeRefused() | PartitionHalted() | SliceUnreadable():
                    self._undecided.append(said.message)
                case _:
                    self._apply_message(said.message, now)

    def _decide(self, now: float) -> None:
        while self._undecided:
            message = self._undecided.popleft()
            part = self._assigner.partitions[message.partition]
            if part.granted and part.generation == message.generation:
                self._resolve_held(part, message, now)

    def _apply_message(self, message: ShardMessage, now: float) -> None:
        match message:
            case BatchesDone():
                for item in message.items:
                    self._done(item, now)
            case Revoked():
                part = self._assigner.partitions[message.partition]
                part.granted = False
                part.cuts = list(message.cuts)
                self._assigner.reconsider(part)
            case NewLeaderHint():
                topic, index = self.topic_of(message.partition)
                self._hints.append(LeaderUpdate(topic, index, message.leader, message.leader_epoch))
            case _:
                raise AssertionError(f"a lease table said {type(message).__name__}")

    def _done(self, item: DoneBatch, now: float) -> None:
        part = self._assigner.partitions[item.partition]
        if not part.granted or item.generation != part.generation or item.first + item.count <= part.ack_mark:
            return
        told = part.delivered if self.limits.idempotent else part.batch_delivered
        self._outcomes.extend(told(item.first, item.first + item.count, item.base_offset, item.log_append_ms))
        if self.limits.idempotent and item.base_offset >= 0:
            time_ms = item.log_append_ms if item.log_append_ms >= 0 else item.time_ms
            part.anchor = Anchor(item.base_offset, time_ms, self.table.wall.ms(now), item.leader_epoch)
        moved = item.log_start > part.log_start
        part.log_start = max(part.log_start, item.log_start)
        part.failures = 0
        self._gap_confirmation.cancel(part)
        if part.pace != OPEN or moved or now - part.pace_sent_at >= _PACE_AGAIN_S:
            part.pace = self._assigner.pace(part, now)
            part.pace_sent_at = now
            pace = Pace(part.number, part.generation, part.pace, part.anchor, part.log_start)
            self.table.apply(pace, now=now)
        self._resolved(part)

    def _resolved(self, part: PartitionState) -> None:
        if not part.slices:
            self._open.discard(part)
            if not part.needs_producer_id:
                self._assigner.blocked.discard(part)
            self._gap_confirmation.cancel(part)

    def _resolve_held(
        self, part: PartitionState, message: BatchRefused | ProbeRefused | PartitionHalted | SliceUnreadable, now: float
    ) -> None:
        """Resolve a message whose lease is held until this decision."""
        match message:
            case BatchRefused():
                self._refused(part, message, now)
            case ProbeRefused():
                self._gap(part, message, now)
            case PartitionHalted():
                if message.code in _FATAL:
                    text = f"{error_name(message.code)}: {message.message}"
                    self.abort(
                        DeliveryFailure(DeliveryFailureKind.FATAL, message.code, error_name(message.code), text),
                        now=now,
                    )
                    return
                self._block_and_retry(part, "partition_halted", message.message, now)
            case SliceUnreadable():
                raise AssertionError(f"records in memory are not what was put there: {message.what}")

    def _refused(self, part: PartitionState, refused: BatchRefused, now: float) -> None:
        """Fail the refused records; the others of the batch continue under a new epoch (ERR-3)."""
        whole = not self.limits.idempotent
        refusals = record_refusals(refused, topic=part.topic, index=part.index, whole=whole)
        if whole:
            for refusal in refusals:
                self._fail(part, [refusal.span], refusal.failure)
            return
        lease = self.table.partitions[part.number]
        if refused.ambiguous and lease.pace != FIRST:
            if not lease.refused_not_in_log:
                self._block_and_retry(part, "refused_but_may_be_written", refused.message, now)
                return
            gap = ProbeRefused(part.number, part.generation, lease.leader_epoch, refused.message)
            self._revoke(part, now)
            if not self._gap_confirmation.is_confirmed(part, gap, now):
                return
            refusals = record_refusals(
                refused._replace(ambiguous=False), topic=part.topic, index=part.index, whole=False
            )
        self._assigner.revoke(part, now)
        for refusal in refusals:
            self._fail(part, [refusal.span], refusal.failure)
        self._bump(part)

    def _gap(self, part: PartitionState, gap: ProbeRefused, now: float) -> None:
        """All unresolved batches were refused as out of order. After a second such pass none of them is in the log:
        acknowledged records may be lost, and the unresolved ones continue in a new epoch (GAP-3)."""
        self._revoke(part, now)
        if self._gap_confirmation.is_confirmed(part, gap, now):
            self._bump(part)

    def _bump(self, part: PartitionState) -> None:
        """Start a new epoch. No unresolved record of the old one can be in the log, so release its in-doubt records."""
        self._fail(part, list(part.in_doubt), _CLOSED)
        if part.bump():
            self._assigner.unblock(part)
        else:
            self._assigner.block(part, None)
        self._resolved(part)

    def _block_and_retry(self, part: PartitionState, event: str, text: str, now: float) -> None:
        """Take the lease back and grant it again after a backoff, until the records expire."""
        self._revoke(part, now)
        if part.failures == 0:
            self._assigner.add_alarm(event, part, part.sent_to, text)
        self._assigner.block(part, now + self.table.limits.backoff.wait_s(part.failures, 0.5))
        part.failures += 1
        self._abandon_in_doubt(part)

    def _abandon_if_unanswerable(self, part: PartitionState, now: float) -> None:
        """Abandon the in-doubt records of a blocked partition, or of a refused batch with no live records behind it."""
        lease = self.table.partitions.get(part.number)
        if lease is None:
            if part in self._assigner.blocked:
                self._abandon_in_doubt(part)
        elif lease.is_probing_refusal and not subtract_ranges(
            (part.ack_mark, part.end), merge_ranges([*part.in_doubt, *part.holes])
        ):
            self._revoke(part, now)
            self._abandon_in_doubt(part)

    def _revoke(self, part: PartitionState, now: float) -> None:
        """Revoke the lease, but keep its attempts and last error for the messages of expired records."""
        part.attempts, part.last_error = attempts_of(self.table.partitions[part.number])
        self._assigner.revoke(part, now)

    def _abandon_in_doubt(self, part: PartitionState) -> None:
        """Release the in-doubt records without knowing their fate, if every record that may have been sent is in doubt.
        They are not sent again, and the partition continues under another producer id."""
        if not part.cuts or subtract_ranges((part.ack_mark, part.sent_to), part.in_doubt):
            return
        self._assigner.add_alarm("in_doubt_records_abandoned", part, part.sent_to, part.last_error)
        part.cuts = []
        self._gap_confirmation.cancel(part)
        part.needs_producer_id = True
        self._fail(part, list(part.in_doubt), _CLOSED)
        self._assigner.block(part, None)

    def _fail(self, part: PartitionState, spans: list[OrdinalRange], failure: DeliveryFailure) -> None:
        self._outcomes.extend(part.fail_unsent(spans, failure))
        self._resolved(part)
