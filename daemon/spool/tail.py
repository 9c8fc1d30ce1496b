"""The end of the log: segments that are being written or are not synced yet, and the entries staged for them."""

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
"""Approximate bytes per write call. For larger calls the kernel allocates larger pieces of page cache, whose memory a
virtual machine may never have touched: copying into them was measured to take eight times as long."""
_LEAST_RESERVE_BYTES: Final = 64 << 10
_SEGMENTS_LEAST: Final = 8
_SEGMENT_BYTES_LEAST: Final = 4 << 20
_PADS: Final = tuple(b"\0" * count for count in range(8))


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """All in bytes. `control_reserve_bytes` of every segment are for control entries only. `unsynced_bytes_max` limits
    the entries kept in memory in case a sync fails. If eight segments would exceed `bytes_max`, segments are smaller
    than `segment_bytes`, because space is freed one segment at a time."""

    bytes_max: int = 10 << 30
    segment_bytes: int = 64 << 20
    control_reserve_bytes: int = 2 << 20
    unsynced_bytes_max: int = 128 << 20
    quarantine_bytes_max: int = 256 << 20

    @property
    def segment_bytes_effective(self) -> int:
        """Size of a segment file: an eighth of `bytes_max` (at least 4 MiB) if `segment_bytes` is larger."""
        return min(self.segment_bytes, max(self.bytes_max // _SEGMENTS_LEAST, _SEGMENT_BYTES_LEAST))


class EntryBody(NamedTuple):
    """An entry before it is given its position in the log."""

    kind: int
    length: int
    crc: int
    buffers: tuple[Buffer, ...]


class _UnsyncedEntry(NamedTuple):
    """An entry that is not synced yet, kept in case the next sync fails."""

    place: Lsn
    body: EntryBody


@dataclass(slots=True, eq=False)
class _OpenSegment:
    """An open segment. `end`: offset after the last staged entry; `written_end`: after the last written entry."""

    number: int
    fd: int
    size: int
    headers: EntryHeaders
    end: int = 0
    written_end: int = 0
    staged: list[Buffer] = field(default_factory=list)


class Tail:
    """Stages and writes entries, and keeps them in memory until they are synced. `last`: LSN of the newest entry.
    `directory_changed`: new files were created since the last directory sync was started."""

    def __init__(
        self,
        files: SegmentAllocator,
        segments: Segments,
        limits: SpoolLimits,
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
        """Start the first segment of this router. `continues`: the end of the existing log.

        Raises:
            OSError: there is no space, not even in the spare.
        """
        self._start_segment(number, continues, 0, for_frames=False)

    def begin_with_rewrite(
        self, number: int, unsynced_from: Lsn, frames: Sequence[tuple[Lsn, EntryBody]]
    ) -> dict[Lsn, Lsn]:
        """Like `begin`, but rewrite the pending `frames`, because an earlier router may have died of a failed sync. The
        old entries from `unsynced_from` on become void. Returns old -> new LSNs of the frames.

        Raises:
            OSError: there is no space, not even in the spare.
        """
        self._start_segment(number, _rewrite_start(unsynced_from), 0, for_frames=False, rewrites=True)
        moved = {place: self._stage_moved(body) for place, body in frames}
        self._stage_void(unsynced_from, number)
        return moved

    def stage(self, body: EntryBody) -> Lsn:
        """Stage an entry, in a new segment if the current one is too full, and return its LSN.

        Raises:
            NoSpaceError: only for a frame: the disk is full.
            SpoolFullError: only for a frame: the spool is at its limit.
            OSError: no space is left for control entries either, or the disk fails.
        """
        total = padded(ENTRY.size + body.length)
        active = self._open[-1]
        room = active.size - (self._limits.control_reserve_bytes if body.kind == EntryType.FRAME else 0)
        if active.end + total > room:
            self._roll(total, for_frames=body.kind == EntryType.FRAME)
            active = self._open[-1]
        return self._stage_in(active, body, total)

    def has_room(self, nbytes: int) -> bool:
        """Whether a frame of `nbytes` would be accepted now."""
        active = self._open[-1]
        if active.end + padded(ENTRY.size + nbytes) <= active.size - self._limits.control_reserve_bytes:
            return True
        return self._files.has_spare and not self._is_at_limit(active)

    def write(self) -> None:
        """Write everything staged to the segment files, without syncing them.

        Raises:
            OSError: the write failed. The file is truncated to what was written before, if that succeeds.
        """
        for segment in self._open:
            if segment.staged:
                self._write_segment(segment)

    def written_files(self) -> list[int]:
        """Descriptors of all files that may have unsynced data, oldest first."""
        return [segment.fd for segment in self._open if segment.written_end]

    def synced(self, through: Lsn) -> None:
        """Release the entries and files before `through`: they are on disk."""
        kept = self._unsynced
        while kept and kept[0].place < through:
            self.unsynced_bytes -= padded(ENTRY.size + kept.popleft().body.length)
        newest = segment_of(through)
        while len(self._open) > 1 and self._open[0].number < newest:
            os.close(self._open.pop(0).fd)

    def rewrite_unsynced(self) -> dict[Lsn, Lsn]:
        """After a failed sync, write all unsynced entries to a new segment. The failed files are closed and never
        synced again (SPL-5). Returns old -> new LSNs.

        Raises:
            OSError: no new segment can be created or written.
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
        # Truncate only after the rewrite: until then, a kill would leave only the failed files' page cache.
        for segment, end in zip(failed, ends, strict=True):
            self._close_failed(segment, end)
        return moved

    def close(self) -> None:
        """Close all files."""
        for segment in self._open:
            os.close(segment.fd)
        self._open.clear()

    def _stage_moved(self, body: EntryBody) -> Lsn:
        """Stage a rewritten entry. It was accepted before, so it may use the control reserve and even the spare."""
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
        """Seal the current segment and start a new one that has room for `need` bytes."""
        active = self._open[-1]
        if for_frames and self._is_at_limit(active):
            raise SpoolFullError(f"the spool holds {self._segments.nbytes} bytes of {self._limits.bytes_max}")
        self._start_segment(active.number + 1, lsn(active.number, active.end), need, for_frames=for_frames)
        self._segments.sealed(active.number, active.end)
        # Free the blocks after the last entry of the sealed segment.
        os.ftruncate(active.fd, active.end)

    def _is_at_limit(self, active: _OpenSegment) -> bool:
        """Whether another segment would exceed `bytes_max`. False while no segment is sealed."""
        after = self._segments.nbytes - active.size + active.end + self._limits.segment_bytes_effective
        return after > self._limits.bytes_max and self._segments.sealed_count > 0

    def _start_segment(
        self, number: int, continues: Lsn, need: int, *, for_frames: bool, rewrites: bool = False
    ) -> None:
        if for_frames:
            # Check before packing the tables: while the disk is full, every client retries again and again.
            self._files.admit_frames()
        kind, checkpoint = pack_control(self._snapshot())
        total = padded(ENTRY.size + len(checkpoint))
        wanted = max(
            self._limits.segment_bytes_effective, ENTRIES_AT + total + need + self._limits.control_reserve_bytes
        )
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
        """Truncate and close a file whose sync failed. The truncated entries are in memory, and not referenced yet."""
        with contextlib.suppress(OSError):
            os.ftruncate(segment.fd, end)
        os.close(segment.fd)
        if not self._segments.by_number[segment.number].sealed:
            self._segments.sealed(segment.number, end)


def _write_groups(buffers: list[Buffer]) -> Iterator[list[Buffer]]:
    """Split the buffers into groups, one per write call."""
    start = nbytes = 0
    for place, buffer in enumerate(buffers):
        nbytes += len(buffer)
        if nbytes >= _WRITE_BYTES or place - start >= _IOVECS_MAX - 1:
            yield buffers[start : place + 1]
            start, nbytes = place + 1, 0
    if start < len(buffers):
        yield buffers[start:]


def _rewrite_start(place: Lsn) -> Lsn:
    """Return `place`, or the segment's start if `place` is its first entry: then its header is void too."""
    return lsn(segment_of(place), 0) if place & 0xFFFFFFFF == ENTRIES_AT else place


def frame_body(meta: bytes, payloads: Sequence[Buffer]) -> tuple[EntryBody, list[int]]:
    """Return the body of a frame entry, and the offset of each payload in it."""
    length, crc = len(meta), crc32c(meta)
    starts: list[int] = []
    for payload in payloads:
        starts.append(length)
        length += len(payload)
        crc = crc32c(payload, crc)
    return EntryBody(EntryType.FRAME, length, crc, (meta, *payloads)), starts
