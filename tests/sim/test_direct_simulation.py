"""The direct producer's sender against the strict broker, three nodes of it, on virtual time, with trouble by seed.

Every run has another schedule of leader moves, ends and pauses of nodes, leaders that are cut off, slow copies, throttling, rights
taken and given back, limits lowered, answers lost and connections cut. After it nothing may be open, and the logs must be as the
outcomes say (`runs.check`). The count comes from PENSTOCK_SIM_SEEDS, the first seed from PENSTOCK_SIM_FIRST or the
commit (tests/harness/seeds.py); `python -m tests.sim.story SEED` tells a run.
"""

import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.harness.broker_mutants import changed
from tests.harness.counts import count_from
from tests.harness.seeds import first_seed, named_in_failures

from .mutants import MUTANTS, first_failing
from .runs import Result, run

SEEDS: Final = count_from("PENSTOCK_SIM_SEEDS", 64)
FIRST: Final = first_seed("PENSTOCK_SIM_FIRST")
PARTS: Final = 16
"""So many tests share the seeds, for as many processes as there are."""
KEPT: Final = tomllib.loads(Path(__file__).with_name("seeds.toml").read_text())["seeds"]


def shown(seed: int) -> Result:
    with named_in_failures(seed, f"`python -m tests.sim.story {seed}` tells the run; keep it in tests/sim/seeds.toml"):
        return run(seed)


@pytest.mark.timeout(1200)  # a long course takes a minute on a machine that is busy with other tests
@pytest.mark.parametrize("part", range(PARTS))
def test_what_was_acknowledged_is_in_the_log_once_and_what_failed_is_as_it_was_told(part: int) -> None:
    results = [shown(seed) for seed in range(FIRST + part, FIRST + SEEDS, PARTS)]
    assert all(one.requests for one in results)


def test_runs_deliver_records_and_know_trouble() -> None:
    """By fixed seeds: of any four, a few have little of it."""
    results = [shown(seed) for seed in range(4)]
    assert sum(one.delivered for one in results) > 100
    assert sum(len(one.events) for one in results) > 5


@pytest.mark.parametrize("seed", [one["seed"] for one in KEPT])
def test_a_run_that_once_failed_does_not_any_more(seed: int) -> None:
    _ = shown(seed)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    seeds, plant = MUTANTS[name]
    with changed(plant):
        found = first_failing(run, seeds)
    assert found is not None, f"{name} was not found"
    _ = shown(found)
