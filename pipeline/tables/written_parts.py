"""Writes a frame with delta-rs: one job writes the files of all its tables, and the driver makes one commit per table.

A task may run twice: only the files that it returns count, and Spark takes the result of one attempt. No rows are
cached, no second job counts them, and no process is started to plan or to commit. These would be most of the cost of a
small batch.
"""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from .data_files import FILE_BYTES, AddedFile, FileWriter
from .interface import NO_CONSTANTS, NOTHING, Constant, Parts

_PART: Final = "_part"
_pc: Any = pyarrow.compute
"""Its functions are created at import, so type checkers do not see them."""
_RETURNED: Final = pa.schema([("part", pa.int32()), ("file", pa.string())])
_RETURNED_COLUMNS: Final = StructType([StructField("part", IntegerType()), StructField("file", StringType())])


class PartDestination(NamedTuple):
    """Where and how a task writes the rows of a part."""

    folder: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    file_bytes: int = FILE_BYTES


class PartTable(Protocol):
    """The part of a delta-rs table that this module needs."""

    schema: StructType

    def destination(self, found: StructType) -> PartDestination: ...

    def append_files(
        self, files: Sequence[AddedFile], *, app: str, version: int, metadata: Mapping[str, str]
    ) -> bool: ...


class _WritePlan(NamedTuple):
    """Values that are the same for all frames of a writer."""

    destinations: tuple[PartDestination, ...]
    columns: tuple[Column, ...]
    """The columns of a frame that go to the tasks: those of the tables, and `_PART`."""


class DeltaRsPartsWriter:
    """`PartsWriter` of delta-rs. The tasks add the columns of constants."""

    def __init__(self, parts: Sequence[tuple[PartTable, Column]]) -> None:
        self._parts = parts
        self._write_plan: _WritePlan | None = None

    @contextmanager
    def write(self, df: DataFrame, constants: Mapping[str, Constant] = NO_CONSTANTS) -> Generator[Parts]:
        """See `PartsWriter`."""
        if self._write_plan is None:
            self._write_plan = self._make_plan(df, constants)
        files = _write_files(df.select(*self._write_plan.columns), self._write_plan.destinations, constants)
        yield _DeltaRsParts([table for table, _ in self._parts], files)

    def _make_plan(self, df: DataFrame, constants: Mapping[str, Constant]) -> _WritePlan:
        declared = {field.name: field for table, _ in self._parts for field in table.schema}
        found = StructType([*df.schema, *(declared[name] for name in constants)])
        places = tuple(table.destination(found) for table, _ in self._parts)
        names = dict.fromkeys(name for place in places for name in place.schema.names if name not in constants)
        which = sf.lit(None).cast("int")
        for index, (_, where) in reversed([*enumerate(self._parts)]):
            which = sf.when(where, sf.lit(index)).otherwise(which)
        # Built once per writer: building it for every frame takes so many calls to the JVM that it costs as much as the
        # rows of a small batch.
        return _WritePlan(places, (*(sf.col(f"`{name}`") for name in names), which.alias(_PART)))


class _DeltaRsParts:
    def __init__(self, tables: Sequence[PartTable], files: Sequence[Sequence[AddedFile]]) -> None:
        self._tables = tables
        self._files = files

    def is_empty(self, part: int) -> bool:
        return not self._files[part]

    def append(self, part: int, *, app: str, version: int, metadata: Mapping[str, str] = NOTHING) -> bool:
        return self._tables[part].append_files(self._files[part], app=app, version=version, metadata=metadata)


def write_table(df: DataFrame, place: PartDestination) -> list[AddedFile]:
    """Write all rows of the frame to files of one table, which no commit names yet."""
    [files] = _write_files(df.withColumn(_PART, sf.lit(0)), [place], {})
    return files


def _write_files(
    df: DataFrame, places: Sequence[PartDestination], constants: Mapping[str, Constant]
) -> list[list[AddedFile]]:
    """Run the job, and return the files of each part."""
    fixed = dict(constants)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _write_parts(batches, places, fixed)

    files: list[list[AddedFile]] = [[] for _ in places]
    for row in df.mapInArrow(write, _RETURNED_COLUMNS).toArrow().to_pylist():
        files[row["part"]].append(AddedFile(**json.loads(row["file"])))
    return files


def _write_parts(
    batches: Iterator[pa.RecordBatch], places: Sequence[PartDestination], constants: Mapping[str, Constant]
) -> Iterator[pa.RecordBatch]:
    """In a task: write all rows to files, and yield (index of the part, `AddedFile` as JSON) for each file."""
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    writers = [
        FileWriter(place.folder, place.schema, place.partition_by, task=task, file_bytes=place.file_bytes)
        for place in places
    ]
    try:
        for batch in batches:
            for part, rows in _split_by_part(batch, len(places)):
                writers[part].add(_with_constants(rows, places[part].schema, constants))
        ended: list[dict[str, Any]] = [
            {"part": part, "file": json.dumps(added._asdict())}
            for part, writer in enumerate(writers)
            for added in writer.end()
        ]
    except BaseException:
        for writer in writers:
            writer.discard()
        raise
    yield pa.RecordBatch.from_pylist(ended, schema=_RETURNED)


def _with_constants(rows: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, Constant]) -> pa.RecordBatch:
    """Return the rows with all columns of their table."""
    columns = [
        pa.repeat(pa.scalar(constants[field.name], field.type), rows.num_rows)
        if field.name in constants
        else rows.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _split_by_part(batch: pa.RecordBatch, parts: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each part. Raise ValueError for a row that is in no part."""
    which = batch.column(_PART)
    if which.null_count:
        raise ValueError(f"{which.null_count} rows belong to no table")
    for part in range(parts):
        mask = _pc.equal(which, part)
        count = _pc.sum(mask).as_py()
        if count == batch.num_rows:
            yield part, batch
        elif count:
            yield part, batch.filter(mask)
