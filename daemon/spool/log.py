"""The spool: the router's log on disk. One writer, appended in memory, written once a round, synced in groups by a thread.

A directory holds::

    lock                     locked for the life of the router; holds its pid
    identity                 see `daemon/spool/identity.py`
    <16 hex digits>.seg      segments, numbers rise and are never used again; `daemon/ledger/segment_scan.py` draws them
    spare                    an allocated file without content, for the day the disk is full
    quarantine/              what recovery set aside

A segment begins with its header and a CHECKPOINT of all tables; FRAME entries carry records; the other entries are small facts.
Each segment is allocated in full before its first byte, so writes into it do not find the disk full. Its last
`control_reserve_bytes` are for facts only; where even they do not suffice and no new file can be had, the spare becomes the
next segment. So a full disk refuses frames and nothing else.

What a crash leaves: before `write`, nothing of what was staged. Inside it, a prefix, whose last entry may be torn: recovery cuts
it. After it, everything, as long as the machine stands. A power cut leaves everything synced, and any pages of the rest.
Between making a segment and its first write: an empty file, which recovery passes over. Between a removal's `unlink` and the
directory's sync: the file may come back, with nothing pending in it.

After an error of a sync the file is never synced again: what it may have lost is still in memory, and is written to a new
segment and synced there. References to slices that were synced stay true; others are told through `on_relocated`.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from ...runtime.clock import monotonic, wall_ms
from ..ledger.audit_counts import AuditCounts
from ..ledger.client_sequences import ClientStateLimits, ClientStates
from ..ledger.entries import CheckpointEntry, ControlEntry, FrameEntry, Lsn, lsn, segment_of
from ..ledger.entry_codec import SyncedEntry, pack_control, pack_frame_meta
from ..ledger.segment_scan import ENTRY
from ..ledger.segments import Segments, relocate
from ..ledger.slices import FrameLocation, SpoolFullError
from .directory import SpoolError
from .disk import Buffer, Disk
from .files import SegmentAllocator
from .identity import SpoolIdentity
from .recovery import Recovered, Recovery, SegmentEnd, highest_segment_number, sync_directory
from .segment_files import Quarantine, read_range, segment_path
from .sync import Syncer, SyncJob
from .tail import EntryBody, Tail, TailLimits, frame_body

_SYNC_FAILURES_MAX: Final = 3
_SEGMENTS_LEAST: Final = 8
_SEGMENT_BYTES_LEAST: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """All in bytes. `control_reserve_bytes` of every segment are for facts only. `unsynced_bytes_max` bounds what is kept in
    memory for the case that a sync fails. Segments are smaller than asked for where eight would exceed `bytes_max`: space
    comes back a segment at a time."""

    bytes_max: int = 10 << 30
    segment_bytes: int = 64 << 20
    control_reserve_bytes: int = 2 << 20
    unsynced_bytes_max: int = 128 << 20
    quarantine_bytes_max: int = 256 << 20

    @property
    def segment_bytes_effective(self) -> int:
        """The size of a segment file."""
        return min(self.segment_bytes, max(self.bytes_max // _SEGMENTS_LEAST, _SEGMENT_BYTES_LEAST))


class Spool:
    """The log. Owned by the router's thread; `finish_sync` is called there when `sync_fd` is readable.

    `segments`: what each segment holds. `on_relocated`: called with (old place -> new place) of entries that a failed sync
    made move; `core.segments.relocate` mends slices that named the old ones. `unsynced_since`: CLOCK_MONOTONIC seconds of the
    oldest write that waits for its sync, None without one.
    """

    def __init__(self, identity: SpoolIdentity, limits: SpoolLimits, ends: Sequence[SegmentEnd], *, disk: Disk) -> None:
        self._identity = identity
        self._directory = identity.claim.path
        self._limits = limits
        self._disk = disk
        self._ends = list(ends)
        self._files = SegmentAllocator(self._directory, limits.segment_bytes_effective, disk)
        self._syncer = Syncer(disk)
        self._tail: Tail | None = None
        self._recovered: Recovered | None = None
        self._confirm_at: Lsn | None = None
        self._syncing_through = Lsn(0)
        self._logged_synced = Lsn(0)
        self._sync_failures = 0
        self._written_since: float | None = None
        self.segments = Segments()
        self.written_through = Lsn(0)
        self.synced_through = Lsn(0)
        self.unsynced_since: float | None = None
        self.unsynced_records = 0
        """Records that a power cut would take: of frames staged or written, not synced."""
        self._unsynced_frames: deque[tuple[Lsn, int]] = deque()
        self.on_relocated: Callable[[Mapping[Lsn, Lsn]], None] = _ignore_relocation
        for end in ends:
            self.segments.added(end.number, end.end)

    @classmethod
    def open(
        cls,
        directory: Path,
        limits: SpoolLimits,
        *,
        identity: SpoolIdentity,
        session_limits: ClientStateLimits | None = None,
        disk: Disk | None = None,
        alive: Callable[[], None] = lambda: None,
        books: AuditCounts | None = None,
    ) -> "tuple[Spool, Recovered]":
        """Recover what is in the directory that `identity` holds. Follow with `begin` before anything is appended.
        `alive` is called again and again meanwhile. `books`: empty ones, to be kept with the ledger.

        Raises:
            SpoolError: the directory cannot be read, or holds a version that is not known.
        """
        assert directory == identity.claim.path, "the identity is another directory's"
        disk = disk or Disk()
        recovered, ends = Recovery(
            directory,
            identity.spool,
            ClientStates(session_limits),
            Quarantine(directory, limits.quarantine_bytes_max),
            power_cut=identity.power_cut,
            now_ms=int(monotonic() * 1000),
            wall_ms=wall_ms(),
            disk=disk,
            alive=alive,
            books=books,
        ).run()
        recovered.uncertain |= max((end.number for end in ends), default=-1) < identity.segment
        if recovered.uncertain:
            # One that was new already is not new enough: ordinals of its incarnation may be given out again.
            identity.require_new_producer_id(
                identity.new_producer_id_reason or "synced entries of the spool are missing"
            )
        spool = cls(identity, limits, ends, disk=disk)
        spool._recovered = recovered
        for part in recovered.slices:
            spool.segments.frame_added(part.segment, 1, part.created_ms)
        for end in ends:
            spool.segments.sealed(end.number, end.end)
        return spool, recovered

    def begin(self, snapshot: Callable[[], CheckpointEntry]) -> None:
        """Start a segment with what was recovered; all of that is on disk when this returns. `snapshot` gives all tables as of
        the entries applied so far; the spool asks for it whenever a segment begins.

        Raises:
            SpoolError: there is no room, or the disk fails.
        """
        limits = self._limits
        self._tail = tail = Tail(
            self._files,
            self.segments,
            TailLimits(limits.bytes_max, limits.segment_bytes_effective, limits.control_reserve_bytes),
            spool=self._identity.spool,
            router_start=self._identity.start,
            snapshot=snapshot,
            disk=self._disk,
        )
        number = highest_segment_number(self._directory, Quarantine(self._directory, limits.quarantine_bytes_max)) + 1
        try:
            moved = self._begin_log(tail, number)
            self.write()
            for file in tail.written_files():
                self._disk.sync(file)
            self._files.ensure_spare()
        except OSError as error:
            raise SpoolError(
                f"no segment can be begun in {self._directory}: {error.strerror}; free some space, or mend the disk"
            ) from error
        sync_directory(self._identity.claim.descriptor, self._disk)
        tail.directory_changed = False
        self._synced(self.written_through)
        if self._recovered is not None:
            relocate(moved, self._recovered.slices, self.segments)
            self._recovered = None
        self._identity.mark_recovered(number)

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(self, entry: ControlEntry | SyncedEntry) -> Lsn:
        """Stage one fact. The caller applies it to its table before it appends another.

        Raises:
            OSError: no room is left even for facts; the process ends.
        """
        kind, body = pack_control(entry)
        return self._active.stage(EntryBody(kind, len(body), crc32c(body), (body,)))

    def append_frame(self, entry: FrameEntry, payloads: Sequence[Buffer], *, created_ms: int) -> FrameLocation:
        """Stage a frame and its slices: `payloads` one behind the other are what the entry's slices name. They must not
        change until a sync has covered them. `created_ms` is CLOCK_MONOTONIC.

        Raises:
            NoSpaceError: the disk is full. Nothing was staged.
            SpoolFullError: the spool is at its limit, or too much waits for its sync. Nothing was staged.
        """
        tail = self._active
        body, starts = frame_body(pack_frame_meta(entry), payloads)
        if tail.unsynced_bytes + body.length > self._limits.unsynced_bytes_max and tail.unsynced_bytes:
            raise SpoolFullError("too much waits for its sync")
        place = tail.stage(body)
        number = segment_of(place)
        self.segments.frame_added(number, len(payloads), created_ms)
        self._unsynced_frames.append((place, entry.count))
        self.unsynced_records += entry.count
        body_at = (place & 0xFFFFFFFF) + ENTRY.size
        return FrameLocation(place, number, [body_at + start for start in starts])

    def has_room(self, nbytes: int) -> bool:
        """Whether a frame of so many bytes would be taken now."""
        tail = self._active
        return tail.unsynced_bytes + nbytes <= self._limits.unsynced_bytes_max and tail.has_room(nbytes)

    def write(self) -> None:
        """Hand everything staged to the kernel. When this returns it survives the death of every process.

        Raises:
            OSError: the disk refuses; the process ends.
        """
        tail = self._active
        if self._identity.producer_id_unconfirmed and self._confirm_at is None:
            # The rows of a new producer id were appended right after it was stored: they are in this write.
            self._confirm_at = Lsn(tail.last + 1)
            self._confirm_producer_id()
        if tail.last < self.written_through:
            return
        if self._logged_synced != self.synced_through:
            self._logged_synced = self.synced_through
            _ = self.append(SyncedEntry(self.synced_through))
        tail.write()
        self.written_through = Lsn(tail.last + 1)
        now = monotonic()
        if self.unsynced_since is None:
            self.unsynced_since = now
        if self._written_since is None:
            self._written_since = now

    # --- syncing -----------------------------------------------------------------------------------------------------

    @property
    def sync_fd(self) -> int:
        """Readable when a sync has ended: call `finish_sync`."""
        return self._syncer.fd

    @property
    def syncing(self) -> bool:
        return self._syncer.running

    @property
    def unsynced(self) -> bool:
        """Something written waits for its sync."""
        return self.written_through > self.synced_through

    @property
    def unsynced_bytes(self) -> int:
        """Bytes that a power cut would take: staged or written, not synced."""
        return self._active.unsynced_bytes

    def start_sync(self) -> bool:
        """Sync what is written, in the thread. False: nothing to do, or one runs."""
        if self._syncer.running or not self.unsynced:
            return False
        tail = self._active
        self._syncing_through = self.written_through
        self._written_since = None
        directory = self._identity.claim.descriptor if tail.directory_changed else None
        tail.directory_changed = False
        self._syncer.start(SyncJob(tail.written_files(), directory))
        return True

    def finish_sync(self) -> Lsn:
        """The sync has ended, or is waited for. Returns `synced_through`; unchanged after an error: then what was unsynced is
        written again elsewhere, and another sync is due.

        Raises:
            OSError: syncs keep failing; the process ends.
        """
        error = self._syncer.wait()
        if error is None:
            self._sync_failures = 0
            self._synced(self._syncing_through)
            return self.synced_through
        self._sync_failures += 1
        if self._sync_failures >= _SYNC_FAILURES_MAX:
            raise error
        tail = self._active
        moved = tail.rewrite_unsynced()
        self.written_through = Lsn(tail.last + 1)
        self.on_relocated(moved)
        return self.synced_through

    # --- segments ----------------------------------------------------------------------------------------------------

    @property
    def bytes_used(self) -> int:
        """Bytes of all segments."""
        return self.segments.nbytes

    @property
    def has_spare(self) -> bool:
        """False while the disk is full: frames that need a new segment are refused."""
        return self._files.has_spare

    def slice_ended(self, segment: int) -> None:
        """Every ordinal of a slice in this segment is resolved; the entry that says so was appended."""
        self.segments.slices_resolved(segment, self._active.last)

    def remove_unneeded(self) -> list[int]:
        """Remove the segments that nothing needs any more; their numbers."""
        gone = self.segments.removable(self.synced_through)
        for number in gone:
            self.remove_segment(number)
        self._files.ensure_spare()
        return gone

    def remove_segment(self, number: int) -> None:
        """Unlink a segment (SPL-9: after the entries that resolved its slices are synced)."""
        segment_path(self._directory, number).unlink(missing_ok=True)
        self.segments.removed(number)
        self._files.space_freed()

    def read_slice(self, segment: int, offset: int, length: int) -> bytes:
        """Bytes of a slice that was written.

        Raises:
            OSError: they cannot be read.
        """
        return read_range(segment_path(self._directory, segment), offset, length)

    def close(self, *, clean: bool) -> None:
        """Let go of everything but the directory's lock. `remove_unneeded`: an orderly stop; everything is written and synced first,
        and the next start trusts the cuts.

        Raises:
            OSError: it cannot be synced; the stop is not orderly.
            SpoolError: the same for the clean mark.
        """
        if self._syncer.running:
            _ = self.finish_sync()
        if clean and self._tail is not None:
            self.write()
            while self.start_sync():
                _ = self.finish_sync()
            self._identity.mark_clean()
        self._syncer.close()
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _begin_log(self, tail: Tail, number: int) -> dict[Lsn, Lsn]:
        """Begin the first segment; what was written again there, old places to new ones."""
        recovered = self._recovered
        end = lsn(*self._ends[-1]) if self._ends else Lsn(0)
        unsynced_from = None if recovered is None else recovered.unsynced_from
        # After a power cut what is there was read from the disk, and after an orderly stop a sync covered it.
        if recovered is None or unsynced_from is None or self._identity.power_cut or self._identity.was_clean:
            tail.begin(number, end)
            return {}
        bodies = [(frame.lsn, self._read_frame(frame.lsn)) for frame in recovered.frames if frame.lsn >= unsynced_from]
        nbytes = sum(body.length for _, body in bodies)
        if nbytes > self._limits.segment_bytes_effective // 2 and nbytes > self._files.free_bytes() // 2:
            # No room: recovery synced the old files, which is as good unless a sync of them had failed before.
            tail.begin(number, end)
            return {}
        return tail.begin_with_rewrite(number, unsynced_from, bodies)

    def _read_frame(self, place: Lsn) -> EntryBody:
        path, offset = segment_path(self._directory, segment_of(place)), place & 0xFFFFFFFF
        _, kind, length, body_crc, _ = ENTRY.unpack(read_range(path, offset, ENTRY.size))
        return EntryBody(kind, length, body_crc, (read_range(path, offset + ENTRY.size, length),))

    @property
    def _active(self) -> Tail:
        assert self._tail is not None, "begin comes first"
        return self._tail

    def _confirm_producer_id(self) -> None:
        if self._confirm_at is not None and self.synced_through >= self._confirm_at:
            self._confirm_at = None
            self._identity.confirm_producer_id()

    def _synced(self, through: Lsn) -> None:
        self.synced_through = through
        self._confirm_producer_id()
        self.unsynced_since = self._written_since if self.unsynced else None
        self._active.synced(through)
        frames = self._unsynced_frames
        while frames and frames[0][0] < through:
            self.unsynced_records -= frames.popleft()[1]


def _ignore_relocation(_moved: Mapping[Lsn, Lsn]) -> None:
    """Until the router says who is to be told."""
