"""What is kept of a partition where nothing is spooled: ordinals, stamp rows, generations, and what is still unresolved.

The router's ledger keeps the same for the daemon, durably. Here "synced" reads "acknowledged", and all of it ends with the
process: a new producer id at every start makes stamps of an earlier life impossible.
"""

from collections import deque
from dataclasses import dataclass, field

from ...wire.messages import Anchor, BatchBounds, SliceRef, StampRow
from ..records.sequence_ranges import (
    EPOCH_MAX,
    OrdinalRange,
    first_ordinal_outside,
    intersect_ranges,
    merge_ranges,
    stamp_rows_from,
    subtract_ranges,
)
from .outcomes import Delivered, DeliveryFailure, DeliveryOutcome, Failed, Released


@dataclass(slots=True, eq=False)
class PartitionState:
    """One partition. Ordinals below `ack_mark` are resolved; `end` is the next one to be given."""

    number: int
    topic: str
    index: int
    topic_id: bytes | None = None
    leader: int = -1
    leader_epoch: int = -1
    ack_mark: int = 0
    end: int = 0
    generation: int = 0
    granted: bool = False
    """The lease table has it."""
    pace: str = ""
    """As last told."""
    pace_sent_at: float = 0.0
    rows: list[StampRow] = field(default_factory=list[StampRow])
    cuts: list[BatchBounds] = field(default_factory=list[BatchBounds])
    """Batches that may be in the log, told when the lease came back."""
    anchor: Anchor | None = None
    log_start: int = -1
    slices: deque[SliceRef] = field(default_factory=deque[SliceRef])
    """Those with unresolved records."""
    holes: list[OrdinalRange] = field(default_factory=list[OrdinalRange])
    """Ordinals behind the mark that are never sent, merged."""
    in_doubt: list[OrdinalRange] = field(default_factory=list[OrdinalRange])
    """Ordinals behind the mark that have failed and may be in the log, merged."""
    in_doubt_to: int = 0
    """Below it something was sent to a log that is gone, and may have been written to the one that took its name."""
    expired_to: int = 0
    has_deadline: bool = False
    """It stands in the line of those that may expire."""
    retry_at: float | None = None
    """Not granted before this; None: as soon as it can be."""
    failures: int = 0
    last_error: str = ""
    attempts: int = 0
    needs_producer_id: bool = False
    """Its epochs are used up: it waits for a producer id of its own."""

    def __hash__(self) -> int:
        """By number: sets of partitions have one order in every run."""
        return self.number

    @property
    def sent_to(self) -> int:
        """Nothing from here on is in a cut that came back."""
        return max(self.ack_mark, self.cuts[-1].first + self.cuts[-1].count) if self.cuts else self.ack_mark

    def submit(self, ref: SliceRef) -> None:
        """A sealed slice: its ordinals are given to its records for good."""
        assert ref.first == self.end, f"slice at {ref.first} follows {self.end}"
        self.slices.append(ref)
        self.end += ref.count

    def slices_from(self, ordinal: int) -> list[SliceRef]:
        """The slices with something to send from an ordinal on, under the generation in force."""
        return [
            ref._replace(generation=self.generation)
            for ref in self.slices
            if ref.first + ref.count > ordinal and subtract_ranges((ref.first, ref.first + ref.count), self.holes)
        ]

    # --- outcomes ----------------------------------------------------------------------------------------------------

    def delivered(self, first: int, end: int, base_offset: int, log_append_ms: int) -> list[DeliveryOutcome]:
        """An answer covers everything below `end`; `base_offset` is that of `first`, and what lies below it has none."""
        outcomes: list[DeliveryOutcome] = []
        for span, offset, time_ms in (((self.ack_mark, first), -1, -1), ((first, end), base_offset, log_append_ms)):
            for low, high in subtract_ranges(span, self.holes):
                at = offset + low - span[0] if offset >= 0 else -1
                outcomes += self._split(low, high, Delivered(self.number, low, high - low, at, time_ms))
        self._advance(end)
        return outcomes

    def batch_delivered(self, first: int, end: int, base_offset: int, log_append_ms: int) -> list[DeliveryOutcome]:
        """An answer without idempotence tells of its own batch only."""
        outcomes: list[DeliveryOutcome] = []
        for low, high in subtract_ranges((first, end), self.holes):
            at = base_offset + low - first if base_offset >= 0 else -1
            outcomes.append(Delivered(self.number, low, high - low, at, log_append_ms))
        self.holes = merge_ranges([*self.holes, (first, end)])
        self._advance(self.ack_mark)
        return outcomes

    def _split(self, low: int, high: int, live: Delivered | Failed) -> list[DeliveryOutcome]:
        """Ghosts are released, the others have the outcome."""
        told: list[tuple[int, DeliveryOutcome]] = [
            (first, Released(self.number, first, end - first))
            for first, end in intersect_ranges((low, high), self.in_doubt)
        ]
        for first, end in subtract_ranges((low, high), self.in_doubt):
            if isinstance(live, Failed):
                told.append((first, live._replace(first=first, count=end - first)))
                continue
            offset = live.base_offset + first - low if live.base_offset >= 0 else -1
            told.append((first, live._replace(first=first, count=end - first, base_offset=offset)))
        return [outcome for _, outcome in sorted(told, key=lambda pair: pair[0])]

    def fail_unsent(self, spans: list[OrdinalRange], failure: DeliveryFailure) -> list[DeliveryOutcome]:
        """These are never sent (again): they fail, and ghosts among them are resolved."""
        outcomes: list[DeliveryOutcome] = []
        for first, end in merge_ranges(spans):
            for low, high in subtract_ranges((max(first, self.ack_mark), end), self.holes):
                outcomes += self._split(low, high, Failed(self.number, low, high - low, failure, released=True))
        self.holes = merge_ranges([*self.holes, *spans])
        self._advance(self.ack_mark)
        return outcomes

    def fail_in_doubt(self, span: OrdinalRange, failure: DeliveryFailure) -> list[DeliveryOutcome]:
        """These have failed, may be in the log, and are sent until that is known."""
        outcomes: list[DeliveryOutcome] = [
            Failed(self.number, first, end - first, failure, released=False)
            for low, high in subtract_ranges(span, self.holes)
            for first, end in subtract_ranges((low, high), self.in_doubt)
        ]
        self.in_doubt = merge_ranges([*self.in_doubt, *((one.first, one.first + one.count) for one in outcomes)])
        return outcomes

    def _advance(self, end: int) -> None:
        self.ack_mark = mark = first_ordinal_outside(self.holes, max(end, self.ack_mark))
        self.holes = [hole for hole in self.holes if hole[1] > mark]
        self.in_doubt = [(max(low, mark), high) for low, high in self.in_doubt if high > mark]
        self.cuts = [cut for cut in self.cuts if cut.first >= mark]
        while self.slices and self.slices[0].first + self.slices[0].count <= mark:
            _ = self.slices.popleft()
        while len(self.rows) > 1 and self.rows[1].start <= mark:
            _ = self.rows.pop(0)

    # --- stamp rows --------------------------------------------------------------------------------------------------

    def begin(self, producer_id: int, epoch: int = 0) -> None:
        """The first row, or everything from the mark on under another producer id: a log that knows nothing of us. In a
        transaction also under another epoch of the same id."""
        first, more = stamp_rows_from(self.ack_mark, self.holes, producer_id, epoch)
        self.rows = [first, *more]
        self.cuts = []
        self.anchor = None
        self.log_start = -1
        self.needs_producer_id = False

    def clear_sequences(self) -> None:
        """Rows of a producer without idempotence: they tell only what is left out."""
        first, more = stamp_rows_from(self.ack_mark, self.holes, -1, -1)
        self.rows = [first, *more]

    def bump(self) -> bool:
        """A new epoch from the mark on: nothing unresolved is in the log or can get there (BMP-1). False: its epochs are used
        up, and it waits for a producer id of its own (IDN-6)."""
        self.cuts = []
        last = self.rows[-1]
        if last.epoch >= EPOCH_MAX:
            self.needs_producer_id = True
            return False
        first, more = stamp_rows_from(self.ack_mark, self.holes, last.producer_id, last.epoch + 1)
        self.rows = [first, *more]
        return True

    def skip(self, spans: list[OrdinalRange], sent_to: int | None = None) -> None:
        """Rows behind ordinals that will never be sent and never were, nor anything behind them: the epoch stays (IDN-5). To be
        told before `fail_unsent`, which moves the mark. `sent_to`: for a partition whose lease is not back."""
        if not self.rows or self.rows[-1].producer_id < 0:
            return
        sent_to = self.sent_to if sent_to is None else sent_to
        kept = [row for row in self.rows if row.start <= sent_to]
        last = kept[-1]
        base = last.base
        for first, end in merge_ranges([*self.holes, *spans]):
            if end > sent_to:
                assert first >= sent_to or first >= self.ack_mark, "a hole in what may have been sent"
                base += end - max(first, sent_to)
                kept.append(StampRow(last.producer_id, last.epoch, end, base))
        self.rows = kept
