"""Stamp rows of a partition: one starts each epoch, and one follows each range of ordinals never sent (IDN-5,
IDN-6)."""

from collections.abc import Iterable
from typing import Final

from ...wire.messages import StampRow

EPOCH_MAX: Final = 32_767

OrdinalRange = tuple[int, int]
"""Ordinals [first, end)."""


def stamp_rows_from(
    mark: int, left_out: Iterable[OrdinalRange], producer_id: int, epoch: int
) -> tuple[StampRow, list[StampRow]]:
    """The row that starts an epoch at the first ordinal from `mark` on outside `left_out`, and one row after every
    later hole."""
    assert (0 <= epoch <= EPOCH_MAX) == (producer_id >= 0), f"epoch {epoch} of producer id {producer_id}"
    holes = merge_ranges(left_out)
    start = first_ordinal_outside(holes, mark)
    bump = StampRow(producer_id, epoch, start, start)
    base = start
    rows: list[StampRow] = []
    for first, end in holes:
        if first > start:
            base += end - first
            rows.append(StampRow(producer_id, epoch, end, base))
    return bump, rows


def merge_ranges(spans: Iterable[OrdinalRange]) -> list[OrdinalRange]:
    """Sort ranges in ascending order and merge those that overlap or touch."""
    found: list[OrdinalRange] = []
    for first, end in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > first:
            found.append((first, end))
    return found


def first_ordinal_outside(holes: Iterable[OrdinalRange], ordinal: int) -> int:
    """The first ordinal from `ordinal` on outside all holes. `holes` must be the result of `merge_ranges`."""
    for first, end in holes:
        if first <= ordinal < end:
            return end
    return ordinal


def subtract_ranges(span: OrdinalRange, left_out: Iterable[OrdinalRange]) -> list[OrdinalRange]:
    """The parts of `span` outside `left_out`, which must be the result of `merge_ranges`."""
    first, end = span
    found: list[OrdinalRange] = []
    for hole_first, hole_end in left_out:
        if hole_end <= first or hole_first >= end:
            continue
        if hole_first > first:
            found.append((first, hole_first))
        first = hole_end
    if first < end:
        found.append((first, end))
    return found


def intersect_ranges(span: OrdinalRange, others: Iterable[OrdinalRange]) -> list[OrdinalRange]:
    """The parts of `span` inside any of `others`, which must be the result of `merge_ranges`."""
    first, end = span
    return [(max(first, low), min(end, high)) for low, high in others if low < end and first < high]
