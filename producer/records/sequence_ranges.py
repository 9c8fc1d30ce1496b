"""Stamp rows of a partition: which begin an epoch, and which stand behind ordinals that are never sent (IDN-5, IDN-6)."""

from collections.abc import Iterable
from typing import Final

from ...wire.messages import Row

EPOCH_MAX: Final = 32_767

Span = tuple[int, int]
"""Ordinals [first, end)."""


def rows_from(mark: int, left_out: Iterable[Span], producer_id: int, epoch: int) -> tuple[Row, list[Row]]:
    """The row that begins an epoch at the first ordinal from `mark` on that is not left out, and one behind every later hole."""
    assert (0 <= epoch <= EPOCH_MAX) == (producer_id >= 0), f"epoch {epoch} of producer id {producer_id}"
    holes = merged(left_out)
    start = behind(holes, mark)
    bump = Row(producer_id, epoch, start, start)
    base = start
    rows: list[Row] = []
    for first, end in holes:
        if first > start:
            base += end - first
            rows.append(Row(producer_id, epoch, end, base))
    return bump, rows


def merged(spans: Iterable[Span]) -> list[Span]:
    """Ascending, without overlaps and seams."""
    found: list[Span] = []
    for first, end in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > first:
            found.append((first, end))
    return found


def behind(holes: Iterable[Span], ordinal: int) -> int:
    """The first ordinal from this one on that lies in none of the holes, which are `merged`."""
    for first, end in holes:
        if first <= ordinal < end:
            return end
    return ordinal


def without(span: Span, left_out: Iterable[Span]) -> list[Span]:
    """What is left of a span; `left_out` is `merged`."""
    first, end = span
    found: list[Span] = []
    for hole_first, hole_end in left_out:
        if hole_end <= first or hole_first >= end:
            continue
        if hole_first > first:
            found.append((first, hole_first))
        first = hole_end
    if first < end:
        found.append((first, end))
    return found


def inside(span: Span, others: Iterable[Span]) -> list[Span]:
    """The parts of a span that lie in any of the others, which are `merged`."""
    first, end = span
    return [(max(first, low), min(end, high)) for low, high in others if low < end and first < high]
