"""`audit`: compares what daemons say they took with what is in the tables, and names what is missing or there twice.

How the parts prove it together: docs/design/pipeline.md. A run keeps nothing for the next one: it reads the audit topic and the
unsealed hours anew.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, NamedTuple, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.storagelevel import StorageLevel

from ..config.pipeline import PipelineSettings
from ..runtime import logs
from . import audit_doubts, audit_judge, audit_landed, audit_metrics, audit_missing, audit_names, audit_report, report
from . import audit_schemas as schemas
from .audit_columns import ID, by_bucket
from .audit_data import Gathered, Result, gather
from .audit_fold import Books, fold
from .audit_landed import Landed
from .audit_report import Findings
from .audit_scope import Scope, booked_hours, scope, sealed_hours
from .audit_source import KafkaSource, Source
from .core.hours import HOUR_MS, HourRange, hour_of_ms, start_ms
from .core.report_data import MissingClass, ReportData
from .tables import Tables

ODD_HOURS: Final = 48
"""So many hours before and after those asked for are looked through for ids that would be lost otherwise."""

_Classify = Callable[[DataFrame], DataFrame]
"""From judged buckets to missing ids with their classes."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """One run."""

    run_id: str
    exit_code: int
    data: ReportData
    """What the report shows; its lists of names may be cut, the tables have all."""
    report: Path


def run(
    spark: SparkSession,
    settings: PipelineSettings,
    tables: Tables,
    *,
    hours: HourRange | None = None,
    now_ms: int,
    source: Source | None = None,
) -> AuditResult:
    """Audit all topics of the settings, the hours asked for or else all that are not sealed; write tables, report and metrics.

    Raises:
        AuditVersionError: the audit topic is of a newer version.
        TableError: a table cannot be read or written.
        OSError: the report or the file of metrics cannot be written.
    """
    with _Run(spark, settings, tables, source or KafkaSource(spark, settings, tables), now_ms) as audit:
        data = audit.judge(hours)
    report.write(settings.audit.report, report.render(data))
    if settings.audit.metrics_file is not None:
        report.write(settings.audit.metrics_file, audit_metrics.text(data))
    return AuditResult(data.run_id, data.exit_code, data, settings.audit.report)


class _Compared(NamedTuple):
    """Books against landed ids."""

    rows: DataFrame
    buckets: DataFrame
    """Counted."""
    judged: DataFrame
    """`audit_judge.JUDGED`."""
    missing: DataFrame
    """With classes."""


class _Run:
    """What one run keeps at hand: frames that several steps read, until it ends."""

    def __init__(
        self, spark: SparkSession, settings: PipelineSettings, tables: Tables, source: Source, now_ms: int
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._tables = tables
        self._source = source
        self._now_ms = now_ms
        self._kept = contextlib.ExitStack()
        self._began = time.monotonic()
        self._run_id = f"{hour_of_ms(now_ms)}-{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def _keep(self, frame: DataFrame) -> DataFrame:
        """Computed once."""
        kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
        _ = self._kept.callback(kept.unpersist)
        return kept

    def judge(self, asked: HourRange | None) -> ReportData:
        """All steps, in the order that the proof needs (see `audit_source`)."""
        audit, topics = self._settings.audit, list(self._settings.topics)
        read_to, log_starts = self._source.landed_to(), self._source.log_starts()
        landed = Landed(self._tables, topics)
        books, unread = fold(self._source.records())
        _ = self._kept.callback(books.close)
        if unread:
            _ = logs.get().warning("audit_records_unreadable", topic=audit.topic, records=unread)
        booked = booked_hours(books, topics)
        there = {topic: landed.hours[topic] | booked.get(topic, set()) for topic in topics}
        hours = scope(there, sealed_hours(self._tables), asked, audit.hours_max)
        wanted = self._keep(hours.frame(self._spark))
        ranges = self._keep(_wanted(books.ranges.where(F.col("topic").isin(*topics)), wanted))
        rows = landed.rows(hours.hours)

        def classified(judged: DataFrame) -> DataFrame:
            missing = judged.where(F.col("kind") == audit_judge.MISSING)
            where = audit_missing.places(self._spark, read_to, log_starts, self._source.log_ends())
            clock = audit_missing.Clock(self._now_ms, int(audit.late_after * 1_000))
            return audit_missing.classified(missing, books.heartbeats, where, clock)

        holes = books.holes.where(F.col("topic").isin(*topics))
        compared = self._compare(rows, audit_judge.pieces(ranges, holes), classified)
        compared = self._look_around(compared, landed, hours, audit_judge.pieces(ranges, holes), classified)
        found = self._find(rows, compared, books, ranges)
        at = audit_report.Moment(self._now_ms, int(audit.heartbeat_stale * 1_000))
        result = Result(
            self._keep(audit_report.rows(found, wanted, at)), self._keep(audit_missing.runs(found.missing)), found
        )
        shown = gather(result, hours, wanted, at, audit.named_max)
        self._write(result, shown)
        return self._data(hours, shown)

    def _compare(self, rows: DataFrame, cut: DataFrame, classified: _Classify) -> _Compared:
        """Judge all buckets."""
        return self._judged(rows, self._keep(audit_landed.buckets(rows)), cut, classified)

    def _judged(self, rows: DataFrame, buckets: DataFrame, cut: DataFrame, classified: _Classify) -> _Compared:
        judged = self._keep(audit_judge.judged(cut, audit_landed.counted(buckets)))
        return _Compared(rows, buckets, judged, self._keep(classified(judged)))

    def _look_around(
        self, compared: _Compared, landed: Landed, hours: Scope, cut: DataFrame, classified: _Classify
    ) -> _Compared:
        """Before ids are called lost: do rows with them lie in hours that were not asked for?"""
        around = {topic: _near(landed.hours[topic], wanted) for topic, wanted in hours.hours.items()}
        lost = compared.missing.where(F.col("class") == str(MissingClass.LOST))
        if not any(around.values()) or lost.isEmpty():
            return compared
        keys = by_bucket(lost).select(*ID, "bucket").distinct()
        elsewhere = audit_landed.rows_in(landed.rows(around), keys)
        more = self._keep(audit_landed.buckets(elsewhere))
        if more.isEmpty():
            return compared
        both = self._keep(audit_landed.merged(compared.buckets, more))
        return self._judged(compared.rows.unionByName(elsewhere.drop("bucket")), both, cut, classified)

    def _find(self, rows: DataFrame, compared: _Compared, books: Books, ranges: DataFrame) -> Findings:
        """Name what is doubled, and what no book knows."""
        doubled = audit_landed.counted(compared.buckets).where(F.col("rows") > F.col("ids")).select(*ID, "bucket")
        stray = compared.judged.where(F.col("kind") == audit_judge.STRAY)
        census = self._keep(audit_landed.census(rows))
        if doubled.isEmpty():
            duplicates = self._spark.createDataFrame([], audit_names.DUPLICATES)
        else:
            duplicates = self._keep(audit_names.duplicates(compared.rows, doubled, ranges))
        if stray.isEmpty():
            strays = self._spark.createDataFrame([], audit_names.STRAYS)
        else:
            # Of the hours asked for only: what lies in others is not this run's business.
            strays = self._keep(audit_names.strays(rows, stray, books.heartbeats))
        return Findings(
            books=books,
            judged=compared.judged.where(F.col("kind") == audit_judge.COUNTED),
            missing=compared.missing,
            duplicates=duplicates,
            strays=strays,
            doubts=audit_doubts.doubts(books),
            census=census,
            latencies=audit_landed.latencies(census),
        )

    def _write(self, result: Result, shown: Gathered) -> None:
        """All tables; those of a run one after the other, the report last: who sees its rows finds the others."""
        books = result.found.books
        run = F.lit(self._run_id).alias("run")
        missing = result.missing.withColumn("run", run)
        duplicates = result.found.duplicates.withColumn("run", run)
        rows = result.rows.withColumns({"run": run, "run_at": F.timestamp_millis(F.lit(self._now_ms))})
        for name, schema, frame in (
            (schemas.COUNTS_TABLE, schemas.COUNTS, books.counts()),
            (schemas.RANGES_TABLE, schemas.RANGES, books.ranges),
            (schemas.HOLES_TABLE, schemas.HOLES, books.holes),
            (schemas.HEARTBEATS_TABLE, schemas.HEARTBEATS, books.heartbeats),
        ):
            self._tables.table(name, schema).overwrite(frame.select(*schema.names))
        for name, schema, frame, any_of_it in (
            (schemas.MISSING_TABLE, schemas.MISSING, missing, shown.missing),
            (schemas.DUPLICATES_TABLE, schemas.DUPLICATES, duplicates, shown.duplicates),
            (schemas.REPORT_TABLE, schemas.REPORT, rows, shown.rows),
        ):
            if any_of_it:
                _ = self._tables.table(name, schema).append(frame.select(*schema.names))

    def _data(self, hours: Scope, shown: Gathered) -> ReportData:
        return ReportData(
            run_id=self._run_id,
            ran_at_ms=self._now_ms,
            took_s=time.monotonic() - self._began,
            hours=tuple(hours.all_hours()),
            hours_sealed=hours.sealed,
            tables=self._settings.tables,
            audit_topic=self._settings.audit.topic,
            **{each.name: getattr(shown, each.name) for each in fields(shown)},
        )


def _wanted(ranges: DataFrame, wanted: DataFrame) -> DataFrame:
    """With `wanted`: those of the hours asked for, whose records have ids."""
    marked = F.broadcast(wanted.withColumn("asked", F.lit(True)))
    asked = F.coalesce("asked", F.lit(False)) & F.col("ids")
    return ranges.join(marked, ["topic", "hour"], "left").withColumn("wanted", asked).drop("asked")


def _near(there: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Hours with rows that were not asked for and are near those that were."""
    if not wanted:
        return []
    low = start_ms(wanted[0]) - ODD_HOURS * HOUR_MS
    high = start_ms(wanted[-1]) + ODD_HOURS * HOUR_MS
    return [hour for hour in set(there) - set(wanted) if low <= start_ms(hour) <= high]
