"""How many unresolved slices each segment holds, and which segments may go.

A sealed segment may go when nothing in it is pending, when every entry that resolved something in it is synced, and when the
checkpoint at the head of the next segment is synced (SPL-9): from then on nothing needs it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from .entries import Lsn, lsn, segment_of
from .slices import PendingSlice

_NEVER: Final = Lsn(0)


@dataclass(slots=True, eq=False)
class SegmentState:
    """One segment. `oldest_ms`: CLOCK_MONOTONIC of its first frame, None without one. `resolved_by`: the last entry that
    resolved a slice of it."""

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
        """Unresolved slices of all segments."""
        return sum(state.pending for state in self.by_number.values())

    def added(self, number: int, nbytes: int) -> None:
        """A segment begins; numbers rise."""
        assert not self.by_number or number > max(self.by_number), f"segment {number} is not the newest"
        self.by_number[number] = SegmentState(number, nbytes)

    def sealed(self, number: int, nbytes: int) -> None:
        """Nothing is added to this segment any more; it ends at `nbytes`."""
        state = self.by_number[number]
        assert not state.sealed, f"segment {number} is sealed"
        state.sealed, state.nbytes = True, nbytes
        if not state.pending:
            self._removable.add(number)

    def frame_added(self, number: int, slices: int, created_ms: int) -> None:
        """A frame with so many slices lies in this segment."""
        state = self.by_number[number]
        state.pending += slices
        self._removable.discard(number)
        if state.oldest_ms is None:
            state.oldest_ms = created_ms

    def slices_resolved(self, number: int, by: Lsn, slices: int = 1) -> None:
        """Every ordinal of so many slices in this segment is resolved, by entries up to the one at `by`."""
        state = self.by_number[number]
        assert state.pending >= slices, f"segment {number} has less than {slices} slices pending"
        state.pending -= slices
        state.resolved_by = max(state.resolved_by, by)
        if state.sealed and not state.pending:
            self._removable.add(number)

    def slice_moved(self, number: int, to: int) -> None:
        """A pending slice that no sync covered was written again elsewhere."""
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
        """Sealed segments that nothing needs once everything before `synced` is on disk. Oldest first."""
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
        """The file is gone."""
        del self.by_number[number]
        self._removable.discard(number)

    def oldest_ms(self) -> int | None:
        """CLOCK_MONOTONIC of the first frame of the oldest segment with pending slices: a frame pending now is not older."""
        ages = [state.oldest_ms for state in self.by_number.values() if state.pending and state.oldest_ms is not None]
        return min(ages, default=None)


def relocate(moved: Mapping[Lsn, Lsn], slices: Iterable[PendingSlice], segments: Segments) -> None:
    """Mend pending slices, and the frames they belong to, whose entries were written again elsewhere: a slice lies as far
    behind the new place of its entry as it lay behind the old one."""
    for part in slices:
        place = moved.get(part.lsn)
        if place is not None:
            segments.slice_moved(part.segment, segment_of(place))
            part.offset += (place & 0xFFFFFFFF) - (part.lsn & 0xFFFFFFFF)
            part.segment = segment_of(place)
            part.lsn = part.frame.lsn = place
