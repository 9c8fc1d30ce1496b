"""`land` under kills and failures, on a source that is the same whenever it is read: nothing lost, nothing doubled."""

from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from tests.harness.counts import count_from
from tests.harness.land_driver import Plan, drive
from tests.pipeline.land_rig import assert_exact, landed, run

KILLED = -9


def test_killed_drivers_failed_tasks_and_failures_between_commit_and_log_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows, last = count_from("PENSTOCK_RATE_ROWS", 500), count_from("PENSTOCK_RATE_BATCHES", 9)
    plan = Plan(folder=str(tmp_path), last_batch=last, rows=rows, fail_every=5)
    for kill_at in (["good", 2], ["bad", 4], ["started", 5]):
        status, said = run(replace(plan, kill_at=kill_at))
        assert status == KILLED, said
    # The table has its rows, Spark's log does not know yet.
    drive(spark, replace(plan, raise_at=[["bad", 6], ["good", 7]]))
    found = landed(tmp_path, plan.topic)
    batches = max(row["batch"] for row in found.bronze) + 1
    assert batches > last
    assert_exact(found, batches * rows)
