"""Reads segments as recovery and reports see them: what is in each, where it ends, and what a failed sync made void."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...wire.errors import FrameError
from ..ledger.entries import Lsn, lsn, segment_of
from ..ledger.entry_codec import EntryType, SpoolEntry, SyncedEntry, VoidEntry, unpack
from ..ledger.segment_scan import (
    ENTRIES_AT,
    ENTRY,
    SegmentDamage,
    SegmentHeader,
    SegmentScan,
    read_segment_header,
    scan_segment,
)
from .segment_files import read_whole, segment_path


class SpoolSegment(NamedTuple):
    """One segment, read whole. `header` None: it is damaged."""

    number: int
    path: Path
    data: bytearray
    scan: SegmentScan
    header: SegmentHeader | None

    @property
    def header_is_bad(self) -> bool:
        return self.header is None

    @property
    def rewrites(self) -> bool:
        """It was begun after a failed sync: its checkpoint counts what comes behind it, up to a VOID."""
        return self.header is not None and self.header.rewrites

    def follows(self, end: Lsn, router_start: int) -> bool:
        """Whether nothing is missing between a place of the log and this segment, and its checkpoint tells nothing new. What a
        start concluded from what it found is in its first checkpoint only, so that one does tell something."""
        return (
            self.header is not None
            and self.header.continues == end
            and self.header.router_start == router_start
            and not self.rewrites
        )


class SpoolSegmentReader:
    """The segments of one spool, by number. Every method raises OSError where a file cannot be read; one that a live router
    removes meanwhile counts as gone."""

    def __init__(self, directory: Path, spool: int, numbers: Sequence[int]) -> None:
        self._directory = directory
        self._spool = spool
        self._numbers = list(numbers)
        self._headers = {number: self._header(number) for number in self._numbers}
        self._voids: list[VoidEntry] = []
        self._voids = self._find_voids()

    def read(self, number: int) -> SpoolSegment:
        """A segment, without the part of it that is void."""
        path = segment_path(self._directory, number)
        data = read_whole(path)
        header: SegmentHeader | None = None
        with contextlib.suppress(FrameError):
            header = read_segment_header(data)
        void_from = self._void_from(number)
        if void_from is not None and void_from < len(data):
            del data[void_from:]
        return SpoolSegment(number, path, data, scan_segment(data, self._spool, number), header)

    def damages(self, segment: SpoolSegment, *, is_last: bool) -> list[SegmentDamage]:
        """Every place that does not hold what was written there, ascending. In the last segment that may be nothing but a
        write that was cut short."""
        found = segment.scan
        damages = list(found.damages)
        if segment.header_is_bad and (found.entries or (not is_last and any(segment.data[:ENTRIES_AT]))):
            damages.insert(0, SegmentDamage(0, ENTRIES_AT))
        if found.torn is not None:
            damages.append(found.torn)
        else:
            end = self._known_end(segment.number)
            if end > found.end:
                damages.append(SegmentDamage(found.end, end))
        return damages

    def is_void(self, number: int) -> bool:
        """Whether all of a segment was written again in a later one."""
        return any(void.start <= lsn(number, 0) < void.end for void in self._voids)

    def is_blank(self, number: int) -> bool:
        """Whether a segment was made and nothing was written to it."""
        with segment_path(self._directory, number).open("rb") as file:
            return not file.read(ENTRIES_AT + ENTRY.size).strip(b"\0")

    def known_synced(self, segment: SpoolSegment) -> Lsn:
        """The largest place that some entry knows to be synced, in this segment and later ones."""
        best = _synced_in(segment.scan)
        for number in self._numbers:
            if number > segment.number:
                best = max(best, _synced_in(self.read(number).scan))
        return best

    def _header(self, number: int) -> SegmentHeader | None:
        try:
            with segment_path(self._directory, number).open("rb") as file:
                return read_segment_header(file.read(ENTRIES_AT))
        except (FrameError, FileNotFoundError):
            return None

    def _find_voids(self) -> list[VoidEntry]:
        """What failed syncs made the router write again, and what it began to write again and did not finish. Headers tell
        where to look for the entry that proves the end of it. Without proof the second writing is void, not the first: a sync
        never covered it, and a part of it would set the tables back. Proof of earlier ones was written again with the rest."""
        found: list[VoidEntry] = []
        for place, number in enumerate(self._numbers):
            header = self._headers[number]
            if header is None or not header.rewrites or any(void.end > lsn(number, 0) for void in found):
                continue
            notes: list[VoidEntry] = []
            for other in self._numbers[place:]:
                if not self._may_be_of_start(other, header.router_start):
                    break
                notes += [
                    note
                    for note in _entries_of_type(self.read(other).scan, EntryType.VOID)
                    if isinstance(note, VoidEntry)
                ]
                if any(note.end == lsn(number, 0) for note in notes):
                    break
            else:
                other = self._numbers[-1] + 1
            proven = any(note.end == lsn(number, 0) for note in notes)
            found += notes if proven else [VoidEntry(lsn(number, 0), lsn(other, 0))]
        return found

    def _may_be_of_start(self, number: int, router_start: int) -> bool:
        """Whether a segment may be of this start of a router; of one without a header that is not known."""
        header = self._headers[number]
        return header is None or header.router_start == router_start

    def _void_from(self, number: int) -> int | None:
        offsets = [void.start & 0xFFFFFFFF for void in self._voids if segment_of(void.start) == number]
        return min(offsets, default=None)

    def _known_end(self, number: int) -> int:
        """Where a segment ends, as a later one has it; 0: not known."""
        places = [
            Lsn(header.continues)
            for other, header in self._headers.items()
            if header is not None and other > number and not self.is_void(other)
        ]
        return max((place & 0xFFFFFFFF for place in places if segment_of(place) == number), default=0)


def _entries_of_type(found: SegmentScan, kind: EntryType) -> list[SpoolEntry]:
    """Entries of the spool's own kinds; those of a wrong shape are told of elsewhere."""
    notes: list[SpoolEntry] = []
    for raw in found.entries:
        if raw.kind == kind:
            try:
                notes.append(unpack(raw.kind, raw.body)[0])
            except FrameError:
                continue
    return notes


def _synced_in(found: SegmentScan) -> Lsn:
    marks = [note.through for note in _entries_of_type(found, EntryType.SYNCED) if isinstance(note, SyncedEntry)]
    return max(marks, default=Lsn(0))
