"""Files as tasks write them, without Spark."""

import datetime as dt
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from penstock.pipeline.tables.data_files import (
    OPEN_FILES_MAX,
    ROW_GROUP_BYTES,
    AddedFile,
    FileWriter,
    sync_above,
    sync_folder,
)

SCHEMA = pa.schema([("hour", pa.string()), ("raw", pa.binary())])
ROW = 4_096
ROWS = 2_048


def noise(batches: int, *, hours: int = 1) -> Iterator[pa.RecordBatch]:
    for number in range(batches):
        names = [f"h{(number * ROWS + row) % hours}" for row in range(ROWS)]
        yield pa.record_batch([names, [os.urandom(ROW) for _ in range(ROWS)]], schema=SCHEMA)


def rows_of(root: Path, files: list[AddedFile]) -> int:
    return sum(pq.ParquetFile(root / file.path).metadata.num_rows for file in files)


def writer(root: Path, **more: int) -> FileWriter:
    return FileWriter(str(root), SCHEMA, ("hour",), task=3, **more)


def test_a_file_that_is_large_enough_is_ended_and_another_begun(tmp_path: Path) -> None:
    files = writer(tmp_path, file_bytes=ROW_GROUP_BYTES).write_all(noise(25))
    assert [file.bytes > ROW_GROUP_BYTES for file in files] == [True, True, True, False]
    assert rows_of(tmp_path, files) == sum(file.rows for file in files) == 25 * ROWS
    assert {file.partition["hour"] for file in files} == {"h0"}


def test_a_task_that_writes_to_very_many_hours_keeps_few_files_open(tmp_path: Path) -> None:
    hours = OPEN_FILES_MAX + 50
    files = writer(tmp_path).write_all(noise(1, hours=hours))
    assert {file.partition["hour"] for file in files} == {f"h{number}" for number in range(hours)}
    assert rows_of(tmp_path, files) == ROWS


def test_the_partition_column_is_in_the_path_and_not_in_the_file(tmp_path: Path) -> None:
    [file] = writer(tmp_path).write_all(noise(1))
    assert file.path.startswith("hour=h0/part-00003-")
    assert pq.ParquetFile(tmp_path / file.path).schema_arrow.names == ["raw"]


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from noise(9, hours=2)
        raise OSError("the reader is gone")

    with pytest.raises(OSError, match="gone"):
        _ = writer(tmp_path, file_bytes=1).write_all(failing())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_names_of_files_and_of_their_folders_are_durable_when_a_task_ends(tmp_path: Path) -> None:
    (tmp_path / "hour=h0").mkdir()
    synced: list[tuple[Path, int]] = []

    def sync(folder: Path) -> None:
        synced.append((folder, len(list(folder.iterdir()))))
        sync_folder(folder)

    files = FileWriter(str(tmp_path), SCHEMA, ("hour",), task=3, sync=sync).write_all(noise(1, hours=2))
    assert len(files) == 2
    # A folder that was there is in it, too: of a task that died none can know how far it had come.
    assert sorted(synced[:2]) == [(tmp_path / "hour=h0", 1), (tmp_path / "hour=h1", 1)]
    assert synced[2:] == [(tmp_path, 2)]


def test_folders_in_folders_are_durable_from_the_innermost_to_the_tables(tmp_path: Path) -> None:
    schema = pa.schema([("topic", pa.string()), *SCHEMA])
    rows = pa.record_batch([["t"], ["h0"], [b"x"]], schema=schema)
    synced: list[Path] = []
    made = FileWriter(str(tmp_path), schema, ("topic", "hour"), task=0, sync=synced.append)
    assert len(made.write_all([rows])) == 1
    assert synced == [tmp_path / "topic=t/hour=h0", tmp_path / "topic=t", tmp_path]


def test_the_name_of_a_folder_is_durable_with_all_above_it_whoever_made_them(tmp_path: Path) -> None:
    table = tmp_path / "lake/bronze/orders"
    table.mkdir(parents=True)
    synced: list[Path] = []

    def sync(folder: Path) -> None:
        if folder == tmp_path.parent:
            raise PermissionError(folder)
        synced.append(folder)

    for _ in range(2):
        synced.clear()
        sync_above(table, sync=sync)
        assert synced == [tmp_path / "lake/bronze", tmp_path / "lake", tmp_path]


def test_folders_above_a_file_system_are_not_ours() -> None:
    synced: list[Path] = []
    sync_above(Path("/proc/self"), sync=synced.append)
    assert synced == [Path("/proc")]


def test_the_log_has_times_of_any_year_in_four_digits(tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC"))])
    moments = [dt.datetime(33, 4, 3, 15, 0, 0, 7, tzinfo=dt.UTC), dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC)]
    rows = pa.record_batch([moments], schema=schema)
    [file] = FileWriter(str(tmp_path), schema, (), task=0).write_all([rows])
    said = json.loads(file.statistics)
    assert said["minValues"] == {"at": "0033-04-03T15:00:00.000007Z"}
    assert said["maxValues"] == {"at": "1969-12-31T23:00:00.000000Z"}


def test_no_rows_are_no_files(tmp_path: Path) -> None:
    synced: list[Path] = []
    assert FileWriter(str(tmp_path), SCHEMA, ("hour",), task=3, sync=synced.append).write_all(iter(())) == []
    assert synced == []
