"""Columns of the tables that `land` writes. All may be null for Spark; the comments say which are."""

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
"""As Spark's date_format takes it; UTC."""
PARTITION_BY: Final = ("hour",)

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_ID: Final = (
    # Null, all four, for a record that did not come through Penstock.
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
    # Of accept_ts, or of kafka_ts where there is none.
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
        # The record's value as it lay in Kafka; null for a tombstone whose id header was at fault.
        StructField("raw", BinaryType()),
        # One of `formats.ErrorClass`.
        StructField("error_class", StringType()),
        # At most 1 KiB.
        StructField("error", StringType()),
        StructField("format", StringType()),
        *_LANDING,
    ]
)


def bronze(value: DataType) -> StructType:
    """The columns of a topic's table whose values have this type: binary, a struct, or variant. A null value is a tombstone."""
    return StructType([*_ID, *_POSITION, StructField("value", value), StructField("headers", HEADERS), *_LANDING])
