"""Lists duplicated ids, and counts landed ids in no range. Reads the rows again, for the few buckets that need it."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ...wire import audit_records
from .columns import HOURLY, ID, bucket_of, by_bucket, hour_of_minute
from .landed import rows_in

PLACES_MAX: Final = 100
"""Maximum number of positions kept per id."""
DUPLICATES: Final = """topic string, incarnation string, origin int, ordinal bigint, copies bigint,
    places array<struct<partition: int, offset: bigint>>, minute bigint, hour string"""
STRAYS: Final = "topic string, hour string, incarnation string, unknown bigint, ahead bigint"


def duplicates(rows: DataFrame, doubled: DataFrame, ranges: DataFrame) -> DataFrame:
    """Ids of wanted ranges that landed more than once, with hour, minute and positions in Kafka.

    `rows`: all landed rows; `doubled`: keys of the words with more rows than ids.
    """
    sorted_places = F.array_sort(F.collect_list(F.struct("partition", "offset")))
    twice = (
        rows_in(rows, doubled)
        .groupBy(*ID, bucket_of(F.col("ordinal")).alias("bucket"), "ordinal")
        .agg(F.count("*").alias("copies"), F.slice(sorted_places, 1, PLACES_MAX).alias("places"))
        .where(F.col("copies") > 1)
    )
    known = by_bucket(ranges.where("wanted").select(*ID, "minute", "first", "end"))
    return (
        twice.join(known, [*ID, "bucket"])
        .where((F.col("ordinal") >= F.col("first")) & (F.col("ordinal") < F.col("end")))
        # List an id once even if audit ranges overlap.
        .groupBy(*ID, "ordinal", "copies", "places")
        .agg(F.min("minute").alias("minute"))
        .withColumn("hour", hour_of_minute(F.col("minute")))
    )


def strays(rows: DataFrame, spans: DataFrame, heartbeats: DataFrame) -> DataFrame:
    """Count landed ids in no range, by topic, hour of the row, and incarnation: `unknown`, and `ahead` of the audit
    records.

    Audit records follow their records by some seconds: an id of a minute that is not closed yet may be in no range.
    """
    beats = heartbeats.select("incarnation", "closed_before", "state")
    found = (
        rows_in(rows, spans.select(*ID, "bucket"))
        .join(spans.select(*ID, "bucket", "first", F.col("end").alias("until")), [*ID, "bucket"])
        .where((F.col("ordinal") >= F.col("first")) & (F.col("ordinal") < F.col("until")))
        .join(F.broadcast(beats), "incarnation", "left")
    )
    open_yet = (F.col("state") == audit_records.RUNNING) & (F.unix_millis("accept_ts") >= F.col("closed_before"))
    ahead = F.coalesce(open_yet, F.lit(False))
    return found.groupBy(*HOURLY).agg(F.count_if(~ahead).alias("unknown"), F.count_if(ahead).alias("ahead"))
