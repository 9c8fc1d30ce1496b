"""Writes the parts of a frame with any engine. The frame is cached while its parts are written."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from .interface import NO_CONSTANTS, NOTHING, Constant, Parts, TablePart

_PARTITIONS_MAX: Final = 1_000_000


class CachedPartsWriter:
    """`PartsWriter` for any engine."""

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
