"""The tables of all partitions: ordinals, ack marks, stamp rows, cuts, anchors. A fold of the log's entries.

Not its job: deciding. Leases and intake decide, put the entry into the log, and apply it here at once; recovery applies what it
reads. What must hold is asserted: a broken table stops the router before it numbers or sends anything wrongly.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from ...wire.audit_records import PARKED
from ...wire.messages import Anchor, Cut, Row
from ...wire.record_ids import IdRow
from .audit_counts import Books
from .entries import (
    AckedEntry,
    CheckpointEntry,
    CutsEntry,
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


class Hole(NamedTuple):
    """Ordinals that will never be sent."""

    first: int
    count: int  # type: ignore[assignment]

    @property
    def end(self) -> int:
        return self.first + self.count


@dataclass(slots=True, eq=False)
class PartitionState:
    """One partition as the spool knows it.

    `mark`: every ordinal below it is resolved. `rows`: in force from the mark on, ascending. `cuts`: batches that may have been
    sent and are not resolved, ascending. `holes`: beyond the mark, ascending, apart from each other. `id_rows`: incarnations of
    the ordinals from the mark on, ascending; those before the first row have none.
    """

    number: int
    topic: str
    topic_id: bytes
    index: int
    next_ordinal: int = 0
    mark: int = 0
    rows: list[Row] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    cuts_are_facts: bool = True
    unknown_through: int | None = None
    anchor: Anchor | None = None
    log_start: int = -1
    leader_epoch: int = -1
    generation: int = 0
    holes: list[Hole] = field(default_factory=list)
    id_rows: list[IdRow] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Records that are neither resolved nor lost nor parked."""
        return self.next_ordinal - self.mark - sum(hole.count for hole in self.holes)

    def check(self) -> None:
        """Assert what must always hold."""
        assert 0 <= self.mark <= self.next_ordinal, f"mark {self.mark} lies beyond ordinal {self.next_ordinal}"
        before = self.mark
        for hole in self.holes:
            assert hole.first > before, f"hole {hole} of partition {self.number} touches {before}"
            before = hole.end
        assert before <= self.next_ordinal
        before = self.mark
        for cut in self.cuts:
            assert cut.first >= before, f"cut {cut} of partition {self.number} overlaps {before}"
            before = cut.first + cut.count
        assert before <= self.next_ordinal, f"cuts of partition {self.number} reach beyond {self.next_ordinal}"


class Ledger:
    """All partitions, by number and by place. One owner: the router's thread.

    `incarnation`: under which ordinals are given out now, 0 before the first. `accept_ms`, `era`: of the last frame. `books`: told
    of every change here that they count; None where none are kept.
    """

    def __init__(self, books: Books | None = None) -> None:
        self.books = books
        self.incarnation = 0
        self.accept_ms = 0
        self.era = 0
        self.by_number: dict[int, PartitionState] = {}
        self.by_place: dict[tuple[str, int], PartitionState] = {}

    def new_partition_entry(self, topic: str, topic_id: bytes, index: int) -> PartitionEntry:
        """The entry that numbers a partition not known so far. The caller writes and applies it."""
        assert (topic, index) not in self.by_place, f"{topic}-{index} has a number"
        return PartitionEntry(max(self.by_number, default=-1) + 1, topic, topic_id, index)

    def row_at(self, state: PartitionState, ordinal: int) -> Row:
        """The stamp row in force at an ordinal from the mark on."""
        found: Row | None = None
        for row in state.rows:
            if row.start > ordinal:
                break
            found = row
        assert found is not None, f"partition {state.number} has no stamp row at {ordinal}"
        return found

    def apply(self, entry: Entry) -> None:
        """Fold one entry into the tables."""
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
                if self.books is not None:
                    self.books.took(entry, self.by_number)
            case AckedEntry():
                self._acked(self.by_number[entry.partition], entry)
            case ParkedEntry():
                self.lose(entry.partition, [Hole(*pair) for pair in entry.ordinals], PARKED)
            case GrantedEntry():
                self._granted(self.by_number[entry.partition], entry)
            case CutsEntry():
                self._cuts(self.by_number[entry.partition], entry)
            case StampRowEntry():
                self._stamp(self.by_number[entry.partition], entry.row)
            case PartitionEntry():
                self._partition(entry)
            case IncarnationEntry():
                self._incarnate(entry.incarnation)
            case CheckpointEntry():
                self._restore(entry)
            case RefusedEntry():
                if self.books is not None:
                    self.books.refused_before(entry)
            case SessionEntry():
                pass
            case _:
                assert_never(entry)

    def reach(
        self, state: PartitionState, end: int, nbytes: int = 0, *, counted: bool = True, ids: bool = True
    ) -> None:
        """At recovery: ordinals below `end` were given out, whether their frames are seen or not. `nbytes` of rows; `counted`
        False: they are the router's own."""
        if end > state.next_ordinal:
            if self.books is not None and counted:
                self.books.reached(state, end, nbytes, ids=ids)
            state.next_ordinal = end

    def lose(self, partition: int, ranges: Iterable[Hole], reason: str) -> None:
        """These ordinals will never be sent: parked, or gone from the spool. `reason`: in the words of the audit's records."""
        state = self.by_number[partition]
        holes = list(state.holes)
        for hole in ranges:
            assert hole.count > 0, "an empty hole"
            assert hole.first >= state.mark, f"{hole} begins below the mark {state.mark}"
            assert hole.end <= state.next_ordinal, f"{hole} ends beyond ordinal {state.next_ordinal}"
            holes.append(hole)
            if self.books is not None:
                self.books.lost(partition, hole.first, hole.end, reason)
        state.holes = _merged(holes)
        _advance(state, state.mark)
        if self.books is not None:
            self.books.resolved(partition, state.mark)
        state.check()

    def snapshot(self) -> list[PartitionSnapshot]:
        """All tables, for a checkpoint."""
        return [_snapshot(state) for state in self.by_number.values()]

    def _acked(self, state: PartitionState, entry: AckedEntry) -> None:
        assert state.mark <= entry.mark <= state.next_ordinal, (
            f"mark {entry.mark} of partition {state.number} is not within {state.mark} and {state.next_ordinal}"
        )
        state.anchor = entry.anchor
        if entry.log_start >= 0:
            state.log_start = entry.log_start
        moves = entry.mark > state.mark
        _advance(state, entry.mark)
        if self.books is not None and moves:
            self.books.resolved(state.number, state.mark, entry)

    def _granted(self, state: PartitionState, entry: GrantedEntry) -> None:
        # HO-16: a leader older than one that was seen may not know what was acknowledged since.
        assert entry.leader_epoch < 0 or entry.leader_epoch >= state.leader_epoch, (
            f"leader epoch {entry.leader_epoch} of partition {state.number} after {state.leader_epoch}"
        )
        state.generation = entry.generation
        state.leader_epoch = max(state.leader_epoch, entry.leader_epoch)

    def _cuts(self, state: PartitionState, entry: CutsEntry) -> None:
        state.cuts = sorted(cut for cut in entry.cuts if cut.first + cut.count > state.mark)
        state.cuts_are_facts = entry.facts
        unknown = entry.unknown_through
        state.unknown_through = unknown if unknown is not None and unknown >= state.mark else None
        state.check()

    def _stamp(self, state: PartitionState, row: Row) -> None:
        assert row.start >= state.mark, f"{row} of partition {state.number} begins below the mark {state.mark}"
        if state.rows and state.rows[-1].producer_id != row.producer_id:
            # The broker has no state for another id, whatever it acknowledged under the old one.
            state.anchor = None
        state.rows = [known for known in state.rows if known.start < row.start]
        state.rows.append(row)
        _prune_rows(state)

    def _partition(self, entry: PartitionEntry) -> None:
        state = self.by_number.get(entry.partition)
        if state is None:
            assert (entry.topic, entry.index) not in self.by_place, f"{entry.topic}-{entry.index} has another number"
            state = PartitionState(entry.partition, entry.topic, entry.topic_id, entry.index)
            state.id_rows = [IdRow(0, self.incarnation)] if self.incarnation else []
            self._add(state)
            return
        assert (state.topic, state.index) == (entry.topic, entry.index), (
            f"number {entry.partition} has another partition"
        )
        if state.topic_id not in {b"", entry.topic_id}:
            # Another topic of the same name: a log without our state, whose leader epochs and offsets begin anew (IDN-8).
            state.anchor, state.log_start, state.leader_epoch = None, -1, -1
        state.topic_id = entry.topic_id

    def _incarnate(self, incarnation: int) -> None:
        """A slice's ordinals are given out at one moment, so each is of one incarnation whole."""
        if incarnation == self.incarnation:
            return
        self.incarnation = incarnation
        self.era = 0
        if self.books is not None:
            self.books.begin(incarnation)
        for state in self.by_number.values():
            start = state.next_ordinal
            state.id_rows = [row for row in state.id_rows if row.start < start]
            # An entry that is read a second time, because it was written again, adds nothing.
            if not state.id_rows or state.id_rows[-1].incarnation != incarnation:
                state.id_rows.append(IdRow(start, incarnation))
            _prune_rows(state)

    def _restore(self, entry: CheckpointEntry) -> None:
        self.incarnation, self.accept_ms, self.era = entry.incarnation, entry.accept_ms, entry.era
        self.by_number.clear()
        self.by_place.clear()
        for snapshot in entry.partitions:
            state = _state(snapshot)
            state.check()
            self._add(state)
        if self.books is not None:
            self.books.restore(
                entry.books or (),
                incarnation=entry.incarnation,
                accept_ms=entry.accept_ms,
                era=entry.era,
                places=self.by_number,
            )

    def _add(self, state: PartitionState) -> None:
        self.by_number[state.number] = state
        self.by_place[state.topic, state.index] = state


def _advance(state: PartitionState, mark: int) -> None:
    """Move the mark, over holes that begin at it, and drop what lies below."""
    for hole in state.holes:
        if hole.first <= mark:
            mark = max(mark, hole.end)
    state.mark = mark
    if state.holes and state.holes[0].first < mark:
        state.holes = [hole for hole in state.holes if hole.first >= mark]
    if state.cuts and state.cuts[0].first < mark:
        state.cuts = [cut for cut in state.cuts if cut.first >= mark]
    if state.unknown_through is not None and state.unknown_through < mark:
        state.unknown_through = None
    if len(state.rows) > 1 or len(state.id_rows) > 1:
        _prune_rows(state)


def _prune_rows(state: PartitionState) -> None:
    """Rows that ended at or below the mark speak of nothing any more."""
    while len(state.rows) > 1 and state.rows[1].start <= state.mark:
        state.rows = state.rows[1:]
    while len(state.id_rows) > 1 and state.id_rows[1].start <= state.mark:
        state.id_rows = state.id_rows[1:]


def _merged(holes: list[Hole]) -> list[Hole]:
    merged: list[Hole] = []
    for hole in sorted(holes):
        if merged and hole.first <= merged[-1].end:
            last = merged.pop()
            merged.append(Hole(last.first, max(last.end, hole.end) - last.first))
        else:
            merged.append(hole)
    return merged


def _snapshot(state: PartitionState) -> PartitionSnapshot:
    return PartitionSnapshot(
        partition=state.number,
        topic=state.topic,
        topic_id=state.topic_id,
        index=state.index,
        next_ordinal=state.next_ordinal,
        mark=state.mark,
        rows=list(state.rows),
        cuts=list(state.cuts),
        cuts_are_facts=state.cuts_are_facts,
        unknown_through=state.unknown_through,
        anchor=state.anchor,
        log_start=state.log_start,
        leader_epoch=state.leader_epoch,
        generation=state.generation,
        holes=[(hole.first, hole.count) for hole in state.holes],
        id_rows=tuple(state.id_rows),
    )


def _state(snapshot: PartitionSnapshot) -> PartitionState:
    return PartitionState(
        number=snapshot.partition,
        topic=snapshot.topic,
        topic_id=snapshot.topic_id,
        index=snapshot.index,
        next_ordinal=snapshot.next_ordinal,
        mark=snapshot.mark,
        rows=list(snapshot.rows),
        cuts=list(snapshot.cuts),
        cuts_are_facts=snapshot.cuts_are_facts,
        unknown_through=snapshot.unknown_through,
        anchor=snapshot.anchor,
        log_start=snapshot.log_start,
        leader_epoch=snapshot.leader_epoch,
        generation=snapshot.generation,
        holes=[Hole(*pair) for pair in snapshot.holes],
        id_rows=list(snapshot.id_rows),
    )
