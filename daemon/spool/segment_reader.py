"""Reads segments for recovery and reports: entries, end and damage of each, without parts voided by a failed sync."""

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
    """One segment, read in full. `header` None: the header is damaged."""

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
        """Whether it was created after a failed sync: its checkpoint includes the entries after it, up to a VOID."""
        return self.header is not None and self.header.rewrites

    def follows(self, end: Lsn, router_start: int) -> bool:
        """Whether no entry is missing between `end` and this segment, and its checkpoint adds nothing new. False for
        the first segment of a router start: only its checkpoint contains the result of that start's recovery."""
        return (
            self.header is not None
            and self.header.continues == end
            and self.header.router_start == router_start
            and not self.rewrites
        )


class SpoolSegmentReader:
    """Reads the segments of one spool, by number. Every method raises OSError if a file cannot be read. A segment that
    a live router removes meanwhile raises FileNotFoundError when it is read."""

    def __init__(self, directory: Path, spool: int, numbers: Sequence[int]) -> None:
        self._directory = directory
        self._spool = spool
        self._numbers = list(numbers)
        self._headers = {number: self._header(number) for number in self._numbers}
        self._voids: list[VoidEntry] = []
        self._voids = self._find_voids()

    def read(self, number: int) -> SpoolSegment:
        """Read a segment without its void part."""
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
        """Return all damaged ranges, ascending. In the last segment, damage may be only an interrupted write."""
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
        """Whether the whole segment is void, so that it must be skipped."""
        return any(void.start <= lsn(number, 0) < void.end for void in self._voids)

    def is_blank(self, number: int) -> bool:
        """Whether a segment was created but nothing was written to it."""
        with segment_path(self._directory, number).open("rb") as file:
            return not file.read(ENTRIES_AT + ENTRY.size).strip(b"\0")

    def known_synced(self, segment: SpoolSegment) -> Lsn:
        """Return the largest `through` of the SYNCED entries in this segment and later ones."""
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
        """Find the entries that were rewritten after failed syncs, and rewrites that were not finished. The header
        shows that a segment starts a rewrite; the VOID entry that ends the rewrite proves it complete, and the first
        copy is void. Without a VOID entry the rewrite is void: it was never synced, and a part of it would set the
        tables back. VOID entries of earlier rewrites were rewritten with the rest."""
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
        """Whether a segment may have been written by this router start. True if its header is missing."""
        header = self._headers[number]
        return header is None or header.router_start == router_start

    def _void_from(self, number: int) -> int | None:
        offsets = [void.start & 0xFFFFFFFF for void in self._voids if segment_of(void.start) == number]
        return min(offsets, default=None)

    def _known_end(self, number: int) -> int:
        """Return the end of a segment according to the headers of later segments; 0: not known."""
        places = [
            Lsn(header.continues)
            for other, header in self._headers.items()
            if header is not None and other > number and not self.is_void(other)
        ]
        return max((place & 0xFFFFFFFF for place in places if segment_of(place) == number), default=0)


def _entries_of_type(found: SegmentScan, kind: EntryType) -> list[SpoolEntry]:
    """Return the entries of one type. Those that cannot be unpacked are skipped; they are reported elsewhere."""
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
