"""Counts the unresolved slices of each segment, and determines which segments can be removed.

A sealed segment can be removed once none of its slices is pending, every entry that resolved one of its slices is
synced, and the checkpoint at the start of the next segment is synced (SPL-9): from then on nothing needs it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from .entries import Lsn, lsn, segment_of
from .slices import PendingSlice

_NEVER: Final = Lsn(0)


@dataclass(slots=True, eq=False)
class SegmentState:
    """One segment; only `Segments` changes it. `sealed`: it gets no more entries. `pending`: its unresolved slices.
    `oldest_ms`: CLOCK_MONOTONIC of its first frame, None without a frame. `resolved_by`: LSN of the last entry that
    resolved one of its slices."""

    number: int
    nbytes: int
    sealed: bool = False
    pending: int = 0
    oldest_ms: int | None = None
    resolved_by: Lsn = _NEVER


class Segments:
    """All segments of the spool, oldest first."""

    def __init__(self) -> None:
        self.by_number: dict[int, SegmentState] = {}
        self._removable: set[int] = set()

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return sum(state.nbytes for state in self.by_number.values())

    @property
    def sealed_count(self) -> int:
        return sum(1 for state in self.by_number.values() if state.sealed)

    @property
    def pending(self) -> int:
        """Number of unresolved slices in all segments."""
        return sum(state.pending for state in self.by_number.values())

    def added(self, number: int, nbytes: int) -> None:
        """Add a new segment, whose number must be the highest."""
        assert not self.by_number or number > max(self.by_number), f"segment {number} is not the newest"
        self.by_number[number] = SegmentState(number, nbytes)

    def sealed(self, number: int, nbytes: int) -> None:
        """Seal a segment: it gets no more entries and ends at `nbytes`."""
        state = self.by_number[number]
        assert not state.sealed, f"segment {number} is sealed"
        state.sealed, state.nbytes = True, nbytes
        if not state.pending:
            self._removable.add(number)

    def frame_added(self, number: int, slices: int, created_ms: int) -> None:
        """Count the pending slices of a new frame in this segment. `created_ms` is CLOCK_MONOTONIC."""
        state = self.by_number[number]
        state.pending += slices
        self._removable.discard(number)
        if state.oldest_ms is None:
            state.oldest_ms = created_ms

    def slices_resolved(self, number: int, by: Lsn, slices: int = 1) -> None:
        """Count slices of this segment as resolved. `by`: LSN of the last entry that resolved them."""
        state = self.by_number[number]
        assert state.pending >= slices, f"segment {number} has less than {slices} slices pending"
        state.pending -= slices
        state.resolved_by = max(state.resolved_by, by)
        if state.sealed and not state.pending:
            self._removable.add(number)

    def slice_moved(self, number: int, to: int) -> None:
        """Move a pending slice to the segment in which it was rewritten after a failed sync."""
        state, target = self.by_number[number], self.by_number[to]
        assert state.pending > 0, f"segment {number} has nothing pending"
        state.pending -= 1
        target.pending += 1
        self._removable.discard(to)
        if target.oldest_ms is None:
            target.oldest_ms = state.oldest_ms
        if state.sealed and not state.pending:
            self._removable.add(number)

    def removable(self, synced: Lsn) -> list[int]:
        """Return the sealed segments that can be removed once everything before `synced` is on disk, oldest first."""
        if not self._removable:
            return []
        following = dict(zip(sorted(self.by_number), sorted(self.by_number)[1:], strict=False))
        return [
            number
            for number in sorted(self._removable)
            if self.by_number[number].resolved_by < synced
            and number in following
            and lsn(following[number], 0) < synced
        ]

    def removed(self, number: int) -> None:
        """Drop a segment whose file was removed."""
        del self.by_number[number]
        self._removable.discard(number)

    def oldest_ms(self) -> int | None:
        """Return the earliest `oldest_ms` of all segments with pending slices: no pending frame is older."""
        ages = [state.oldest_ms for state in self.by_number.values() if state.pending and state.oldest_ms is not None]
        return min(ages, default=None)


def relocate(moved: Mapping[Lsn, Lsn], slices: Iterable[PendingSlice], segments: Segments) -> None:
    """Update pending slices and their frames after their entries were rewritten elsewhere. `moved`: old -> new LSNs. A
    slice keeps its distance from the start of its entry."""
    for part in slices:
        place = moved.get(part.lsn)
        if place is not None:
            segments.slice_moved(part.segment, segment_of(place))
            part.offset += (place & 0xFFFFFFFF) - (part.lsn & 0xFFFFFFFF)
            part.segment = segment_of(place)
            part.lsn = part.frame.lsn = place
