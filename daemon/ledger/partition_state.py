"""State of all partitions: ordinals, ack marks, stamp rows, batch bounds, anchors. A fold of the log's entries.

Not its job: decisions. Leases and intake decide, append the entry to the log, and apply it here at once. Recovery
applies the entries that it reads. Invariants are asserted, so that a corrupt table stops the router before it numbers
or sends any record wrongly.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, assert_never

from ...producer.metadata.leader_epochs import may_follow
from ...wire.audit_records import PARKED
from ...wire.messages import Anchor, BatchBounds, StampRow
from ...wire.record_ids import IdRow
from .audit_counts import AuditCounts
from .entries import (
    AckedEntry,
    BatchBoundsEntry,
    CheckpointEntry,
    Entry,
    FrameEntry,
    GrantedEntry,
    IncarnationEntry,
    ParkedEntry,
    PartitionEntry,
    PartitionSnapshot,
    RefusedEntry,
    SessionEntry,
    StampRowEntry,
)


class LedgerHole(NamedTuple):
    """Ordinals that will never be sent."""

    first: int
    count: int  # type: ignore[assignment]

    @property
    def end(self) -> int:
        return self.first + self.count


@dataclass(slots=True, eq=False)
class LedgerPartition:
    """One partition's durable state. Only `Ledger` and, during recovery, `Replay` change it.

    `mark`: every ordinal below it is resolved. `rows`: stamp rows in force from the mark on, ascending. `batch_bounds`:
    batches that may have been sent and are not resolved, ascending. `unknown_through`: ordinals from the mark through
    this one may have been sent in batches whose bounds are not known; None: there are none. `holes`: ordinals beyond
    the mark that will never be sent, ascending, not adjacent to each other. `id_rows`: incarnations of the ordinals
    from the mark on, ascending; ordinals before the first row have none.
    """

    number: int
    topic: str
    topic_id: bytes
    index: int
    next_ordinal: int = 0
    mark: int = 0
    rows: list[StampRow] = field(default_factory=list)
    batch_bounds: list[BatchBounds] = field(default_factory=list)
    batch_bounds_are_facts: bool = True
    unknown_through: int | None = None
    anchor: Anchor | None = None
    log_start: int = -1
    leader_epoch: int = -1
    generation: int = 0
    holes: list[LedgerHole] = field(default_factory=list)
    id_rows: list[IdRow] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Number of records that are neither resolved nor lost nor parked."""
        return self.next_ordinal - self.mark - sum(hole.count for hole in self.holes)

    def assert_consistent(self) -> None:
        """Assert the invariants of the mark, the holes and the batch bounds."""
        assert 0 <= self.mark <= self.next_ordinal, f"mark {self.mark} lies beyond ordinal {self.next_ordinal}"
        before = self.mark
        for hole in self.holes:
            assert hole.first > before, f"hole {hole} of partition {self.number} touches {before}"
            before = hole.end
        assert before <= self.next_ordinal
        before = self.mark
        for cut in self.batch_bounds:
            assert cut.first >= before, f"cut {cut} of partition {self.number} overlaps {before}"
            before = cut.first + cut.count
        assert before <= self.next_ordinal, f"cuts of partition {self.number} reach beyond {self.next_ordinal}"


class Ledger:
    """All partitions, by number and by (topic, index). Owned by the router's thread.

    `incarnation`: the incarnation under which ordinals are assigned now, 0 before the first. `accept_ms`, `era`: of the
    last frame. `audit_counts`: updated with every change here that they count; None if auditing is off.
    """

    def __init__(self, books: AuditCounts | None = None) -> None:
        self.audit_counts = books
        self.incarnation = 0
        self.accept_ms = 0
        self.era = 0
        self.by_number: dict[int, LedgerPartition] = {}
        self.by_topic_partition: dict[tuple[str, int], LedgerPartition] = {}

    def new_partition_entry(self, topic: str, topic_id: bytes, index: int) -> PartitionEntry:
        """Return the entry that gives a new partition its number. The caller appends and applies it."""
        assert (topic, index) not in self.by_topic_partition, f"{topic}-{index} has a number"
        return PartitionEntry(max(self.by_number, default=-1) + 1, topic, topic_id, index)

    def stamp_row_at(self, state: LedgerPartition, ordinal: int) -> StampRow:
        """Return the stamp row in force at an ordinal, which must not be below the mark."""
        found: StampRow | None = None
        for row in state.rows:
            if row.start > ordinal:
                break
            found = row
        assert found is not None, f"partition {state.number} has no stamp row at {ordinal}"
        return found

    def apply(self, entry: Entry) -> None:
        """Apply one entry to the tables."""
        match entry:
            case FrameEntry():
                assert entry.incarnation in {0, self.incarnation}, "a frame numbered under another incarnation"
                self.accept_ms, self.era = entry.wall_ms, entry.era
                for part in entry.slices:
                    state = self.by_number[part.partition]
                    assert part.first == state.next_ordinal, (
                        f"slice at {part.first} of partition {state.number}, whose next ordinal is {state.next_ordinal}"
                    )
                    assert part.count > 0
                    state.next_ordinal += part.count
                if self.audit_counts is not None:
                    self.audit_counts.count_frame(entry, self.by_number)
            case AckedEntry():
                self._apply_acked(self.by_number[entry.partition], entry)
            case ParkedEntry():
                self.mark_lost(entry.partition, [LedgerHole(*pair) for pair in entry.ordinals], PARKED)
            case GrantedEntry():
                self._apply_granted(self.by_number[entry.partition], entry)
            case BatchBoundsEntry():
                self._apply_batch_bounds(self.by_number[entry.partition], entry)
            case StampRowEntry():
                self._apply_stamp_row(self.by_number[entry.partition], entry.row)
            case PartitionEntry():
                self._apply_partition(entry)
            case IncarnationEntry():
                self._apply_incarnation(entry.incarnation)
            case CheckpointEntry():
                self._apply_checkpoint(entry)
            case RefusedEntry():
                if self.audit_counts is not None:
                    self.audit_counts.restore_refused(entry)
            case SessionEntry():
                pass
            case _:
                assert_never(entry)

    def extend(
        self, state: LedgerPartition, end: int, nbytes: int = 0, *, counted: bool = True, ids: bool = True
    ) -> None:
        """During recovery: raise the next ordinal to `end`, because all ordinals below it were assigned, even if their
        frames were not found. The rows have `nbytes`. `counted` False: they are the router's own. `ids` False: they
        have no record id."""
        if end > state.next_ordinal:
            if self.audit_counts is not None and counted:
                self.audit_counts.count_recovered(state, end, nbytes, ids=ids)
            state.next_ordinal = end

    def mark_lost(self, partition: int, ranges: Iterable[LedgerHole], reason: str) -> None:
        """Turn ordinals that will never be sent, because they are parked or missing from the spool, into holes.
        `reason`: a constant of `wire/audit_records.py`."""
        state = self.by_number[partition]
        holes = list(state.holes)
        for hole in ranges:
            assert hole.count > 0, "an empty hole"
            assert hole.first >= state.mark, f"{hole} begins below the mark {state.mark}"
            assert hole.end <= state.next_ordinal, f"{hole} ends beyond ordinal {state.next_ordinal}"
            holes.append(hole)
            if self.audit_counts is not None:
                self.audit_counts.count_lost(partition, hole.first, hole.end, reason)
        state.holes = _merged(holes)
        _advance(state, state.mark)
        if self.audit_counts is not None:
            self.audit_counts.count_resolved(partition, state.mark)
        state.assert_consistent()

    def snapshot(self) -> list[PartitionSnapshot]:
        """Return all tables for a checkpoint."""
        return [_snapshot(state) for state in self.by_number.values()]

    def _apply_acked(self, state: LedgerPartition, entry: AckedEntry) -> None:
        assert state.mark <= entry.mark <= state.next_ordinal, (
            f"mark {entry.mark} of partition {state.number} is not within {state.mark} and {state.next_ordinal}"
        )
        state.anchor = entry.anchor
        if entry.log_start >= 0:
            state.log_start = entry.log_start
        moves = entry.mark > state.mark
        _advance(state, entry.mark)
        if self.audit_counts is not None and moves:
            self.audit_counts.count_resolved(state.number, state.mark, entry)

    def _apply_granted(self, state: LedgerPartition, entry: GrantedEntry) -> None:
        # A leader with an older epoch may not know what was acknowledged since (HO-16).
        assert may_follow(entry.leader_epoch, state.leader_epoch), (
            f"leader epoch {entry.leader_epoch} of partition {state.number} after {state.leader_epoch}"
        )
        state.generation = entry.generation
        state.leader_epoch = max(state.leader_epoch, entry.leader_epoch)

    def _apply_batch_bounds(self, state: LedgerPartition, entry: BatchBoundsEntry) -> None:
        state.batch_bounds = sorted(cut for cut in entry.batch_bounds if cut.first + cut.count > state.mark)
        state.batch_bounds_are_facts = entry.facts
        unknown = entry.unknown_through
        state.unknown_through = unknown if unknown is not None and unknown >= state.mark else None
        state.assert_consistent()

    def _apply_stamp_row(self, state: LedgerPartition, row: StampRow) -> None:
        assert row.start >= state.mark, f"{row} of partition {state.number} begins below the mark {state.mark}"
        if state.rows and state.rows[-1].producer_id != row.producer_id:
            # The broker has no state for the new producer id, whatever it acknowledged under the old one.
            state.anchor = None
        state.rows = [known for known in state.rows if known.start < row.start]
        state.rows.append(row)
        _prune_rows(state)

    def _apply_partition(self, entry: PartitionEntry) -> None:
        state = self.by_number.get(entry.partition)
        if state is None:
            assert (entry.topic, entry.index) not in self.by_topic_partition, (
                f"{entry.topic}-{entry.index} has another number"
            )
            state = LedgerPartition(entry.partition, entry.topic, entry.topic_id, entry.index)
            state.id_rows = [IdRow(0, self.incarnation)] if self.incarnation else []
            self._add(state)
            return
        assert (state.topic, state.index) == (entry.topic, entry.index), (
            f"number {entry.partition} has another partition"
        )
        if state.topic_id not in {b"", entry.topic_id}:
            # The topic was recreated: its log has no state of ours, and leader epochs and offsets restart (IDN-8).
            state.anchor, state.log_start, state.leader_epoch = None, -1, -1
        state.topic_id = entry.topic_id

    def _apply_incarnation(self, incarnation: int) -> None:
        """Use another incarnation for ordinals from the next one on. A slice's ordinals are assigned at once, so a
        slice never mixes incarnations."""
        if incarnation == self.incarnation:
            return
        self.incarnation = incarnation
        self.era = 0
        if self.audit_counts is not None:
            self.audit_counts.begin_incarnation(incarnation)
        for state in self.by_number.values():
            start = state.next_ordinal
            state.id_rows = [row for row in state.id_rows if row.start < start]
            # A rewritten entry is replayed twice; the second time it adds nothing.
            if not state.id_rows or state.id_rows[-1].incarnation != incarnation:
                state.id_rows.append(IdRow(start, incarnation))
            _prune_rows(state)

    def _apply_checkpoint(self, entry: CheckpointEntry) -> None:
        self.incarnation, self.accept_ms, self.era = entry.incarnation, entry.accept_ms, entry.era
        self.by_number.clear()
        self.by_topic_partition.clear()
        for snapshot in entry.partitions:
            state = _from_snapshot(snapshot)
            state.assert_consistent()
            self._add(state)
        if self.audit_counts is not None:
            self.audit_counts.restore(
                entry.audit_minutes or (),
                incarnation=entry.incarnation,
                accept_ms=entry.accept_ms,
                era=entry.era,
                places=self.by_number,
            )

    def _add(self, state: LedgerPartition) -> None:
        self.by_number[state.number] = state
        self.by_topic_partition[state.topic, state.index] = state


def _advance(state: LedgerPartition, mark: int) -> None:
    """Move the mark, skip holes that begin at it, and drop everything below it."""
    for hole in state.holes:
        if hole.first <= mark:
            mark = max(mark, hole.end)
    state.mark = mark
    if state.holes and state.holes[0].first < mark:
        state.holes = [hole for hole in state.holes if hole.first >= mark]
    if state.batch_bounds and state.batch_bounds[0].first < mark:
        state.batch_bounds = [cut for cut in state.batch_bounds if cut.first >= mark]
    if state.unknown_through is not None and state.unknown_through < mark:
        state.unknown_through = None
    if len(state.rows) > 1 or len(state.id_rows) > 1:
        _prune_rows(state)


def _prune_rows(state: LedgerPartition) -> None:
    """Drop rows that ended at or below the mark: no ordinal needs them any more."""
    while len(state.rows) > 1 and state.rows[1].start <= state.mark:
        state.rows = state.rows[1:]
    while len(state.id_rows) > 1 and state.id_rows[1].start <= state.mark:
        state.id_rows = state.id_rows[1:]


def _merged(holes: list[LedgerHole]) -> list[LedgerHole]:
    merged: list[LedgerHole] = []
    for hole in sorted(holes):
        if merged and hole.first <= merged[-1].end:
            last = merged.pop()
            merged.append(LedgerHole(last.first, max(last.end, hole.end) - last.first))
        else:
            merged.append(hole)
    return merged


def _snapshot(state: LedgerPartition) -> PartitionSnapshot:
    # Lists are replaced when they change, never changed in place, so the snapshot may share them.
    values: dict[str, Any] = {name: getattr(state, name) for name in PartitionSnapshot._fields[1:]}
    values |= {"holes": [tuple(hole) for hole in state.holes], "id_rows": tuple(state.id_rows)}
    return PartitionSnapshot(state.number, **values)


def _from_snapshot(snapshot: PartitionSnapshot) -> LedgerPartition:
    values: dict[str, Any] = snapshot._asdict()
    values |= {"holes": [LedgerHole(*pair) for pair in snapshot.holes], "id_rows": list(snapshot.id_rows)}
    return LedgerPartition(values.pop("partition"), **values)
