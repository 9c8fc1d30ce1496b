"""Writes stamp rows: a partition's first, those after dead-lettered or lost records, those of another producer id.

A row is synced before anything is sent under it (HO-11). The entries are ordered so that any prefix of them is safe.
"""

from collections.abc import Collection

from ...producer.records.sequence_ranges import EPOCH_MAX
from ..ledger.entries import ParkedEntry
from .lease import Lease
from .refused_batches import DeadLetterRequest, stamp_rows_for
from .states import POSSIBLY_HELD, SettlingStep
from .table import LeaseTable


class SequenceEpochs:
    """Owner of the producer ids."""

    def __init__(self, table: LeaseTable) -> None:
        self._table = table
        self.producer_id: int | None = None
        self.new_id_reason: str | None = None
        self._spare_ids: list[int] = []
        self._waiting_for_id: list[Lease] = []
        self._dead_letters_awaiting_id: list[tuple[Lease, DeadLetterRequest, str]] = []

    @property
    def needs_producer_id(self) -> bool:
        """Whether a producer id is needed: the daemon's own, or one for a single partition."""
        return self.producer_id is None or bool(self._waiting_for_id or self._dead_letters_awaiting_id)

    def set_producer_id(self, producer_id: int) -> None:
        """The first id is the daemon's; later ids are for single partitions."""
        if self.producer_id is None:
            self.producer_id = producer_id
            if self.new_id_reason is not None:
                self._replace_producer_id(producer_id, self.new_id_reason)
            return
        if producer_id != self.producer_id:
            self._spare_ids.append(producer_id)
        if self._spare_ids and self._waiting_for_id:
            self._use_own_producer_id(self._waiting_for_id.pop(0), self._spare_ids.pop(0))
        elif self._spare_ids and self._dead_letters_awaiting_id:
            self.write_dead_lettered(*self._dead_letters_awaiting_id.pop(0))

    def request_own_producer_id(self, lease: Lease) -> None:
        """Continue the partition from its mark under a producer id of its own."""
        self._table.settle(lease, SettlingStep.PRODUCER_ID)
        self._waiting_for_id.append(lease)
        if self._spare_ids:
            self._use_own_producer_id(self._waiting_for_id.pop(0), self._spare_ids.pop(0))

    def resend(self, lease: Lease) -> None:
        """Resend from the mark whatever the log contains: at least once, counted as possible duplicates."""
        first, end = (
            lease.durable.mark,
            max(lease.possibly_written_end, lease.block.end if lease.block is not None else 0),
        )
        self._table.alarms.possible_duplicates(lease, first, max(first, end), "an operator had it sent again")
        self._table.clear_alarm(lease)
        self.request_own_producer_id(lease)

    def _use_own_producer_id(self, lease: Lease, producer_id: int) -> None:
        self.write_stamp_rows(lease, producer_id, "new_producer_id")
        self._table.unassign(lease)

    def _replace_producer_id(self, producer_id: int, reason: str) -> None:
        table = self._table
        for number, state in table.ledger.by_number.items():
            if state.rows:
                lease = table.lease_of(number)
                assert lease.state not in POSSIBLY_HELD, (
                    f"partition {number} was granted before the new identity is known"
                )
                if state.next_ordinal > state.mark:
                    table.alarms.possible_duplicates(lease, state.mark, state.next_ordinal, reason)
                self.write_stamp_rows(lease, producer_id, "new_identity")

    def repair_lost_ranges(self, lost: Collection[int]) -> None:
        """At the start, close holes without a stamp row after them (disk damage, or a power cut while dead-lettering):
        by a new epoch, or, if later records may have been sent, by a new producer id, counted as possible
        duplicates."""
        table = self._table
        for number, state in table.ledger.by_number.items():
            starts = {row.start for row in state.rows}
            if not state.rows or (number not in lost and all(hole.end in starts for hole in state.holes)):
                continue
            lease = table.lease_of(number)
            last = state.rows[-1]
            if lease.possibly_written_end > state.mark or last.epoch >= EPOCH_MAX:
                table.alarms.possible_duplicates(
                    lease, state.mark, lease.possibly_written_end, "part of the spool is lost"
                )
                self.request_own_producer_id(lease)
                continue
            first, behind = stamp_rows_for(state, [], last.producer_id, last.epoch + 1)
            table.add_stamp_rows(lease, [first, *behind], "part of the spool is lost")
            table.counters["producer_epoch_bumps"] += 1

    def write_stamp_rows(self, lease: Lease, new_id: int, reason: str) -> None:
        """Use another producer id from the mark on. Rows come first: they settle the batches that they split."""
        table = self._table
        bump, behind = stamp_rows_for(lease.durable, [], new_id, 0)
        table.add_stamp_rows(lease, [bump, *behind], reason)
        table.clear_batch_bounds(lease)
        table.counters["new_producer_ids"] += 1

    def write_dead_lettered(self, lease: Lease, request: DeadLetterRequest, letter: str) -> None:
        """Record dead-lettered records as holes, and start a new epoch at the first record left (IDN-5, IDN-6, BMP-1).

        The epoch's row comes first and the rows after the holes last. Whatever prefix of these entries survives a power
        cut, no record is skipped that was not dead-lettered, and no dead-lettered record is sent.
        """
        table, durable = self._table, lease.durable
        last = durable.rows[-1]
        used_up = last.epoch >= EPOCH_MAX
        if used_up and not self._spare_ids:
            table.settle(lease, SettlingStep.PRODUCER_ID)
            self._dead_letters_awaiting_id.append((lease, request, letter))
            return
        producer_id, epoch = (self._spare_ids.pop(0), 0) if used_up else (last.producer_id, last.epoch + 1)
        bump, behind = stamp_rows_for(durable, request.ranges, producer_id, epoch)
        reason = f"parked: {request.error}"
        table.add_stamp_rows(lease, [bump], reason)
        ordinals = [(piece.first, piece.count) for piece in request.ranges]
        _ = table.record(ParkedEntry(lease.number, ordinals, request.code, request.message, letter))
        table.add_stamp_rows(lease, behind, reason)
        table.clear_batch_bounds(lease)
        table.counters["new_producer_ids" if used_up else "producer_epoch_bumps"] += 1
        lease.backlog.add_dead_lettered(request.ranges)
        table.advance(lease, durable.mark, None)
        table.clear_alarm(lease)
        table.unassign(lease)

    def ensure_synced_rows(self, lease: Lease) -> bool:
        """Make sure that stamp rows exist, cover every hole, and use no producer id that was given up (IDN-9). Returns
        False while a producer id or the sync of the rows (HO-11) is missing."""
        table, durable = self._table, lease.durable
        if self.producer_id is None and (self.new_id_reason is not None or not durable.rows):
            return False
        if not durable.rows:
            assert self.producer_id is not None
            first, behind = stamp_rows_for(durable, [], self.producer_id, 0)
            table.add_stamp_rows(lease, [first, *behind], "new_partition")
        return table.rows_are_synced(lease)
