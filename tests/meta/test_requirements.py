"""What a machine lacks is never passed over in silence where everything is required."""

import subprocess

import pytest

from tests.harness.requirements import REQUIRE_ALL, missing
from tests.meta.test_shape import ROOT


def test_what_is_lacking_skips_a_test_and_fails_it_where_everything_is_required() -> None:
    with pytest.raises(pytest.skip.Exception, match="needs a disk"):
        missing("needs a disk", environment={})
    with pytest.raises(pytest.fail.Exception, match="PENSTOCK_REQUIRE_ALL=1, but this test needs a disk"):
        missing("needs a disk", environment={REQUIRE_ALL: "1"})


def test_what_make_runs_in_ci_requires_everything() -> None:
    told = subprocess.run(["make", "-n", "test"], cwd=ROOT, check=True, text=True, capture_output=True).stdout
    assert f"{REQUIRE_ALL}=1 .venv/bin/python tools/run_tests.py" in told


def test_tests_say_that_they_need_root_where_it_can_be_required() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "tests/*.py"], cwd=ROOT, check=True, text=True, capture_output=True
    ).stdout.split()
    texts = {name: (ROOT / name).read_text() for name in listed if (ROOT / name).exists()}
    assert [name for name, text in texts.items() if "skipif(os.get" + "euid()" in text] == []
