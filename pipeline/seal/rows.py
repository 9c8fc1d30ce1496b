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
        # From 1; rises when the hour is reopened.
        StructField("generation", IntegerType()),
        # One of `core.sealing.SealStatus`.
        StructField("status", StringType()),
        # The books at that moment; `landed` counts rows of both tables, before spare ones were removed.
        *(StructField(name, LongType()) for name in _LONGS),
        # Daemons' identities that contributed.
        StructField("incarnations", IntegerType()),
        # `run` of the rows of `audit_report` and `audit_missing` that it rests on.
        StructField("audit_run", StringType()),
        # Version of the bronze table that has the compacted hour; null when the hour has no row there.
        StructField("table_version", LongType()),
        StructField("files_before", LongType()),
        StructField("files_after", LongType()),
        StructField("bytes", LongType()),
        StructField("sealed_at", TimestampType()),
    ]
)
"""A row of status `reopened` has the books of the seal it ends."""


def seals_table(tables: Tables) -> Table:
    """The table `seals`."""
    return tables.table(SEALS_TABLE, SEALS)


def read_seals(tables: Tables) -> dict[tuple[str, str], HourSeal]:
    """The newest seal of each (topic, hour)."""
    columns = ("topic", "hour", "generation", "status", "landed", "foreign", "duplicates_removed")
    rows = seals_table(tables).read().select(*columns).collect()
    return newest_seals(row.asDict() for row in rows)
