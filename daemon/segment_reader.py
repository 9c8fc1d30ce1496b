"""Reads segments as recovery and reports see them: what is in each, where it ends, and what a failed sync made void."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..wire.errors import FrameError
from .core.entries import Lsn, lsn, segment_of
from .core.entry_codec import Kind, SpoolEntry, SyncedEntry, VoidEntry, unpack
from .core.segment_scan import ENTRIES_AT, ENTRY, Damage, Scan, read_segment_header, scan
from .segment_files import read_whole, segment_path


class Segment(NamedTuple):
    """One segment, read whole. `continues`, `router_start`: see `core/segment_scan.py`, 0 where they are not known."""

    number: int
    path: Path
    data: bytearray
    scan: Scan
    continues: int
    router_start: int
    header_is_bad: bool


class SegmentReader:
    """The segments of one spool, by number. Every method raises OSError where a file cannot be read; one that a live router
    removes meanwhile counts as gone."""

    def __init__(self, directory: Path, spool: int, numbers: Sequence[int]) -> None:
        self._directory = directory
        self._spool = spool
        self._numbers = list(numbers)
        self._continues = {number: self._continues_at(number) for number in self._numbers}
        self._voids: list[VoidEntry] = []
        self._voids = self._find_voids()

    def read(self, number: int) -> Segment:
        """A segment, without the part of it that is void."""
        path = segment_path(self._directory, number)
        data = read_whole(path)
        router_start, bad = 0, False
        try:
            router_start = read_segment_header(data).router_start
        except FrameError:
            bad = True
        void_from = self._void_from(number)
        if void_from is not None and void_from < len(data):
            del data[void_from:]
        return Segment(number, path, data, scan(data, self._spool, number), self._continues[number], router_start, bad)

    def damages(self, segment: Segment, *, is_last: bool) -> list[Damage]:
        """Every place that does not hold what was written there, ascending. In the last segment that may be nothing but a
        write that was cut short."""
        found = segment.scan
        damages = list(found.damages)
        if segment.header_is_bad and (found.entries or (not is_last and any(segment.data[:ENTRIES_AT]))):
            damages.insert(0, Damage(0, ENTRIES_AT))
        if found.torn is not None:
            damages.append(found.torn)
        else:
            end = self._known_end(segment.number)
            if end > found.end:
                damages.append(Damage(found.end, end))
        return damages

    def is_void(self, number: int) -> bool:
        """Whether all of a segment was written again in a later one."""
        return any(void.start <= lsn(number, 0) < void.end for void in self._voids)

    def is_blank(self, number: int) -> bool:
        """Whether a segment was made and nothing was written to it."""
        with segment_path(self._directory, number).open("rb") as file:
            return not file.read(ENTRIES_AT + ENTRY.size).strip(b"\0")

    def known_synced(self, segment: Segment) -> Lsn:
        """The largest place that some entry knows to be synced, in this segment and later ones."""
        best = _synced_in(segment.scan)
        for number in self._numbers:
            if number > segment.number:
                best = max(best, _synced_in(self.read(number).scan))
        return best

    def _continues_at(self, number: int) -> int:
        try:
            with segment_path(self._directory, number).open("rb") as file:
                return read_segment_header(file.read(ENTRIES_AT)).continues
        except (FrameError, FileNotFoundError):
            return 0

    def _find_voids(self) -> list[VoidEntry]:
        """What failed syncs made the router write again. Headers tell where to look for the entry that proves it: without it
        the second writing was not finished, and the first one stands."""
        found: list[VoidEntry] = []
        for place, number in enumerate(self._numbers):
            start = Lsn(self._continues[number])
            if start and any(self._reaches(other, start) for other in self._numbers[:place]):
                claim = VoidEntry(start, lsn(number, 0))
                if any(_holds(self.read(other).scan, claim) for other in self._numbers[place:]):
                    found.append(claim)
        return found

    def _reaches(self, number: int, place: Lsn) -> bool:
        """Whether a segment has bytes at or behind a place."""
        try:
            return lsn(number, segment_path(self._directory, number).stat().st_size) > place
        except FileNotFoundError:
            return False

    def _void_from(self, number: int) -> int | None:
        offsets = [void.start & 0xFFFFFFFF for void in self._voids if segment_of(void.start) == number]
        return min(offsets, default=None)

    def _known_end(self, number: int) -> int:
        """Where a segment ends, as a later one has it; 0: not known."""
        return max(
            (
                place & 0xFFFFFFFF
                for other, place in self._continues.items()
                if other > number and segment_of(Lsn(place)) == number and not self.is_void(other)
            ),
            default=0,
        )


def _notes(found: Scan, kind: Kind) -> list[SpoolEntry]:
    """Entries of the spool's own kinds; those of a wrong shape are told of elsewhere."""
    notes: list[SpoolEntry] = []
    for raw in found.entries:
        if raw.kind == kind:
            try:
                notes.append(unpack(raw.kind, raw.body)[0])
            except FrameError:
                continue
    return notes


def _synced_in(found: Scan) -> Lsn:
    marks = [note.through for note in _notes(found, Kind.SYNCED) if isinstance(note, SyncedEntry)]
    return max(marks, default=Lsn(0))


def _holds(found: Scan, claim: VoidEntry) -> bool:
    return claim in _notes(found, Kind.VOID)
