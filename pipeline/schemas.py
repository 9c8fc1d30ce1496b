"""Columns of the tables that `land` writes. For Spark all are nullable; comments name the columns that are null in
practice."""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

HOUR_FORMAT: Final = "yyyy-MM-dd-HH"
"""The format for Spark's date_format; UTC."""
PARTITION_BY: Final = ("hour",)

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_ID: Final = (
    # All four are null for a record that did not come through Penstock.
    StructField("incarnation", StringType()),
    StructField("origin", IntegerType()),
    StructField("ordinal", LongType()),
    StructField("accept_ts", TimestampType()),
)
_POSITION: Final = (
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("kafka_ts", TimestampType()),
    # The hour of accept_ts, or of kafka_ts without an accept_ts.
    StructField("hour", StringType()),
    # Null for a record without key.
    StructField("key", BinaryType()),
)
_LANDING: Final = (
    StructField("schema_version", StringType()),
    StructField("batch", LongType()),
    StructField("landed_at", TimestampType()),
)

QUARANTINE: Final = StructType(
    [
        *_ID,
        *_POSITION,
        StructField("headers", HEADERS),
        # The record's value as it was in Kafka; null for a tombstone with a bad id header.
        StructField("raw", BinaryType()),
        # One of `land.parse_rules.ErrorClass`.
        StructField("error_class", StringType()),
        # At most 1 KiB.
        StructField("error", StringType()),
        StructField("format", StringType()),
        *_LANDING,
    ]
)


def bronze(value: DataType) -> StructType:
    """Return the columns of a topic's table whose values have this type: binary, a struct, or variant. A null value is
    a tombstone."""
    return StructType([*_ID, *_POSITION, StructField("value", value), StructField("headers", HEADERS), *_LANDING])
