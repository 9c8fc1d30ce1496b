"""A transactional producer against the strict broker, three nodes of it, on virtual time, with trouble by seed.

As test_direct_simulation.py; coordinators move and die as well, markers are late, transactions time out, and after what is fatal the
producer is made anew. Both versions of the protocol, and brokers that know one only. What readers of committed records see must be
what the application was told (`transactions.check`).
"""

from typing import Final

import pytest

from tests.harness.broker_mutants import changed
from tests.harness.counts import count_from
from tests.harness.seeds import first_seed, named_in_failures

from .mutants import first_failing
from .transaction_mutants import MUTANTS
from .transactions import Result, run

SEEDS: Final = count_from("PENSTOCK_SIM_SEEDS", 24)
FIRST: Final = first_seed("PENSTOCK_SIM_FIRST")
PARTS: Final = 8
"""So many tests share the seeds, for as many processes as there are."""


def shown(seed: int) -> Result:
    with named_in_failures(seed, f"`python -m tests.sim.story transactions {seed}` tells the run"):
        return run(seed)


@pytest.mark.timeout(1200)  # a long course takes a minute on a machine that is busy with other tests
@pytest.mark.parametrize("part", range(PARTS))
def test_readers_see_whole_what_was_committed_and_nothing_of_what_was_aborted(part: int) -> None:
    for seed in range(FIRST + part, FIRST + SEEDS, PARTS):
        _ = shown(seed)


def test_runs_commit_abort_and_know_trouble() -> None:
    """By fixed seeds: of any three, a few have little of it."""
    results = [shown(seed) for seed in range(3)]
    assert sum(one.committed for one in results) > 3
    assert sum(one.aborted for one in results) > 0
    assert sum(one.records for one in results) > 20
    assert sum(len(one.events) for one in results) > 5


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_in_transactions_is_found(name: str) -> None:
    seeds, plant = MUTANTS[name]
    with changed(plant):
        found = first_failing(run, seeds)
    assert found is not None, f"{name} was not found"
    _ = shown(found)
