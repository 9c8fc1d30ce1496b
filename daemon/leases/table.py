"""State shared by the modules of the lease table: leases, log, output lists, and their common transitions."""

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...wire.messages import BatchBounds, Pace, Revoke, RouterMessage, ShardLoad
from ..ledger.entries import BatchBoundsEntry, ControlEntry, Lsn
from ..ledger.partition_state import Ledger
from ..ledger.slices import EntryLog, SliceEnded
from .backlog import Backlog, BatchAck, DeadLetterRange
from .handout import SliceDispatcher
from .lease import Lease, LeaseAlarm
from .refused_batches import DeadLetterRequest, dead_letter_request
from .shard_slots import ShardSlots
from .states import (
    POSSIBLY_HELD,
    Block,
    BlockReason,
    ContinueLogEndSearch,
    DeadLetterBatch,
    LeaseState,
    RevokeReason,
    SettlingStep,
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


@dataclass(frozen=True, slots=True)
class LeaseNotice:
    """A log event: its name in `event`, and the ordinals [first, end)."""

    event: str
    topic: str
    index: int
    first: int
    end: int
    text: str


class LeaseTable:
    """Shared by `Grants`, `ShardReports` and `SequenceEpochs`. Wall time in ms is `now` x 1000 + `wall_offset_ms`."""

    def __init__(self, ledger: Ledger, log: EntryLog, limits: LeaseLimits, *, now: float, wall_offset_ms: int) -> None:
        self.ledger = ledger
        self.log = log
        self.limits = limits
        self.wall_offset_ms = wall_offset_ms
        self.expiration_ms = 24 * 3_600_000  # E; `Leases.expiration_known` sets it
        self.shard_slots = ShardSlots(limits.shards, limits.shard_return_ms / 1000, now)
        self.dispatcher = SliceDispatcher(self.send, self.send_pace)
        self.leases: dict[int, Lease] = {}  # by partition number; `lease_of` adds them, none is removed
        self.grant_candidates: dict[int, Lease] = {}  # unassigned; `Grants.grant_pending` empties it
        self.awaiting_row_sync: list[Lease] = []  # their stamp rows wait for a sync; `Leases.synced` empties it
        self.paces_awaiting_sync: list[tuple[Lsn, int, Lease]] = []  # (ack, generation, lease), for `ShardReports`
        self.synced = Lsn(0)  # last entry on disk; `Leases.synced` sets it
        self.sync_wanted = Lsn(0)  # last entry that a hand-out, a grant or a pace waits for
        self.timed: dict[int, Lease] = {}  # with a revoke deadline or a retry time; `Leases.tick` removes them
        self.now = now  # set by the methods of `Leases` that take `now`
        self.pushed = 0  # records, counted by `Leases.push`
        self.stopping = False  # set once, by `Leases.stop`
        self.outbox: list[tuple[int, RouterMessage]] = []  # (shard id, message); `Bus.flush` empties it
        self.ended: list[SliceEnded] = []  # the router empties it after the write
        self.dead_letter_requests: list[DeadLetterRequest] = []  # `DeadLetterWriter` empties it
        self.shards_to_kill: list[tuple[int, str]] = []  # (shard id, reason); the router empties it
        self.alarms: dict[int, LeaseAlarm] = {}  # by partition number; only `alarm` and `clear_alarm` write it
        self.notices: list[LeaseNotice] = []  # the router logs and empties them
        self.stale_topics: set[str] = set()  # the router refreshes metadata and empties it
        self.loads: dict[int, ShardLoad] = {}  # the last LOAD by shard id; `Leases` writes it
        self.exited_shard_counters: Counter[str] = Counter()
        """The sum of the last counters of each exited shard."""
        self.counters: Counter[str] = Counter()

    def record(self, entry: ControlEntry) -> Lsn:
        """Append an entry to the log and apply it to the ledger."""
        place = self.log.append(entry)
        self.ledger.apply(entry)
        return place

    def send(self, seat: int, message: RouterMessage) -> None:
        self.outbox.append((seat, message))

    def wall_ms(self) -> int:
        return int(self.now * 1000) + self.wall_offset_ms

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

    def await_sync(self, place: Lsn) -> None:
        self.sync_wanted = max(self.sync_wanted, place)

    def send_pace(self, lease: Lease, pace: str) -> None:
        """Send the holder the pace it may use."""
        lease.pace, lease.pace_sent_at = pace, self.now
        durable = lease.durable
        self.send(lease.shard_id, Pace(lease.number, lease.generation, pace, durable.anchor, durable.log_start))

    # --- transitions of one lease ------------------------------------------------------------------------------------

    def revoke(self, lease: Lease, errand: RevokeReason) -> None:
        """Revoke a held lease. If it is already being revoked, only the reason changes."""
        if lease.state is LeaseState.HELD:
            self.dispatcher.drop(lease)
            lease.move(LeaseState.REVOKING)
            lease.revoke_deadline = self.now + self.limits.revoke_timeout_ms / 1000
            self.send(lease.shard_id, Revoke(lease.number, lease.generation))
            self.timed[lease.number] = lease
            self.counters["revokes"] += 1
        lease.revoke_reason = errand

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
                self.dispatcher.drop(lease)
                lease.move(LeaseState.FENCING)

    def lease_returned(self, lease: Lease, cuts: list[BatchBounds], *, facts: bool) -> None:
        """A lease was returned: record the batches that may have been sent, then act on the revoke reason."""
        assert lease.state in POSSIBLY_HELD
        durable = lease.durable
        errand, lease.revoke_reason = lease.revoke_reason, None
        if isinstance(errand, ContinueLogEndSearch) and lease.search is not None:
            # The trial was refused: it is not in the log, so it has no bounds to record.
            cuts = []
        self.record_batch_bounds(lease, cuts, None if facts else lease.possibly_sent_end)
        lease.backlog.rewind()
        lease.flush_sent_end = 0
        if isinstance(errand, DeadLetterBatch):
            lease.move(LeaseState.SETTLING)
            lease.step = SettlingStep.DEAD_LETTER
            self.dead_letter_requests.append(dead_letter_request(durable, errand, lease.backlog))
        elif isinstance(errand, Block):
            self.block(lease, errand)
        else:
            self.unassign(lease)

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

    def unassign(self, lease: Lease) -> None:
        """Release the lease: no shard holds it, and it is granted as soon as possible."""
        lease.step = lease.block = None
        lease.retry_at = None
        lease.move(LeaseState.UNASSIGNED)
        self.grant_candidates[lease.number] = lease

    def block(self, lease: Lease, block: Block) -> None:
        """Keep all records, raise the alarm, and let other partitions continue."""
        lease.move(LeaseState.BLOCKED)
        lease.search = None
        lease.block = block
        lease.retry_at = None
        if block.retry:
            wait_ms = min(self.limits.retry_ms << min(lease.tries, 20), self.limits.retry_max_ms)
            lease.retry_at = self.now + wait_ms / 1000
            lease.tries += 1
            self.timed[lease.number] = lease
        self.alarm(lease, block.why, block.text, block.first, block.end)
        self.counters["blocks"] += 1

    def alarm(self, lease: Lease, why: BlockReason, text: str, first: int, end: int) -> None:
        """Raise the alarm or update its text. `since` stays the time it was first raised."""
        durable = lease.durable
        known = self.alarms.get(lease.number)
        since = known.since if known is not None else self.now
        self.alarms[lease.number] = LeaseAlarm(lease.number, durable.topic, durable.index, since, why, text, first, end)
        if known is None or known.why is not why:
            self.notices.append(LeaseNotice(why.value, durable.topic, durable.index, first, end, text))
            if why is BlockReason.GAP:
                self.counters["gap_records"] += end - first

    def clear_alarm(self, lease: Lease) -> None:
        """Kafka accepted a batch: clear the alarm."""
        lease.tries = 0
        if lease.number in self.alarms:
            del self.alarms[lease.number]

    def possible_duplicates(self, lease: Lease, first: int, end: int, text: str) -> None:
        """Count and report records that may have been written twice."""
        durable = lease.durable
        self.counters["possible_duplicates"] += end - first
        self.notices.append(LeaseNotice("possible_duplicates", durable.topic, durable.index, first, end, text))

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
