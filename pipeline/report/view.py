"""Computes everything the page shows and cuts it to size. The template only lays it out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from . import charts
from .data import ReportData, Status
from .tables import ReportTable, hours_note, tables
from .time_axis import Axis, ColumnCounts, CountsByColumn, make_axis
from .verdict import AuditVerdict, ReportTotals, judge, report_totals
from .wording import count_text, hour_text, number, seconds, share, visible

BAR_WIDTH: Final = 1000
SEGMENT_MIN: Final = 6
"""Keeps a single record among millions visible in the bar."""
CHOICES_MAX: Final = 2_000
"""Maximum number of topics or hours in a filter."""


@dataclass(frozen=True, slots=True)
class ReportLimits:
    """How much of each kind the page shows. The rest is summed or counted, and the page states how much that is."""

    columns: int = 240
    topics: int = 60
    hosts: int = 60
    rows: int = 1_000
    latencies: int = 24
    latency_columns: int = 72


@dataclass(frozen=True, slots=True)
class Strip:
    """Completeness of one topic over time."""

    id: str
    topic: str
    status: Status
    share: str
    note: str
    description: str
    """Text description of the chart."""
    paths: tuple[charts.SvgPath, ...]


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One host of the heat map."""

    name: str
    status: Status
    note: str


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of one topic."""

    topic: str
    picture: charts.LatencyPicture
    description: str


@dataclass(frozen=True, slots=True)
class BarSegment:
    """One part of the bar that splits the expected records."""

    css_class: str
    label: str
    count: int
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class View:
    """The page's content, in page order."""

    verdict: AuditVerdict
    totals: ReportTotals
    arrived: str
    segments: tuple[BarSegment, ...]
    hours_note: str
    axis: Axis
    ticks: tuple[charts.Tick, ...]
    step: str
    strips: tuple[Strip, ...]
    heat_rows: tuple[HeatRow, ...]
    heat_paths: tuple[charts.SvgPath, ...]
    heat_description: str
    latencies: tuple[Latency, ...]
    tables: tuple[ReportTable, ...]
    topic_choices: tuple[str, ...]
    hour_choices: tuple[tuple[str, str], ...]
    """Filter value and displayed text."""
    left_out: tuple[str, ...]
    payload: dict[str, object]
    """Data of single columns for the page's script."""


def view(data: ReportData, limits: ReportLimits) -> View:
    minutes = [point.minute for topic in data.topics for point in topic.points]
    minutes += [point.minute for host in data.hosts for point in host.points]
    axis = make_axis(minutes, columns_max=limits.columns, step_minutes=data.step_minutes)
    topics = charts.topic_series(data.topics, axis)
    hosts = charts.host_series(data.hosts, axis, limits.hosts)
    by_topic = charts.latency_hours(data.rows, limits.latency_columns)
    slowest = sorted(by_topic, key=lambda topic: (-max(hour.p99_s for hour in by_topic[topic]), topic))
    shown = topics[: limits.topics]
    made = tables(data, limits.rows)
    sums = report_totals(data.rows)
    return View(
        verdict=judge(data),
        totals=sums,
        arrived=share(sums.distinct, sums.expected),
        segments=segments(sums),
        hours_note=hours_note(data),
        axis=axis,
        ticks=charts.ticks(axis),
        step=_step(axis.step),
        strips=tuple(_strip(place, item, axis) for place, item in enumerate(shown)),
        heat_rows=tuple(HeatRow(host.name, host.whole.status, problem_counts(host.whole)) for host in hosts),
        heat_paths=charts.heat([host.cells for host in hosts], axis),
        heat_description=_heat_description(hosts),
        latencies=tuple(_latency(topic, by_topic[topic]) for topic in slowest[: limits.latencies]),
        tables=made,
        topic_choices=_choices(row.topic for table in made for row in table.rows),
        hour_choices=tuple(
            (hour, hour_text(hour)) for hour in _choices(row.hour for table in made for row in table.rows)
        ),
        left_out=_left_out(data, limits, made, len(by_topic)),
        payload=_payload(axis, shown, hosts),
    )


def problem_counts(cell: ColumnCounts) -> str:
    """Text such as `7 lost, 11 twice`; empty without problems."""
    parts = ((cell.lost, "lost"), (cell.duplicated, "twice"), (cell.late, "late"), (cell.pending, "pending"))
    return ", ".join(f"{number(count)} {word}" for count, word in parts if count)


def segments(sums: ReportTotals) -> tuple[BarSegment, ...]:
    """Split the expected records by status, as segments of a bar. Every segment that is not empty stays visible."""
    parts = [
        ("complete", "arrived", sums.distinct),
        ("pending", "pending", sums.pending),
        ("late", "late", sums.late),
        ("lost", "lost", sums.lost),
    ]
    there = [part for part in parts if part[2] > 0]
    whole = sum(count for _, _, count in there)
    widths = [max(SEGMENT_MIN, BAR_WIDTH * count / whole) for _, _, count in there]
    scale = BAR_WIDTH / sum(widths) if widths else 1.0
    made: list[BarSegment] = []
    x = 0.0
    for (css_class, label, count), width in zip(there, widths, strict=True):
        made.append(BarSegment(css_class, label, count, round(x, 2), round(width * scale, 2)))
        x += width * scale
    return tuple(made)


def _step(minutes: int) -> str:
    return "one minute" if minutes == 1 else seconds(minutes * 60)


def _strip(place: int, item: charts.AxisSeries, axis: Axis) -> Strip:
    whole = item.whole
    note = problem_counts(whole)
    told = (
        f"Completeness of topic {item.name} over time: {share(whole.distinct, whole.expected)} of "
        f"{count_text(whole.expected, 'record')} arrived{'; ' + note if note else ''}."
    )
    paths = charts.strip(item.cells, axis)
    return Strip(f"t{place}", item.name, whole.status, share(whole.distinct, whole.expected), note, told, paths)


def _heat_description(hosts: Sequence[charts.AxisSeries]) -> str:
    bad = [host.name for host in hosts if host.whole.status is not Status.COMPLETE]
    if not hosts:
        return "No host."
    return f"{count_text(len(hosts), 'row')} of hosts over time. " + (
        f"Not whole: {', '.join(bad[:10])}{' and others' if len(bad) > 10 else ''}." if bad else "All whole."
    )


def _latency(topic: str, hours: Sequence[charts.LatencyHour]) -> Latency:
    picture = charts.latency(hours)
    told = f"Time from accept to landed in topic {topic}: typically {picture.typical}, in the worst hour 1 of 100 took {picture.worst} or longer."
    return Latency(topic, picture, told)


def _choices(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name for name in names if name})[:CHOICES_MAX])


def _left_out(data: ReportData, limits: ReportLimits, made: Sequence[ReportTable], latencies: int) -> tuple[str, ...]:
    told = [f"Shown: {number(cut.shown)} of {number(cut.total)} {cut.what}." for cut in data.left_out]
    told += [f"{table.title}: {text}" for table in made for text in table.left_out]
    if len(data.topics) > limits.topics:
        told.append(
            f"Completeness over time: the {number(limits.topics)} topics to look at first, of {number(len(data.topics))}."
        )
    if len(data.hosts) > limits.hosts:
        told.append(
            f"Hosts by minute: {number(limits.hosts - 1)} of {number(len(data.hosts))} hosts have a row, the others share one."
        )
    if latencies > limits.latencies:
        told.append(f"Latency: the {number(limits.latencies)} slowest topics of {number(latencies)}.")
    return tuple(told)


def _payload(axis: Axis, topics: Sequence[charts.AxisSeries], hosts: Sequence[charts.AxisSeries]) -> dict[str, object]:
    pictures: dict[str, object] = {
        f"t{place}": {"names": [visible(item.name)], "cells": [_numbers(item.cells)]}
        for place, item in enumerate(topics)
    }
    pictures["heat"] = {
        "names": [visible(host.name) for host in hosts],
        "cells": [_numbers(host.cells) for host in hosts],
    }
    return {"step": axis.step, "starts": axis.starts, "pictures": pictures}


def _numbers(cells: CountsByColumn) -> list[list[int]]:
    """Return, per column, its index and the six counts; trailing zeros are cut off."""
    made: list[list[int]] = []
    for column, cell in cells.items():
        counts = [column, cell.expected, cell.distinct, cell.lost, cell.duplicated, cell.late, cell.pending]
        while counts[-1] == 0 and len(counts) > 3:
            del counts[-1]
        made.append(counts)
    return made
