"""One partition's lease: the part of the lease table that is not durable."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from ...wire.messages import FIRST, BatchBounds, StampRow
from ..ledger.entries import Lsn
from ..ledger.partition_state import LedgerPartition
from .backlog import Backlog
from .batch_bounds import stamp_row_at
from .log_end_search import LogEndSearch
from .states import Block, LeaseState, RevokeReason, SettlingStep


class LeaderAndEpoch(NamedTuple):
    """The leader of a partition and its leader epoch."""

    node: int
    epoch: int


class NewLeader(NamedTuple):
    """A leader that a broker named to a shard, for the metadata."""

    topic: str
    index: int  # type: ignore[assignment]
    node: int
    epoch: int


_EVER: Final = Lsn(0)
"""Any sync of this start covers it: the first sync covers everything recovered."""


@dataclass(slots=True, eq=False)
class Lease:
    """One partition's lease. Only `LeaseTable` changes its fields, each by the methods named behind it. `durable` is the
    ledger's own row and changes only by entries; `backlog` is changed by its own methods and by `SliceDispatcher`."""

    durable: LedgerPartition
    backlog: Backlog
    state: LeaseState = LeaseState.UNASSIGNED  # the methods under "transitions"
    shard_id: int = -1  # the holder; -1: none. `grant`, `_move`
    node: int = -1  # the node the holder sends to; -1: no holder. `grant`, `move_to`, `_move`
    leader_epoch: int = -1  # the epoch of the GRANT or MOVE in force. `grant`, `move_to`
    followed_epoch: int = -1  # the newest leader epoch that was acted on. `follow_epoch`
    revoke_reason: RevokeReason | None = None  # `revoke`, `stop`; cleared by `returned`
    revoke_deadline: float = 0.0  # in REVOKING: when the holder is killed. `revoke`, `stop`
    step: SettlingStep | None = None  # only in SETTLING. `settle`; cleared by `unassign`
    block: Block | None = None  # only in BLOCKED. `block_lease`; cleared by `unassign`
    retry_at: float | None = None  # in BLOCKED: when to retry; None: no retry by time. `block_lease`, `unassign`
    tries: int = 0  # backoff exponent. `block_lease`; `clear_alarm` resets it
    search: LogEndSearch | None = None
    """The search for the end of the log, while it runs. `begin_search`; ended by `acked`, `follow_epoch`, `block_lease`,
    `record_batch_bounds` and `clear_batch_bounds`."""
    inherited_end: int = 0  # one past the last ordinal of the batches this generation was granted with. `grant`
    pace: str = FIRST  # the pace last sent to the holder. `grant`, `send_pace`
    pace_sent_at: float = 0.0  # `grant`, `send_pace`, `acked`
    stamp_row_lsn: Lsn = _EVER  # the stamp rows are synced when this entry is. `add_stamp_rows`
    anchor_lsn: Lsn = _EVER  # the first ack under the current producer id is synced when this entry is. `acked`
    uncertain_grant_end: int = 0
    """Batches below it were granted while it was uncertain whether the broker still had their state (11.6). `grant`;
    reset by `uncertain_batches_acked` and `clear_batch_bounds`."""

    @property
    def number(self) -> int:
        return self.durable.number

    @property
    def generation(self) -> int:
        return self.durable.generation

    @property
    def stamp_row(self) -> StampRow | None:
        """The stamp row in force at the ack mark."""
        return stamp_row_at(self.durable.rows, self.durable.mark)

    @property
    def possibly_sent_end(self) -> int:
        """No ordinal from here on can have been sent under this generation."""
        return max(self.durable.mark, self.backlog.handed_end, self.inherited_end)

    def open_batches(self) -> list[BatchBounds]:
        """The recorded bounds of unresolved batches. A later stamp row that splits a batch proves it settled."""
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
        """No ordinal from here on can be in the log."""
        cuts = self.open_batches()
        known = cuts[-1].first + cuts[-1].count if cuts else self.durable.mark
        return max(known, (self.durable.unknown_through or -1) + 1)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of unresolved slices that are not handed out."""
        return max(0, self.backlog.nbytes - self.backlog.handed_out_bytes)

    @property
    def bounds_uncertain(self) -> bool:
        """Whether the batch bounds of some unresolved ordinals are uncertain."""
        through = self.durable.unknown_through
        return through is not None and through >= self.durable.mark
