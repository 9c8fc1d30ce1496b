"""Recovery's fold: turns the entries of all segments, oldest first, into tables, pending frames and pending slices.

What the live router asserts is repaired here instead, because a mismatch may only reflect what the disk did. A frame
written twice (after a failed sync) counts once, at the position of its last copy. Ordinals without a frame become
holes.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar, assert_never

from ...wire.audit_records import PARKED, QUARANTINED
from ...wire.frames import Run
from ...wire.slices import HEADER_BYTES
from .audit_counts import AuditCounts
from .client_sequences import ClientStates
from .entries import (
    AckedEntry,
    BatchBoundsEntry,
    CheckpointEntry,
    ControlEntry,
    FrameEntry,
    GrantedEntry,
    IncarnationEntry,
    Lsn,
    ParkedEntry,
    PartitionEntry,
    RefusedEntry,
    SessionEntry,
    StampRowEntry,
    segment_of,
)
from .entry_codec import SpoolEntry, SyncedEntry, VoidEntry
from .partition_state import Ledger, LedgerHole, LedgerPartition
from .slices import PendingFrame, PendingSlice

_T = TypeVar("_T")
_ALIVE_EVERY: Final = 4_096
_PRUNE_FROM: Final = 65_536


class LostRange(NamedTuple):
    """Ordinals from the mark on that no frame contains any more; they are holes now."""

    partition: int
    first: int
    count: int  # type: ignore[assignment]


class Replayed(NamedTuple):
    """Result of the replay. `slices` are in log order, hence in ordinal order within each partition."""

    frames: list[PendingFrame]
    slices: list[PendingSlice]
    lost: list[LostRange]


class _LoggedFrame(NamedTuple):
    place: Lsn
    entry: FrameEntry
    payload_at: int


class _MissingSequences(NamedTuple):
    """Sequences of a client that were accepted but whose frames were not found: (after, through]."""

    client_id: str
    after: int
    through: int


class Replay:
    """Feed segments oldest first: call `begin_segment`, then `add` for each of its entries; call `finish` at the end.

    `repaired` counts entries that did not fit the tables; it stays 0 for an undamaged log. `checkpoint_mismatches`
    counts checkpoints that differ from the tables folded so far.
    """

    def __init__(self, sessions: ClientStates, *, now_ms: int, wall_ms: int, books: AuditCounts | None = None) -> None:
        self.ledger = Ledger(books)
        self.clients = sessions
        self.repaired = 0
        self.checkpoint_mismatches = 0
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._continuous = False
        self._in_rewrite = False
        self._had_audit_counts = False
        self._unresolved_frames: dict[tuple[int, int], _LoggedFrame] = {}
        self._prune_from = _PRUNE_FROM
        self._missing_sequences: list[_MissingSequences] = []

    def begin_segment(self, *, continuous: bool, rewrites: bool = False) -> None:
        """Start the next segment. `continuous`: no entry is missing since the previous segment, so this one's
        checkpoint adds nothing. `rewrites`: the checkpoint already includes the rewritten entries that follow it, up to
        a VOID."""
        self._continuous = continuous
        self._in_rewrite = rewrites or (self._in_rewrite and continuous)

    def add(self, place: Lsn, entry: SpoolEntry, payload_at: int) -> None:
        """Apply the next entry. For a frame, `payload_at` is the offset of its payload in the segment."""
        match entry:
            case FrameEntry():
                self._add_frame(_LoggedFrame(place, entry, payload_at))
            case CheckpointEntry():
                self._add_checkpoint(entry)
            case SessionEntry():
                self.clients.apply(entry, now_ms=self._now_ms, wall_ms=self._wall_ms)
            case RefusedEntry():
                # A rewritten entry may be of a minute that the checkpoint lacks, because it was published as final.
                if not self._in_rewrite:
                    self.ledger.apply(entry)
            case IncarnationEntry():
                self.ledger.apply(entry)
            case VoidEntry():
                self._in_rewrite = False
            case SyncedEntry():
                pass
            case _:
                self._add_control(entry)

    def prune(self) -> None:
        """Drop resolved frames to limit memory; call it after each segment. It acts only once there are twice as many
        frames as it kept last time: in a large backlog nearly all remain, and scanning them for every segment would be
        too slow."""
        if len(self._unresolved_frames) >= self._prune_from:
            self._prune()
            self._prune_from = max(_PRUNE_FROM, 2 * len(self._unresolved_frames))

    def _prune(self) -> None:
        self._unresolved_frames = {
            key: taken for key, taken in self._unresolved_frames.items() if self._is_unresolved(taken.entry)
        }

    def finish(self, *, power_cut: bool, alive: Callable[[], None] = lambda: None) -> Replayed:
        """Return the pending frames and slices and the lost ordinals, once everything was added. After a power cut,
        every ordinal from the mark on may have been sent in batches of unknown bounds (11.4), unless the partition has
        no stamp row, without which nothing is sent. `alive` is called repeatedly meanwhile."""
        self._prune()
        frames: list[PendingFrame] = []
        slices: list[PendingSlice] = []
        for taken in with_keepalive(sorted(self._unresolved_frames.values(), key=lambda taken: taken.place), alive):
            frame, parts = self._pending(taken)
            if parts:
                frames.append(frame)
                slices.extend(parts)
        lost = self._mark_lost(slices)
        if lost:
            self._refuse_missing()
        for frame in frames:
            self.clients.restore(frame)
        for state in self.ledger.by_number.values():
            if power_cut and state.rows and state.next_ordinal > state.mark:
                state.batch_bounds_are_facts = False
                state.unknown_through = state.next_ordinal - 1
        if self._had_audit_counts and self.ledger.audit_counts is None:
            # Auditing may be enabled again; its counts of this minute would be lower than the published ones.
            self.ledger.era += 1
        return Replayed(frames, slices, lost)

    def _add_checkpoint(self, entry: CheckpointEntry) -> None:
        self._had_audit_counts = entry.audit_minutes is not None
        if self._continuous:
            if self.ledger.snapshot() != entry.partitions:
                self.checkpoint_mismatches += 1
            return
        self.ledger.apply(entry)
        self.clients.by_id.clear()
        for session in entry.sessions:
            self.clients.apply(session, now_ms=self._now_ms, wall_ms=self._wall_ms)

    def _add_frame(self, taken: _LoggedFrame) -> None:
        entry = taken.entry
        key = (entry.slices[0].partition, entry.slices[0].first)
        states = [self.ledger.by_number.get(part.partition) for part in entry.slices]
        if None in states:
            # The PARTITION entry is lost; a later checkpoint may have the partition.
            self.repaired += 1
            self._unresolved_frames[key] = taken
            return
        parts = list(zip(entry.slices, (state for state in states if state is not None), strict=True))
        if all(part.first + part.count <= state.next_ordinal for part, state in parts):
            self._unresolved_frames[key] = taken
            return
        self._unresolved_frames[key] = taken
        if entry.incarnation not in {0, self.ledger.incarnation}:
            # The INCARNATION entry is lost; the frames carry the incarnation too.
            self.repaired += 1
            self.ledger.apply(IncarnationEntry(entry.incarnation))
        self.ledger.accept_ms, self.ledger.era = entry.wall_ms, entry.era
        if self.ledger.audit_counts is not None:
            self.ledger.audit_counts.advance_to(entry.wall_ms, entry.era)
        for part, state in parts:
            if part.first != state.next_ordinal:
                self.repaired += 1
            self.ledger.extend(
                state,
                part.first + part.count,
                part.length - HEADER_BYTES,
                counted=not entry.is_own,
                ids=entry.incarnation != 0,
            )
        if entry.client_id is not None:
            known = self.clients.by_id.get(entry.client_id)
            high = -1 if known is None else known.high
            if entry.previous > high:
                self._missing_sequences.append(_MissingSequences(entry.client_id, high, entry.previous))
        self.clients.apply(entry, now_ms=self._now_ms, wall_ms=self._wall_ms)

    def _add_control(self, entry: ControlEntry) -> None:
        if isinstance(entry, PartitionEntry):
            self._add_partition(entry)
            return
        assert not isinstance(entry, CheckpointEntry | SessionEntry | IncarnationEntry | RefusedEntry)
        state = self.ledger.by_number.get(entry.partition)
        if state is None:
            self.repaired += 1
            return
        match entry:
            case AckedEntry():
                self._extend(state, entry.mark)
                if entry.mark >= state.mark:
                    self.ledger.apply(entry)
            case ParkedEntry():
                self._extend(state, max((first + count for first, count in entry.ordinals), default=0))
                self.ledger.mark_lost(entry.partition, _clipped(state.mark, entry.ordinals), PARKED)
            case GrantedEntry():
                if entry.leader_epoch < 0 or entry.leader_epoch >= state.leader_epoch:
                    self.ledger.apply(entry)
            case BatchBoundsEntry():
                self._extend(state, max((cut.first + cut.count for cut in entry.batch_bounds), default=0))
                self.ledger.apply(
                    entry._replace(batch_bounds=[cut for cut in entry.batch_bounds if cut.first >= state.mark])
                )
            case StampRowEntry():
                if entry.row.start >= state.mark:
                    self.ledger.apply(entry)
            case _:
                assert_never(entry)

    def _add_partition(self, entry: PartitionEntry) -> None:
        place = (entry.topic, entry.index)
        numbered, placed = self.ledger.by_number.get(entry.partition), self.ledger.by_topic_partition.get(place)
        if (None if numbered is None else (numbered.topic, numbered.index)) in {None, place} and placed is numbered:
            self.ledger.apply(entry)
        else:
            self.repaired += 1

    def _extend(self, state: LedgerPartition, ordinal: int) -> None:
        """Raise the next ordinal: an entry refers to ordinals below it, so they were assigned, frames or not."""
        if ordinal > state.next_ordinal:
            self.repaired += 1
            self.ledger.extend(state, ordinal)

    def _is_unresolved(self, entry: FrameEntry) -> bool:
        return any(not self._is_resolved(part.partition, part.first, part.count) for part in entry.slices)

    def _is_resolved(self, partition: int, first: int, count: int) -> bool:
        state = self.ledger.by_number.get(partition)
        if state is None:
            return False
        return first + count <= state.mark or any(
            hole.first <= first and first + count <= hole.end for hole in state.holes
        )

    def _pending(self, taken: _LoggedFrame) -> tuple[PendingFrame, list[PendingSlice]]:
        entry = taken.entry
        created_ms = self._now_ms - max(self._wall_ms - entry.wall_ms, 0)
        frame = PendingFrame(
            client_id=entry.client_id,
            uid=entry.uid,
            seq=entry.seq,
            level=entry.level,
            count=entry.count,
            nbytes=sum(part.length for part in entry.slices),
            lsn=taken.place,
            created_ms=created_ms,
            partitions=entry.partitions,
            slices_left=0,
        )
        slices: list[PendingSlice] = []
        for part in entry.slices:
            state = self.ledger.by_number.get(part.partition)
            if state is None:
                continue
            if part.first + part.count > state.next_ordinal:
                # A later router could not read this partition's entries: it restarted it and reported the loss.
                self.repaired += 1
                continue
            if self._is_resolved(part.partition, part.first, part.count):
                if part.first + part.count <= state.mark:
                    frame.runs.append(Run(state.index, -1, part.count, -1))
                continue
            slices.append(
                PendingSlice(
                    partition=part.partition,
                    first=part.first,
                    count=part.count,
                    segment=segment_of(taken.place),
                    offset=taken.payload_at + part.offset,
                    length=part.length,
                    max_ts=part.max_ts,
                    created_ms=created_ms,
                    lsn=taken.place,
                    frame=frame,
                )
            )
        frame.slices_left = len(slices)
        return frame, slices

    def _mark_lost(self, slices: list[PendingSlice]) -> list[LostRange]:
        """Mark as lost, and return, the ordinals from the mark on that neither a slice nor a hole covers."""
        covered: dict[int, list[LedgerHole]] = {}
        for part in slices:
            covered.setdefault(part.partition, []).append(LedgerHole(part.first, part.count))
        lost: list[LostRange] = []
        for number, state in self.ledger.by_number.items():
            at = state.mark
            missing: list[LedgerHole] = []
            for known in [*sorted([*covered.get(number, ()), *state.holes]), LedgerHole(state.next_ordinal, 0)]:
                if known.first > at:
                    missing.append(LedgerHole(at, known.first - at))
                at = max(at, known.end)
            if missing:
                self.ledger.mark_lost(number, missing, QUARANTINED)
                lost.extend(LostRange(number, *hole) for hole in missing)
        return lost

    def _refuse_missing(self) -> None:
        """Record missing sequences as gaps: their frames are lost undelivered, so a resend must be refused."""
        for client_id, after, through in self._missing_sequences:
            state = self.clients.by_id.get(client_id)
            if state is not None:
                state.gaps = sorted([*state.gaps, (after + 1, through)])


def with_keepalive(items: Iterable[_T], alive: Callable[[], None]) -> Iterator[_T]:
    """Yield the same items, and call `alive` before every 4096th, the first included."""
    for place, item in enumerate(items):
        if place % _ALIVE_EVERY == 0:
            alive()
        yield item


def _clipped(mark: int, ordinals: list[tuple[int, int]]) -> list[LedgerHole]:
    """Return the parts of the ranges that are not below the mark."""
    clipped = [LedgerHole(max(first, mark), first + count - max(first, mark)) for first, count in ordinals]
    return [hole for hole in clipped if hole.count > 0]
