"""One partition's lease: the part of the lease table that is not durable."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from ...wire.ids import NO_LEADER
from ...wire.messages import FIRST, Cut, Row
from ..ledger.entries import Lsn
from ..ledger.partition_state import PartitionState
from .backlog import Backlog
from .batch_bounds import row_at
from .log_end_search import Search
from .states import HOLDING, NEXT, Block, BlockedBy, Errand, LeaseState, Step


class Leader(NamedTuple):
    """Who leads a partition, and since which epoch."""

    node: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """A partition that needs an operator's eye. Ordinals [first, end) are concerned; `since` is CLOCK_MONOTONIC seconds."""

    partition: int
    topic: str
    index: int
    since: float
    why: BlockedBy
    text: str
    first: int
    end: int


_UNKNOWN: Final = Leader(NO_LEADER, -1)
_EVER: Final = Lsn(0)
"""Any sync of this start covers it: the first one covers all that was recovered."""


@dataclass(slots=True, eq=False)
class Lease:
    """`durable` is the ledger's own row and changes only by entries."""

    durable: PartitionState
    backlog: Backlog
    state: LeaseState = LeaseState.UNPLACED
    seat: int = -1
    node: int = -1
    leader_epoch: int = -1
    """That of the GRANT or MOVE in force."""
    leader: Leader = _UNKNOWN
    """The newest known."""
    errand: Errand | None = None
    step: Step | None = None
    block: Block | None = None
    recall_until: float = 0.0
    retry_at: float | None = None
    tries: int = 0
    handed_end: int = 0
    """The ordinal behind the last one handed out under this generation."""
    search: Search | None = None
    """Where its log ends is being tried."""
    inherited_end: int = 0
    """The ordinal behind the last cut this generation was granted with."""
    pace: str = FIRST
    """As last told."""
    pace_told_at: float = 0.0
    row_lsn: Lsn = _EVER
    """The stamp rows are synced when this is."""
    anchor_lsn: Lsn = _EVER
    """The first acknowledgement under the producer id in force is synced when this is."""
    narrow_through: int = 0
    """Ordinals below it may lie in batches with old timestamps."""
    unsure_through: int = 0
    """Cuts below it were granted while the broker's memory of them was not certain (11.6)."""
    flush_through: int = 0
    flush_told: int = 0

    @property
    def number(self) -> int:
        return self.durable.number

    @property
    def generation(self) -> int:
        return self.durable.generation

    def move(self, state: LeaseState) -> None:
        """Go to another state; anything the table does not allow is a fault of ours."""
        assert state in NEXT[self.state], (self.number, self.state, state)
        if state not in HOLDING:
            self.seat = self.node = -1
        self.state = state

    @property
    def row(self) -> Row | None:
        """The stamp row in force at the ack mark."""
        return row_at(self.durable.rows, self.durable.mark)

    @property
    def sent_end(self) -> int:
        """Nothing from this ordinal on can have been sent under this generation."""
        return max(self.durable.mark, self.handed_end, self.inherited_end)

    def open_cuts(self) -> list[Cut]:
        """The spool's cuts that are not resolved. Those that a later stamp row cuts through were settled before it was written."""
        rows = self.durable.rows
        found: list[Cut] = []
        for cut in self.durable.cuts:
            row = row_at(rows, cut.first)
            if row is None or row.epoch != cut.epoch or row_at(rows, cut.first + cut.count - 1) is not row:
                break
            found.append(cut)
        return found

    @property
    def unsettled_end(self) -> int:
        """Nothing from this ordinal on can be in the log."""
        cuts = self.open_cuts()
        known = cuts[-1].first + cuts[-1].count if cuts else self.durable.mark
        return max(known, (self.durable.unknown_through or -1) + 1)

    @property
    def uncertain(self) -> bool:
        """Cuts of unresolved ordinals are not known for certain."""
        through = self.durable.unknown_through
        return through is not None and through >= self.durable.mark


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One row of `/stats`. `seat` and `node` -1: nobody holds it. `oldest_ms`: CLOCK_MONOTONIC of its oldest record, -1: none."""

    topic: str
    index: int
    state: str
    seat: int
    node: int
    generation: int
    pace: str
    mark: int
    next_ordinal: int
    slices: int
    oldest_ms: int


class Queued(NamedTuple):
    """Bytes of slices of a partition: handed out to the shard in `seat` for `node`, and not handed out. -1: nobody holds it."""

    seat: int
    node: int
    handed_bytes: int
    waiting_bytes: int


def view(lease: Lease) -> LeaseView:
    """The row of a lease as it is."""
    first = lease.backlog.unresolved[0] if lease.backlog.unresolved else None
    return LeaseView(
        lease.durable.topic,
        lease.durable.index,
        lease.state.value,
        lease.seat,
        lease.node,
        lease.generation,
        lease.pace,
        lease.durable.mark,
        lease.durable.next_ordinal,
        len(lease.backlog.unresolved),
        -1 if first is None else first.created_ms,
    )
