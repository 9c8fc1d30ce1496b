"""The time axis of the report, and the assignment of points to its columns.

The axis shows whole hours with intake. A long time without intake becomes one narrow break, so that a record with a
wrong, distant date does not squeeze everything else into one column. There are at most `columns_max` columns, however
long the time: minutes are added up.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .data import MinutePoint, Status

HOUR: Final = 60
STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 10_080, 20_160, 43_200)
"""Minutes that a column may cover. Beyond the last value, multiples of it."""
JOINED_HOURS: Final = 3
"""A pause of up to this many hours stays on the axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """`starts` are the first minutes of the columns, ascending. Columns in `breaks` represent a time without intake, of
    any length."""

    step: int
    starts: tuple[int, ...]
    breaks: frozenset[int]

    def column(self, minute: int) -> int | None:
        """Return the column of a minute; None outside the axis."""
        at = bisect_right(self.starts, minute) - 1
        return at if at >= 0 and at not in self.breaks and minute < self.starts[at] + self.step else None


def make_axis(minutes: Iterable[int], *, columns_max: int, step_minutes: int = 1) -> Axis:
    """Build the axis for points at these minutes, each covering `step_minutes`."""
    hours = sorted({at // HOUR for minute in minutes for at in (minute, minute + step_minutes - 1)})
    runs = _runs(hours)
    if len(runs) > columns_max // 4:
        # With so many pauses the axis would consist of breaks: show the whole time instead.
        runs = [(runs[0][0], runs[-1][1])]
    total = sum(end - first for first, end in runs) * HOUR
    step = _step(total, columns_max - len(runs), step_minutes)
    return _build_axis(runs, step)


def _runs(hours: Sequence[int]) -> list[tuple[int, int]]:
    """Join hours into runs (`first`, `end`). A run includes pauses that are short or a small part of the whole."""
    runs: list[tuple[int, int]] = []
    longest_kept = max(JOINED_HOURS, len(hours) // 2)
    for hour in hours:
        if runs and hour - runs[-1][1] <= longest_kept:
            runs[-1] = (runs[-1][0], hour + 1)
        else:
            runs.append((hour, hour + 1))
    return runs


def _step(total: int, columns_max: int, least: int) -> int:
    for step in STEPS:
        if step >= least and total <= step * columns_max:
            return step
    last = STEPS[-1]
    return last * -(-total // (last * columns_max))


def _build_axis(runs: Iterable[tuple[int, int]], step: int) -> Axis:
    starts: list[int] = []
    breaks: set[int] = set()
    for first, end in runs:
        at = first * HOUR // step * step
        if starts:
            follows = starts[-1] + step
            if at > follows:
                breaks.add(len(starts))
                starts.append(follows)
            at = max(at, follows)
        starts += range(at, end * HOUR, step)
    return Axis(step, tuple(starts), frozenset(breaks))


@dataclass(slots=True)
class ColumnCounts:
    """Counts of the records of one column."""

    expected: int = 0
    distinct: int = 0
    pending: int = 0
    late: int = 0
    lost: int = 0
    duplicated: int = 0

    def add(self, point: "MinutePoint | ColumnCounts") -> None:
        """Add the counts of a minute or a column."""
        self.expected += point.expected
        self.distinct += point.distinct
        self.pending += point.pending
        self.late += point.late
        self.lost += point.lost
        self.duplicated += point.duplicated

    @property
    def status(self) -> Status:
        if self.lost:
            return Status.LOST
        if self.duplicated:
            return Status.DUPLICATED
        return Status.LATE if self.pending or self.late else Status.COMPLETE


CountsByColumn = Mapping[int, ColumnCounts]
"""Counts by column; columns without intake are absent."""


def sum_by_column(points: Iterable[MinutePoint], axis: Axis) -> dict[int, ColumnCounts]:
    cells: dict[int, ColumnCounts] = {}
    for point in points:
        column = axis.column(point.minute)
        if column is not None:
            cells.setdefault(column, ColumnCounts()).add(point)
    return dict(sorted(cells.items()))


def total(cells: CountsByColumn) -> ColumnCounts:
    whole = ColumnCounts()
    for cell in cells.values():
        whole.add(cell)
    return whole
