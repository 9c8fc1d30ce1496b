"""Columns that have one value in all rows of a batch, and rows of one frame on their way into two tables."""

import datetime as dt
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from penstock.pipeline.tables import PartsWriter, TablePart, Tables, open_tables
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tests.harness.spark_driver import compiling
from tests.pipeline.conftest import WRITER

EVEN = StructType().add("id", "long").add("hour", "string").add("batch", "long").add("at", "timestamp")
ODD = StructType([*EVEN]).add("format", "string")
NOON = dt.datetime(2026, 11, 22, 12, 0, 0, 123_456, tzinfo=dt.UTC)


class Place(NamedTuple):
    tables: str
    writer: Any = WRITER


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    return open_tables(Place(str(tmp_path / "tables")), spark)


def writer(tables: Tables) -> PartsWriter:
    even, odd = tables.table("even", EVEN, ("hour",)), tables.table("odd", ODD, ("hour",))
    return tables.parts([TablePart(even, F.col("id") % 2 == 0), TablePart(odd, F.col("id") % 2 == 1)])


def write(to: PartsWriter, frame: DataFrame, batch: int) -> None:
    constants = {"batch": batch, "at": NOON + dt.timedelta(seconds=batch), "format": "raw"}
    with to.write(frame, constants) as parts:
        assert parts.append(0, app="q/even", version=batch)
        assert parts.append(1, app="q/odd", version=batch)


def test_constants_are_in_every_row_of_the_tables_that_have_them(spark: SparkSession, tables: Tables) -> None:
    both = writer(tables)
    for batch in range(2):
        write(both, spark.range(4).withColumn("hour", F.lit("2026-11-22-12")), batch)
    even, odd = tables.table("even", EVEN, ("hour",)), tables.table("odd", ODD, ("hour",))
    moments = "date_format(at, 'HH:mm:ss.SSSSSS') AS at"
    found = even.read().selectExpr("id", "batch", moments).orderBy("batch", "id").collect()
    assert [tuple(row) for row in found] == [
        (number, batch, f"12:00:0{batch}.123456") for batch in range(2) for number in (0, 2)
    ]
    assert {(row["id"], row["batch"], row["format"]) for row in odd.read().collect()} == {
        (number, batch, "raw") for batch in range(2) for number in (1, 3)
    }


@pytest.mark.skipif(WRITER != "delta-rs", reason="the JVM's writer takes columns only")
def test_other_constants_do_not_make_spark_compile_the_plan_again(spark: SparkSession, tables: Tables) -> None:
    frame = spark.range(4, numPartitions=1).withColumn("hour", F.lit("2026-11-22-12"))
    jvm: Any = spark._jvm
    compiled = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    with compiling(spark):
        both = writer(tables)
        write(both, frame, 0)
        before = compiled.getCount()
        assert before
        write(both, frame, 1)
    assert compiled.getCount() == before
