"""Classifies ids that have not landed (still in a spool, on their way, or lost), with the evidence."""

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from ...wire import audit_records
from ..kafka_admin import Offsets
from ..report.data import MissingClass
from .columns import hour_of_minute, moment_text, number

_PLACES: Final = "topic string, origin int, read_to bigint, log_start bigint, log_end bigint"


CLASSIFIED: Final = """topic string, hour string, incarnation string, origin int, minute bigint, first bigint, end bigint,
    class string, evidence string"""


class LatenessThreshold(NamedTuple):
    """The times that decide where no offset is known."""

    now_ms: int
    late_after_ms: int


def partition_offsets(spark: SparkSession, read_to: Offsets, log_starts: Offsets, log_ends: Offsets) -> DataFrame:
    """One row per partition with any known offset."""
    known = sorted(
        {(topic, part) for each in (read_to, log_starts, log_ends) for topic in each for part in each[topic]}
    )
    rows = [
        (topic, part, *(each.get(topic, {}).get(part) for each in (read_to, log_starts, log_ends)))
        for topic, part in known
    ]
    return spark.createDataFrame(rows, _PLACES)


def classify(missing: DataFrame, heartbeats: DataFrame, where: DataFrame, clock: LatenessThreshold) -> DataFrame:
    """Return `CLASSIFIED`: runs of missing ids, split where settled ordinals end.

    `missing`: rows of `comparison.JUDGED`; `where`: from `partition_offsets`.
    """
    beats = heartbeats.select("incarnation", "state", F.col("sent_at").alias("beat_at"))
    cut = F.array(
        F.struct(F.col("first"), F.least("end", "settled_end").alias("end"), F.lit(True).alias("settled")),
        F.struct(F.greatest("first", "settled_end").alias("first"), F.col("end"), F.lit(False).alias("settled")),
    )
    parts = missing.withColumn("_", F.explode(F.filter(cut, lambda part: part["first"] < part["end"])))
    known = (
        parts.select(
            *("topic", "incarnation", "origin", "minute", "offset_end", "sent_at"),
            *("_.first", "_.end", "_.settled"),
        )
        .join(F.broadcast(where), ["topic", "origin"], "left")
        .join(beats, "incarnation", "left")
    )
    verdict = F.when(F.col("settled"), _settled(clock)).otherwise(_open(clock))
    return known.withColumn("_", verdict).select(
        "topic",
        hour_of_minute(F.col("minute")).alias("hour"),
        *("incarnation", "origin", "minute", "first", "end"),
        F.col("_.class").alias("class"),
        F.col("_.evidence").alias("evidence"),
    )


def _settled(clock: LatenessThreshold) -> Column:
    """Class of settled ids. Kafka has acknowledged them, so compare the range's end offset with `land`'s position."""
    read_to, log_start, log_end, end = (F.col(name) for name in ("read_to", "log_start", "log_end", "offset_end"))
    gone = F.coalesce(log_end < end, F.lit(False))
    ends = F.concat(F.lit(", the range ends at "), number(end))
    waiting = F.coalesce(
        F.concat(_partition(), F.lit(" was read to "), number(read_to), ends),
        F.concat(_partition(), F.lit(" was not read yet as far as is known"), ends),
    )
    by_offset = (
        F.when(gone, _classification(MissingClass.LOST, _partition(), F.lit(" ends at "), number(log_end), ends))
        .when(read_to >= end, _classification(MissingClass.LOST, waiting))
        .when(
            log_start >= end,
            _classification(MissingClass.LOST, _partition(), F.lit(" begins at "), number(log_start), ends),
        )
        .otherwise(_classification(MissingClass.LATE, waiting))
    )
    told = F.concat(F.lit("settled by "), moment_text(F.col("sent_at")), F.lit(", where in Kafka is not known"))
    by_clock = F.when(
        F.lit(clock.now_ms) - F.col("sent_at") >= clock.late_after_ms, _classification(MissingClass.LOST, told)
    ).otherwise(_classification(MissingClass.LATE, told))
    return F.when(end >= 0, by_offset).otherwise(by_clock)


def _open(clock: LatenessThreshold) -> Column:
    """Class of ids without a known outcome. If the incarnation has ended, no outcome will follow."""
    ended = F.concat(F.lit("not delivered when its daemon ended, at "), moment_text(F.col("beat_at")))
    whole = F.coalesce(F.col("read_to") >= F.col("log_end"), F.lit(False))
    old = F.lit(clock.now_ms) - F.col("beat_at") >= clock.late_after_ms
    return (
        F.when(
            F.coalesce(F.col("state") != audit_records.CLOSED, F.lit(True)),
            _classification(MissingClass.PENDING, F.lit("not known to be delivered: still in a spool")),
        )
        .when(
            whole, _classification(MissingClass.LOST, ended, F.lit("; "), _partition(), F.lit(" was read to its end"))
        )
        .when(old, _classification(MissingClass.LOST, ended))
        .otherwise(
            _classification(MissingClass.LATE, ended, F.lit("; "), _partition(), F.lit(" was not read to its end yet"))
        )
    )


def _partition() -> Column:
    return F.concat(F.lit("partition "), F.col("origin").cast("string"))


def _classification(found: MissingClass, *evidence: Column) -> Column:
    return F.struct(F.lit(str(found)).alias("class"), F.concat(*evidence).alias("evidence"))


def merge_runs(missing: DataFrame) -> DataFrame:
    """Merge runs that were split only by bucket, minute or evidence; keep the last evidence."""
    key = ("topic", "hour", "incarnation", "origin", "class")
    order = Window.partitionBy(*key).orderBy("first")
    starts = F.coalesce(F.col("first") != F.lag("end").over(order), F.lit(True))
    return (
        missing.withColumn("starts", starts.cast("int"))
        .withColumn("run", F.sum("starts").over(order))
        .groupBy(*key, "run")
        .agg(F.min("first").alias("first"), F.max("end").alias("end"), F.max_by("evidence", "end").alias("evidence"))
        .drop("run")
    )
