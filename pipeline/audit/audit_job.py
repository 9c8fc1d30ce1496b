"""`audit`: compares what daemons say they took with what is in the tables, and names what is missing or there twice.

How the parts prove it together: docs/design/pipeline.md. A run keeps nothing for the next one: it reads the audit topic and the
unsealed hours anew.
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
from .collection import Gathered, Result, gather
from .columns import ID, by_bucket
from .frames import FEW, LITTLE, Frames
from .landed import Landed
from .result_rows import Findings
from .scope import Scope, booked_hours, scope, sealed_hours
from .source import KafkaSource, Source
from .totals import Books, fold

ODD_HOURS: Final = 48
"""So many hours before and after those asked for are looked through for ids that would be lost otherwise."""

FOLDED: Final = 64
"""So many records or rows may come to one: of so many times the few the driver tries to take what is left."""

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
    few: int = FEW,
) -> AuditResult:
    """Audit all topics of the settings, the hours asked for or else all that are not sealed; write tables, report and metrics.

    Frames of up to `few` rows are worked on at the driver.

    Raises:
        AuditVersionError: the audit topic is of a newer version.
        TableError: a table cannot be read or written.
        OSError: the report or the file of metrics cannot be written.
    """
    with _Run(spark, settings, tables, source or KafkaSource(spark, settings), now_ms, few) as audit:
        data = audit.judge(hours)
    report.write(settings.audit.report, report.render(data))
    if settings.audit.metrics_file is not None:
        report.write(settings.audit.metrics_file, metrics.text(data))
    return AuditResult(data.run_id, data.exit_code, data, settings.audit.report)


class _Compared(NamedTuple):
    """Books against landed ids."""

    rows: DataFrame
    words: DataFrame
    """`audit_landed.merged`."""
    judged: DataFrame
    """`audit_judge.JUDGED`."""
    missing: DataFrame
    """With classes."""


class _Run:
    """What one run keeps at hand: frames that several steps read, until it ends."""

    def __init__(
        self, spark: SparkSession, settings: PipelineSettings, tables: Tables, source: Source, now_ms: int, few: int
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._tables = tables
        self._source = source
        self._now_ms = now_ms
        self._frames = Frames(spark, few)
        self._folded_max = FOLDED * few
        self._few = False
        """Whether the driver has all that was folded: then it takes what follows from it, too."""
        self._began = time.monotonic()
        self._run_id = f"{hour_of_ms(now_ms)}-{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> Self:
        _ = self._frames.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.__exit__()

    def _keep(self, frame: DataFrame) -> DataFrame:
        """Computed once."""
        return self._frames.keep(frame, small=self._few)

    def judge(self, asked: HourRange | None) -> ReportData:
        """All steps, in the order that the proof needs (see `audit_source`)."""
        audit, topics = self._settings.audit, list(self._settings.topics)
        read_to, log_starts = self._source.landed_to(), self._source.log_starts()
        landed = Landed(self._tables, topics)
        books = self._fold()
        with self._frames.plain(little=self._frames.few(books.newest)):
            books = books.kept(self._keep if self._few else _as_it_is)
            booked = booked_hours(books, topics)
            there = {topic: landed.hours[topic] | booked.get(topic, set()) for topic in topics}
            hours = scope(there, sealed_hours(self._tables), asked, audit.hours_max)
        rows = landed.rows(hours.hours)
        words = self._words(rows, landed.rows_most(hours.hours))
        self._few = self._frames.few(books.newest, words)
        with self._frames.plain(little=self._few):
            wanted = self._keep(hours.frame(self._spark))
            ranges = self._keep(_wanted(books.ranges.where(F.col("topic").isin(*topics)), wanted))
            holes = books.holes.where(F.col("topic").isin(*topics))

            def classified(judged: DataFrame) -> DataFrame:
                missing = self._keep(judged.where(F.col("kind") == comparison.MISSING))
                if self._frames.empty(missing):
                    return self._frames.none(audit_missing.CLASSIFIED)
                where = audit_missing.places(self._spark, read_to, log_starts, self._source.log_ends())
                clock = audit_missing.Clock(self._now_ms, int(audit.late_after * 1_000))
                return audit_missing.classified(missing, books.heartbeats, where, clock)

            cut = comparison.pieces(ranges, holes)
            compared = self._judged(rows, self._keep(audit_landed.merged(words)), cut, classified)
            compared = self._look_around(compared, landed, hours, cut, classified)
            found = self._find(rows, words, compared, books, ranges)
            at = result_rows.Moment(self._now_ms, int(audit.heartbeat_stale * 1_000))
            result = Result(self._keep(result_rows.rows(found, wanted, at)), self._runs(found.missing), found)
            shown = gather(result, hours, wanted, at, audit.named_max)
            self._write(result, shown)
        return self._data(hours, shown)

    def _fold(self) -> Books:
        """The audit topic, once."""
        most = self._source.records_most()
        self._few = most is not None and most <= self._folded_max
        with self._frames.plain(little=most is not None and most <= LITTLE):
            books, unread = fold(self._source.records(), self._keep)
        self._few = self._frames.few(books.newest)
        if unread:
            _ = logs.get().warning("audit_records_unreadable", topic=self._settings.audit.topic, records=unread)
        return books

    def _words(self, rows: DataFrame, most: int) -> DataFrame:
        """What landed, once."""
        with self._frames.plain(little=most <= LITTLE):
            return self._frames.keep(audit_landed.words(rows), small=most <= self._folded_max)

    def _judged(self, rows: DataFrame, words: DataFrame, cut: DataFrame, classified: _Classify) -> _Compared:
        asked = comparison.asked(cut, audit_landed.buckets(words))
        few = self._frames.taken(asked) if self._few else None
        if few is None:
            judged = self._keep(asked.mapInArrow(comparison.judge_batches, comparison.JUDGED))
        else:
            found = pa.Table.from_batches(comparison.judge_batches(few.to_batches()), comparison.ARROW)
            judged = self._frames.local(found, comparison.JUDGED)
        return _Compared(rows, words, judged, self._keep(classified(judged)))

    def _look_around(
        self, compared: _Compared, landed: Landed, hours: Scope, cut: DataFrame, classified: _Classify
    ) -> _Compared:
        """Before ids are called lost: do rows with them lie in hours that were not asked for?"""
        around = {topic: _near(landed.hours[topic], wanted) for topic, wanted in hours.hours.items()}
        lost = compared.missing.where(F.col("class") == str(MissingClass.LOST))
        if not any(around.values()) or self._frames.empty(compared.missing) or lost.isEmpty():
            return compared
        keys = by_bucket(lost).select(*ID, "bucket").distinct()
        elsewhere = audit_landed.rows_in(landed.rows(around), keys).drop("bucket")
        more = self._keep(audit_landed.merged(audit_landed.words(elsewhere)))
        if self._frames.empty(more):
            return compared
        both = self._keep(audit_landed.merged(compared.words.unionByName(more)))
        return self._judged(compared.rows.unionByName(elsewhere), both, cut, classified)

    def _runs(self, missing: DataFrame) -> DataFrame:
        found = audit_missing.runs(missing)
        return self._frames.none(found.schema) if self._frames.empty(missing) else self._keep(found)

    def _find(
        self, rows: DataFrame, words: DataFrame, compared: _Compared, books: Books, ranges: DataFrame
    ) -> Findings:
        """Name what is doubled, and what no book knows."""
        doubled = self._keep(audit_landed.doubled(compared.words))
        stray = self._keep(compared.judged.where(F.col("kind") == comparison.STRAY))
        census = self._keep(audit_landed.census(words))
        if self._frames.empty(doubled):
            duplicates = self._frames.none(audit_names.DUPLICATES)
        else:
            duplicates = self._keep(audit_names.duplicates(compared.rows, doubled, ranges))
        if self._frames.empty(stray):
            strays = self._frames.none(audit_names.STRAYS)
        else:
            # Of the hours asked for only: what lies in others is not this run's business.
            strays = self._keep(audit_names.strays(rows, stray, books.heartbeats))
        return Findings(
            books=books,
            judged=self._keep(compared.judged.where(F.col("kind") == comparison.COUNTED)),
            missing=compared.missing,
            duplicates=duplicates,
            strays=strays,
            doubts=contradictions.doubts(books),
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
            self._put(self._tables.table(name, schema), frame, whole=True)
        for name, schema, frame, any_of_it in (
            (schemas.MISSING_TABLE, schemas.MISSING, missing, shown.missing),
            (schemas.DUPLICATES_TABLE, schemas.DUPLICATES, duplicates, shown.duplicates),
            (schemas.REPORT_TABLE, schemas.REPORT, rows, shown.rows),
        ):
            if any_of_it:
                self._put(self._tables.table(name, schema), frame, whole=False)

    def _put(self, table: Table, frame: DataFrame, *, whole: bool) -> None:
        """Add the rows to a table, or put them in the place of all; few ones without tasks."""
        chosen = frame.select(*table.schema.names)
        few = self._frames.taken(chosen) if self._few else None
        if few is not None:
            table.put(few, whole=whole)
        elif whole:
            table.overwrite(chosen)
        else:
            _ = table.append(chosen)

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


def _as_it_is(frame: DataFrame) -> DataFrame:
    """Not kept: what it is made from is."""
    return frame


def _near(there: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Hours with rows that were not asked for and are near those that were."""
    if not wanted:
        return []
    low = start_ms(wanted[0]) - ODD_HOURS * HOUR_MS
    high = start_ms(wanted[-1]) + ODD_HOURS * HOUR_MS
    return [hour for hour in set(there) - set(wanted) if low <= start_ms(hour) <= high]
