"""The record id header, split off in column expressions: against the reader that the daemon itself has."""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from penstock.pipeline import schemas
from penstock.pipeline.land import id_header
from penstock.wire.record_ids import HEADER, ORDINAL_MAX, ORIGIN_MAX, RecordId
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from tests.harness.spark_driver import compiling

SOURCE = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", schemas.HEADERS),
    ]
)
NOON = dt.datetime(2026, 11, 22, 12, 0, tzinfo=dt.UTC)
GOOD = RecordId(incarnation=0x0123456789AB, origin=7, ordinal=41, accept_ms=1_795_345_200_123)
LARGEST = RecordId(incarnation=(1 << 48) - 1, origin=ORIGIN_MAX, ordinal=ORDINAL_MAX, accept_ms=253_402_300_799_999)
Headers = list[tuple[str, bytes | None]] | None


@pytest.fixture(autouse=True, params=["compiled", "interpreted"])
def way(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """Spark has two ways of computing an expression, with code of their own; for few rows the tests prefer the second."""
    with compiling(spark, wanted=request.param == "compiled"):
        yield


def split(spark: SparkSession, cases: list[Headers], *, newer_ids: Any = "quarantine") -> list[dict[str, Any]]:
    rows = [(b"k", b"v", "t", 0, offset, NOON, headers) for offset, headers in enumerate(cases)]
    frame = id_header.split(spark.createDataFrame(rows, SOURCE).coalesce(1), newer_ids=newer_ids)
    frame = frame.withColumn("accept_ms", F.unix_millis("accept_ts")).orderBy("offset")
    return [row.asDict(recursive=True) for row in frame.collect()]


def test_ids_are_read_as_the_daemon_wrote_them_and_taken_out_of_the_headers(spark: SparkSession) -> None:
    ids = [GOOD, LARGEST, RecordId(1, 0, 0, 0)]
    found = split(spark, [[("a", b"1"), (HEADER, each.pack()), ("a", None)] for each in ids])
    for each, row in zip(ids, found, strict=True):
        assert (row["incarnation"], row["origin"], row["ordinal"]) == (
            each.text.split("-")[0],
            each.origin,
            each.ordinal,
        )
        assert row["accept_ms"] == each.accept_ms
        assert row["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
        assert row["header_error"] is None


def test_the_hour_is_that_of_acceptance_and_of_kafkas_time_for_foreign_records(spark: SparkSession) -> None:
    mine, foreign, without = split(spark, [[(HEADER, GOOD.pack())], [("other", b"x")], None])
    assert mine["hour"] == "2026-11-22-11"
    assert mine["headers"] is None
    for row in (foreign, without):
        assert row["hour"] == "2026-11-22-12"
        assert (row["incarnation"], row["origin"], row["ordinal"], row["accept_ts"]) == (None, None, None, None)
        assert row["header_error"] is None
    assert foreign["headers"] == [{"key": "other", "value": b"x"}]
    assert without["headers"] is None


OTHERS: list[tuple[str, bytes | None]] = [("a", b"1"), ("b", None), ("a", b"")]
PLACES: list[tuple[str, Headers, bool, Headers]] = [
    ("no header at all", [], False, []),
    ("alone", [(HEADER, LARGEST.pack())], True, None),
    ("first", [(HEADER, LARGEST.pack()), *OTHERS], True, OTHERS),
    ("last", [*OTHERS, (HEADER, LARGEST.pack())], True, OTHERS),
]


def test_an_id_is_found_at_either_end_of_the_headers_and_the_others_keep_their_order(spark: SparkSession) -> None:
    found = split(spark, [headers for _, headers, _, _ in PLACES])
    for row, (place, _, has_id, others) in zip(found, PLACES, strict=True):
        expected = (f"{LARGEST.incarnation:012x}", ORIGIN_MAX, ORDINAL_MAX) if has_id else (None, None, None)
        assert (row["incarnation"], row["origin"], row["ordinal"]) == expected, place
        assert row["accept_ms"] == (LARGEST.accept_ms if has_id else None), place
        assert row["header_error"] is None, place
        left = None if others is None else [{"key": key, "value": value} for key, value in others]
        assert row["headers"] == left, place


MALFORMED: list[tuple[str, Headers, str]] = [
    ("short", [(HEADER, GOOD.pack()[:-1])], "an id header of 22 bytes, not 23"),
    ("one byte", [(HEADER, b"\x01")], "an id header of 1 bytes, not 23"),
    ("empty", [(HEADER, b"")], "an id header of 0 bytes, not 23"),
    ("long", [(HEADER, GOOD.pack() + b"\x00")], "an id header of 24 bytes, not 23"),
    ("version 0", [(HEADER, b"\x00" + GOOD.pack()[1:])], "an id header of version 0"),
    ("noise", [(HEADER, b"\xff" * 23)], "an id header of version 255"),
    ("text", [(HEADER, b"hello")], "an id header of version 104"),
    ("without value", [(HEADER, None)], id_header.WITHOUT_VALUE),
    ("doubled", [(HEADER, GOOD.pack()), (HEADER, GOOD.pack())], id_header.DOUBLED),
    ("doubled, one broken", [(HEADER, GOOD.pack()), ("x", b""), (HEADER, None)], id_header.DOUBLED),
    ("no incarnation", [(HEADER, GOOD._replace(incarnation=0).pack())], id_header.NO_INCARNATION),
    ("year 10000", [(HEADER, GOOD._replace(accept_ms=253_402_300_800_000).pack())], id_header.TOO_LATE),
    ("newer", [(HEADER, b"\x02" + GOOD.pack()[1:])], f"the id header's version 2 {id_header.NEWER}"),
    ("newer and short", [(HEADER, b"\x0fabc")], f"the id header's version 15 {id_header.NEWER}"),
]


def test_each_malformed_header_is_named_and_stays_where_it_was(spark: SparkSession) -> None:
    found = split(spark, [headers for _, headers, _ in MALFORMED])
    assert [row["header_error"] for row in found] == [said for _, _, said in MALFORMED]
    for row, (_, headers, _) in zip(found, MALFORMED, strict=True):
        assert (row["incarnation"], row["origin"], row["ordinal"], row["accept_ts"]) == (None, None, None, None)
        assert row["hour"] == "2026-11-22-12"
        assert headers is not None
        assert row["headers"] == [{"key": key, "value": value} for key, value in headers]


def test_a_newer_version_stops_the_reader_with_a_sentence_unless_told_otherwise(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="the id header's version 2 is newer than version 1, which this program reads"):
        _ = split(spark, [[(HEADER, b"\x02" + GOOD.pack()[1:])]], newer_ids="stop")


def test_times_that_no_calendar_has_are_put_into_the_first_and_the_last_hour(spark: SparkSession) -> None:
    moments = spark.sql(
        "SELECT timestamp_millis(-1) AS t UNION ALL SELECT timestamp_millis(0) UNION ALL SELECT timestamp_millis(253402300799999)"
        " UNION ALL SELECT timestamp_millis(253402300800000) UNION ALL SELECT timestamp_millis(9223372036854775)"
    ).coalesce(1)
    found = [row.hour for row in moments.select(id_header.hour_of(moments.t).alias("hour")).collect()]
    assert found == ["1970-01-01-00", "1970-01-01-00", "9999-12-31-23", "9999-12-31-23", "9999-12-31-23"]
