"""`audit`: compares what the daemons accepted with what is in the tables, and lists the ids that are missing or
duplicated.

docs/design/pipeline.md explains how the parts prove it together. A run keeps no state for the next one: each run reads
the audit topic and the unsealed hours again.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, NamedTuple, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ...config.pipeline import PipelineSettings
from ...runtime import logs
from ..hours import HOUR_MS, HourRange, hour_of_ms, start_ms
from ..report import page as report
from ..report.data import MissingClass, ReportData
from ..tables import Table, Tables
from . import comparison, contradictions, metrics, result_rows, schemas
from . import duplicates as audit_names
from . import landed as audit_landed
from . import missing as audit_missing
from .collection import AuditOutput, CollectedReport, collect_report
from .columns import ID, by_bucket
from .frames import DRIVER_ROWS_MAX, UNCOMPILED_ROWS_MAX, FrameCache
from .landed import LandedTables
from .result_rows import AuditFrames
from .scope import Scope, audit_topic_hours, scope, sealed_hours
from .source import AuditSource, KafkaAuditSource
from .totals import AuditTotals, fold

NEARBY_HOURS: Final = 48
"""Hours to search before and after the audited ones, for ids that would otherwise count as lost."""

FOLD_RATIO_MAX: Final = 64
"""Maximum expected ratio of records or rows to aggregated rows. Up to `few` times this many, the driver tries to take
the aggregate."""

_Classify = Callable[[DataFrame], DataFrame]
"""Turns compared buckets into missing ids with their classes."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    run_id: str
    exit_code: int
    data: ReportData
    """Contents of the report. Its lists of names may be cut; the tables have all of them."""
    report: Path


def run(
    spark: SparkSession,
    settings: PipelineSettings,
    tables: Tables,
    *,
    hours: HourRange | None = None,
    now_ms: int,
    source: AuditSource | None = None,
    few: int = DRIVER_ROWS_MAX,
) -> AuditResult:
    """Audit all topics of the settings, and write tables, report and metrics. `hours` None: all hours that are not
    sealed. The driver processes frames of up to `few` rows itself.

    Raises:
        AuditVersionError: the audit topic is of a newer version.
        TableError: a table cannot be read or written.
        OSError: the report or the file of metrics cannot be written.
    """
    with _AuditRun(spark, settings, tables, source or KafkaAuditSource(spark, settings), now_ms, few) as audit:
        data = audit.judge(hours)
    report.write(settings.audit.report, report.render(data))
    if settings.audit.metrics_file is not None:
        report.write(settings.audit.metrics_file, metrics.text(data))
    return AuditResult(data.run_id, data.exit_code, data, settings.audit.report)


class _Comparison(NamedTuple):
    """Audit ranges compared with landed ids."""

    rows: DataFrame
    words: DataFrame
    """From `audit_landed.merge_words`."""
    judged: DataFrame
    """Columns `comparison.JUDGED`."""
    missing: DataFrame
    """Missing ids with their classes."""


class _AuditRun:
    """State of one run, with the frames that several steps read; they are released when the run ends."""

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        tables: Tables,
        source: AuditSource,
        now_ms: int,
        few: int,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._tables = tables
        self._source = source
        self._now_ms = now_ms
        self._frames = FrameCache(spark, few)
        self._folded_max = FOLD_RATIO_MAX * few
        self._on_driver = False
        """Whether the driver holds the whole folded audit topic. If so, it also takes all frames derived from it."""
        self._began = time.monotonic()
        self._run_id = f"{hour_of_ms(now_ms)}-{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> Self:
        _ = self._frames.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.__exit__()

    def _keep(self, frame: DataFrame) -> DataFrame:
        """Cache a frame, so that it is computed once."""
        return self._frames.keep(frame, small=self._on_driver)

    def judge(self, asked: HourRange | None) -> ReportData:
        """Run all steps, in the order that the proof needs (see the module `source`)."""
        audit, topics = self._settings.audit, list(self._settings.topics)
        read_to, log_starts = self._source.landed_offsets(), self._source.log_starts()
        landed = LandedTables(self._tables, topics)
        books = self._fold()
        with self._frames.uncompiled_plans(little=self._frames.are_on_driver(books.newest)):
            books = books.cached(self._keep if self._on_driver else _uncached)
            booked = audit_topic_hours(books, topics)
            there = {topic: landed.hours[topic] | booked.get(topic, set()) for topic in topics}
            hours = scope(there, sealed_hours(self._tables), asked, audit.hours_max)
        rows = landed.rows(hours.hours)
        words = self._words(rows, landed.rows_max(hours.hours))
        self._on_driver = self._frames.are_on_driver(books.newest, words)
        with self._frames.uncompiled_plans(little=self._on_driver):
            wanted = self._keep(hours.frame(self._spark))
            ranges = self._keep(_wanted(books.ranges.where(F.col("topic").isin(*topics)), wanted))
            holes = books.holes.where(F.col("topic").isin(*topics))

            def classified(judged: DataFrame) -> DataFrame:
                missing = self._keep(judged.where(F.col("kind") == comparison.MISSING))
                if self._frames.is_empty(missing):
                    return self._frames.empty_frame(audit_missing.CLASSIFIED)
                where = audit_missing.partition_offsets(self._spark, read_to, log_starts, self._source.log_ends())
                clock = audit_missing.LatenessThreshold(self._now_ms, int(audit.late_after * 1_000))
                return audit_missing.classify(missing, books.heartbeats, where, clock)

            cut = comparison.pieces(ranges, holes)
            compared = self._compare(rows, self._keep(audit_landed.merge_words(words)), cut, classified)
            compared = self._search_nearby_hours(compared, landed, hours, cut, classified)
            found = self._audit_frames(rows, words, compared, books, ranges)
            at = result_rows.StalenessThreshold(self._now_ms, int(audit.heartbeat_stale * 1_000))
            result = AuditOutput(self._keep(result_rows.rows(found, wanted, at)), self._runs(found.missing), found)
            shown = collect_report(result, hours, wanted, at, audit.named_max)
            self._write(result, shown)
        return self._data(hours, shown)

    def _fold(self) -> AuditTotals:
        most = self._source.records_max()
        self._on_driver = most is not None and most <= self._folded_max
        with self._frames.uncompiled_plans(little=most is not None and most <= UNCOMPILED_ROWS_MAX):
            books, unread = fold(self._source.records(), self._keep)
        self._on_driver = self._frames.are_on_driver(books.newest)
        if unread:
            _ = logs.get().warning("audit_records_invalid", topic=self._settings.audit.topic, records=unread)
        return books

    def _words(self, rows: DataFrame, most: int) -> DataFrame:
        """Read the ids of the landed rows once."""
        with self._frames.uncompiled_plans(little=most <= UNCOMPILED_ROWS_MAX):
            return self._frames.keep(audit_landed.id_words(rows), small=most <= self._folded_max)

    def _compare(self, rows: DataFrame, words: DataFrame, cut: DataFrame, classified: _Classify) -> _Comparison:
        asked = comparison.buckets_to_compare(cut, audit_landed.buckets(words))
        few = self._frames.collect_if_few(asked) if self._on_driver else None
        if few is None:
            judged = self._keep(asked.mapInArrow(comparison.compare_batches, comparison.JUDGED))
        else:
            found = pa.Table.from_batches(comparison.compare_batches(few.to_batches()), comparison.ARROW)
            judged = self._frames.local(found, comparison.JUDGED)
        return _Comparison(rows, words, judged, self._keep(classified(judged)))

    def _search_nearby_hours(
        self, compared: _Comparison, landed: LandedTables, hours: Scope, cut: DataFrame, classified: _Classify
    ) -> _Comparison:
        """Before ids count as lost, search nearby hours outside the audited ones for rows with them."""
        around = {topic: _nearby_hours(landed.hours[topic], wanted) for topic, wanted in hours.hours.items()}
        lost = compared.missing.where(F.col("class") == str(MissingClass.LOST))
        if not any(around.values()) or self._frames.is_empty(compared.missing) or lost.isEmpty():
            return compared
        keys = by_bucket(lost).select(*ID, "bucket").distinct()
        elsewhere = audit_landed.rows_in(landed.rows(around), keys).drop("bucket")
        more = self._keep(audit_landed.merge_words(audit_landed.id_words(elsewhere)))
        if self._frames.is_empty(more):
            return compared
        both = self._keep(audit_landed.merge_words(compared.words.unionByName(more)))
        return self._compare(compared.rows.unionByName(elsewhere), both, cut, classified)

    def _runs(self, missing: DataFrame) -> DataFrame:
        found = audit_missing.merge_runs(missing)
        return self._frames.empty_frame(found.schema) if self._frames.is_empty(missing) else self._keep(found)

    def _audit_frames(
        self, rows: DataFrame, words: DataFrame, compared: _Comparison, books: AuditTotals, ranges: DataFrame
    ) -> AuditFrames:
        """Find the duplicated ids, and the landed ids in no range."""
        doubled = self._keep(audit_landed.words_with_duplicates(compared.words))
        stray = self._keep(compared.judged.where(F.col("kind") == comparison.STRAY))
        census = self._keep(audit_landed.latency_counts(words))
        if self._frames.is_empty(doubled):
            duplicates = self._frames.empty_frame(audit_names.DUPLICATES)
        else:
            duplicates = self._keep(audit_names.duplicates(compared.rows, doubled, ranges))
        if self._frames.is_empty(stray):
            strays = self._frames.empty_frame(audit_names.STRAYS)
        else:
            # Only in the audited hours; other hours do not concern this run.
            strays = self._keep(audit_names.strays(rows, stray, books.heartbeats))
        return AuditFrames(
            totals=books,
            judged=self._keep(compared.judged.where(F.col("kind") == comparison.COUNTED)),
            missing=compared.missing,
            duplicates=duplicates,
            strays=strays,
            doubts=contradictions.doubts(books),
            latency_counts=census,
            latencies=audit_landed.latencies(census),
        )

    def _write(self, result: AuditOutput, shown: CollectedReport) -> None:
        """Write all tables. The tables of a run are written in order, the report last: a reader who sees the report's
        rows finds the others."""
        books = result.found.totals
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
            self._put(self._tables.table(name, schema), frame, whole=True)
        for name, schema, frame, any_of_it in (
            (schemas.MISSING_TABLE, schemas.MISSING, missing, shown.missing),
            (schemas.DUPLICATES_TABLE, schemas.DUPLICATES, duplicates, shown.duplicates),
            (schemas.REPORT_TABLE, schemas.REPORT, rows, shown.rows),
        ):
            if any_of_it:
                self._put(self._tables.table(name, schema), frame, whole=False)

    def _put(self, table: Table, frame: DataFrame, *, whole: bool) -> None:
        """Append the rows to a table, or replace all its rows if `whole`. The driver writes few rows itself, without
        tasks."""
        chosen = frame.select(*table.schema.names)
        few = self._frames.collect_if_few(chosen) if self._on_driver else None
        if few is not None:
            table.put(few, whole=whole)
        elif whole:
            table.overwrite(chosen)
        else:
            _ = table.append(chosen)

    def _data(self, hours: Scope, shown: CollectedReport) -> ReportData:
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
    """Add the column `wanted`: whether the range is in the audited hours and its records have ids."""
    marked = F.broadcast(wanted.withColumn("asked", F.lit(True)))
    asked = F.coalesce("asked", F.lit(False)) & F.col("ids")
    return ranges.join(marked, ["topic", "hour"], "left").withColumn("wanted", asked).drop("asked")


def _uncached(frame: DataFrame) -> DataFrame:
    """Return the frame uncached, because the frame it is made from is cached."""
    return frame


def _nearby_hours(there: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Nearby hours with rows, outside the audited hours."""
    if not wanted:
        return []
    low = start_ms(wanted[0]) - NEARBY_HOURS * HOUR_MS
    high = start_ms(wanted[-1]) + NEARBY_HOURS * HOUR_MS
    return [hour for hour in set(there) - set(wanted) if low <= start_ms(hour) <= high]
