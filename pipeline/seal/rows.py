"""The table `seals`: its columns, and the newest row of each hour."""

from typing import Final

from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from ..tables import Table, Tables
from .decisions import HourSeal, newest_seals

SEALS_TABLE: Final = "seals"
KEY: Final = ("topic", "hour", "generation")
_LONGS: Final = ("accepted", "holes", "landed", "distinct", "lost", "duplicates_removed", "foreign")

SEALS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("hour", StringType()),
        # Starts at 1; increases when the hour is reopened.
        StructField("generation", IntegerType()),
        # One of `seal.decisions.SealStatus`.
        StructField("status", StringType()),
        # The audit's counts at that time. `landed` counts rows of both tables, before extra ones were removed.
        *(StructField(name, LongType()) for name in _LONGS),
        # Number of incarnations that contributed.
        StructField("incarnations", IntegerType()),
        # `run` of the rows of `audit_report` and `audit_missing` that the seal is based on.
        StructField("audit_run", StringType()),
        # Version of the bronze table with the compacted hour; null when the hour has no rows there.
        StructField("table_version", LongType()),
        StructField("files_before", LongType()),
        StructField("files_after", LongType()),
        StructField("bytes", LongType()),
        StructField("sealed_at", TimestampType()),
    ]
)
"""A row of status `reopened` has the counts of the seal that it ends."""


def seals_table(tables: Tables) -> Table:
    return tables.table(SEALS_TABLE, SEALS)


def read_seals(tables: Tables) -> dict[tuple[str, str], HourSeal]:
    """The newest seal of each (topic, hour)."""
    columns = ("topic", "hour", "generation", "status", "landed", "foreign", "duplicates_removed")
    rows = seals_table(tables).read().select(*columns).collect()
    return newest_seals(row.asDict() for row in rows)
