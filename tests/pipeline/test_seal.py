"""`seal`, on tables that tests fill themselves: what the audit said, and what lies in bronze."""

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from penstock.config.pipeline import PipelineSettings, validate_pipeline
from penstock.pipeline import schemas
from penstock.pipeline.audit.schemas import HEARTBEATS, HEARTBEATS_TABLE, REPORT, REPORT_TABLE
from penstock.pipeline.hours import HOUR_MS, start_ms
from penstock.pipeline.names import QUARANTINE, bronze_table
from penstock.pipeline.seal import seal_job as seal
from penstock.pipeline.seal.rows import seals_table
from penstock.pipeline.tables import Table, Tables, open_tables
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType

from tests.harness.processes import REPOSITORY
from tests.harness.spark_driver import FEW_ROWS, small_spark
from tests.pipeline.conftest import WRITER

TOPIC: Final = "orders"
HOUR: Final = "2026-11-22-03"
END: Final = start_ms(HOUR) + HOUR_MS
DAEMON: Final = "0123456789ab"
AT: Final = dt.datetime(2026, 11, 22, 3, 10, tzinfo=dt.UTC)


class World:
    """Tables of one topic; an audit is what a test says it found."""

    def __init__(self, spark: SparkSession, folder: Path, **seal_settings: int) -> None:
        self.spark = spark
        self.settings: PipelineSettings = validate_pipeline(
            {
                "tables": str(folder / "tables"),
                "checkpoints": str(folder / "checkpoints"),
                "writer": WRITER,
                "kafka": {"bootstrap.servers": "127.0.0.1:1"},
                "topics": {TOPIC: {"format": "raw"}},
                "seal": seal_settings,
            },
            "tests",
        )
        self.tables: Tables = open_tables(self.settings, spark)
        self.bronze: Table = self.tables.table(bronze_table(TOPIC), schemas.bronze(BinaryType()), schemas.PARTITION_BY)
        self.runs = 0

    def rows(self, ordinals: Iterable[int | None], *, offset: int = 0, hour: str = HOUR) -> DataFrame:
        """Rows with these ordinals (None: foreign), at offsets from `offset` on."""
        data = [
            (
                *((DAEMON, 0, ordinal, AT) if ordinal is not None else (None, None, None, None)),
                *(TOPIC, 0, offset + place, AT, hour, None, b"value %d" % place, [("key", b"v")], "1", 0, AT),
            )
            for place, ordinal in enumerate(ordinals)
        ]
        return self.spark.createDataFrame(data, schemas.bronze(BinaryType()))

    def land(self, ordinals: Iterable[int | None], **more: Any) -> None:
        assert self.bronze.append(self.rows(ordinals, **more).coalesce(1))

    def quarantine(self, ordinals: Iterable[int | None], *, offset: int) -> None:
        """Rows with these ordinals that could not be parsed."""
        rows = self.rows(ordinals, offset=offset).selectExpr(
            *("incarnation", "origin", "ordinal", "accept_ts", "topic", "partition", "offset", "kafka_ts", "hour"),
            *("key", "headers", "value AS raw", "'decode' AS error_class", "'x' AS error", "'json' AS format"),
            *("schema_version", "batch", "landed_at"),
        )
        assert self.tables.table(QUARANTINE, schemas.QUARANTINE, schemas.PARTITION_BY).append(rows)

    def heartbeat(self, *, closed: bool = False, before: int = END) -> None:
        row = (DAEMON, "host", 1, before, "closed" if closed else "running", before, before, 10.0)
        self.tables.table(HEARTBEATS_TABLE, HEARTBEATS).overwrite(self.spark.createDataFrame([row], HEARTBEATS))

    def audit(self, status: str, *, hour: str = HOUR, **counts: int) -> str:
        """One run of the audit that found this, a second after the one before."""
        self.runs += 1
        run = f"run-{self.runs}"
        row = dict.fromkeys(REPORT.names) | {
            "topic": TOPIC,
            "hour": hour,
            "incarnation": DAEMON,
            "run": run,
            "run_at": AT + dt.timedelta(seconds=self.runs),
            "host": "host",
            "status": status,
            "closed": True,
            "settled": True,
            "doubts": [],
        }
        frame = self.spark.createDataFrame([tuple((row | counts)[name] for name in REPORT.names)], REPORT)
        assert self.tables.table(REPORT_TABLE, REPORT).append(frame)
        return run

    def whole(self, count: int, **more: Any) -> str:
        """An audit that found everything."""
        counts = {"accepted": count, "holes": 0, "expected": count, "landed": count, "distinct": count}
        return self.audit("complete", **(counts | more))

    def seal(self, *, now_ms: int = END) -> seal.SealResult:
        return seal.run(self.spark, self.settings, self.tables, now_ms=now_ms)

    def seals(self) -> list[dict[str, Any]]:
        found = seals_table(self.tables).read().orderBy("hour", "generation").collect()
        return [row.asDict() for row in found]

    def places(self, hour: str = HOUR) -> list[tuple[int | None, int]]:
        """Ordinal and offset of each row in bronze, by offset."""
        rows = self.bronze.read(hours=[hour]).select("ordinal", "offset").orderBy("offset").collect()
        return [(row["ordinal"], row["offset"]) for row in rows]

    def files(self) -> set[str]:
        return {file.path for file in self.bronze.files([HOUR])}


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    made = World(spark, tmp_path)
    made.heartbeat()
    return made


def frames_kept(spark: SparkSession) -> int:
    """Frames that were persisted and not let go."""
    inside: Any = spark
    return inside._jsparkSession.sharedState().cacheManager().numCachedEntries()


def picked(row: dict[str, Any], *names: str) -> Sequence[Any]:
    return [row[name] for name in names]


def test_a_whole_hour_is_sealed_and_its_files_become_one(world: World) -> None:
    for start in (0, 10, 20):
        world.land(range(start, start + 10), offset=start)
    world.land([None, None], offset=100)
    before = world.places()
    run = world.whole(30, foreign=2)
    result = world.seal()
    [row] = world.seals()
    assert picked(row, "topic", "hour", "generation", "status") == [TOPIC, HOUR, 1, "sealed"]
    assert picked(row, "accepted", "holes", "landed", "distinct", "lost") == [30, 0, 30, 30, 0]
    assert picked(row, "duplicates_removed", "foreign", "incarnations", "audit_run") == [0, 2, 1, run]
    assert picked(row, "files_before", "files_after", "table_version") == [4, 1, world.bronze.version()]
    assert row["bytes"] == sum(file.bytes for file in world.bronze.files([HOUR]))
    assert world.places() == before
    assert [each["hour"] for each in result.sealed] == [HOUR]
    assert "orders 2026-11-22-03: sealed, generation 1, 30 landed, 0 lost" in str(result)


def test_a_sealed_hour_is_left_alone(world: World) -> None:
    world.land(range(5))
    _ = world.whole(5)
    _ = world.seal()
    seals, files, version = world.seals(), world.files(), world.bronze.version()
    assert str(world.seal(now_ms=END + HOUR_MS)) == "nothing to seal"
    assert (world.seals(), world.files(), world.bronze.version()) == (seals, files, version)


def test_an_hour_without_duplicates_in_few_enough_files_is_not_written_again(world: World) -> None:
    world.land(range(5))
    files, version = world.files(), world.bronze.version()
    _ = world.whole(5)
    _ = world.seal()
    assert (world.files(), world.bronze.version()) == (files, version)
    assert picked(world.seals()[0], "files_before", "files_after", "table_version") == [1, 1, version]


def test_of_doubled_records_the_lowest_place_stays_and_nothing_else_goes(world: World) -> None:
    world.land(range(20), offset=0)
    world.land([3, 4, 5], offset=500)
    world.land([None, 5, None], offset=600)
    run = world.audit("duplicated", accepted=20, holes=0, landed=24, distinct=20, duplicated=4, foreign=2)
    kept = frames_kept(world.spark)
    _ = world.seal()
    [row] = world.seals()
    assert picked(row, "status", "landed", "distinct", "duplicates_removed", "foreign", "audit_run") == [
        *("sealed", 24, 20, 4, 2, run)
    ]
    assert world.places() == [*((number, number) for number in range(20)), (None, 600), (None, 602)]
    # Of the many hours that a run may seal, none is kept in memory.
    assert frames_kept(world.spark) == kept


def test_an_hour_with_losses_is_sealed_with_gaps_when_the_grace_is_over_and_its_duplicates_go(world: World) -> None:
    world.land(range(13))
    world.land([0, 1], offset=100)
    _ = world.audit("lost", accepted=20, holes=0, landed=15, distinct=13, lost=7, duplicated=2)
    result = world.seal(now_ms=END + HOUR_MS)
    assert world.seals() == []
    assert [wait.reason for wait in result.waiting] == ["7 records are missing; sealed with gaps in 23.0 h"]
    _ = world.seal(now_ms=END + 24 * HOUR_MS)
    [row] = world.seals()
    assert picked(row, "status", "lost", "duplicates_removed") == ["sealed-with-gaps", 7, 2]
    assert len(world.places()) == 13


def test_a_late_row_reopens_the_hour_and_the_audit_seals_the_next_generation(world: World) -> None:
    world.land(range(5))
    world.land(range(5, 10), offset=5)
    _ = world.whole(10)
    _ = world.seal()
    world.land([10], offset=10)
    reopened = world.seal(now_ms=END + HOUR_MS)
    assert [each.generation for each in reopened.reopened] == [2]
    assert [row["status"] for row in world.seals()] == ["sealed", "reopened"]
    # Without a new audit it stays open.
    waiting = world.seal(now_ms=END + HOUR_MS)
    assert "audit again" in waiting.waiting[0].reason
    _ = world.whole(11)
    _ = world.seal(now_ms=END + 2 * HOUR_MS)
    first, second = world.seals()
    assert picked(first, "generation", "status", "landed") == [1, "sealed", 10]
    assert picked(second, "generation", "status", "landed", "files_before", "files_after") == [2, "sealed", 11, 2, 1]
    assert [place for _, place in world.places()] == list(range(11))


def test_a_record_that_ended_in_quarantine_counts_as_landed(world: World) -> None:
    world.land(range(4))
    world.quarantine([4], offset=4)
    _ = world.whole(5)
    _ = world.seal()
    assert picked(world.seals()[0], "status", "landed") == ["sealed", 5]
    # A late one reopens the hour, too.
    world.quarantine([4], offset=4)
    assert [each.hour for each in world.seal().reopened] == [HOUR]


def test_of_a_record_in_bronze_and_in_quarantine_both_rows_stay_and_the_hour_is_sealed(world: World) -> None:
    # The schema was edited between the two copies: of 3 the first could not be read, of 4 the second, of 5 the third.
    world.quarantine([3], offset=3)
    world.land([0, 1, 2, 4, 5])
    world.land([3, 5], offset=10)
    world.quarantine([4, 5], offset=20)
    _ = world.audit("duplicated", accepted=6, holes=0, landed=10, distinct=6, duplicated=4)
    result = world.seal()
    [row] = world.seals()
    # Who reads bronze finds each of them once; a row of quarantine is never taken away.
    assert picked(row, "status", "landed", "distinct", "duplicates_removed") == ["sealed", 10, 6, 1]
    assert "1 spare rows removed" in str(result)
    assert sorted(ordinal for ordinal, _ in world.places()) == [0, 1, 2, 3, 4, 5]
    quarantined = world.tables.table(QUARANTINE, schemas.QUARANTINE, schemas.PARTITION_BY).read().collect()
    assert sorted((each["ordinal"], each["offset"]) for each in quarantined) == [(3, 3), (4, 20), (5, 21)]
    # What stayed counts as sealed: it does not reopen the hour.
    assert str(world.seal(now_ms=END + HOUR_MS)) == "nothing to seal"


def test_an_hour_of_which_nothing_landed_is_sealed_without_files(world: World) -> None:
    world.land([0], hour="2026-11-22-02")
    _ = world.whole(1, hour="2026-11-22-02")
    _ = world.audit("lost", accepted=3, holes=0, landed=0, distinct=0, lost=3)
    _ = world.seal(now_ms=END + 24 * HOUR_MS)
    _, row = world.seals()
    assert picked(row, "hour", "status", "lost", "landed", "files_after", "table_version") == [
        *(HOUR, "sealed-with-gaps", 3, 0, 0, None)
    ]


def test_of_two_runs_at_once_one_compacts_and_both_agree(world: World) -> None:
    for start in range(0, 40, 10):
        world.land(range(start, start + 10), offset=start)
    world.land([0], offset=100)
    _ = world.audit("duplicated", accepted=40, holes=0, landed=41, distinct=40, duplicated=1)
    version = world.bronze.version()
    assert version is not None
    with ThreadPoolExecutor(2) as pool:
        results = [each.result(240) for each in [pool.submit(world.seal) for _ in range(2)]]
    [row] = world.seals()
    assert picked(row, "status", "generation", "landed", "duplicates_removed", "files_after") == [
        *("sealed", 1, 41, 1, 1)
    ]
    assert world.bronze.version() == version + 1
    assert len(world.places()) == 40
    assert sum(len(result.sealed) for result in results) >= 1


def test_a_row_that_lands_while_an_hour_is_compacted_is_not_lost(world: World) -> None:
    world.land(range(5))
    world.land(range(5, 10), offset=5)
    _ = world.whole(10)
    orders = [HOUR]
    bronze = world.bronze

    class Racing:
        """The table, onto which `land` puts a row just before the hour is replaced."""

        def __getattr__(self, name: str) -> Any:
            return getattr(bronze, name)

        def replace(self, *given: Any, **named: Any) -> int:
            if orders:
                world.land([10], offset=10, hour=orders.pop())
            return bronze.replace(*given, **named)

    class Raced:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.tables, name)

        def existing(self, name: str) -> Any:
            assert name == bronze_table(TOPIC)
            return Racing()

    result = seal.run(world.spark, world.settings, Raced(), now_ms=END)
    assert ([wait.hour for wait in result.waiting], world.seals()) == ([HOUR], [])
    assert [place for _, place in world.places()] == list(range(11))
    _ = world.whole(11)
    _ = world.seal()
    assert picked(world.seals()[0], "status", "landed") == ["sealed", 11]


def test_a_row_that_lands_after_the_hours_were_counted_is_in_no_seal_of_theirs(world: World) -> None:
    world.land(range(5))
    _ = world.whole(5)
    bronze = world.bronze
    late = [5]

    class Racing:
        """The table, onto which `land` puts a row when it has been decided to seal the hour."""

        def __getattr__(self, name: str) -> Any:
            return getattr(bronze, name)

        def version(self) -> int | None:
            if late:
                world.land([late.pop()], offset=5)
            return bronze.version()

    class Raced:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.tables, name)

        def existing(self, name: str) -> Any:
            assert name == bronze_table(TOPIC)
            return Racing()

    result = seal.run(world.spark, world.settings, Raced(), now_ms=END)
    assert [(wait.hour, wait.reason) for wait in result.waiting] == [(HOUR, "rows came just now: audit again")]
    assert world.seals() == []


KILLED: Final = """
import os, signal, sys
from pathlib import Path
from penstock.config.pipeline import load_pipeline
from penstock.pipeline import session
from penstock.pipeline.seal import seal_job as seal
from penstock.pipeline.tables import open_tables

settings = load_pipeline(Path(sys.argv[1]))
spark = session.start(settings, "killed", master="local[2]")
tables = open_tables(settings, spark)

class Killed:
    def __init__(self, table): self.table = table
    def __getattr__(self, name): return getattr(self.table, name)
    def upsert(self, rows, keys):
        # The hour is compacted; its row is not there yet.
        os.kill(os.getpid(), signal.SIGKILL)

class Tables:
    def __getattr__(self, name): return getattr(tables, name)
    def table(self, name, *more):
        found = tables.table(name, *more)
        return Killed(found) if name == "seals" else found

seal.run(spark, settings, Tables(), now_ms=int(sys.argv[2]))
"""


def test_a_run_that_is_killed_between_its_steps_is_finished_by_the_next(world: World, tmp_path: Path) -> None:
    for start in (0, 10):
        world.land(range(start, start + 10), offset=start)
    world.land([7], offset=100)
    run = world.audit("duplicated", accepted=20, holes=0, landed=21, distinct=20, duplicated=1)
    spark_lines = "\n".join(f'"{name}" = "{value}"' for name, value in (small_spark() | FEW_ROWS).items())
    config = tmp_path / "pipeline.toml"
    _ = config.write_text(
        f'tables = "{world.settings.tables}"\ncheckpoints = "{world.settings.checkpoints}"\nwriter = "{WRITER}"\n'
        f'[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n[topics.{TOPIC}]\nformat = "raw"\n[spark]\n{spark_lines}\n'
    )
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(config), str(END)],
        cwd=REPOSITORY,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == -9, ended.stderr.decode()[-2000:]
    version, files = world.bronze.version(), world.files()
    assert (world.seals(), len(world.places())) == ([], 20)
    result = world.seal(now_ms=END + HOUR_MS)
    [row] = world.seals()
    # The books of the run that was killed, for the hour is compacted already.
    assert picked(row, "status", "generation", "audit_run", "landed", "duplicates_removed") == ["sealed", 1, run, 21, 1]
    assert picked(row, "files_before", "files_after", "table_version") == [3, 1, version]
    assert (world.bronze.version(), world.files()) == (version, files)
    assert ([each["hour"] for each in result.sealed], result.waiting, result.reopened) == ([HOUR], [], [])


def test_files_that_left_the_table_are_deleted_when_the_settings_say_so(spark: SparkSession, tmp_path: Path) -> None:
    world = World(spark, tmp_path, vacuum_after=2 * 86_400)
    world.heartbeat()
    world.land(range(5))
    world.land(range(5, 10), offset=5)
    orphan = Path(next(iter(world.files()))).with_name("part-00000-orphan.zstd.parquet")
    _ = orphan.write_bytes(b"of a task that died")
    old = END / 1_000 - 10 * 86_400
    os.utime(orphan, (old, old))
    _ = world.whole(10)
    _ = world.seal()
    assert not orphan.exists()
    # What the sealing itself has put aside is younger.
    assert len(world.places()) == 10
    assert len(list(orphan.parent.glob("*.parquet"))) == 3
