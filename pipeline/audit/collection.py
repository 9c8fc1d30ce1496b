"""Collects the results of a run at the driver, as much as a report shows: worst first, with a count of the rest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ...wire import audit_records
from ..hours import MINUTES
from ..report.data import (
    DuplicateId,
    HoleRange,
    HourRow,
    IncarnationState,
    KafkaPosition,
    LeftOut,
    MinutePoint,
    MinuteSeries,
    MissingClass,
    MissingRange,
    Status,
)
from .result_rows import INTERVALS_MISSED, AuditFrames, StalenessThreshold
from .scope import Scope

ROWS_MAX: Final = 100_000
"""Maximum rows of `audit_report`, and incarnations, that the driver takes; the tables have all."""
POINTS_MAX: Final = 50_000
"""Maximum points over time that the driver takes, for topics and for hosts. Beyond that, a point covers several
minutes."""
STEPS: Final = (1, 5, 15, 60)
_COUNTS: Final = ("expected", "distinct", "pending", "late", "lost", "duplicated")


@dataclass(frozen=True, slots=True)
class CollectedReport:
    """The fields of `ReportData` with the same names."""

    exit_code: int
    rows: tuple[HourRow, ...]
    missing: tuple[MissingRange, ...]
    duplicates: tuple[DuplicateId, ...]
    holes: tuple[HoleRange, ...]
    step_minutes: int
    topics: tuple[MinuteSeries, ...]
    hosts: tuple[MinuteSeries, ...]
    incarnations: tuple[IncarnationState, ...]
    left_out: tuple[LeftOut, ...]


class AuditOutput(NamedTuple):
    """Frames that are also written to tables."""

    rows: DataFrame
    missing: DataFrame
    """Merged runs of ids."""
    found: AuditFrames


def collect_report(
    result: AuditOutput, scope: Scope, wanted: DataFrame, at: StalenessThreshold, named_max: int
) -> CollectedReport:
    """Collect everything that the report shows from the frames."""
    left: list[LeftOut] = []
    severity = _rank("status", [str(status) for status in Status])
    rows = _first(
        result.rows.orderBy(severity.desc(), "topic", "hour", "incarnation"), ROWS_MAX, "hours of topics", left
    )
    newest = result.found.totals.newest
    hosts_frame = (
        newest.where("incarnation is not null").groupBy("incarnation").agg(F.max_by("host", "version").alias("host"))
    )
    hosts = {row.incarnation: row.host for row in hosts_frame.limit(ROWS_MAX).collect()}
    classes = _rank("class", [str(each) for each in MissingClass])
    missing = result.missing.orderBy(classes.desc(), "topic", "hour", "incarnation", "origin", "first")
    doubled = result.found.duplicates.orderBy("topic", "hour", "incarnation", "origin", "ordinal")
    holes = result.found.totals.holes.join(F.broadcast(wanted), ["topic", "hour"], "left_semi")
    step = _step(scope, len(hosts))
    by_topic, by_host = _points(result.found, step, hosts_frame)
    return CollectedReport(
        exit_code=max((Status(row.status).exit_code for row in rows), default=0),
        rows=tuple(HourRow.of(row.asDict()) for row in rows),
        missing=tuple(_missing(row, hosts) for row in _first(missing, named_max, "ranges of missing ids", left)),
        duplicates=tuple(_duplicate(row, hosts) for row in _first(doubled, named_max, "ids that landed twice", left)),
        holes=tuple(
            _hole(row, hosts)
            for row in _first(
                holes.orderBy("topic", "hour", "incarnation", "origin", "first"), named_max, "holes", left
            )
        ),
        step_minutes=step,
        topics=tuple(MinuteSeries(name, tuple(found)) for name, found in by_topic.items()),
        hosts=tuple(MinuteSeries(name, tuple(found)) for name, found in by_host.items()),
        incarnations=_incarnations(result.found.totals.heartbeats, hosts, at),
        left_out=(*scope.left_out, *left),
    )


def _rank(column: str, order: list[str]) -> Column:
    return F.array_position(F.lit(order), F.col(column))


def _first(frame: DataFrame, most: int, what: str, left: list[LeftOut]) -> list[Any]:
    """Return the first rows. If there are more, add that to `left`."""
    found = frame.limit(most + 1).collect()
    if len(found) > most:
        left.append(LeftOut(what, most, frame.count()))
    return found[:most]


def _missing(row: Any, hosts: Mapping[str, str]) -> MissingRange:  # noqa: ANN401 - as above
    return MissingRange(
        *(row.topic, row.hour, row.incarnation, hosts.get(row.incarnation, "")),
        *(row.origin, row.first, row.end, MissingClass(row["class"]), row.evidence),
    )


def _duplicate(row: Any, hosts: Mapping[str, str]) -> DuplicateId:  # noqa: ANN401 - as above
    return DuplicateId(
        *(row.topic, row.hour, row.incarnation, hosts.get(row.incarnation, "")),
        *(row.origin, row.ordinal, tuple(KafkaPosition(*place) for place in row.places)),
    )


def _hole(row: Any, hosts: Mapping[str, str]) -> HoleRange:  # noqa: ANN401 - as above
    return HoleRange(
        *(row.topic, row.hour, row.incarnation, hosts.get(row.incarnation, "")),
        *(row.origin, row.first, row.end, row.reason),
    )


def _step(scope: Scope, hosts: int) -> int:
    """Minutes per point, so that neither topics nor hosts get too many points."""
    by_topic = sum(len(hours) for hours in scope.hours.values())
    hours = max(by_topic, hosts * len(scope.all_hours()))
    return next((step for step in STEPS if hours * (MINUTES // step) <= POINTS_MAX), STEPS[-1])


_Series = dict[str, list[MinutePoint]]


def _points(found: AuditFrames, step: int, hosts: DataFrame) -> tuple[_Series, _Series]:
    """Return the points of each topic and of each host, sorted by time."""
    at = (F.floor(F.col("minute") / step) * step).alias("at")
    span = F.col("end") - F.col("first")
    key = ("topic", "incarnation", at)
    judged = found.judged.groupBy(*key).agg(F.sum("expected").alias("expected"), F.sum("distinct").alias("distinct"))
    missing = found.missing.groupBy(*key).agg(
        *(F.sum(F.when(F.col("class") == str(each), span)).alias(str(each)) for each in MissingClass)
    )
    doubled = found.duplicates.groupBy(*key).agg(F.sum(F.col("copies") - 1).alias("duplicated"))
    united = judged.unionByName(missing, allowMissingColumns=True).unionByName(doubled, allowMissingColumns=True)
    named = united.join(F.broadcast(hosts), "incarnation", "left").withColumn("host", F.coalesce("host", F.lit("")))
    topic, host, minute = F.col("topic"), F.col("host"), F.col("at")
    summed = named.groupingSets([[topic, minute], [host, minute]], topic, host, minute).agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _COUNTS)
    )
    by_topic: _Series = {}
    by_host: _Series = {}
    for row in summed.orderBy("topic", "host", "at").collect():
        series = by_host if row.topic is None else by_topic
        name = row.host if row.topic is None else row.topic
        series.setdefault(name, []).append(MinutePoint(row["at"], *(row[count] for count in _COUNTS)))
    return by_topic, by_host


def _incarnations(
    heartbeats: DataFrame, hosts: Mapping[str, str], at: StalenessThreshold
) -> tuple[IncarnationState, ...]:
    found: list[IncarnationState] = []
    beats = {row.incarnation: row for row in heartbeats.limit(ROWS_MAX).collect()}
    for incarnation in sorted(hosts):
        beat = beats.get(incarnation)
        if beat is None:
            found.append(IncarnationState(incarnation, hosts[incarnation], "silent"))
            continue
        patience = max(at.heartbeat_stale_ms, beat.interval_s * INTERVALS_MISSED * 1_000)
        silent = beat.state != audit_records.CLOSED and at.now_ms - beat.sent_at > patience
        state = "silent" if silent else beat.state
        found.append(IncarnationState(incarnation, hosts[incarnation], state, beat.sent_at, beat.settled_before))
    return tuple(found)
