"""The verdict as text: completeness, missing records, and next steps."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from .data import COUNTS, DuplicateId, HourRow, MissingClass, MissingRange, ReportData, Status
from .wording import UNKNOWN_HOST, count_text, distinct, hour_text, join_names, number, record_ids, share

NAMED_MAX: Final = 5
"""Ids or hours listed in a finding; the tables list the others."""


@dataclass(frozen=True, slots=True)
class ReportTotals:
    """Sums over all rows."""

    accepted: int = 0
    holes: int = 0
    expected: int = 0
    landed: int = 0
    distinct: int = 0
    pending: int = 0
    late: int = 0
    lost: int = 0
    duplicated: int = 0
    recovered: int = 0
    foreign: int = 0
    counted: int = 0
    """Accepted without ids. No other figure includes them except `foreign`, because they land as foreign rows."""


def report_totals(rows: Iterable[HourRow]) -> ReportTotals:
    sums = dict.fromkeys(ReportTotals.__slots__, 0)
    for row in rows:
        if row.status is Status.COUNTED:
            sums["counted"] += row.accepted
            sums["foreign"] += row.foreign
            continue
        for name in COUNTS:
            sums[name] += getattr(row, name)
    return ReportTotals(**sums)


class NamedItem(NamedTuple):
    """An id or an hour, with its location."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """One finding of the audit, with the steps to take."""

    status: Status
    title: str
    sentences: tuple[str, ...]
    names: tuple[NamedItem, ...] = ()
    """The first ids or hours, by name."""
    more: int = 0
    """Number of names that only the tables list."""
    steps: tuple[str, ...] = ()
    """The steps to take, in order. Commands are in backticks."""
    anchor: str = ""
    """Id of the table with the full list."""


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The top of the page."""

    status: Status
    headline: str
    summary: str
    findings: tuple[ReportFinding, ...]


def judge(data: ReportData) -> AuditVerdict:
    sums = report_totals(data.rows)
    findings = [
        finding
        for finding in (
            _lost(data, sums),
            _duplicated(data, sums),
            _unknown(data),
            _late(data, sums),
            _complete(data),
            _counted(sums, data),
            _nothing(data),
        )
        if finding is not None
    ]
    return AuditVerdict(data.status, _headline(data, sums), _summary(data, sums), tuple(findings))


def _headline(data: ReportData, sums: ReportTotals) -> str:
    parts: list[str] = []
    if sums.lost:
        parts.append(f"{count_text(sums.lost, 'record')} {'is' if sums.lost == 1 else 'are'} lost")
    if sums.duplicated:
        extra = "record has" if sums.duplicated == 1 else "records have"
        parts.append(
            f"{number(sums.duplicated)} {extra} landed twice"
            if not parts
            else f"{number(sums.duplicated)} landed twice"
        )
    if parts:
        return " and ".join(parts)
    unknown = sum(1 for row in data.rows if row.status is Status.UNKNOWN)
    if unknown:
        return "Completeness cannot be proven yet"
    waiting = sums.pending + sums.late
    if waiting:
        return f"{count_text(waiting, 'record')} {'is' if waiting == 1 else 'are'} still on the way"
    if any(row.status is Status.LATE for row in data.rows):
        return "Nothing is missing; the hour is not over yet"
    if not sums.expected and sums.counted:
        return "Counted only: these records carry no ids"
    if not sums.expected:
        return "Nothing came in, nothing is missing"
    return "Complete: every record arrived, each one once"


def _summary(data: ReportData, sums: ReportTotals) -> str:
    topics = distinct(row.topic for row in data.rows)
    hosts = distinct(row.host or row.incarnation for row in data.rows)
    hours = distinct(row.hour for row in data.rows)
    if not data.rows:
        asked = count_text(len(data.hours), "hour")
        return f"No record of any topic was accepted or has landed ({asked} looked at)."
    places = f"{count_text(len(topics), 'topic')}, {count_text(len(hosts), 'host')}, {count_text(len(hours), 'hour')}"
    if not sums.expected:
        return f"No record was expected ({places})."
    unknown = len(_hours(data.rows, Status.UNKNOWN))
    more = f" {count_text(unknown, 'topic hour')} cannot be judged." if unknown else ""
    if sums.distinct >= sums.expected:
        return f"All {number(sums.expected)} expected records are in the tables ({places}).{more}"
    return (
        f"{number(sums.distinct)} of {number(sums.expected)} expected records are in the tables: "
        f"{share(sums.distinct, sums.expected)} ({places}).{more}"
    )


def _hours(rows: Iterable[HourRow], status: Status | None = None) -> set[tuple[str, str]]:
    """Hours of topics with at least one row of this status; None: of any status."""
    return {(row.topic, row.hour) for row in rows if status is None or row.status is status}


def _lost(data: ReportData, sums: ReportTotals) -> ReportFinding | None:
    if not any(row.status is Status.LOST or row.lost for row in data.rows):
        return None
    ranges = [item for item in data.missing if item.missing_class is MissingClass.LOST]
    topics = distinct(row.topic for row in data.rows if row.lost)
    return ReportFinding(
        Status.LOST,
        f"{count_text(sums.lost, 'record')} lost in {join_names(topics)}",
        (
            "They were settled at the daemon, `land` has read past their place, and no table has them, not even the quarantine.",
        ),
        tuple(
            NamedItem(_where(item), record_ids(item.incarnation, item.origin, item.first, item.end))
            for item in ranges[:NAMED_MAX]
        ),
        max(0, len(ranges) - NAMED_MAX),
        (
            "Look who deleted rows: the history of the bronze table names every commit beside those of `land` and `seal`.",
            "Look whether Kafka dropped them before they were read: retention too short, an unclean leader election, DeleteRecords.",
            "Send them again from where they came, or accept the gap: after the grace time `penstock-pipeline seal` says so in `seals`.",
        ),
        "missing",
    )


def _where(item: MissingRange | DuplicateId | HourRow) -> str:
    return f"{item.topic}, {hour_text(item.hour)}"


def _duplicated(data: ReportData, sums: ReportTotals) -> ReportFinding | None:
    if not any(row.status is Status.DUPLICATED or row.duplicated for row in data.rows):
        return None
    topics = distinct(row.topic for row in data.rows if row.duplicated)
    names = tuple(
        NamedItem(_where(item), record_ids(item.incarnation, item.origin, item.ordinal, item.ordinal + 1))
        for item in data.duplicates[:NAMED_MAX]
    )
    return ReportFinding(
        Status.DUPLICATED,
        f"{count_text(sums.duplicated, 'extra row')} in {join_names(topics)}",
        ("The same record ids lie in Kafka more than once: written again, header and all.",),
        names,
        max(0, len(data.duplicates) - NAMED_MAX),
        (
            "Run `penstock-pipeline seal`: of each id it keeps the row with the lowest partition and offset and removes the others.",
            "Look where they came from: a spool restored from a copy, or another program that copies records with their headers.",
        ),
        "duplicates",
    )


def _unknown(data: ReportData) -> ReportFinding | None:
    rows = [row for row in data.rows if row.status is Status.UNKNOWN]
    if not rows:
        return None
    names = tuple(
        NamedItem(
            f"{_where(row)}, {row.host or row.incarnation or UNKNOWN_HOST}",
            "; ".join(row.doubts) or "no reason given",
        )
        for row in rows[:NAMED_MAX]
    )
    silent = [state for state in data.incarnations if state.state == "silent"]
    retire = tuple(
        f"Gone for good? `penstock-pipeline retire {state.incarnation}` says that {state.host or 'this host'} will send nothing more."
        for state in silent[:NAMED_MAX]
    )
    return ReportFinding(
        Status.UNKNOWN,
        f"{count_text(len(_hours(rows)), 'topic hour')} cannot be judged",
        ("What the daemons say about these hours is not whole, so nobody can say that they are complete.",),
        names,
        max(0, len(rows) - NAMED_MAX),
        (
            "Look whether the daemon runs on the host (`penstock status`) and reaches Kafka: its books wait with it.",
            *retire,
            f"Look whether records were removed from {data.audit_topic}: its retention must be longer than hours stay unsealed.",
        ),
        "hours",
    )


def _late(data: ReportData, sums: ReportTotals) -> ReportFinding | None:
    rows = [row for row in data.rows if row.status is Status.LATE or row.pending or row.late]
    if not rows:
        return None
    steps: list[str] = []
    told: list[str] = []
    if sums.pending:
        hosts = distinct(row.host or row.incarnation for row in rows if row.pending)
        told.append(f"{count_text(sums.pending, 'record')} still in a spool on {join_names(hosts)}.")
        steps.append(
            "Pending: look whether these hosts reach Kafka (`penstock status` there). They send as soon as they can."
        )
    if sums.late:
        topics = distinct(row.topic for row in rows if row.late)
        told.append(
            f"{count_text(sums.late, 'record')} in Kafka that `land` has not read yet, in {join_names(topics)}."
        )
        steps.append("Late: look whether `penstock-pipeline land` runs, and how far it is behind.")
    if not sums.pending and not sums.late:
        told.append("These hours are not closed yet: more may come in.")
    steps.append("Then run `penstock-pipeline audit` again. Nothing is lost so far.")
    waiting = sums.pending + sums.late
    title = (
        f"{count_text(waiting, 'record')} on the way"
        if waiting
        else f"{count_text(len(_hours(rows)), 'topic hour')} still open"
    )
    return ReportFinding(Status.LATE, title, tuple(told), steps=tuple(steps), anchor="missing" if waiting else "hours")


def _complete(data: ReportData) -> ReportFinding | None:
    rows = [row for row in data.rows if row.status is Status.COMPLETE]
    if not rows:
        return None
    every = _hours(row for row in data.rows if row.status is not Status.COUNTED)
    whole = every - _hours(row for row in data.rows if row.status not in {Status.COMPLETE, Status.COUNTED})
    if not whole:
        return None
    records = sum(row.expected for row in rows if (row.topic, row.hour) in whole)
    told = f"{count_text(records, 'record')} accepted, settled and in the tables, each once."
    steps = ("`penstock-pipeline seal` can seal them.",) if records else ()
    left = "" if len(whole) == len(every) else f" of {number(len(every))}"
    title = f"{number(len(whole))}{left} {'topic hour' if len(every) == 1 else 'topic hours'} complete"
    return ReportFinding(Status.COMPLETE, title, (told,), steps=steps, anchor="hours")


def _counted(sums: ReportTotals, data: ReportData) -> ReportFinding | None:
    if not sums.counted:
        return None
    topics = distinct(row.topic for row in data.rows if row.status is Status.COUNTED and row.accepted)
    return ReportFinding(
        Status.COUNTED,
        f"{count_text(sums.counted, 'record')} only counted in {join_names(topics)}",
        ("They carry no record ids, so that they cannot be told from each other, nor from those of other producers.",),
        steps=(
            "Set `audit = true` for the topic in the daemon's settings, and what comes from then on can be proved.",
        ),
        anchor="hours",
    )


def _nothing(data: ReportData) -> ReportFinding | None:
    """An audit that found no rows proves nothing: it may have looked in the wrong place."""
    if data.rows:
        return None
    return ReportFinding(
        Status.COMPLETE,
        "Is that what you expected?",
        ("There is neither anything to prove nor anything to miss in these hours.",),
        steps=(
            f"Otherwise look whether the daemons write to {data.audit_topic}: `penstock audit create-topic` makes it.",
            "Look whether the hours asked for and the place of the tables are the right ones.",
        ),
    )
