"""The report of an audit: one HTML file that needs nothing else, no network and no other file.

Everything that comes from outside (topics, hosts, texts) goes through the template's escaping or through JSON in a data block.
The page's Content-Security-Policy allows nothing but its own style sheet and its own script, by their hashes.
"""

import base64
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from .core import report_charts as charts
from .core.report_axis import Axis, Cells, make_axis
from .core.report_data import ReportData, Status
from .core.report_tables import Table, hours_note, tables
from .core.report_verdict import Books, books, judge
from .core.report_words import counted, distinct, hour_text, moment, number, seconds, share

TEMPLATES: Final = Path(__file__).parent / "templates"
BAR_WIDTH: Final = 1000
SEGMENT_MIN: Final = 6
"""A single record among millions is still seen in the bar of the books."""
STATUS_WORD: Final = {
    Status.COMPLETE: "Complete",
    Status.COUNTED: "Counted",
    Status.LATE: "On the way",
    Status.UNKNOWN: "Unknown",
    Status.DUPLICATED: "Twice",
    Status.LOST: "Lost",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of each kind the page holds; what is beyond is added up or counted, and the page says so."""

    columns: int = 180
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
    told: str
    paths: tuple[charts.Path, ...]


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
    told: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the bar of the books."""

    css_class: str
    x: float
    width: float


def render(data: ReportData, limits: Limits | None = None) -> str:
    """The page about this run."""
    limits = limits or Limits()
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    axis = _axis(data, limits)
    topics = charts.laid_topics(data.topics, axis)
    hosts = charts.laid_hosts(data.hosts, axis, limits.hosts)
    latency, latency_left_out = _latency(data, limits)
    shown = topics[: limits.topics]
    made = tables(data, limits.rows)
    sums = books(data.rows)
    left_out = [f"{number(cut.shown)} of {number(cut.total)} {cut.what} are named." for cut in data.left_out]
    left_out += [f"{table.title}. {text}" for table in made for text in table.left_out]
    if len(topics) > limits.topics:
        left_out.append(
            f"Completeness over time: the {number(limits.topics)} topics that need a look first, of {number(len(topics))}."
        )
    if len(data.hosts) > limits.hosts:
        left_out.append(
            f"Hosts by minute: {number(limits.hosts - 1)} of {number(len(data.hosts))} hosts have a row; the others are added up in one."
        )
    left_out += latency_left_out
    return _environment().get_template("report.html").render(
        data=data,
        verdict=judge(data),
        books=sums,
        segments=_segments(sums),
        arrived=share(sums.distinct, sums.expected),
        hours_note=hours_note(data),
        axis=axis,
        ticks=charts.ticks(axis),
        step_text=seconds(axis.step * 60),
        strips=[_strip(place, item) for place, item in enumerate(shown)],
        heat_rows=[HeatRow(host.name, host.whole.status, _troubles(host.whole)) for host in hosts],
        heat_paths=charts.heat([host.cells for host in hosts], axis),
        breaks=lambda height: charts.breaks(axis, height),
        latencies=latency,
        tables=made,
        statuses=[(status, STATUS_WORD[status]) for status in reversed(Status)],
        filter_topics=_filter_topics(made),
        filter_hours=_filter_hours(made),
        left_out=left_out,
        sizes=charts,
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        style_hash=_hash(style),
        script_hash=_hash(script),
        payload=_data_block(_payload(axis, shown, hosts)),
        status_word=STATUS_WORD,
    )


def write(path: Path, page: str) -> None:
    """Put the page in place, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            _ = file.write(page)
        Path(name).chmod(0o644)
        _ = Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "moment": moment, "seconds": seconds, "hour": hour_text, "code": _code}
    return environment


def _code(text: str) -> Markup:
    """Escaped text, with what stands between backticks as code."""
    parts = [
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(text.split("`"))
    ]
    return Markup("").join(parts)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data_block(value: object) -> Markup:
    """JSON that cannot end its script element, whatever is in it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704 - escaped just here


def _axis(data: ReportData, limits: Limits) -> Axis:
    minutes = [point.minute for laid in (*data.topics, *data.hosts) for point in laid.points]
    return make_axis(minutes, columns_max=limits.columns, step_minutes=data.step_minutes)


def _strip(place: int, item: charts.Laid) -> Strip:
    whole = item.whole
    note = _troubles(whole)
    told = (
        f"Completeness of topic {item.name} over time: {share(whole.distinct, whole.expected)} of "
        f"{counted(whole.expected, 'record')} arrived{'; ' + note if note else ''}."
    )
    return Strip(f"t{place}", item.name, whole.status, share(whole.distinct, whole.expected), note, told, item.paths)
