"""Decides the pace of every lease: how many batches its holder may have in flight."""

from typing import Final, NamedTuple

from ...producer.sender.inflight_limit import is_renewal_due, pace_of
from ...wire.messages import FIRST, OPEN
from ..ledger.entries import AckedEntry, Lsn
from .lease import Lease
from .states import LeaseState
from .table import LeaseTable

AGES_EVERY_S: Final = 30.0
"""How often held leases are checked for old acks. Half of the producer id expiration E is hours."""
_NO_TIMESTAMP: Final = 1 << 62


class _AwaitedPace(NamedTuple):
    """A PACE that follows when the ack's entry at `place` is synced."""

    place: Lsn
    generation: int
    lease: Lease


class LeasePaces:
    """Owner of the paces that wait for a sync."""

    def __init__(self, table: LeaseTable, now: float) -> None:
        self._table = table
        self._awaited: list[_AwaitedPace] = []
        self.check_ages_at = now + AGES_EVERY_S

    def allowed(self, lease: Lease, end: int) -> str:
        """The pace that known facts allow, synced or not, with everything below `end` in flight."""
        return self._pace(lease, 0 if lease.backlog.narrow_through > end else _oldest_ms(lease, end))

    def at_grant(self, lease: Lease) -> tuple[str, bool]:
        """The pace to grant with, and whether the broker may have lost the state of the inherited batches (11.6)."""
        table, durable = self._table, lease.durable
        cuts = table.inherited_batches(lease)
        end = cuts[-1].first + cuts[-1].count if cuts else durable.mark
        allowed = self.allowed(lease, end)
        aged = table.wall_ms() - _oldest_ms(lease, end) > table.expiration_ms // 2
        uncertain = bool(cuts) and allowed == FIRST and (durable.anchor is not None or aged)
        return (allowed if 0 < table.synced >= lease.anchor_lsn else FIRST), uncertain

    def acked(self, lease: Lease, entry: AckedEntry) -> None:
        """Record an ack. A wider pace that it allows is sent when the ack is synced: at FIRST the shard waits for it."""
        table, before = self._table, lease.durable.anchor
        waits = lease.pace == FIRST or before is None
        # The shard may have gone to FIRST itself when the log start passed the old anchor.
        log_start = entry.log_start if entry.log_start >= 0 else lease.durable.log_start
        moved = before is not None and log_start > before.base_offset
        is_due = is_renewal_due(lease.pace, log_start_moved=moved, age_s=table.now - lease.pace_sent_at)
        place = table.acked(lease, entry, pace_follows=is_due)
        if is_due:
            self._awaited.append(_AwaitedPace(place, lease.generation, lease))
            if waits:
                table.await_sync(place)

    def send_due(self) -> None:
        """Send the paces that synced acks allow."""
        synced = self._table.synced
        due = [wait for wait in self._awaited if wait.place <= synced]
        if not due:
            return
        self._awaited = [wait for wait in self._awaited if wait.place > synced]
        for _, generation, lease in due:
            if lease.state is LeaseState.HELD and lease.generation == generation:
                self._table.send_pace(lease, self._current(lease))

    def check_ages(self, now: float) -> None:
        """Send a narrower pace where the last ack is so old that the broker may have expired our producer state."""
        if now < self.check_ages_at:
            return
        self.check_ages_at = now + AGES_EVERY_S
        for lease in self._table.leases.values():
            if lease.state is LeaseState.HELD and lease.pace == OPEN and self._current(lease) == FIRST:
                self._table.send_pace(lease, FIRST)

    def _current(self, lease: Lease) -> str:
        """The pace that may be sent to the holder now."""
        if lease.anchor_lsn > self._table.synced:
            return FIRST
        return self._pace(lease, 0 if lease.backlog.narrow_through > lease.durable.mark else _NO_TIMESTAMP)

    def _pace(self, lease: Lease, oldest_ms: int) -> str:
        table, durable = self._table, lease.durable
        return pace_of(
            durable.anchor,
            durable.log_start,
            oldest_ms,
            wall_ms=table.wall_ms(),
            expiration_ms=table.expiration_ms,
        )


def _oldest_ms(lease: Lease, end: int) -> int:
    oldest = _NO_TIMESTAMP
    for piece in lease.backlog.unresolved:
        if piece.first >= end:
            break
        oldest = min(oldest, piece.max_ts)
    return oldest
