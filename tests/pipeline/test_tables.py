"""Tables, through the interface that the jobs use. `PENSTOCK_WRITER` chooses the engine; all of it holds for both."""

import datetime as dt
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from penstock.pipeline.tables import (
    Table,
    TableConflictError,
    TableError,
    TablePart,
    TableProtocolError,
    Tables,
    TableSchemaError,
    open_tables,
)
from penstock.pipeline.tables.data_files import OPEN_FILES_MAX
from penstock.pipeline.tables.types import arrow_schema
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, StructType

from tests.pipeline.conftest import WRITER

VALUE = StructType().add("n", "integer").add("text", "string")
HEADERS = ArrayType(StructType().add("key", "string").add("value", "binary"))
COLUMNS = (
    StructType()
    .add("id", "long")
    .add("hour", "string")
    .add("at", "timestamp")
    .add("value", VALUE)
    .add("headers", HEADERS)
    .add("raw", "binary")
)


class Place(NamedTuple):
    tables: str
    writer: Any = WRITER


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    return open_tables(Place(str(tmp_path / "tables")), spark)


@pytest.fixture
def table(tables: Tables) -> Table:
    return tables.table("events", COLUMNS, ("hour",))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def rows(spark: SparkSession, ids: Sequence[int] | range, hour: str = "2026-11-22-03") -> DataFrame:
    at = dt.datetime(2026, 11, 22, 3, 0, 0, 123_456, tzinfo=dt.UTC)
    data = [
        (
            number,
            hour,
            at,
            (number, None if number % 3 else "ä"),
            [("key", b"\x00\xff"), (None, None)],
            b"\x01" if number % 2 else None,
        )
        for number in ids
    ]
    return spark.createDataFrame(data, COLUMNS)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.select("id").collect())


def test_a_table_that_does_not_exist_is_empty_and_made_by_the_first_write(
    spark: SparkSession, tables: Tables, table: Table
) -> None:
    assert (table.version(), table.transaction("q/good"), table.files(), table.recent_commits()) == (None, None, [], [])
    assert tables.existing("events") is None
    empty = table.read()
    assert (empty.count(), empty.schema.names) == (0, COLUMNS.names)
    assert table.append(rows(spark, range(3)))
    assert (tables.exists("events"), tables.exists("other")) == (True, False)
    there = tables.existing("events")
    assert there is not None
    assert (there.schema.names, there.partition_by) == (COLUMNS.names, ("hour",))


def test_rows_come_back_as_they_were_at_any_depth(spark: SparkSession, table: Table) -> None:
    frame = rows(spark, range(10))
    _ = table.append(frame)
    found = table.read().orderBy("id").withColumn("micros", F.unix_micros("at"))
    assert found.drop("micros").collect() == frame.orderBy("id").collect()
    assert found.first()["micros"] == 1_795_316_400_123_456
    assert table.read().schema.simpleString() == COLUMNS.simpleString()


def test_hours_with_odd_characters_are_read_by_their_names(spark: SparkSession, table: Table) -> None:
    odd = ["a b", "50%", "x/y", "q=?*", "ä[1]{2}", "007", "2026-11-22-03", "'quoted\"", "c:d#e"]
    for number, hour in enumerate(odd):
        _ = table.append(rows(spark, [number], hour))
    _ = table.append(rows(spark, [len(odd)]).withColumn("hour", F.lit(None).cast("string")))
    for number, hour in enumerate(odd):
        assert [(row["id"], row["hour"]) for row in table.read(hours=[hour]).collect()] == [(number, hour)]
        assert [file.partition["hour"] for file in table.files([hour])] == [hour]
    assert {row["hour"] for row in table.read().collect()} == {*odd, None}


def test_a_transaction_that_is_there_is_not_written_again(spark: SparkSession, table: Table) -> None:
    assert table.append(rows(spark, range(3)), app="q/good", version=4, metadata={"digest": "one"})
    files = len(table.files())
    assert not table.append(rows(spark, range(3)), app="q/good", version=4, metadata={"digest": "two"})
    assert not table.append(rows(spark, range(3)), app="q/good", version=3)
    assert len(table.files()) == files
    assert table.transaction("q/good") == (4, {"digest": "one"})
    assert table.append(rows(spark, range(3, 5)), app="q/bad", version=0)
    assert (ids(table.read()), table.transaction("other")) == ([0, 1, 2, 3, 4], None)


def test_an_empty_batch_leaves_its_transaction(spark: SparkSession, table: Table) -> None:
    assert table.append(rows(spark, []), app="q/good", version=0, metadata={"digest": "d"})
    assert (table.transaction("q/good"), table.files()) == ((0, {"digest": "d"}), [])
    assert not table.append(rows(spark, [1]), app="q/good", version=0)


def test_of_two_writers_of_one_transaction_one_is_refused(
    spark: SparkSession, table: Table, threads: ThreadPoolExecutor
) -> None:
    _ = table.append(rows(spark, [0]))
    met = Barrier(2)

    def write(number: int) -> bool:
        # Both have looked for the transaction before one of them has written its rows.
        frame = rows(spark, range(number * 100, number * 100 + 10))
        _ = met.wait(60)
        return table.append(frame, app="q/good", version=7)

    outcomes = [threads.submit(write, number) for number in (1, 2)]
    failed = [each.exception(120) for each in outcomes]
    assert all(error is None or isinstance(error, TableConflictError) for error in failed)
    done = [each for each, error in zip(outcomes, failed, strict=True) if error is None and each.result()]
    assert len(done) == 1
    assert len(ids(table.read())) == 11


def test_writers_of_different_applications_all_get_in(
    spark: SparkSession, table: Table, threads: ThreadPoolExecutor
) -> None:
    _ = table.append(rows(spark, []))
    frames = [rows(spark, [number]) for number in range(8)]
    written = [
        threads.submit(table.append, frame, app=f"q{number}/bad", version=0) for number, frame in enumerate(frames)
    ]
    assert all(each.result(240) for each in written)
    assert ids(table.read()) == list(range(8))
    assert all(table.transaction(f"q{number}/bad") == (0, {}) for number in range(8))


def test_two_that_make_the_table_at_once_both_write(
    spark: SparkSession, table: Table, threads: ThreadPoolExecutor
) -> None:
    frames = [rows(spark, [number]) for number in range(2)]
    assert all(each.result(120) for each in [threads.submit(table.append, frame) for frame in frames])
    assert ids(table.read()) == [0, 1]


def test_one_commit_replaces_the_files_of_an_hour_and_no_other(spark: SparkSession, table: Table) -> None:
    for start in (0, 2):
        _ = table.append(rows(spark, range(start, start + 2)))
    _ = table.append(rows(spark, [9], "2026-11-22-04"))
    version = table.version()
    assert version is not None
    many = len(table.files(["2026-11-22-03"]))
    compact = table.read(hours=["2026-11-22-03"], version=version).coalesce(1)
    made = table.replace(
        compact, where={"hour": "2026-11-22-03"}, read_version=version, rows=4, metadata={"seal": "row"}
    )
    assert (made, table.version()) == (version + 1, version + 1)
    assert (many > 1, [file.rows for file in table.files(["2026-11-22-03"])]) == (True, [4])
    assert ids(table.read()) == [0, 1, 2, 3, 9]
    assert ids(table.read(version=version)) == [0, 1, 2, 3, 9]
    assert table.recent_commits()[0] == (made, {"seal": "row"})


def test_an_hour_that_changed_meanwhile_is_not_replaced(spark: SparkSession, table: Table) -> None:
    _ = table.append(rows(spark, range(2)))
    version = table.version()
    assert version is not None
    compact = table.read(version=version)
    _ = table.append(rows(spark, [7]))
    with pytest.raises(TableConflictError, match="changed"):
        _ = table.replace(compact, where={"hour": "2026-11-22-03"}, read_version=version)
    assert ids(table.read()) == [0, 1, 7]


def test_an_hour_is_replaced_although_another_grew_meanwhile(spark: SparkSession, table: Table) -> None:
    _ = table.append(rows(spark, range(2)))
    version = table.version()
    assert version is not None
    compact = table.read(version=version).coalesce(1)
    _ = table.append(rows(spark, [7], "2026-11-22-04"))
    assert table.replace(compact, where={"hour": "2026-11-22-03"}, read_version=version) == version + 2
    assert ids(table.read()) == [0, 1, 7]


@pytest.mark.parametrize(
    ("count", "hour"), [(3, "2026-11-22-03"), (2, "2026-11-22-05")], ids=["another number", "another hour"]
)
def test_an_hour_is_not_replaced_by_rows_that_are_not_its_own(
    spark: SparkSession, table: Table, count: int, hour: str
) -> None:
    _ = table.append(rows(spark, range(2)))
    version = table.version()
    assert version is not None
    with pytest.raises(TableError):
        _ = table.replace(
            rows(spark, range(count), hour), where={"hour": "2026-11-22-03"}, read_version=version, rows=2
        )
    assert (table.version(), ids(table.read())) == (version, [0, 1])


def test_a_table_is_written_over_in_one_commit(spark: SparkSession, table: Table) -> None:
    _ = table.append(rows(spark, range(5)))
    version = table.version()
    assert version is not None
    table.overwrite(rows(spark, [8]))
    assert (ids(table.read()), table.version(), ids(table.read(version=version))) == ([8], version + 1, [0, 1, 2, 3, 4])


def held(schema: StructType, *lines: Sequence[Any]) -> pa.Table:
    """Rows in the driver's memory."""
    kinds = arrow_schema(schema)
    return pa.table({field.name: pa.array([line[at] for line in lines], field.type) for at, field in enumerate(kinds)})


def test_rows_that_the_driver_has_are_added_or_take_the_place_of_the_whole_table(
    spark: SparkSession, tables: Tables, table: Table
) -> None:
    frame = rows(spark, range(4))
    content = held(COLUMNS, *([row.asDict(recursive=True)[name] for name in COLUMNS.names] for row in frame.collect()))
    # The first one makes the table; columns go by their names, not by their places.
    table.put(content.select(list(reversed(COLUMNS.names))))
    assert table.read().orderBy("id").collect() == frame.orderBy("id").collect()
    assert ids(table.read(hours=["2026-11-22-03"])) == [0, 1, 2, 3]
    before = table.version()
    assert before is not None
    table.put(content.slice(1, 1))
    assert (ids(table.read()), table.version()) == ([0, 1, 1, 2, 3], before + 1)
    assert sum(file.rows for file in table.files()) == 5
    table.put(content.slice(2), whole=True)
    assert (ids(table.read()), ids(table.read(version=before + 1))) == ([2, 3], [0, 1, 1, 2, 3])
    table.put(content.slice(0, 0))
    assert ids(table.read()) == [2, 3]
    table.put(content.slice(0, 0), whole=True)
    assert (ids(table.read()), table.files()) == ([], [])
    # Others are where they were.
    books = tables.table("books", StructType.fromDDL("n int, text string"))
    books.put(held(books.schema, (1, "one"), (None, None)))
    assert sorted(map(tuple, books.read().collect()), key=str) == [(1, "one"), (None, None)]


def test_rows_that_the_driver_has_keep_the_types_of_the_table(tables: Tables) -> None:
    books = tables.table("books", StructType.fromDDL("n int, text string"))
    books.put(held(books.schema, (1, "one")))
    wide = StructType.fromDDL("n long, text string")
    with pytest.raises(TableSchemaError, match="n as int, not as bigint"):
        tables.table("books", wide).put(held(wide, (1 << 40, "two")))
    # Numbers of another type that fit are taken, and others are not cut down.
    books.put(held(wide, (3, "three")))
    with pytest.raises(pa.ArrowInvalid):
        books.put(held(wide, (1 << 40, "four")))
    assert sorted(map(tuple, books.read().collect())) == [(1, "one"), (3, "three")]


def test_those_who_put_tables_in_at_once_lose_no_row(tables: Tables, threads: ThreadPoolExecutor) -> None:
    books = tables.table("books", StructType.fromDDL("n int"))
    for each in [threads.submit(books.put, held(books.schema, (n,))) for n in range(4)]:
        each.result(120)
    assert sorted(row["n"] for row in books.read().collect()) == [0, 1, 2, 3]
    for each in [threads.submit(books.put, held(books.schema, (n,), (n,)), whole=True) for n in range(4)]:
        each.result(120)
    [first, second] = books.read().collect()
    assert first == second


def test_rows_of_equal_keys_are_replaced_and_others_added(tables: Tables) -> None:
    books = tables.table("books", StructType.fromDDL("topic string, hour string, n int, at timestamp"))
    at = dt.datetime(2026, 11, 22, 3, tzinfo=dt.UTC)
    books.upsert(
        [{"topic": "a", "hour": "1", "n": 1, "at": at}, {"topic": "a", "hour": "2", "n": 1, "at": at}],
        ("topic", "hour"),
    )
    books.upsert(
        [{"topic": "a", "hour": "2", "n": 2, "at": None}, {"topic": None, "hour": "2", "n": 3, "at": at}],
        ("topic", "hour"),
    )
    found = books.read().withColumn("at", F.unix_micros("at") / 1_000_000).collect()
    moment = at.timestamp()
    assert sorted((row["topic"] or "", row["hour"], row["n"], row["at"]) for row in found) == [
        ("", "2", 3, moment),
        ("a", "1", 1, moment),
        ("a", "2", 2, None),
    ]


def test_those_who_put_rows_in_at_once_lose_none(tables: Tables, threads: ThreadPoolExecutor) -> None:
    books = tables.table("books", StructType.fromDDL("topic string, n int"))
    for each in [threads.submit(books.upsert, [{"topic": f"t{n}", "n": n}], ("topic",)) for n in range(4)]:
        each.result(120)
    assert sorted(row["n"] for row in books.read().collect()) == [0, 1, 2, 3]


def test_columns_and_fields_may_be_added_and_older_rows_have_null_there(
    spark: SparkSession, tables: Tables, table: Table
) -> None:
    _ = table.append(rows(spark, [1]))
    wider = StructType.fromDDL(
        "id long, hour string, at timestamp, value struct<n: int, text: string, more: double>, "
        "headers array<struct<key: string, value: binary>>, raw binary, note string"
    )
    grown = tables.table("events", wider, ("hour",))
    value = F.struct("value.n", "value.text", F.lit(0.5).alias("more"))
    _ = grown.append(rows(spark, [2]).withColumn("value", value).withColumn("note", F.lit("new")))
    found = {row["id"]: (row["value"]["more"], row["note"]) for row in grown.read().collect()}
    assert found == {1: (None, None), 2: (0.5, "new")}
    # Those who know the older columns go on.
    _ = table.append(rows(spark, [3]))
    assert ids(table.read()) == [1, 2, 3]


def test_a_column_keeps_its_type(spark: SparkSession, tables: Tables, table: Table) -> None:
    _ = table.append(rows(spark, [1]))
    other = tables.table("events", StructType.fromDDL("id long, hour string, raw string"), ("hour",))
    with pytest.raises(TableSchemaError, match="raw as binary, not as string"):
        _ = other.append(spark.createDataFrame([(1, "2026-11-22-03", "x")], other.schema))
    with pytest.raises(TableSchemaError, match="raw as binary, not as string"):
        _ = other.read()
    spelt = tables.table("events", StructType.fromDDL("id long, hour string, value struct<N: int>"), ("hour",))
    with pytest.raises(TableSchemaError, match=r"has value\.n, and value\.N differs from it in capitals only"):
        _ = spelt.append(spark.createDataFrame([(1, "2026-11-22-03", (1,))], spelt.schema))


def test_a_table_of_a_newer_protocol_is_neither_read_nor_written(
    spark: SparkSession, tmp_path: Path, table: Table
) -> None:
    _ = table.append(rows(spark, [1]))
    version = table.version()
    assert version is not None
    newer = {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["timeTravelling"],
            "writerFeatures": ["timeTravelling"],
        }
    }
    log = tmp_path / "tables" / "events" / "_delta_log" / f"{version + 1:020}.json"
    _ = log.write_text(json.dumps(newer) + "\n")
    for use in (table.read, lambda: table.append(rows(spark, [2]))):
        with pytest.raises(Exception, match=r"(?i)timeTravelling|unsupported") as caught:
            _ = use()
        assert WRITER != "delta-rs" or isinstance(caught.value, TableProtocolError)


def test_a_batch_may_have_many_hours_and_many_files_are_read_at_once(spark: SparkSession, table: Table) -> None:
    # More than a task keeps open, and than Spark lists in the driver.
    hours = 2 * OPEN_FILES_MAX
    one_task = rows(spark, range(hours * 2)).coalesce(1)
    _ = table.append(one_task.withColumn("hour", F.concat(F.lit("h"), F.col("id") % hours)))
    assert len(table.files()) >= hours
    assert [row["n"] for row in table.read().groupBy("hour").agg(F.count("*").alias("n")).collect()] == [2] * hours


def test_files_that_no_commit_names_are_deleted_when_they_are_old(
    spark: SparkSession, tmp_path: Path, table: Table
) -> None:
    _ = table.append(rows(spark, [1]))
    [kept] = [Path(file.path) for file in table.files()][:1]
    orphan = kept.parent / "part-00000-orphan.zstd.parquet"
    young = kept.parent / "part-00001-orphan.zstd.parquet"
    for path in (orphan, young):
        _ = path.write_bytes(kept.read_bytes())
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC).timestamp()
    os.utime(orphan, (long_ago, long_ago))
    with pytest.raises(TableError, match="younger"):
        _ = table.vacuum(older_than_hours=1)
    assert len(table.vacuum(older_than_hours=48)) == 1
    assert (orphan.exists(), young.exists(), ids(table.read())) == (False, True, [1])


@pytest.mark.skipif(WRITER != "delta-rs", reason="statistics of the JVM's connector are its own")
def test_the_log_has_the_statistics_of_the_files(spark: SparkSession, table: Table) -> None:
    from deltalake import DeltaTable

    _ = table.append(rows(spark, range(6)).coalesce(1))
    [file] = table.files()
    place = Path(file.path).parents[1]
    action = json.loads(
        next(line for line in (place / "_delta_log" / f"{1:020}.json").read_text().splitlines() if '"add"' in line)
    )["add"]
    stats = json.loads(action["stats"])
    assert stats["numRecords"] == file.rows == pq.ParquetFile(file.path).metadata.num_rows == 6
    assert (stats["minValues"]["id"], stats["maxValues"]["id"], stats["nullCount"]["raw"]) == (0, 5, 3)
    assert stats["maxValues"]["at"] == "2026-11-22T03:00:00.123456Z"
    # Another reader prunes by them.
    assert DeltaTable(place).file_uris(file_pruning_predicate=[("id", ">", 5)]) == []


@pytest.mark.skipif(WRITER != "delta-rs", reason="Delta's connector has the type")
def test_a_type_that_cannot_be_written_is_named(tables: Tables) -> None:
    with pytest.raises(TableSchemaError, match="column v has the type variant"):
        _ = tables.table("variants", StructType.fromDDL("v variant"))


@pytest.mark.skipif(WRITER != "delta-rs", reason="any file system of Spark's will do")
def test_a_place_that_is_no_folder_is_refused(spark: SparkSession) -> None:
    with pytest.raises(TableError, match="delta-jvm"):
        _ = open_tables(Place("s3://bucket/tables"), spark)


def test_rows_of_one_frame_go_into_the_table_of_their_part_and_twice_into_none(
    spark: SparkSession, tables: Tables, table: Table
) -> None:
    others = tables.table("others", COLUMNS, ("hour",))
    both = tables.parts([TablePart(table, F.col("id") < 5), TablePart(others, F.col("id") >= 5)])
    frame = rows(spark, range(8)).withColumn("more", F.lit(1))
    with both.write(frame) as parts:
        assert [parts.is_empty(0), parts.is_empty(1)] == [False, False]
        assert parts.append(0, app="q/good", version=3, metadata={"digest": "one"})
    assert (ids(table.read()), others.version()) == ([0, 1, 2, 3, 4], None)
    # The same again, as after a crash between the two.
    with both.write(frame) as parts:
        assert not parts.append(0, app="q/good", version=3)
        assert parts.append(1, app="q/bad", version=3)
    with both.write(rows(spark, [1])) as parts:
        assert [parts.is_empty(0), parts.is_empty(1)] == [False, True]
    assert (ids(table.read()), ids(others.read())) == ([0, 1, 2, 3, 4], [5, 6, 7])
    assert table.transaction("q/good") == (3, {"digest": "one"})
    assert table.read().where("id = 3").collect() == rows(spark, [3]).collect()


def test_parts_of_another_type_are_refused_before_anything_is_written(
    spark: SparkSession, tables: Tables, table: Table
) -> None:
    assert table.append(rows(spark, [1]))
    wrong = rows(spark, [2]).withColumn("id", F.lit("two"))
    one = tables.parts([TablePart(table, F.lit(True))])
    with pytest.raises(TableSchemaError, match="id"), one.write(wrong) as parts:
        _ = parts.append(0, app="q/good", version=0)
    assert ids(table.read()) == [1]
