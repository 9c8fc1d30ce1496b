"""Opens tables with the engine in the settings."""

from typing import Final, Literal, Protocol

from pyspark.sql import SparkSession

from .delta_rs import DeltaRsTables
from .delta_source import PenstockDelta
from .interface import Tables

# Readers get files by name, and vacuum lists folders. By default Spark would run a task for each, 12 times slower for
# 1,500 files.
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LISTING_DEFAULT: Final = "10000"


class TableSettings(Protocol):
    """The settings that this module reads."""

    @property
    def tables(self) -> str:
        """The folder of all tables. Every executor must see it."""
        ...

    @property
    def writer(self) -> Literal["delta-rs", "delta-jvm"]: ...


def register(spark: SparkSession) -> None:
    """Register the data source `penstock_delta` in this session."""
    spark.dataSource.register(PenstockDelta)


def open_tables(settings: TableSettings, spark: SparkSession) -> Tables:
    """Open the tables of these settings. Raise TableError when the engine cannot use the location or the session."""
    if spark.conf.get(_LISTING) == _LISTING_DEFAULT:
        spark.conf.set(_LISTING, str(max(8, 2 * spark.sparkContext.defaultParallelism)))
    if settings.writer == "delta-rs":
        register(spark)
        return DeltaRsTables(settings.tables, spark)
    from .delta_jvm import DeltaJvmTables

    return DeltaJvmTables(settings.tables, spark)
