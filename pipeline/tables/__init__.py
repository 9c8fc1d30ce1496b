"""Tables: the interface, and the engines that write them."""

from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from .delta_rs import DeltaRsTables
from .interface import (
    Constant,
    FileInfo,
    Parts,
    PartsWriter,
    Table,
    TableCommitInfo,
    TableConflictError,
    TableError,
    TablePart,
    TableProtocolError,
    Tables,
    TableSchemaError,
    TableTransaction,
)

if TYPE_CHECKING:
    from ...config.pipeline import PipelineSettings

__all__ = [
    "Constant",
    "FileInfo",
    "Parts",
    "PartsWriter",
    "Table",
    "TableCommitInfo",
    "TableConflictError",
    "TableError",
    "TablePart",
    "TableProtocolError",
    "TableSchemaError",
    "TableTransaction",
    "Tables",
    "open_tables",
]

# Readers get files by name, and vacuum lists folders. By default Spark would run a task for each, 12 times slower for
# 1,500 files.
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LISTING_DEFAULT: Final = "10000"


def open_tables(settings: "PipelineSettings", spark: SparkSession) -> Tables:
    """Open the tables of these settings. Raise TableError when the engine cannot use the location or the session."""
    if spark.conf.get(_LISTING) == _LISTING_DEFAULT:
        spark.conf.set(_LISTING, str(max(8, 2 * spark.sparkContext.defaultParallelism)))
    if settings.writer == "delta-rs":
        return DeltaRsTables(settings.tables, spark)
    from .delta_jvm import DeltaJvmTables

    return DeltaJvmTables(settings.tables, spark)
