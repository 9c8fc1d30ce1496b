"""Reads all segments at start: truncates a torn tail, quarantines damage, and feeds the rest to `Replay`.

Findings and their meaning:

* The start of an entry followed only by zeros, at the end of the newest segment: a write that a kill interrupted. It is
  truncated.
* After a power cut, damage at or after the last LSN known to be synced, with whole entries after it: pages of the
  unsynced tail reached the disk in another order than they were written. The log ends at the damage: nothing after it
  was acked at `spooled` or sent to a shard. The rest is moved to `quarantine/`.
* Entries that the router rewrote in full after a failed sync: their first copy is skipped.
* Any other damage was synced, or was in the page cache without a power cut: the disk or a person caused it. The bytes
  are copied to `quarantine/` and counted, and the entries around them stay valid. Ordinals lost with them become holes.
  If no later checkpoint shows which ordinals were lost, a new identity is needed: the next ordinal may have been
  assigned before (IDN-9 d).

Recovery deletes no file with content. Damage never prevents a start; only an unknown version does. After a crash during
recovery, the next recovery comes to the same result: whole segments are moved, newest first, before the damaged one is
truncated.
"""

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...wire.errors import FrameError
from ..ledger.audit_counts import AuditCounts
from ..ledger.client_sequences import ClientStates
from ..ledger.entries import Lsn, lsn
from ..ledger.entry_codec import EntryType, SyncedEntry, unpack
from ..ledger.partition_state import Ledger
from ..ledger.replay import LostRange, Replay, with_keepalive
from ..ledger.segment_scan import ENTRIES_AT, ENTRY, EntryHeaders, SegmentDamage, read_segment_header
from ..ledger.slices import PendingFrame, PendingSlice
from .directory import SpoolError
from .disk import Disk
from .segment_files import Quarantine, is_segment_file, segment_numbers, segment_path, sync_file, truncate
from .segment_reader import SpoolSegment, SpoolSegmentReader


@dataclass(slots=True)
class RecoveryReport:
    """Findings of recovery, for the log, `status` and metrics."""

    segments: int = 0
    entries: int = 0
    nbytes: int = 0
    torn_bytes: int = 0
    dropped_bytes: int = 0
    corrupt_entries: int = 0
    corrupt_bytes: int = 0
    quarantine_full: bool = False
    foreign_files: list[str] = field(default_factory=list)
    repaired: int = 0
    checkpoint_mismatches: int = 0
    lost: list[LostRange] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Recovered:
    """The router's state, read from the spool. `slices`: all pending slices, in ordinal order within each partition.
    `frames`: all frames with pending slices. `uncertain`: synced entries are missing, so the next ordinals cannot be
    trusted and a new identity is needed (IDN-9 d). `unsynced_from`: the first entry not known to be synced, None if
    there is none."""

    ledger: Ledger
    clients: ClientStates
    frames: list[PendingFrame]
    slices: list[PendingSlice]
    report: RecoveryReport
    uncertain: bool
    unsynced_from: Lsn | None


class SegmentEnd(NamedTuple):
    """A segment that recovery keeps, and the offset of its end."""

    number: int
    end: int


class Recovery:
    """One run over a spool directory."""

    def __init__(
        self,
        directory: Path,
        spool: int,
        sessions: ClientStates,
        quarantine: Quarantine,
        *,
        power_cut: bool,
        now_ms: int,
        wall_ms: int,
        disk: Disk,
        alive: Callable[[], None],
        books: AuditCounts | None = None,
    ) -> None:
        """`alive` is called repeatedly during the run, because a large spool takes longer than a watchdog timeout."""
        self._directory = directory
        self._spool = spool
        self._quarantine = quarantine
        self._power_cut = power_cut
        self._disk = disk
        self._alive = alive
        self._report = RecoveryReport()
        self._replay = Replay(sessions, now_ms=now_ms, wall_ms=wall_ms, books=books)
        self._ends: list[SegmentEnd] = []
        self._void: list[SegmentEnd] = []
        self._uncertain = False
        self._gap_before = False
        self._previous_start = 0
        self._unsynced: deque[Lsn] = deque()

    def run(self) -> tuple[Recovered, list[SegmentEnd]]:
        """Recover all segments. Returns the recovered state, and all segments with their ends, ascending.

        Raises:
            SpoolError: a segment has an unknown version, or the directory cannot be read.
        """
        try:
            numbers = self._own_segments()
            reader = SpoolSegmentReader(self._directory, self._spool, numbers)
            for place, number in enumerate(numbers):
                self._alive()
                if reader.is_void(number):
                    truncate(segment_path(self._directory, number), 0, self._disk)
                    self._void.append(SegmentEnd(number, 0))
                elif not self._recover_segment(reader, number, numbers[place + 1 :]):
                    break
            for end in [*self._ends, *self._void]:
                self._alive()
                # The last router's writes may be in the page cache only, and will now be sent.
                sync_file(segment_path(self._directory, end.number), self._disk)
        except OSError as error:
            raise SpoolError(f"the spool in {self._directory} cannot be read: {error}") from error
        done = self._replay.finish(power_cut=self._power_cut, alive=self._alive)
        self._report.repaired = self._replay.repaired
        self._report.checkpoint_mismatches = self._replay.checkpoint_mismatches
        self._report.lost = done.lost
        recovered = Recovered(
            self._replay.ledger,
            self._replay.clients,
            done.frames,
            done.slices,
            self._report,
            self._uncertain,
            self._unsynced[0] if self._unsynced else None,
        )
        return recovered, sorted([*self._ends, *self._void])

    def _own_segments(self) -> list[int]:
        """Return the numbers of this spool's segments. Other files named like segments are moved to quarantine."""
        numbers: list[int] = []
        for number in segment_numbers(self._directory):
            path = segment_path(self._directory, number)
            if is_segment_file(path) and not self._is_foreign(path):
                numbers.append(number)
            else:
                self._report.foreign_files.append(path.name)
                _ = self._quarantine.move_file(path)
        return numbers

    def _is_foreign(self, path: Path) -> bool:
        with path.open("rb") as file:
            start = file.read(ENTRIES_AT)
        try:
            header = read_segment_header(start)
        except FrameError as error:
            if error.code == "version":
                raise SpoolError(
                    f"{path} has {error}: use the program that wrote it, or another data_dir; nothing was changed"
                ) from error
            return False  # It may be a damaged segment of this spool; its entries decide.
        return header.spool != self._spool or f"{header.segment:016x}" != path.stem

    def _recover_segment(self, reader: SpoolSegmentReader, number: int, later: list[int]) -> bool:
        """Replay one segment. False: the log ends in it."""
        segment = reader.read(number)
        found = segment.scan
        damages = reader.damages(segment, is_last=not later)
        cut = self._end_of_log(reader, segment, damages, later) if damages else None
        if cut is not None:
            self._replay_segment(segment, cut, damaged=False)
            self._truncate_log(reader, segment, cut, later)
            return False
        for damage in damages:
            self._quarantine_damage(segment, damage)
        end = 0 if segment.header_is_bad and not found.entries else found.end
        self._replay_segment(segment, end, damaged=bool(damages))
        if segment.path.stat().st_size > end and not self._report.quarantine_full:
            truncate(segment.path, end, self._disk)
        self._ends.append(SegmentEnd(number, end))
        return True

    def _end_of_log(
        self, reader: SpoolSegmentReader, segment: SpoolSegment, damages: list[SegmentDamage], later: list[int]
    ) -> int | None:
        """Return the offset at which a crash tore the unsynced end of the log. None: the damage has another cause."""
        if self._power_cut:
            synced = reader.known_synced(segment)
            return next((damage.start for damage in damages if lsn(segment.number, damage.start) >= synced), None)
        if len(damages) > 1 or segment.scan.torn is None or not all(reader.is_blank(number) for number in later):
            return None
        return segment.scan.torn.start if self._is_short_write(segment, segment.scan.torn) else None

    def _is_short_write(self, segment: SpoolSegment, torn: SegmentDamage) -> bool:
        """Whether an interrupted write explains the torn bytes: the start of an entry, and nothing after it."""
        if torn.end - torn.start < ENTRY.size:
            return True
        header = EntryHeaders(self._spool, segment.number).read(segment.data, torn.start)
        return header is not None and torn.end < torn.start + ENTRY.size + header[1]

    def _replay_segment(self, segment: SpoolSegment, end: int, *, damaged: bool) -> None:
        before = self._ends[-1] if self._ends else None
        whole = (
            before is not None
            and not self._gap_before
            and segment.follows(lsn(before.number, before.end), self._previous_start)
        )
        self._previous_start = 0 if segment.header is None else segment.header.router_start
        self._replay.begin_segment(continuous=whole, rewrites=segment.rewrites)
        checkpoint = False
        before_entries = self._report.entries
        for raw in with_keepalive(segment.scan.entries, self._alive):
            if raw.offset >= end:
                break
            try:
                entry, payload = unpack(raw.kind, raw.body)
            except FrameError:
                damaged = True
                self._quarantine_damage(segment, SegmentDamage(raw.offset, raw.offset + ENTRY.size + len(raw.body)))
                continue
            checkpoint = checkpoint or raw.kind == EntryType.CHECKPOINT
            place = lsn(segment.number, raw.offset)
            self._replay.add(place, entry, raw.offset + ENTRY.size + payload)
            self._report.entries += 1
            self._unsynced.append(place)
            if isinstance(entry, SyncedEntry):
                while self._unsynced and self._unsynced[0] < entry.through:
                    self._unsynced.popleft()
        self._gap_before = damaged
        # Entries lost here, or before a checkpoint that is lost too, may have assigned ordinals and stamp rows.
        missing = self._uncertain or (not whole and self._report.entries > before_entries)
        self._uncertain = damaged or (missing and not checkpoint)
        self._replay.prune()
        self._report.segments += 1
        self._report.nbytes += end

    def _quarantine_damage(self, segment: SpoolSegment, damage: SegmentDamage) -> None:
        self._report.corrupt_entries += 1
        self._report.corrupt_bytes += damage.end - damage.start
        view = memoryview(segment.data)[damage.start : damage.end]
        if not self._quarantine.copy(segment.number, damage.start, view):
            self._report.quarantine_full = True

    def _truncate_log(self, reader: SpoolSegmentReader, segment: SpoolSegment, cut: int, later: list[int]) -> None:
        """End the log at `cut`: nothing after it was ever synced. Segments and entries after it go to quarantine."""
        for number in reversed(later):
            path = segment_path(self._directory, number)
            if reader.is_blank(number):
                path.unlink()
                continue
            self._report.dropped_bytes += path.stat().st_size
            _ = self._quarantine.move_file(path)
        whole_behind = segment.scan.end - cut
        if whole_behind > 0:
            self._report.dropped_bytes += whole_behind
            if not self._quarantine.copy(segment.number, cut, memoryview(segment.data)[cut : segment.scan.end]):
                self._report.quarantine_full = True
        if segment.scan.torn is not None:
            self._report.torn_bytes += segment.scan.torn.end - segment.scan.torn.start
        truncate(segment.path, cut, self._disk)
        self._ends.append(SegmentEnd(segment.number, cut))


def highest_segment_number(directory: Path, quarantine: Quarantine) -> int:
    """Return the highest segment number among the files of the spool and its quarantine; -1: none."""
    return max([*segment_numbers(directory), *quarantine.numbers()], default=-1)


def sync_directory(directory: int, disk: Disk) -> None:
    """Sync the spool directory, so that created, renamed and removed files are durable.

    Raises:
        SpoolError: the sync failed.
    """
    try:
        disk.sync_directory(directory)
    except OSError as error:
        raise SpoolError(f"the spool directory cannot be synced: {os.strerror(error.errno or 0)}") from error
