"""Reports a spool's content and verifies its checksums. Read-only; works on a live spool and on a copy.

A live spool changes during the read. A segment that is removed meanwhile is skipped, and an unfinished write at the end
of the newest segment is reported as torn, not as damage.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...runtime.clock import monotonic, wall_ms
from ...wire.errors import FrameError
from ...wire.record_ids import incarnation_text
from ..ledger.client_sequences import ClientStates
from ..ledger.entries import FrameEntry, Lsn, lsn
from ..ledger.entry_codec import EntryType, SpoolEntry, unpack
from ..ledger.partition_state import Ledger
from ..ledger.replay import Replay
from ..ledger.segment_scan import ENTRY, RawEntry, SegmentDamage
from ..ledger.slice_rows import check_slice
from .identity_file import read_identity
from .segment_files import QUARANTINE_NAME, is_segment_file, segment_numbers, segment_path
from .segment_reader import SpoolSegment, SpoolSegmentReader

_ROWS_SHOWN_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """One segment. `kinds`: number of entries by type; `damages`: (start, end) of damaged bytes."""

    number: int
    nbytes: int
    kinds: dict[str, int]
    records: int
    damages: list[tuple[int, int]]
    torn_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition's tables. `producer_id` -1: no stamp row yet."""

    number: int
    topic: str
    partition: int
    next_ordinal: int
    mark: int
    pending: int
    holes: list[tuple[int, int]]
    cuts: int
    cuts_are_facts: bool
    generation: int
    leader_epoch: int
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ClientReport:
    """One durable client id."""

    client_id: str
    uid: int
    high: int
    gaps: int
    pending_frames: int


@dataclass(frozen=True, slots=True)
class SpoolReport:
    """A whole spool."""

    directory: str
    spool: str
    starts: int
    producer_id: int | None
    incarnation: str
    clean: bool
    segments: list[SegmentReport]
    partitions: list[PartitionReport]
    clients: list[ClientReport]
    pending_slices: int
    quarantined_files: int

    def text(self) -> str:
        """Format the report for a terminal."""
        stopped = ", stopped in order" if self.clean else ""
        lines = [
            f"spool {self.spool} in {self.directory}: {self.starts} starts, producer id {self.producer_id}{stopped}",
            f"records are numbered under incarnation {self.incarnation}",
            (
                f"{len(self.segments)} segments, {sum(part.nbytes for part in self.segments)} bytes, "
                f"{self.pending_slices} slices pending, {self.quarantined_files} files in quarantine"
            ),
            *(_segment_line(part) for part in self.segments[:_ROWS_SHOWN_MAX]),
            *(_partition_line(part) for part in self.partitions[:_ROWS_SHOWN_MAX]),
            *(
                f"client {part.client_id} of uid {part.uid}: taken up to {part.high}, {part.gaps} gaps, "
                f"{part.pending_frames} frames pending"
                for part in self.clients[:_ROWS_SHOWN_MAX]
            ),
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class SpoolDamage:
    """Damaged bytes `start` to `end` of a segment. `what`: a description of the damage."""

    segment: int
    start: int
    end: int
    what: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Counts of everything checked, and the damage found."""

    directory: str
    segments: int
    entries: int
    slices: int
    nbytes: int
    torn_bytes: int
    found: list[SpoolDamage] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        return bool(self.found)

    def text(self) -> str:
        """Format the report for a terminal."""
        lines = [
            f"{self.directory}: {self.segments} segments, {self.entries} entries, {self.slices} slices, {self.nbytes} bytes read",
            *(f"segment {part.segment:016x}, bytes {part.start} to {part.end}: {part.what}" for part in self.found),
            "damaged" if self.damaged else "whole",
        ]
        if self.torn_bytes:
            lines.insert(1, f"{self.torn_bytes} bytes of an unfinished write at the end")
        return "\n".join(lines) + "\n"


def show(directory: Path) -> SpoolReport:
    """Read a spool and report its segments, partitions and clients.

    Raises:
        OSError: the directory, or a file in it, cannot be read.
    """
    reader = _SpoolWalk(directory)
    segments = [reader.count(segment) for segment in reader.segments()]
    done = reader.replay.finish(power_cut=False)
    identity = read_identity(directory)
    quarantine = directory / QUARANTINE_NAME
    return SpoolReport(
        directory=str(directory),
        spool=f"{identity.spool:016x}",
        starts=identity.starts,
        producer_id=identity.producer_id,
        incarnation=incarnation_text(identity.incarnation),
        clean=identity.clean,
        segments=segments,
        partitions=_partitions(reader.replay.ledger),
        clients=[
            ClientReport(state.client_id, state.uid, state.high, len(state.gaps), len(state.pending))
            for state in reader.replay.clients.by_id.values()
        ],
        pending_slices=len(done.slices),
        quarantined_files=len(os.listdir(quarantine)) if quarantine.is_dir() else 0,  # noqa: PTH208
    )


def verify(directory: Path) -> VerifyReport:
    """Verify all checksums of segment headers, entries, and slices of known partitions.

    Raises:
        OSError: the directory, or a file in it, cannot be read.
    """
    walk = _SpoolWalk(directory)
    entries = slices = nbytes = torn = 0
    found: list[SpoolDamage] = []
    for segment in walk.segments():
        report = walk.count(segment)
        entries += len(segment.scan.entries)
        nbytes += report.nbytes
        torn += report.torn_bytes
        found += [SpoolDamage(segment.number, start, end, "not what was written") for start, end in report.damages]
        for raw in segment.scan.entries:
            checked, wrong = _check_entry(segment, raw, walk.replay.ledger)
            slices += checked
            found += wrong
    return VerifyReport(str(directory), walk.read, entries, slices, nbytes, torn, found)


class _SpoolWalk:
    """Reads and folds all segments without changing them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        identity = read_identity(directory)
        self._numbers = [
            number for number in segment_numbers(directory) if is_segment_file(segment_path(directory, number))
        ]
        self._reader = SpoolSegmentReader(directory, identity.spool, self._numbers)
        self._end = Lsn(0)
        self._damaged = True
        self._start_before = 0
        self.read = 0
        self.replay = Replay(ClientStates(), now_ms=int(monotonic() * 1000), wall_ms=wall_ms())

    def segments(self) -> Iterator[SpoolSegment]:
        """Yield all segments that exist and are not void, oldest first."""
        for number in self._numbers:
            if self._reader.is_void(number):
                continue
            try:
                segment = self._reader.read(number)
            except FileNotFoundError:
                continue
            yield segment

    def count(self, segment: SpoolSegment) -> SegmentReport:
        """Fold a segment into the tables and report its content."""
        is_last = segment.number == self._numbers[-1]
        # The newest segment of a live spool may not have its header yet.
        damages = self._reader.damages(segment, is_last=is_last)
        torn = 0
        if is_last and damages and segment.scan.torn is not None:
            torn = segment.scan.torn.end - segment.scan.torn.start
            damages = damages[:-1]
        whole = not self._damaged and segment.follows(self._end, self._start_before)
        self.replay.begin_segment(continuous=whole, rewrites=segment.rewrites)
        self._start_before = 0 if segment.header is None else segment.header.router_start
        kinds: Counter[str] = Counter()
        records = 0
        for raw in segment.scan.entries:
            entry, payload = _entry(raw)
            if entry is None:
                damages.append(SegmentDamage(raw.offset, raw.offset + ENTRY.size + len(raw.body)))
                continue
            self.replay.add(lsn(segment.number, raw.offset), entry, raw.offset + ENTRY.size + payload)
            kinds[EntryType(raw.kind).name.lower()] += 1
            records += entry.count if isinstance(entry, FrameEntry) else 0
        self.replay.prune()
        self._end, self._damaged = lsn(segment.number, segment.scan.end), bool(damages)
        self.read += 1
        return SegmentReport(
            segment.number, segment.scan.end, dict(kinds), records, [(part.start, part.end) for part in damages], torn
        )


def _entry(raw: RawEntry) -> tuple[SpoolEntry | None, int]:
    """Return the entry and the offset of its payload; the entry is None if its body cannot be unpacked."""
    try:
        return unpack(raw.kind, raw.body)
    except FrameError:
        return None, 0


def _check_entry(segment: SpoolSegment, raw: RawEntry, ledger: Ledger) -> tuple[int, list[SpoolDamage]]:
    """Verify the checksums of a frame's slices. Returns the number of slices checked and the damage found."""
    entry, payload = _entry(raw)
    if not isinstance(entry, FrameEntry):
        return 0, []
    found: list[SpoolDamage] = []
    checked = 0
    for part in entry.slices:
        state = ledger.by_number.get(part.partition)
        if state is None:
            continue
        checked += 1
        start = payload + part.offset
        try:
            _ = check_slice(bytes(raw.body[start : start + part.length]), state.topic, state.index)
        except FrameError as error:
            at = raw.offset + ENTRY.size + start
            found.append(
                SpoolDamage(segment.number, at, at + part.length, f"slice of {state.topic}-{state.index}: {error}")
            )
    return checked, found


def _partitions(ledger: Ledger) -> list[PartitionReport]:
    return [
        PartitionReport(
            number=state.number,
            topic=state.topic,
            partition=state.index,
            next_ordinal=state.next_ordinal,
            mark=state.mark,
            pending=state.pending,
            holes=[(hole.first, hole.count) for hole in state.holes],
            cuts=len(state.batch_bounds),
            cuts_are_facts=state.batch_bounds_are_facts,
            generation=state.generation,
            leader_epoch=state.leader_epoch,
            producer_id=state.rows[-1].producer_id if state.rows else -1,
            epoch=state.rows[-1].epoch if state.rows else -1,
        )
        for state in sorted(ledger.by_number.values(), key=lambda state: (state.topic, state.index))
    ]


def _segment_line(part: SegmentReport) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(part.kinds.items()))
    damage = f", {len(part.damages)} damaged places" if part.damages else ""
    return f"segment {part.number:016x}: {part.nbytes} bytes, {part.records} records; {kinds}{damage}"


def _partition_line(part: PartitionReport) -> str:
    return (
        f"{part.topic}-{part.partition}: resolved below {part.mark}, next {part.next_ordinal}, {part.pending} pending; "
        f"generation {part.generation}, leader epoch {part.leader_epoch}, producer {part.producer_id} epoch {part.epoch}, "
        f"{part.cuts} cuts open"
    )
