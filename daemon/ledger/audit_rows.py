"""Rows of the audit counts: ordinals assigned per topic and minute, and their outcome. `audit_counts.py` fills them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .entries import MinuteSnapshot, RangeSnapshot


class MinuteKey(NamedTuple):
    """Key of a row. `minute`: accept time in minutes since 1970. `era`: how often the accept clock has gone back."""

    topic: str
    minute: int
    era: int


class LostPart(NamedTuple):
    """Ordinals [first, end) that will never be sent, and the reason."""

    first: int
    end: int
    reason: str


@dataclass(slots=True)
class ShardTotals:
    """Totals that one shard reported for one minute."""

    delivered: int = 0
    nbytes: int = 0
    batches: int = 0
    resent: int = 0


@dataclass(slots=True, eq=False)
class MinuteRange:
    """Ordinals [first, end) of a partition, assigned in one minute. Those below `settled` are resolved. `counted_bytes`
    of its `nbytes` were counted as delivered by a shard, or as lost. `offset_end`: an offset after the acknowledged
    records of the range; -1: not known."""

    number: int
    index: int
    first: int
    end: int
    settled: int
    minute: "Minute"
    offset_end: int = -1
    nbytes: int = 0
    counted_bytes: int = 0
    lost: list[LostPart] = field(default_factory=list[LostPart])

    def lose(self, first: int, end: int, reason: str) -> None:
        """Mark ordinals [first, end) as lost. Those already lost keep their first reason."""
        pieces = list(self.lost)
        at = max(first, self.first)
        end = min(end, self.end)
        for known in self.lost:
            if known.end > at and known.first < end:
                if known.first > at:
                    pieces.append(LostPart(at, known.first, reason))
                at = known.end
        if at < end:
            pieces.append(LostPart(at, end, reason))
        self.lost = _joined(pieces)

    def lost_within(self, first: int, end: int) -> int:
        """Return the number of ordinals in [first, end) that are lost."""
        return sum(max(0, min(part.end, end) - max(part.first, first)) for part in self.lost)


@dataclass(slots=True, eq=False)
class Minute:
    """Audit counts of one topic and minute. `ids` False: some of its records carry no id. `refused_in_log`: refused
    records in its last REFUSED entry. `unsettled_ranges`: once the minute is over, the number of ranges with pending
    ordinals. `packed`: cached bytes of its snapshot, None if it has changed since. `published`: the last published
    totals. `published_outcomes`: the same per shard, as (delivered, batches)."""

    key: MinuteKey
    ids: bool = True
    ranges: list[MinuteRange] = field(default_factory=list[MinuteRange])
    refused: dict[str, int] = field(default_factory=dict[str, int])
    outcomes: dict[int, ShardTotals] = field(default_factory=dict[int, ShardTotals])
    refused_in_log: int = 0
    unsettled_ranges: int = 0
    packed: bytes | None = None
    published: tuple[object, ...] | None = None
    published_outcomes: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    @property
    def accepted(self) -> int:
        return sum(span.end - span.first for span in self.ranges)

    @property
    def nbytes(self) -> int:
        return sum(span.nbytes for span in self.ranges)

    @property
    def pending(self) -> int:
        """Number of ordinals at or above `settled`: records that are unresolved, or come after an unresolved one."""
        return sum(span.end - span.settled for span in self.ranges)

    def count_unsettled(self) -> int:
        """Set and return `unsettled_ranges`. Call it when the minute is over."""
        self.unsettled_ranges = sum(span.settled < span.end for span in self.ranges)
        return self.unsettled_ranges

    @property
    def entry_count(self) -> int:
        """The minute's share of `weight_max`: itself and its ranges."""
        return 1 + len(self.ranges)

    def count_refused(self, reason: str, records: int) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + records

    def snapshot(self) -> MinuteSnapshot:
        """Return all fields except the published totals."""
        return MinuteSnapshot(
            self.key.topic,
            self.key.minute,
            self.key.era,
            self.ids,
            list(self.refused.items()),
            [_range_snapshot(span) for span in self.ranges],
            [(seat, row.delivered, row.nbytes, row.batches, row.resent) for seat, row in self.outcomes.items()],
        )

    @classmethod
    def restored(cls, snapshot: MinuteSnapshot) -> "Minute":
        """Create a minute from its snapshot. The published totals are not known."""
        found = cls(MinuteKey(snapshot.topic, snapshot.minute, snapshot.era), ids=snapshot.ids)
        found.refused = dict(snapshot.refused)
        found.refused_in_log = sum(found.refused.values())
        found.outcomes = {seat: ShardTotals(*totals) for seat, *totals in snapshot.outcomes}
        found.ranges = [_restored_range(part, found) for part in snapshot.ranges]
        return found


def _joined(parts: Iterable[LostPart]) -> list[LostPart]:
    joined: list[LostPart] = []
    for part in sorted(parts):
        last = joined[-1] if joined else None
        if last is not None and last.end == part.first and last.reason == part.reason:
            joined[-1] = last._replace(end=part.end)
        else:
            joined.append(part)
    return joined


def _range_snapshot(span: MinuteRange) -> RangeSnapshot:
    return RangeSnapshot(
        span.number,
        span.index,
        span.first,
        span.end,
        span.settled,
        span.offset_end,
        span.nbytes,
        span.counted_bytes,
        [(part.first, part.end, part.reason) for part in span.lost],
    )


def _restored_range(part: RangeSnapshot, minute: Minute) -> MinuteRange:
    return MinuteRange(
        part.partition,
        part.index,
        part.first,
        part.end,
        part.settled,
        minute,
        part.offset_end,
        part.nbytes,
        part.counted_bytes,
        [LostPart(*lost) for lost in part.holes],
    )
