"""Splits off the record id header (`wire.record_ids`) with column expressions, without Python code per record.

A header of version 1 is read; a record without a header is foreign. `header_error` describes any other header. A
version that a later Penstock may have written is not the record's fault: see `NewerIds`.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, LongType, StringType

from ...wire.record_ids import BYTES, HEADER, VERSION
from ..schemas import HEADERS, HOUR_FORMAT
from .parse_rules import NewerIds

NEWER_VERSIONS_MAX: Final = 15
"""Penstock's versions increase one by one, so higher versions are noise from a foreign header."""
_YEAR_10000_MS: Final = 253_402_300_800_000
_YEAR_10000_LABEL: Final = "9999-12-31-23"
_EPOCH_LABEL: Final = "1970-01-01-00"

DOUBLED: Final = "several id headers"
WITHOUT_VALUE: Final = "an id header without value"
NO_INCARNATION: Final = "an id header with incarnation 0, which nobody has"
TOO_LATE: Final = "an id header with an accept time after the year 9999"
NEWER: Final = f"is newer than version {VERSION}, which this program reads: upgrade the pipeline before the daemons"


def split(frame: DataFrame, *, newer_ids: NewerIds) -> DataFrame:
    """Add `incarnation`, `origin`, `ordinal`, `accept_ts`, `hour` and `header_error`; remove the id from `headers`.

    The frame has `headers` and `timestamp` of Spark's Kafka connector. A bad header stays in `headers`, for the
    inspection of the record in quarantine.
    """
    columns = [name for name in frame.columns if name not in ("headers", "timestamp")]
    frame = frame.select(
        *columns,
        # Tables and Python have no later time, but producers may send any.
        F.least(F.col("timestamp"), F.timestamp_millis(F.lit(_YEAR_10000_MS - 1))).alias("timestamp"),
        F.col("headers").cast(HEADERS).alias("headers"),
        # Position from 1; 0 without the header, null without headers. No expression here uses a lambda: Spark does not
        # compile expressions with one.
        F.array_position(_keys(), HEADER).cast(IntegerType()).alias("_at"),
    )
    frame = frame.select("*", F.when(F.col("_at") > 0, _header().getField("value")).alias("_id"))
    frame = frame.select("*", _is_good().alias("_good"))
    # The sixteen bytes after the incarnation, as two numbers: converting bytes to numbers is the most expensive step.
    frame = frame.select(
        "*",
        F.when(F.col("_good"), _number(7, 8)).alias("_front"),
        F.when(F.col("_good"), _number(15, 8)).alias("_back"),
    )
    good = F.col("_good")
    frame = frame.select(
        *columns,
        "timestamp",
        F.when(good, F.lower(F.hex(F.substring(F.col("_id"), 2, 6)))).alias("incarnation"),
        F.shiftrightunsigned(F.col("_front"), 40).cast(IntegerType()).alias("origin"),
        _ordinal().alias("ordinal"),
        F.timestamp_millis(F.col("_back").bitwiseAND(F.lit((1 << 48) - 1))).alias("accept_ts"),
        F.when(good, _other_headers()).otherwise(F.col("headers")).alias("headers"),
        F.when(~good, _error(newer_ids)).alias("header_error"),
    )
    return frame.select("*", hour_of(F.coalesce(F.col("accept_ts"), F.col("timestamp"))).alias("hour"))


def hour_of(moment: Column) -> Column:
    """Return the partition of a time. Producers may send any time: those outside 1970 to 9999 go to the first or last
    hour."""
    text = F.date_format(moment, HOUR_FORMAT)
    return (
        F.when(moment < F.timestamp_millis(F.lit(0)), F.lit(_EPOCH_LABEL))
        .when(moment >= F.timestamp_millis(F.lit(_YEAR_10000_MS)), F.lit(_YEAR_10000_LABEL))
        .otherwise(text)
    )


def _keys() -> Column:
    return F.col("headers").getField("key")


def _header() -> Column:
    return F.get(F.col("headers"), F.col("_at") - 1)


def _is_only_id_header() -> Column:
    """Whether no other id header follows the first. The daemon writes it last; then there are none to search."""
    size = F.size(F.col("headers"))
    return (F.col("_at") == size) | ~F.array_contains(F.slice(_keys(), F.col("_at") + 1, size), HEADER)


def _is_good() -> Column:
    """Whether there is exactly one id header and it is valid. Comparing bytes is cheap, and most records need no
    more."""
    value = F.col("_id")
    good = (
        (F.col("_at") > 0)
        & _is_only_id_header()
        & (F.octet_length(value) == BYTES)
        & (F.substring(value, 1, 1) == F.lit(bytes([VERSION])))
        & (F.substring(value, 2, 6) != F.lit(bytes(6)))
        & (F.substring(value, 18, 6) < F.lit(_YEAR_10000_MS.to_bytes(6, "big")))
    )
    return F.coalesce(good, F.lit(False))


def _other_headers() -> Column:
    """Return the headers without the id; null if there are no others, like the connector's value for a record without
    headers."""
    headers, at, size = F.col("headers"), F.col("_at"), F.size(F.col("headers"))
    before = F.slice(headers, F.lit(1), at - 1)
    rest = F.when(at == size, before).otherwise(F.concat(before, F.slice(headers, at + 1, size)))
    return F.when(size > 1, rest)


def _ordinal() -> Column:
    front = F.col("_front").bitwiseAND(F.lit((1 << 40) - 1))
    return F.shiftleft(front, 16).bitwiseOR(F.shiftrightunsigned(F.col("_back"), 48))


def _number(start: int, length: int) -> Column:
    """Bytes of the id as a big-endian number, signed if eight bytes; `start` counts from 0."""
    return F.conv(F.hex(F.substring(F.col("_id"), start + 1, length)), 16, -10).cast(LongType())


def _error(newer_ids: NewerIds) -> Column:
    """Describe the problem of a header that is not good; null without a header."""
    value = F.col("_id")
    size = F.octet_length(value)
    version = _number(0, 1).cast(IntegerType())
    newer = F.concat(F.lit("the id header's version "), version.cast(StringType()), F.lit(f" {NEWER}"))
    return (
        F.when(F.coalesce(F.col("_at"), F.lit(0)) == 0, F.lit(None).cast(StringType()))
        .when(~_is_only_id_header(), F.lit(DOUBLED))
        .when(value.isNull(), F.lit(WITHOUT_VALUE))
        .when(size == 0, _wrong_size(size))
        .when(
            version.between(VERSION + 1, NEWER_VERSIONS_MAX),
            F.raise_error(newer).cast(StringType()) if newer_ids == "stop" else newer,
        )
        .when(version != VERSION, F.concat(F.lit("an id header of version "), version.cast(StringType())))
        .when(size != BYTES, _wrong_size(size))
        .when(F.substring(value, 2, 6) == F.lit(bytes(6)), F.lit(NO_INCARNATION))
        .otherwise(F.lit(TOO_LATE))
    )


def _wrong_size(size: Column) -> Column:
    """Error message for an id header that is too short or too long."""
    return F.concat(F.lit("an id header of "), size.cast(StringType()), F.lit(f" bytes, not {BYTES}"))
