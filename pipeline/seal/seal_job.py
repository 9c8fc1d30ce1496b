"""`seal`: records in `seals` the hours that the audit found complete, and compacts their files.

An hour takes two steps. The first replaces the hour's files with compacted ones, in one commit whose metadata holds the
row for the second step. The second merges that row into `seals`. A later run that finds such a commit without its row
adds the row. So a run may stop anywhere, and two runs may work at once.
"""

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from ...config.pipeline import PipelineSettings
from ...runtime import logs
from ..audit.schemas import HEARTBEATS, HEARTBEATS_TABLE, REPORT, REPORT_TABLE
from ..names import QUARANTINE, bronze_table
from ..report.data import HourRow
from ..schemas import PARTITION_BY
from ..schemas import QUARANTINE as QUARANTINE_SCHEMA
from ..tables import FileInfo, Table, TableConflictError, Tables
from .decisions import (
    FOREIGN,
    HourAudit,
    HourSeal,
    HourState,
    ReopenHour,
    SealHeartbeat,
    SealHour,
    SealStatus,
    WaitingHour,
    decide,
)
from .rows import KEY, read_seals, seals_table

NOTE: Final = "seal"
"""Key in the commit's metadata that holds the row of `seals`."""
ID: Final = ("incarnation", "origin", "ordinal")
CLOSED: Final = "closed"
_SUMMED: Final = ("accepted", "holes", "landed", "distinct", "foreign")
_CAP: Final = 2
"""Maximum file size as a multiple of the target; a task with more rows starts another file."""


class HourKey(NamedTuple):
    topic: str
    hour: str


@dataclass(slots=True)
class SealResult:
    sealed: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Rows that the run added to `seals`."""
    reopened: list[ReopenHour] = field(default_factory=list[ReopenHour])
    waiting: list[WaitingHour] = field(default_factory=list[WaitingHour])

    def __str__(self) -> str:
        lines = [
            f"{row['topic']} {row['hour']}: {row['status']}, generation {row['generation']}, {row['landed']} landed, "
            f"{row['lost']} lost, {row['duplicates_removed']} spare rows removed, {row['files_before']} files are {row['files_after']}"
            for row in self.sealed
        ]
        lines += [
            f"{each.topic} {each.hour}: reopened, its rows are not those that were sealed" for each in self.reopened
        ]
        lines += [f"{each.topic} {each.hour}: waits: {each.reason}" for each in self.waiting]
        return "\n".join(lines) or "nothing to seal"


def run(spark: SparkSession, settings: PipelineSettings, tables: Tables, *, now_ms: int) -> SealResult:
    """Reopen and seal the hours that are due, for the topics of the settings. Raise TableError."""
    return _SealRun(spark, settings, tables, now_ms).run()


class _SealRun:
    def __init__(self, spark: SparkSession, settings: PipelineSettings, tables: Tables, now_ms: int) -> None:
        self._spark = spark
        self._settings = settings
        self._tables = tables
        self._now_ms = now_ms
        self._seals = seals_table(tables)
        self._bronze = {topic: tables.existing(bronze_table(topic)) for topic in settings.topics}
        self._bronze_rows: dict[HourKey, int] = {}
        """Rows in bronze at the time of the decision."""
        self._result = SealResult()

    def run(self) -> SealResult:
        for topic, table in self._bronze.items():
            self._record_missing_seals(topic, table)
        decided = decide(
            self._hours(),
            self._heartbeats(),
            now_ms=self._now_ms,
            grace_ms=int(self._settings.seal.grace * 1000),
            hours_max=self._settings.seal.hours_max,
        )
        for reopening in decided.reopen:
            self._reopen(reopening)
        for order in decided.seal:
            self._seal(order)
        self._result.reopened += decided.reopen
        self._result.waiting += decided.wait
        self._vacuum()
        return self._result

    def _vacuum(self) -> None:
        """Delete files that neither tables nor readers need any more, if the settings give an age for that."""
        after = self._settings.seal.vacuum_after
        for table in self._bronze.values():
            if after > 0 and table is not None:
                gone = table.vacuum(older_than_hours=after / 3_600)
                _ = logs.get().info("table_vacuumed", table=table.name, files=len(gone))

    def _record_missing_seals(self, topic: str, table: Table | None) -> None:
        """Add the missing rows for hours that an interrupted run compacted."""
        if table is None:
            return
        noted = [
            (each.version, json.loads(each.metadata[NOTE])) for each in table.recent_commits() if NOTE in each.metadata
        ]
        known = read_seals(self._tables) if noted else {}
        # Oldest first: an hour may have been sealed, reopened and sealed again.
        for version, row in reversed(noted):
            seal = known.get((topic, row["hour"]))
            if not _is_recorded(seal, row["generation"]):
                files = table.files([row["hour"]], version=version)
                self._record_seal(row | {"table_version": version, **_sizes(files)})

    def _hours(self) -> list[HourState]:
        """Every hour of these topics that has an audit, a seal or rows."""
        seals = read_seals(self._tables)
        audited = self._audited()
        rows = self._rows()
        keys = {key for key in (*map(HourKey._make, seals), *audited, *rows) if key.topic in self._bronze}
        return [HourState(*key, rows=rows.get(key, 0), audited=audited.get(key), seal=seals.get(key)) for key in keys]

    def _audited(self) -> dict[HourKey, HourAudit]:
        """For each hour, the rows of the newest run that looked at it."""
        report = self._tables.table(REPORT_TABLE, REPORT).read().where(sf.col("topic").isin(*self._bronze))
        newest = Window.partitionBy("topic", "hour")
        rows = (
            report.withColumn("newest", sf.max(sf.struct("run_at", "run")).over(newest))
            .where(sf.col("run") == sf.col("newest.run"))
            # One is enough to know that there are doubts.
            .withColumn("doubts", sf.slice("doubts", 1, 1))
            .drop("newest")
            .collect()
        )
        found: dict[HourKey, tuple[str, list[HourRow]]] = {}
        for row in rows:
            _, listed = found.setdefault(HourKey(row["topic"], row["hour"]), (row["run"], []))
            listed.append(HourRow.of(row.asDict()))
        return {key: HourAudit(run, tuple(listed)) for key, (run, listed) in found.items()}

    def _rows(self) -> dict[HourKey, int]:
        """Current number of rows of each hour, in bronze and in quarantine."""
        found: dict[HourKey, int] = {}
        for topic, table in self._bronze.items():
            for file in table.files() if table is not None else ():
                key = HourKey(topic, file.partition["hour"] or "")
                found[key] = found.get(key, 0) + file.rows
        self._bronze_rows = dict(found)
        quarantine = self._tables.table(QUARANTINE, QUARANTINE_SCHEMA, PARTITION_BY).read()
        for row in quarantine.where(sf.col("topic").isin(*self._bronze)).groupBy("topic", "hour").count().collect():
            key = HourKey(row["topic"], row["hour"])
            found[key] = found.get(key, 0) + row["count"]
        return found

    def _heartbeats(self) -> list[SealHeartbeat]:
        rows = self._tables.table(HEARTBEATS_TABLE, HEARTBEATS).read().collect()
        return [SealHeartbeat(row["incarnation"], row["state"] == CLOSED, row["closed_before"]) for row in rows]

    def _reopen(self, order: ReopenHour) -> None:
        """Add a row of the next generation, with the counts of the seal that it ends."""
        chosen = (sf.col("topic") == order.topic) & (sf.col("hour") == order.hour)
        before = self._seals.read().where(chosen & (sf.col("generation") == order.generation - 1)).collect()[0].asDict()
        row = before | {
            "generation": order.generation,
            "status": SealStatus.REOPENED.value,
            "sealed_at": self._moment(),
        }
        self._seals.upsert([row], KEY)
        _ = logs.get().warning("hour_reopened", topic=order.topic, hour=order.hour, generation=order.generation)

    def _seal(self, order: SealHour) -> None:
        """Run both steps for one hour. If another run interferes or rows have just arrived, the hour waits for the next
        run."""
        table = self._bronze[order.topic]
        version = None if table is None else table.version()
        files = [] if table is None or version is None else table.files([order.hour], version=version)
        if sum(file.rows for file in files) != self._bronze_rows.get(HourKey(order.topic, order.hour), 0):
            # The audited counts are not those of this version.
            self._result.waiting.append(WaitingHour(order.topic, order.hour, "rows came just now: audit again"))
            return
        row = self._row(order, files)
        if (
            table is not None
            and version is not None
            and (order.audited.total("duplicated") or len(files) > self._target_file_count(files))
        ):
            try:
                version, row = self._compact(table, version, order, files, row)
            except TableConflictError as error:
                self._result.waiting.append(WaitingHour(order.topic, order.hour, str(error)))
                return
            files = table.files([order.hour], version=version)
        self._record_seal(row | {"table_version": version if files else None, **_sizes(files)})

    def _target_file_count(self, files: list[FileInfo]) -> int:
        """Number of files of the target size that hold these files' bytes."""
        return max(1, ceil(sum(file.bytes for file in files) / int(self._settings.seal.target_file_bytes)))

    def _compact(
        self, table: Table, version: int, order: SealHour, files: list[FileInfo], row: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        """First step: compact the hour; return the version it made and the row for `seals`. Raise
        TableConflictError."""
        frame = table.read(hours=[order.hour], version=version)
        before = kept = frame.count()
        if order.audited.total("duplicated"):
            # Only removing duplicates changes which rows are kept.
            chosen = _without_duplicates(frame).persist()
            kept = chosen.count()
            frame = chosen.repartition(self._target_file_count(files))
        else:
            chosen = None
            frame = frame.coalesce(self._target_file_count(files))
        noted = dict(row) | {"duplicates_removed": before - kept}
        try:
            made = table.replace(
                frame,
                where={"hour": order.hour},
                read_version=version,
                rows=kept,
                metadata={NOTE: json.dumps(noted, sort_keys=True)},
                file_bytes=_CAP * int(self._settings.seal.target_file_bytes),
            )
        finally:
            if chosen is not None:
                _ = chosen.unpersist()
        return made, noted

    def _row(self, order: SealHour, files: list[FileInfo]) -> dict[str, Any]:
        """The row of `seals`, with the values that are known before the hour is compacted."""
        return {
            "topic": order.topic,
            "hour": order.hour,
            "generation": order.generation,
            "status": order.status.value,
            **{name: order.audited.total(name) for name in _SUMMED},
            "lost": order.audited.total("missing"),
            "duplicates_removed": 0,
            "incarnations": len({each.incarnation for each in order.audited.rows} - {FOREIGN}),
            "audit_run": order.audited.run,
            "files_before": len(files),
            "sealed_at": self._moment().isoformat(),
        }

    def _record_seal(self, row: Mapping[str, Any]) -> None:
        """Second step: merge the row into `seals`."""
        full = dict(row) | {"sealed_at": dt.datetime.fromisoformat(row["sealed_at"])}
        self._seals.upsert([full], KEY)
        self._result.sealed.append(full)
        _ = logs.get().info(
            "hour_sealed",
            topic=full["topic"],
            hour=full["hour"],
            generation=full["generation"],
            status=full["status"],
            lost=full["lost"],
            duplicates_removed=full["duplicates_removed"],
        )

    def _moment(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._now_ms / 1000, dt.UTC)


def _sizes(files: list[FileInfo]) -> dict[str, int]:
    return {"files_after": len(files), "bytes": sum(file.bytes for file in files)}


def _is_recorded(seal: HourSeal | None, generation: int) -> bool:
    """Whether `seals` has the row of this sealing, or a later one."""
    if seal is None or seal.generation < generation:
        return False
    return seal.generation > generation or seal.status is not SealStatus.REOPENED


def _without_duplicates(frame: DataFrame) -> DataFrame:
    """Keep, for each record id, the row with the lowest position in Kafka, and all rows without an id."""
    place = Window.partitionBy(*ID).orderBy("partition", "offset")
    copy = sf.when(sf.col(ID[0]).isNull(), 1).otherwise(sf.row_number().over(place))
    return frame.withColumn("_copy", copy).where("_copy = 1").drop("_copy")
