"""Audits worlds on paper: their rows become tables, their records the audit topic, and the job runs over both."""

import datetime as dt
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
from penstock.config.pipeline import PipelineSettings, validate_pipeline
from penstock.pipeline import schemas
from penstock.pipeline.audit import audit_job as audit
from penstock.pipeline.audit.audit_job import AuditResult
from penstock.pipeline.audit.frames import DRIVER_ROWS_MAX
from penstock.pipeline.audit.source import AuditSource
from penstock.pipeline.hours import HourRange
from penstock.pipeline.names import QUARANTINE, bronze_table
from penstock.pipeline.seal.rows import SEALS_TABLE
from penstock.pipeline.tables import Tables, open_tables
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType

from .audit_hosts import TOPICS
from .audit_model import Answer, Id, Key, Line, Row, World

_ROWS = pa.schema(
    [
        ("incarnation", pa.string()),
        ("origin", pa.int32()),
        ("ordinal", pa.int64()),
        ("accept_ts", pa.timestamp("us", tz="UTC")),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("hour", pa.string()),
        ("landed_at", pa.timestamp("us", tz="UTC")),
    ]
)


class WorldSource:
    """What a world says where Kafka would be asked."""

    def __init__(self, spark: SparkSession, world: World) -> None:
        self._spark = spark
        self._world = world

    def landed_offsets(self) -> dict[str, dict[int, int]]:
        return self._world.read_to

    def log_starts(self) -> dict[str, dict[int, int]]:
        return self._world.log_starts

    def log_ends(self) -> dict[str, dict[int, int]]:
        return self._world.log_ends

    def records_max(self) -> int:
        return len(self._world.records)

    def records(self) -> DataFrame:
        columns = [pa.array([record[place] for record in self._world.records], pa.binary()) for place in (0, 1)]
        return self._spark.createDataFrame(pa.table(columns, names=["key", "value"]))


class AuditBench:
    """Tables of its own in a folder."""

    def __init__(self, spark: SparkSession, folder: Path, **settings: object) -> None:
        self._spark = spark
        self.settings = _settings(folder, settings)
        self.tables: Tables = open_tables(self.settings, spark)

    def land(self, rows: list[Row]) -> None:
        """Write rows where `land` would."""
        by_table: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_table[QUARANTINE if row.quarantined else bronze_table(row.topic)].append(row)
        for name, found in by_table.items():
            schema = schemas.QUARANTINE if name == QUARANTINE else schemas.bronze(BinaryType())
            frame = self._spark.createDataFrame(_table(found))
            self.tables.table(name, schema, schemas.PARTITION_BY).append(frame)

    def seal(self, *seals: tuple[str, str, str, int]) -> None:
        """Note topic, hour, status and generation where `seal` would."""
        frame = self._spark.createDataFrame(list(seals), "topic string, hour string, status string, generation int")
        self.tables.table(SEALS_TABLE, frame.schema).append(frame)

    def audit(
        self,
        world: World,
        hours: HourRange | None = None,
        *,
        few: int = DRIVER_ROWS_MAX,
        source: AuditSource | None = None,
    ) -> AuditResult:
        """One run. `few`: 0 leaves everything to tasks. `source`: who answers instead of the world."""
        return audit.run(
            self._spark,
            self.settings,
            self.tables,
            hours=hours,
            now_ms=world.now_ms,
            source=source or WorldSource(self._spark, world),
            few=few,
        )


def _settings(folder: Path, more: dict[str, object]) -> PipelineSettings:
    return validate_pipeline(
        {
            "tables": str(folder / "tables"),
            "checkpoints": str(folder / "checkpoints"),
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
            "topics": {topic: {"format": "raw"} for topic in TOPICS},
            "audit": {"report": str(folder / "report.html"), **more},
        },
        "tests",
    )


def _table(rows: list[Row]) -> pa.Table:
    def moment(ms: int | None) -> dt.datetime | None:
        return None if ms is None else dt.datetime.fromtimestamp(ms / 1_000, dt.UTC)

    found = [
        (
            *(row.incarnation, row.origin, row.ordinal, moment(row.accept_ms)),
            *(row.topic, row.partition, row.offset, row.hour, moment(row.landed_ms)),
        )
        for row in rows
    ]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*found, strict=True), _ROWS.types, strict=True)]
    return pa.Table.from_arrays(columns, schema=_ROWS)


def told(result: AuditResult) -> Answer:
    """What the job said, in the words of the model."""
    counts = list(Line.__dataclass_fields__)
    lines = {
        Key(row.topic, row.hour, row.incarnation): Line(**{name: getattr(row, name) for name in counts})
        for row in result.data.rows
    }
    missing = {
        Id(part.topic, part.incarnation, part.origin, ordinal): part.missing_class
        for part in result.data.missing
        for ordinal in range(part.first, part.end)
    }
    duplicates = {
        Id(each.topic, each.incarnation, each.origin, each.ordinal): [tuple(place) for place in each.places]
        for each in result.data.duplicates
    }
    return Answer(lines, missing, duplicates)
