"""What `land` refuses to do: go on where rows would be lost or doubled."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from penstock.pipeline.land.batches import LandError
from penstock.pipeline.land.land_job import LandJob
from penstock.pipeline.names import bronze_table
from penstock.pipeline.tables import open_tables
from penstock.pipeline.tables.commits import CommitSpec, commit
from pyspark.sql import SparkSession

from tests.harness.land_driver import ASKED_FOR, Ends, Plan, drive, run_until
from tests.harness.rate_source import rate_source
from tests.pipeline.land_rig import RateDriver, assert_exact, landed

ROWS = 200
SENTENCE = "was half written under another schema; start once with the old one"


def job(spark: SparkSession, plan: Plan, *, new_query: bool = False) -> LandJob:
    settings = plan.settings()
    source = partial(rate_source, rows=plan.rows)
    return LandJob(spark, settings, open_tables(settings, spark), source=source, steps=Ends(plan), new_query=new_query)


def fail(spark: SparkSession, plan: Plan) -> None:
    """Start it, and let the failure happen that it asks for."""
    land = job(spark, plan)
    _ = land.start()
    with pytest.raises(LandError, match=ASKED_FOR):
        run_until(land, plan.last_batch)


def refused(spark: SparkSession, plan: Plan, said: str) -> None:
    with pytest.raises(LandError, match=said):
        drive(spark, plan)


def test_a_schema_edited_between_crash_and_restart_stops_with_the_sentence(spark: SparkSession, tmp_path: Path) -> None:
    # What has x as id does not fit the first schema, and would fit the second.
    old = Plan(folder=str(tmp_path), last_batch=2, rows=ROWS, schema="id long")
    new = replace(old, schema="id string")
    wider = replace(old, schema="id long, more string", last_batch=3)
    fail(spark, replace(old, raise_at=[["good", 1]]))
    before = landed(tmp_path, old.topic)
    for edited in (new, wider):
        refused(spark, edited, f"batch 1 {SENTENCE}")
    assert landed(tmp_path, old.topic)[:2] == before[:2]
    drive(spark, old)
    assert_exact(found := landed(tmp_path, old.topic), (max(row["batch"] for row in found.bronze) + 1) * ROWS)
    # Whole batches are no reason to stop: the column that is new comes into the table.
    drive(spark, replace(wider, last_batch=max(row["batch"] for row in found.bronze) + 1))
    assert_exact(found := landed(tmp_path, old.topic), (max(row["batch"] for row in found.bronze) + 1) * ROWS)
    assert "more" in next(row["value"] for row in reversed(found.bronze) if row["value"])


def test_bad_rows_of_a_half_written_batch_are_written_by_the_next_run_and_good_ones_are_not_repeated(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan = Plan(folder=str(tmp_path), last_batch=1, rows=ROWS)
    fail(spark, replace(plan, raise_at=[["good", 0]]))
    half = landed(tmp_path, plan.topic)
    assert half.bronze
    assert not half.quarantine
    drive(spark, plan)
    found = landed(tmp_path, plan.topic)
    assert_exact(found, (max(row["batch"] for row in found.bronze) + 1) * ROWS)
    moments = {row["landed_at"] for row in half.bronze}
    assert {row["landed_at"] for row in found.bronze if row["batch"] == 0} == moments


def test_a_deleted_checkpoint_is_refused_until_the_operator_means_it(spark: SparkSession, tmp_path: Path) -> None:
    plan = Plan(folder=str(tmp_path), last_batch=0, rows=ROWS)
    drive(spark, plan)
    before = landed(tmp_path, plan.topic)
    shutil.rmtree(tmp_path / "checkpoints")
    refused(spark, plan, "has rows of another query")
    assert landed(tmp_path, plan.topic)[:2] == before[:2]
    land = job(spark, plan, new_query=True)
    _ = land.start()
    run_until(land, 0)
    assert len(landed(tmp_path, plan.topic).bronze) > len(before.bronze)
    # From then on the table has rows of this query too.
    drive(spark, replace(plan, last_batch=max(row["batch"] for row in landed(tmp_path, plan.topic).bronze) + 1))


def test_an_older_copy_of_the_checkpoint_and_an_older_copy_of_the_table_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan = Plan(folder=str(tmp_path), last_batch=1, rows=ROWS)
    drive(spark, plan)
    copy = tmp_path / "copy"
    _ = shutil.copytree(tmp_path / "checkpoints", copy)
    tables = tmp_path / "older"
    _ = shutil.copytree(tmp_path / "tables", tables)
    drive(spark, replace(plan, last_batch=max(row["batch"] for row in landed(tmp_path, plan.topic).bronze) + 2))
    newer = tmp_path / "newer"
    (tmp_path / "checkpoints").rename(newer)
    copy.rename(tmp_path / "checkpoints")
    refused(spark, replace(plan, last_batch=99), "it is an older copy, and going on from it would lose records")
    shutil.rmtree(tmp_path / "checkpoints")
    newer.rename(tmp_path / "checkpoints")
    shutil.rmtree(tmp_path / "tables")
    tables.rename(tmp_path / "tables")
    refused(spark, replace(plan, last_batch=99), "the table was restored or replaced")


def test_of_two_drivers_on_one_checkpoint_one_is_stopped_and_the_table_is_exact(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan = Plan(folder=str(tmp_path), last_batch=1_000_000, rows=ROWS)
    land = job(spark, plan)
    _ = land.start()
    run_until_started(land)
    with RateDriver(replace(plan, last_batch=3)) as rival:
        stopped_here = ""
        try:
            while rival.process.poll() is None:
                _ = land.wait(seconds=0.1)
        except LandError as error:
            stopped_here = str(error)
        finally:
            land.stop()
        status = rival.wait()
        assert bool(stopped_here) != (status == 3), (stopped_here, rival.said)
        assert "another driver uses this checkpoint" in (stopped_here or rival.said) or "already" in (
            stopped_here or rival.said
        )
    drive(spark, replace(plan, last_batch=max(row["batch"] for row in landed(tmp_path, plan.topic).bronze) + 1))
    found = landed(tmp_path, plan.topic)
    assert_exact(found, (max(row["batch"] for row in found.bronze) + 1) * ROWS)


def test_a_driver_that_a_rival_has_overtaken_counts_nothing_as_landed_by_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan = Plan(folder=str(tmp_path), last_batch=1, rows=ROWS)

    class Overtaken:
        """Just before the driver writes batch 1, another one with a copy of its checkpoint has written 1 and 2."""

        def reached(self, step: str, topic: str, batch: int) -> None:
            if (step, batch) == ("started", 1):
                [query] = land.queries
                table = str(tmp_path / "tables" / bronze_table(topic))
                for rivals in (1, 2):
                    _ = commit(CommitSpec(table, "append", f"rival {rivals}", f"{query.id}/good", rivals), [])

    settings = plan.settings()
    source = partial(rate_source, rows=plan.rows)
    land = LandJob(spark, settings, open_tables(settings, spark), source=source, steps=Overtaken())
    _ = land.start()
    with pytest.raises(LandError, match="at batch 1, and batch 2 is in the table already: another driver"):
        run_until(land, 1)


def run_until_started(land: LandJob) -> None:
    while not land.wait(seconds=0.05):
        if land.queries[0].lastProgress is not None:
            return
