"""The unresolved slices of one partition: which were handed out, and how each ends.

Every slice pushed leaves exactly once, as `SliceEnded`, when the ack mark has passed its last ordinal.
"""

from collections import deque
from dataclasses import dataclass, field

from ...wire.frames import Run
from ...wire.ids import NO_OFFSET, NO_TIME
from ..ledger.slices import PendingSlice, SliceEnded


@dataclass(frozen=True, slots=True, order=True)
class DeadLetterRange:
    """Ordinals that were dead-lettered, and Kafka's error text."""

    first: int
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class BatchAck:
    """The batch whose ack moves the mark. Records below its first ordinal are known only to be in the log."""

    first: int
    count: int
    base_offset: int
    log_append_ms: int


@dataclass(slots=True, eq=False)
class Backlog:
    """Unresolved slices of one partition. `index` is Kafka's partition number. `mark` follows the ledger's."""

    index: int
    mark: int
    unresolved: deque[PendingSlice] = field(default_factory=deque)
    waiting: deque[PendingSlice] = field(default_factory=deque)
    """The tail of `unresolved` that is not handed out under the current lease."""
    dead_lettered: deque[DeadLetterRange] = field(default_factory=deque)
    """Dead-lettered ranges of unresolved slices, ascending."""
    runs: list[Run] = field(default_factory=list)
    """Runs of the first unresolved slice, for its part below the mark."""
    handed_out_bytes: int = 0
    """Bytes of the unresolved slices handed out under the current lease; while `is_restricted`, of all slices the trial
    needs."""
    handed_end: int = 0
    """One past the last ordinal handed out under the current lease."""
    narrow_through: int = 0
    """Ordinals below it may be in batches with old timestamps. `SliceDispatcher` sets it."""
    nbytes: int = 0
    """Bytes of all unresolved slices."""
    end: int = 0
    """One past the last ordinal pushed."""
    is_restricted: bool = False
    """Whether `waiting` contains only the slices of a trial."""

    def push(self, piece: PendingSlice) -> None:
        """Add the next slice in ordinal order."""
        assert piece.first >= self.end, (piece.partition, piece.first, self.end)
        if not self.unresolved and piece.first < self.mark:
            # Recovered with its first part resolved before this start: the offsets of that part are lost.
            self.runs = [Run(self.index, NO_OFFSET, self.mark - piece.first, NO_TIME)]
        self.end = piece.first + piece.count
        self.nbytes += piece.length
        self.unresolved.append(piece)
        if not self.is_restricted:
            self.waiting.append(piece)

    def rewind(self, handed_end: int | None = None) -> None:
        """The lease ended: hand out everything unresolved again. `handed_end`: where a new grant starts."""
        self.handed_end = self.handed_end if handed_end is None else handed_end
        self.is_restricted = False
        self.handed_out_bytes = 0
        self.waiting = deque(self.unresolved)

    def restrict(self, first: int, end: int) -> None:
        """Hand out only the slices that contain ordinals [first, end), which is all a trial needs."""
        self.is_restricted = True
        self.handed_out_bytes = 0
        self.waiting.clear()
        for piece in self.unresolved:
            if piece.first >= end:
                break
            if piece.first + piece.count > first:
                self.waiting.append(piece)

    def lift_restriction(self) -> None:
        """The trial was accepted: later slices may be handed out too."""
        self.is_restricted = False
        self.waiting = deque(piece for piece in self.unresolved if piece.first >= self.handed_end)
        self.handed_out_bytes = sum(piece.length for piece in self.unresolved if piece.first < self.handed_end)

    def add_dead_lettered(self, pieces: list[DeadLetterRange]) -> None:
        """Keep dead-lettered ranges until their slices end."""
        self.dead_lettered = deque(sorted([*self.dead_lettered, *pieces]))

    def advance(self, mark: int, proof: BatchAck | None) -> list[SliceEnded]:
        """Move the mark and return the slices that ended. Without a proof only dead-lettered ordinals were passed."""
        ended: list[SliceEnded] = []
        unresolved, waiting, at, index = self.unresolved, self.waiting, self.mark, self.index
        self.mark = mark
        # Most slices are contained whole in the acked batch: offset = ordinal + shift.
        plain = proof is not None and proof.base_offset >= 0 and not self.dead_lettered
        known, shift, when = (proof.first, proof.base_offset - proof.first, proof.log_append_ms) if proof else (0, 0, 0)
        while unresolved:
            head = unresolved[0]
            first = head.first
            end = first + head.count
            if plain and end <= mark and first >= at and first >= known:
                runs, parked = [Run(index, first + shift, head.count, when)], list[tuple[int, int, str]]()
            else:
                self._note(max(first, at), min(end, mark), proof)
                if end > mark:
                    break
                runs, parked, self.runs = self.runs, self._parked_in(head), []
            _ = unresolved.popleft()
            self.nbytes -= head.length
            if waiting and waiting[0] is head:
                _ = waiting.popleft()
            elif not self.is_restricted:
                self.handed_out_bytes -= head.length
            ended.append(SliceEnded(head, runs, parked))
        return ended

    def _note(self, start: int, end: int, proof: BatchAck | None) -> None:
        """Add runs of offsets for ordinals [start, end) of the first slice, without its dead-lettered ranges."""
        for piece in list(self.dead_lettered):
            if piece.first >= end:
                break
            if piece.first + piece.count > start:
                self._run(start, min(piece.first, end), proof)
                start = max(start, piece.first + piece.count)
        self._run(start, end, proof)

    def _run(self, start: int, end: int, proof: BatchAck | None) -> None:
        if end <= start:
            return
        if proof is None or proof.base_offset < 0:
            self.runs.append(Run(self.index, NO_OFFSET, end - start, NO_TIME))
            return
        known = max(start, proof.first)
        if known > start:
            self.runs.append(Run(self.index, NO_OFFSET, min(known, end) - start, NO_TIME))
        if end > known:
            offset = proof.base_offset + known - proof.first
            self.runs.append(Run(self.index, offset, end - known, proof.log_append_ms))

    def _parked_in(self, head: PendingSlice) -> list[tuple[int, int, str]]:
        found: list[tuple[int, int, str]] = []
        end = head.first + head.count
        while self.dead_lettered and self.dead_lettered[0].first < end:
            piece = self.dead_lettered[0]
            first, last = max(piece.first, head.first), min(piece.first + piece.count, end)
            if last > first:
                found.append((first - head.first, last - first, piece.text))
            if piece.first + piece.count > end:
                break
            self.dead_lettered.popleft()
        return found
