"""The rows of `audit_report`: one per topic, hour and incarnation, with its verdict."""

from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ...wire import audit_records
from ..report.data import COUNTS, MissingClass, Status
from . import schemas
from .columns import HOURLY, hour_end_ms, hour_of_minute, moment_text, number
from .totals import AuditTotals

DOUBTS_MAX: Final = 20
"""Maximum number of sentences per row."""
INTERVALS_MISSED: Final = 3
"""A heartbeat is stale only after this many of its intervals."""
_SUMS: Final = (*COUNTS, "unknown", "ahead", "unsettled", "with_ids", "without_ids")


class AuditFrames(NamedTuple):
    """Results of the earlier steps for the wanted hours."""

    totals: AuditTotals
    judged: DataFrame
    """`comparison.JUDGED`, rows of ranges."""
    missing: DataFrame
    duplicates: DataFrame
    strays: DataFrame
    doubts: DataFrame
    latency_counts: DataFrame
    latencies: DataFrame


class StalenessThreshold(NamedTuple):
    """The current time, and the maximum age of a heartbeat."""

    now_ms: int
    heartbeat_stale_ms: int


def rows(found: AuditFrames, wanted: DataFrame, at: StalenessThreshold) -> DataFrame:
    """Return all columns of `schemas.REPORT` except `run` and `run_at`. `wanted`: topic and hour of the audited
    hours."""
    facts = _all_counts(found, wanted).groupBy(*HOURLY)
    summed = facts.agg(
        *(F.coalesce(F.sum(name), F.lit(0)).cast("bigint").alias(name) for name in _SUMS),
        F.array_sort(F.array_distinct(F.flatten(F.collect_list("doubts")))).alias("doubts"),
    )
    beats = found.totals.heartbeats.drop("host", "version")
    hosts = found.totals.newest.groupBy("incarnation").agg(F.max_by("host", "version").alias("host"))
    known = (
        summed.join(F.broadcast(beats), "incarnation", "left")
        .join(F.broadcast(hosts), "incarnation", "left")
        .join(found.latencies, list(HOURLY), "left")
    )
    over = F.coalesce(F.col("state") == audit_records.CLOSED, F.lit(False))
    closed = over | F.coalesce(F.col("closed_before") >= hour_end_ms(F.col("hour")), F.lit(False))
    # A closed daemon has nothing pending, even if its counts had open ordinals: records that have not landed are lost.
    said = known.withColumns({"closed": closed, "settled": (F.col("unsettled") == 0) | over})
    doubted = said.withColumn(
        "doubts", F.slice(F.concat(F.array_compact(F.array(*_doubts(at))), F.col("doubts")), 1, DOUBTS_MAX)
    )
    return doubted.select(*(_column(name) for name in schemas.REPORT.names if name not in {"run", "run_at"}))


def _column(name: str) -> Column:
    match name:
        case "host":
            return F.coalesce("host", F.lit("")).alias(name)
        case "status":
            return _status().alias(name)
        case _:
            return F.col(name)


def _doubts(at: StalenessThreshold) -> list[Column]:
    """Doubts from the heartbeat and from the landed rows."""
    stale = F.greatest(F.lit(at.heartbeat_stale_ms), F.col("interval_s") * INTERVALS_MISSED * 1_000)
    silent = ~F.col("closed") & (F.lit(at.now_ms) - F.col("sent_at") > stale)
    own = F.col("incarnation") != ""
    return [
        F.when(own & F.col("sent_at").isNull(), F.lit("no heartbeat of this incarnation is known")),
        F.when(own & silent, F.concat(F.lit("no heartbeat since "), moment_text(F.col("sent_at")))),
        F.when(
            F.col("unknown") > 0, F.concat(number(F.col("unknown")), F.lit(" landed rows have ids that no book knows"))
        ),
    ]


def _status() -> Column:
    """The worst status that applies to the row."""
    waits = (F.col("pending") + F.col("late") + F.col("ahead") > 0) | ~F.col("closed") | ~F.col("settled")
    only_counted = (F.col("incarnation") == "") | ((F.col("without_ids") > 0) & (F.col("with_ids") == 0))
    return (
        F.when(only_counted, str(Status.COUNTED))
        .when(F.col("lost") > 0, str(Status.LOST))
        .when(F.col("duplicated") > 0, str(Status.DUPLICATED))
        .when(F.size("doubts") > 0, str(Status.UNKNOWN))
        .when(waits, str(Status.LATE))
        .otherwise(str(Status.COMPLETE))
    )


def _all_counts(found: AuditFrames, wanted: DataFrame) -> DataFrame:
    """Combine the counts of all frames; each row has some of the columns."""
    hour = hour_of_minute(F.col("minute")).alias("hour")
    asked = F.broadcast(wanted)
    judged = found.judged.groupBy("topic", hour, "incarnation").agg(
        *(F.sum(name).alias(name) for name in ("expected", "distinct", "recovered"))
    )
    span = F.col("end") - F.col("first")
    missing = found.missing.groupBy(*HOURLY).agg(
        *(F.sum(F.when(F.col("class") == str(each), span)).alias(str(each)) for each in MissingClass)
    )
    doubled = found.duplicates.groupBy(*HOURLY).agg(F.sum(F.col("copies") - 1).alias("duplicated"))
    rows = found.latency_counts.groupBy("topic", "hour", F.coalesce("incarnation", F.lit("")).alias("incarnation")).agg(
        F.sum(F.when(F.col("incarnation").isNotNull(), F.col("rows"))).alias("landed"),
        F.sum(F.when(F.col("incarnation").isNull(), F.col("rows"))).alias("foreign"),
    )
    doubts = found.doubts.join(asked, ["topic", "hour"], "left_semi").groupBy(*HOURLY)
    frames = [
        _intake_counts(found.totals, asked),
        judged,
        missing,
        doubled,
        found.strays,
        rows,
        # Limit the number of doubts: badly damaged audit counts have one for each record.
        doubts.agg(F.slice(F.array_sort(F.collect_set("doubt")), 1, DOUBTS_MAX).alias("doubts")),
    ]
    united = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    return united.withColumn("doubts", F.coalesce("doubts", F.array().cast("array<string>")))


def _intake_counts(books: AuditTotals, asked: DataFrame) -> DataFrame:
    """Counts from the router's intake. For records without ids, also the expected and pending counts, which have no
    other source."""
    key = ["incarnation", "topic", "minute", "era"]
    delivered = books.outcomes.groupBy(*key).agg(F.sum("delivered").alias("sent"))
    both = books.intakes.join(asked, ["topic", "hour"], "left_semi").join(delivered, key, "left")
    uncounted = ~F.col("ids")
    expected = F.col("accepted") - F.col("holed")
    open_yet = F.greatest(expected - F.coalesce("sent", F.lit(0)), F.lit(0))
    return both.groupBy(*HOURLY).agg(
        F.sum("accepted").alias("accepted"),
        F.sum("holed").alias("holes"),
        F.sum("unsettled").alias("unsettled"),
        F.sum(F.when(uncounted, expected)).alias("expected"),
        F.sum(F.when(uncounted, open_yet)).alias("pending"),
        F.count_if("ids").alias("with_ids"),
        F.count_if(uncounted).alias("without_ids"),
    )
