"""Frames that several steps of a run read. They are computed once, and keep a short lineage.

Most runs process little data. Small results are brought to the driver early, and further plans start from there: with
one partition there are no shuffles, and no planning or compiling that takes longer than it saves.
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
"""Maximum rows of a frame that the driver takes."""
UNCOMPILED_ROWS_MAX: Final = 200_000
"""Up to this many rows, plans run faster without compilation."""
_UNCOMPILED: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


class FrameCache:
    """The cached frames of one run; released on exit."""

    def __init__(self, spark: SparkSession, few: int = DRIVER_ROWS_MAX) -> None:
        """`few`: maximum rows of a frame that the driver takes."""
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
        """Run plans without compilation inside the block, if there is `little` data."""
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
        """Cache the rows: at the driver if they are few, otherwise in the executors. `small`: whether they may be
        few."""
        found = self.collect_if_few(frame) if small else None
        if found is not None:
            return self.local(found, frame.schema)
        kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
        _ = self._kept.callback(kept.unpersist)
        return kept

    def local(self, content: pa.Table, schema: StructType | str) -> DataFrame:
        """Make a frame from data of the driver."""
        made = self._spark.createDataFrame(content, schema)
        if content.num_rows:
            # With one partition, rows to group or join are together already. Empty tables are left alone, because plans
            # skip them.
            made = made.coalesce(1)
        self._small[id(made)] = content
        # The reference keeps the frame's id unique.
        self._driver_frames.append(made)
        return made

    def empty_frame(self, schema: StructType | str) -> DataFrame:
        kinds = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
        assert isinstance(kinds, StructType), "a schema is of columns"
        return self.local(to_arrow_schema(kinds).empty_table(), kinds)

    def collect_if_few(self, frame: DataFrame) -> pa.Table | None:
        """Return all rows if they are few, otherwise None."""
        known = self._small.get(id(frame))
        if known is not None:
            return known
        found = frame.limit(self._driver_rows_max + 1).toArrow()
        return found if found.num_rows <= self._driver_rows_max else None

    def are_on_driver(self, *frames: DataFrame) -> bool:
        return all(id(frame) in self._small for frame in frames)

    def is_empty(self, frame: DataFrame) -> bool:
        known = self._small.get(id(frame))
        return frame.isEmpty() if known is None else known.num_rows == 0
