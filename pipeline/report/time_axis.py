"""The time axis of the report, and points laid into its columns.

The axis holds whole hours in which something was accepted. Long times without intake become one narrow break, so that a record
with a date far off (a clock that was wrong) does not push everything else into one column. However long the time, there are at
most `columns_max` columns: minutes are added up.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .data import MinutePoint, Status

HOUR: Final = 60
STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 10_080, 20_160, 43_200)
"""Minutes a column may hold. Whole multiples of the last one follow."""
JOINED_HOURS: Final = 3
"""A pause of up to this many hours stays on the axis as it is."""


@dataclass(frozen=True, slots=True)
class Axis:
    """`starts` are the first minutes of the columns, rising; those in `breaks` stand for a time without intake, however long."""

    step: int
    starts: tuple[int, ...]
    breaks: frozenset[int]

    def column(self, minute: int) -> int | None:
        """The column that a minute lies in; None outside of the axis."""
        at = bisect_right(self.starts, minute) - 1
        return at if at >= 0 and at not in self.breaks and minute < self.starts[at] + self.step else None


def make_axis(minutes: Iterable[int], *, columns_max: int, step_minutes: int = 1) -> Axis:
    """The axis for points at these minutes, each of which stands for `step_minutes`."""
    hours = sorted({at // HOUR for minute in minutes for at in (minute, minute + step_minutes - 1)})
    runs = _runs(hours)
    if len(runs) > columns_max // 4:
        # So many pauses that breaks would be all there is: show the time as it went.
        runs = [(runs[0][0], runs[-1][1])]
    total = sum(end - first for first, end in runs) * HOUR
    step = _step(total, columns_max - len(runs), step_minutes)
    return _build_axis(runs, step)


def _runs(hours: Sequence[int]) -> list[tuple[int, int]]:
    """Hours joined into stretches `first`, `end`; a pause stays inside while it is short or a small part of the whole."""
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
    """What became of the records of one column."""

    expected: int = 0
    distinct: int = 0
    pending: int = 0
    late: int = 0
    lost: int = 0
    duplicated: int = 0

    def add(self, point: "MinutePoint | ColumnCounts") -> None:
        """Count a minute in."""
        self.expected += point.expected
        self.distinct += point.distinct
        self.pending += point.pending
        self.late += point.late
        self.lost += point.lost
        self.duplicated += point.duplicated

    @property
    def status(self) -> Status:
        """The worst that is known of the column."""
        if self.lost:
            return Status.LOST
        if self.duplicated:
            return Status.DUPLICATED
        return Status.LATE if self.pending or self.late else Status.COMPLETE


CountsByColumn = Mapping[int, ColumnCounts]
"""By column; columns without intake are absent."""


def sum_by_column(points: Iterable[MinutePoint], axis: Axis) -> dict[int, ColumnCounts]:
    """Points added up into the columns they lie in."""
    cells: dict[int, ColumnCounts] = {}
    for point in points:
        column = axis.column(point.minute)
        if column is not None:
            cells.setdefault(column, ColumnCounts()).add(point)
    return dict(sorted(cells.items()))


def total(cells: CountsByColumn) -> ColumnCounts:
    """All columns together."""
    whole = ColumnCounts()
    for cell in cells.values():
        whole.add(cell)
    return whole
