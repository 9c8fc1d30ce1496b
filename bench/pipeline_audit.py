"""How fast does the audit fold ids, and does it name what is wrong? `python bench/pipeline_audit.py [--ids 4000000]`.

Planted: 7 losses, 11 duplicates. The rate is told beside a plain `groupBy` with `count` over the same rows, measured by turns, because
absolute rates depend on the machine and its load; CPU seconds of Spark's process depend on it less.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.config.pipeline import validate_pipeline
from penstock.pipeline import session
from penstock.pipeline.audit import comparison, duplicates
from penstock.pipeline.audit import landed as audit_landed
from penstock.pipeline.audit import missing as audit_missing
from penstock.pipeline.audit.bitmaps import WORD
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

INCARNATION: Final = "00a1b2c3d4e5"
MINUTE: Final = 29_833_333
ORIGINS: Final = 4
LOSSES: Final = 7
DUPLICATES: Final = 11
CORES: Final = 2


class Bench:
    """Rows in Parquet files, and books that know all of them."""

    def __init__(self, ids: int) -> None:
        self.ids = ids
        self.each = ids // ORIGINS
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        settings = {
            "tables": str(self.folder / "tables"),
            "checkpoints": str(self.folder / "checkpoints"),
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
            "topics": {"t": {}},
            "spark": {
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.driver.memory": "1g",
                "spark.sql.shuffle.partitions": str(CORES),
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
            },
        }
        self.spark = session.start(validate_pipeline(settings, "bench"), "bench", master=f"local[{CORES}]")
        self.spark.sparkContext.setLogLevel("OFF")
        self.lost = {ids * place // LOSSES + 5 for place in range(LOSSES)}
        self.doubled = {ids * place // DUPLICATES + 9 for place in range(DUPLICATES)}
        self._write()

    def _write(self) -> None:
        numbers = self.spark.range(0, self.ids, numPartitions=8)
        landed = numbers.where(~F.col("id").isin(*self.lost))
        again = numbers.where(F.col("id").isin(*self.doubled)).withColumn("again", F.lit(self.ids))
        rows = landed.withColumn("again", F.lit(0)).unionByName(again)
        moment = F.timestamp_seconds(F.lit(MINUTE * 60) + F.col("id") % 60)
        rows.select(
            F.lit(INCARNATION).alias("incarnation"),
            (F.col("id") % ORIGINS).cast("int").alias("origin"),
            F.floor(F.col("id") / ORIGINS).cast("bigint").alias("ordinal"),
            moment.alias("accept_ts"),
            F.lit("t").alias("topic"),
            (F.col("id") % ORIGINS).cast("int").alias("partition"),
            (F.col("id") + F.col("again")).cast("bigint").alias("offset"),
            F.lit("2026-09-20-21").alias("hour"),
            (moment + F.expr("interval 3 seconds")).alias("landed_at"),
        ).write.parquet(str(self.folder / "rows"))

    def rows(self, most: int | None = None) -> DataFrame:
        """What landed; ordinals below `most` only, if given."""
        frame = self.spark.read.parquet(str(self.folder / "rows"))
        return frame if most is None else frame.where(F.col("ordinal") < most)

    def books(self) -> DataFrame:
        """A range a minute and origin, of 50,000 ordinals each."""
        step = 50_000
        firsts = self.spark.range(0, self.each, step).crossJoin(
            self.spark.range(ORIGINS).select(F.col("id").cast("int").alias("origin"))
        )
        end = F.least(F.col("id") + step, F.lit(self.each))
        return firsts.select(
            F.lit("t").alias("topic"),
            F.lit(INCARNATION).alias("incarnation"),
            "origin",
            (F.lit(MINUTE) + F.col("id") / step).cast("bigint").alias("minute"),
            F.col("id").alias("first"),
            end.alias("end"),
            end.alias("settled_end"),
            F.lit(self.ids).cast("bigint").alias("offset_end"),
            F.lit(MINUTE * 60_000).alias("sent_at"),
            F.lit(True).alias("wanted"),
        )

    def holes(self) -> DataFrame:
        """None."""
        columns = (
            "topic string, incarnation string, origin int, minute bigint, first bigint, end bigint, sent_at bigint"
        )
        return self.spark.createDataFrame([], columns)

    def fold(self, most: int | None = None) -> None:
        """All ids into words, and these into buckets."""
        words = audit_landed.merge_words(audit_landed.id_words(self.rows(most)))
        _ = audit_landed.buckets(words).agg(F.sum("ids"), F.count("words")).collect()

    def words(self) -> int:
        """How many there are."""
        return audit_landed.merge_words(audit_landed.id_words(self.rows())).count()

    def plain(self) -> None:
        """What Spark needs to group the same rows by a key as fine."""
        bucket = F.shiftright("ordinal", 15)
        keys = ("topic", "incarnation", "origin", bucket)
        _ = self.rows().groupBy(*keys).agg(F.count("*"), F.max("ordinal")).agg(F.count("*")).collect()

    def scan(self) -> None:
        """Reading the id columns, and nothing else."""
        _ = self.rows().agg(F.max("incarnation"), F.max("origin"), F.max("ordinal")).collect()

    def names(self) -> tuple[set[int], set[int]]:
        """The missing and the doubled ids, as numbers."""
        ranges = self.books().cache()
        words = audit_landed.merge_words(audit_landed.id_words(self.rows())).cache()
        asked = comparison.buckets_to_compare(comparison.pieces(ranges, self.holes()), audit_landed.buckets(words))
        judged = asked.mapInArrow(comparison.compare_batches, comparison.JUDGED)
        heartbeats = self.spark.createDataFrame([], "incarnation string, state string, sent_at bigint")
        places = audit_missing.partition_offsets(self.spark, {"t": dict.fromkeys(range(ORIGINS), self.ids)}, {}, {})
        missing = audit_missing.classify(
            judged.where(F.col("kind") == comparison.MISSING), heartbeats, places, audit_missing.LatenessThreshold(0, 0)
        )
        lost = {
            ordinal * ORIGINS + row.origin
            for row in missing.where("class = 'lost'").collect()
            for ordinal in range(row.first, row.end)
        }
        twice = audit_landed.words_with_duplicates(words)
        found = duplicates.duplicates(self.rows(), twice, ranges).collect()
        return lost, {row.ordinal * ORIGINS + row.origin for row in found}

    def cpu_s(self) -> float:
        """CPU seconds that Spark's process has used."""
        jvm = self.spark.sparkContext._jvm  # noqa: SLF001 - pyspark has no other way
        assert jvm is not None, "the session has begun"
        fields = (
            Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat").read_text().rpartition(")")[2].split()
        )
        return sum(int(each) for each in fields[11:13]) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Leave nothing."""
        self.spark.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def timed(job: Callable[[], object]) -> float:
    """Seconds of wall time."""
    began = time.perf_counter()
    _ = job()
    return time.perf_counter() - began


def main() -> int:
    """Measure, print, say whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    _ = parser.add_argument("--ids", type=int, default=4_000_000)
    _ = parser.add_argument("--turns", type=int, default=5)
    _ = parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    bench = Bench(options.ids)
    try:
        words = bench.words()
        bench.fold()
        bench.plain()
        bench.scan()
        turns = [(timed(bench.fold), timed(bench.plain), timed(bench.scan)) for _ in range(options.turns)]
        fold, plain, scan = (statistics.median(each) for each in zip(*turns, strict=True))
        began = bench.cpu_s()
        for _ in range(options.turns):
            bench.fold()
        cpu_s = (bench.cpu_s() - began) / options.turns
        half = statistics.median(timed(lambda: bench.fold(bench.each // 2)) for _ in range(options.turns))
        lost, doubled = bench.names()
        naming = timed(bench.names)
    finally:
        bench.close()
    found = {
        "ids": options.ids,
        "ids_per_s": round(options.ids / fold),
        "ids_per_cpu_s": round(options.ids / cpu_s),
        "fold_over_group_by": round(fold / plain, 2),
        "fold_over_scan": round(fold / scan, 2),
        "bytes_of_bits_a_record": round(words * WORD / 8 / options.ids, 4),
        "half_over_whole": round(half / fold, 2),
        "naming_s": round(naming, 2),
        "losses_named": lost == bench.lost,
        "duplicates_named": doubled == bench.doubled,
    }
    print(json.dumps(found, indent=2))
    if options.output is not None:
        _ = options.output.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if lost == bench.lost and doubled == bench.doubled else 1


if __name__ == "__main__":
    sys.exit(main())
