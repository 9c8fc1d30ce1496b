"""The Parquet files of a Delta table, as tasks write them."""

import contextlib
import datetime as dt
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from .partitions import Value, folder, split

ROW_GROUP_BYTES: Final = 64 << 20
"""Of Arrow's memory. A task buffers this much of its rows, and each row group of a file is as large."""
FILE_BYTES: Final = 256 << 20
OPEN_FILES_MAX: Final = 128
"""A task that writes to more partitions at once closes files early."""
COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 1
TEXT_STATISTICS_CHARS: Final = 64
"""Longer smallest and largest texts are left out of the log: truncating them takes care and saves readers little."""


class AddedFile(NamedTuple):
    """A file that is written but not yet in the log."""

    path: str
    """Relative to the table's folder, as in the file system."""
    bytes: int
    rows: int
    partition: dict[str, Value]
    modified_ms: int
    statistics: str
    """JSON, in the form of Delta's log."""


class _File:
    def __init__(self, root: Path, partition: dict[str, Value], name: str, schema: pa.Schema) -> None:
        self.partition = partition
        self.relative = f"{folder(partition)}/{name}" if partition else name
        self.path = root / self.relative
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.rows = 0
        self._found: list[pq.FileMetaData] = []
        self._sink = self.path.open("xb")
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            coerce_timestamps="us",
            metadata_collector=self._found,
        )

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self.rows += table.num_rows

    def bytes(self) -> int:
        return self._sink.tell()

    def end(self) -> AddedFile:
        self._writer.close()
        self._sink.flush()
        # A file that a commit names must survive a power failure, as the commit does.
        os.fsync(self._sink.fileno())
        self._sink.close()
        size = self.path.stat().st_size
        statistics = json.dumps(_statistics(self._found[0], self.rows))
        return AddedFile(self.relative, size, self.rows, self.partition, int(time.time() * 1000), statistics)

    def discard(self) -> None:
        with contextlib.suppress(Exception):
            self._writer.close()
        self._sink.close()
        self.path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the file names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_above(folder: Path, *, sync: Callable[[Path], None] = sync_folder) -> None:
    """Make the name of a folder durable, and those of its parents on the same file system. It does not matter who
    created them: the creator may have died before syncing them."""
    for each in folder.parents:
        try:
            sync(each)
        except PermissionError:
            # Created by another user.
            return
        if each.is_mount():
            return


class FileWriter:
    """Writes the rows of a task to files: at least one per partition, closing each when it is large enough."""

    def __init__(
        self,
        root: str,
        schema: pa.Schema,
        partition_by: tuple[str, ...],
        *,
        task: int,
        file_bytes: int = FILE_BYTES,
        sync: Callable[[Path], None] = sync_folder,
    ) -> None:
        self._root = Path(root)
        self._schema = schema
        self._partition_by = partition_by
        self._stored = pa.schema([field for field in schema if field.name not in partition_by])
        self._task = task
        self._file_bytes = file_bytes
        self._sync = sync
        self._open: dict[tuple[Value, ...], _File] = {}
        self._ended: list[AddedFile] = []
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_bytes = 0

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> list[AddedFile]:
        """Write the rows and return the files. On any failure, delete the files written so far."""
        try:
            for batch in batches:
                self.add(batch)
            return self.end()
        except BaseException:
            self.discard()
            raise

    def add(self, batch: pa.RecordBatch) -> None:
        """Buffer these rows, and write the buffer when it is full."""
        self._buffered.append(batch)
        self._buffered_bytes += batch.nbytes
        if self._buffered_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def end(self) -> list[AddedFile]:
        """Write the buffered rows, close all files, make them and their names durable, and return them."""
        self._flush()
        while self._open:
            self._end(next(iter(self._open)))
        self._sync_names()
        return self._ended

    def discard(self) -> None:
        for file in self._open.values():
            file.discard()
        for added in self._ended:
            (self._root / added.path).unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._buffered:
            return
        table = pa.Table.from_batches(self._buffered)
        self._buffered, self._buffered_bytes = [], 0
        if table.schema != self._schema:
            table = table.select(self._schema.names).cast(self._schema)
        for partition, rows in split(table, self._partition_by):
            key = tuple(partition.values())
            if key not in self._open:
                if len(self._open) >= OPEN_FILES_MAX:
                    self._end(next(iter(self._open)))
                name = f"part-{self._task:05d}-{uuid.uuid4()}.{COMPRESSION}.parquet"
                self._open[key] = _File(self._root, partition, name, self._stored)
            file = self._open[key]
            file.write(rows)
            if file.bytes() >= self._file_bytes:
                self._end(key)

    def _end(self, key: tuple[Value, ...]) -> None:
        self._ended.append(self._open.pop(key).end())

    def _sync_names(self) -> None:
        """Sync the names of the files and of their folders up to the table's. Another task may have created a folder
        and died before syncing it."""
        inside = {folder for added in self._ended for folder in Path(added.path).parents}
        for each in sorted(inside, key=lambda path: len(path.parts), reverse=True):
            self._sync(self._root / each)


def _statistics(found: pq.FileMetaData, rows: int) -> dict[str, Any]:
    """Smallest, largest and null count of each column that is not nested (PROTOCOL.md, Per-file Statistics)."""
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in range(found.num_columns):
        name = found.schema.column(column).path
        if "." in name:
            continue
        parts = [found.row_group(group).column(column).statistics for group in range(found.num_row_groups)]
        if any(part is None or part.null_count is None for part in parts):
            continue
        nulls[name] = sum(part.null_count for part in parts)
        # `num_values` does not count nulls.
        valued = [part for part in parts if part.num_values]
        if not valued or not all(part.has_min_max for part in valued):
            continue
        low, high = _for_log(min(part.min for part in valued)), _for_log(max(part.max for part in valued))
        if low is not None and high is not None:
            smallest[name], largest[name] = low, high
    return {"numRecords": rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}


def _for_log(value: object) -> object:
    """The value as JSON for the log. None: the log gets no minimum and maximum for the column."""
    match value:
        case bool() | int():
            return value
        case str() if len(value) <= TEXT_STATISTICS_CHARS:
            return value
        case dt.datetime():
            # All times are in UTC. `strftime` would not pad years to four digits.
            return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        case dt.date():
            return value.isoformat()
        case _:
            return None


def delete_files(root: str, added: Iterable[AddedFile]) -> None:
    """Delete files that no commit will name. Errors are ignored."""
    for file in added:
        with contextlib.suppress(OSError):
            Path(root, file.path).unlink()
