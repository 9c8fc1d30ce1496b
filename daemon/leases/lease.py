"""One partition's lease: the part of the lease table that is not durable."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from ...wire.ids import NO_LEADER
from ...wire.messages import FIRST, BatchBounds, StampRow
from ..ledger.entries import Lsn
from ..ledger.partition_state import LedgerPartition
from .backlog import Backlog
from .batch_bounds import stamp_row_at
from .log_end_search import LogEndSearch
from .states import LEASE_TRANSITIONS, POSSIBLY_HELD, Block, BlockReason, LeaseState, RevokeReason, SettlingStep


class LeaderAndEpoch(NamedTuple):
    """Who leads a partition, and since which epoch."""

    node: int
    epoch: int


@dataclass(frozen=True, slots=True)
class LeaseAlarm:
    """A partition that needs an operator's eye. Ordinals [first, end) are concerned; `since` is CLOCK_MONOTONIC seconds."""

    partition: int
    topic: str
    index: int
    since: float
    why: BlockReason
    text: str
    first: int
    end: int


_UNKNOWN: Final = LeaderAndEpoch(NO_LEADER, -1)
_EVER: Final = Lsn(0)
"""Any sync of this start covers it: the first one covers all that was recovered."""


@dataclass(slots=True, eq=False)
class Lease:
    """`durable` is the ledger's own row and changes only by entries."""

    durable: LedgerPartition
    backlog: Backlog
    state: LeaseState = LeaseState.UNASSIGNED
    shard_id: int = -1
    node: int = -1
    leader_epoch: int = -1
    """That of the GRANT or MOVE in force."""
    leader: LeaderAndEpoch = _UNKNOWN
    """The newest known."""
    revoke_reason: RevokeReason | None = None
    step: SettlingStep | None = None
    block: Block | None = None
    revoke_deadline: float = 0.0
    retry_at: float | None = None
    tries: int = 0
    handed_end: int = 0
    """The ordinal behind the last one handed out under this generation."""
    search: LogEndSearch | None = None
    """Where its log ends is being tried."""
    inherited_end: int = 0
    """The ordinal behind the last cut this generation was granted with."""
    pace: str = FIRST
    """As last told."""
    pace_sent_at: float = 0.0
    stamp_row_lsn: Lsn = _EVER
    """The stamp rows are synced when this is."""
    anchor_lsn: Lsn = _EVER
    """The first acknowledgement under the producer id in force is synced when this is."""
    narrow_through: int = 0
    """Ordinals below it may lie in batches with old timestamps."""
    uncertain_grant_end: int = 0
    """Cuts below it were granted while the broker's memory of them was not certain (11.6)."""
    flush_through: int = 0
    flush_sent_end: int = 0

    @property
    def number(self) -> int:
        return self.durable.number

    @property
    def generation(self) -> int:
        return self.durable.generation

    def move(self, state: LeaseState) -> None:
        """Go to another state; anything the table does not allow is a fault of ours."""
        assert state in LEASE_TRANSITIONS[self.state], (self.number, self.state, state)
        if state not in POSSIBLY_HELD:
            self.shard_id = self.node = -1
        self.state = state

    @property
    def stamp_row(self) -> StampRow | None:
        """The stamp row in force at the ack mark."""
        return stamp_row_at(self.durable.rows, self.durable.mark)

    @property
    def possibly_sent_end(self) -> int:
        """Nothing from this ordinal on can have been sent under this generation."""
        return max(self.durable.mark, self.handed_end, self.inherited_end)

    def open_batches(self) -> list[BatchBounds]:
        """The spool's cuts that are not resolved. Those that a later stamp row cuts through were settled before it was written."""
        rows = self.durable.rows
        found: list[BatchBounds] = []
        for cut in self.durable.batch_bounds:
            row = stamp_row_at(rows, cut.first)
            if row is None or row.epoch != cut.epoch or stamp_row_at(rows, cut.first + cut.count - 1) is not row:
                break
            found.append(cut)
        return found

    @property
    def possibly_written_end(self) -> int:
        """Nothing from this ordinal on can be in the log."""
        cuts = self.open_batches()
        known = cuts[-1].first + cuts[-1].count if cuts else self.durable.mark
        return max(known, (self.durable.unknown_through or -1) + 1)

    @property
    def bounds_uncertain(self) -> bool:
        """Cuts of unresolved ordinals are not known for certain."""
        through = self.durable.unknown_through
        return through is not None and through >= self.durable.mark


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One row of `/stats`. `shard_id` and `node` -1: nobody holds it. `oldest_ms`: CLOCK_MONOTONIC of its oldest record, -1: none."""

    topic: str
    index: int
    state: str
    shard_id: int
    node: int
    generation: int
    pace: str
    mark: int
    next_ordinal: int
    slices: int
    oldest_ms: int


class QueuedBytes(NamedTuple):
    """Bytes of slices of a partition: handed out to the shard in `shard_id` for `node`, and not handed out. -1: nobody holds it."""

    shard_id: int
    node: int
    handed_out_bytes: int
    waiting_bytes: int


def view(lease: Lease) -> LeaseView:
    """The row of a lease as it is."""
    first = lease.backlog.unresolved[0] if lease.backlog.unresolved else None
    return LeaseView(
        lease.durable.topic,
        lease.durable.index,
        lease.state.value,
        lease.shard_id,
        lease.node,
        lease.generation,
        lease.pace,
        lease.durable.mark,
        lease.durable.next_ordinal,
        len(lease.backlog.unresolved),
        -1 if first is None else first.created_ms,
    )
