"""Applies shard reports about batches (10.1): acked, refused, stuck.

No record is dropped: a slice ends only by an ack that covers it, or in the dead letters.
"""

from collections.abc import Callable, Iterable

from ...producer.protocol.error_codes import ProduceErrorClass, classify_produce_error, error_name
from ...wire.ids import NO_OFFSET
from ...wire.messages import (
    FIRST,
    Anchor,
    BatchBounds,
    BatchRefused,
    DoneBatch,
    NewLeaderHint,
    PartitionHalted,
    ProbeRefused,
    Revoked,
    SliceUnreadable,
)
from ..ledger.entries import AckedEntry, BatchBoundsEntry
from .backlog import BatchAck
from .batch_bounds import overlay
from .lease import Lease, NewLeader
from .paces import LeasePaces
from .states import (
    POSSIBLY_HELD,
    Block,
    BlockReason,
    ContinueLogEndSearch,
    DeadLetterBatch,
    LeaseState,
)
from .table import LeaseTable

_ShardReport = DoneBatch | BatchRefused | NewLeaderHint | Revoked | ProbeRefused | PartitionHalted | SliceUnreadable


class ShardReports:
    """Applies one shard's reports to the lease table."""

    def __init__(self, table: LeaseTable, paces: LeasePaces, parks_refused: Callable[[str], bool]) -> None:
        self._table = table
        self._paces = paces
        self._dead_letters_refused = parks_refused

    def _lease(self, seat: int, report: _ShardReport) -> Lease | None:
        """The lease a report is about. None: the report is from an older generation and is dropped."""
        lease = self._table.leases.get(report.partition)
        if (
            lease is None
            or report.generation != lease.generation
            or lease.shard_id != seat
            or lease.state not in POSSIBLY_HELD
        ):
            self._table.counters["stale_messages"] += 1
            return None
        return lease

    # --- acknowledged ------------------------------------------------------------------------------------------------

    def batches_done(self, seat: int, items: Iterable[DoneBatch]) -> None:
        """These batches and all older ones of their partitions are in the log. Writes one entry per partition."""
        table = self._table
        entries: dict[int, AckedEntry] = {}
        leases: dict[int, Lease] = {}
        for item in items:
            lease = self._lease(seat, item)
            if lease is None:
                continue
            before = entries.get(item.partition)
            durable = lease.durable
            end, mark = item.first + item.count, before.mark if before is not None else durable.mark
            if end <= mark:
                table.counters["stale_messages"] += 1
                continue
            if item.count <= 0 or item.first < mark or end > lease.backlog.handed_end:
                table.kill_shard(
                    seat, f"DONE {item} of {durable.topic}-{durable.index} beyond {mark}..{lease.backlog.handed_end}"
                )
                break
            anchor = before.anchor if before is not None else durable.anchor
            if anchor is not None and 0 <= item.base_offset <= anchor.base_offset:
                self._block_below_anchor(lease, item, anchor)
                continue
            if lease.bounds_uncertain and not self._proves_log_end(lease, item):
                continue
            table.uncertain_batches_acked(lease, mark)
            entries[item.partition] = self._entry(lease, item, anchor, before)
            leases[item.partition] = lease
            table.advance(lease, end, BatchAck(item.first, item.count, item.base_offset, item.log_append_ms))
        for number, entry in entries.items():
            self._paces.acked(leases[number], entry)

    def _proves_log_end(self, lease: Lease, item: DoneBatch) -> bool:
        """Within uncertain bounds a success shows where the log ends only if the broker still had our producer state.
        The log start in the same response proves that (LOC-2)."""
        anchor = lease.durable.anchor
        if anchor is not None and 0 <= item.log_start <= anchor.base_offset:
            return True
        text = "a batch was taken by a broker that may have forgotten those before it"
        self._block(
            lease, BlockReason.BATCH_BOUNDS_UNKNOWN, text, lease.durable.mark, lease.possibly_written_end, retry=False
        )
        return False

    def _entry(self, lease: Lease, item: DoneBatch, anchor: Anchor | None, before: AckedEntry | None) -> AckedEntry:
        base = item.base_offset
        if base == NO_OFFSET and anchor is not None:
            # This batch follows the previous one; its older offset errs on the safe side in log start comparisons.
            base = anchor.base_offset
        time_ms = item.log_append_ms if item.log_append_ms >= 0 else item.time_ms
        new = Anchor(base, time_ms, self._table.wall_ms(), item.leader_epoch)
        return AckedEntry(
            lease.number,
            item.first + item.count,
            new,
            item.log_start,
            lease.shard_id,
            (0 if before is None else before.batches) + 1,
            (0 if before is None else before.resent) + max(item.attempts - 1, 0),
            NO_OFFSET if item.base_offset == NO_OFFSET else item.base_offset + item.count,
        )

    def _block_below_anchor(self, lease: Lease, item: DoneBatch, anchor: Anchor) -> None:
        """Block the lease: this is no success. The topic was recreated, or the brokers lost acked records."""
        text = f"acknowledged at offset {item.base_offset}, not above {anchor.base_offset} of an older batch"
        durable, row = lease.durable, lease.stamp_row
        assert row is not None
        # The shard considers the batch resolved and forgets its bounds; the router keeps it as unresolved.
        layers = [*lease.open_batches(), BatchBounds(item.first, item.count, row.epoch)]
        cuts = overlay(layers, durable.rows, durable.mark).bounds
        _ = self._table.record(
            BatchBoundsEntry(lease.number, cuts, durable.batch_bounds_are_facts, durable.unknown_through)
        )
        self._table.stale_topics.add(durable.topic)
        self._block(lease, BlockReason.OFFSET, text, item.first, item.first + item.count, retry=False)

    # --- refused -----------------------------------------------------------------------------------------------------

    def refused(self, seat: int, refused: BatchRefused) -> None:
        """The oldest unresolved batch was refused."""
        lease = self._lease(seat, refused)
        if lease is None:
            return
        table, durable = self._table, lease.durable
        end = refused.first + refused.count
        listed = all(0 <= index < refused.count for index, _ in refused.record_errors)
        if refused.first != durable.mark or refused.count <= 0 or end > lease.backlog.handed_end or not listed:
            table.kill_shard(seat, f"REFUSED {refused.first}+{refused.count} where the oldest is {durable.mark}")
            return
        table.counters["refusals"] += 1
        text = f"{error_name(refused.code)}: {refused.message}" if refused.message else error_name(refused.code)
        verdict = classify_produce_error(refused.code, record_count=1, log_start=-1).error_class
        content = verdict is ProduceErrorClass.REFUSED_CONTENT
        if lease.bounds_uncertain:
            # Its records may be in the log in batches with other bounds.
            self._block(lease, BlockReason.AMBIGUOUS, text, refused.first, end, retry=True)
        elif not content and not (
            verdict is ProduceErrorClass.REFUSED_UNTIL_FIXED and self._dead_letters_refused(durable.topic)
        ):
            why = BlockReason.REFUSED if verdict is ProduceErrorClass.REFUSED_UNTIL_FIXED else BlockReason.AMBIGUOUS
            self._block(lease, why, text, refused.first, end, retry=True)
        elif not refused.ambiguous:
            self._table.revoke(lease, DeadLetterBatch(refused, may_be_written=False))
        elif content and lease.pace == FIRST:
            # No later batch can show whether the records were written (BRK-4): dead-letter them as `may_be_written`.
            self._table.revoke(lease, DeadLetterBatch(refused, may_be_written=True))
        else:
            self._block(lease, BlockReason.AMBIGUOUS, text, refused.first, end, retry=True)

    # --- stuck -------------------------------------------------------------------------------------------------------

    def gap(self, seat: int, gap: ProbeRefused) -> None:
        """A whole backward probe was refused: acked records may be lost, or the leader is deposed."""
        lease = self._lease(seat, gap)
        if lease is None:
            return
        self._table.counters["gaps"] += 1
        text = f"the leader of epoch {gap.leader_epoch} refuses every unresolved batch: {gap.error}"
        if not lease.bounds_uncertain:
            self._table.stale_topics.add(lease.durable.topic)
            self._block(lease, BlockReason.GAP, text, lease.durable.mark, lease.possibly_sent_end, retry=True)
        elif lease.search is None or lease.search.next_trial(lease.backlog.end):
            # Not the log end, or no longer: the broker may have recognised an earlier batch, not appended it (LOC-3).
            self._table.revoke(lease, ContinueLogEndSearch())
        else:
            self._table.stale_topics.add(lease.durable.topic)
            self._block(lease, BlockReason.GAP, text, lease.durable.mark, lease.possibly_written_end, retry=False)

    def halt(self, seat: int, halt: PartitionHalted) -> None:
        """The shard cannot continue with this partition."""
        lease = self._lease(seat, halt)
        if lease is None:
            return
        self._table.counters["halts"] += 1
        self._table.stale_topics.add(lease.durable.topic)
        epoch = (
            halt.code >= 0
            and classify_produce_error(halt.code, record_count=1, log_start=-1).error_class
            is ProduceErrorClass.STALE_EPOCH
        )
        why = BlockReason.EPOCH if epoch else BlockReason.HALTED
        text = f"{error_name(halt.code)}: {halt.message}" if halt.code > 0 else halt.message
        self._block(lease, why, text, lease.durable.mark, lease.possibly_sent_end, retry=not epoch)

    def unreadable(self, seat: int, report: SliceUnreadable) -> None:
        """A slice could not be read, or its checksum is wrong. None of its records was sent."""
        lease = self._lease(seat, report)
        if lease is not None:
            self._table.counters["unreadable"] += 1
            text = f"segment {report.segment:016x} at {report.offset}: {report.what}"
            end = report.first + report.count
            self._block(lease, BlockReason.UNREADABLE, text, report.first, end, retry=True)

    def _block(self, lease: Lease, why: BlockReason, text: str, first: int, end: int, *, retry: bool) -> None:
        self._table.revoke(lease, Block(why, text, first, end, retry=retry))

    # --- returned leases ---------------------------------------------------------------------------------------------

    def leader_hint(self, seat: int, hint: NewLeaderHint) -> None:
        """A newer leader, or a sign that metadata is stale."""
        lease = self._lease(seat, hint)
        if lease is not None:
            self._table.stale_topics.add(lease.durable.topic)
            if hint.leader >= 0:
                durable = lease.durable
                hinted = NewLeader(durable.topic, durable.index, hint.leader, hint.leader_epoch)
                self._table.new_leaders.append(hinted)

    def revoked(self, seat: int, revoked: Revoked) -> None:
        """A lease was returned, with the bounds of every unresolved batch that may have been sent."""
        lease = self._lease(seat, revoked)
        if lease is None:
            return
        durable = lease.durable
        row = lease.stamp_row
        for cut in revoked.cuts:
            inside = durable.mark <= cut.first and cut.count > 0 and cut.first + cut.count <= lease.possibly_sent_end
            if not inside or row is None:
                self._table.kill_shard(seat, f"REVOKED with {cut} beyond {durable.mark}..{lease.possibly_sent_end}")
                return
        if lease.state is LeaseState.FENCING:
            # Its journal has the same bounds, and nothing is granted before the shard is reaped.
            return
        found = overlay([*lease.open_batches(), *revoked.cuts], durable.rows, durable.mark)
        self._table.returned(lease, found.bounds, facts=found.certain)
