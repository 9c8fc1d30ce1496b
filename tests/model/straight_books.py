"""Books kept the slow way, ordinal by ordinal, from a plain list of entries: what the daemon's must say after any stop."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from penstock.daemon.ledger.audit_counts import AuditCounts
from penstock.daemon.ledger.audit_rows import Minute
from penstock.daemon.ledger.entries import AckedEntry, Entry, FrameEntry, IncarnationEntry, ParkedEntry, RefusedEntry

Key = tuple[int, int]
"""Minute and era; all that is counted is one topic's."""


class Row(NamedTuple):
    """One minute: by partition the ordinals with their fate (None: pending), and the rest as totals."""

    fates: dict[tuple[int, int], str | None]
    nbytes: int
    offset_ends: dict[int, int]
    refused: dict[str, int]
    delivered: dict[int, int]
    batches: dict[int, int]
    resent: dict[int, int]


class StraightBooks:
    """`own`: partitions that are not counted."""

    def __init__(self, own: Iterable[int] = ()) -> None:
        self.own = set(own)
        self.rows: dict[Key, Row] = {}
        self._minute_of: dict[tuple[int, int], Key] = {}
        self._next: Counter[int] = Counter()
        self._mark: Counter[int] = Counter()
        self._lost: dict[tuple[int, int], str] = {}

    def apply(self, entry: Entry) -> None:
        match entry:
            case IncarnationEntry():
                self.rows.clear()
                self._minute_of.clear()
            case FrameEntry():
                for part in entry.slices:
                    self._next[part.partition] = part.first + part.count
                    if part.partition in self.own:
                        continue
                    row = self._row((entry.wall_ms // 60_000, entry.era))
                    for ordinal in range(part.first, part.first + part.count):
                        row.fates[part.partition, ordinal] = None
                        self._minute_of[part.partition, ordinal] = (entry.wall_ms // 60_000, entry.era)
                    row.offset_ends.setdefault(part.partition, -1)
                    self._add_bytes((entry.wall_ms // 60_000, entry.era), part.length - 48)
            case AckedEntry():
                self._acked(entry)
            case ParkedEntry():
                for first, count in entry.ordinals:
                    for ordinal in range(first, first + count):
                        self._lost.setdefault((entry.partition, ordinal), "parked")
                        key = self._minute_of.get((entry.partition, ordinal))
                        if key is not None:
                            self.rows[key].fates[entry.partition, ordinal] = "parked"
                self._jump(entry.partition)
            case RefusedEntry():
                row = self._row((entry.minute, entry.era))
                row.refused.clear()
                row.refused.update(entry.refused)
            case _:
                pass

    def _acked(self, entry: AckedEntry) -> None:
        number = entry.partition
        touched: list[Key] = []
        for ordinal in range(self._mark[number], entry.mark):
            key = self._minute_of.get((number, ordinal))
            if key is None:
                continue
            row = self.rows[key]
            touched.append(key)
            row.offset_ends[number] = entry.offset_end
            if (number, ordinal) not in self._lost:
                row.fates[number, ordinal] = "delivered"
                row.delivered[entry.shard_id] = row.delivered.get(entry.shard_id, 0) + 1
        moved = entry.mark > self._mark[number]
        self._mark[number] = max(entry.mark, self._mark[number])
        jumped = self._jump(number, moved_to=entry.offset_end if moved else None)
        touched += jumped
        if touched and moved:
            row = self.rows[touched[-1]]
            row.batches[entry.shard_id] = row.batches.get(entry.shard_id, 0) + entry.batches
            row.resent[entry.shard_id] = row.resent.get(entry.shard_id, 0) + entry.resent

    def _jump(self, number: int, *, moved_to: int | None = None) -> list[Key]:
        """Over lost ordinals at the mark."""
        touched: list[Key] = []
        while (number, self._mark[number]) in self._lost:
            key = self._minute_of.get((number, self._mark[number]))
            if key is not None:
                touched.append(key)
                if moved_to is not None:
                    self.rows[key].offset_ends[number] = moved_to
            self._mark[number] += 1
        return touched

    def _row(self, key: Key) -> Row:
        return self.rows.setdefault(key, Row({}, 0, {}, {}, {}, {}, {}))

    def _add_bytes(self, key: Key, nbytes: int) -> None:
        self.rows[key] = self.rows[key]._replace(nbytes=self.rows[key].nbytes + nbytes)

    def pending(self, key: Key) -> int:
        """Ordinals that are not below the mark of their partition."""
        return sum(ordinal >= self._mark[number] for number, ordinal in self.rows[key].fates)

    def settled_end(self, number: int) -> int:
        return self._mark[number]


def differences(straight: StraightBooks, books: AuditCounts, told: Iterable[Key]) -> list[str]:
    """Where the daemon's books say something else. Minutes in `told` may be missing: they were told for the last time."""
    kept = {(key.minute, key.era): minute for key, minute in books.minutes.items()}
    found = [f"{key} is known to the books only" for key in set(kept) - set(straight.rows)]
    for key, row in straight.rows.items():
        if key not in kept:
            if key not in set(told):
                found.append(f"{key} is missing")
            continue
        found += _differences(straight, key, row, kept[key])
    return found


def _differences(straight: StraightBooks, key: Key, row: Row, minute: Minute) -> list[str]:
    found: list[str] = []

    def same(what: str, expected: object, told: object) -> None:
        if expected != told:
            found.append(f"{key}: {what} is {told}, not {expected}")

    fates: dict[tuple[int, int], str | None] = {}
    for span in minute.ranges:
        for ordinal in range(span.first, span.end):
            assert (span.number, ordinal) not in fates, "an ordinal is in two ranges"
            fates[span.number, ordinal] = "delivered" if ordinal < span.settled else None
        for part in span.lost:
            for ordinal in range(part.first, part.end):
                fates[span.number, ordinal] = part.reason
        same("settled", min(max(straight.settled_end(span.number), span.first), span.end), span.settled)
        if span.settled > span.first:
            same("offset_end", row.offset_ends[span.number], span.offset_end)
    same("ordinals", row.fates, fates)
    same("bytes", row.nbytes, minute.nbytes)
    same("refused", row.refused, minute.refused)
    seats = {seat: totals for seat, totals in minute.outcomes.items() if seat >= 0}
    same(
        "delivered",
        {s: n for s, n in row.delivered.items() if s >= 0 and n},
        {s: t.delivered for s, t in seats.items() if t.delivered},
    )
    same(
        "batches",
        {s: n for s, n in row.batches.items() if s >= 0 and n},
        {s: t.batches for s, t in seats.items() if t.batches},
    )
    same(
        "resent",
        {s: n for s, n in row.resent.items() if s >= 0 and n},
        {s: t.resent for s, t in seats.items() if t.resent},
    )
    if not straight.pending(key) and "parked" not in row.fates.values() and set(row.delivered) == set(seats):
        same("bytes of outcomes", row.nbytes, sum(totals.nbytes for totals in seats.values()))
    return found
