"""The state of a partition in a producer without a spool: ordinals, stamp rows, generation and unresolved records.

The daemon's ledger keeps the same durably. This state needs no sync and ends with the process: every start gets a new
producer id, so stamps of an earlier process cannot occur.
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
    """One partition. Ordinals below `ack_mark` are resolved; `end` is the next ordinal to assign."""

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
    """Whether the lease table has a lease for it."""
    pace: str = ""
    """The pace last sent to the lease."""
    pace_sent_at: float = 0.0
    rows: list[StampRow] = field(default_factory=list[StampRow])
    cuts: list[BatchBounds] = field(default_factory=list[BatchBounds])
    """Batches that may be in the log, from the last `Revoked`."""
    anchor: Anchor | None = None
    """The last acknowledged batch; None after `begin`."""
    log_start: int = -1
    """The largest log start offset seen in acknowledgements; -1: none."""
    slices: deque[SliceRef] = field(default_factory=deque[SliceRef])
    """Slices with unresolved records."""
    holes: list[OrdinalRange] = field(default_factory=list[OrdinalRange])
    """Ordinals from `ack_mark` on that will not be sent (again), merged."""
    in_doubt: list[OrdinalRange] = field(default_factory=list[OrdinalRange])
    """Ordinals from `ack_mark` on that have failed and may be in the log, merged."""
    in_doubt_to: int = 0
    """Records below it may have been sent to a deleted topic, and written to the recreated topic of the same name."""
    expired_to: int = 0
    """Ordinals below it have expired; set by `DeliveryTimeout`."""
    has_deadline: bool = False
    """Whether it is in the heap of `DeliveryDeadlines`, which alone writes this."""
    retry_at: float | None = None
    """While blocked: when to try a grant again; None: after some other event."""
    failures: int = 0
    """Consecutive blocks with a backoff; reset by an acknowledgement."""
    last_error: str = ""
    """Of the last lease that `InProcessDelivery` revoked, for expiry messages."""
    attempts: int = 0
    """Of that lease's oldest batch, for expiry messages."""
    needs_producer_id: bool = False
    """Waits for a producer id of its own: its epochs are used up, or copies of sent records may still be written."""

    def __hash__(self) -> int:
        """The number, so that sets of partitions have the same order in every run."""
        return self.number

    @property
    def sent_to(self) -> int:
        """The end of the last batch in `cuts`; `ack_mark` without any."""
        return max(self.ack_mark, self.cuts[-1].first + self.cuts[-1].count) if self.cuts else self.ack_mark

    def submit(self, ref: SliceRef) -> None:
        """Add a sealed slice. Its ordinals are permanent."""
        assert ref.first == self.end, f"slice at {ref.first} follows {self.end}"
        self.slices.append(ref)
        self.end += ref.count

    def slices_from(self, ordinal: int) -> list[SliceRef]:
        """The slices with records to send at or after `ordinal`, with the current generation."""
        return [
            ref._replace(generation=self.generation)
            for ref in self.slices
            if ref.first + ref.count > ordinal and subtract_ranges((ref.first, ref.first + ref.count), self.holes)
        ]

    # --- outcomes ----------------------------------------------------------------------------------------------------

    def delivered(self, first: int, end: int, base_offset: int, log_append_ms: int) -> list[DeliveryOutcome]:
        """Outcomes of an acknowledgement, which resolves everything below `end`. `base_offset` is that of `first`; the
        offsets of records below `first` are unknown."""
        outcomes: list[DeliveryOutcome] = []
        for span, offset, time_ms in (((self.ack_mark, first), -1, -1), ((first, end), base_offset, log_append_ms)):
            for low, high in subtract_ranges(span, self.holes):
                at = offset + low - span[0] if offset >= 0 else -1
                outcomes += self._split(low, high, Delivered(self.number, low, high - low, at, time_ms))
        self._advance(end)
        return outcomes

    def batch_delivered(self, first: int, end: int, base_offset: int, log_append_ms: int) -> list[DeliveryOutcome]:
        """Outcomes of an acknowledgement without idempotence, which resolves its own batch only."""
        outcomes: list[DeliveryOutcome] = []
        for low, high in subtract_ranges((first, end), self.holes):
            at = base_offset + low - first if base_offset >= 0 else -1
            outcomes.append(Delivered(self.number, low, high - low, at, log_append_ms))
        self.holes = merge_ranges([*self.holes, (first, end)])
        self._advance(self.ack_mark)
        return outcomes

    def _split(self, low: int, high: int, live: Delivered | Failed) -> list[DeliveryOutcome]:
        """Split a range: in-doubt records become `Released`, the others get the outcome `live`."""
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
        """Fail records that will not be sent (again), and release the in-doubt records among them."""
        outcomes: list[DeliveryOutcome] = []
        for first, end in merge_ranges(spans):
            for low, high in subtract_ranges((max(first, self.ack_mark), end), self.holes):
                outcomes += self._split(low, high, Failed(self.number, low, high - low, failure, released=True))
        self.holes = merge_ranges([*self.holes, *spans])
        self._advance(self.ack_mark)
        return outcomes

    def fail_in_doubt(self, span: OrdinalRange, failure: DeliveryFailure) -> list[DeliveryOutcome]:
        """Fail records that may be in the log. They are still sent, until their fate is known."""
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
        """Start the stamp rows at `ack_mark` under a producer id that the log has no state for, with sequences from 0.
        With transactions it may be a new epoch of the same id."""
        first, more = stamp_rows_from(self.ack_mark, self.holes, producer_id, epoch)
        self.rows = [first, *more]
        self.cuts = []
        self.anchor = None
        self.log_start = -1
        self.needs_producer_id = False

    def clear_sequences(self) -> None:
        """Set the rows of a producer without idempotence: they only mark the holes."""
        first, more = stamp_rows_from(self.ack_mark, self.holes, -1, -1)
        self.rows = [first, *more]

    def bump(self) -> bool:
        """Start a new epoch at `ack_mark`. No unresolved record may be in the log or still get there (BMP-1). Returns
        False if the epochs are used up: it then waits for a producer id of its own (IDN-6)."""
        self.cuts = []
        last = self.rows[-1]
        if last.epoch >= EPOCH_MAX:
            self.needs_producer_id = True
            return False
        first, more = stamp_rows_from(self.ack_mark, self.holes, last.producer_id, last.epoch + 1)
        self.rows = [first, *more]
        return True

    def skip(self, spans: list[OrdinalRange], sent_to: int | None = None) -> None:
        """Add rows after ordinals that will not be sent, if neither they nor later ones were: the epoch stays (IDN-5).
        Call it before `fail_unsent`, which advances `ack_mark`. `sent_to`: pass it if the lease is not back."""
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
