"""`make soak` runs with its full count whatever has one."""

import re
import subprocess
from pathlib import PurePosixPath
from typing import NamedTuple

from tests.meta.test_shape import ROOT

SOAK = ROOT / "tools" / "soak.sh"
COUNT = re.compile(r'(?:count_from\(|(?:int|float)\(os\.environ\.get\()"(PENSTOCK_[A-Z_]+)", ')
# These repeat a run, and say nothing of its length.
NO_COUNTS = {"PENSTOCK_SEED", "PENSTOCK_SIM_FIRST"}


class Run(NamedTuple):
    """One line of the script."""

    counts: frozenset[str]
    places: tuple[str, ...]
    """Files and folders of tests."""


def soak_runs() -> list[Run]:
    lines = SOAK.read_text().replace("\\\n", " ").splitlines()
    return [
        Run(frozenset(re.findall(r"\b(PENSTOCK_[A-Z_]+)=", line)), tuple(re.findall(r"\btests/[\w./]+", line)))
        for line in lines
        if not line.startswith("#")
    ]


def counts() -> set[tuple[str, str]]:
    """Each file of tests with a count of its own, and the count's name."""
    listed = subprocess.run(
        ["git", "ls-files", "tests/*.py"], cwd=ROOT, check=True, text=True, capture_output=True
    ).stdout.split()
    return {
        (name, count)
        for name in listed
        if (ROOT / name).exists()
        for count in COUNT.findall((ROOT / name).read_text())
        if count not in NO_COUNTS
    }


def test_every_count_is_the_full_one_in_the_soak_of_its_own_test() -> None:
    runs, wanted = soak_runs(), counts()
    assert len(wanted) > 20
    forgotten = {
        (name, count)
        for name, count in wanted
        if not any(
            count in run.counts and any(PurePosixPath(name).is_relative_to(at) for at in run.places) for run in runs
        )
    }
    assert forgotten == set()


def test_the_soak_sets_only_counts_that_its_tests_have_and_runs_only_tests_that_there_are() -> None:
    known = {count for _, count in counts()} | {"PENSTOCK_REQUIRE_ALL", "PENSTOCK_ALL_VERSIONS", "PENSTOCK_WRITER"}
    assert set().union(*(run.counts for run in soak_runs())) - known == set()
    assert [place for run in soak_runs() for place in run.places if not (ROOT / place).exists()] == []
