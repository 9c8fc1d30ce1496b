"""The first seed: the commit's, unless the environment names one, and named in failures."""

import subprocess
from pathlib import Path

import pytest

from tests.harness.seeds import SEED, WITHOUT_GIT, commit_seed, first_seed, named_in_failures
from tests.meta.test_shape import ROOT


def test_each_commit_has_a_seed_of_its_own() -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, text=True, capture_output=True).stdout
    assert f"{first_seed(environment={}):08x}" == commit[:8]


def test_the_environment_names_another_one() -> None:
    assert first_seed(environment={SEED: "7"}) == 7
    assert first_seed("PENSTOCK_SIM_FIRST", {SEED: "7"}) == 7
    assert first_seed("PENSTOCK_SIM_FIRST", {SEED: "7", "PENSTOCK_SIM_FIRST": "9"}) == 9


def test_an_archive_of_the_sources_has_a_fixed_seed(tmp_path: Path) -> None:
    assert commit_seed(tmp_path) == WITHOUT_GIT


def test_a_failure_names_its_seed_and_how_to_repeat_it() -> None:
    with pytest.raises(AssertionError) as raised, named_in_failures(7):
        raise AssertionError
    assert raised.value.__notes__ == [f"seed 7: {SEED}=7 repeats it"]
