"""The landed rows, quarantine included: the rows, their counts by hour, and their ids as bitmaps."""

import re
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from .. import schemas
from ..names import QUARANTINE, bronze_table
from ..tables import Table, Tables
from .bitmaps import BITS, WORD, WORDS
from .columns import ID, bucket_of, bucket_of_word, word_of
from .frames import UNCOMPILED_ROWS_MAX

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
"""Latencies are counted in steps of 2 %, so a quantile is off by at most 1 %."""
_HOUR_FOLDER: Final = re.compile(r"/hour=([^/]+)/")


class LandedTables:
    """The tables of these topics at their versions at creation time."""

    def __init__(self, tables: Tables, topics: Iterable[str]) -> None:
        self._bronze = {topic: _at_version(tables, bronze_table(topic)) for topic in topics}
        # Read after bronze: a reader of a batch's good rows must not miss its bad ones.
        self._quarantine = _at_version(tables, QUARANTINE)
        self._counts = {topic: rows_by_hour(*bronze) for topic, bronze in self._bronze.items()}
        self._counts_bad = rows_by_hour(*self._quarantine)
        self.hours: Mapping[str, frozenset[str]] = {
            topic: frozenset(found) | frozenset(self._counts_bad) for topic, found in self._counts.items()
        }
        """By topic, the hours in which it may have rows."""

    def rows_max(self, hours: Mapping[str, Iterable[str]]) -> int:
        """Upper limit of the number of rows in these hours of each topic, from the tables' logs."""
        good = sum(self._counts[topic].get(hour, 0) for topic, some in hours.items() for hour in some)
        return good + sum(self._counts_bad.get(hour, 0) for hour in {each for some in hours.values() for each in some})

    def rows(self, hours: Mapping[str, Iterable[str]]) -> DataFrame:
        """The columns `COLUMNS` of the rows in these hours of each topic."""
        frames: list[DataFrame] = []
        bad: dict[str, list[str]] = {}
        for topic, (table, version) in self._bronze.items():
            wanted = sorted(self.hours[topic] & set(hours.get(topic, ())))
            if not wanted:
                continue
            if version is not None:
                # A bronze table holds one topic, whatever the column contains.
                frames.append(table.read(hours=wanted, version=version).withColumn("topic", F.lit(topic)))
            for hour in wanted:
                bad.setdefault(hour, []).append(topic)
        table, version = self._quarantine
        if bad and version is not None:
            frames.append(table.read(hours=sorted(bad), version=version).where(_topic_hour_filter(bad)))
        if not frames:
            frames.append(table.read(hours=()))
        return reduce(DataFrame.unionByName, frames).select(*COLUMNS.names)


def rows_by_hour(table: Table, version: int | None) -> dict[str, int]:
    """The hours in which a table has files, with their numbers of rows."""
    counts: dict[str, int] = {}
    for file in table.files(version=version) if version is not None else ():
        match = _HOUR_FOLDER.search(file.path)
        if match is not None:
            # The log does not give the number of rows: assume many.
            counts[match[1]] = counts.get(match[1], 0) + (file.rows or UNCOMPILED_ROWS_MAX)
    return counts


def _at_version(tables: Tables, name: str) -> tuple[Table, int | None]:
    table = tables.table(name, COLUMNS, schemas.PARTITION_BY)
    return table, table.version()


def _topic_hour_filter(topics_by_hour: Mapping[str, list[str]]) -> Column:
    """Condition for rows whose topic is wanted in their hour."""
    by_topics: dict[tuple[str, ...], list[str]] = {}
    for hour, topics in topics_by_hour.items():
        by_topics.setdefault(tuple(topics), []).append(hour)
    found = F.lit(False)
    for some, hours in by_topics.items():
        found |= F.col("topic").isin(*some) & F.col("hour").isin(*hours)
    return found


def id_words(rows: DataFrame) -> DataFrame:
    """Aggregate everything the audit needs from rows, in one pass. Count rows by topic, hour, incarnation (null:
    foreign), `latency` (step on the ladder from accept to landed) and word of 64 ordinals; `bits` marks the ordinals in
    the word.

    Most rows of a word were accepted and landed together, so the result has about 64 times fewer rows.
    """
    waited = F.unix_millis("landed_at") - F.unix_millis("accept_ts")
    step = F.floor(F.log(waited) / F.log(F.lit(LATENCY_STEP))).cast("int")
    # Clocks differ: a row that landed before it was accepted counts as landed at once.
    latency = F.when(waited >= 1, step).when(waited < 1, F.lit(-1))
    # Spark's own bitmap functions do not allow hash aggregation: they sort all rows first.
    bit = F.expr(f"shiftleft(1L, cast(ordinal & {WORD - 1} as int))")
    key = ("topic", "hour", "incarnation", "origin", word_of(F.col("ordinal")).alias("word"), latency.alias("latency"))
    return rows.groupBy(*key).agg(F.count("*").alias("rows"), F.bit_or(bit).alias("bits"))


def latency_counts(found: DataFrame) -> DataFrame:
    """From words: number of rows by topic, hour, incarnation and latency."""
    return found.groupBy("topic", "hour", "incarnation", "latency").agg(F.sum("rows").alias("rows"))


def latencies(counted: DataFrame) -> DataFrame:
    """From latency counts: median and 99th percentile in seconds, by topic, hour and incarnation."""
    # There is one row per step, so the number of landed rows does not matter.
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


def merge_words(found: DataFrame) -> DataFrame:
    """Merge words across hours: one row per id word, with the union of the bits."""
    return (
        found.where(F.col("incarnation").isNotNull())
        .groupBy(*ID, "word")
        .agg(F.sum("rows").alias("rows"), F.bit_or("bits").alias("bits"))
    )


def buckets(found: DataFrame) -> DataFrame:
    """Group merged words into buckets, with `ids`, the number of bits set. Full buckets get no words, so they need no
    decoding."""
    word = F.struct(F.col("word").bitwiseAND(WORDS - 1).alias("place"), "bits")
    return (
        found.groupBy(*ID, bucket_of_word(F.col("word")).alias("bucket"))
        .agg(F.sum(F.bit_count("bits")).alias("ids"), F.collect_list(word).alias("words"))
        .select(*ID, "bucket", "ids", F.when(F.col("ids") < BITS, F.col("words")).alias("words"))
    )


def words_with_duplicates(found: DataFrame) -> DataFrame:
    """From merged words: keys of the words with more rows than ids."""
    return found.where(F.col("rows") > F.bit_count("bits")).select(*ID, "word")


def rows_in(rows: DataFrame, wanted: DataFrame) -> DataFrame:
    """Return the rows whose word or bucket (the column that `wanted` has) is in `wanted`, with that column added."""
    name, of = ("word", word_of) if "word" in wanted.columns else ("bucket", bucket_of)
    keyed = rows.where(F.col("incarnation").isNotNull()).withColumn(name, of(F.col("ordinal")))
    return keyed.join(wanted, [*ID, name], "left_semi")
