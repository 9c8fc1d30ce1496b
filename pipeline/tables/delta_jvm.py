"""Tables written by Delta's connector in the JVM: for all file systems of Spark, and for types delta-rs lacks
(variant)."""

import time
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StructType

from .commits import COMMIT_TIMEOUT_S, PROPERTIES, UPSERTS_MAX, check_vacuum_age, commit_notes, is_committed
from .interface import (
    NO_CONSTANTS,
    NOTHING,
    Constant,
    FileInfo,
    Parts,
    PartsWriter,
    TableCommitInfo,
    TableConflictError,
    TableError,
    TablePart,
    TableTransaction,
)
from .jvm_log import CONFLICT_ERRORS, JvmLog, gateway
from .partitions import partition_text
from .types import as_nullable_columns, declared_columns, missing_columns, partition_values

JAVA_ERRORS: Final = (PySparkException, Py4JJavaError)
"""The classes in which pyspark raises an exception of the JVM: the first if pyspark recognises it."""
_PARTITIONS_MAX: Final = 1_000_000
EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"


class DeltaJvmTables:
    """All tables below one folder."""

    def __init__(self, place: str, spark: SparkSession) -> None:
        """Raise TableError when the session was started without the connector."""
        if EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
            raise TableError(
                f'writer = "delta-jvm" needs a session with {EXTENSION} and the jars of pipeline/jars/delta/pom.xml'
            )
        self._place = place.rstrip("/")
        self._spark = spark

    def table(self, name: str, schema: StructType, partition_by: tuple[str, ...] = ()) -> "DeltaJvmTable":
        return DeltaJvmTable(self._spark, f"{self._place}/{name}", name, schema, partition_by)

    def parts(self, parts: Sequence[TablePart]) -> PartsWriter:
        return CachedPartsWriter(parts)

    def existing(self, name: str) -> "DeltaJvmTable | None":
        if not self.exists(name):
            return None
        log = JvmLog(self._spark, f"{self._place}/{name}")
        return self.table(name, log.schema(), log.partition_columns())

    def exists(self, name: str) -> bool:
        jvm, session = gateway(self._spark)
        path = jvm.org.apache.hadoop.fs.Path(f"{self._place}/{name}/_delta_log")
        return bool(path.getFileSystem(session.sessionState().newHadoopConf()).exists(path))


class DeltaJvmTable:
    """One table, written by Delta's connector."""

    def __init__(
        self, spark: SparkSession, path: str, name: str, schema: StructType, partition_by: tuple[str, ...]
    ) -> None:
        self.name = name
        self.schema = schema
        self.partition_by = partition_by
        self._spark = spark
        self._path = path

    def append(
        self,
        df: DataFrame,
        *,
        app: str | None = None,
        version: int | None = None,
        metadata: Mapping[str, str] = NOTHING,
    ) -> bool:
        log = self._ensure_table()
        if is_committed(log, app, version):
            return False
        commit = str(uuid.uuid4())
        writer = self._writer(df, "append", commit_notes(commit, app, version, metadata))
        if app is not None:
            writer = writer.option("txnAppId", app).option("txnVersion", str(version))
        deadline = time.monotonic() + COMMIT_TIMEOUT_S
        while True:
            try:
                writer.save(self._path)
            except JAVA_ERRORS as error:
                if "ConcurrentTransaction" in str(error):
                    raise TableConflictError(
                        f"{self._path}: {app!r} committed meanwhile; {version} is refused"
                    ) from error
                if not _is_conflict(error) or time.monotonic() > deadline:
                    raise
                continue
            break
        # The connector silently skips a transaction that was already committed.
        if app is not None and log.find_commit(commit) is None:
            raise TableConflictError(f"{self._path}: version {version} of {app!r} was committed meanwhile")
        return True

    def transaction(self, app: str) -> TableTransaction | None:
        log = self._existing()
        version = log.transaction_version(app) if log is not None else None
        if log is None or version is None:
            return None
        for _, notes in log.history():
            if (notes.get("app"), notes.get("version")) == (app, version):
                return TableTransaction(version, dict(notes["metadata"]))
        return TableTransaction(version, {})

    def replace(
        self,
        df: DataFrame,
        *,
        where: Mapping[str, str],
        read_version: int,
        metadata: Mapping[str, str] = NOTHING,
        rows: int | None = None,
        file_bytes: int | None = None,  # noqa: ARG002  (each task writes one file; the frame's partitioning sets its size)
    ) -> int:
        values = partition_values(where, self.partition_by, self.name)
        log = self._ensure_table()
        deadline = time.monotonic() + COMMIT_TIMEOUT_S
        return log.replace(
            declared_columns(df, self.schema, self.name),
            values,
            read_version=read_version,
            rows=rows,
            notes=commit_notes(str(uuid.uuid4()), None, None, metadata),
            patience=lambda: time.monotonic() < deadline,
        )

    def recent_commits(self) -> list[TableCommitInfo]:
        log = self._existing()
        return (
            []
            if log is None
            else [TableCommitInfo(version, dict(notes["metadata"])) for version, notes in log.history() if notes]
        )

    def overwrite(self, df: DataFrame) -> None:
        _ = self._ensure_table()
        notes = commit_notes(str(uuid.uuid4()), None, None, NOTHING)
        self._retry_conflicts(lambda: self._writer(df, "overwrite", notes).save(self._path), "")

    def put(self, content: pa.Table, *, whole: bool = False) -> None:
        # Spark matches columns by position.
        frame = self._spark.createDataFrame(content.select(self.schema.names), as_nullable_columns(self.schema))
        if whole:
            self.overwrite(frame)
        else:
            _ = self.append(frame)

    def upsert(self, rows: Sequence[Mapping[str, Any]], keys: tuple[str, ...]) -> None:
        if not rows:
            return
        _ = self._ensure_table()
        # The last of equal keys wins.
        unique = {tuple(row[key] for key in keys): row for row in rows}
        names = self.schema.names
        new = self._spark.createDataFrame(
            [tuple(row.get(name) for name in names) for row in unique.values()], as_nullable_columns(self.schema)
        )
        view = f"upsert_{uuid.uuid4().hex}"
        new.createOrReplaceTempView(view)
        table = self._path.replace("`", "``")
        match = " AND ".join(f"t.`{key}` <=> s.`{key}`" for key in keys)
        statement = (
            f"MERGE INTO delta.`{table}` t USING {view} s ON {match} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        try:
            self._retry_conflicts(lambda: self._spark.sql(statement), f" while {len(rows)} rows were to be put in")
        finally:
            _ = self._spark.catalog.dropTempView(view)

    def read(self, *, hours: Iterable[str] | None = None, version: int | None = None) -> DataFrame:
        if self._existing() is None:
            return self._spark.createDataFrame([], self.schema)
        reader = self._spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        frame = reader.load(self._path)
        _ = missing_columns(frame.schema, self.schema, self.name)
        if hours is not None:
            wanted = {partition_text(hour) for hour in hours}
            chosen = sf.col("hour").isin(*sorted(hour for hour in wanted if hour is not None))
            frame = frame.where(chosen | sf.col("hour").isNull() if None in wanted else chosen)
        have = {field.name: field.dataType for field in as_nullable_columns(frame.schema)}
        return frame.select(
            *(
                _conform(
                    sf.col(f"`{field.name}`") if field.name in have else None, have.get(field.name), field.dataType
                ).alias(field.name)
                for field in as_nullable_columns(self.schema)
            )
        )

    def version(self) -> int | None:
        log = self._existing()
        return None if log is None else log.version()

    def files(self, hours: Iterable[str] | None = None, *, version: int | None = None) -> list[FileInfo]:
        log = self._existing()
        if log is None:
            return []
        wanted = None if hours is None else {partition_text(hour) for hour in hours}
        return [
            FileInfo(f"{self._path}/{file.path}", file.bytes, file.rows, file.partition)
            for file in log.files(version=version)
            if wanted is None or file.partition.get("hour") in wanted
        ]

    def vacuum(self, *, older_than_hours: float) -> list[str]:
        check_vacuum_age(older_than_hours)
        if self._existing() is None:
            return []
        table = self._path.replace("`", "``")
        statement = f"VACUUM delta.`{table}` RETAIN {int(older_than_hours)} HOURS"
        check = "spark.databricks.delta.retentionDurationCheck.enabled"
        before = self._spark.conf.get(check, "true")
        self._spark.conf.set(check, "false")
        try:
            found = [cast(str, row[0]) for row in self._spark.sql(f"{statement} DRY RUN").collect()]
            _ = self._spark.sql(statement).collect()
        finally:
            self._spark.conf.set(check, before or "true")
        return found

    def _existing(self) -> JvmLog | None:
        log = JvmLog(self._spark, self._path)
        if log.version() is None:
            return None
        log.check_protocol()
        return log

    def _ensure_table(self) -> JvmLog:
        """Return the log, creating the table if needed and adding missing declared columns."""
        declared = as_nullable_columns(self.schema)
        log = self._existing()
        lacking = declared if log is None else missing_columns(log.schema(), declared, self.name)
        if lacking.fields:
            empty = self._spark.createDataFrame([], declared)
            notes = commit_notes(str(uuid.uuid4()), None, None, NOTHING)
            try:
                self._writer(empty, "append", notes).options(**PROPERTIES if log is None else {}).save(self._path)
            except JAVA_ERRORS as error:
                # Another writer was faster: the table exists now, or the next call finds what is missing.
                if not _is_conflict(error):
                    raise
        log = self._existing()
        if log is None:
            raise TableError(f"{self._path}: the table could not be made")
        return log

    def _retry_conflicts(self, write: Callable[[], object], doing: str) -> None:
        """Write again while other writers change the table. Raise TableConflictError."""
        for _ in range(UPSERTS_MAX):
            try:
                _ = write()
            except JAVA_ERRORS as error:
                if not _is_conflict(error):
                    raise
                continue
            return
        raise TableConflictError(f"{self.name}: it kept changing{doing}")

    def _writer(self, df: DataFrame, mode: str, notes: str) -> DataFrameWriter:
        writer = (
            declared_columns(df, self.schema, self.name).write.format("delta").mode(mode).option("userMetadata", notes)
        )
        writer = writer.option("mergeSchema", "true")
        return writer.partitionBy(*self.partition_by) if self.partition_by else writer


def _is_conflict(error: Exception) -> bool:
    said = str(error)
    return any(
        name in said for name in (*CONFLICT_ERRORS, "DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "ProtocolChanged")
    )


def _conform(column: Column | None, have: DataType | None, want: DataType) -> Column:
    """Shape the column to the declared fields: fields that the table lacks become null, extra fields of the table are
    dropped."""
    if column is None or have is None:
        return sf.lit(None).cast(want)
    if have == want or not (isinstance(have, StructType) and isinstance(want, StructType)):
        return column
    there = {field.name: field.dataType for field in have}
    parts = [
        _conform(
            column.getField(field.name) if field.name in there else None, there.get(field.name), field.dataType
        ).alias(field.name)
        for field in want
    ]
    return sf.when(column.isNotNull(), sf.struct(*parts))


class CachedPartsWriter:
    """`PartsWriter`. It caches the frame while its parts are written."""

    def __init__(self, parts: Sequence[TablePart]) -> None:
        self._parts = parts
        self._kinds = {field.name: field.dataType for part in parts for field in part.table.schema}

    @contextmanager
    def write(self, df: DataFrame, constants: Mapping[str, Constant] = NO_CONSTANTS) -> Generator[Parts]:
        """See `PartsWriter`."""
        fixed = {name: sf.lit(value).cast(self._kinds[name]) for name, value in constants.items()}
        rows = df.withColumns(fixed).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield _CachedParts(rows, self._parts)
        finally:
            _ = rows.unpersist()


class _CachedParts:
    def __init__(self, rows: DataFrame, parts: Sequence[TablePart]) -> None:
        self._rows = rows
        self._parts = parts

    def is_empty(self, part: int) -> bool:
        # Check all partitions in one job; by default Spark tries one partition first, then more.
        self._rows.sparkSession.conf.set("spark.sql.limit.initialNumPartitions", _PARTITIONS_MAX)
        return self._of(part).isEmpty()

    def append(self, part: int, *, app: str, version: int, metadata: Mapping[str, str] = NOTHING) -> bool:
        return self._parts[part].table.append(self._of(part), app=app, version=version, metadata=metadata)

    def _of(self, part: int) -> DataFrame:
        table, where = self._parts[part]
        return self._rows.where(where).select(*(f"`{field.name}`" for field in table.schema))
