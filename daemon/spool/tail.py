"""The end of the log: segments that are written or wait for their sync, and what is staged for them in memory."""

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from ..ledger.entries import CheckpointEntry, Lsn, lsn, segment_of
from ..ledger.entry_codec import EntryType, VoidEntry, pack_control
from ..ledger.segment_scan import ENTRIES_AT, ENTRY, EntryHeaders, SegmentHeader, pack_segment_header, padded
from ..ledger.segments import Segments
from ..ledger.slices import SpoolFullError
from .disk import Buffer, Disk
from .files import SegmentAllocator, write_all

_IOVECS_MAX: Final = 1_000
_WRITE_BYTES: Final = 128 << 10
"""A call is given about so much. Of a larger one the kernel makes larger pieces of page cache, whose memory a virtual machine
may never have touched: copying into it was seen to take eight times as long."""
_LEAST_RESERVE_BYTES: Final = 64 << 10
_PADS: Final = tuple(b"\0" * count for count in range(8))


class TailLimits(NamedTuple):
    """Bytes, as in `SpoolLimits`."""

    bytes_max: int
    segment_bytes: int
    control_reserve_bytes: int


class EntryBody(NamedTuple):
    """An entry before it has its place."""

    kind: int
    length: int
    crc: int
    buffers: tuple[Buffer, ...]


class _UnsyncedEntry(NamedTuple):
    """An entry that no sync covers yet, for the case that the next one fails."""

    place: Lsn
    body: EntryBody


@dataclass(slots=True, eq=False)
class _OpenSegment:
    """`end`: behind what is staged; `written_end`: behind what is written."""

    number: int
    fd: int
    size: int
    headers: EntryHeaders
    end: int = 0
    written_end: int = 0
    staged: list[Buffer] = field(default_factory=list)


class Tail:
    """Stages entries, writes them, and keeps what no sync covers. `last` is the place of the newest entry, `directory_changed`
    tells that names of new files wait for a sync of the directory."""

    def __init__(
        self,
        files: SegmentAllocator,
        segments: Segments,
        limits: TailLimits,
        *,
        spool: int,
        router_start: int,
        snapshot: Callable[[], CheckpointEntry],
        disk: Disk,
    ) -> None:
        self._files = files
        self._segments = segments
        self._limits = limits
        self._spool = spool
        self._router_start = router_start
        self._snapshot = snapshot
        self._disk = disk
        self._open: list[_OpenSegment] = []
        self._unsynced: deque[_UnsyncedEntry] = deque()
        self.unsynced_bytes = 0
        self.last = Lsn(0)
        self.directory_changed = False

    def begin(self, number: int, continues: Lsn) -> None:
        """The first segment of this router. `continues`: the end of the log so far.

        Raises:
            OSError: there is no room, not even the spare's.
        """
        self._start_segment(number, continues, 0, for_frames=False)

    def begin_with_rewrite(
        self, number: int, unsynced_from: Lsn, frames: Sequence[tuple[Lsn, EntryBody]]
    ) -> dict[Lsn, Lsn]:
        """As `begin`, where an earlier router may have died of a failed sync: from `unsynced_from` on nothing old counts. The
        frames that are pending from there on are written again; old places to new ones.

        Raises:
            OSError: there is no room, not even the spare's.
        """
        self._start_segment(number, _rewrite_start(unsynced_from), 0, for_frames=False, rewrites=True)
        moved = {place: self._stage_moved(body) for place, body in frames}
        self._stage_void(unsynced_from, number)
        return moved

    def stage(self, body: EntryBody) -> Lsn:
        """Give an entry its place, in a new segment if need be.

        Raises:
            NoSpaceError: only for a frame: the disk is full.
            SpoolFullError: only for a frame: the spool is at its limit.
            OSError: no room is left for facts either, or the disk fails.
        """
        total = padded(ENTRY.size + body.length)
        active = self._open[-1]
        room = active.size - (self._limits.control_reserve_bytes if body.kind == EntryType.FRAME else 0)
        if active.end + total > room:
            self._roll(total, for_frames=body.kind == EntryType.FRAME)
            active = self._open[-1]
        return self._stage_in(active, body, total)

    def has_room(self, nbytes: int) -> bool:
        """Whether a frame of so many bytes would be taken now."""
        active = self._open[-1]
        if active.end + padded(ENTRY.size + nbytes) <= active.size - self._limits.control_reserve_bytes:
            return True
        return self._files.has_spare and not self._is_at_limit(active)

    def write(self) -> None:
        """Hand everything staged to the kernel.

        Raises:
            OSError: the disk refuses. What was begun is cut off, as well as that can be done.
        """
        for segment in self._open:
            if segment.staged:
                self._write_segment(segment)

    def written_files(self) -> list[int]:
        """Descriptors of all files with something that may be unsynced, oldest first."""
        return [segment.fd for segment in self._open if segment.written_end]

    def synced(self, through: Lsn) -> None:
        """Everything before `through` is on disk."""
        kept = self._unsynced
        while kept and kept[0].place < through:
            self.unsynced_bytes -= padded(ENTRY.size + kept.popleft().body.length)
        newest = segment_of(through)
        while len(self._open) > 1 and self._open[0].number < newest:
            os.close(self._open.pop(0).fd)

    def rewrite_unsynced(self) -> dict[Lsn, Lsn]:
        """A sync failed: everything that none covered goes to a new segment and is written there; the failed files are closed
        and never synced again (SPL-5). Old places to new ones.

        Raises:
            OSError: no new segment can be had.
        """
        failed, self._open = self._open, []
        kept, self._unsynced = list(self._unsynced), deque()
        self.unsynced_bytes = 0
        first = {segment_of(entry.place): entry.place & 0xFFFFFFFF for entry in reversed(kept)}
        ends = [min(segment.written_end, first.get(segment.number, segment.end)) for segment in failed]
        continues = kept[0].place if kept else lsn(failed[-1].number, ends[-1])
        self._start_segment(failed[-1].number + 1, _rewrite_start(continues), 0, for_frames=False, rewrites=True)
        moved: dict[Lsn, Lsn] = {}
        for place, body in kept:
            if body.kind != EntryType.CHECKPOINT:
                moved[place] = self._stage_moved(body)
        self._stage_void(continues, failed[-1].number + 1)
        self.write()
        # Only now: until it was written elsewhere, the page cache of the failed files has what a kill must not take.
        for segment, end in zip(failed, ends, strict=True):
            self._close_failed(segment, end)
        return moved

    def close(self) -> None:
        """Let go of all files."""
        for segment in self._open:
            os.close(segment.fd)
        self._open.clear()

    def _stage_moved(self, body: EntryBody) -> Lsn:
        """Frames that were taken already may use all room, and even the spare."""
        total = padded(ENTRY.size + body.length)
        if self._open[-1].end + total > self._open[-1].size:
            self._roll(total, for_frames=False)
        return self._stage_in(self._open[-1], body, total)

    def _stage_void(self, start: Lsn, rewritten_in: int) -> None:
        kind, void = pack_control(VoidEntry(_rewrite_start(start), lsn(rewritten_in, 0)))
        _ = self.stage(EntryBody(kind, len(void), crc32c(void), (void,)))

    def _stage_in(self, active: _OpenSegment, body: EntryBody, total: int) -> Lsn:
        offset = active.end
        place = lsn(active.number, offset)
        staged = active.staged
        staged.append(active.headers.pack(offset, body.kind, body.length, body.crc))
        staged.extend(body.buffers)
        pad = total - ENTRY.size - body.length
        if pad:
            staged.append(_PADS[pad])
        active.end = offset + total
        self.last = place
        self._unsynced.append(_UnsyncedEntry(place, body))
        self.unsynced_bytes += total
        return place

    def _roll(self, need: int, *, for_frames: bool) -> None:
        """Go on in a new segment that has room for `need` bytes."""
        active = self._open[-1]
        if for_frames and self._is_at_limit(active):
            raise SpoolFullError(f"the spool holds {self._segments.nbytes} bytes of {self._limits.bytes_max}")
        self._start_segment(active.number + 1, lsn(active.number, active.end), need, for_frames=for_frames)
        self._segments.sealed(active.number, active.end)
        # Behind its last entry a sealed segment needs no blocks.
        os.ftruncate(active.fd, active.end)

    def _is_at_limit(self, active: _OpenSegment) -> bool:
        """Whether one segment more would be too many."""
        after = self._segments.nbytes - active.size + active.end + self._limits.segment_bytes
        return after > self._limits.bytes_max and self._segments.sealed_count > 0

    def _start_segment(
        self, number: int, continues: Lsn, need: int, *, for_frames: bool, rewrites: bool = False
    ) -> None:
        if for_frames:
            # While the disk is full every client comes again and again: the tables are not packed for each of them.
            self._files.admit_frames()
        kind, checkpoint = pack_control(self._snapshot())
        total = padded(ENTRY.size + len(checkpoint))
        wanted = max(self._limits.segment_bytes, ENTRIES_AT + total + need + self._limits.control_reserve_bytes)
        least = ENTRIES_AT + total + need + min(self._limits.control_reserve_bytes, _LEAST_RESERVE_BYTES)
        fd, size = self._files.allocate(number, wanted, least, for_frames=for_frames)
        segment = _OpenSegment(number, fd, size, EntryHeaders(self._spool, number), end=ENTRIES_AT)
        header = SegmentHeader(self._spool, number, self._router_start, continues, rewrites)
        segment.staged.append(pack_segment_header(header))
        self._open.append(segment)
        self.directory_changed = True
        self._segments.added(number, size)
        _ = self._stage_in(segment, EntryBody(kind, len(checkpoint), crc32c(checkpoint), (checkpoint,)), total)

    def _write_segment(self, segment: _OpenSegment) -> None:
        buffers, offset, begun = segment.staged, segment.written_end, segment.written_end
        try:
            for group in _write_groups(buffers):
                offset += write_all(self._disk, segment.fd, group, offset)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(segment.fd, begun)
            raise
        assert offset == segment.end, "the staged bytes do not end where the segment does"
        segment.staged = []
        segment.written_end = segment.end

    def _close_failed(self, segment: _OpenSegment, end: int) -> None:
        """Close a file whose sync failed. What is cut off is in memory, and nobody was given a reference to it."""
        with contextlib.suppress(OSError):
            os.ftruncate(segment.fd, end)
        os.close(segment.fd)
        if not self._segments.by_number[segment.number].sealed:
            self._segments.sealed(segment.number, end)


def _write_groups(buffers: list[Buffer]) -> Iterator[list[Buffer]]:
    """The same buffers, as many at once as one call is given."""
    start = nbytes = 0
    for place, buffer in enumerate(buffers):
        nbytes += len(buffer)
        if nbytes >= _WRITE_BYTES or place - start >= _IOVECS_MAX - 1:
            yield buffers[start : place + 1]
            start, nbytes = place + 1, 0
    if start < len(buffers):
        yield buffers[start:]


def _rewrite_start(place: Lsn) -> Lsn:
    """The same place, or the whole segment's where it is that of its first entry: then its header does not count either."""
    return lsn(segment_of(place), 0) if place & 0xFFFFFFFF == ENTRIES_AT else place


def frame_body(meta: bytes, payloads: Sequence[Buffer]) -> tuple[EntryBody, list[int]]:
    """The body of a frame entry, and where in it each payload begins."""
    length, crc = len(meta), crc32c(meta)
    starts: list[int] = []
    for payload in payloads:
        starts.append(length)
        length += len(payload)
        crc = crc32c(payload, crc)
    return EntryBody(EntryType.FRAME, length, crc, (meta, *payloads)), starts
