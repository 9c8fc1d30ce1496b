"""The spool: the router's log on disk. One writer stages entries and writes once per round; a thread syncs in groups.

A directory holds::

    lock                     locked for the life of the router; holds its pid
    identity                 see `daemon/spool/identity_file.py`
    <16 hex digits>.seg      segments; numbers increase and are never reused; layout in `daemon/ledger/segment_scan.py`
    spare                    an allocated empty file, for when the disk is full
    quarantine/              damaged bytes and foreign files that recovery set aside

A segment starts with its header and a CHECKPOINT of all tables. FRAME entries carry records; all others are small
control entries. Each segment is allocated in full before its first write, so writes into it cannot fail on a full disk.
Its last `control_reserve_bytes` are for control entries only. If the reserve is too small and no new file can be
created, the spare becomes the next segment. A full disk therefore refuses frames and nothing else.

After a crash before `write`, the staged entries are gone. After a crash during it, a prefix remains whose last entry
may be torn; recovery truncates it. After `write` returns, everything survives as long as the machine runs. A power cut
leaves all synced data and any subset of the other pages. A crash between creating a segment and its first write leaves
an empty file, which recovery skips. A crash between `unlink` and the directory sync may bring a file back, with nothing
pending in it.

A file whose sync failed is never synced again: the data it may have lost is still in memory, and is written to a new
segment and synced there. References to synced slices stay valid; `on_relocated` reports the new positions of the
others.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
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
from .tail import EntryBody, SpoolLimits, Tail, frame_body

_SYNC_FAILURES_MAX: Final = 3


class Spool:
    """The log. Owned by the router's thread; `finish_sync` is called there when `sync_fd` is readable.

    `segments`: pending slices per segment. `on_relocated`: called with a mapping from old to new LSNs after a failed
    sync has moved entries; `daemon.ledger.segments.relocate` updates the slices that have the old ones.
    `unsynced_since`: CLOCK_MONOTONIC seconds of the oldest write that is not synced, None if all are.
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
        """Records that a power cut would lose: those of frames staged or written, but not synced."""
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
        """Recover the spool in the directory that `identity` has locked. Call `begin` before appending anything.
        `alive` is called repeatedly meanwhile. `books`: empty audit counts, which the ledger fills and keeps.

        Raises:
            SpoolError: the directory cannot be read, or a segment has an unknown version.
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
            # Even an identity that is already new is replaced: ordinals of its incarnation could be assigned twice.
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
        """Start a segment from the recovered state, which is on disk when this returns. `snapshot` returns all tables
        as of the entries applied so far; it is called for every new segment.

        Raises:
            SpoolError: there is no space, or the disk fails.
        """
        limits = self._limits
        self._tail = tail = Tail(
            self._files,
            self.segments,
            limits,
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
        """Stage one control entry. The caller applies it to its table before it appends another.

        Raises:
            OSError: no space is left even for control entries; the process exits.
        """
        kind, body = pack_control(entry)
        return self._active.stage(EntryBody(kind, len(body), crc32c(body), (body,)))

    def append_frame(self, entry: FrameEntry, payloads: Sequence[Buffer], *, created_ms: int) -> FrameLocation:
        """Stage a frame and its slices. The slices' offsets refer to the concatenated `payloads`, which must not change
        until they are synced. `created_ms` is CLOCK_MONOTONIC.

        Raises:
            NoSpaceError: the disk is full. Nothing was staged.
            SpoolFullError: the spool is at its limit, or `unsynced_bytes_max` is reached. Nothing was staged.
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
        """Whether a frame of `nbytes` would be accepted now."""
        tail = self._active
        return tail.unsynced_bytes + nbytes <= self._limits.unsynced_bytes_max and tail.has_room(nbytes)

    def write(self) -> None:
        """Write everything staged to the segment files, without syncing them. When this returns, the data survives the
        death of every process.

        Raises:
            OSError: the write failed; the process exits.
        """
        tail = self._active
        if self._identity.producer_id_unconfirmed and self._confirm_at is None:
            # The stamp rows of a new producer id were appended right after it was stored: this write includes them.
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
        """Readable when a sync has finished: call `finish_sync`."""
        return self._syncer.fd

    @property
    def syncing(self) -> bool:
        return self._syncer.running

    @property
    def unsynced(self) -> bool:
        """Whether anything written is not synced yet."""
        return self.written_through > self.synced_through

    @property
    def unsynced_bytes(self) -> int:
        """Bytes that a power cut would lose: staged or written, but not synced."""
        return self._active.unsynced_bytes

    def start_sync(self) -> bool:
        """Start to sync everything written, in the sync thread. False: nothing to sync, or a sync is running."""
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
        """Block until the running sync has finished, and return `synced_through`. If the sync failed, `synced_through`
        is unchanged, the unsynced entries are rewritten to a new segment, and another sync is due.

        Raises:
            OSError: three syncs in a row failed; the process exits.
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
        """Whether the spare file exists. Without it, frames that need a new segment are refused: the disk is full."""
        return self._files.has_spare

    def remove_unneeded(self) -> list[int]:
        """Remove all segments that are no longer needed, and return their numbers."""
        gone = self.segments.removable(self.synced_through)
        for number in gone:
            self.remove_segment(number)
        self._files.ensure_spare()
        return gone

    def remove_segment(self, number: int) -> None:
        """Unlink a segment, only after the entries that resolved its slices are synced (SPL-9)."""
        segment_path(self._directory, number).unlink(missing_ok=True)
        self.segments.removed(number)
        self._files.space_freed()

    def read_slice(self, segment: int, offset: int, length: int) -> bytes:
        """Read the bytes of a written slice.

        Raises:
            OSError: they cannot be read.
        """
        return read_range(segment_path(self._directory, segment), offset, length)

    def close(self, *, clean: bool) -> None:
        """Release everything but the directory's lock. `clean`: a clean shutdown, which first writes and syncs
        everything, so that the next start can trust the batch bounds.

        Raises:
            OSError: the sync failed; the shutdown is not clean.
            SpoolError: the clean mark cannot be stored; the shutdown is not clean.
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
        """Start this router's first segment, and return old -> new LSNs of the frames rewritten into it."""
        recovered = self._recovered
        end = lsn(*self._ends[-1]) if self._ends else Lsn(0)
        unsynced_from = None if recovered is None else recovered.unsynced_from
        # After a power cut the data was read from the disk itself; after a clean shutdown it was synced.
        if recovered is None or unsynced_from is None or self._identity.power_cut or self._identity.was_clean:
            tail.begin(number, end)
            return {}
        bodies = [(frame.lsn, self._read_frame(frame.lsn)) for frame in recovered.frames if frame.lsn >= unsynced_from]
        nbytes = sum(body.length for _, body in bodies)
        if nbytes > self._limits.segment_bytes_effective // 2 and nbytes > self._files.free_bytes() // 2:
            # No space: recovery has synced the old files, which is enough unless one of their syncs had failed before.
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
    """Default of `on_relocated`, until the router sets its own."""
