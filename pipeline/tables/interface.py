"""The interface of tables that the jobs use, for both engines.

Both engines keep Delta tables in adjacent folders and record the same things in a commit, so a table can change engine:
the `txn` action of Delta's protocol (application id and version), and the JSON of `commit_notes` as `userMetadata`.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
Constant = str | int | dt.datetime
"""A value that a column has in every row; datetimes have a time zone."""
NO_CONSTANTS: Final[Mapping[str, Constant]] = MappingProxyType({})


class TableError(Exception):
    """The table cannot be used as requested. The message names the table and the reason."""


class TableConflictError(TableError):
    """Another writer changed the table in a way that conflicts with this commit. Nothing was committed."""


class TableSchemaError(TableError):
    """A column of a frame or reader differs in type from the table's."""


class TableProtocolError(TableError):
    """The table requires a reader or writer feature that this version does not support."""


class TableTransaction(NamedTuple):
    """The newest commit of an application."""

    version: int
    metadata: Mapping[str, str]
    """Metadata of the commit that carries it; empty when its log entry is gone (tables forget after 30 days)."""


class FileInfo(NamedTuple):
    """One data file of a table."""

    path: str
    bytes: int
    rows: int
    """0 when its writer did not record it."""
    partition: Mapping[str, str | None]


class TableCommitInfo(NamedTuple):
    """A commit of ours, with its metadata."""

    version: int
    """Version of the table."""
    metadata: Mapping[str, str]


class Table(Protocol):
    """A table with a declared schema. The first write creates the table; later writes add declared columns that it
    lacks."""

    name: str
    schema: StructType
    partition_by: tuple[str, ...]

    def append(
        self,
        df: DataFrame,
        *,
        app: str | None = None,
        version: int | None = None,
        metadata: Mapping[str, str] = NOTHING,
    ) -> bool:
        """Add the rows in one commit that carries the transaction `app`, `version`.

        Return False and write nothing when this version of the application or a later one is already committed. Raise
        TableConflictError when another writer commits the same transaction meanwhile; also TableSchemaError,
        TableProtocolError.
        """
        ...

    def transaction(self, app: str) -> TableTransaction | None:
        """The newest transaction of the application; None when there is none."""
        ...

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
        """Replace all files of the partitions with these values by the rows, in one commit; return its version.

        All rows must have those values, and there must be `rows` of them, if given: otherwise TableError, and nothing
        is committed. A file is closed at `file_bytes`, if given. Raise TableConflictError when those partitions have
        changed since `read_version`.
        """
        ...

    def recent_commits(self) -> list[TableCommitInfo]:
        """Our newest commits, about a thousand at most, newest first."""
        ...

    def overwrite(self, df: DataFrame) -> None:
        """Replace all rows of the table, in one commit. Raise TableConflictError when the table keeps changing."""
        ...

    def put(self, content: pa.Table, *, whole: bool = False) -> None:
        """Add rows held by the driver, or replace all rows if `whole`, in one commit. Raises like `append` and
        `overwrite`."""
        ...

    def upsert(self, rows: Sequence[Mapping[str, Any]], keys: tuple[str, ...]) -> None:
        """Replace the rows with equal keys and add the others, in one commit. For tables that fit into the driver's
        memory."""
        ...

    def read(self, *, hours: Iterable[str] | None = None, version: int | None = None) -> DataFrame:
        """Return the rows, of these hours if given, with the declared columns; an empty frame when the table does not
        exist."""
        ...

    def version(self) -> int | None:
        """Number of the newest commit; None when the table does not exist."""
        ...

    def files(self, hours: Iterable[str] | None = None, *, version: int | None = None) -> list[FileInfo]:
        """The data files, of these hours if given."""
        ...

    def vacuum(self, *, older_than_hours: float) -> list[str]:
        """Delete files that no version within the retention time needs, and files that no commit ever named; return
        them.

        Raise TableError for less than a day: the files of an active writer are in no commit yet.
        """
        ...


class TablePart(NamedTuple):
    """The rows of a frame that go into one table."""

    table: Table
    where: Column
    """The condition for these rows. The frame and its constants have all columns of the table; the frame's other
    columns are for other parts."""


class Parts(Protocol):
    """The rows of one frame, each in exactly one part, to be written to several tables. They are computed once, even if
    tasks are repeated."""

    def is_empty(self, part: int) -> bool:
        """Whether the part with this index has no rows."""
        ...

    def append(self, part: int, *, app: str, version: int, metadata: Mapping[str, str] = NOTHING) -> bool:
        """Like `Table.append`, with the rows of this part."""
        ...


class PartsWriter(Protocol):
    """Writes a series of frames whose rows each belong to one of the parts. For one thread."""

    def write(self, df: DataFrame, constants: Mapping[str, Constant] = NO_CONSTANTS) -> AbstractContextManager[Parts]:
        """Compute the frame. All frames of a writer must have the columns and constants of the first, which avoids a
        check each time.

        `constants`: columns of the tables that the frame lacks, with their value in all rows. As literals in the frame
        they would cost more than the rows of a small batch, because Spark recompiles the plan for each different number
        in it.

        Raise TableSchemaError when the first frame's columns are not those of the tables.
        """
        ...


class Tables(Protocol):
    """All tables of a pipeline."""

    def parts(self, parts: Sequence[TablePart]) -> PartsWriter:
        """Return a writer of frames into these parts, whose tables must come from this object."""
        ...

    def table(self, name: str, schema: StructType, partition_by: tuple[str, ...] = ()) -> Table: ...

    def existing(self, name: str) -> Table | None:
        """The table with all columns it has; None when it does not exist."""
        ...

    def exists(self, name: str) -> bool: ...
