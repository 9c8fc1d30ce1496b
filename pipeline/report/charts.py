"""The charts of the report as SVG paths: completeness by topic, hosts by minute, latency by topic. Geometry only, no
colours.

`report.css` draws the classes of the paths. Many columns share one path per class, so a chart of thousands of cells
stays a few lines of markup.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from .data import HourRow, MinuteSeries, Status
from .time_axis import Axis, ColumnCounts, CountsByColumn, sum_by_column, total
from .wording import MINUTES_A_DAY, UNKNOWN_HOST, hour_text, minute_text, seconds

COLUMN: Final = 10
"""Width of a column in units of the view box, gap included."""
STRIP_HEIGHT: Final = 60
BAR_HEIGHT: Final = 48
MARK_BAND: Final = (52, 7)
"""Top and height of the lane below the bars that marks problems."""
HEAT_ROW: Final = 20
LEVELS: Final = 4
TICK_MINUTES: Final = (5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440, 2_880, 10_080, 20_160, 43_200, 129_600, 525_600)
LATENCY_SIZE: Final = (340, 150)
LATENCY_PLOT: Final = (48, 10, 282, 112)
"""Left, top, width, height."""
TICKS_S: Final = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 36_000.0, 360_000.0, 3_600_000.0, 1e9)


@dataclass(frozen=True, slots=True)
class SvgPath:
    """All shapes of one class, as one path."""

    css_class: str
    d: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A label of the time axis. `place` is in percent of the axis' width."""

    text: str
    place: float
    anchor: str


def _paths(parts: Mapping[str, Sequence[str]]) -> tuple[SvgPath, ...]:
    return tuple(SvgPath(name, "".join(drawn)) for name, drawn in parts.items() if drawn)


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z"


def _gap(columns: int) -> float:
    """Space between bars, smaller for many columns."""
    return 2 if columns <= 60 else 1.2 if columns <= 120 else 0.6


def breaks(axis: Axis, height: float) -> SvgPath:
    """The columns that represent a time left out."""
    return SvgPath("break", "".join(_box(place * COLUMN + 3, 0, 4, height) for place in sorted(axis.breaks)))


def strip(cells: CountsByColumn, axis: Axis) -> tuple[SvgPath, ...]:
    """Draw a bar of expected records per column, in the class of the column's status. A full-width mark below repeats
    problems."""
    parts: dict[str, list[str]] = defaultdict(list)
    peak = max((cell.expected for cell in cells.values()), default=0)
    width = COLUMN - _gap(len(axis.starts))
    for column, cell in cells.items():
        height = max(1.5, BAR_HEIGHT * cell.expected / peak) if peak else 1.5
        x = column * COLUMN
        status = cell.status
        if status is not Status.COMPLETE:
            parts[f"tint {status}"].append(_box(x, 0, COLUMN, BAR_HEIGHT))
            parts[f"mark {status}"].append(_box(x, MARK_BAND[0], COLUMN, MARK_BAND[1]))
        parts[f"bar {status}"].append(_box(x, BAR_HEIGHT - height, width, height))
    order = sorted(parts, key=lambda name: not name.startswith("tint"))
    return _paths({name: parts[name] for name in order})


def heat(rows: Sequence[CountsByColumn], axis: Axis) -> tuple[SvgPath, ...]:
    """Draw one row of cells per host. Complete cells get darker with more records; cells with problems have their own
    class."""
    parts: dict[str, list[str]] = defaultdict(list)
    peak = max((cell.expected for cells in rows for cell in cells.values()), default=0)
    width = COLUMN - _gap(len(axis.starts))
    for place, cells in enumerate(rows):
        for column, cell in cells.items():
            status = cell.status
            name = f"cell {status}" if status is not Status.COMPLETE else f"cell level-{level(cell.expected, peak)}"
            parts[name].append(_box(column * COLUMN, place * HEAT_ROW + 1, width, HEAT_ROW - 2))
    return _paths(dict(sorted(parts.items())))


def level(count: int, peak: int) -> int:
    """Return 1 to `LEVELS` on a logarithmic scale, so that a host with a hundredth of another's load stays visible."""
    if count <= 0 or peak <= 1:
        return LEVELS if count > 0 else 1
    return max(1, min(LEVELS, math.ceil(LEVELS * math.log1p(count) / math.log1p(peak))))


def ticks(axis: Axis, most: int = 7) -> tuple[Tick, ...]:
    """Return the labels below the columns, at round times. A label includes the date where it changes."""
    columns = len(axis.starts)
    if not columns:
        return ()
    apart = next((every for every in TICK_MINUTES if every * most >= axis.step * columns), axis.step * columns)
    shown: list[int] = []
    after_break = {place + 1 for place in axis.breaks}
    for column in range(columns):
        round_time = axis.starts[column] // apart != (axis.starts[column] - axis.step) // apart
        if column in axis.breaks or not (column in after_break or round_time):
            continue
        if shown and (column - shown[-1]) * (most + 2) < columns:
            if column not in after_break:
                continue
            del shown[-1]
        shown.append(column)
    made: list[Tick] = []
    day = ""
    texts = {column: minute_text(axis.starts[column]) for column in shown or [0]}
    # On narrow screens a year that never changes would waste space.
    year = len({text[:4] for text in texts.values()}) > 1
    for column, text in texts.items():
        date, _, of_day = (text if year else text[5:]).partition(" ")
        label = date if apart >= MINUTES_A_DAY else of_day if date == day else f"{date} {of_day}"
        day = date
        place = 100 * column / columns
        made.append(Tick(label, round(place, 2), "start" if place < 8 else "end" if place > 92 else "middle"))
    return tuple(made)


class AxisSeries(NamedTuple):
    """The columns of a topic or host, and their sum."""

    name: str
    cells: CountsByColumn
    whole: ColumnCounts


def _laid(series: Iterable[MinuteSeries], axis: Axis) -> list[AxisSeries]:
    """Return each series with its columns and their sum."""
    return [
        AxisSeries(item.name, cells, total(cells)) for item in series for cells in (sum_by_column(item.points, axis),)
    ]


def topic_series(topics: Iterable[MinuteSeries], axis: Axis) -> list[AxisSeries]:
    """Return each topic with its columns and their sum, worst first, then largest first."""
    return sorted(_laid(topics, axis), key=lambda item: (-item.whole.status.rank, -item.whole.expected, item.name))


def host_series(hosts: Iterable[MinuteSeries], axis: Axis, most: int) -> list[AxisSeries]:
    """Return each host with its columns, worst first, then by name. Hosts beyond `most` are summed into one row."""
    laid = [host._replace(name=host.name or UNKNOWN_HOST) for host in _laid(hosts, axis)]
    laid.sort(key=lambda item: (-item.whole.status.rank, item.name))
    if len(laid) <= most:
        return laid
    together: dict[int, ColumnCounts] = {}
    for host in laid[most - 1 :]:
        for column, cell in host.cells.items():
            together.setdefault(column, ColumnCounts()).add(cell)
    rest = dict(sorted(together.items()))
    return [*laid[: most - 1], AxisSeries(f"{len(laid) - most + 1:,} more hosts", rest, total(rest))]


@dataclass(frozen=True, slots=True)
class LatencyHour:
    """Latency of a topic in one hour, or in several merged hours: then p50 is their mean weighted by rows, p99 their
    maximum."""

    first: str
    last: str
    p50_s: float
    p99_s: float
    rows: int


def latency_hours(rows: Iterable[HourRow], most: int) -> dict[str, tuple[LatencyHour, ...]]:
    """Return hours by topic, sorted. Hours are merged where a topic has more than `most`."""
    found: dict[str, dict[str, list[HourRow]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.latency_p50_s is not None and row.latency_p99_s is not None:
            found[row.topic][row.hour].append(row)
    by_topic: dict[str, tuple[LatencyHour, ...]] = {}
    for topic, hours in found.items():
        names = sorted(hours)
        size = -(-len(names) // most)
        groups = [names[start : start + size] for start in range(0, len(names), size)]
        by_topic[topic] = tuple(_together(group, [row for name in group for row in hours[name]]) for group in groups)
    return by_topic


def _together(hours: Sequence[str], rows: Sequence[HourRow]) -> LatencyHour:
    weights = [max(1, row.landed) for row in rows]
    p50 = sum((row.latency_p50_s or 0.0) * weight for row, weight in zip(rows, weights, strict=True)) / sum(weights)
    p99 = max(row.latency_p99_s or 0.0 for row in rows)
    return LatencyHour(hours[0], hours[-1], p50, max(p50, p99), sum(row.landed for row in rows))


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    y: float
    text: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class LatencyPicture:
    """Bars from p50 to p99 over the hours, on a logarithmic scale."""

    paths: tuple[SvgPath, ...]
    labels: tuple[Label, ...]
    typical: str
    worst: str


def latency(hours: Sequence[LatencyHour]) -> LatencyPicture:
    """Draw the chart of one topic. `hours` must not be empty."""
    left, top, width, height = LATENCY_PLOT
    low, high = _scale(min(hour.p50_s for hour in hours), max(hour.p99_s for hour in hours))

    def y(value: float) -> float:
        clear = min(max(value, low), high)
        return round(top + height * (1 - math.log(clear / low) / math.log(high / low)), 1)

    parts: dict[str, list[str]] = defaultdict(list)
    labels: list[Label] = []
    for tick in TICKS_S:
        if low <= tick <= high:
            parts["grid"].append(f"M{left} {y(tick)}h{width}")
            labels.append(Label(left - 6, y(tick) + 4, seconds(tick), "end"))
    slot = width / len(hours)
    bar = max(1.0, min(14.0, slot * 0.6))
    for place, hour in enumerate(hours):
        middle = left + slot * (place + 0.5)
        upper, lower = y(hour.p99_s), y(hour.p50_s)
        parts["spread"].append(
            _box(round(middle - bar / 2, 1), upper, round(bar, 1), max(0.5, round(lower - upper, 1)))
        )
        parts["p99"].append(f"M{middle - bar / 2:.1f} {upper}h{bar:.1f}")
        parts["p50"].append(f"M{middle - bar / 2:.1f} {lower}h{bar:.1f}")
    foot = top + height + 18
    labels.append(Label(left, foot, hour_text(hours[0].first)))
    if len(hours) > 1:
        labels.append(Label(left + width, foot, hour_text(hours[-1].last), "end"))
    weight = sum(max(1, hour.rows) for hour in hours)
    typical = sum(hour.p50_s * max(1, hour.rows) for hour in hours) / weight
    return LatencyPicture(_paths(parts), tuple(labels), seconds(typical), seconds(max(hour.p99_s for hour in hours)))


def _scale(low: float, high: float) -> tuple[float, float]:
    """The nearest ticks around the values, at least two apart."""
    lower = max((tick for tick in TICKS_S if tick <= low), default=TICKS_S[0])
    upper = min((tick for tick in TICKS_S if tick >= high), default=TICKS_S[-1])
    if lower >= upper:
        upper = min((tick for tick in TICKS_S if tick > lower), default=lower * 10)
    return lower, upper
