"""Columns and names of the tables that `audit` writes.

`audit_counts`, `audit_ranges`, `audit_holes` and `audit_heartbeats` hold the folded audit topic; each run replaces
them. The other tables hold the rows of every run, with the column `run`.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

COUNTS_TABLE: Final = "audit_counts"
RANGES_TABLE: Final = "audit_ranges"
HOLES_TABLE: Final = "audit_holes"
HEARTBEATS_TABLE: Final = "audit_heartbeats"
REPORT_TABLE: Final = "audit_report"
MISSING_TABLE: Final = "audit_missing"
DUPLICATES_TABLE: Final = "audit_duplicates"


def _columns(**columns: DataType) -> StructType:
    return StructType([StructField(name.rstrip("_"), kind) for name, kind in columns.items()])


COUNTS: Final = _columns(
    incarnation=StringType(),
    shard=IntegerType(),
    topic=StringType(),
    minute=LongType(),
    era=IntegerType(),
    host=StringType(),
    version=LongType(),
    sent_at=LongType(),
    ids=BooleanType(),
    accepted=LongType(),
    bytes=LongType(),
    refused=MapType(StringType(), LongType()),
    delivered=LongType(),
    batches=LongType(),
    resent=LongType(),
    settled=BooleanType(),
)
"""Shard -1: records that the router accepted (`ids` to `refused`). Others: results of a shard (`delivered` to `resent`,
and `bytes`)."""

RANGES: Final = _columns(
    incarnation=StringType(),
    topic=StringType(),
    origin=IntegerType(),
    minute=LongType(),
    era=IntegerType(),
    first=LongType(),
    end=LongType(),
    settled_end=LongType(),
    offset_end=LongType(),
)

HOLES: Final = _columns(
    incarnation=StringType(),
    topic=StringType(),
    origin=IntegerType(),
    first=LongType(),
    end=LongType(),
    reason=StringType(),
    minute=LongType(),
)

HEARTBEATS: Final = _columns(
    incarnation=StringType(),
    host=StringType(),
    version=LongType(),
    sent_at=LongType(),
    state=StringType(),
    closed_before=LongType(),
    settled_before=LongType(),
    interval_s=DoubleType(),
)
"""The newest heartbeat of each incarnation; times in ms since 1970."""

REPORT: Final = _columns(
    topic=StringType(),
    hour=StringType(),
    # 12 hex digits; empty in the row that counts records without an id.
    incarnation=StringType(),
    run=StringType(),
    run_at=TimestampType(),
    host=StringType(),
    # One of `report.data.Status`.
    status=StringType(),
    accepted=LongType(),
    holes=LongType(),
    expected=LongType(),
    landed=LongType(),
    # Expected ids that have landed: expected = distinct + pending + late + lost.
    distinct=LongType(),
    pending=LongType(),
    late=LongType(),
    lost=LongType(),
    # Rows after the first of each id.
    duplicated=LongType(),
    recovered=LongType(),
    foreign=LongType(),
    # Rows whose id is in no range although their minute is closed.
    unknown=LongType(),
    latency_p50_s=DoubleType(),
    latency_p99_s=DoubleType(),
    # The heartbeat is past the hour's end, or its state is `closed`.
    closed=BooleanType(),
    # Every ordinal assigned in the hour is delivered, or a hole.
    settled=BooleanType(),
    # Why the status is `unknown`, one sentence each.
    doubts=ArrayType(StringType()),
)

MISSING: Final = _columns(
    topic=StringType(),
    hour=StringType(),
    incarnation=StringType(),
    origin=IntegerType(),
    first=LongType(),
    end=LongType(),
    # One of `report.data.MissingClass`.
    class_=StringType(),
    evidence=StringType(),
    run=StringType(),
)

PLACES: Final = ArrayType(StructType([StructField("partition", IntegerType()), StructField("offset", LongType())]))

DUPLICATES: Final = _columns(
    topic=StringType(),
    hour=StringType(),
    incarnation=StringType(),
    origin=IntegerType(),
    ordinal=LongType(),
    # Number of rows with this id.
    copies=LongType(),
    # Sorted; only the first ones if there are very many.
    places=PLACES,
    run=StringType(),
)
