"""The audit on Spark against the same told by sets: worlds by chance, everything compared.

The first seed comes from the commit; `PENSTOCK_SEED` repeats a world.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from penstock.pipeline.audit.frames import DRIVER_ROWS_MAX
from pyspark.sql import SparkSession

from tests.harness.audit_bench import AuditBench, told
from tests.harness.audit_hosts import TOPICS, random_world
from tests.harness.audit_model import World, answer
from tests.harness.counts import count_from
from tests.harness.seeds import first_seed, named_in_failures

WORLDS = count_from("PENSTOCK_AUDIT_WORLDS", 1)
INCARNATIONS = count_from("PENSTOCK_AUDIT_INCARNATIONS", 20)


@pytest.mark.parametrize("number", range(WORLDS))
def test_every_number_verdict_and_name_is_the_one_that_sets_give(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    seed = first_seed() + number
    with named_in_failures(seed):
        _compare_halves_and_whole(spark, tmp_path, random_world(seed, INCARNATIONS))


def _compare_halves_and_whole(spark: SparkSession, tmp_path: Path, world: World) -> None:
    bench = AuditBench(spark, tmp_path)
    # First `land` has half of it and has read nothing that it could swear to, then the rest comes.
    half = replace(world, rows=world.rows[::2], read_to={topic: {} for topic in TOPICS})
    bench.land(half.rows)
    # Many records are judged by tasks, few at the driver.
    _compare(bench, half, few=0)
    bench.land(world.rows[1::2])
    _compare(bench, world)


def _compare(bench: AuditBench, world: World, *, few: int = DRIVER_ROWS_MAX) -> None:
    found, expected = told(bench.audit(world, few=few)), answer(world)
    assert found.lines == dict(expected.lines)
    assert found.missing == expected.missing
    assert found.duplicates == expected.duplicates
    assert found.exit_code == expected.exit_code
