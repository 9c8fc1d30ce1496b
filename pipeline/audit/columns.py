"""Column expressions that several steps of the audit use."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ..schemas import HOUR_FORMAT
from .bitmaps import BITS, WORD, WORDS

ID: Final = ("topic", "incarnation", "origin")
HOURLY: Final = ("topic", "hour", "incarnation")


def hour_of_minute(minute: Column) -> Column:
    return F.date_format(F.timestamp_seconds(minute * 60), HOUR_FORMAT)


def hour_of_number(number: Column) -> Column:
    """The hour of a number of hours since 1970."""
    return F.date_format(F.timestamp_seconds(number * 3_600), HOUR_FORMAT)


def hour_end_ms(hour: Column) -> Column:
    """The end of an hour in ms since 1970."""
    return F.unix_millis(F.to_timestamp(hour, HOUR_FORMAT)) + 3_600_000


def minute_text(minute: Column) -> Column:
    return F.date_format(F.timestamp_seconds(minute * 60), "yyyy-MM-dd HH:mm")


def moment_text(ms: Column) -> Column:
    """Format a time in ms since 1970, to the minute."""
    return F.date_format(F.timestamp_millis(ms), "yyyy-MM-dd HH:mm")


def by_bucket(spans: DataFrame) -> DataFrame:
    """Return one row for each bucket that [first, end) touches."""
    buckets = F.sequence(bucket_of(F.col("first")), bucket_of(F.col("end") - 1))
    return spans.withColumn("bucket", F.explode(buckets))


def bucket_of(ordinal: Column) -> Column:
    """The bucket of an ordinal, counted from 1."""
    return F.shiftright(ordinal, BITS.bit_length() - 1) + 1


def word_of(ordinal: Column) -> Column:
    """The word of 64 ordinals that contains the ordinal, counted from 0 over all buckets."""
    return F.shiftright(ordinal, WORD.bit_length() - 1)


def bucket_of_word(word: Column) -> Column:
    return F.shiftright(word, WORDS.bit_length() - 1) + 1


def number(column: Column) -> Column:
    """Format a count: 1,234."""
    return F.format_number(column, 0)
