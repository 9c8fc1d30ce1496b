"""What the jobs ask of tables, whichever engine writes them.

Both engines keep Delta tables in folders beside each other and record the same things in a commit, so a table can change engine: the
`txn` action of Delta's protocol (application id and version), and, as `userMetadata`, the JSON of `commit_notes`.
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
"""A value that a column has in every row; of time with a zone."""
NO_CONSTANTS: Final[Mapping[str, Constant]] = MappingProxyType({})


class TableError(Exception):
    """A table that cannot be used as asked: the message says which and why."""


class TableConflictError(TableError):
    """Somebody else changed the table in a way that this commit must not be made over. Nothing was committed."""


class TableSchemaError(TableError):
    """A frame or reader has another type for a column than the table."""


class TableProtocolError(TableError):
    """The table needs something of its readers or writers that this version does not know."""


class TableTransaction(NamedTuple):
    """The newest commit of an application."""

    version: int
    metadata: Mapping[str, str]
    """Of the commit that carries it; empty when its entry in the log is gone (tables forget after 30 days)."""


class FileInfo(NamedTuple):
    """One data file of a table."""

    path: str
    bytes: int
    rows: int
    """0 where whoever wrote it did not say."""
    partition: Mapping[str, str | None]


class TableCommitInfo(NamedTuple):
    """A commit of ours, and the metadata it was given."""

    version: int
    """Of the table."""
    metadata: Mapping[str, str]


class Table(Protocol):
    """A table with a declared schema. It is made at the first write; columns that it lacks by then are added."""

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

        False, with nothing written, when that version of the application or a later one is there already. Raise TableConflictError
        when another writer commits the same transaction meanwhile, TableSchemaError, TableProtocolError.
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
        """Put the rows in the place of all files of the partitions that have these values, in one commit; its version.

        All rows must have those values, and there must be `rows` of them, if given: otherwise TableError, and nothing is committed. A
        file is ended when it has `file_bytes`, if given. Raise TableConflictError when those partitions are no longer what they
        were at `read_version`.
        """
        ...

    def recent_commits(self) -> list[TableCommitInfo]:
        """The newest commits of ours, about a thousand at most, newest first."""
        ...

    def overwrite(self, df: DataFrame, *, metadata: Mapping[str, str] = NOTHING) -> None:
        """Put the rows in the place of all that is there, in one commit. Raise TableConflictError when the table keeps changing."""
        ...

    def put(self, content: pa.Table, *, whole: bool = False) -> None:
        """Add rows that the driver has, or put them in the place of `whole` table, in one commit. Raise as `append`, `overwrite` do."""
        ...

    def upsert(self, rows: Sequence[Mapping[str, Any]], keys: tuple[str, ...]) -> None:
        """Replace the rows of equal keys, add the others, in one commit. For tables that fit into the driver's memory."""
        ...

    def read(self, *, hours: Iterable[str] | None = None, version: int | None = None) -> DataFrame:
        """The rows, of these hours only if given, with the declared columns; an empty frame when there is no table yet."""
        ...

    def version(self) -> int | None:
        """Number of the newest commit; None when there is no table yet."""
        ...

    def files(self, hours: Iterable[str] | None = None, *, version: int | None = None) -> list[FileInfo]:
        """The data files, of these hours only if given."""
        ...

    def vacuum(self, *, older_than_hours: float, dry_run: bool = False) -> list[str]:
        """Delete files that no version of the retention time needs, and those that no commit ever named; what they are.

        Raise TableError for less than a day: a writer at work has files that no commit names yet.
        """
        ...


class TablePart(NamedTuple):
    """Rows of a frame that go into one table."""

    table: Table
    where: Column
    """Which. The frame and its constants have all columns of the table; others of its columns are for other parts."""


class Parts(Protocol):
    """The rows of one frame, each in one part, on their way into several tables: computed once, whatever happens to its tasks."""

    def is_empty(self, part: int) -> bool:
        """Whether no row is in the part of this index."""
        ...

    def append(self, part: int, *, app: str, version: int, metadata: Mapping[str, str] = NOTHING) -> bool:
        """`Table.append` with the rows of this part."""
        ...


class PartsWriter(Protocol):
    """Writes one frame after another, each of whose rows belongs to one of the parts. For one thread."""

    def write(self, df: DataFrame, constants: Mapping[str, Constant] = NO_CONSTANTS) -> AbstractContextManager[Parts]:
        """Compute the frame. All of one writer have the columns and constants of its first, which spares looking each time.

        `constants`: columns of the tables that the frame does not have, and their value in all rows. As literals of the frame they
        would cost more than the rows of a small batch: Spark compiles a plan anew for each other number in it.

        Raise TableSchemaError when the first frame's columns are not those of the tables.
        """
        ...


class Tables(Protocol):
    """All tables of a pipeline."""

    def parts(self, parts: Sequence[TablePart]) -> PartsWriter:
        """Whatever writes frames into these parts, whose tables are these tables'."""
        ...

    def table(self, name: str, schema: StructType, partition_by: tuple[str, ...] = ()) -> Table: ...

    def existing(self, name: str) -> Table | None:
        """A table with all the columns that it has; None when it does not exist."""
        ...

    def exists(self, name: str) -> bool: ...

    def names(self) -> tuple[str, ...]:
        """Names of the tables that exist, sorted."""
        ...
