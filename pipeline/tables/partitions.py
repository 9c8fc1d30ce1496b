"""Values of partition columns: as folders, in the form of Delta's log, and as slices of an Arrow table."""

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

Value = str | None
"""In the form of Delta's log: text, or null."""

# Its functions are created at import, so type checkers do not see them.
pc: Final[Any] = pyarrow.compute

NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
# The characters that Spark's `ExternalCatalogUtils` escapes in a folder name, and unescapes when it reads.
_ESCAPED: Final = frozenset(map(chr, (*range(1, 32), 127))) | frozenset("\"#%'*/:=?\\{[]^")


def folder(values: Mapping[str, Value]) -> str:
    """Return the folder, such as `hour=2026-11-22-03`, with one level per column. Characters that a path cannot contain
    are %-escaped."""
    return "/".join(f"{name}={_escaped(value)}" for name, value in values.items())


def _escaped(value: Value) -> str:
    # Spark reads an empty text back as null, and so does Delta's log.
    if value is None or not value:
        return NULL_FOLDER
    # Spark does not escape blanks, but some systems do not allow a name to end with one.
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED or char == " " else char for char in value)


def partition_text(value: object) -> Value:
    """Return the value in the form of Delta's log (PROTOCOL.md, Partition Value Serialization)."""
    match value:
        case None | "":
            return None
        case bool():
            return "true" if value else "false"
        case dt.date():
            return value.isoformat()
        case _:
            return str(value)


def split(table: pa.Table, columns: tuple[str, ...]) -> Iterator[tuple[dict[str, Value], pa.Table]]:
    """Yield the rows of each combination of partition values, in their order, without the partition columns."""
    if table.num_rows == 0:
        return
    if not columns:
        yield {}, table
        return
    distinct = table.select(list(columns)).group_by(list(columns), use_threads=False).aggregate([])
    rest = table.drop_columns(list(columns))
    if distinct.num_rows == 1:
        yield _values(distinct, 0, columns), rest
        return
    # The sort is stable: rows of one partition keep their order.
    order = pc.sort_indices(table.select(list(columns)), sort_keys=[(name, "ascending") for name in columns])
    keys, rest = table.select(list(columns)).take(order), rest.take(order)
    start = 0
    for end in (*_group_starts(keys, columns), table.num_rows):
        yield _values(keys, start, columns), rest.slice(start, end - start)
        start = end


def _values(keys: pa.Table, row: int, columns: tuple[str, ...]) -> dict[str, Value]:
    return {name: partition_text(keys.column(name)[row].as_py()) for name in columns}


def _group_starts(keys: pa.Table, columns: tuple[str, ...]) -> list[int]:
    """Indexes of the rows that differ from the row before."""
    borders: set[int] = set()
    for name in columns:
        codes = pc.fill_null(pc.dictionary_encode(keys.column(name).combine_chunks()).indices, -1)
        changed = pc.not_equal(codes.slice(1), codes.slice(0, len(codes) - 1))
        borders.update(index + 1 for index in pc.indices_nonzero(changed).to_pylist())
    return sorted(borders)
