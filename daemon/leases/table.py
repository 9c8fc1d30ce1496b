"""Owner of all leases: every change of a lease is a method of `LeaseTable`.

`Grants`, `ShardReports` and `SequenceEpochs` decide; it writes the entries of a change, queues messages, and counts.
"""

from collections import Counter
from typing import Final, NamedTuple

from ...wire.messages import BatchBounds, Grant, Move, Pace, Revoke, RouterMessage, ShardLoad, StampRow, Stop
from ..ledger.entries import AckedEntry, BatchBoundsEntry, ControlEntry, GrantedEntry, Lsn, StampRowEntry
from ..ledger.partition_state import Ledger
from ..ledger.slices import EntryLog, PendingSlice, SliceEnded
from .alarms import LeaseAlarms
from .backlog import Backlog, BatchAck, DeadLetterRange
from .handout import FlushRequests, SliceDispatcher
from .lease import LeaderAndEpoch, Lease, NewLeader
from .log_end_search import LogEndSearch
from .refused_batches import DeadLetterRequest, dead_letter_request
from .shard_slots import ShardSlots
from .states import (
    LEASE_TRANSITIONS,
    POSSIBLY_HELD,
    Block,
    ContinueLogEndSearch,
    DeadLetterBatch,
    LeaseState,
    Relocate,
    RevokeReason,
    SettlingStep,
    ShutDown,
)

_DEAD_LETTERED_EARLIER: Final = "refused by Kafka before the daemon's last start; the dead letters have its words"


class LeaseLimits(NamedTuple):
    """`shards`: number of shard processes. `revoke_timeout_ms`: a shard that does not return a lease within it is
    killed. `retry_ms`, `retry_max_ms`: first and longest backoff before a blocked partition is retried. `buffer_bytes`:
    per shard. `batch_bytes`: upper limit of a batch of several slices."""

    shards: int
    shard_return_ms: int
    revoke_timeout_ms: int
    retry_ms: int
    retry_max_ms: int
    buffer_bytes: int
    batch_bytes: int = 1 << 20


class LeaseTable:
    """All leases. Wall time in ms is `now` x 1000 + `wall_offset_ms`. Lists of output are emptied by the reader named
    behind them."""

    def __init__(self, ledger: Ledger, log: EntryLog, limits: LeaseLimits, *, now: float, wall_offset_ms: int) -> None:
        self.ledger = ledger
        self.limits = limits
        self.expiration_ms = 24 * 3_600_000  # E; `Leases.expiration_known` sets it
        self.shard_slots = ShardSlots(limits.shards, limits.shard_return_ms / 1000, now)
        self.dispatcher = SliceDispatcher(self.send, self.send_pace)
        self.flushes = FlushRequests(self.send)
        self.leases: dict[int, Lease] = {}  # by partition number; `lease_of` adds them, none is removed
        self.timed: dict[int, Lease] = {}  # with a revoke deadline or a retry time; `Leases.tick` removes them
        self.synced = Lsn(0)  # last entry on disk
        self.sync_wanted = Lsn(0)  # last entry that a hand-out, a grant or a pace waits for
        self.now = now  # time of the event being applied; `Leases` sets it
        self.pushed = 0  # records
        self.stopping = False
        self.outbox: list[tuple[int, RouterMessage]] = []  # (shard id, message); `Bus.flush`
        self.ended: list[SliceEnded] = []  # the router, after the write
        self.dead_letter_requests: list[DeadLetterRequest] = []  # `DeadLetterWriter`
        self.shards_to_kill: list[tuple[int, str]] = []  # (shard id, reason); the router
        self.stale_topics: set[str] = set()  # the router refreshes metadata
        self.new_leaders: list[NewLeader] = []  # `ClusterFollower` passes them to the metadata
        self.loads: dict[int, ShardLoad] = {}  # the last LOAD by shard id; `Leases` writes it
        self.exited_shard_counters: Counter[str] = Counter()
        """The sum of the last counters of each exited shard."""
        self.counters: Counter[str] = Counter()
        """Each is incremented where its event is detected."""
        self.alarms = LeaseAlarms(self.counters)
        self._log = log
        self._wall_offset_ms = wall_offset_ms
        self._grant_candidates: dict[int, Lease] = {}  # unassigned
        self._awaiting_row_sync: list[Lease] = []  # their stamp rows wait for a sync

    def record(self, entry: ControlEntry) -> Lsn:
        """Append an entry to the log and apply it to the ledger."""
        place = self._log.append(entry)
        self.ledger.apply(entry)
        return place

    def send(self, seat: int, message: RouterMessage) -> None:
        self.outbox.append((seat, message))

    def wall_ms(self) -> int:
        return int(self.now * 1000) + self._wall_offset_ms

    def lease_of(self, number: int) -> Lease:
        """The lease of a partition, created on first use."""
        found = self.leases.get(number)
        if found is None:
            state = self.ledger.by_number[number]
            found = self.leases[number] = Lease(state, Backlog(state.index, state.mark))
            # For records dead-lettered before this start, only their ordinals are known.
            found.backlog.add_dead_lettered(
                [DeadLetterRange(hole.first, hole.count, _DEAD_LETTERED_EARLIER) for hole in state.holes]
            )
        return found

    def push(self, piece: PendingSlice) -> None:
        """Add a slice that was spooled or recovered. Call it in ordinal order per partition."""
        lease = self.leases.get(piece.partition) or self.lease_of(piece.partition)
        backlog = lease.backlog
        backlog.push(piece)
        self.pushed += piece.count
        if lease.state is LeaseState.HELD:
            self.sync_wanted = max(self.sync_wanted, piece.lsn)
            if len(backlog.waiting) == 1:
                self.dispatcher.mark_ready(lease)
        elif len(backlog.unresolved) == 1:
            self.reconsider(lease)

    # --- syncs -------------------------------------------------------------------------------------------------------

    def await_sync(self, place: Lsn) -> None:
        self.sync_wanted = max(self.sync_wanted, place)

    def set_synced(self, through: Lsn) -> None:
        """The log is on disk up to and including the entry at `through`."""
        self.synced = through
        waiting, self._awaiting_row_sync = self._awaiting_row_sync, []
        for lease in waiting:
            self.reconsider(lease)

    def rows_are_synced(self, lease: Lease) -> bool:
        """Whether the lease's stamp rows are on disk (HO-11). If not, it is considered again when they are."""
        if lease.stamp_row_lsn <= self.synced and self.synced > 0:
            return True
        self.await_sync(Lsn(max(lease.stamp_row_lsn, 1)))
        self._awaiting_row_sync.append(lease)
        return False

    # --- candidates --------------------------------------------------------------------------------------------------

    def reconsider(self, lease: Lease) -> None:
        """Consider an unassigned lease in the next round, after a change that may allow its grant."""
        if lease.state is LeaseState.UNASSIGNED:
            self._grant_candidates[lease.number] = lease

    def take_candidates(self) -> list[Lease]:
        """The leases to grant if their conditions hold. Forgets them."""
        found, self._grant_candidates = list(self._grant_candidates.values()), {}
        return [lease for lease in found if lease.state is LeaseState.UNASSIGNED and lease.backlog.unresolved]

    # --- transitions of a lease --------------------------------------------------------------------------------------

    def _move(self, lease: Lease, state: LeaseState) -> None:
        """Change to another state. A transition that the table does not allow is a bug."""
        assert state in LEASE_TRANSITIONS[lease.state], (lease.number, lease.state, state)
        if lease.state is LeaseState.HELD:
            self.dispatcher.drop(lease)
        if state not in POSSIBLY_HELD:
            lease.shard_id = lease.node = -1
        lease.state = state

    def grant(self, lease: Lease, seat: int, leader: LeaderAndEpoch, pace: str, *, uncertain: bool) -> None:
        """Grant a lease to a shard. `uncertain`: the broker may have lost the state of inherited batches (11.6)."""
        durable, backlog = lease.durable, lease.backlog
        cuts = self.inherited_batches(lease)
        first = cuts[0].first if lease.search is not None else durable.mark
        _ = self.record(GrantedEntry(lease.number, durable.generation + 1, seat, *leader))
        self._move(lease, LeaseState.HELD)
        lease.shard_id, (lease.node, lease.leader_epoch) = seat, leader
        lease.inherited_end = cuts[-1].first + cuts[-1].count if cuts else durable.mark
        if uncertain:
            lease.uncertain_grant_end = lease.inherited_end
        backlog.rewind(first)
        if lease.search is not None:
            backlog.restrict(first, lease.inherited_end)
        lease.pace, lease.pace_sent_at = pace, self.now
        self.send(
            seat,
            Grant(
                lease.number,
                durable.topic,
                durable.topic_id or None,
                durable.index,
                durable.generation,
                *leader,
                list(durable.rows),
                first,
                cuts,
                pace,
                durable.anchor,
                durable.log_start,
                self.expiration_ms,
                list(durable.id_rows),
            ),
        )
        self.dispatcher.mark_ready(lease)
        self.await_sync(backlog.unresolved[-1].lsn)
        self.counters["grants"] += 1

    def inherited_batches(self, lease: Lease) -> list[BatchBounds]:
        """The batches that the next grant hands over: the open ones, or the trial of a search."""
        return lease.open_batches() if lease.search is None else [lease.search.trial]

    def move_to(self, lease: Lease, leader: LeaderAndEpoch) -> None:
        """Let the holder continue at another leader."""
        self.dispatcher.drop(lease)
        lease.node, lease.leader_epoch = leader
        _ = self.record(GrantedEntry(lease.number, lease.generation, lease.shard_id, *leader))
        self.send(lease.shard_id, Move(lease.number, lease.generation, *leader))
        self.dispatcher.mark_ready(lease)
        self.counters["moves"] += 1

    def revoke(self, lease: Lease, errand: RevokeReason) -> None:
        """Revoke a held lease. If it is already being revoked, a stronger reason replaces the one before: a report that
        crossed our REVOKE counts, because a later holder is less certain of it."""
        if lease.state is LeaseState.HELD:
            self._move(lease, LeaseState.REVOKING)
            lease.revoke_deadline = self.now + self.limits.revoke_timeout_ms / 1000
            self.send(lease.shard_id, Revoke(lease.number, lease.generation))
            self.timed[lease.number] = lease
            self.counters["revokes"] += 1
            lease.revoke_reason = errand
        elif isinstance(lease.revoke_reason, Relocate | None) or (
            isinstance(lease.revoke_reason, ShutDown) and isinstance(errand, DeadLetterBatch)
        ):
            lease.revoke_reason = errand

    def stop(self, deadline_ms: int) -> None:
        """Grant nothing more. Every shard returns its leases within `deadline_ms` and exits."""
        self.stopping = True
        for lease in self.leases.values():
            if lease.state is LeaseState.HELD:
                self._move(lease, LeaseState.REVOKING)
                lease.revoke_reason = ShutDown()
            if lease.state is LeaseState.REVOKING:
                lease.revoke_deadline = self.now + (deadline_ms + self.limits.revoke_timeout_ms) / 1000
                self.timed[lease.number] = lease
        for seat in self.shard_slots.ready():
            self.send(seat, Stop(deadline_ms))

    def kill_shard(self, seat: int, reason: str) -> None:
        """A shard broke the protocol: kill it, and ignore its later messages."""
        self.shards_to_kill.append((seat, reason))
        self.counters["shards_killed"] += 1
        self.fence_shard(seat)

    def fence_shard(self, seat: int) -> None:
        """Fence the shard's leases. They end when it is reaped and its journal is read."""
        _ = self.shard_slots.mark_dying(seat)
        for lease in self.leases.values():
            if lease.shard_id == seat and lease.state in {LeaseState.HELD, LeaseState.REVOKING}:
                self._move(lease, LeaseState.FENCING)

    def returned(self, lease: Lease, cuts: list[BatchBounds], *, facts: bool) -> None:
        """A lease was returned: record the batches that may have been sent, then act on the revoke reason."""
        if lease.state is LeaseState.HELD:
            # The shard returned the lease without a REVOKE.
            self._move(lease, LeaseState.REVOKING)
        assert lease.state in POSSIBLY_HELD
        errand, lease.revoke_reason = lease.revoke_reason, None
        if isinstance(errand, ContinueLogEndSearch) and lease.search is not None:
            # The trial was refused: it is not in the log, so it has no bounds to record.
            cuts = []
        self.record_batch_bounds(lease, cuts, None if facts else lease.possibly_sent_end)
        lease.backlog.rewind()
        if isinstance(errand, DeadLetterBatch):
            self.settle(lease, SettlingStep.DEAD_LETTER)
            self.dead_letter_requests.append(dead_letter_request(lease.durable, errand, lease.backlog))
        elif isinstance(errand, Block):
            self.block_lease(lease, errand)
        else:
            self.unassign(lease)

    def settle(self, lease: Lease, step: SettlingStep) -> None:
        """The result of a lease is being written; `step` is the event that it waits for."""
        if lease.state is not LeaseState.SETTLING:
            self._move(lease, LeaseState.SETTLING)
        lease.step = step

    def unassign(self, lease: Lease) -> None:
        """Release the lease: no shard holds it, and it is granted as soon as possible."""
        lease.step = lease.block = lease.retry_at = None
        self._move(lease, LeaseState.UNASSIGNED)
        self.reconsider(lease)

    def block_lease(self, lease: Lease, block: Block) -> None:
        """Keep all records, raise the alarm, and let other partitions continue."""
        self._move(lease, LeaseState.BLOCKED)
        lease.search = None
        lease.block = block
        lease.retry_at = None
        if block.retry:
            wait_ms = min(self.limits.retry_ms << min(lease.tries, 20), self.limits.retry_max_ms)
            lease.retry_at = self.now + wait_ms / 1000
            lease.tries += 1
            self.timed[lease.number] = lease
        self.alarms.set(lease, block.why, block.text, block.first, block.end, now=self.now)
        self.counters["blocks"] += 1

    # --- facts about a lease -----------------------------------------------------------------------------------------

    def follow_epoch(self, lease: Lease, epoch: int, *, newer: bool) -> None:
        """A leader of this epoch is being followed."""
        lease.followed_epoch = epoch
        if newer:
            # Another leader's log may end earlier, so the search restarts (LOC-5).
            lease.search = None

    def begin_search(self, lease: Lease, search: LogEndSearch) -> None:
        lease.search = search
        self.counters["log_end_searches"] += 1
        text = "how its last batches were cut is lost: the end of the log is found by trying"
        self.alarms.notify("log_end_search_started", lease, lease.durable.mark, search.through + 1, text)

    def send_pace(self, lease: Lease, pace: str) -> None:
        """Send the holder the pace it may use."""
        lease.pace, lease.pace_sent_at = pace, self.now
        durable = lease.durable
        self.send(lease.shard_id, Pace(lease.number, lease.generation, pace, durable.anchor, durable.log_start))

    def acked(self, lease: Lease, entry: AckedEntry, *, pace_follows: bool) -> Lsn:
        """Record an ack. `pace_follows`: a PACE is sent when its entry is synced. Returns the entry's LSN."""
        durable = lease.durable
        is_first = durable.anchor is None
        place = self.record(entry)
        self.counters["acked_entries"] += 1
        if durable.mark > entry.mark:
            self.advance(lease, durable.mark, None)
        if is_first:
            lease.anchor_lsn = place
        self.clear_alarm(lease)
        if lease.search is not None:
            # The trial was accepted: it is the end of the log, or was when it was written. Later records follow it.
            lease.search = None
            lease.backlog.lift_restriction()
            if lease.state is LeaseState.HELD:
                self.dispatcher.mark_ready(lease)
        if pace_follows:
            lease.pace_sent_at = self.now
        return place

    def advance(self, lease: Lease, mark: int, proof: BatchAck | None) -> None:
        """The mark moved: count the slices that ended and pass them to the router."""
        ended = lease.backlog.advance(mark, proof)
        records = parked = 0
        for one in ended:
            records += one.slice.count
            if one.parked:
                parked += sum(count for _, count, _ in one.parked)
        if ended and lease.backlog.waiting:
            self.dispatcher.share_freed(lease)
        self.counters["records_dead_lettered"] += parked
        self.counters["records_delivered"] += records - parked
        self.ended += ended

    def add_stamp_rows(self, lease: Lease, rows: list[StampRow], reason: str) -> None:
        """Record stamp rows. Nothing is sent under them before they are synced."""
        for row in rows:
            lease.stamp_row_lsn = self.record(StampRowEntry(lease.number, row, reason))

    def record_batch_bounds(self, lease: Lease, cuts: list[BatchBounds], unknown_end: int | None) -> None:
        """Record the known bounds of open batches. Any ordinal below `unknown_end` may have been sent in a batch of any
        bounds. An uncertain range only grows until the mark has passed it (LOC-9)."""
        durable = lease.durable
        ends = [cut.first + cut.count for cut in cuts]
        unknown = durable.unknown_through
        if unknown_end is not None and unknown_end > durable.mark:
            unknown = max([unknown_end - 1, *(end - 1 for end in ends), -1 if unknown is None else unknown])
        elif unknown is not None:
            unknown = max([unknown, *(end - 1 for end in ends)])
        facts = unknown is None
        known = cuts if facts else []
        if lease.search is not None and unknown != lease.search.through:
            lease.search = None
        if (known, facts, unknown) != (durable.batch_bounds, durable.batch_bounds_are_facts, durable.unknown_through):
            _ = self.record(BatchBoundsEntry(lease.number, known, facts, unknown))

    def clear_batch_bounds(self, lease: Lease) -> None:
        """New stamp rows settle every batch before them."""
        durable = lease.durable
        if durable.batch_bounds or durable.unknown_through is not None or not durable.batch_bounds_are_facts:
            _ = self.record(BatchBoundsEntry(lease.number, [], facts=True, unknown_through=None))
        lease.uncertain_grant_end = 0
        lease.search = None
        self.await_sync(lease.stamp_row_lsn)

    def uncertain_batches_acked(self, lease: Lease, mark: int) -> None:
        """An ack passed `mark`. Batches from there on whose state the broker may have lost are possible duplicates."""
        if lease.uncertain_grant_end > mark:
            text = "its producer state may have been lost"
            self.alarms.possible_duplicates(lease, mark, lease.uncertain_grant_end, text)
            lease.uncertain_grant_end = 0

    def clear_alarm(self, lease: Lease) -> None:
        """Kafka accepted a batch, or an operator intervened: clear the alarm."""
        lease.tries = 0
        self.alarms.clear(lease)
