"""Columns and names of the tables that `audit` writes.

`audit_counts`, `audit_ranges`, `audit_holes` and `audit_heartbeats` are the audit topic folded, each run in the place of the one
before. The others have the rows of every run, told apart by `run`.
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
"""Shard -1: what the router took (`ids` to `refused`); others: what a shard reported (`delivered` to `resent`, and `bytes`)."""

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
"""The newest of each incarnation; times in ms since 1970."""

REPORT: Final = _columns(
    topic=StringType(),
    hour=StringType(),
    # 12 hex digits; empty in the row that counts what has no id.
    incarnation=StringType(),
    run=StringType(),
    run_at=TimestampType(),
    host=StringType(),
    # One of `core.report_data.Status`.
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
    # Rows beyond the first of their id.
    duplicated=LongType(),
    recovered=LongType(),
    foreign=LongType(),
    # Rows whose id no range has, though their minute is closed.
    unknown=LongType(),
    latency_p50_s=DoubleType(),
    latency_p99_s=DoubleType(),
    # The heartbeat is past the hour's end, or says `closed`.
    closed=BooleanType(),
    # Every ordinal that was given out in the hour is delivered, or a hole.
    settled=BooleanType(),
    # Why the status is `unknown`, a sentence each.
    doubts=ArrayType(StringType()),
)

MISSING: Final = _columns(
    topic=StringType(),
    hour=StringType(),
    incarnation=StringType(),
    origin=IntegerType(),
    first=LongType(),
    end=LongType(),
    # One of `core.report_data.MissingClass`.
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
    # Rows of this id.
    copies=LongType(),
    # Sorted; of very many the first ones.
    places=PLACES,
    run=StringType(),
)
