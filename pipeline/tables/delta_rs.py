"""Tables written by delta-rs. They need no jar; the folder must be visible to the driver and every executor."""

import contextlib
import json
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from .commits import (
    PROPERTIES,
    UPSERTS_MAX,
    CommitSpec,
    TransactionLog,
    check_vacuum_age,
    commit,
    find_transaction,
    is_committed,
    live_files,
    open_table,
    read_notes,
    sync_commit,
)
from .data_files import FILE_BYTES, AddedFile, FileWriter, delete_files, sync_above, sync_folder
from .interface import (
    NOTHING,
    FileInfo,
    PartsWriter,
    TableCommitInfo,
    TableConflictError,
    TableError,
    TablePart,
    TableSchemaError,
    TableTransaction,
)
from .partitions import partition_text
from .types import (
    PARTITION_TYPES,
    arrow_schema,
    as_nullable_columns,
    declared_columns,
    missing_columns,
    partition_values,
)
from .written_parts import DeltaRsPartsWriter, PartDestination, write_table

if TYPE_CHECKING:
    from deltalake import DeltaTable

RECENT: Final = 1024


class DeltaRsTables:
    """All tables below one folder."""

    def __init__(self, place: str, spark: SparkSession) -> None:
        """`place`: a path or a `file:` URI. Raise TableError for any other URI."""
        parsed = urlparse(place)
        if parsed.scheme not in ("", "file"):
            raise TableError(
                f'tables = "{place}": the writer delta-rs keeps tables in a folder that all machines see; '
                f'for {parsed.scheme}: use writer = "delta-jvm"'
            )
        self._root = Path(parsed.path if parsed.scheme else place).absolute()
        self._spark = spark

    def table(self, name: str, schema: StructType, partition_by: tuple[str, ...] = ()) -> "DeltaRsTable":
        """Raise TableSchemaError for a column that delta-rs cannot write."""
        return DeltaRsTable(self._spark, self._root / name, name, schema, partition_by)

    def parts(self, parts: Sequence[TablePart]) -> PartsWriter:
        return DeltaRsPartsWriter([(cast(DeltaRsTable, part.table), part.where) for part in parts])

    def existing(self, name: str) -> "DeltaRsTable | None":
        if not self.exists(name):
            return None
        there = open_table(str(self._root / name))
        return self.table(name, _spark_schema(there), tuple(there.metadata().partition_columns))

    def exists(self, name: str) -> bool:
        return (self._root / name / "_delta_log").is_dir()


class DeltaRsTable:
    """One table. Thread-safe: it caches nothing of the table's state."""

    def __init__(
        self, spark: SparkSession, path: Path, name: str, schema: StructType, partition_by: tuple[str, ...]
    ) -> None:
        self.name = name
        self.schema = schema
        self.partition_by = partition_by
        self._spark = spark
        self._path = str(path)
        self._arrow = arrow_schema(as_nullable_columns(schema))
        for column in partition_by:
            if not isinstance(schema[column].dataType, PARTITION_TYPES):
                raise TableSchemaError(f"table {name} cannot be partitioned by {column}: {schema[column].dataType}")

    def append(
        self,
        df: DataFrame,
        *,
        app: str | None = None,
        version: int | None = None,
        metadata: Mapping[str, str] = NOTHING,
    ) -> bool:
        if is_committed(cast(TransactionLog, self._ensure_table()), app, version):
            return False
        _ = self._write(df, self._commit_spec("append", metadata, app=app, version=version))
        return True

    def destination(self, found: StructType) -> PartDestination:
        """Return where and how tasks write the rows of this table. `found`: the columns of the rows, possibly with
        extra ones. Raise TableSchemaError when they do not fit the table's."""
        by_name = {field.name: field for field in found}
        ours = StructType([by_name[field.name] for field in self.schema if field.name in by_name])
        lacking = missing_columns(ours, self.schema, self.name)
        if lacking.fields:
            raise TableSchemaError(f"table {self.name}: no {[field.name for field in lacking]} in the rows")
        return PartDestination(self._path, self._arrow, self.partition_by)

    def append_files(self, files: Sequence[AddedFile], *, app: str, version: int, metadata: Mapping[str, str]) -> bool:
        """Like `append`, for rows that tasks have already written. If the commit fails, the files are deleted."""
        with self._deleting_unless_committed(files):
            table = self._ensure_table()
            if is_committed(cast(TransactionLog, table), app, version):
                delete_files(self._path, files)
                return False
            _ = commit(self._commit_spec("append", metadata, app=app, version=version), files, seen=table)
        return True

    def transaction(self, app: str) -> TableTransaction | None:
        table = self._existing()
        version = table.transaction_version(app) if table is not None else None
        if table is None or version is None:
            return None
        return TableTransaction(version, find_transaction(table, app, version))

    def replace(
        self,
        df: DataFrame,
        *,
        where: Mapping[str, str],
        read_version: int,
        metadata: Mapping[str, str] = NOTHING,
        rows: int | None = None,
        file_bytes: int | None = None,
    ) -> int:
        values = partition_values(where, self.partition_by, self.name)
        _ = self._ensure_table()
        order = self._commit_spec("replace", metadata)._replace(where=values, read_version=read_version, rows=rows)
        return self._write(df, order, file_bytes=file_bytes or FILE_BYTES)

    def recent_commits(self) -> list[TableCommitInfo]:
        table = self._existing()
        entries = [] if table is None else table.history(RECENT)
        noted = [(int(entry["version"]), read_notes(entry.get("userMetadata"))) for entry in entries]
        return [TableCommitInfo(version, dict(notes["metadata"])) for version, notes in noted if notes]

    def overwrite(self, df: DataFrame) -> None:
        _ = self._ensure_table()
        _ = self._write(df, self._commit_spec("overwrite", NOTHING))

    def put(self, content: pa.Table, *, whole: bool = False) -> None:
        _ = self._ensure_table()
        rows = content.select(self._arrow.names).cast(self._arrow)
        files = FileWriter(self._path, self._arrow, self.partition_by, task=0).write_all(rows.to_batches())
        with self._deleting_unless_committed(files):
            _ = commit(self._commit_spec("overwrite" if whole else "append", NOTHING), files)

    def upsert(self, rows: Sequence[Mapping[str, Any]], keys: tuple[str, ...]) -> None:
        if not rows:
            return
        new = {tuple(row[key] for key in keys): dict(row) for row in rows}
        for _ in range(UPSERTS_MAX):
            table = self._ensure_table()
            merged = {tuple(row[key] for key in keys): row for row in self._rows(table)} | new
            content = pa.Table.from_pylist(list(merged.values()), schema=self._arrow)
            files = FileWriter(self._path, self._arrow, self.partition_by, task=0).write_all(content.to_batches())
            order = self._commit_spec("replace", NOTHING)._replace(where={}, read_version=table.version())
            try:
                with self._deleting_unless_committed(files):
                    _ = commit(order, files)
            except TableConflictError:
                continue
            return
        raise TableConflictError(f"{self.name}: it kept changing while {len(rows)} rows were to be put in")

    def read(self, *, hours: Iterable[str] | None = None, version: int | None = None) -> DataFrame:
        table = self._existing(version)
        paths = [] if table is None else [file["path"] for file in self._live(table, hours)]
        if table is not None:
            # Raises where a type differs. Columns that the table lacks are read as null.
            _ = missing_columns(_spark_schema(table), self.schema, self.name)
        if not paths:
            return self._spark.createDataFrame([], self.schema)
        frame = self._spark.read.schema(as_nullable_columns(self.schema)).option("basePath", self._path)
        # The paths are literal: do not expand glob characters in them.
        frame = frame.option("__globPaths__", "false")
        return frame.parquet(*(f"{self._path}/{path}" for path in paths)).select(*_quoted(self.schema))

    def version(self) -> int | None:
        table = self._existing()
        return None if table is None else table.version()

    def files(self, hours: Iterable[str] | None = None, *, version: int | None = None) -> list[FileInfo]:
        table = self._existing(version)
        if table is None:
            return []
        return [
            FileInfo(
                f"{self._path}/{file['path']}",
                int(file["bytes"]),
                int(file["rows"] or 0),
                {name: partition_text(value) for name, value in file["partition"].items()},
            )
            for file in self._live(table, hours)
        ]

    def vacuum(self, *, older_than_hours: float) -> list[str]:
        check_vacuum_age(older_than_hours)
        table = self._existing()
        if table is None:
            return []
        return table.vacuum(
            retention_hours=int(older_than_hours), dry_run=False, enforce_retention_duration=False, full=True
        )

    def _commit_spec(
        self, kind: str, metadata: Mapping[str, str], *, app: str | None = None, version: int | None = None
    ) -> CommitSpec:
        return CommitSpec(self._path, kind, str(uuid.uuid4()), app, version, metadata=dict(metadata))

    def _existing(self, version: int | None = None) -> "DeltaTable | None":
        if not (Path(self._path) / "_delta_log").is_dir():
            return None
        from deltalake.exceptions import TableNotFoundError

        try:
            return open_table(self._path, version=version)
        except TableNotFoundError:
            # Another writer is creating the table.
            return None

    def _ensure_table(self) -> "DeltaTable":
        """Open the table, or create it, with all declared columns. Raise TableSchemaError, TableProtocolError."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        declared = as_nullable_columns(self.schema)
        table = self._existing()
        if table is None:
            Path(self._path).mkdir(parents=True, exist_ok=True)
            try:
                _ = DeltaTable.create(
                    self._path,
                    Schema.from_json(declared.json()),
                    mode="ignore",
                    partition_by=list(self.partition_by),
                    configuration=cast(Any, PROPERTIES),
                )
            except DeltaError:
                # Another writer may have created it at the same time.
                if self._existing() is None:
                    raise
            table = self._open_synced(-1)
            sync_folder(Path(self._path))
            sync_above(Path(self._path))
        if tuple(table.metadata().partition_columns) != self.partition_by:
            raise TableSchemaError(
                f"table {self.name} is partitioned by {table.metadata().partition_columns}, not {list(self.partition_by)}"
            )
        for _ in range(UPSERTS_MAX):
            lacking = missing_columns(_spark_schema(table), declared, self.name)
            if not lacking.fields:
                return table
            before = table.version()
            try:
                table.alter.add_columns(list(Schema.from_json(lacking.json()).fields))
            except DeltaError:
                # Another writer changed the table, perhaps by adding the same columns.
                if open_table(self._path).version() == before:
                    raise
            table = self._open_synced(before)
        raise TableConflictError(f"{self.name}: it kept changing while columns were to be added")

    def _open_synced(self, before: int) -> "DeltaTable":
        """Open the table and sync all its commits after version `before`. delta-rs syncs none, and a commit of rows
        must not become durable before them."""
        table = open_table(self._path)
        for version in range(before + 1, table.version() + 1):
            _ = sync_commit(self._path, version)
        return table

    def _live(self, table: "DeltaTable", hours: Iterable[str] | None) -> list[dict[str, Any]]:
        files = live_files(table)
        if hours is None:
            return files
        wanted = {partition_text(hour) for hour in hours}
        return [file for file in files if partition_text(file["partition"].get("hour")) in wanted]

    def _rows(self, table: "DeltaTable") -> list[dict[str, Any]]:
        return [row for file in live_files(table) for row in self._content(file).to_pylist()]

    def _content(self, file: Mapping[str, Any]) -> pa.Table:
        """Read the rows of a file, in the declared columns. Read by path: delta-rs would pass Arrow a Python file
        system, and a process that has used one may abort at exit."""
        with pq.ParquetFile(f"{self._path}/{file['path']}") as opened:
            content = opened.read()
        partition: Mapping[str, Any] = file["partition"]
        columns = [
            content[field.name].cast(field.type)
            if field.name in content.column_names
            else pa.repeat(pa.scalar(partition.get(field.name)), content.num_rows).cast(field.type)
            for field in self._arrow
        ]
        return pa.table(columns, schema=self._arrow)

    def _write(self, df: DataFrame, order: CommitSpec, *, file_bytes: int = FILE_BYTES) -> int:
        """Write the rows, commit them, and return the version that this made. Raise TableError."""
        rows = declared_columns(df, self.schema, self.name)
        kinds = arrow_schema(as_nullable_columns(rows.schema))
        files = write_table(rows, PartDestination(self._path, kinds, self.partition_by, file_bytes))
        with self._deleting_unless_committed(files):
            return commit(order, files)

    @contextlib.contextmanager
    def _deleting_unless_committed(self, files: Sequence[AddedFile]) -> Generator[None]:
        """Delete the files when the commit inside the block is refused."""
        try:
            yield
        except TableError:
            # A TableError means that nothing was committed.
            delete_files(self._path, files)
            raise


def _spark_schema(table: "DeltaTable") -> StructType:
    return StructType.fromJson(json.loads(table.schema().to_json()))


def _quoted(schema: StructType) -> list[str]:
    return [f"`{field.name}`" for field in schema]
