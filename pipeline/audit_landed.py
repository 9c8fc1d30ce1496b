"""What landed, quarantine included: rows, their numbers by hour, and their ids as bitmaps."""

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from . import schemas
from .audit_columns import ID, bucket_of
from .core.bitmaps import BITS
from .names import QUARANTINE, bronze_table
from .tables import Table, Tables

COLUMNS: Final = StructType(
    [
        schemas.QUARANTINE[name]
        for name in (
            *("incarnation", "origin", "ordinal", "accept_ts"),
            *("topic", "partition", "offset", "hour", "landed_at"),
        )
    ]
)
LATENCY_STEP: Final = 1.02
"""Latencies are counted in steps of 2 %: a quantile is off by 1 % at most."""
_HOUR_FOLDER: Final = re.compile(r"/hour=([^/]+)/")


class Landed:
    """The tables of these topics at the versions that they have now."""

    def __init__(self, tables: Tables, topics: Iterable[str]) -> None:
        self._bronze = {topic: _at_version(tables, bronze_table(topic)) for topic in topics}
        # After bronze: who reads a batch's good rows must not miss its bad ones.
        self._quarantine = _at_version(tables, QUARANTINE)
        self.hours: Mapping[str, frozenset[str]] = {
            topic: hours_of(*bronze) | hours_of(*self._quarantine) for topic, bronze in self._bronze.items()
        }
        """By topic, hours in which it may have rows."""

    def rows(self, hours: Mapping[str, Iterable[str]]) -> DataFrame:
        """`COLUMNS` of the rows of these hours of each topic."""
        frames: list[DataFrame] = []
        bad: dict[str, list[str]] = {}
        for topic, (table, version) in self._bronze.items():
            wanted = sorted(self.hours[topic] & set(hours.get(topic, ())))
            if not wanted:
                continue
            if version is not None:
                # A table is of one topic, whatever its rows say.
                frames.append(table.read(hours=wanted, version=version).withColumn("topic", F.lit(topic)))
            for hour in wanted:
                bad.setdefault(hour, []).append(topic)
        table, version = self._quarantine
        if bad and version is not None:
            frames.append(table.read(hours=sorted(bad), version=version).where(_among(bad)))
        if not frames:
            frames.append(table.read(hours=()))
        return reduce(DataFrame.unionByName, frames).select(*COLUMNS.names)


def hours_of(table: Table, version: int | None) -> frozenset[str]:
    """The hours that a table has files of."""
    if version is None:
        return frozenset()
    found = (_HOUR_FOLDER.search(file.path) for file in table.files(version=version))
    return frozenset(match[1] for match in found if match is not None)


def _at_version(tables: Tables, name: str) -> tuple[Table, int | None]:
    table = tables.table(name, COLUMNS, schemas.PARTITION_BY)
    return table, table.version()


def _among(topics_by_hour: Mapping[str, list[str]]) -> Column:
    """Rows whose topic is asked for in their hour."""
    by_topics: dict[tuple[str, ...], list[str]] = {}
    for hour, topics in topics_by_hour.items():
        by_topics.setdefault(tuple(topics), []).append(hour)
    found = F.lit(False)
    for some, hours in by_topics.items():
        found |= F.col("topic").isin(*some) & F.col("hour").isin(*hours)
    return found


def census(rows: DataFrame) -> DataFrame:
    """Rows by topic, hour, incarnation (null: foreign) and `latency`, a step of the ladder, from accept to landed."""
    waited = F.unix_millis("landed_at") - F.unix_millis("accept_ts")
    step = F.floor(F.log(waited) / F.log(F.lit(LATENCY_STEP))).cast("int")
    # Clocks differ: what landed before it was accepted landed at once.
    latency = F.when(waited >= 1, step).when(waited < 1, F.lit(-1))
    return rows.groupBy("topic", "hour", "incarnation", latency.alias("latency")).agg(F.count("*").alias("rows"))


def latencies(counted: DataFrame) -> DataFrame:
    """Of a census: median and 99th percentile in seconds, by topic, hour and incarnation."""
    # Of one row a step, so the number of rows does not matter.
    ladder = F.percentile("latency", F.array(F.lit(0.5), F.lit(0.99)), F.col("rows"))

    def seconds(place: int) -> Column:
        found = F.get("ladder", F.lit(place))
        return F.when(found < 0, F.lit(0.0)).otherwise(F.pow(F.lit(LATENCY_STEP), found + 0.5) / 1_000)

    return (
        counted.where(F.col("incarnation").isNotNull())
        .groupBy("topic", "hour", "incarnation")
        .agg(ladder.alias("ladder"))
        .select("topic", "hour", "incarnation", seconds(0).alias("latency_p50_s"), seconds(1).alias("latency_p99_s"))
    )


def buckets(rows: DataFrame) -> DataFrame:
    """Ids as bitmaps, one a (topic, incarnation, origin, bucket), with the number of rows."""
    seat = F.col("ordinal") + 1
    return (
        rows.where(F.col("incarnation").isNotNull())
        .groupBy(*ID, F.bitmap_bucket_number(seat).alias("bucket"))
        .agg(F.count("*").alias("rows"), F.bitmap_construct_agg(F.bitmap_bit_position(seat)).alias("bitmap"))
    )


def merged(first: DataFrame, second: DataFrame) -> DataFrame:
    """The buckets of both."""
    return (
        first.unionByName(second)
        .groupBy(*ID, "bucket")
        .agg(F.sum("rows").alias("rows"), F.bitmap_or_agg("bitmap").alias("bitmap"))
    )


def counted(found: DataFrame) -> DataFrame:
    """Buckets with `ids`, the number of bits set; the bitmaps of full ones are let go: nothing is decoded there."""
    ids = F.bitmap_count("bitmap")
    return found.select(*ID, "bucket", "rows", ids.alias("ids"), F.when(ids < BITS, F.col("bitmap")).alias("bitmap"))


def rows_in(rows: DataFrame, wanted: DataFrame) -> DataFrame:
    """Rows whose bucket is one of these, with `bucket`."""
    keyed = rows.where(F.col("incarnation").isNotNull()).withColumn("bucket", bucket_of(F.col("ordinal")))
    return keyed.join(wanted, [*ID, "bucket"], "left_semi")
