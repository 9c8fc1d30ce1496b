"""Contradictions in the audit records: ranges that do not tile, totals that do not agree, each with the hours that it
makes unknown.

A row has a topic, hour, incarnation, and a sentence in `doubt`.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from ...wire import audit_records
from ..hours import MINUTE_MS, MINUTES
from .columns import HOURLY, ID, hour_of_number, minute_text, number
from .totals import AuditTotals

GAP_HOURS_MAX: Final = 24 * 100
"""A gap longer than the audit topic's retention is reported only for the hours at its ends."""


def doubts(books: AuditTotals) -> DataFrame:
    """Find all contradictions, in all hours."""
    return tiling(books.ranges).unionByName(balance(books))


def tiling(ranges: DataFrame) -> DataFrame:
    """Find ordinals of an origin that are in no range or in two ranges: an audit record is missing or wrong."""
    order = Window.partitionBy("incarnation", "topic", "origin").orderBy("first", "end")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    seen = ranges.select(
        *ID,
        "first",
        F.max("end").over(before).alias("reached"),
        F.floor(F.lag("minute").over(order) / MINUTES).alias("earlier"),
        F.floor(F.col("minute") / MINUTES).alias("later"),
        "end",
    )
    gap, twice = F.col("first") > F.col("reached"), F.col("first") < F.col("reached")
    said = F.when(gap, _ordinals("reached", F.col("first"), "are in no range of the books")).when(
        twice, _ordinals("first", F.least("reached", "end"), "are in two ranges of the books")
    )
    low, high = F.least("earlier", "later"), F.greatest("earlier", "later")
    hours = F.when(high - low <= GAP_HOURS_MAX, F.sequence(low, high)).otherwise(F.array(low, high))
    return (
        seen.where(gap | twice)
        .select("topic", "incarnation", said.alias("doubt"), F.explode(F.array_distinct(hours)).alias("_"))
        .select("topic", hour_of_number(F.col("_")).alias("hour"), "incarnation", "doubt")
    )


def _ordinals(first: str, end: Column, what: str) -> Column:
    origin = F.concat(F.lit("origin "), F.col("origin").cast("string"))
    return F.concat(
        origin, F.lit(": ordinals "), number(F.col(first)), F.lit(" to "), number(end - 1), F.lit(f" {what}")
    )


def balance(books: AuditTotals) -> DataFrame:
    """Find minutes in which the router's counts disagree with the shards' or with each other."""
    keys = ["incarnation", "topic", "minute", "era"]
    delivered = books.outcomes.groupBy(*keys).agg(F.sum("delivered").alias("delivered"))
    taken = books.intakes.select(*keys, "ids", "accepted", "given", "holed", "unsettled")
    beats = books.heartbeats.select("incarnation", "closed_before", "settled_before", "state")
    both = taken.join(delivered, keys, "full_outer").join(beats, "incarnation", "left").fillna(0, ["delivered"])
    # If a later heartbeat covers the minute, the shards' totals are read up to the same time as the router's.
    over = F.col("state") == audit_records.CLOSED
    closed = over | (F.col("closed_before") >= (F.col("minute") + 1) * MINUTE_MS)
    settled = F.col("settled_before") >= (F.col("minute") + 1) * MINUTE_MS
    done = F.col("delivered") + F.col("holed")
    told = F.array(
        F.when(
            F.col("accepted") != F.col("given"),
            _minute_sentence("accepted", " records accepted, ", "given", " ordinals given out"),
        ),
        F.when(
            F.col("accepted").isNull() & closed & (F.col("delivered") > 0),
            _minute_sentence("delivered", " records delivered, and no record of what was accepted"),
        ),
        F.when(
            settled & ~over & (F.col("unsettled") > 0),
            _minute_sentence("unsettled", " ordinals are open, though it is settled"),
        ),
        F.when(
            (settled | over) & (F.col("unsettled") == 0) & (done != F.col("accepted")),
            _minute_sentence("accepted", " records accepted, ", "delivered", " delivered, ", "holed", " never sent"),
        ),
    )
    return both.select(
        "topic",
        hour_of_number(F.floor(F.col("minute") / MINUTES)).alias("hour"),
        "incarnation",
        F.explode(F.array_compact(told)).alias("doubt"),
    ).select(*HOURLY, "doubt")


def _minute_sentence(*parts: str) -> Column:
    """Join the minute, and by turns names of counts and texts, into a sentence."""
    words = [number(F.col(part)) if place % 2 == 0 else F.lit(part) for place, part in enumerate(parts)]
    return F.concat(F.lit("minute "), minute_text(F.col("minute")), F.lit(": "), *words)
