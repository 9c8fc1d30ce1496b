"""The data source `penstock_delta`: writes a DataFrame into a Delta table with delta-rs, in one commit.

Spark calls its parts in several processes that share only options and messages: `writer` where the write is planned,
`write` in the tasks, `commit` in the driver's side process. Tasks write files that no reader sees; the commit adds them
all to the table. So a task may run any number of times, and in several copies: the commit names only the files of the
attempts that Spark accepts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from .data_files import FILE_BYTES, AddedFile, FileWriter, delete_files
from .types import arrow_schema, as_nullable_columns

if TYPE_CHECKING:
    from .commits import CommitSpec

NAME: Final = "penstock_delta"
ORDER: Final = "order"
FILE_BYTES_OPTION: Final = "file.bytes"
PARTITION_BY: Final = "partition.by"
"""Column names separated by commas."""


@dataclass(frozen=True)
class WrittenFiles(WriterCommitMessage):
    """The files written by one task."""

    files: tuple[AddedFile, ...]


class PenstockDelta(DataSource):
    """`df.write.format("penstock_delta")`. `Table` sets the options, and creates the table with all columns of the
    frame first."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> "DeltaWriter":  # noqa: ARG002  (Spark passes it by name)
        """Create the writer. Raise TableSchemaError for a type that delta-rs cannot write."""
        from .commits import CommitSpec

        order = CommitSpec.decode(self.options[ORDER])
        partition_by = tuple(name for name in self.options.get(PARTITION_BY, "").split(",") if name)
        file_bytes = int(self.options.get(FILE_BYTES_OPTION, FILE_BYTES))
        return DeltaWriter(order, arrow_schema(as_nullable_columns(schema)), partition_by, file_bytes)


class DeltaWriter(DataSourceArrowWriter):
    """Spark pickles it for the tasks and for the committing process."""

    def __init__(self, order: "CommitSpec", schema: pa.Schema, partition_by: tuple[str, ...], file_bytes: int) -> None:
        self._commit_spec = order
        self._schema = schema
        self._partition_by = partition_by
        self._file_bytes = file_bytes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """In a task: write all its rows to files."""
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        writer = FileWriter(
            self._commit_spec.table, self._schema, self._partition_by, task=task, file_bytes=self._file_bytes
        )
        return WrittenFiles(tuple(writer.write_all(iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """At the driver: commit all files to the table. Raise TableError."""
        from .commits import commit
        from .interface import TableError

        files = [file for message in messages if message is not None for file in cast(WrittenFiles, message).files]
        try:
            _ = commit(self._commit_spec, files)
        except TableError:
            # A TableError means that nothing was committed, so these files are not needed.
            delete_files(self._commit_spec.table, files)
            raise

    # There is no `abort`, because Spark also calls it when the commit may have been made. Vacuum removes files that no
    # commit names.
