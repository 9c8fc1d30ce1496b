"""The slices of one partition that are not resolved: which were handed out, and how each of them ends.

Every slice pushed leaves exactly once, in `SliceEnded`, when the ack mark has passed its last ordinal.
"""

from collections import deque
from dataclasses import dataclass, field

from ...wire.frames import Run
from ...wire.ids import NO_OFFSET, NO_TIME
from ..ledger.slices import PendingSlice, SliceEnded


@dataclass(frozen=True, slots=True, order=True)
class DeadLetterRange:
    """Ordinals that were parked, and Kafka's words."""

    first: int
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class BatchAck:
    """The batch whose acknowledgement moves the mark. Of what lies below its first ordinal only that it is in the log is
    known."""

    first: int
    count: int
    base_offset: int
    log_append_ms: int


@dataclass(slots=True, eq=False)
class Backlog:
    """`index` is Kafka's number of the partition. `mark` follows the ledger's."""

    index: int
    mark: int
    unresolved: deque[PendingSlice] = field(default_factory=deque)
    waiting: deque[PendingSlice] = field(default_factory=deque)
    """The end of `unresolved` that was not handed out under the lease in force."""
    dead_lettered: deque[DeadLetterRange] = field(default_factory=deque)
    """Pieces of unresolved slices, ascending."""
    runs: list[Run] = field(default_factory=list)
    """Of the first unresolved slice: the part below the mark."""
    handed_out_bytes: int = 0
    """Of the unresolved slices that were handed out under the lease in force; while `is_restricted`, of all that it named."""
    nbytes: int = 0
    """Of all unresolved slices."""
    end: int = 0
    """The ordinal behind the last one pushed."""
    is_restricted: bool = False
    """Only what a trial needs is waiting."""

    def push(self, piece: PendingSlice) -> None:
        """Take the next slice in ordinal order."""
        assert piece.first >= self.end, (piece.partition, piece.first, self.end)
        if not self.unresolved and piece.first < self.mark:
            # Recovered with its first part resolved before this start: its offsets are gone.
            self.runs = [Run(self.index, NO_OFFSET, self.mark - piece.first, NO_TIME)]
        self.end = piece.first + piece.count
        self.nbytes += piece.length
        self.unresolved.append(piece)
        if not self.is_restricted:
            self.waiting.append(piece)

    def rewind(self) -> None:
        """The lease ended: everything unresolved is to be handed out again."""
        self.is_restricted = False
        self.handed_out_bytes = 0
        self.waiting = deque(self.unresolved)

    def restrict(self, first: int, end: int) -> None:
        """Hand out only the slices that hold ordinals [first, end): a trial needs no more."""
        self.is_restricted = True
        self.handed_out_bytes = 0
        self.waiting.clear()
        for piece in self.unresolved:
            if piece.first >= end:
                break
            if piece.first + piece.count > first:
                self.waiting.append(piece)

    def lift_restriction(self, handed_end: int) -> None:
        """The trial was taken: what follows may go too."""
        self.is_restricted = False
        self.waiting = deque(piece for piece in self.unresolved if piece.first >= handed_end)
        self.handed_out_bytes = sum(piece.length for piece in self.unresolved if piece.first < handed_end)

    def add_dead_lettered(self, pieces: list[DeadLetterRange]) -> None:
        """Remember what was parked, until the slices it lies in end."""
        self.dead_lettered = deque(sorted([*self.dead_lettered, *pieces]))

    def advance(self, mark: int, proof: BatchAck | None) -> list[SliceEnded]:
        """The mark moved: the slices below it end. Without a proof only parked ordinals were passed."""
        ended: list[SliceEnded] = []
        unresolved, waiting, at, index = self.unresolved, self.waiting, self.mark, self.index
        self.mark = mark
        # Most slices lie whole in the batch that was acknowledged: offset = ordinal + shift.
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
        """Runs of offsets for ordinals [start, end) of the first slice, without what was parked of them."""
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
