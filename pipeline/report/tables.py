"""The tables of the report: rows of text with their sort and filter values. Long tables are cut after the worst rows
and state how much is missing."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict, TypeVar

from .data import (
    DuplicateId,
    HoleRange,
    HourRow,
    IdRange,
    IncarnationState,
    MissingClass,
    MissingRange,
    ReportData,
    Status,
)
from .wording import NONE, UNKNOWN_HOST, count_text, hour_text, moment, number, record_ids, seconds, share

CLASS_STATUS: Final = {
    MissingClass.PENDING: Status.LATE,
    MissingClass.LATE: Status.LATE,
    MissingClass.LOST: Status.LOST,
}
PLACES_MAX: Final = 8
"""Places of one id that are spelled out."""
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """A column. If `numeric`, it is right-aligned and sorted as a number."""

    label: str
    numeric: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ReportCell:
    """One cell. `sort`, if set, is compared instead of the text; `kind` selects how it is drawn."""

    text: str
    sort: int | float | str | None = None
    kind: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One row. The filters use `topic`, `hour` and `status`; an empty value passes every filter."""

    topic: str
    hour: str
    status: str
    cells: tuple[ReportCell, ...]


@dataclass(frozen=True, slots=True)
class ReportTable:
    """One table with its heading."""

    id: str
    title: str
    intro: str
    columns: tuple[ReportColumn, ...]
    rows: tuple[ReportRow, ...]
    empty: str
    left_out: tuple[str, ...] = ()
    count: int = 0
    """Number of things the table lists (ids, hours or hosts), shown beside the title."""


def tables(data: ReportData, rows_max: int) -> tuple[ReportTable, ...]:
    """Build all tables, in the order of the page."""
    return (
        _missing(data, rows_max),
        _duplicates(data, rows_max),
        _hours(data, rows_max),
        _holes(data, rows_max),
        _recovered_and_foreign(data, rows_max),
        _incarnations(data, rows_max),
    )


class _TableRows(TypedDict):
    rows: tuple[ReportRow, ...]
    left_out: tuple[str, ...]


def _first_rows(items: Iterable[Item], most: int, what: str, row: Callable[[Item], ReportRow]) -> _TableRows:
    """Make rows of the first `most` items, and say how many of `what` are left out."""
    found = list(items)
    cut = f"Shown: the first {number(most)} of {number(len(found))} {what}."
    return _TableRows(rows=tuple(map(row, found[:most])), left_out=(cut,) if len(found) > most else ())


def _count(value: int, kind: str = "") -> ReportCell:
    return ReportCell(number(value), value, kind if value else "zero")


def _hour(hour: str) -> ReportCell:
    return ReportCell(hour_text(hour), hour, "time")


def _host(host: str, incarnation: str) -> ReportCell:
    return ReportCell(host or UNKNOWN_HOST, host, "host", incarnation if host else "")


def _location(item: IdRange | DuplicateId) -> tuple[ReportCell, ...]:
    """Topic, hour and host."""
    return ReportCell(item.topic, kind="topic"), _hour(item.hour), _host(item.host, "")


def _id(item: IdRange | DuplicateId, first: int, end: int) -> ReportCell:
    return ReportCell(record_ids(item.incarnation, item.origin, first, end), kind="id")


def _by_id(item: IdRange | DuplicateId) -> tuple[str, str, str, int, int]:
    first = item.ordinal if isinstance(item, DuplicateId) else item.first
    return item.topic, item.hour, item.incarnation, item.origin, first


def _status(status: Status, text: str = "") -> ReportCell:
    return ReportCell(text or status, status.rank, f"badge {status}")


def _hours(data: ReportData, most: int) -> ReportTable:
    order = sorted(data.rows, key=lambda row: (-row.status.rank, row.hour, row.topic, row.host))
    columns = (
        ReportColumn("Status"), ReportColumn("Hour (UTC)"), ReportColumn("Topic"), ReportColumn("Host", hint="and incarnation"),
        ReportColumn("Accepted", True), ReportColumn("Expected", True, "accepted without holes"), ReportColumn("Arrived", True, "distinct ids in the tables"),
        ReportColumn("Share", True), ReportColumn("Lost", True), ReportColumn("Late", True), ReportColumn("Pending", True),
        ReportColumn("Twice", True, "rows beyond the first of an id"), ReportColumn("p50 / p99", True, "accept to landed; sorted by p99"),
    )  # fmt: skip
    return ReportTable(
        "hours",
        "Hours",
        "One row for each hour, topic and incarnation: what the daemon says it accepted beside what the tables have.",
        columns,
        empty="No hour had anything accepted or landed.",
        count=len(data.rows),
        **_first_rows(order, most, "rows, the worst first; the totals above count all of them", _hour_row),
    )


def _hour_row(row: HourRow) -> ReportRow:
    counted_only = row.status is Status.COUNTED
    whole = counted_only or row.distinct >= row.expected
    return ReportRow(
        row.topic,
        row.hour,
        row.status,
        (
            _status(row.status),
            _hour(row.hour),
            ReportCell(row.topic, kind="topic"),
            ReportCell(_producer_name(row), row.host, "host", "; ".join((row.incarnation, *row.doubts)).strip("; ")),
            _count(row.accepted),
            _count(row.expected),
            ReportCell(NONE, -1) if counted_only else _count(row.distinct),
            ReportCell(NONE, -1)
            if counted_only
            else ReportCell(share(row.distinct, row.expected), _arrived_fraction(row), "" if whole else "strong"),
            _count(row.lost, "lost"),
            _count(row.late, "late"),
            _count(row.pending, "late"),
            _count(row.duplicated, "duplicated"),
            ReportCell(_latency(row), -1.0 if row.latency_p99_s is None else round(row.latency_p99_s, 3)),
        ),
    )


def _producer_name(row: HourRow) -> str:
    return row.host or (UNKNOWN_HOST if row.incarnation else "other producers")


def _arrived_fraction(row: HourRow) -> float:
    return row.distinct / row.expected if row.expected else 1.0


def _latency(row: HourRow) -> str:
    return NONE if row.latency_p50_s is None else f"{seconds(row.latency_p50_s)} / {seconds(row.latency_p99_s)}"


def _missing(data: ReportData, most: int) -> ReportTable:
    def row(item: MissingRange) -> ReportRow:
        status = CLASS_STATUS[item.missing_class]
        ids = _id(item, item.first, item.end)
        evidence = ReportCell(item.evidence or NONE, kind="wrap")
        cells = (_status(status, item.missing_class), *_location(item), ids, _count(item.count), evidence)
        return ReportRow(item.topic, item.hour, status, cells)

    order = sorted(data.missing, key=lambda item: (-CLASS_STATUS[item.missing_class].rank, *_by_id(item)))
    columns = (
        ReportColumn("Class"), ReportColumn("Topic"), ReportColumn("Hour (UTC)"), ReportColumn("Host"),
        ReportColumn("Record ids", hint="incarnation-origin-ordinal"), ReportColumn("Count", True), ReportColumn("Why"),
    )  # fmt: skip
    return ReportTable(
        "missing",
        "Missing, by name",
        "Every id that was given out and has not landed. Lost: land has read past it. Late: land has not come that far. "
        "Pending: still in the host's spool.",
        columns,
        empty="No id is missing.",
        count=sum(row.missing for row in data.rows),
        **_first_rows(order, most, "ranges, the lost ones first", row),
    )


def _duplicates(data: ReportData, most: int) -> ReportTable:
    def row(item: DuplicateId) -> ReportRow:
        places = ReportCell(_places(item.places), kind="wrap")
        ids = _id(item, item.ordinal, item.ordinal + 1)
        cells = (*_location(item), ids, _count(len(item.places)), places)
        return ReportRow(item.topic, item.hour, Status.DUPLICATED, cells)

    columns = (
        ReportColumn("Topic"), ReportColumn("Hour (UTC)"), ReportColumn("Host"), ReportColumn("Record id", hint="incarnation-origin-ordinal"),
        ReportColumn("Times", True), ReportColumn("Where in Kafka", hint="partition and offset; seal keeps the first"),
    )  # fmt: skip
    return ReportTable(
        "duplicates",
        "Landed more than once",
        "Ids that lie in Kafka more than once. Sealing keeps the first place and removes the others.",
        columns,
        empty="No id has landed twice.",
        count=sum(row.duplicated for row in data.rows),
        **_first_rows(sorted(data.duplicates, key=_by_id), most, "ids", row),
    )


def _places(places: Sequence[tuple[int, int]]) -> str:
    texts = [f"partition {partition} offset {number(offset)}" for partition, offset in places[:PLACES_MAX]]
    more = f" and {number(len(places) - PLACES_MAX)} more" if len(places) > PLACES_MAX else ""
    return ", ".join(texts) + more


def _holes(data: ReportData, most: int) -> ReportTable:
    def row(item: HoleRange) -> ReportRow:
        cells = (*_location(item), _id(item, item.first, item.end), _count(item.count), ReportCell(item.reason))
        return ReportRow(item.topic, item.hour, "", cells)

    columns = (
        ReportColumn("Topic"), ReportColumn("Hour (UTC)"), ReportColumn("Host"), ReportColumn("Record ids"), ReportColumn("Count", True), ReportColumn("Reason"),
    )  # fmt: skip
    return ReportTable(
        "holes",
        "Holes",
        "Ids that the daemon gave out and will never send: their records were dead-lettered or aborted, or lay in a damaged "
        "part of the spool. Nobody waits for them.",
        columns,
        empty="No id is a hole.",
        count=sum(row.holes for row in data.rows),
        **_first_rows(sorted(data.holes, key=_by_id), most, "holes", row),
    )


def _recovered_and_foreign(data: ReportData, most: int) -> ReportTable:
    def row(item: HourRow) -> ReportRow:
        host = _host(item.host, item.incarnation) if item.incarnation or item.host else ReportCell(NONE, "")
        topic = ReportCell(item.topic, kind="topic")
        cells = (topic, _hour(item.hour), host, _count(item.recovered), _count(item.foreign))
        return ReportRow(item.topic, item.hour, "", cells)

    odd = [row for row in data.rows if row.recovered or row.foreign]
    order = sorted(odd, key=lambda row: (row.topic, row.hour, row.incarnation))
    columns = (
        ReportColumn("Topic"),
        ReportColumn("Hour (UTC)"),
        ReportColumn("Host"),
        ReportColumn("Recovered", True),
        ReportColumn("Foreign", True),
    )
    return ReportTable(
        "odd",
        "Recovered and foreign",
        "Recovered: ids in a hole that landed after all. Foreign: rows without an id, from other producers. "
        "Both are counted and not judged.",
        columns,
        empty="No row is recovered or foreign.",
        count=sum(row.recovered + row.foreign for row in odd),
        **_first_rows(order, most, "rows", row),
    )


def _incarnations(data: ReportData, most: int) -> ReportTable:
    rank = {"silent": 0, "running": 1, "closed": 2}
    order = sorted(data.incarnations, key=lambda state: (rank.get(state.state, 0), state.host, state.incarnation))
    hours = Counter(row.incarnation for row in data.rows)

    def row(state: IncarnationState) -> ReportRow:
        return _incarnation_row(state, data.ran_at_ms, hours[state.incarnation])

    columns = (
        ReportColumn("State"), ReportColumn("Host"), ReportColumn("Incarnation"), ReportColumn("Last heartbeat", True),
        ReportColumn("Settled before"), ReportColumn("Hours here", True, "rows in the table of hours"),
    )  # fmt: skip
    return ReportTable(
        "hosts",
        "Hosts and their books",
        "What each host last said about itself. One that is silent makes its hours unknown until it speaks or is retired.",
        columns,
        empty="No host has written to the audit topic.",
        count=len(data.incarnations),
        **_first_rows(order, most, "incarnations, the silent ones first", row),
    )


def _incarnation_row(state: IncarnationState, now_ms: int, hours: int) -> ReportRow:
    status = Status.UNKNOWN if state.state not in ("running", "closed") else Status.COMPLETE
    ago = None if state.heartbeat_ms is None else (now_ms - state.heartbeat_ms) / 1000
    heard = NONE if ago is None else f"{seconds(max(0.0, ago))} ago"
    settled = NONE if state.settled_before_ms is None else moment(state.settled_before_ms)
    return ReportRow(
        "",
        "",
        "" if status is Status.COMPLETE else status,
        (
            _status(status, state.state),
            _host(state.host, ""),
            ReportCell(state.incarnation, kind="id"),
            ReportCell(heard, -1.0 if ago is None else ago),
            ReportCell(settled, state.settled_before_ms or 0, "time"),
            _count(hours),
        ),
    )


def hours_note(data: ReportData) -> str:
    """Describe which hours the audit looked at, and how many."""
    if not data.hours:
        return "No hour was open."
    first, last = hour_text(data.hours[0]), hour_text(data.hours[-1])
    between = first if len(data.hours) == 1 else f"{first} to {last}"
    sealed = f"; {count_text(data.hours_sealed, 'hour')} sealed already" if data.hours_sealed else ""
    return f"{count_text(len(data.hours), 'hour')}: {between} UTC{sealed}"
