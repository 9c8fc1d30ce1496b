"""Frames that several steps of a run read: computed once, and short of history.

Most runs look at little. What they find is brought to the driver as soon as it is small, and further plans begin there: with one
partition nothing is shuffled, and nothing is planned or compiled that takes longer than it saves.
"""

import contextlib
from collections.abc import Generator
from typing import Final, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.storagelevel import StorageLevel

DRIVER_ROWS_MAX: Final = 50_000
"""Rows that the driver takes of a frame."""
UNCOMPILED_ROWS_MAX: Final = 200_000
"""Rows that are read faster by plans that are not compiled."""
_UNCOMPILED: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


class FrameCache:
    """Of one run, until it is closed."""

    def __init__(self, spark: SparkSession, few: int = DRIVER_ROWS_MAX) -> None:
        """`are_on_driver`: of so many rows the driver takes a frame."""
        self._spark = spark
        self._driver_rows_max = few
        self._kept = contextlib.ExitStack()
        self._small: dict[int, pa.Table] = {}
        self._driver_frames: list[DataFrame] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    @contextlib.contextmanager
    def uncompiled_plans(self, *, little: bool) -> Generator[None]:
        """While it lasts, plans are run as they are, if there is `little` for them to do."""
        if not little:
            yield
            return
        before = {name: self._spark.conf.get(name) for name in _UNCOMPILED}
        try:
            for name, value in _UNCOMPILED.items():
                self._spark.conf.set(name, value)
            yield
        finally:
            for name, given in before.items():
                if given is not None:
                    self._spark.conf.set(name, given)

    def keep(self, frame: DataFrame, *, small: bool = True) -> DataFrame:
        """The same rows, computed once: at the driver where they are few, or else where they are. `small`: whether they may be."""
        found = self.collect_if_few(frame) if small else None
        if found is not None:
            return self.local(found, frame.schema)
        kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
        _ = self._kept.callback(kept.unpersist)
        return kept

    def local(self, content: pa.Table, schema: StructType | str) -> DataFrame:
        """A frame of what the driver has."""
        made = self._spark.createDataFrame(content, schema)
        if content.num_rows:
            # One partition: whatever is grouped or joined lies together already. Plans leave out what has no rows at all.
            made = made.coalesce(1)
        self._small[id(made)] = content
        # Its id is its own as long as it is held.
        self._driver_frames.append(made)
        return made

    def empty_frame(self, schema: StructType | str) -> DataFrame:
        """No rows."""
        kinds = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
        assert isinstance(kinds, StructType), "a schema is of columns"
        return self.local(to_arrow_schema(kinds).empty_table(), kinds)

    def collect_if_few(self, frame: DataFrame) -> pa.Table | None:
        """All rows, if they are few."""
        known = self._small.get(id(frame))
        if known is not None:
            return known
        found = frame.limit(self._driver_rows_max + 1).toArrow()
        return found if found.num_rows <= self._driver_rows_max else None

    def are_on_driver(self, *frames: DataFrame) -> bool:
        """Whether the driver has all of them."""
        return all(id(frame) in self._small for frame in frames)

    def is_empty(self, frame: DataFrame) -> bool:
        """Whether it has no rows."""
        known = self._small.get(id(frame))
        return frame.isEmpty() if known is None else known.num_rows == 0
