"""One partition under a lease: which batch may be sent next, and which batches are unresolved.

`producer/sender/modes.py` has the rules of modes and paces, `producer/sender/produce_response.py` those of responses. A
cut is fixed when its batch is taken to be sent, and is kept until the batch is resolved or the lease is revoked.
"""

from collections import deque
from typing import Final

from ...wire.messages import (
    FIRST,
    OPEN,
    Anchor,
    BatchBounds,
    Grant,
    NewLeaderHint,
    Pace,
    PartitionHalted,
    Revoked,
    SliceRef,
    SliceUnreadable,
    StampRow,
)
from ..accumulator.batch import ProducerBatch
from ..accumulator.partition_queue import PartitionQueue
from ..records.batch_builder import NO_STAMP
from ..records.sequences import sequence_after
from .log_end_probe import LogEndProbe
from .modes import (
    MODE_TRANSITIONS,
    NO_LEADER_CONNECTION,
    UNRESOLVED_BATCHES_MAX,
    LeaderCheck,
    LeaderConnection,
    SendLimits,
    SendMode,
    WallClock,
    is_anchored,
    is_old,
)
from .outbox import ShardOutbox
from .ready_nodes import SendPermit


class IdempotentPartition:
    """The right to send one partition, with producer ids. Asserts HO-2, HO-3, HO-5, HO-6 and HO-7."""

    def __init__(
        self,
        grant: Grant,
        queue: PartitionQueue,
        limits: SendLimits,
        wall: WallClock,
        outbox: ShardOutbox,
        asking: "set[IdempotentPartition]",
        wanting_slot: "set[IdempotentPartition]",
        *,
        now: float,
    ) -> None:
        """The lease is in `asking` while a leader check is pending, in `wanting_slot` after the journal was full."""
        self.partition = grant.partition
        self.topic = grant.topic
        self.topic_id = grant.topic_id
        self.index = grant.index
        self.generation = grant.generation
        self.node = grant.node
        self.leader_epoch = grant.leader_epoch
        self.queue = queue
        self.limits = limits
        self.wall = wall
        self.outbox = outbox
        self.mode = SendMode.ONE_IN_FLIGHT  # changed by `enter` only
        self.pace = grant.pace  # set by `Pace`; `update_log_start` may narrow it to FIRST
        self.anchor: Anchor | None = grant.anchor
        """The last acknowledged batch: from the grant, `Pace`, and each acknowledgement with an offset."""
        self.log_start = grant.log_start  # the largest log start offset seen; -1: none
        self.rows = grant.rows
        self.probe: LogEndProbe | None = None
        self.refused_not_in_log = False
        """A probe proved that the oldest batch, refused for its content, is not in the log."""
        self.in_flight = 0
        """Number of batches in flight; only `add_in_flight`, `remove_in_flight`, `move` and `revoke` change it."""
        self.failures = 0  # consecutive backoffs; reset by an ack, a split or an answered leader check
        self.retry_at = 0.0  # end of the backoff, on the clock of `now`
        self.last_error = ""  # for `PartitionLoad` and expiry messages; cleared once sending works again
        self.acked_on: LeaderConnection = NO_LEADER_CONNECTION
        """Connection and leader epoch of the last acknowledgement."""
        self.sent_on: LeaderConnection = NO_LEADER_CONNECTION
        """Connection and leader epoch of the last batch taken to be sent."""
        self.awaiting_pace = False
        """Set by an acknowledgement. At pace FIRST no new batch is sent until `Pace` shows that the router synced."""
        self.awaiting_journal_slot = False  # the journal was full: nothing is sent until slots are freed
        self.unresolved: deque[ProducerBatch] = deque(self._inherit(cut) for cut in grant.cuts)
        """Batches with a fixed cut and no outcome yet, oldest first."""
        self.unjournaled = len(self.unresolved)  # those without a journal slot; `BrokerLink` resets it
        self.replaced_slots: list[int] = []  # of split batches; released once the parts are journaled
        self.pending_checks: set[LeaderCheck] = set()
        self.checks_in_flight = False  # whether the pending checks have been sent
        self.log_start_checked_at = now
        """When the leader last answered where its log starts; at first the time of the grant."""
        self._asking: Final = asking
        self._wanting_slot: Final = wanting_slot
        queue.set_one_record(one_record=self.pace == FIRST)
        if self.anchor is not None:
            self.require_check(LeaderCheck.LOG_START)
        self._require_epoch_end_check()

    def __hash__(self) -> int:
        """The partition number, so that sets of leases have the same order in every run."""
        return self.partition

    def _inherit(self, cut: BatchBounds) -> ProducerBatch:
        """A batch of an earlier lease holder. It may be in the log, so its first refusal is ambiguous (ERR-2)."""
        row = self.row_of(cut.first)
        assert row.epoch == cut.epoch, (
            f"partition {self.partition}: cut of epoch {cut.epoch} under a row of {row.epoch}"
        )
        batch = self._stamp(cut.first, cut.count)
        batch.in_doubt = True
        return batch

    def row_of(self, first: int) -> StampRow:
        """The stamp row in force at an ordinal."""
        for row in reversed(self.rows):
            if row.start <= first:
                return row
        raise AssertionError(f"partition {self.partition}: no stamp row for ordinal {first}")

    def _stamp(self, first: int, count: int) -> ProducerBatch:
        row = self.row_of(first)
        if row.producer_id < 0:
            return ProducerBatch(first, count, *NO_STAMP)
        return ProducerBatch(first, count, row.producer_id, row.epoch, sequence_after(0, first - row.base))

    def cut_split_part(self, first: int, count: int, parent: ProducerBatch) -> ProducerBatch:
        """A part of a batch that was refused as too large: same epoch, hence the same sequences."""
        child = self._stamp(first, count)
        assert child.epoch == parent.epoch, "a part under another epoch than its batch (HO-3)"
        child.size = parent.size * count // parent.count
        return child

    # --- messages of the router --------------------------------------------------------------------------------------

    def set_pace(self, pace: Pace) -> None:
        """Apply a `Pace` message: a wider pace after the router synced its anchor, or a narrower one."""
        self.pace = pace.pace
        self.awaiting_pace = False
        if pace.anchor is not None and (self.anchor is None or pace.anchor.base_offset >= self.anchor.base_offset):
            self.anchor = pace.anchor
        self.log_start = max(self.log_start, pace.log_start)
        self.queue.set_one_record(one_record=pace.pace == FIRST)

    def move(self, node: int, leader_epoch: int) -> None:
        """Follow the leader to another node. Batches in flight are sent again there; their old responses are ignored.
        Only a newer leader epoch ends the current backoff. `failures` stays, so the next backoff keeps growing."""
        if leader_epoch > self.leader_epoch:
            self.retry_at = 0.0
        self.node = node
        self.leader_epoch = leader_epoch
        for batch in self.unresolved:
            if batch.request_number:
                batch.request_number = 0
                batch.in_doubt = True
        self.in_flight = 0
        self.probe = None
        self._require_epoch_end_check()
        refused = bool(self.unresolved) and self.unresolved[0].refusal is not None
        if self.mode is not SendMode.HELD or not refused:
            self.enter(SendMode.ONE_IN_FLIGHT)

    def revoke(self) -> None:
        """Return the lease at once, without waiting for responses."""
        cuts = [BatchBounds(batch.first, batch.count, batch.epoch) for batch in self.unresolved]
        slots = self.replaced_slots + self.slots_of(list(self.unresolved))
        self.outbox.put(Revoked(self.partition, self.generation, cuts), slots)
        for batch in self.unresolved:
            batch.request_number = 0
            self.queue.discard(batch)
        self.unresolved.clear()
        self.in_flight = 0
        self.pending_checks.clear()
        self._asking.discard(self)
        self.enter(SendMode.REVOKED)

    # --- sending -----------------------------------------------------------------------------------------------------

    def ready_at(self, now: float) -> float | None:
        """From when on `take` has a batch if nothing else happens; None: not before some event."""
        if self.mode in (SendMode.HELD, SendMode.REVOKED) or self.awaiting_journal_slot or self.pending_checks:
            return None
        if self.mode is not SendMode.RUNNING:
            if self.in_flight:
                return None
            if self.unresolved:
                again = self._next_retry(self.sent_on)
                known = self.queue.has_open if again is None else self.queue.covers(again)
                return self.retry_at if known else None
        if not self._window_open(UNRESOLVED_BATCHES_MAX, now):
            return None
        at = self.queue.sendable_at(now)
        return None if at is None else max(at, self.retry_at)

    def estimated_bytes(self) -> int:
        """Estimated size of the batch that `take` would return."""
        again = self._next_retry(self.sent_on) if self.mode is not SendMode.RUNNING and self.unresolved else None
        return self.queue.estimated_bytes() if again is None else again.size

    def take(self, permit: SendPermit, *, now: float) -> ProducerBatch | None:
        """Fix the cut of the batch to send on this connection and return it; None: not now."""
        ready = self.ready_at(now)
        if ready is None or ready > now:
            return None
        if self.anchor is not None and now - self.log_start_checked_at >= self.limits.idle_check_s:
            self.require_check(LeaderCheck.LOG_START)
            return None
        here = LeaderConnection(self.node, permit.incarnation, self.leader_epoch)
        if self.mode is SendMode.RUNNING and self.acked_on != here:
            # The broker may have lost the state of an idle partition: send one batch alone to find out (HO-7).
            self.enter(SendMode.ONE_IN_FLIGHT)
            if self.in_flight or (self.unresolved and not self.queue.covers(self.unresolved[0])):
                return None
        again = self._next_retry(here) if self.mode is not SendMode.RUNNING and self.unresolved else None
        if self.unjournaled + (again is None) > permit.journal_slots_left:
            self.wait_for_slot()
            return None
        self.sent_on = here
        if again is not None:
            return self.ensure_built(again)
        if self.probe is not None:
            # May be the sixth unresolved batch: a probe after a refusal for content may cut one more (HO-5).
            batch = self.cut()
            if batch is not None:
                self.probe.one_more(batch)
            return batch
        if not self._window_open(min(UNRESOLVED_BATCHES_MAX, permit.in_flight_max), now):
            return None
        return self.cut()

    def add_in_flight(self, batch: ProducerBatch, flight: int) -> None:
        """Record that the batch was given to a transport. Its cut must be in the journal (HO-12)."""
        assert batch.slot >= 0, "a batch on its way without a journaled cut"
        assert batch.request_number == 0, "a batch twice on the wire"
        batch.request_number = flight
        batch.attempts += 1
        self.in_flight += 1
        assert self.mode is SendMode.RUNNING or self.in_flight == 1, "more than one in flight outside RUNNING (HO-7)"

    def wait_for_slot(self) -> None:
        """Send nothing until the journal has free slots."""
        self.awaiting_journal_slot = True
        self._wanting_slot.add(self)

    def remove_in_flight(self, batch: ProducerBatch) -> None:
        """Record that the batch is no longer in flight."""
        batch.request_number = 0
        self.in_flight -= 1
        assert self.in_flight >= 0, "more answers than batches on the wire"

    def ensure_built(self, batch: ProducerBatch) -> ProducerBatch | None:
        """Rebuild the bytes of a batch that was cut before. None: not possible now; damage halts the partition."""
        if self.queue.build(batch):
            return batch
        if self.queue.damage is not None:
            _ = self.unreadable(self.queue.damage.ref, self.queue.damage.what)
        return None

    def _next_retry(self, here: LeaderConnection) -> ProducerBatch | None:
        """The unresolved batch to send next; None: a probe needs a new batch."""
        return self.unresolved[0] if self.probe is None else self.probe.target(here)

    def cut(self) -> ProducerBatch | None:
        """Cut and seal the next new batch; None: there is none."""
        closed = self.queue.close_next()
        if closed is None:
            return None
        count = closed.builder.count
        assert self.pace != FIRST or count == 1, "a first batch of more than one record (HO-6)"
        batch = self._stamp(closed.builder.first, count)
        self.queue.seal(closed, batch)
        self.unresolved.append(batch)
        self.unjournaled += 1
        # A probe may cut one more batch, and an earlier holder may leave more if the router missed its last messages.
        assert self.probe is not None or len(self.unresolved) <= UNRESOLVED_BATCHES_MAX, (
            "more than five unresolved (HO-5)"
        )
        return batch

    def _window_open(self, window: int, now: float) -> bool:
        """Whether pace and window allow a new batch."""
        if not self.unresolved:
            return not (self.pace == FIRST and self.awaiting_pace)
        if len(self.unresolved) >= window or self.pace != OPEN:
            return False
        return not self._is_narrow(now)

    def _is_narrow(self, now: float) -> bool:
        """Whether some batch has timestamps so old that the broker may expire the producer id with it."""
        wall = self.wall.ms(now)
        oldest = wall if self.anchor is None else self.anchor.time_ms
        for batch in self.unresolved:
            oldest = min(oldest, batch.max_ts)
        next_time = self.queue.next_max_ts()
        if 0 <= next_time < oldest:
            oldest = next_time
        return is_old(oldest, wall, self.limits.expiration_ms)

    # --- leader checks -----------------------------------------------------------------------------------------------

    def require_check(self, question: LeaderCheck) -> None:
        """Send no batch before the leader has answered this check."""
        self.pending_checks.add(question)
        self._asking.add(self)

    def _require_epoch_end_check(self) -> None:
        if self.anchor is not None and self.leader_epoch > self.anchor.leader_epoch:
            self.require_check(LeaderCheck.EPOCH_END)

    def complete_check(self, question: LeaderCheck) -> None:
        """Remove a check that was answered or that the broker does not support."""
        self.checks_in_flight = False
        self.pending_checks.discard(question)
        if not self.pending_checks:
            self._asking.discard(self)

    def update_log_start(self, log_start: int, *, now: float | None = None) -> None:
        """Apply a log start offset (-1: unknown). If it is above the anchor, the acknowledged batch was deleted and the
        broker may have lost the producer state: send one record alone until the next `Pace` (HO-6)."""
        if now is not None:
            self.log_start_checked_at = now
        if log_start < 0:
            return
        self.log_start = max(self.log_start, log_start)
        if self.anchor is not None and self.log_start > self.anchor.base_offset and self.pace != FIRST:
            self.pace = FIRST
            self.awaiting_pace = False
            self.queue.set_one_record(one_record=True)

    # --- called by produce_response and leader_checks ----------------------------------------------------------------

    def enter(self, mode: SendMode) -> None:
        """Change the mode; `MODE_TRANSITIONS` must allow it."""
        if mode is self.mode:
            return
        assert mode in MODE_TRANSITIONS[self.mode], f"{self.mode.name} to {mode.name}"
        self.mode = mode
        if mode is not SendMode.PROBING:
            self.probe = None

    @property
    def is_probing_refusal(self) -> bool:
        """Whether a probe is finding out if the oldest batch, refused for its content, is in the log."""
        return self.probe is not None and self.probe.content_refused

    def anchored_by(self, log_start: int, now: float) -> bool:
        """Whether the partition is anchored, given the log start of a response (-1: none, use the last one seen)."""
        times = [batch.max_ts for batch in self.unresolved if batch.max_ts >= 0]
        return is_anchored(
            self.anchor,
            log_start if log_start >= 0 else self.log_start,
            times,
            wall_ms=self.wall.ms(now),
            expiration_ms=self.limits.expiration_ms,
        )

    def slots_of(self, batches: list[ProducerBatch]) -> list[int]:
        """Take the journal slots of the batches, to release them; each is returned once."""
        slots = [batch.slot for batch in batches if batch.slot >= 0]
        for batch in batches:
            batch.slot = -1
        return slots

    def back_off(self, now: float, chance: float) -> None:
        """Delay the next attempt; `chance` in [0, 1) is the random number for the jitter."""
        self.retry_at = now + self.limits.backoff.wait_s(self.failures, chance)
        self.failures += 1

    def halt(self, code: int, message: str) -> None:
        """Report a condition that only the router can resolve, and hold the partition."""
        self.last_error = message
        self.outbox.put(PartitionHalted(self.partition, self.generation, code, message))
        self.enter(SendMode.HELD)

    def hint(self, leader: int, leader_epoch: int) -> None:
        """Report a newer leader, or (-1) that the router's metadata is stale."""
        self.outbox.put(NewLeaderHint(self.partition, self.generation, leader, leader_epoch))

    def unreadable(self, ref: SliceRef, what: str) -> bool:
        """Report a slice that is unreadable or not what was spooled, and hold the partition (MEM-2). Returns False if
        the partition is held or revoked already."""
        if self.mode in (SendMode.HELD, SendMode.REVOKED):
            return False
        self.last_error = what
        self.outbox.put(
            SliceUnreadable(self.partition, self.generation, ref.segment, ref.offset, ref.first, ref.count, what)
        )
        self.enter(SendMode.HELD)
        return True
