"""The router's place where there is no router: one lease table, whose grants, moves and answers are given in this process.

What the lease table says is acted on at once: DONE becomes outcomes and PACE, REFUSED fails records and begins a new epoch, HINT
asks for metadata, GAP is confirmed, HALT waits.
"""

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
"""Slices of this process's own memory are handed out as they come."""
_PACE_AGAIN_S: Final = 60.0
_FATAL: Final = frozenset({UNSUPPORTED_VERSION, CLUSTER_AUTHORIZATION_FAILED})
_CLOSED: Final = DeliveryFailure(
    DeliveryFailureKind.CLOSED, -1, "PRODUCER_CLOSED", "the producer was closed before this was sent"
)


class InProcessDeliveryLimits(NamedTuple):
    """Bounds of a producer in one process. `buffer_bytes`: encoded batches of all nodes."""

    send_limits: SendLimits
    delivery_timeout_s: float
    buffer_bytes: int
    idempotent: bool = True


class InProcessDelivery:
    """Sequencer, grants and outcomes over one `PartitionTable`, whose `wall` is to be told the time.

    `trouble_with` tells why requests cannot be sent to a node, None: they can; only messages about expired records say so.
    """

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
        """Why nothing is taken any more."""
        self._assigner: Final = PartitionAssigner(
            self.table, limits.buffer_bytes, self._process_outbox, idempotent=limits.idempotent, gate=gate
        )
        self._open: set[PartitionState] = set()
        self._deadlines: Final = DeliveryDeadlines(limits.delivery_timeout_s)
        self._outcomes: Final[list[DeliveryOutcome]] = []
        self._hints: Final[list[LeaderUpdate]] = []
        self._close_at: float | None = None
        self._with_in_doubt: set[PartitionState] = set()
        """Those with ghosts."""
        self._undecided: Final[deque[BatchRefused | ProbeRefused | PartitionHalted | SliceUnreadable]] = deque()
        """What leases wait for, in the order it was said."""
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

    # --- told by the shell -------------------------------------------------------------------------------------------

    def number_of(self, topic: str, index: int) -> int:
        """The partition's number, made on first use."""
        return self._assigner.partition(topic, index).number

    def topic_of(self, number: int) -> tuple[str, int]:
        """Topic and index of a partition number."""
        found = self._assigner.partitions[number]
        return found.topic, found.index

    @property
    def partitions(self) -> Sequence[PartitionState]:
        """All of them, by number."""
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
        """A sealed chunk, created at `created_ms` (CLOCK_MONOTONIC); `first` follows the last one's end."""
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
        """An id is to be asked for: the first, or one for a partition whose epochs are used up."""
        return self.failure is None and self._assigner.wants_producer_id

    def producer_id_known(self, producer_id: int, epoch: int, *, now: float) -> None:
        """The brokers gave an id. A new one begins at epoch 0."""
        assert epoch == 0, f"a new producer id with epoch {epoch}"
        self._assigner.producer_id_known(producer_id)
        self._assigner.grant_pending(now)

    def producer_id_refused(self, code: int) -> None:
        """There is no permission for an id yet: what waits for it fails. It is asked for again (IDM-1)."""
        name = error_name(code)
        text = f"{name}: no producer id was given; the producer goes on asking"
        for part in [one for one in self._open if not one.rows]:
            self._fail(
                part, [(part.ack_mark, part.end)], DeliveryFailure(DeliveryFailureKind.REFUSED, code, name, text)
            )

    def cluster_changed(self, cluster: Cluster, change: ClusterChange, *, now: float) -> None:
        """Nodes, leaders or topics are others. Where nodes are, the connections are to follow the table's."""
        self._assigner.cluster_changed(cluster, change, now)
        self._assigner.grant_pending(now)

    def flush(self, *, now: float, nodes: frozenset[int] | None = None) -> None:
        """What was submitted does not linger; `nodes`: only what these lead."""
        through = [(part.number, part.end - 1) for part in self._open if nodes is None or part.leader in nodes]
        if through:
            self.table.apply(FlushPartitions(through), now=now)

    def close(self, deadline: float, *, now: float) -> None:
        """Go on until everything is resolved or the deadline is over; then everything left fails."""
        self._close_at = deadline
        self._assigner.flushing = True
        self.flush(now=now)

    def abort(self, failure: DeliveryFailure, *, now: float) -> None:
        """Everything left fails, and what comes later too. What may be in the log is told so."""
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

    # --- rounds ------------------------------------------------------------------------------------------------------

    def upkeep(self, *, now: float) -> None:
        """Act on what the lease table says, then on time. To be called before the connections send: what expires in a round is
        not sent in it."""
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
        """When `upkeep` has something to do; in the past: at once."""
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
        """What was decided since the last call."""
        if not self._outcomes:
            return []
        taken = list(self._outcomes)
        self._outcomes.clear()
        return taken

    def take_hints(self) -> list[LeaderUpdate]:
        """What answers told of leaders."""
        if not self._hints:
            return []
        taken = list(self._hints)
        self._hints.clear()
        return taken

    def take_alarms(self) -> list[PartitionAlarm]:
        """What a person should know."""
        taken, self._assigner.alarms = self._assigner.alarms, []
        return taken

    def _has_only_in_doubt(self) -> bool:
        """Nobody waits for anything any more."""
        return not any(
            subtract_ranges((part.ack_mark, part.end), merge_ranges([*part.in_doubt, *part.holes]))
            for part in self._open
        )

    @property
    def idle(self) -> bool:
        """Nothing is unresolved, ghosts included."""
        return not self._open

    @property
    def completing(self) -> bool:
        """A transaction is to end: nothing lingers."""
        return False

    def topics_in_use(self) -> set[str]:
        """Topics with something unresolved."""
        return {part.topic for part in self._open}

    # --- what the lease table says -----------------------------------------------------------------------------------

    def _process_outbox(self, now: float) -> None:
        """What is a fact counts at once, in the order in which it was said. Decisions wait: they take leases back, which must not
        overtake what these have said already."""
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
        """The lease waits for what is decided here."""
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
        """Records fail, the others go on under a new epoch (ERR-3)."""
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
        """All unresolved batches were refused as out of order. Twice, and nothing of them is in the log: what was acknowledged may
        be lost, and what is unresolved goes on in a new epoch (GAP-3)."""
        self._revoke(part, now)
        if self._gap_confirmation.is_confirmed(part, gap, now):
            self._bump(part)

    def _bump(self, part: PartitionState) -> None:
        """A new epoch: nothing of the old one can be in the log any more, so its ghosts end too."""
        self._fail(part, list(part.in_doubt), _CLOSED)
        if part.bump():
            self._assigner.unblock(part)
        else:
            self._assigner.block(part, None)
        self._resolved(part)

    def _block_and_retry(self, part: PartitionState, event: str, text: str, now: float) -> None:
        """Nothing can be done here: tried again after a while, until the records expire."""
        self._revoke(part, now)
        if part.failures == 0:
            self._assigner.add_alarm(event, part, part.sent_to, text)
        self._assigner.block(part, now + self.table.limits.backoff.wait_s(part.failures, 0.5))
        part.failures += 1
        self._abandon_in_doubt(part)

    def _abandon_if_unanswerable(self, part: PartitionState, now: float) -> None:
        """Ghosts that nothing will ever tell of are given up: those of a partition that waits, and a refused one with nothing
        behind it."""
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
        """What the lease knew of its tries is told when its records expire."""
        part.attempts, part.last_error = attempts_of(self.table.partitions[part.number])
        self._assigner.revoke(part, now)

    def _abandon_in_doubt(self, part: PartitionState) -> None:
        """Where nothing tells what became of them, and nobody waits for them any more: the partition goes on without them, under
        another producer id. None of them is sent again."""
        if not part.cuts or subtract_ranges((part.ack_mark, part.sent_to), part.in_doubt):
            return
        self._assigner.add_alarm("in_doubt_records_abandoned", part, part.sent_to, part.last_error)
        part.cuts = []
        self._gap_confirmation.cancel(part)
        part.needs_producer_id = True
        self._fail(part, list(part.in_doubt), _CLOSED)
        self._assigner.block(part, None)

    # --- records that fail -------------------------------------------------------------------------------------------

    def _fail(self, part: PartitionState, spans: list[OrdinalRange], failure: DeliveryFailure) -> None:
        self._outcomes.extend(part.fail_unsent(spans, failure))
        self._resolved(part)
